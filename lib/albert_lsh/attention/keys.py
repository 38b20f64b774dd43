"""Who sees whom: the form in which sparse attentions name the keys that queries see; and rows of tensors.

Queries stand in blocks, and each block has one list of keys. Several rounds of blocks are one softmax, merged by their
log-sum-exp (Kitaev et al. 2020, section 2). What chooses keys returns `Keys`, or `Clusters`, which become `Keys` where
they are needed; what computes (`compute`) takes them.

A position equal to the length of the sequence means "no token here". Rows gathered there are zeros, so that padding
and empty places need no special case.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

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


class Keys(NamedTuple):
    """Which keys the queries of each block see.

    A query that is not padding stands exactly once in every round. Indices are long. No list names a key twice.
    """

    queries: Tensor  # (batch, heads, rounds, blocks, places): positions; `length` in empty places
    keys: Tensor  # (batch, heads, rounds, blocks, places): positions; `length` in empty places
    # The cluster of each query and key in every round, (batch, heads, rounds, length + 1), -1 and -2 for none. A key
    # met in several rounds then weighs once: `compute.triton` lowers its scores by the logarithm of their number
    # (Reformer, equation 6), `compute.gathered` counts it in the first of them; without dropout these are one sum.
    clusters: tuple[Tensor, Tensor] | None = None
    others_only: bool = False  # a query does not see its own key
    earlier_only: bool = False  # nor any behind it

    def flat(self) -> "Keys":
        """The same with batch and heads in one dimension."""
        queries, keys = self.queries.expand(*self.keys.shape[:3], -1, -1).flatten(0, 1), self.keys.flatten(0, 1)
        clusters = self.clusters and (self.clusters[0].flatten(0, 1), self.clusters[1].flatten(0, 1))
        return Keys(queries, keys, clusters, self.others_only, self.earlier_only)

    def with_global(self, positions: Tensor, is_global: Tensor) -> "Keys":
        """The same with some keys that every query sees, which stand in the first round and in no other list.

        positions: (batch, heads, n), `length` for none. is_global: (batch, heads, length) bool, True for them.
        """
        hidden, length = F.pad(is_global, (0, 1)), is_global.shape[-1]
        more = positions[:, :, None, None].expand(*self.keys.shape[:4], -1).clone()
        more[:, :, 1:] = length
        keys = torch.cat([more, self.keys.masked_fill(look_up(hidden, self.keys), length)], dim=-1)
        clusters = self.clusters and (self.clusters[0], self.clusters[1].masked_fill(hidden.unsqueeze(2), -2))
        return self._replace(keys=keys, clusters=clusters)

    def count_pairs(self, length: int) -> Tensor:
        """How often each query meets each key: (batch, heads, length, length), int. Quadratic in the length."""
        pair = (self.queries.unsqueeze(-1) * (length + 1) + self.keys.unsqueeze(-2)).flatten(2)
        counts = pair.new_zeros(*pair.shape[:2], (length + 1) ** 2, dtype=torch.int)
        counts.scatter_add_(-1, pair, torch.ones_like(pair, dtype=torch.int))
        return counts.unflatten(-1, (length + 1, length + 1))[:, :, :length, :length]


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
            "create_graph=True: this attention has first derivatives only; softmax-eager, linear and "
            "improved-clustered can be differentiated twice"
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
    first = first_rows(batch, heads, length, rows.device).view(batch, heads, *[1] * (index.dim() - 2))
    return rows.index_select(0, (first + index).flatten()).view(*index.shape, dim)


def first_rows(batch: int, heads: int, length: int, device: torch.device) -> Tensor:
    """Where each sequence and head begins, (batch, heads, 1, 1), in a table of their rows with one more after each."""
    step = length + 1
    return torch.arange(0, batch * heads * step, step, device=device).view(batch, heads, 1, 1)


def means_of_groups(rows: Tensor, group: Tensor, count: int) -> Tensor:
    """The mean row of each group, (batch, heads, count, dim); zeros for an empty one. Linear in the length.

    rows: (batch, heads, length, dim). group: (batch, heads, length), of each row; `count` for padding.
    """
    index, ones = group.unsqueeze(-1), torch.ones_like(rows[..., :1])
    sums = rows.new_zeros(*rows.shape[:2], count + 1, rows.shape[-1]).scatter_add(2, index.expand_as(rows), rows)
    sizes = rows.new_zeros(*rows.shape[:2], count + 1, 1).scatter_add(2, index, ones)
    return (sums / sizes.clamp(min=1))[:, :, :count]


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a table (batch, heads, n) at index (batch, heads, ...)."""
    return table.gather(2, index.flatten(2)).view_as(index)


def cluster_tables(queries: Tensor, keys: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """`Keys.clusters` for rounds of clusters of queries and keys, (batch, heads, rounds, clusters, places) each."""

    def owners(clusters: Tensor, nobody: int) -> Tensor:
        number = torch.arange(clusters.shape[3], device=clusters.device)[:, None].expand_as(clusters)
        table = number.new_full((*clusters.shape[:3], length + 1), nobody)
        table = table.scatter(3, clusters.flatten(3), number.flatten(3))
        table[..., length] = nobody
        return table

    return owners(queries, -1), owners(keys, -2)
