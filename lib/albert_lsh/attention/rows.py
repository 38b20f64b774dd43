"""Rows of tensors: padding, pieces that fit a cache, and rows gathered by their positions.

A position equal to the length of the sequence means "no token here". Rows gathered there are zeros, so that padding
and empty places need no special case.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

AT_ONCE = 2**18  # numbers in a tensor that is computed in pieces, so that it is still in the cache when it is used
AT_ONCE_ELSEWHERE = 2**28  # on devices whose time goes to launching operations: as many as memory bears
IN_CACHE = ("cpu",)  # devices where a tensor should stay in the cache, and where launching operations is cheap

# The score of a place without a token. Finite, so that a query without any key gives zeros and not NaN.
MASKED = -1e30
# On a CPU torch.exp takes 300 times as long where it underflows. torch.exp2 does not: exp(x) is exp2(LOG2_E * x).
LOG2_E = math.log2(math.e)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in b's dtype; where that is float16, which ends at 65,504, in float32, autocast or not."""
    if b.dtype != torch.float16:
        return a.to(b.dtype) @ b
    with torch.autocast(b.device.type, enabled=False):
        return a.float() @ b.float()


def refuse_second_derivative() -> None:
    """Called by every backward pass of ours, which has no derivative itself: ValueError where one is asked for."""
    if torch.is_grad_enabled():
        raise ValueError(
            "create_graph=True: this attention has first derivatives only; softmax-eager and improved-clustered can be "
            "differentiated twice"
        )


def is_in_cache(device: torch.device) -> bool:
    """Whether small tensors and many operations are better than large ones and few."""
    return device.type in IN_CACHE


def slices(count: int, numbers: int, device: torch.device, in_cache: int = AT_ONCE) -> Iterator[slice]:
    """range(count) in pieces, each of which takes `numbers` numbers: on a CPU at most `in_cache` of them at once."""
    at_once = max(1, (in_cache if is_in_cache(device) else AT_ONCE_ELSEWHERE) // numbers)
    for start in range(0, count, at_once):
        yield slice(start, min(start + at_once, count))


def count_tokens(query: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The number of tokens in each sequence without padding: (batch,), long."""
    if padding_mask is None:
        return torch.full((query.shape[0],), query.shape[2], device=query.device)
    return padding_mask.sum(-1)


def token_mask(query: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Which positions hold a token: (batch, heads, length) bool."""
    batch, heads, length, _ = query.shape
    mask = query.new_ones(batch, length, dtype=torch.bool) if padding_mask is None else padding_mask
    return mask[:, None].expand(batch, heads, length)


def clear_padding(rows: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Rows (batch, heads, length, dim) with zeros in padding, whatever stood there."""
    return rows if padding_mask is None else torch.where(padding_mask[:, None, :, None], rows, 0)


def per_sequence(value: int | Tensor, dims: int) -> int | Tensor:
    """A setting, one number or one for each sequence (batch,), so that it broadcasts over `dims` dimensions."""
    return value.view(-1, *[1] * (dims - 1)) if isinstance(value, Tensor) else value


def largest(value: int | Tensor) -> int:
    """The largest value of a setting in a batch."""
    return int(value.max()) if isinstance(value, Tensor) else value


def in_place(mask: Tensor) -> Tensor:
    """Each position as a block of its own: (batch, heads, length, 1); `length` where mask has no token."""
    length = mask.shape[-1]
    return torch.arange(length, device=mask.device).expand_as(mask).masked_fill(~mask, length).unsqueeze(-1)


def tokens_first(mask: Tensor) -> Tensor:
    """The positions of tokens in their order, `length` behind the last: (batch, heads, length), as is the mask."""
    return in_place(mask).squeeze(-1).sort(dim=-1).values


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, heads, length, dim) at index (batch, heads, ...): (batch, heads, ..., dim), zeros at `length`."""
    batch, heads, length, dim = rows.shape
    rows = F.pad(rows, (0, 0, 0, 1)).reshape(-1, dim)
    first = first_rows(batch, heads, length, rows.device).view(batch, heads, *[1] * (index.dim() - 2))
    return rows.index_select(0, (first + index).flatten()).view(*index.shape, dim)


def first_rows(batch: int, heads: int, length: int, device: torch.device) -> Tensor:
    """Where each sequence and head begins, (batch, heads, 1, 1), in a table of their rows with one more after each."""
    step = length + 1
    return torch.arange(0, batch * heads * step, step, device=device).view(batch, heads, 1, 1)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a table (batch, heads, n) at index (batch, heads, ...)."""
    return table.gather(2, index.flatten(2)).view_as(index)


def means_of_groups(rows: Tensor, group: Tensor, count: int) -> Tensor:
    """The mean row of each group, (batch, heads, count, dim); zeros for an empty one. Linear in the length.

    rows: (batch, heads, length, dim). group: (batch, heads, length), of each row; `count` for padding.
    """
    index = group.unsqueeze(-1)
    sums = rows.new_zeros(*rows.shape[:2], count + 1, rows.shape[-1]).scatter_add(2, index.expand_as(rows), rows)
    sizes = rows.new_zeros(*rows.shape[:2], count + 1, 1).scatter_add(2, index, torch.ones_like(rows[..., :1]))
    return (sums / sizes.clamp(min=1))[:, :, :count]
