"""The best that single keys can do: a yardstick that knows every score, so it saves nothing."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import count_tokens, highest, most_keys, token_mask


@torch.no_grad()
def best_keys(query, key, padding_mask, *, n_hashes: int, cluster_size: int) -> Tensor:
    """The keys that each query scores highest, as many as `window` takes: (batch, heads, length, length) bool."""
    count = most_keys(count_tokens(query, padding_mask), n_hashes, cluster_size)[:, None, None, None]
    scores = query.float() @ key.float().transpose(-1, -2)
    return highest(scores, token_mask(query, padding_mask)[:, :, None], count)


def top_k_attention(
    query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None, **settings
) -> Tensor:
    """Softmax attention restricted to the best keys of each query."""
    seen = best_keys(query, key, padding_mask, **settings)
    if padding_mask is not None:
        seen = seen | ~padding_mask[:, None, :, None]  # padded queries must see something
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, scale=scaling)


def top_k_pairs(query, key, padding_mask=None, *, generator=None, **settings) -> Tensor:
    """Which keys each query sees: (batch, heads, length, length), long, 0 or 1."""
    return best_keys(query, key, padding_mask, **settings).long()
