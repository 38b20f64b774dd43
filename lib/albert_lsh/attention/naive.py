"""References: short, slow, obviously right. The tests hold every attention, its output and gradients, against these.

Each takes the same arguments as the attention of its name and draws the same random numbers, then goes through
sequences, heads, rounds and tokens one by one and ends in a plain softmax over the keys that a query may see.
"""

import math

import torch
from torch import Tensor

from albert_lsh.attention.lsh import draw_directions
from albert_lsh.attention.shared_qk import draw_rotations, even_buckets


def attend_counted(query, key, value, counts: Tensor, scaling: float) -> Tensor:
    """Softmax attention of one sequence and head in which key j stands counts[i, j] times before query i.

    query, key, value: (n, head_dim); counts: (n, n). A query with no key at all gives zeros.
    """
    scores = query.double() @ key.double().T * scaling + counts.double().log()
    return torch.nan_to_num(scores.softmax(-1)) @ value.double()


def each_sequence(query, key, value, padding_mask, attend_one) -> Tensor:
    """Call attend_one(tokens, head, q, k, v) for each sequence and head, padding taken out; put the rows back.

    tokens: (n,) positions of what is not padding; q, k, v: (n, head_dim).
    """
    out = torch.zeros_like(value, dtype=torch.float64)
    for b in range(query.shape[0]):
        tokens = torch.arange(query.shape[2]) if padding_mask is None else padding_mask[b].nonzero()[:, 0]
        for h in range(query.shape[1]):
            if len(tokens):
                rows = attend_one(tokens, h, query[b, h, tokens], key[b, h, tokens], value[b, h, tokens])
                out = out.index_put((torch.tensor(b), torch.tensor(h), tokens), rows)
    return out


def softmax(query, key, value, padding_mask=None, *, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        return attend_counted(q, k, v, torch.ones(len(q), len(q)), scaling)

    return each_sequence(query, key, value, padding_mask, one)


def shared_qk_one(q, v, counts, scaling):
    """Shared-QK attention of one sequence: unit-length queries as keys, oneself only where nothing else is seen."""
    k = q.double() / q.double().norm(dim=-1, keepdim=True).clamp(min=1e-12)
    counts = counts.clone().fill_diagonal_(0)
    alone = counts.sum(-1) == 0
    counts[alone, alone] = 1
    return attend_counted(q, k, v, counts, scaling)


def shared_qk(query, key, value, padding_mask=None, *, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        return shared_qk_one(q, v, torch.ones(len(q), len(q)), scaling)

    return each_sequence(query, key, value, padding_mask, one)


def even_cut(order: list[int], size: int) -> list[list[int]]:
    """Cut a list into ceil(n / size) parts of sizes that differ by one at most."""
    n, parts = len(order), math.ceil(len(order) / size)
    return [order[c * n // parts : (c + 1) * n // parts] for c in range(parts)]


def shared_qk_lsh(query, key, value, padding_mask=None, *, bucket_size, n_hashes, scaling, generator=None) -> Tensor:
    length = query.shape[2]
    rotations = draw_rotations(query, even_buckets(length, bucket_size), n_hashes, generator)

    def one(tokens, h, q, k, v):
        n = len(q)
        chunks = []
        for r in range(n_hashes):
            rotated = q.float() @ rotations[h, r, :, : even_buckets(n, bucket_size) // 2]
            bucket = torch.cat([rotated, -rotated], -1).argmax(-1).tolist()
            chunks += even_cut(sorted(range(n), key=lambda i: (bucket[i], i)), bucket_size)
        counts = torch.zeros(n, n)
        for c, chunk in enumerate(chunks):
            for i in chunk:
                for j in chunk + chunks[c - 1]:
                    counts[i, j] += 1
        return shared_qk_one(q, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def cluster_attention(query, key, value, padding_mask, hash_one, size, duplicates, scaling) -> Tensor:
    """Softmax over the keys whose cluster, in some round, has the query's number; hash_one gives (rounds, n) twice."""

    def one(tokens, h, q, k, v):
        counts = torch.zeros(len(q), len(q))
        for query_hash, key_hash in zip(*hash_one(tokens, h, q, k), strict=True):
            rows = [even_cut(x.argsort(stable=True).tolist(), size) for x in (query_hash, key_hash)]
            for queries, keys in zip(*rows, strict=True):
                for i in queries:
                    counts[i, keys] += 1
        if duplicates == "once":
            counts = counts.clamp(max=1)
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def lsh(query, key, value, padding_mask=None, *, n_hashes, cluster_size, duplicates, scaling, generator=None) -> Tensor:
    directions = draw_directions(query.shape[1], query.shape[3], n_hashes, generator)

    def hash_one(tokens, h, q, k):
        q, k = q.detach().float(), k.detach().float()
        m2 = max(q.square().sum(-1).max(), k.square().sum(-1).max())
        a = directions[h]  # (rounds, head_dim + 2)
        rest_q, rest_k = ((m2 - x.square().sum(-1)).clamp(min=0).sqrt() for x in (q, k))
        return (
            a[:, :-2] @ q.T + a[:, -2:-1] * rest_q,
            a[:, :-2] @ k.T + a[:, -1:] * rest_k,
        )

    return cluster_attention(query, key, value, padding_mask, hash_one, cluster_size, duplicates, scaling)


def random(query, key, value, padding_mask=None, *, n_hashes, cluster_size, duplicates, scaling, generator=None):
    draws = torch.rand(query.shape[2], 2, query.shape[1], n_hashes, generator=generator)

    def hash_one(tokens, h, q, k):
        return draws[tokens, 0, h].T, draws[tokens, 1, h].T

    return cluster_attention(query, key, value, padding_mask, hash_one, cluster_size, duplicates, scaling)


def window(query, key, value, padding_mask=None, *, n_hashes, cluster_size, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        n = len(q)
        width = min(n, n_hashes * math.ceil(n / math.ceil(n / cluster_size)))
        counts = torch.zeros(n, n)
        for i in range(n):
            start = min(max(i - width // 2, 0), n - width)
            counts[i, start : start + width] = 1
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)
