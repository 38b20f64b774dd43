"""Reformer's hashing on top of shared queries and keys (Kitaev, Kaiser, Levskaya 2020, "Reformer", section 2).

Tokens are sorted by hash bucket and cut into chunks. A token sees its own chunk and the one before. With the same
rotations this gives what reformer-pytorch's `LSHAttention` gives, and like it counts a key once for every round in
which it is met. With `rest` a query sees one key more: the mean of all tokens, seen or not; the logarithm of their
number is added to its score.
"""

import math
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.compute.dispatch import attend
from albert_lsh.attention.definition import Attention, Budget, rounds_and_size
from albert_lsh.attention.rows import MASKED, count_tokens, cut, largest, per_sequence, sort_tokens, token_mask
from albert_lsh.attention.seen import Seen, count_pairs
from albert_lsh.attention.select.hashing import generators_of_rounds, normal_numbers
from albert_lsh.attention.shared_qk import only_others, unit_queries

MOST_BUCKETS = 64  # of one choice among random directions


def draw_rotations(query: Tensor, n_buckets: int, generators: list[torch.Generator]) -> Tensor:
    """Random directions, half as many as buckets: (heads, rounds, head_dim, n_buckets / 2), float32.

    Drawn for each round apart and one direction after the other: a longer batch adds directions and changes none.
    """
    _, heads, _, dim = query.shape
    rounds = [normal_numbers(n_buckets // 2, heads, dim, generator=one) for one in generators]
    return torch.stack(rounds).permute(2, 0, 3, 1).to(query.device)


def even_buckets(n_tokens, bucket_size):
    """Reformer's number of buckets, one per `bucket_size` tokens, rounded up to an even number."""
    return 2 * (-(-n_tokens // (2 * bucket_size)))


@torch.no_grad()
def find_buckets(query, n_tokens: Tensor, *, bucket_size, n_hashes: int, generator) -> Tensor:
    """The bucket of every token in every round: (batch, heads, n_hashes, length), long.

    A bucket is the nearest of n_buckets / 2 random directions and their opposites (Andoni et al. 2015). Each sequence
    has as many buckets as its own tokens need, however far it is padded. More than `MOST_BUCKETS` are combinations of
    several such choices, so that hashing stays linear in the length (section 2 of the Reformer paper has two factors).
    """
    needed, weight, generators = even_buckets(n_tokens, bucket_size), 1, generators_of_rounds(n_hashes, generator)
    bucket = query.new_zeros(*query.shape[:2], n_hashes, query.shape[2], dtype=torch.long)
    while needed.any():
        here = needed.clamp(max=MOST_BUCKETS)
        rotations = draw_rotations(query, int(here.max()), generators)
        with torch.autocast(query.device.type, enabled=False):
            rotated = torch.einsum("bhld,hrdn->bhrln", query.float(), rotations)
        unused = (torch.arange(rotated.shape[-1], device=query.device) >= here[:, None] // 2)[:, None, None, None]
        both = torch.cat([rotated.masked_fill(unused, -torch.inf), (-rotated).masked_fill(unused, -torch.inf)], dim=-1)
        bucket = bucket + both.argmax(-1) * weight
        needed = torch.where(needed > MOST_BUCKETS, even_buckets(needed, MOST_BUCKETS), 0)
        weight *= MOST_BUCKETS
    return bucket


@torch.no_grad()
def see(query: Tensor, padding_mask: Tensor | None, *, bucket_size, n_hashes, rest: bool, generator) -> Seen:
    """The keys of each chunk and the one before, in every round; with `rest` the row behind them too."""
    n_tokens, length = count_tokens(query, padding_mask), query.shape[2]
    bucket = find_buckets(query, n_tokens, bucket_size=bucket_size, n_hashes=largest(n_hashes), generator=generator)
    own = cut(sort_tokens(bucket, padding_mask), n_tokens, bucket_size)
    keys = torch.cat([own, chunk_before(own, n_tokens, bucket_size, n_hashes)], dim=-1)
    number = torch.arange(own.shape[2], device=own.device)[:, None, None]
    keys = keys.masked_fill(number >= per_sequence(n_hashes, 5), length)
    if not rest:
        return Seen(own, keys, others_only=True)
    bias = torch.zeros(*keys.shape[:4], keys.shape[4] + 1, device=keys.device, dtype=torch.float32)
    bias[..., -1] = n_tokens.clamp(min=1).float().log()[:, None, None, None]
    last = torch.where(number == 0, length, length + 1).expand(*keys.shape[:4], 1)
    return Seen(own, torch.cat([keys.masked_fill(keys == length, length + 1), last], dim=-1), bias, others_only=True)


def chunk_before(own: Tensor, n_tokens: Tensor, bucket_size, n_hashes) -> Tensor:
    """The chunk before each chunk (batch, heads, rounds, chunks, size); the rounds follow one another, as in Reformer.

    Before the first chunk of a round stands the last chunk of the round before; before the very first, the very last.
    """
    _, heads, rounds, _, size = own.shape
    last = (-(-n_tokens // bucket_size)).clamp(min=1) - 1
    at_end = own.gather(3, last.view(-1, 1, 1, 1, 1).expand(-1, heads, rounds, 1, size))
    used = torch.as_tensor(n_hashes, device=own.device).expand(len(own))
    before = (torch.arange(rounds, device=own.device) - 1).expand(len(own), -1)
    before = torch.where(before < 0, used[:, None] - 1, before)[:, None, :, None, None].expand_as(at_end)
    return torch.cat([at_end.gather(2, before), own[:, :, :, :-1]], dim=3)


def shared_qk_lsh_attention(
    query, key, value, padding_mask=None, *, scaling, rest=False, dropout=0.0, generator=None, **settings
) -> Tensor:
    """Shared-QK attention inside neighbouring chunks of tokens sorted by hash bucket; `key` is not used."""
    seen = see(query, padding_mask, rest=rest, generator=generator, **settings)
    rows = [unit_queries(query), value]
    if rest:
        mask = token_mask(query, padding_mask).unsqueeze(-1)
        means = [(x.float() * mask).sum(2, keepdim=True) / mask.sum(2, keepdim=True).clamp(min=1) for x in rows]
        rows = [torch.cat([x, mean.to(x.dtype)], dim=2) for x, mean in zip(rows, means, strict=True)]
    out, log_sum = attend(query, rows[0], rows[1], seen, scaling=scaling, dropout=dropout)
    return torch.where((log_sum < MASKED / 2).unsqueeze(-1), value, out)  # a token that sees no other sees itself


def shared_qk_lsh_pairs(query, key, padding_mask=None, *, generator=None, rest=False, **settings) -> Tensor:
    """How often each query meets each key under the hashes of `generator`: (batch, heads, length, length), int."""
    seen = see(query, padding_mask, rest=False, generator=generator, **settings)
    return only_others(count_pairs(seen, query.shape[2]), padding_mask)


def mean_keys(query, key, padding_mask=None, *, rest=False, **settings) -> Tensor:
    """How many mean keys the queries of each head see: (batch, heads), long."""
    return token_mask(query, padding_mask).sum(-1) * int(rest)


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """A chunk of at least two tokens sees itself and the one before."""
    left = budget.left(4, rest=int(fixed.get("rest", False)))
    return fixed | rounds_and_size(budget, fixed, left // 2, size_name="bucket_size", least=2)


def cost(length: int, head_dim: int, *, bucket_size, n_hashes, rest=False) -> float:
    """Multiply-adds of one head: the random directions, the pairs in chunks, and the rest."""
    directions, needed = 0, even_buckets(length, bucket_size)
    while needed:
        directions += min(needed, MOST_BUCKETS) // 2
        needed = even_buckets(needed, MOST_BUCKETS) if needed > MOST_BUCKETS else 0
    chunks = math.ceil(length / bucket_size)
    pairs = length * 2 * math.ceil(length / chunks)
    return (n_hashes * (directions * length + 2 * pairs) + 2 * length * rest) * head_dim


SHARED_QK_LSH = Attention(
    "the same with Reformer's hashing",
    shared_qk_lsh_attention,
    shared_qk_lsh_pairs,
    cost,
    settings={"bucket_size": 64, "n_hashes": 8, "rest": False},
    lowest={"bucket_size": 2},
    spend=spend,
    spent=("n_hashes", "bucket_size"),
    mean_keys=mean_keys,
)
