"""References of the peers in benchmarks/peers."""

import torch
from torch import Tensor

from albert_lsh.attention.choose.hashing import draw_directions
from references.naive import attend_counted, each_sequence, even_cut, resolved

BITS = 7  # of a hash of `hyper`


def gray(number: int) -> int:
    """The Gray code of a number: neighbours differ in one bit."""
    return number ^ (number >> 1)


def hyper(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    """Attention in which a sampled key that is not in a query's block stands n / sample_size times."""
    directions = draw_directions(query.shape[1], query.shape[3], BITS, generator)
    drawn = torch.rand(query.shape[2], query.shape[1], generator=generator)
    places = {gray(number): number for number in range(2**BITS)}

    def place(row, h) -> int:
        return places[sum(1 << (BITS - 1 - i) for i, one in enumerate(directions[h]) if row @ one >= 0)]

    def one(tokens, h, q, k, v):
        n, own = len(q), resolved("hyper", settings, len(q))
        sample = drawn[tokens, h].argsort(stable=True)[: own["sample_size"]].tolist()
        orders = [sorted(range(n), key=lambda i: (place(x[i].detach().float(), h), i)) for x in (q, k)]
        blocks = zip(*(even_cut(order, own["cluster_size"]) for order in orders), strict=True)
        counts = torch.zeros(n, n)
        for queries, keys in blocks:
            for i in queries:
                counts[i, sample] = n / len(sample)
                counts[i, keys] = 1
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def linear(query, key, value, padding_mask=None, *, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        query_features, key_features = (
            torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q.double(), k.double())
        )
        weights = query_features @ key_features.T
        return weights / weights.sum(-1, keepdim=True) @ v.double()

    return each_sequence(query, key, value, padding_mask, one)
