"""The keys with the highest scores: a yardstick that computes every score, so it saves nothing."""

from typing import Any

from torch import Tensor

from albert_lsh.attention.definition import Budget
from albert_lsh.attention.rows import best, in_place
from albert_lsh.attention.seen import Seen
from albert_lsh.attention.sparse import rest_products, sparse


def see(query: Tensor, key: Tensor, mask: Tensor, *, keys, scaling, generator) -> Seen:
    """The `keys` keys that each query scores highest. Takes memory quadratic in the length."""
    found = best(query @ key.transpose(-1, -2), mask[:, :, None], keys)
    return Seen(in_place(mask).unsqueeze(2), found.unsqueeze(2))


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """All that the rest leaves."""
    return fixed | {"keys": budget.left(1, rest=int(fixed.get("rest", False)))}


def cost(length: int, head_dim: int, *, keys, rest=False) -> float:
    """Multiply-adds of one head: all scores, and the pairs."""
    pairs = length * min(length, keys)
    return (length**2 + 2 * pairs + (rest_products(length, pairs) if rest else 0)) * head_dim


TOP_K = sparse(
    "a yardstick: the keys with the highest scores, all scores being known",
    see,
    cost,
    settings={},
    spend=spend,
    share=0.25,
)
