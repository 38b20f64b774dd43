"""Shared queries and keys, and Reformer's hashing on top (Kitaev, Kaiser, Levskaya 2020, "Reformer", section 2).

The pretrained projections stay. The keys are thrown away and replaced by the queries scaled to unit length, and a
token attends to itself only when nothing else is there: `shared-qk`. `shared-qk-lsh` restricts that to tokens which
fall into neighbouring chunks of the row sorted by hash bucket. With the same rotations it gives what
reformer-pytorch's `LSHAttention` gives, and like it counts a key once for every round in which it is met.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import (
    MASKED,
    Blocks,
    count_tokens,
    cut,
    sort_tokens,
)
from albert_lsh.attention.compute.dispatch import attend_parts
from albert_lsh.attention.compute.parts import Bias, Part, count_pairs
from albert_lsh.attention.softmax import all_pairs

MOST_BUCKETS = 64  # of one choice among random directions

# Reformer's score for a token's own key: far below any other, and far above that of padding.
SELF = -5e4


def unit_queries(query: Tensor) -> Tensor:
    """The keys of shared-QK attention: queries of length one, in query's dtype."""
    return F.normalize(query.float(), dim=-1).to(query.dtype)


def shared_qk_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None) -> Tensor:
    """Attention of every token to all others with unit-length queries as keys; `key` is not used."""
    length = query.shape[2]
    mask = torch.full((length,), SELF, device=query.device).diag()[None, None]  # (1, 1, length, length)
    if padding_mask is not None:
        mask = mask.masked_fill(~padding_mask[:, None, None, :], MASKED)
    scores = (query @ unit_queries(query).transpose(-1, -2)).float() * scaling + mask
    weights = F.dropout(scores.softmax(-1), dropout)
    return weights.to(value.dtype) @ value


def only_others(counts: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Counts (batch, heads, length, length) without the diagonal, which stays only where a token sees nothing else."""
    if padding_mask is not None:
        counts = counts * padding_mask[:, None, None, :]
    own = counts.diagonal(dim1=-2, dim2=-1)
    off_diagonal = counts - own.diag_embed()
    return off_diagonal + (own * (off_diagonal.sum(-1) == 0)).diag_embed()


def others(query, key, padding_mask=None, *, generator=None) -> Tensor:
    """Every token sees every other one: (batch, heads, length, length), ones off the diagonal."""
    return only_others(all_pairs(query, key), padding_mask)


def draw_rotations(query: Tensor, n_buckets: int, n_hashes: int, generator: torch.Generator | None) -> Tensor:
    """Random directions, half as many as buckets: (heads, n_hashes, head_dim, n_buckets / 2), float32.

    Drawn on the CPU, so that every device hashes alike, and one direction after the other, so that a longer batch
    adds directions and changes none.
    """
    _, heads, _, dim = query.shape
    draws = [torch.randn(heads, n_hashes, dim, generator=generator) for _ in range(n_buckets // 2)]
    return torch.stack(draws, dim=-1).to(query.device)


def even_buckets(n_tokens, bucket_size: int):
    """Reformer's number of buckets, one per `bucket_size` tokens, rounded up to an even number."""
    return 2 * (-(-n_tokens // (2 * bucket_size)))


@torch.no_grad()
def find_buckets(query, n_tokens: Tensor, *, bucket_size: int, n_hashes: int, generator) -> Tensor:
    """The bucket of every token in every round: (batch, heads, n_hashes, length), long.

    A bucket is the nearest of n_buckets / 2 random directions and their opposites (Andoni et al. 2015); a sequence
    gets as many buckets as its own tokens need, whatever its neighbours in the batch are padded to. More than
    `MOST_BUCKETS` are the combinations of several such choices, the later the weightier, so that hashing takes no more
    products per token and choice the longer the sequence is (section 2 of the Reformer paper has two factors).
    """
    needed, weight = even_buckets(n_tokens, bucket_size), 1
    bucket = query.new_zeros(*query.shape[:2], n_hashes, query.shape[2], dtype=torch.long)
    while needed.any():
        here = needed.clamp(max=MOST_BUCKETS)
        rotations = draw_rotations(query, int(here.max()), n_hashes, generator)
        with torch.autocast(query.device.type, enabled=False):
            rotated = torch.einsum("bhld,hrdn->bhrln", query.float(), rotations)
        unused = (torch.arange(rotated.shape[-1], device=query.device) >= here[:, None] // 2)[:, None, None, None]
        both = torch.cat([rotated.masked_fill(unused, -torch.inf), (-rotated).masked_fill(unused, -torch.inf)], dim=-1)
        bucket = bucket + both.argmax(-1) * weight
        needed = torch.where(needed > MOST_BUCKETS, even_buckets(needed, MOST_BUCKETS), 0)
        weight *= MOST_BUCKETS
    return bucket


@torch.no_grad()
def hash_blocks(query, padding_mask, *, bucket_size: int, n_hashes: int, generator) -> Blocks:
    """Sort tokens by (bucket, position), cut the row into chunks, let each chunk see itself and the one before."""
    n_tokens = count_tokens(query, padding_mask)
    bucket = find_buckets(query, n_tokens, bucket_size=bucket_size, n_hashes=n_hashes, generator=generator)
    own = cut(sort_tokens(bucket, padding_mask), n_tokens, bucket_size)
    return Blocks(own, torch.cat([own, chunk_before(own, n_tokens)], dim=-1))


def chunk_before(own: Tensor, n_tokens: Tensor) -> Tensor:
    """The chunk before each chunk (batch, heads, rounds, chunks, size), the rounds being one long row, as in Reformer.

    Before the first chunk of a round stands the last one in use of the round before; before the very first, the
    very last.
    """
    _, heads, rounds, _, size = own.shape
    last = (-(-n_tokens // size)).clamp(min=1) - 1
    at_end = own.gather(3, last.view(-1, 1, 1, 1, 1).expand(-1, heads, rounds, 1, size))
    return torch.cat([at_end.roll(1, dims=2), own[:, :, :, :-1]], dim=3)


def shared_qk_lsh_attention(
    query, key, value, padding_mask=None, *, bucket_size, n_hashes, scaling, dropout=0.0, generator=None
) -> Tensor:
    """Shared-QK attention inside neighbouring chunks of tokens sorted by hash bucket; `key` is not used."""
    blocks = hash_blocks(query, padding_mask, bucket_size=bucket_size, n_hashes=n_hashes, generator=generator)
    part, sources = Part(blocks, Bias(own=True)), [(unit_queries(query), value)]
    out, log_sum = attend_parts(query, sources, [(part, 0)], scaling=scaling, dropout=dropout)
    alone = (log_sum < MASKED / 2).unsqueeze(-1)  # nothing but itself is there
    return torch.where(alone, value, out)


def shared_qk_lsh_pairs(query, key, padding_mask=None, *, bucket_size, n_hashes, generator=None) -> Tensor:
    """How often each query meets each key under the hashes of `generator`: (batch, heads, length, length), long."""
    blocks = hash_blocks(query, padding_mask, bucket_size=bucket_size, n_hashes=n_hashes, generator=generator)
    return only_others(count_pairs([Part(blocks)], query.shape[2]), padding_mask)
