"""Who sees whom: the two forms in which an attention names the keys that each query sees.

    Keys          queries stand in blocks, and each block has one list of keys. Several rounds of blocks are one
                  softmax, merged by their log-sum-exp (Kitaev et al. 2020, section 2)
    ClusterKeys   keys stand in clusters, and each query names the clusters that it chose

What chooses keys (`choose`) returns one of them; what computes (`compute`) takes it. Positions are long; one equal to
the length of the sequence means "no token here".
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.rows import first_rows, in_place, look_up, take

SINGLE = 512  # tokens, up to which each query of `ClusterKeys` has a list of its own
SMALLEST = 16  # queries in a block that is gathered by cluster, if it is full


class Keys(NamedTuple):
    """Which keys the queries of each block see.

    A query that is not padding stands exactly once in every round. No list names a key twice.
    """

    queries: Tensor  # (batch, heads, rounds, blocks, places): positions
    keys: Tensor  # (batch, heads, rounds, blocks, places): positions
    # The cluster of each query and key in every round, (batch, heads, rounds, length + 1), -1 and -2 for none. A key
    # met in several rounds then weighs once: `compute.triton` lowers its scores by the logarithm of their number
    # (Reformer, equation 6), `compute.gathered` counts it in the first of them; without dropout these are one sum.
    clusters: tuple[Tensor, Tensor] | None = None
    others_only: bool = False  # a query does not see its own key
    earlier_only: bool = False  # nor any behind it

    def flat(self) -> "Keys":
        """The same with batch and heads in one dimension."""
        queries, keys = self.queries.expand(*self.keys.shape[:3], -1, -1).flatten(0, 1), self.keys.flatten(0, 1)
        clusters = self.clusters and (self.clusters[0].flatten(0, 1), self.clusters[1].flatten(0, 1))
        return Keys(queries, keys, clusters, self.others_only, self.earlier_only)

    def with_global(self, positions: Tensor, is_global: Tensor) -> "Keys":
        """The same with some keys that every query sees, which stand in the first round and in no other list.

        positions: (batch, heads, n). is_global: (batch, heads, length) bool, True for them.
        """
        hidden = F.pad(is_global, (0, 1))
        length = is_global.shape[-1]
        more = positions[:, :, None, None].expand(*self.keys.shape[:4], -1).clone()
        more[:, :, 1:] = length
        keys = torch.cat([more, self.keys.masked_fill(look_up(hidden, self.keys), length)], dim=-1)
        clusters = self.clusters and (self.clusters[0], self.clusters[1].masked_fill(hidden.unsqueeze(2), -2))
        return self._replace(keys=keys, clusters=clusters)

    def count_pairs(self, length: int) -> Tensor:
        """How often each query meets each key: (batch, heads, length, length), int. Quadratic in the length."""
        pair = (self.queries.unsqueeze(-1) * (length + 1) + self.keys.unsqueeze(-2)).flatten(2)
        counts = pair.new_zeros(*pair.shape[:2], (length + 1) ** 2, dtype=torch.int)
        counts.scatter_add_(-1, pair, counts.new_ones(1).expand_as(pair))
        return counts.unflatten(-1, (length + 1, length + 1))[:, :, :length, :length]


def cluster_tables(queries: Tensor, keys: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """`Keys.clusters` for rounds of clusters of queries and keys, (batch, heads, rounds, clusters, places) each."""

    def owners(clusters: Tensor, nobody: int) -> Tensor:
        number = torch.arange(clusters.shape[3], device=clusters.device)[:, None].expand_as(clusters)
        table = number.new_full((*clusters.shape[:3], length + 1), nobody)
        table = table.scatter(3, clusters.flatten(3), number.flatten(3))
        table[..., length] = nobody
        return table

    return owners(queries, -1), owners(keys, -2)


class ClusterKeys(NamedTuple):
    """A query sees the members of the clusters that it chose, and the global tokens, which no cluster has.

    The number of clusters stands for "no cluster".
    """

    mask: Tensor  # (batch, heads, length) bool, True where there is a token
    tokens: Tensor  # (batch, heads, n) positions of global tokens
    members: Tensor  # (batch, heads, clusters, places) positions, each in one cluster
    chosen: Tensor  # (batch, heads, length, n): clusters, each at most once; those of padding are not looked at

    def lists(self) -> Keys:
        """The same as lists of keys: a query's own in short sequences, in longer ones those of a cluster for many."""
        length, (count, size) = self.mask.shape[2], self.members.shape[2:]
        if length > SINGLE:
            queries, owner = by_cluster(self.mask, self.chosen, count, max(SMALLEST, size))
        else:
            queries, owner = in_place(self.mask).unsqueeze(2), self.chosen.unsqueeze(2)
        members = F.pad(self.members, (0, 0, 0, 1), value=length)
        keys = members.gather(2, owner.flatten(2).unsqueeze(-1).expand(-1, -1, -1, size)).view(*queries.shape[:4], -1)
        seen_by_all = F.pad(self.tokens[:, :, None, None], (0, 0, 0, 0, 0, keys.shape[2] - 1), value=length)
        return Keys(queries, torch.cat([seen_by_all.expand(*keys.shape[:4], -1), keys], dim=-1))

    def count_pairs(self, length: int) -> Tensor:
        """How often each query meets each key: (batch, heads, length, length), int. Quadratic in the length."""
        return self.lists().count_pairs(length)

    def sum_unseen(self, rows: Tensor) -> Tensor:
        """For each query the sum of the rows of the keys that it does not see: (batch, heads, length, dim).

        rows: (batch, heads, length, dim), zeros in padding.
        """
        batch, heads, length, dim = rows.shape
        count = self.members.shape[2]
        if length <= SINGLE:  # products with zeros and ones are quicker than gathered rows
            has = rows.new_zeros(batch, heads, count, length + 1).scatter_(3, self.members, 1.0)[..., :-1]
            unseen = rows.new_ones(batch, heads, length, count + 1).scatter_(3, self.chosen, 0.0)[..., :-1]
            return unseen @ (has @ rows)
        sums = take(rows, self.members).sum(3)  # (batch, heads, clusters, dim)
        table, first = F.pad(sums, (0, 0, 0, 1)).reshape(-1, dim), first_rows(batch, heads, count, sums.device)
        seen = F.embedding_bag((self.chosen + first).flatten(0, 2), table, mode="sum")
        return sums.sum(2, keepdim=True) - seen.view(*self.chosen.shape[:3], dim)


