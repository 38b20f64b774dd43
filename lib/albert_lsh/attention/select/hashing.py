"""Random projections after which a large inner product is a small distance.

F(q) = [q; sqrt(M^2 - |q|^2); 0] and G(k) = [k; 0; sqrt(M^2 - |k|^2)], with M the largest norm, give
|F(q) - G(k)|^2 = 2 M^2 - 2 q.k (Shrivastava & Li 2014; Daras et al. 2020, SMYRF).
"""

import math

import torch
from torch import Tensor


def normal_numbers(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Normal random numbers, float32, on the CPU so that every device hashes alike.

    A larger first dimension adds numbers and changes none, so a sequence does not depend on the others of its batch.
    """
    count = math.prod(shape)
    whole = -(-count // 16) * 16  # torch draws blocks of 16, and an incomplete one differently
    return torch.randn(whole, generator=generator, dtype=torch.float32)[:count].view(shape)


def draw_directions(heads: int, dim: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Random directions (heads, count, dim)."""
    return normal_numbers(count, heads, dim, generator=generator).transpose(0, 1)


def generators_of_rounds(count: int, generator: torch.Generator | None) -> list[torch.Generator]:
    """A generator for each round, from one number that is drawn from `generator`: more rounds change no earlier one."""
    first = int(torch.randint(2**31, (1,), generator=generator))
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
