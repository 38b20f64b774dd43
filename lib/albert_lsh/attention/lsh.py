"""LSH attention that keeps a pretrained encoder's projections and stands in for its softmax.

Keys are put into clusters of equal size by a tree of median splits along principal directions (`select.tree`). A query
sees, in one float32 softmax and each key once,

    the keys of `n_hashes` clusters   those whose mean key it scores highest (Vyas et al. 2020; Roy et al. 2021)
    `global_tokens` keys              those that the mean query scores highest, the same for all queries of a head

and with `rest` one mean over all keys that it does not see; the logarithm of their number is added to its score. A
sequence of at most `cluster_size` tokens has one cluster: that is softmax attention.

Each query chooses its own clusters. Above `SINGLE` tokens those that chose the same one are computed together, cluster
by cluster, as experts of a mixture serve their tokens (Shazeer et al. 2017).
"""

import math
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.core import ChoosesKeys, Count, CountOrZero, InRounds
from albert_lsh.attention.keys import MASKED, Keys, in_place, largest, per_sequence, slices, take
from albert_lsh.attention.select import TREE_PRODUCTS, find_global_tokens, tree

SINGLE = 512  # tokens, up to which nothing is computed cluster by cluster
SMALLEST = 16  # queries in a block that is gathered by cluster, if it is full
GLOBAL_TOKENS = 2
SCORES_AT_ONCE = 2**20  # of queries and mean keys, while clusters are chosen on a CPU


class LSH(InRounds, ChoosesKeys):
    name = "lsh"
    about = "pretrained projections; the clusters of keys whose mean key fits best"
    usual_share = 0.25
    open = ("n_hashes", "cluster_size", "global_tokens", "rest")
    left = {"far_field": (False,), "window": (0,), "block_size": (None, 1)}  # noqa: RUF012

    n_hashes: Count = 4
    cluster_size: Count = 32
    global_tokens: CountOrZero = GLOBAL_TOKENS
    rest: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        length = query.shape[2]
        positions, is_global = find_global_tokens(query, key, mask, self.global_tokens)
        clusters = tree(key, mask & ~is_global, self.cluster_size, generator)
        chosen = choose_clusters(query, key, clusters, self.n_hashes, scaling)
        count, size = clusters.shape[2:]
        padded = torch.cat([clusters, torch.full_like(clusters[:, :, :1], length)], dim=2)
        if length > SINGLE:
            queries, owner = by_cluster(mask, chosen, count, max(SMALLEST, size))
        else:
            queries, owner = in_place(mask).unsqueeze(2), chosen.unsqueeze(2)
        keys = padded.gather(2, owner.flatten(2).unsqueeze(-1).expand(-1, -1, -1, size)).view(*queries.shape[:4], -1)
        return Keys(queries, keys, chosen=(clusters, chosen)).with_global(positions, is_global)

    def spent(self, length: int, keys: int) -> int:
        """Global tokens, two unless given or too few keys are there, and the rest, unless all keys are seen."""
        rest = self.fixed("rest") is not False and keys < length
        if (count := self.fixed("global_tokens")) is None:
            count = min(GLOBAL_TOKENS, max(0, keys - 1 - rest))
        return min(count, length) + rest

    def divide(self, length: int, keys: int, room: int) -> dict[str, Any]:
        """The rest, global tokens, and as many clusters of about sqrt(length) / 2 keys as fit.

        Comparing each query with their mean keys costs 1 / sqrt(length) of softmax attention, and is not in the budget.
        What is computed cluster by cluster has clusters twice as large: small ones take long.
        """
        others = {"rest": True, "global_tokens": keys - room - (self.fixed("rest") is not False and keys < length)}
        if self.model_fields_set & {"n_hashes", "cluster_size"}:
            return others | super().divide(length, keys, room)
        size = max(2, round(math.sqrt(length) * (1 if length > SINGLE else 0.5)))
        if keys == length:  # all clusters
            return others | {"n_hashes": -(-room // size), "cluster_size": size}
        rounds = max(1, round(room / size))
        return others | {"n_hashes": rounds, "cluster_size": room // rounds}

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the tree, the global tokens, the mean keys compared with, and the keys attended.

        Empty places, where queries stand by cluster, are left out: how many there are depends on the data.
        """
        kept = max(0, length - self.global_tokens)
        clusters = max(1, -(-kept // self.cluster_size))
        chosen = min(self.n_hashes, clusters)
        seen = min(length, self.global_tokens) + min(kept, chosen * self.cluster_size)
        choosing = math.ceil(math.log2(clusters)) * TREE_PRODUCTS + (self.global_tokens > 0) + clusters
        return length * (choosing + 2 * seen + (2 * (1 + chosen) if self.rest else 0)) * head_dim


@torch.no_grad()
def choose_clusters(query: Tensor, key: Tensor, clusters: Tensor, n_hashes: int | Tensor, scaling: float) -> Tensor:
    """The clusters that each query scores highest: (batch, heads, length, largest n_hashes), long.

    A cluster's score is that of its mean key plus the logarithm of its size. The number of clusters stands for none.
    """
    batch, heads, length, _ = query.shape
    count = clusters.shape[2]
    size = (clusters < length).sum(-1, keepdim=True)
    mean_key = (take(key, clusters).sum(3) / size.clamp(min=1)).transpose(-1, -2)
    offset = size.clamp(min=1).float().log().masked_fill(size == 0, MASKED).transpose(-1, -2)
    chosen = []
    for part in slices(length, count * batch * heads, query.device, SCORES_AT_ONCE):
        best = ((query[:, :, part] @ mean_key) * scaling + offset).topk(min(largest(n_hashes), count), dim=-1)
        chosen.append(best.indices.masked_fill(best.values < MASKED / 2, count))
    numbers = torch.arange(chosen[0].shape[3], device=key.device)
    return torch.cat(chosen, dim=2).masked_fill(numbers >= per_sequence(n_hashes, 4), count)


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
