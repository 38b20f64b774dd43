"""A control for `lsh`: as many keys for a query, but the nearest positions instead of similar vectors."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.clusters import clear_padding, count_tokens


def in_window(query, padding_mask, *, n_hashes: int, cluster_size: int) -> Tensor:
    """Which keys are near: (batch, 1, length, length) bool.

    `lsh` gives a query n_hashes clusters of ceil(n / clusters) keys at most. So many positions are taken here,
    centred on the query; at the ends of the sequence the window is moved inwards, so that every query has all of them.
    """
    batch, _, length, _ = query.shape
    n = count_tokens(query, padding_mask)[:, None]  # (batch, 1)
    clusters = (-(-n // cluster_size)).clamp(min=1)
    width = torch.minimum(n, n_hashes * -(-n // clusters))
    mask = padding_mask if padding_mask is not None else query.new_ones(batch, length, dtype=torch.bool)
    position = mask.cumsum(-1) - 1  # among the tokens, padding not counted
    start = torch.minimum((position - width // 2).clamp(min=0), n - width)[..., None]
    key = position[:, None, :]
    near = (key >= start) & (key < start + width[..., None]) & mask[:, None, :]
    return near[:, None]


def window_attention(
    query, key, value, padding_mask=None, *, n_hashes, cluster_size, scaling, dropout=0.0, generator=None
) -> Tensor:
    """Softmax attention restricted to the nearest n_hashes * cluster_size positions (see `in_window`)."""
    near = in_window(query, padding_mask, n_hashes=n_hashes, cluster_size=cluster_size)
    if padding_mask is not None:
        near = near | ~padding_mask[:, None, :, None]  # padded queries, cleared below, must see something
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=near, dropout_p=dropout, scale=scaling)
    return clear_padding(out, padding_mask)


def window_pairs(query, key, padding_mask=None, *, n_hashes, cluster_size, generator=None) -> Tensor:
    """Which keys each query sees: (batch, heads, length, length), long, 0 or 1."""
    near = in_window(query, padding_mask, n_hashes=n_hashes, cluster_size=cluster_size)
    return near.long().expand(-1, query.shape[1], -1, -1)
