"""A control for `lsh` and `plain-lsh`: clusters drawn at random."""

from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.definition import Budget, rounds_and_size
from albert_lsh.attention.plain_lsh import clusters_of_rounds
from albert_lsh.attention.rows import largest, look_up
from albert_lsh.attention.seen import Seen, seen_by_all
from albert_lsh.attention.select.global_tokens import global_tokens as find_global_tokens
from albert_lsh.attention.select.hashing import generators_of_rounds
from albert_lsh.attention.sparse import rest_products, sparse


def draw_values(length: int, heads: int, n_hashes: int, generator: torch.Generator | None) -> Tensor:
    """Random values to sort queries and keys by: (2, heads, n_hashes, length).

    In each round position comes first: a longer sequence draws more numbers and changes none.
    """
    rounds = [
        torch.rand(length, 2, heads, generator=one, dtype=torch.float32)
        for one in generators_of_rounds(n_hashes, generator)
    ]
    return torch.stack(rounds, dim=-1).permute(1, 2, 3, 0)


def see(query: Tensor, key: Tensor, mask: Tensor, *, n_hashes, cluster_size, global_tokens, scaling, generator) -> Seen:
    """The keys that share a cluster with the query in some round, and the global tokens.

    Clusters are the same for all sequences of a batch.
    """
    batch, heads, length, _ = query.shape
    of_query, of_key = draw_values(length, heads, largest(n_hashes), generator).to(query.device)
    of_query, of_key = (x.expand(batch, -1, -1, -1) for x in (of_query, of_key))
    seen = clusters_of_rounds(of_query, of_key, mask, n_hashes, cluster_size)
    if not largest(global_tokens):
        return seen
    positions, is_global = find_global_tokens(query, key, mask, global_tokens)
    hidden = torch.cat([is_global, torch.zeros_like(is_global[..., :1])], dim=-1)
    keys = seen.keys.masked_fill(look_up(hidden, seen.keys), length)
    if seen.clusters is not None:
        of_query, of_key = seen.clusters
        of_key = of_key.masked_fill(hidden.unsqueeze(2), -2)  # a global token is met once
        seen = seen._replace(clusters=(of_query, of_key))
    return seen_by_all(seen._replace(keys=keys), positions, length)


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """Four rounds, if the budget allows so many."""
    left = budget.left(1, global_tokens=fixed.get("global_tokens", 0), rest=int(fixed.get("rest", False)))
    return fixed | rounds_and_size(budget, fixed, left)


def cost(length: int, head_dim: int, *, n_hashes, cluster_size, global_tokens=0, rest=False) -> float:
    """Multiply-adds of one head: the pairs in clusters, and the global tokens."""
    clusters = max(1, -(-length // cluster_size))
    pairs = n_hashes * length * -(-length // clusters) + length * global_tokens
    return (2 * pairs + length * (global_tokens > 0) + (rest_products(length, pairs) if rest else 0)) * head_dim


RANDOM = sparse(
    "a control: random clusters",
    see,
    cost,
    settings={"n_hashes": 4, "cluster_size": 32, "global_tokens": 0},
    lowest={"global_tokens": 0},
    spend=spend,
    spent=("n_hashes", "cluster_size"),
    share=0.25,
)
