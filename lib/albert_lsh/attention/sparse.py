"""Softmax attention over some of the keys, from a function that selects them.

`sparse(see, ...)` makes an `Attention` of `see(query, key, mask, *, scaling, generator, **settings) -> Seen`, where
query and key are float32 and mask is (batch, heads, length) bool. A setting is one number, or (batch,) where sequences
differ in it; `keys`, which a `spend` gives, is what the rest leaves of the budget. Every such attention has the setting
`rest`: one key more for each query, the mean of all keys that it does not see, with the logarithm of their number added
to its score.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.compute.dispatch import attend, attend_with_rest, the_rest
from albert_lsh.attention.definition import Attention
from albert_lsh.attention.rows import token_mask
from albert_lsh.attention.seen import Seen, count_pairs


def sparse(
    about: str, see: Callable[..., Seen], cost: Callable[..., float], *, settings: dict[str, Any], **more
) -> Attention:
    """The attention over the keys of `see`.

    Args:
        about, cost, settings, more: fields of `Attention`; `rest` is added to the settings.
    """

    @torch.no_grad()
    def look(query: Tensor, key: Tensor, padding_mask: Tensor | None, scaling: float, generator, settings) -> Seen:
        with torch.autocast(query.device.type, enabled=False):
            mask = token_mask(query, padding_mask)
            return see(query.float(), key.float(), mask, scaling=scaling, generator=generator, **settings)

    def compute(
        query, key, value, padding_mask=None, *, scaling, rest=False, dropout=0.0, generator=None, **settings
    ) -> Tensor:
        """Softmax over the keys that each query sees. Gradients flow to the queries, to the keys and values seen, and
        through the rest; the choice of keys has none."""
        seen = look(query, key, padding_mask, scaling, generator, settings)
        rows = query, key, value
        if rest:
            return attend_with_rest(*rows, seen, token_mask(query, padding_mask), scaling=scaling, dropout=dropout)
        return attend(*rows, seen, scaling=scaling, dropout=dropout)[0]

    def pairs(query, key, padding_mask=None, *, generator=None, rest=False, **settings) -> Tensor:
        seen = look(query, key, padding_mask, query.shape[-1] ** -0.5, generator, settings)
        return count_pairs(seen, query.shape[2])

    def mean_keys(query, key, padding_mask=None, *, generator=None, rest=False, **settings) -> Tensor:
        seen = look(query, key, padding_mask, query.shape[-1] ** -0.5, generator, settings)
        mask, rows = token_mask(query, padding_mask), key.float()
        return ((the_rest(rows, rows, seen, mask)[2] > 0) & mask & rest).sum(-1)

    return Attention(about, compute, pairs, cost, settings={**settings, "rest": False}, mean_keys=mean_keys, **more)


def rest_products(length: int, pairs: float) -> float:
    """Products of head_dim numbers for the rest: adding up the keys and values seen, and attending to their mean."""
    return 2 * length + 4 * pairs
