"""Tokens sorted by hashes and cut into clusters; and the other ways to choose: places in the text, highest scores.

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

from albert_lsh.attention.keys import Keys, cluster_tables
from albert_lsh.attention.rows import largest, look_up, per_sequence, tokens_first

# Random numbers --------------------------------------------------------------------------------------------------


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


# Hashes ----------------------------------------------------------------------------------------------------------


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


def clusters_of(query_order: Tensor, key_order: Tensor, mask: Tensor, n_hashes: int | Tensor, size) -> Keys:
    """Rounds in which queries and keys are sorted and cut: a query sees the keys of the cluster with its own number.

    query_order, key_order: (batch, heads, rounds, length), values to sort by. mask: (batch, heads, length) bool. A key
    that is met in several rounds weighs once.
    """
    length, n_tokens = mask.shape[-1], mask[:, 0].sum(-1)
    queries, keys = (cut(sort_tokens(x, mask), n_tokens, size) for x in (query_order, key_order))
    keys = only_rounds(keys, n_hashes, length)  # (batch, heads, rounds, clusters, places)
    return Keys(queries, keys, None if keys.shape[2] == 1 else cluster_tables(queries, keys, length))


def only_rounds(keys: Tensor, n_hashes: int | Tensor, length: int) -> Tensor:
    """Lists of keys (batch, heads, rounds, clusters, places), empty beyond a sequence's own number of rounds."""
    number = torch.arange(keys.shape[2], device=keys.device)[:, None, None]
    return keys.masked_fill(number >= per_sequence(n_hashes, 5), length)


# Sorting ---------------------------------------------------------------------------------------------------------


def sort_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Positions in ascending order of `values` (batch, heads, rounds, length), those outside of the mask last.

    mask: (batch, heads, length) bool. Ties keep their order.
    """
    last = torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).max
    return values.masked_fill(~mask.unsqueeze(2), last).argsort(dim=-1, stable=True)


def cut(order: Tensor, n_tokens: Tensor, size: int | Tensor) -> Tensor:
    """Cut sorted tokens into ceil(n / size) clusters whose sizes differ by one at most.

    Args:
        order: (batch, heads, rounds, length), sorted positions, padding last.
        n_tokens: (batch,), tokens of each sequence.
        size: the most tokens in a cluster; one number, or (batch,).
    Returns:
        (batch, heads, rounds, clusters, places) positions; `length` in empty places. A sequence that needs fewer
        clusters than another one of the batch has empty ones at the end.
    """
    batch, heads, rounds, length = order.shape
    size = size.clamp(max=length) if isinstance(size, Tensor) else min(size, length)
    needed = (-(-n_tokens // size)).clamp(min=1)[:, None]
    most, widest = (int(needed.max()), int(size.max())) if isinstance(size, Tensor) else (-(-length // size), size)
    cluster = torch.arange(most + 1, device=order.device)
    start = (cluster.clamp(max=needed) * n_tokens[:, None]) // needed  # (batch, clusters + 1)
    rank = start[:, :-1, None] + torch.arange(widest, device=order.device)  # (batch, clusters, places)
    empty = (rank >= start[:, 1:, None])[:, None, None].expand(batch, heads, rounds, -1, -1)
    rank = rank.clamp(max=length - 1)[:, None, None].expand_as(empty)
    positions = order.gather(-1, rank.flatten(3)).view_as(rank)
    return positions.masked_fill(empty, length)


# Highest scores, and places in the text --------------------------------------------------------------------------


def best(scores: Tensor, mask: Tensor, count: Tensor | int) -> Tensor:
    """Positions of the `count` highest scores of each row, best first; `length` where the mask leaves fewer.

    Args:
        scores: (batch, heads, ..., length). mask: bool, broadcasts to it. count: one number, or (batch,).
    Returns:
        (batch, heads, ..., largest count), long.
    """
    length = scores.shape[-1]
    values, positions = scores.masked_fill(~mask, -torch.inf).topk(min(largest(count), length), dim=-1)
    return beyond(positions.masked_fill(values == -torch.inf, length), count, length)


def beyond(chosen: Tensor, count: Tensor | int, nothing: int) -> Tensor:
    """Choices (batch, ..., n), best first, with `nothing` behind the first `count`: one number, or (batch,)."""
    if not isinstance(count, Tensor):
        return chosen[..., :count]
    rank = torch.arange(chosen.shape[-1], device=chosen.device)
    return chosen.masked_fill(rank >= per_sequence(count, chosen.dim()), nothing)


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
