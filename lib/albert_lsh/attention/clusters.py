"""Keys in clusters, and the clusters that each query chose; as lists of keys for those who compute with such."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.keys import Keys, first_rows, in_place, take

SINGLE = 512  # tokens, up to which each query has a list of its own
SMALLEST = 16  # queries in a block that is gathered by cluster, if it is full


class Clusters(NamedTuple):
    """A query sees the members of the clusters that it chose, and the global tokens, which no cluster has.

    A position equal to the length of the sequence means "no token", the number of clusters "no cluster". All long.
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

    def mean_unseen(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean key and value (batch, heads, length, head_dim) and number (batch, heads, length) of the keys not seen.

        key, value: float32, zeros in padding.
        """
        rows = torch.cat([key, value, self.mask.unsqueeze(-1).to(key.dtype)], dim=-1)  # the sum of ones is their number
        sums = take(rows, self.members).sum(3)
        batch, heads, count, dim = sums.shape
        flat, first = F.pad(sums, (0, 0, 0, 1)).reshape(-1, dim), first_rows(batch, heads, count, sums.device)
        seen = F.embedding_bag((self.chosen + first).flatten(0, 2), flat, mode="sum")
        unseen = sums.sum(2, keepdim=True) - seen.view(*self.chosen.shape[:3], dim)
        of_keys, of_values, number = unseen.split([key.shape[-1], value.shape[-1], 1], dim=-1)
        return of_keys / number.clamp(min=1), of_values / number.clamp(min=1), number.squeeze(-1)


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
    clusters, order = clusters.sort(dim=-1, stable=True)
    queries_of = clusters.new_zeros(*clusters.shape[:3], count + 1).scatter_add(-1, clusters, torch.ones_like(clusters))
    needed = (queries_of + size - 1) // size
    first, start = queries_of.cumsum(-1) - queries_of, needed.cumsum(-1) - needed
    rank = torch.arange(length, device=mask.device) - first.gather(-1, clusters)
    place = (start.gather(-1, clusters) + rank // size) * size + rank % size
    total = int(needed.sum(-1).max())
    position = in_place(mask).transpose(2, 3).expand_as(order).gather(-1, order)
    queries = position.new_full((*clusters.shape[:3], total * size), length).scatter(-1, place, position)
    owner = position.new_full((*clusters.shape[:3], total), count).scatter(-1, place // size, clusters)
    return queries.unflatten(-1, (total, size)), owner
