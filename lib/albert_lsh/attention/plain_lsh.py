"""Plain asymmetric LSH attention (Daras et al. 2020, "SMYRF"): pretrained projections, hashed with random vectors.

Queries and keys are hashed apart (`select.hashing`), sorted, and cut into clusters of equal size. In each of
`n_hashes` rounds a query sees the keys of the cluster with its own number; a key met in several rounds weighs once.
"""

from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.definition import Budget, rounds_and_size
from albert_lsh.attention.rows import cut, largest, per_sequence, sort_tokens
from albert_lsh.attention.seen import Seen, cluster_tables
from albert_lsh.attention.select.hashing import project
from albert_lsh.attention.sparse import rest_products, sparse


def clusters_of_rounds(
    of_query: Tensor, of_key: Tensor, mask: Tensor, n_hashes: int | Tensor, cluster_size: int | Tensor
) -> Seen:
    """Rounds of clusters from hashes to sort by, (batch, heads, rounds, length) each.

    n_hashes, cluster_size: one number, or (batch,).
    """
    length, n_tokens = mask.shape[-1], mask[:, 0].sum(-1)
    queries, keys = (cut(sort_tokens(x, mask), n_tokens, cluster_size) for x in (of_query, of_key))
    number = torch.arange(keys.shape[2], device=keys.device)[:, None, None]
    unused = number >= per_sequence(n_hashes, 5)
    keys = keys.masked_fill(unused, length)
    tables = None if keys.shape[2] == 1 else cluster_tables(queries, keys, length)
    return Seen(queries, keys, clusters=tables, distinct=True)


def see(query: Tensor, key: Tensor, mask: Tensor, *, n_hashes, cluster_size, scaling, generator) -> Seen:
    """The keys that share a cluster with the query in some round."""
    hashes = project(query, key, mask, largest(n_hashes), generator)
    return clusters_of_rounds(*hashes, mask, n_hashes, cluster_size)


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """Four rounds, if clusters of two tokens and more remain."""
    left = budget.left(2, rest=int(fixed.get("rest", False)))
    return fixed | rounds_and_size(budget, fixed, left, least=2)


def cost(length: int, head_dim: int, *, n_hashes, cluster_size, rest=False) -> float:
    """Multiply-adds of one head: a projection of each query and key in each round, and the pairs in clusters."""
    pairs = n_hashes * length * -(-length // max(1, -(-length // cluster_size)))
    products = 2 * pairs + (rest_products(length, pairs) if rest else 0)
    return n_hashes * 2 * length * (head_dim + 2) + products * head_dim


PLAIN_LSH = sparse(
    "pretrained projections; keys whose random projections fall into the query's cluster",
    see,
    cost,
    settings={"n_hashes": 4, "cluster_size": 32},
    spend=spend,
    spent=("n_hashes", "cluster_size"),
    share=0.25,
)
