"""LSH attention that keeps a pretrained encoder's projections and stands in for its softmax.

Keys are put into clusters of equal size by a tree of median splits along at most `axes` principal axes, found once for
a head (`axes.py`; version 1 found a direction for every node). A query sees, in one float32 softmax, each key once,

    the keys of `n_hashes` clusters   those whose mean key it scores highest (Vyas et al. 2020; Roy et al. 2021)
    `global_tokens` keys              those that the mean query scores highest, the same for all queries of a head

and with `rest` one mean over all keys that it does not see; the logarithm of their number is added to its score. A
sequence of at most `cluster_size` tokens has one cluster: that is softmax attention.

Each query chooses its own clusters. Above `SINGLE` tokens queries that chose the same cluster are computed together.
"""

import math
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.axes import ITERATIONS, axes_tree, axes_used, sample_size
from albert_lsh.attention.clusters import SINGLE, Clusters
from albert_lsh.attention.core import ChoosesKeys, Count, CountOrZero, InRounds
from albert_lsh.attention.keys import largest, slices, take
from albert_lsh.attention.order import beyond, highest
from albert_lsh.attention.select import find_global_tokens

GLOBAL_TOKENS = 2
CLUSTERS = 48  # above SINGLE tokens, until they have sqrt(length) keys


class KeyClusters(InRounds, ChoosesKeys):
    name = "key-clusters"
    about = "pretrained projections; the clusters of keys whose mean key fits best"
    version = 2
    usual_share = 0.25
    open = ("n_hashes", "cluster_size", "global_tokens", "rest")
    left = {"far_field": (False,), "window": (0,), "block_size": (None, 1)}  # noqa: RUF012

    n_hashes: Count = 4
    cluster_size: Count = 32
    global_tokens: CountOrZero = GLOBAL_TOKENS
    rest: bool = False
    axes: Count = 8

    def choose_keys(self, query, key, mask, scaling, generator) -> Clusters:
        positions, is_global = find_global_tokens(query, key, mask, self.global_tokens)
        clusters = axes_tree(key, mask & ~is_global, self.cluster_size, self.axes)
        chosen = choose_clusters(query, key, clusters, self.n_hashes, scaling)
        return Clusters(mask, positions, clusters, chosen)

    def spent(self, length: int, keys: int) -> int:
        """Global tokens, two unless given or too few keys are there, and the rest, unless all keys are seen."""
        rest = self.fixed("rest") is not False and keys < length
        if (count := self.fixed("global_tokens")) is None:
            count = min(GLOBAL_TOKENS, max(0, keys - 1 - rest))
        return min(count, length) + rest

    def divide(self, length: int, keys: int, room: int) -> dict[str, Any]:
        """The rest, global tokens, and as many clusters as fit, of sqrt(length) / 2 keys up to SINGLE tokens.

        Comparing each query with their mean keys costs half a pair for each cluster, and is not in the budget.
        Above SINGLE tokens small clusters take long; but where one far key matters, the clusters chosen have it more
        often if they are small. So there are CLUSTERS of them, and more, of sqrt(length) keys, from 2,304 tokens on.
        """
        others = {"rest": True, "global_tokens": keys - room - (self.fixed("rest") is not False and keys < length)}
        if self.model_fields_set & {"n_hashes", "cluster_size"}:
            return others | super().divide(length, keys, room)
        root = math.sqrt(length)
        size = max(2, round(root / 2 if length <= SINGLE else min(length / CLUSTERS, root)))
        if keys == length:  # all clusters
            return others | {"n_hashes": -(-room // size), "cluster_size": size}
        rounds = max(1, round(room / size))
        return others | {"n_hashes": rounds, "cluster_size": room // rounds}

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the axes, the keys' places on them, the variances of the tree's nodes, the global
        tokens, the mean keys compared with, and the keys attended.

        The mean key counts as the sum of what was chosen, taken from the sum of all. Empty places of blocks, which are
        not on a CPU, are left out: how many there are depends on the data.
        """
        kept = max(0, length - self.global_tokens)
        clusters = max(1, -(-kept // self.cluster_size))
        chosen = min(self.n_hashes, clusters)
        seen = min(length, self.global_tokens) + min(kept, chosen * self.cluster_size)
        choosing = (self.global_tokens > 0) + clusters + 2 * seen + (2 * (1 + chosen) if self.rest else 0)
        axes, levels = axes_used(kept, min(self.axes, head_dim)), math.ceil(math.log2(clusters))
        finding = ((1 + 2 * ITERATIONS) * sample_size(kept) + kept) * head_dim
        return length * choosing * head_dim + axes * (finding + levels * kept)


@torch.no_grad()
def choose_clusters(query: Tensor, key: Tensor, clusters: Tensor, n_hashes: int | Tensor, scaling: float) -> Tensor:
    """The clusters that each query scores highest: (batch, heads, length, largest n_hashes, at most all), long.

    A cluster's score is that of its mean key plus the logarithm of its size. The number of clusters stands for none.
    """
    batch, heads, length, _ = query.shape
    count = clusters.shape[2]
    size = (clusters < length).sum(-1, dtype=torch.float32)
    mean_key = take(key, clusters).sum(3) / size.clamp(min=1).unsqueeze(-1)
    offset = size.log().flatten(0, 1).unsqueeze(1)  # -inf for an empty one
    queries, mean_keys = query.flatten(0, 1), mean_key.flatten(0, 1).mT
    most, chosen = largest(n_hashes), []
    for part in slices(length, count * batch * heads, query.device):
        chosen.append(highest(torch.baddbmm(offset, queries[:, part], mean_keys, alpha=scaling), most))
    chosen = torch.cat(chosen, dim=1).unflatten(0, (batch, heads))
    is_empty = chosen >= size.count_nonzero(-1)[..., None, None]  # a sequence's last clusters are
    return beyond(chosen.masked_fill_(is_empty, count), n_hashes, count)
