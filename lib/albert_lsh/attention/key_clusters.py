"""Clusters of keys that a query chooses by their means; a pretrained encoder keeps its projections. Nothing is drawn.

    out_i = sum over j in S(i) of softmax_j(scaling q_i . k_j) v_j,        S(i) the keys that query i sees

Keys are put into clusters of equal size by a tree of median splits along at most `axes` principal axes, found once for
a head (`choose.kd_tree`). A query sees, each once,

    the keys of `n_hashes` clusters   those that score highest: scaling q_i . mean(C) + log |C|
                                      (Vyas et al. 2020; Roy et al. 2021)
    `global_tokens` keys              those that the mean query scores highest, the same for all queries of a head

and with `mean_key` one key more, the mean of all keys that it does not see. A sequence of at most `cluster_size` tokens
has one cluster: that is softmax attention. `naive` says the same for one head, and is what the tests hold `KeyClusters`
to. Above `SINGLE` tokens queries that chose the same cluster are computed together.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.choose.hashing import beyond, find_global_tokens
from albert_lsh.attention.choose.kd_tree import ITERATIONS, axes_tree, axes_used, sample_size
from albert_lsh.attention.core import Count, CountOrZero, SparseAttention
from albert_lsh.attention.keys import SINGLE, ClusterKeys
from albert_lsh.attention.rows import largest, slices, take

GLOBAL_TOKENS = 2
CLUSTERS = 48  # above SINGLE tokens, until they have sqrt(length) keys


def naive(
    query: Tensor, key: Tensor, place: Callable[[Tensor], Tensor], *,
    n_hashes: int, cluster_size: int, global_tokens: int, scaling: float,
) -> Tensor:  # fmt: skip
    """The sets S(i) of one head of one sequence, (n, n) bool, slowly.

    query, key: (n, head_dim). place: gives keys (m, head_dim) their places on the principal axes, (m, axes).
    """
    seen = torch.zeros(len(query), len(key), dtype=torch.bool)
    order = (key @ query.mean(0)).argsort(descending=True, stable=True)
    seen[:, order[:global_tokens]] = True
    others = order[global_tokens:].sort().values
    count = -(-len(others) // cluster_size)
    if count == 0:
        return seen
    places = place(key[others])
    start = [c * len(others) // count for c in range(count + 1)]

    def split(members: Tensor, first: int, last: int) -> list[Tensor]:
        """Members dealt out to the clusters from `first` to before `last`, at medians; cluster c begins at start[c]."""
        if last - first == 1:
            return [members]
        half = first + 2 ** (math.ceil(math.log2(last - first)) - 1)
        axis = places[members].var(0, correction=0).argmax()
        members = members[places[members, axis].argsort(stable=True)]
        left = start[half] - start[first]
        return split(members[:left], first, half) + split(members[left:], half, last)

    clusters = [others[members] for members in split(torch.arange(len(others)), 0, count)]
    for i, q in enumerate(query):
        scores = torch.stack([q @ key[cluster].mean(0) * scaling + math.log(len(cluster)) for cluster in clusters])
        for c in scores.argsort(descending=True, stable=True)[:n_hashes]:
            seen[i, clusters[c]] = True
    return seen


class KeyClusters(SparseAttention):
    name = "key-clusters"
    version = 2
    description = "pretrained projections; the clusters of keys whose mean key fits best"
    sizes = ("n_hashes", "cluster_size")
    decided = ("global_tokens", "mean_key")
    usual_share = 0.5

    n_hashes: Count = 4
    cluster_size: Count = 32
    global_tokens: CountOrZero = GLOBAL_TOKENS
    mean_key: bool = False
    axes: Count = 8

    def choose_keys(self, query, key, mask, scaling, generator) -> ClusterKeys:
        """query, key: (batch, heads, length, head_dim) float32. mask: (batch, heads, length)."""
        tokens, is_global = find_global_tokens(query, key, mask, self.global_tokens)  # (batch, heads, n), as mask
        members = axes_tree(key, mask & ~is_global, self.cluster_size, self.axes)  # (batch, heads, clusters, places)
        chosen = choose_clusters(query, key, members, self.n_hashes, scaling)  # (batch, heads, length, n_hashes)
        return ClusterKeys(mask, tokens, members, chosen)

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, Any]:
        """Global tokens and a mean key, if there are keys enough, and as many clusters as fit.

        They have sqrt(n) / 2 keys up to SINGLE tokens. Comparing each query with their mean keys costs half a pair for
        each cluster, and is not in the budget. Above SINGLE tokens small clusters take long; but where one far key
        matters, the clusters chosen have it more often if they are small. So there are CLUSTERS of them, and more, of
        sqrt(n) keys, from 2,304 tokens on.
        """
        explicit = self.model_fields_set
        wants_mean = self.mean_key or "mean_key" not in explicit
        tokens = min(self.global_tokens, n_tokens) if "global_tokens" in explicit else 0
        keys = max(keys, min(1 + tokens + wants_mean, max(n_tokens, 1 + tokens)))  # a cluster has one at least
        has_mean = wants_mean and keys < n_tokens
        if "global_tokens" not in explicit:
            tokens = min(GLOBAL_TOKENS, n_tokens, keys - 1 - has_mean)
        room = keys - tokens - has_mean
        root = math.sqrt(n_tokens)
        size = max(2, round(root / 2 if n_tokens <= SINGLE else min(n_tokens / CLUSTERS, root)))
        if keys == n_tokens:  # all clusters
            sizes = {"n_hashes": -(-room // size), "cluster_size": size}
        else:
            rounds = max(1, round(room / size))
            sizes = {"n_hashes": rounds, "cluster_size": room // rounds}
        others = {"global_tokens": tokens, "mean_key": True}
        return sizes | {setting: value for setting, value in others.items() if setting not in explicit}

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
        choosing = (self.global_tokens > 0) + clusters + 2 * seen + (2 * (1 + chosen) if self.mean_key else 0)
        axes, levels = axes_used(kept, min(self.axes, head_dim)), math.ceil(math.log2(clusters))
        finding = ((1 + 2 * ITERATIONS) * sample_size(kept) + kept) * head_dim
        return length * choosing * head_dim + axes * (finding + levels * kept)


@torch.no_grad()
def choose_clusters(query: Tensor, key: Tensor, members: Tensor, n_hashes: int | Tensor, scaling: float) -> Tensor:
    """The clusters that each query scores highest: (batch, heads, length, largest n_hashes, at most all), long.

    members: (batch, heads, clusters, places). The number of clusters stands for none.
    """
    batch, heads, length, _ = query.shape
    count = members.shape[2]
    size = (members < length).sum(-1, dtype=torch.float32)  # (batch, heads, clusters)
    mean_key = take(key, members).sum(3) / size.clamp(min=1).unsqueeze(-1)  # (batch, heads, clusters, head_dim)
    offset = size.log().flatten(0, 1).unsqueeze(1)  # (batch * heads, 1, clusters), -inf for an empty one
    queries, mean_keys = query.flatten(0, 1), mean_key.flatten(0, 1).mT
    most = min(largest(n_hashes), count)
    chosen = []
    for part in slices(length, count * batch * heads, query.device):
        scores = torch.baddbmm(offset, queries[:, part], mean_keys, alpha=scaling)
        chosen.append(scores.topk(most, dim=-1).indices)
    chosen = torch.cat(chosen, dim=1).unflatten(0, (batch, heads))
    is_empty = chosen >= size.count_nonzero(-1)[..., None, None]  # a sequence's last clusters are
    return beyond(chosen.masked_fill_(is_empty, count), n_hashes, count)
