"""A control for `lsh`: as many keys, the nearest positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import count_tokens, most_keys, token_mask
from albert_lsh.attention.select.global_tokens import wanted_by_all
from albert_lsh.attention.select.nearest import find_window


def in_window(query, padding_mask, *, n_hashes: int, cluster_size: int) -> Tensor:
    """Which keys are near: (batch, 1, length, length) bool."""
    width = most_keys(count_tokens(query, padding_mask), n_hashes, cluster_size)
    window = find_window(query[:, :1], padding_mask, width[:, None])
    everywhere = torch.arange(query.shape[2], device=query.device).expand(query.shape[0], -1)
    return window.covers(slice(None), everywhere.unsqueeze(-1), everywhere.unsqueeze(1)).unsqueeze(1)


def window_keys(query, key, padding_mask, *, n_hashes, cluster_size, global_tokens) -> Tensor:
    """Which keys each query sees: (batch, heads, length, length) bool."""
    near = in_window(query, padding_mask, n_hashes=n_hashes, cluster_size=cluster_size)
    mask = token_mask(query, padding_mask)
    return near | wanted_by_all(query.float(), key.float(), mask, global_tokens)[:, :, None]


def window_attention(
    query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None, **settings
) -> Tensor:
    """Softmax attention restricted to the nearest positions, n_hashes * cluster_size of them, and `global_tokens`."""
    seen = window_keys(query, key, padding_mask, **settings)
    if padding_mask is not None:
        seen = seen & padding_mask[:, None, None] | ~padding_mask[:, None, :, None]  # padded queries must see something
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, scale=scaling)


def window_pairs(query, key, padding_mask=None, *, generator=None, **settings) -> Tensor:
    """Which keys each query sees: (batch, heads, length, length), long, 0 or 1."""
    return window_keys(query, key, padding_mask, **settings).long()
