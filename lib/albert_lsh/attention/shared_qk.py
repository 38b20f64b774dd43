"""Shared queries and keys (Kitaev, Kaiser, Levskaya 2020, "Reformer", section 2), without hashing and with it.

    out_i = sum over j != i of softmax_j(scaling q_i . q_j / |q_j|) v_j

The pretrained projections stay. The keys are replaced by the queries scaled to unit length, and a token attends to
itself only when there is nothing else.

    shared-qk       every token attends to all others; each of these three changes can be left out: `tied_keys`,
                    `unit_keys`, `others_only`. Without any of them it is softmax attention
    shared-qk-lsh   tokens are sorted by hash bucket and cut into chunks; a token sees its own chunk and the one before

With the same rotations `shared-qk-lsh` gives what reformer-pytorch's `LSHAttention` gives, and like it counts a key
once for every round in which it is met. With `mean_key` a query sees one key more: the mean of all tokens, seen or not;
the logarithm of their number is added to its score.

With `causal` a token sees only tokens before it, and itself where it sees none of them. So a model's output for the
first token, [CLS], does not depend on the text. `naive` says what `SharedQK` does, for one head, and is what the tests
hold it to.
"""

import math
from typing import Self

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor

from albert_lsh.attention.choose.hashing import cut, generators_of_rounds, normal_numbers, only_rounds, sort_tokens
from albert_lsh.attention.compute import attend
from albert_lsh.attention.compute.mean_key import mean_of_all, with_mean_key
from albert_lsh.attention.core import Attention, Count, Size, SparseAttention, rounds_of
from albert_lsh.attention.keys import Keys
from albert_lsh.attention.rows import MASKED, largest, product, token_mask

# Reformer's score for a token's own key: far below any other, and far above that of padding.
SELF = -5e4
MOST_BUCKETS = 64  # of one choice among random directions


def naive(
    query: Tensor, key: Tensor, value: Tensor, scaling: float,
    *, tied_keys: bool = True, unit_keys: bool = True, others_only: bool = True, causal: bool = False,
) -> Tensor:  # fmt: skip
    """The attention of one head of one sequence, slowly. query, key, value, and what comes out: (n, head_dim)."""
    if tied_keys:
        key = query
    if unit_keys:
        key = key / key.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    rows = []
    for i in range(len(query)):
        seen = [j for j in range(i + 1 if causal else len(query)) if not (others_only and j == i)] or [i]
        rows.append((scaling * key[seen] @ query[i]).softmax(-1) @ value[seen])
    return torch.stack(rows)


def unit_length(rows: Tensor) -> Tensor:
    """Rows (..., head_dim) scaled to length one, in their dtype; of queries, the keys of shared-QK attention."""
    return F.normalize(rows.float(), dim=-1).to(rows.dtype)


def only_others(counts: Tensor, padding_mask: Tensor | None, causal: bool = False) -> Tensor:
    """Counts (batch, heads, length, length) without the diagonal, which stays only where a token sees nothing else.

    causal: without later tokens, too.
    """
    if padding_mask is not None:
        counts = counts * padding_mask[:, None, None, :]
    if causal:
        counts = counts.tril()
    diagonal = counts.diagonal(dim1=-2, dim2=-1)
    others = counts - diagonal.diag_embed()
    return others + (diagonal * (others.sum(-1) == 0)).diag_embed()


class SharedQK(Attention):
    name = "shared-qk"
    description = "pretrained projections, keys tied to queries, no hashing"

    tied_keys: bool = True  # keys are queries
    unit_keys: bool = True  # of length one
    others_only: bool = True  # a token sees itself only where it sees nothing else
    causal: bool = False

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """`key` is used where keys are not tied."""
        key = query if self.tied_keys else key
        key = unit_length(key) if self.unit_keys else key
        self_score = SELF if self.others_only else 0.0
        diagonal = torch.full((query.shape[2],), self_score, device=query.device, dtype=torch.float32)
        mask = diagonal.diag()[None, None]  # (1, 1, length, length)
        if self.causal:
            mask = mask + torch.full_like(mask, MASKED).triu(1)
        if padding_mask is not None:
            mask = mask.masked_fill(~padding_mask[:, None, None, :], MASKED)
        scores = product(query, key.transpose(-1, -2)).float() * scaling + mask
        return F.dropout(scores.softmax(-1), dropout).to(value.dtype) @ value

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        counts = super().pairs(query, key, padding_mask, generator)
        if self.others_only:
            return only_others(counts, padding_mask, self.causal)
        return counts.tril() if self.causal else counts


