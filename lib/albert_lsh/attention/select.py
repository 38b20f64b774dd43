"""What keys are chosen by: hashes, places in the text, and keys that all queries see.

Hashes are random projections after which a large inner product is a small distance. F(q) = [q; sqrt(M^2 - |q|^2); 0]
and G(k) = [k; 0; sqrt(M^2 - |k|^2)], with M the largest norm, give |F(q) - G(k)|^2 = 2 M^2 - 2 q.k (Shrivastava & Li
2014; Daras et al. 2020, SMYRF).

Global tokens are found from the data. A score is mean(q).k + (q - mean(q)).k, whose first part is the same for all
queries. In a pretrained encoder it is large for a few keys, mostly the special tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.keys import cut, largest, look_up, per_sequence
from albert_lsh.attention.order import best, tokens_first


def normal_numbers(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Normal random numbers, float32, on the CPU so that every device hashes alike.

    A larger first dimension adds numbers and changes none, so a sequence does not depend on the others of its batch.
    """
    count = math.prod(shape)
    whole = -(-count // 16) * 16  # torch draws blocks of 16, and an incomplete one differently
    return torch.randn(whole, generator=generator, dtype=torch.float32, device="cpu")[:count].view(shape)


def draw_directions(heads: int, dim: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Random directions (heads, count, dim)."""
    return normal_numbers(count, heads, dim, generator=generator).transpose(0, 1)


def generators_of_rounds(count: int, generator: torch.Generator | None) -> list[torch.Generator]:
    """A generator for each round, from one number that is drawn from `generator`: more rounds change no earlier one."""
    first = int(torch.randint(2**31, (1,), generator=generator, device="cpu"))
    return [torch.Generator().manual_seed(first + 1_000_003 * number) for number in range(count)]


def asymmetric(query: Tensor, key: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """F(query) and G(key): (batch, heads, length, head_dim + 2), all of norm M within a sequence and head."""
    q2, k2 = (x.square().sum(-1, keepdim=True) * mask.unsqueeze(-1) for x in (query, key))
    m2 = torch.maximum(q2, k2).amax(2, keepdim=True)
    rest_q, rest_k = (m2 - q2).clamp(min=0).sqrt(), (m2 - k2).clamp(min=0).sqrt()
    zero = torch.zeros_like(rest_q)
    return torch.cat([query, rest_q, zero], -1), torch.cat([key, zero, rest_k], -1)


def project(query: Tensor, key: Tensor, mask: Tensor, n_hashes: int, generator) -> tuple[Tensor, Tensor]:
    """F(query) and G(key) projected on random directions: (batch, heads, n_hashes, length) each."""
    directions = draw_directions(query.shape[1], query.shape[3] + 2, n_hashes, generator).to(query.device)
    query, key = asymmetric(query, key, mask)
    return along(query, directions), along(key, directions)


def along(rows: Tensor, directions: Tensor) -> Tensor:
    """Inner products of rows (batch, heads, length, dim) and directions (heads, n, dim): (batch, heads, n, length).

    Row by row: equal tokens have equal hashes, and their order is that of their positions. A matrix product rounds
    them by their place in the batch.
    """
    products = [(rows * direction[:, None]).sum(-1) for direction in directions.unbind(1)]
    return torch.stack(products, 2)


def neighbours(mask: Tensor, size: int | Tensor) -> Tensor:
    """Blocks of at most `size` neighbouring tokens: (batch, heads, blocks, places) positions, `length` for none.

    mask: (batch, heads, length) bool, True where there is a token. size: one number, or (batch,).
    """
    order = tokens_first(mask).unsqueeze(2)
    return cut(order, mask[:, 0].sum(-1), size).squeeze(2)


def nearest(mask: Tensor, blocks: Tensor, span: int | Tensor) -> Tensor:
    """The `span` tokens around each block of `neighbours`, the block among them.

    At the ends of a sequence the range moves inwards, so that it keeps its length.

    Args:
        mask: (batch, heads, length) bool. blocks: (batch, heads, blocks, places).
        span: at least as many as a block has; one number, or (batch,).
    Returns:
        (batch, heads, blocks, largest span) positions, `length` for none.
    """
    length, n = mask.shape[-1], mask.sum(-1)[..., None]  # (batch, heads, 1)
    number = F.pad((mask.cumsum(-1) - 1).masked_fill(~mask, 0), (0, 1))
    order = F.pad(tokens_first(mask), (0, 1), value=length)
    size = (blocks < length).sum(-1)  # (batch, heads, blocks)
    span = torch.as_tensor(per_sequence(span, 3), device=mask.device).minimum(n)
    start = (look_up(number, blocks[..., 0]) - (span - size + 1) // 2).clamp(min=0).minimum(n - span)
    step = torch.arange(max(1, int(span.max())), device=mask.device)
    absent = (step >= span.unsqueeze(-1)) | (size == 0).unsqueeze(-1)
    return look_up(order, (start.unsqueeze(-1) + step).clamp(max=length).masked_fill(absent, length))


def find_global_tokens(query: Tensor, key: Tensor, mask: Tensor, count: int | Tensor) -> tuple[Tensor, Tensor]:
    """The `count` keys that the mean query scores highest.

    Args:
        query, key: (batch, heads, length, head_dim) float32, zeros in padding. mask: (batch, heads, length) bool, True
            for tokens. count: one number, or (batch,).
    Returns:
        Their positions (batch, heads, largest count), `length` where there are fewer; and (batch, heads, length) bool,
        True for them.
    """
    if not largest(count):
        return torch.zeros_like(mask[..., :0], dtype=torch.long), torch.zeros_like(mask)
    total = query.sum(2)  # the mean times the number of tokens, which has the same order
    positions = best(torch.einsum("bhd,bhld->bhl", total, key), mask, count)
    chosen = torch.zeros(*mask.shape[:2], mask.shape[2] + 1, dtype=torch.bool, device=mask.device)
    return positions, chosen.scatter(2, positions, True)[..., :-1]
