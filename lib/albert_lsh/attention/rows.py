"""Rows and positions: small operations that selecting keys and computing attention share.

A position equal to the length of the sequence means "no token here". Rows gathered there are zeros, so that padding
and empty places need no special case.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

AT_ONCE = 2**18  # numbers in a gathered tensor, so that it is still in the cache when it is used
AT_ONCE_ELSEWHERE = 2**28  # on devices whose time goes to launching operations: as many as memory bears
IN_CACHE = ("cpu",)  # devices where a tensor should stay in the cache

# The score of a place without a token. Finite, so that a query without any key gives zeros and not NaN.
MASKED = -1e30


def refuse_second_derivative() -> None:
    """Called by every backward pass of ours, which is a formula for numbers and has no derivative itself.

    Raises:
        ValueError: gradients are to be differentiated again (create_graph=True).
    """
    if torch.is_grad_enabled():
        raise ValueError(
            "create_graph=True: this attention has first derivatives only; softmax-eager, linear and "
            "improved-clustered can be differentiated twice"
        )


def products(query: Tensor, key: Tensor) -> Tensor:
    """Inner products of all rows (..., queries, keys), float32. Those of float16 are computed in float32, autocast or
    not: float16 ends at 65,504."""
    if query.dtype != torch.float16:
        return (query @ key.transpose(-1, -2)).float()
    with torch.autocast(query.device.type, enabled=False):
        return query.float() @ key.float().transpose(-1, -2)


def slices(count: int, at_once: int) -> Iterator[slice]:
    """range(count) in pieces of `at_once`, at least one at a time."""
    for start in range(0, count, max(1, at_once)):
        yield slice(start, min(start + max(1, at_once), count))


def most_at_once(device: torch.device, in_cache: int = AT_ONCE) -> int:
    """The most numbers in a tensor that is computed in pieces: `in_cache` on a CPU."""
    return in_cache if device.type in IN_CACHE else AT_ONCE_ELSEWHERE


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


def sort_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    """Positions in ascending order of `values` (batch, heads, ..., length); those outside of the mask come last.

    mask: (batch, length) or (batch, heads, length) bool. Ties keep their order.
    """
    if mask is not None:
        heads = mask.shape[1:-1] or (1,)
        mask = mask.view(mask.shape[0], *heads, *[1] * (values.dim() - 3), -1)
        highest_value = torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).max
        values = values.masked_fill(~mask, highest_value)
    return values.argsort(dim=-1, stable=True)


def places(chosen: Tensor, count: int) -> Tensor:
    """Positions of the first `count` True values of (batch, heads, length); `length` after the last one."""
    length = chosen.shape[-1]
    order = (~chosen).long().argsort(dim=-1, stable=True)[..., :count]
    return order.masked_fill(~chosen.gather(-1, order), length)


def in_place(mask: Tensor) -> Tensor:
    """Each position as a block of its own: (batch, heads, length, 1); `length` where mask has no token."""
    length = mask.shape[-1]
    return torch.arange(length, device=mask.device).where(mask, length).unsqueeze(-1)


def best(scores: Tensor, mask: Tensor, count: Tensor | int) -> Tensor:
    """Positions of the `count` highest scores of each row, best first; `length` where the mask leaves fewer.

    Args:
        scores: (batch, heads, ..., length). mask: bool, broadcasts to it. count: one number, or (batch,).
    Returns:
        (batch, heads, ..., largest count), long.
    """
    length = scores.shape[-1]
    scores = scores.masked_fill(~mask, -torch.inf)
    found = scores.topk(min(largest(count), length), dim=-1)
    rank = torch.arange(found.indices.shape[-1], device=scores.device)
    absent = (found.values == -torch.inf) | (rank >= per_sequence(count, scores.dim()))
    return found.indices.masked_fill(absent, length)


def cut(order: Tensor, n_tokens: Tensor, size: int | Tensor) -> Tensor:
    """Cut sorted tokens into ceil(n / size) clusters whose sizes differ by one at most.

    Args:
        order: (batch, heads, rounds, length), sorted positions, padding last.
        n_tokens: (batch,), tokens of each sequence.
        size: the most tokens in a cluster; one number, or (batch,).
    Returns:
        (batch, heads, rounds, clusters, places) positions; `length` in empty places. A sequence that needs fewer
        clusters than another one of the batch has empty ones at the end.
    """
    batch, heads, rounds, length = order.shape
    size = size.clamp(max=length) if isinstance(size, Tensor) else min(size, length)
    needed = (-(-n_tokens // size)).clamp(min=1)[:, None]
    most, widest = (int(needed.max()), int(size.max())) if isinstance(size, Tensor) else (-(-length // size), size)
    cluster = torch.arange(most + 1, device=order.device)
    start = (cluster.clamp(max=needed) * n_tokens[:, None]) // needed  # (batch, clusters + 1)
    rank = start[:, :-1, None] + torch.arange(widest, device=order.device)  # (batch, clusters, places)
    empty = (rank >= start[:, 1:, None])[:, None, None].expand(batch, heads, rounds, -1, -1)
    rank = rank.clamp(max=length - 1)[:, None, None].expand_as(empty)
    positions = order.gather(-1, rank.flatten(3)).view_as(rank)
    return positions.masked_fill(empty, length)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, heads, length, dim) at index (batch, heads, ...): (batch, heads, ..., dim), zeros at `length`."""
    batch, heads, length, dim = rows.shape
    rows = F.pad(rows, (0, 0, 0, 1)).reshape(-1, dim)
    first = torch.arange(batch * heads, device=rows.device).view(batch, heads, *[1] * (index.dim() - 2)) * (length + 1)
    return rows.index_select(0, (first + index).flatten()).view(*index.shape, dim)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a table (batch, heads, n) at index (batch, heads, ...)."""
    return table.gather(2, index.flatten(2)).view_as(index)


def owners(blocks: Tensor, length: int, nobody: int) -> Tensor:
    """The block of each token: (batch, heads, length + 1), from blocks (batch, heads, blocks, places) of positions.

    `nobody` stands for tokens in no block, and at `length`.
    """
    number = torch.arange(blocks.shape[2], device=blocks.device)[:, None].expand_as(blocks)
    table = number.new_full((*blocks.shape[:2], length + 1), nobody).scatter(2, blocks.flatten(2), number.flatten(2))
    table[..., length] = nobody
    return table


def sums_of(clusters: Tensor, *rows: Tensor) -> list[Tensor]:
    """The sums of rows (batch, heads, length, dim) over the members of each cluster: (batch, heads, clusters, dim)."""
    return [take(x, clusters).sum(3) for x in rows]


def means_of(rows: Tensor, clusters: Tensor) -> Tensor:
    """The mean row of each cluster, (batch, heads, clusters, dim); zeros for an empty one."""
    size = (clusters < rows.shape[2]).sum(-1, keepdim=True)
    return sums_of(clusters, rows)[0] / size.clamp(min=1)
