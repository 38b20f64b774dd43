"""LSH attention that keeps a pretrained encoder's query and key projections, and a control with random clusters.

Queries and keys differ in a pretrained encoder, so they are hashed by different functions, chosen such that a large
inner product becomes a small distance (Shrivastava & Li 2014; Daras et al. 2020, "SMYRF"): with M the largest norm,

    F(q) = [q; sqrt(M^2 - |q|^2); 0]      G(k) = [k; 0; sqrt(M^2 - |k|^2)]      |F(q) - G(k)|^2 = 2 M^2 - 2 q.k

Each round projects F(q) and G(k) on one random direction, sorts queries and keys by it, cuts both rows into clusters
of equal size, and attends inside a cluster. Clusters of equal size never overflow, and a sequence of at most
`cluster_size` tokens has one cluster, which is softmax attention.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from albert_lsh.attention.clusters import (
    Blocks,
    attend_blocks,
    count_pairs,
    count_tokens,
    cut,
    sort_tokens,
    times_met,
)


def draw_directions(heads: int, dim: int, n_hashes: int, generator: torch.Generator | None) -> Tensor:
    """Random directions (heads, n_hashes, dim + 2), float32, drawn on the CPU so that every device hashes alike."""
    return torch.randn(heads, n_hashes, dim + 2, generator=generator)


def asymmetric(query: Tensor, key: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """F(query) and G(key): (batch, heads, length, head_dim + 2), float32, all of one norm M a sequence and head."""
    query, key = query.float(), key.float()
    q2, k2 = query.square().sum(-1, keepdim=True), key.square().sum(-1, keepdim=True)
    if padding_mask is not None:
        padding = ~padding_mask[:, None, :, None]
        q2, k2 = q2.masked_fill(padding, 0), k2.masked_fill(padding, 0)
    m2 = torch.maximum(q2, k2).amax(2, keepdim=True)
    rest_q, rest_k = (m2 - q2).clamp(min=0).sqrt(), (m2 - k2).clamp(min=0).sqrt()
    zero = torch.zeros_like(rest_q)
    return torch.cat([query, rest_q, zero], -1), torch.cat([key, zero, rest_k], -1)


def sorted_blocks(query_hash, key_hash, n_tokens, padding_mask, cluster_size) -> Blocks:
    """Sort queries and keys, each by their own hash (batch, heads, rounds, length), and cut both into clusters."""
    query_order, key_order = (sort_tokens(h, padding_mask) for h in (query_hash, key_hash))
    return Blocks(cut(query_order, n_tokens, cluster_size), cut(key_order, n_tokens, cluster_size))


@torch.no_grad()
def hash_blocks(query, key, padding_mask, *, n_hashes, cluster_size, generator) -> Blocks:
    """Clusters of queries and keys with similar projections."""
    directions = draw_directions(query.shape[1], query.shape[3], n_hashes, generator).to(query.device)
    with torch.autocast(query.device.type, enabled=False):
        hashes = [torch.einsum("bhld,hrd->bhrl", rows, directions) for rows in asymmetric(query, key, padding_mask)]
    return sorted_blocks(hashes[0], hashes[1], count_tokens(query, padding_mask), padding_mask, cluster_size)


@torch.no_grad()
def random_blocks(query, key, padding_mask, *, n_hashes, cluster_size, generator) -> Blocks:
    """Clusters of queries and keys drawn at random, the same for all sequences of a batch."""
    batch, heads, length, _ = query.shape
    # Position first: a longer batch draws more numbers and changes none, so padding does not change a result.
    draws = torch.rand(length, 2, heads, n_hashes, generator=generator).to(query.device)
    hashes = draws.permute(1, 2, 3, 0)[:, None].expand(2, batch, -1, -1, -1)
    return sorted_blocks(hashes[0], hashes[1], count_tokens(query, padding_mask), padding_mask, cluster_size)


def make_attention(find_blocks: Callable[..., Blocks]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The functions (attention, pairs) for a way to find clusters."""

    def attention(query, key, value, padding_mask=None, *, duplicates, scaling, dropout=0.0, **hashing) -> Tensor:
        blocks = find_blocks(query, key, padding_mask, **hashing)
        # A key met in N rounds has log N taken off its scores: it then weighs as much as one met once, and the merge of
        # the rounds is exactly the softmax over the distinct keys.
        once = duplicates == "once" and hashing["n_hashes"] > 1
        bias = -times_met(blocks, query.shape[2]).clamp(min=1).log() if once else None
        return attend_blocks(query, key, value, blocks, padding_mask, scaling=scaling, dropout=dropout, bias=bias)

    def pairs(query, key, padding_mask=None, *, duplicates, **hashing) -> Tensor:
        return count_pairs(find_blocks(query, key, padding_mask, **hashing), query.shape[2])

    return attention, pairs


lsh_attention, lsh_pairs = make_attention(hash_blocks)
random_attention, random_pairs = make_attention(random_blocks)
