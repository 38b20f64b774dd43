"""The nearest positions: as a part of `lsh`, and as a control with as many keys as `lsh`."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.clusters import Blocks, clear_padding, count_tokens, most_keys, token_mask
from albert_lsh.attention.global_tokens import wanted_by_all


class Window(NamedTuple):
    """For every query a range of tokens around it, padding not counted.

    At the ends of the sequence the range is moved inwards, so that every query has all `width` of them.
    """

    position: Tensor  # (batch, length + 1): number of each token; behind all ranges for padding and "no token"
    start: Tensor  # (batch, length + 1): number of the first token in a query's range
    width: Tensor  # (batch, 1)

    def covers(self, query_index: Tensor, key_index: Tensor) -> Tensor:
        """Whether the range of a query holds a key, for positions (batch, heads, ...) that broadcast."""
        first, batch = (-1, *[1] * (query_index.dim() - 1)), torch.arange(len(self.width), device=query_index.device)
        here = batch.view(first)
        distance = self.position[here, key_index] - self.start[here, query_index]
        return (distance >= 0) & (distance < self.width.view(first))

    def blocks(self, mask: Tensor) -> Blocks:
        """Every query alone with the keys of its range; mask (batch, heads, length), True where there is a token."""
        batch, heads, length = mask.shape
        numbers = self.start[:, :length, None] + torch.arange(int(self.width.max()), device=mask.device)
        numbers = numbers.masked_fill(numbers >= self.start[:, :length, None] + self.width[:, :, None], length)
        order = F.pad((~mask[:, 0]).long().argsort(dim=-1, stable=True), (0, 1), value=length)
        order = order.masked_fill(
            torch.arange(length + 1, device=mask.device) >= mask[:, 0].sum(-1, keepdim=True), length
        )
        keys = order.gather(-1, numbers.clamp(max=length).flatten(1)).view_as(numbers)
        queries = torch.arange(length, device=mask.device).expand(batch, heads, length).masked_fill(~mask, length)
        return Blocks(queries[:, :, None, :, None], keys[:, None, None].expand(batch, heads, 1, length, -1))


def find_window(query: Tensor, padding_mask: Tensor | None, width: Tensor | int) -> Window:
    """The `width` (a number, or (batch, 1)) tokens around each query."""
    batch, _, length, _ = query.shape
    n = count_tokens(query, padding_mask)[:, None]
    width = torch.minimum(torch.as_tensor(width, device=query.device).expand_as(n), n)
    mask = query.new_ones(batch, length, dtype=torch.bool) if padding_mask is None else padding_mask
    number = mask.cumsum(-1) - 1
    start = torch.minimum((number - width // 2).clamp(min=0), n - width)
    return Window(F.pad(number.masked_fill(~mask, 4 * length), (0, 1), value=4 * length), F.pad(start, (0, 1)), width)


def in_window(query, padding_mask, *, n_hashes: int, cluster_size: int) -> Tensor:
    """Which keys are near: (batch, 1, length, length) bool."""
    width = most_keys(count_tokens(query, padding_mask), n_hashes, cluster_size)
    window = find_window(query, padding_mask, width[:, None])
    everywhere = torch.arange(query.shape[2], device=query.device)[None, None].expand(query.shape[0], 1, -1)
    return window.covers(everywhere[..., None], everywhere[:, :, None])


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
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, scale=scaling)
    return clear_padding(out, padding_mask)


def window_pairs(query, key, padding_mask=None, *, generator=None, **settings) -> Tensor:
    """Which keys each query sees: (batch, heads, length, length), long, 0 or 1."""
    return window_keys(query, key, padding_mask, **settings).long()
