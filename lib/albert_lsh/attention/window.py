"""A control for `lsh` and `plain-lsh`: the nearest positions (as in Beltagy et al. 2020, "Longformer")."""

from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.definition import Budget
from albert_lsh.attention.rows import largest, look_up
from albert_lsh.attention.seen import Seen
from albert_lsh.attention.select.global_tokens import global_tokens as find_global_tokens
from albert_lsh.attention.select.nearest import nearest, neighbours
from albert_lsh.attention.sparse import rest_products, sparse

KEYS_PER_QUERY = 8  # a window of so many keys for each of the neighbouring queries that share it


def see(query: Tensor, key: Tensor, mask: Tensor, *, keys, global_tokens, scaling, generator) -> Seen:
    """The `keys` positions nearest to the query's block, and the global tokens."""
    together = torch.as_tensor(keys, device=query.device).div(KEYS_PER_QUERY, rounding_mode="floor").clamp(min=1)
    size = together if together.dim() else int(together)
    blocks = neighbours(mask, size)
    near = nearest(mask, blocks, keys)
    if largest(global_tokens):
        positions, is_global = find_global_tokens(query, key, mask, global_tokens)
        hidden = torch.cat([is_global, torch.zeros_like(is_global[..., :1])], dim=-1)
        near = near.masked_fill(look_up(hidden, near), query.shape[2])
        near = torch.cat([positions[:, :, None].expand(*near.shape[:3], -1), near], dim=-1)
    return Seen(blocks.unsqueeze(2), near.unsqueeze(2))


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """All that the global tokens and the rest leave."""
    left = budget.left(1, global_tokens=fixed.get("global_tokens", 0), rest=int(fixed.get("rest", False)))
    return fixed | {"keys": left}


def cost(length: int, head_dim: int, *, keys, global_tokens=0, rest=False) -> float:
    """Multiply-adds of one head: the pairs, and finding the global tokens."""
    pairs = length * min(length, keys + global_tokens)
    return (2 * pairs + length * (global_tokens > 0) + (rest_products(length, pairs) if rest else 0)) * head_dim


WINDOW = sparse(
    "a control: the nearest keys",
    see,
    cost,
    settings={"global_tokens": 0},
    lowest={"global_tokens": 0},
    spend=spend,
    share=0.25,
)
