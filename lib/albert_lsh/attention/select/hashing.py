"""Hash functions: how queries and keys are put in a row, so that those which matter to one another stand close.

Each function gives values to sort by; the sorted row is then cut into clusters of equal size (`blocks.cut`). None
multiplies tokens by tokens: a round costs a few products of head_dim per token, and a sort.

    plain           random projections of F(q) and G(k), for which a large inner product is a small distance
    keys            random projections weighted along the principal components of the keys, all vectors centred
    cross-polytope  the direction, of a few random ones and their opposites, that a centred unit vector is closest to

F(q) = [q; sqrt(M^2 - |q|^2); 0] and G(k) = [k; 0; sqrt(M^2 - |k|^2)], M the largest norm, after Shrivastava & Li 2014
and Daras et al. 2020 (SMYRF): |F(q) - G(k)|^2 = 2 M^2 - 2 q.k. Weighting needs no eigenvectors: one product of the
keys' covariance with a random vector stretches it along the principal components.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def draw_directions(heads: int, dim: int, n_hashes: int, generator: torch.Generator | None) -> Tensor:
    """Random directions (heads, n_hashes, dim), float32, drawn on the CPU so that every device hashes alike."""
    return torch.randn(heads, n_hashes, dim, generator=generator)


def centred(rows: Tensor, mask: Tensor) -> Tensor:
    """Rows (batch, heads, length, dim) less the mean of those in mask (batch, heads, length); zero outside of it."""
    kept = mask.unsqueeze(-1)
    mean = (rows * kept).sum(2, keepdim=True) / kept.sum(2, keepdim=True).clamp(min=1)
    return (rows - mean) * kept


def asymmetric(query: Tensor, key: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """F(query) and G(key): (batch, heads, length, head_dim + 2), all of one norm M a sequence and head."""
    q2, k2 = (x.square().sum(-1, keepdim=True) * mask.unsqueeze(-1) for x in (query, key))
    m2 = torch.maximum(q2, k2).amax(2, keepdim=True)
    rest_q, rest_k = (m2 - q2).clamp(min=0).sqrt(), (m2 - k2).clamp(min=0).sqrt()
    zero = torch.zeros_like(rest_q)
    return torch.cat([query, rest_q, zero], -1), torch.cat([key, zero, rest_k], -1)


def plain(query: Tensor, key: Tensor, mask: Tensor, n_hashes: int, generator) -> tuple[Tensor, Tensor]:
    """Projections of F(query) and G(key) on random directions: (batch, heads, n_hashes, length) each."""
    directions = draw_directions(query.shape[1], query.shape[3] + 2, n_hashes, generator).to(query.device)
    query, key = asymmetric(query, key, mask)
    return torch.einsum("bhld,hrd->bhrl", query, directions), torch.einsum("bhld,hrd->bhrl", key, directions)


def keys(query: Tensor, key: Tensor, mask: Tensor, n_hashes: int, generator) -> tuple[Tensor, Tensor]:
    """Projections of centred queries and keys on C g, with C the keys' covariance and g random."""
    drawn = draw_directions(query.shape[1], query.shape[3], n_hashes, generator).to(query.device)
    query, key = centred(query, mask), centred(key, mask)
    directions = torch.einsum("bhld,bhlr->bhrd", key, torch.einsum("bhld,hrd->bhlr", key, drawn))
    return torch.einsum("bhld,bhrd->bhrl", query, directions), torch.einsum("bhld,bhrd->bhrl", key, directions)


def cross_polytope(query: Tensor, key: Tensor, mask: Tensor, n_hashes: int, generator) -> tuple[Tensor, Tensor]:
    """The bucket of each centred unit vector, as a number that sorts by bucket and inside it by closeness.

    Andoni et al. 2015, with as many random directions as half of head_dim.
    """
    heads, dim = query.shape[1], query.shape[3]
    count = max(1, dim // 2)
    directions = draw_directions(heads, dim, n_hashes * count, generator).to(query.device)
    directions = F.normalize(directions, dim=-1).view(heads, n_hashes, count, dim)

    def buckets(rows: Tensor) -> Tensor:
        rows = F.normalize(centred(rows, mask), dim=-1)
        turned = torch.einsum("bhld,hrcd->bhrlc", rows, directions)
        closeness, bucket = torch.cat([turned, -turned], -1).max(-1)
        return bucket + (1 - closeness) / 4  # closeness is between 0 and 1

    return buckets(query), buckets(key)


PROJECTIONS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "plain": plain,
    "keys": keys,
    "cross-polytope": cross_polytope,
}