def by_cluster(mask: Tensor, chosen: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Queries gathered by the clusters that they chose, so that each list of keys serves many.

    In each round a query asks for one of its clusters; those that ask for the same one stand together.

    Args:
        mask: (batch, heads, length) bool. chosen: (batch, heads, length, n), cluster `count` for none.
        size: the most queries in a block.
    Returns:
        (batch, heads, n, blocks, size) positions, and the cluster of each block (batch, heads, n, blocks).
    """
    length = mask.shape[2]
    # In ascending order a round has few different clusters, and its blocks are full.
    clusters = chosen.masked_fill(~mask.unsqueeze(-1), count).sort(dim=-1).values.transpose(2, 3)
    clusters, order = clusters.sort(dim=-1, stable=True)  # (batch, heads, n, length)
    queries_of = clusters.new_zeros(*clusters.shape[:3], count + 1).scatter_add(-1, clusters, torch.ones_like(clusters))
    needed = (queries_of + size - 1) // size  # blocks of each cluster
    first, start = queries_of.cumsum(-1) - queries_of, needed.cumsum(-1) - needed
    rank = torch.arange(length, device=mask.device) - first.gather(-1, clusters)
    place = (start.gather(-1, clusters) + rank // size) * size + rank % size
    total = int(needed.sum(-1).max())
    position = in_place(mask).transpose(2, 3).expand_as(order).gather(-1, order)
    queries = position.new_full((*clusters.shape[:3], total * size), length).scatter(-1, place, position)
    owner = position.new_full((*clusters.shape[:3], total), count).scatter(-1, place // size, clusters)
    return queries.unflatten(-1, (total, size)), owner