class SharedQKLSH(SparseAttention):
    name = "shared-qk-lsh"
    description = "the same with Reformer's hashing"
    sizes = ("n_hashes", "bucket_size")
    fewest = 4  # two chunks of two tokens

    bucket_size: Size = 64
    n_hashes: Count = 8
    mean_key: bool = False
    causal: bool = False

    @model_validator(mode="after")
    def check_causal(self) -> Self:
        if self.mean_key and self.causal:
            raise ValueError("mean_key and causal cannot both be True: the mean of all tokens has later ones in it")
        return self

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        """A query sees two chunks of every round."""
        n_hashes, bucket_size = rounds_of(self.room(n_tokens, keys) // 2, smallest=2)
        return {"n_hashes": n_hashes, "bucket_size": bucket_size}

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        """The keys of each chunk and the one before, in every round."""
        n_tokens, length = mask[:, 0].sum(-1), query.shape[2]
        buckets = find_buckets(query, n_tokens, self.bucket_size, largest(self.n_hashes), generator)
        chunks = cut(sort_tokens(buckets, mask), n_tokens, self.bucket_size)  # (batch, heads, rounds, chunks, places)
        keys = torch.cat([chunks, chunk_before(chunks, n_tokens, self.bucket_size, self.n_hashes)], dim=-1)
        return Keys(chunks, only_rounds(keys, self.n_hashes, length), others_only=True, earlier_only=self.causal)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """`key` is not used."""
        key = unit_length(query)
        keys = self.keys_for(query, key, padding_mask, generator, scaling)
        out, log_sum = attend(query, key, value, keys, scaling=scaling, dropout=dropout)
        if self.mean_key:
            means = mean_of_all(key, value, token_mask(query, padding_mask))
            return with_mean_key(query, out, log_sum, means, scaling)
        return torch.where((log_sum < MASKED / 2).unsqueeze(-1), value, out)  # who sees no other sees itself

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        return only_others(super().pairs(query, key, padding_mask, generator), padding_mask, self.causal)

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the random directions, the pairs in chunks, later ones too, and the mean key."""
        directions = 0
        needed = even_buckets(length, self.bucket_size)
        while needed:
            directions += min(needed, MOST_BUCKETS) // 2
            needed = even_buckets(needed, MOST_BUCKETS) if needed > MOST_BUCKETS else 0
        chunks = math.ceil(length / self.bucket_size)
        pairs = length * 2 * math.ceil(length / chunks)
        return (self.n_hashes * (directions * length + 2 * pairs) + 2 * length * self.mean_key) * head_dim


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


def find_buckets(query: Tensor, n_tokens: Tensor, bucket_size: int | Tensor, n_hashes: int, generator) -> Tensor:
    """The bucket of every token in every round: (batch, heads, n_hashes, length), long. query: float32.

    A bucket is the nearest of n_buckets / 2 random directions and their opposites (Andoni et al. 2015). Each sequence
    has as many buckets as its own tokens need, however far it is padded. More than `MOST_BUCKETS` are combinations of
    several such choices, so that hashing stays linear in the length (section 2 of the Reformer paper has two factors).
    """
    needed = even_buckets(n_tokens, bucket_size)
    weight = 1
    generators = generators_of_rounds(n_hashes, generator)
    bucket = query.new_zeros(*query.shape[:2], n_hashes, query.shape[2], dtype=torch.long)
    while needed.any():
        here = needed.clamp(max=MOST_BUCKETS)
        rotations = draw_rotations(query, int(here.max()), generators)
        rotated = torch.einsum("bhld,hrdn->bhrln", query, rotations)
        unused = (torch.arange(rotated.shape[-1], device=query.device) >= here[:, None] // 2)[:, None, None, None]
        both = torch.cat([rotated.masked_fill(unused, -torch.inf), (-rotated).masked_fill(unused, -torch.inf)], dim=-1)
        bucket = bucket + both.argmax(-1) * weight
        needed = torch.where(needed > MOST_BUCKETS, even_buckets(needed, MOST_BUCKETS), 0)
        weight *= MOST_BUCKETS
    return bucket


def chunk_before(chunks: Tensor, n_tokens: Tensor, bucket_size, n_hashes) -> Tensor:
    """The chunk before each chunk (batch, heads, rounds, chunks, size); the rounds follow one another, as in Reformer.

    Before the first chunk of a round stands the last chunk of the round before; before the very first, the very last.
    """
    _, heads, rounds, _, size = chunks.shape
    last = (-(-n_tokens // bucket_size)).clamp(min=1) - 1
    at_end = chunks.gather(3, last.view(-1, 1, 1, 1, 1).expand(-1, heads, rounds, 1, size))
    used = torch.as_tensor(n_hashes, device=chunks.device).expand(len(chunks))
    before = (torch.arange(rounds, device=chunks.device) - 1).expand(len(chunks), -1)
    before = torch.where(before < 0, used[:, None] - 1, before)[:, None, :, None, None].expand_as(at_end)
    return torch.cat([at_end.gather(2, before), chunks[:, :, :, :-1]], dim=3)
