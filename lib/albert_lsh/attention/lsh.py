"""Random hashing with keys of their own (Daras et al. 2020, "SMYRF"): a pretrained encoder keeps its projections.

Reformer's hashing, of queries that are keys as well, is `shared-qk-lsh`.

    out_i = sum over j in S(i) of softmax_j(scaling q_i . k_j) v_j,     S(i) the keys that share a cluster with query i

Queries and keys are hashed apart, in each of `n_hashes` rounds by one random direction a, after which a large inner
product is a small distance (`choose.hashing`):

    h(q) = a . [q; sqrt(M^2 - |q|^2); 0]        h(k) = a . [k; 0; sqrt(M^2 - |k|^2)]        M the largest norm

Both are sorted by their hash and cut into clusters of at most `cluster_size`; a query sees the keys of the cluster with
its own number. A key that is met in several rounds weighs once; in `smyrf`, as published, once a round. With `mean_key`
a query sees one key more, the mean of all others. `naive` says the same for one head, and is what the tests hold `LSH`
to.
"""

from typing import ClassVar

import torch
from torch import Tensor

from albert_lsh.attention.choose.hashing import clusters_of, project
from albert_lsh.attention.core import Count, SparseAttention, rounds_of
from albert_lsh.attention.keys import Keys
from albert_lsh.attention.rows import largest


def naive(query: Tensor, key: Tensor, directions: Tensor, cluster_size: int) -> Tensor:
    """How often each query meets each key in a cluster, (n, n): the sets S(i) of one head of one sequence, slowly.

    query, key: (n, head_dim). directions: (rounds, head_dim + 2), random numbers.
    """
    n = len(query)
    clusters = -(-n // cluster_size)
    norms = [rows.square().sum(-1, keepdim=True) for rows in (query, key)]  # (n, 1) each
    fill_query, fill_key = (torch.sqrt(torch.maximum(*norms).max() - norm) for norm in norms)
    zero = torch.zeros(n, 1)
    met = torch.zeros(n, n)
    for direction in directions:
        query_hash = torch.cat([query, fill_query, zero], dim=1) @ direction  # (n,)
        key_hash = torch.cat([key, zero, fill_key], dim=1) @ direction
        query_order, key_order = query_hash.argsort(stable=True), key_hash.argsort(stable=True)
        for c in range(clusters):
            members = slice(c * n // clusters, (c + 1) * n // clusters)
            for i in query_order[members]:
                met[i, key_order[members]] += 1
    return met


class RoundsOfClusters(SparseAttention):
    """Rounds of clusters; an attention that chooses them by hashes, or (`random`) by nothing."""

    sizes: ClassVar[tuple[str, ...]] = ("n_hashes", "cluster_size")
    usual_share: ClassVar[float | None] = 0.25
    smallest: ClassVar[int] = 1  # cluster that a budget gives

    n_hashes: Count = 4
    cluster_size: Count = 32

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        """query, key: (batch, heads, length, head_dim) float32. mask: (batch, heads, length)."""
        n_hashes = largest(self.n_hashes)
        query_hash, key_hash = project(query, key, mask, n_hashes, generator)  # (batch, heads, rounds, length) each
        return clusters_of(query_hash, key_hash, mask, self.n_hashes, self.cluster_size)

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        n_hashes, cluster_size = rounds_of(self.room(n_tokens, keys), self.smallest)
        return {"n_hashes": n_hashes, "cluster_size": cluster_size}

    def pairs_seen(self, length: int) -> int:
        return self.n_hashes * length * -(-length // max(1, -(-length // self.cluster_size)))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: a projection of each query and key in each round, and the pairs in clusters."""
        pairs = self.pairs_seen(length)
        projections = self.n_hashes * 2 * length * (head_dim + 2)
        return projections + (2 * pairs + self.mean_key_products(length, pairs)) * head_dim


class LSH(RoundsOfClusters):
    name = "lsh"
    version = 3  # 1 and 2 were of clusters of keys, which are `key-clusters` now
    description = "pretrained projections; keys whose random projections fall into the query's cluster"
    smallest = fewest = 2

    mean_key: bool = False
