"""The one form in which every sparse attention says which keys its queries see.

Queries stand in blocks, and each block has one list of keys. Several rounds of blocks are one softmax: they are merged
by their log-sum-exp (Kitaev et al. 2020, section 2). What selects keys returns this form (`select`), what computes
takes it (`compute`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention.rows import owners


class Seen(NamedTuple):
    """Which keys the queries of each block see.

    A query that is not padding stands exactly once in every round. Indices are long.
    """

    queries: Tensor  # (batch, heads, rounds, blocks, places): positions; `length` in empty places
    keys: Tensor  # (batch, heads, rounds, blocks, places): rows of key and value; their number in empty places
    bias: Tensor | None = None  # as keys, float32: added to the scores, for instance the log of a mean key's size
    # The cluster of each query and key in every round, (batch, heads, rounds, length + 1), -1 and -2 for none. A key
    # met in N rounds then weighs once: log N is subtracted from its scores (Reformer, equation 6).
    clusters: tuple[Tensor, Tensor] | None = None
    others_only: bool = False  # a query does not see its own key
    # In each round a key stands in one list at most, once. Its gradient is then written, not added, which is faster.
    distinct: bool = False
    means: Tensor | None = None  # (batch, heads, clusters, places): clusters that queries choose from
    # Which of the clusters of `means` each query sees: (batch, heads, length, n), their number for none.
    chosen: Tensor | None = None

    @property
    def each_once(self) -> bool:
        """Whether a key that several rounds list weighs once. No list of a block may name a key twice."""
        return (self.clusters is not None or self.queries.shape[2] == 1) and not self.others_only

    def flat(self) -> "Seen":
        """The same with batch and heads in one dimension."""
        queries, keys = self.queries.expand(*self.keys.shape[:3], -1, -1).flatten(0, 1), self.keys.flatten(0, 1)
        bias = None if self.bias is None else self.bias.flatten(0, 1)
        clusters = None
        if self.clusters is not None:
            of_query, of_key = self.clusters
            clusters = of_query.flatten(0, 1), of_key.flatten(0, 1)
        return Seen(queries, keys, bias, clusters, self.others_only, self.distinct)


def cluster_tables(queries: Tensor, keys: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """`Seen.clusters` for rounds of clusters that hold both queries and keys."""
    sides = ((queries, -1), (keys, -2))
    of_query, of_key = (
        torch.stack([owners(one, length, nobody) for one in index.unbind(2)], dim=2) for index, nobody in sides
    )
    return of_query, of_key


def seen_by_all(seen: Seen, positions: Tensor, length: int) -> Seen:
    """The same with some keys more for every query, listed in the first round: positions (batch, heads, n)."""
    shape = (*seen.keys.shape[:4], positions.shape[-1])
    more = positions[:, :, None, None].expand(shape).clone()
    more[:, :, 1:] = length
    return seen._replace(keys=torch.cat([more, seen.keys], dim=-1), distinct=False)


def count_pairs(seen: Seen, length: int) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int. Quadratic in the length."""
    pair = seen.queries.unsqueeze(-1) * (length + 1) + seen.keys.clamp(max=length).unsqueeze(-2)
    counts = pair.new_zeros(*pair.shape[:2], (length + 1) ** 2, dtype=torch.int)
    counts.scatter_add_(-1, pair.flatten(2), torch.ones_like(pair.flatten(2), dtype=torch.int))
    return counts.unflatten(-1, (length + 1, length + 1))[:, :, :length, :length]
