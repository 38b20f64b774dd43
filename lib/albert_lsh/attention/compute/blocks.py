"""Attention inside clusters of tokens: what `lsh`, `shared-qk-lsh` and `random` have in common.

A round of hashing sorts the tokens of a sequence and cuts the sorted row into clusters. All that attention needs to
know of it is which queries and which keys stand together; `Blocks` holds that. An index equal to `length` means "no
token here"; it points at a row of zeros appended to every tensor, so padding and empty places need no special case.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

AT_ONCE = 2**18  # numbers of a gathered tensor: what is gathered is still in the cache when it is used

# Scores of places without a token. Finite, so that a block without any key gives zeros and not NaN.
MASKED = -1e30


class Blocks(NamedTuple):
    """Which tokens meet: positions in the sequence, `length` where there is none.

    Every token that is not padding occurs exactly once a round among the queries.
    """

    query_index: Tensor  # (batch, heads, rounds, clusters, queries per cluster), long
    key_index: Tensor  # (batch, heads, rounds, clusters, keys per cluster), long


def slices(count: int, at_once: int) -> Iterator[slice]:
    """range(count), a few at a time."""
    for start in range(0, count, max(1, at_once)):
        yield slice(start, min(start + max(1, at_once), count))


def count_tokens(query: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Number of tokens of each sequence, padding left out: (batch,), long."""
    if padding_mask is None:
        return torch.full((query.shape[0],), query.shape[2], device=query.device)
    return padding_mask.sum(-1)


def token_mask(query: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Which positions hold a token: (batch, heads, length) bool."""
    batch, heads, length, _ = query.shape
    mask = query.new_ones(batch, length, dtype=torch.bool) if padding_mask is None else padding_mask
    return mask[:, None].expand(batch, heads, length)


def sort_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    """Positions in ascending order of `values` (batch, heads, ..., length), those outside of mask behind all others.

    mask: (batch, length) or (batch, heads, length) bool. Ties keep their order.
    """
    if mask is not None:
        heads = mask.shape[1:-1] or (1,)
        mask = mask.view(mask.shape[0], *heads, *[1] * (values.dim() - 3), -1)
        highest = torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).max
        values = values.masked_fill(~mask, highest)
    return values.argsort(dim=-1, stable=True)


def places(chosen: Tensor, count: int) -> Tensor:
    """Positions of the True of (batch, heads, length): (batch, heads, count), `length` behind the last."""
    length = chosen.shape[-1]
    order = (~chosen).long().argsort(dim=-1, stable=True)[..., :count]
    return order.masked_fill(~chosen.gather(-1, order), length)


def highest(scores: Tensor, mask: Tensor, count: Tensor | int) -> Tensor:
    """Which of the places in mask (it broadcasts) have the `count` highest scores of their row: bool, like scores."""
    scores = scores.masked_fill(~mask, -torch.inf)
    count = torch.as_tensor(count, device=scores.device).clamp(max=scores.shape[-1])
    order = scores.topk(int(count.max()), dim=-1).indices
    kept = (torch.arange(order.shape[-1], device=scores.device) < count).expand_as(order)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, kept) & mask


def most_keys(n_tokens: Tensor, n_hashes: int, cluster_size: int) -> Tensor:
    """The most keys that `n_hashes` of the clusters of `cut` can have: so many see the controls of `lsh`."""
    clusters = (-(-n_tokens // cluster_size)).clamp(min=1)
    return n_hashes * -(-n_tokens // clusters)


def cut(order: Tensor, n_tokens: Tensor, size: int | Tensor) -> Tensor:
    """Cut sorted tokens into ceil(n / size) clusters whose sizes differ by one at most.

    Args:
        order: (batch, heads, rounds, length), positions sorted by bucket, padding last.
        n_tokens: (batch,), tokens of each sequence; only these are dealt out.
        size: the most tokens that a cluster may have; one for all sequences, or (batch,).
    Returns:
        (batch, heads, rounds, clusters, places) positions; `length` in places without a token. A sequence needs
        ceil(n / size) clusters; the rest, there for longer ones in the batch, is empty.
    """
    batch, heads, rounds, length = order.shape
    size = size if isinstance(size, Tensor) else min(size, length)
    needed = (-(-n_tokens // size)).clamp(min=1)[:, None]
    most, widest = (int(needed.max()), int(size.max())) if isinstance(size, Tensor) else (-(-length // size), size)
    cluster = torch.arange(most + 1, device=order.device)
    start = (cluster.clamp(max=needed) * n_tokens[:, None]) // needed  # (batch, clusters + 1)
    rank = start[:, :-1, None] + torch.arange(widest, device=order.device)  # (batch, clusters, places)
    empty = (rank >= start[:, 1:, None])[:, None, None].expand(batch, heads, rounds, -1, -1)
    rank = rank.clamp(max=length - 1)[:, None, None].expand_as(empty)
    positions = order.gather(-1, rank.flatten(3)).view_as(rank)
    return positions.masked_fill(empty, length)


def slot_of_query(blocks: Blocks, length: int) -> Tensor:
    """Where each query sits: (batch, heads, rounds, length), its place among a round's flattened clusters."""
    index = blocks.query_index.flatten(3)
    place = torch.arange(index.shape[-1], device=index.device).expand_as(index)
    slot = index.new_zeros(*index.shape[:3], length + 1)
    return slot.scatter(-1, index, place)[..., :length]


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, heads, length, dim) at index (batch, heads, ...): (batch, heads, ..., dim), zeros at `length`."""
    batch, heads, length, dim = rows.shape
    rows = F.pad(rows, (0, 0, 0, 1)).reshape(-1, dim)
    first = torch.arange(batch * heads, device=rows.device).view(batch, heads, *[1] * (index.dim() - 2)) * (length + 1)
    return rows.index_select(0, (first + index).flatten()).view(*index.shape, dim)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Entries of (rows, length + 1) at index (rows, ...)."""
    return table.gather(1, index.flatten(1)).view_as(index)


def hide_keys(blocks: Blocks, hidden: Tensor) -> Blocks:
    """The blocks without some keys; hidden: (batch, heads, length) bool."""
    length, keys = hidden.shape[-1], blocks.key_index.flatten(0, 1)
    table = F.pad(hidden.flatten(0, 1), (0, 1))
    return blocks._replace(key_index=keys.masked_fill(look_up(table, keys), length).view_as(blocks.key_index))


def clear_padding(rows: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Rows (batch, heads, length, head_dim) with zeros in padding, in place even of NaN; so are its gradients."""
    return rows if padding_mask is None else torch.where(padding_mask[:, None, :, None], rows, 0)


def cluster_tables(blocks: Blocks, length: int) -> tuple[Tensor, Tensor]:
    """The cluster of each query and each key in every round, for `Bias.clusters`; blocks of `cut` on both sides."""

    def cluster_of(index: Tensor, nothing: int) -> Tensor:
        index = index.flatten(0, 1)
        owner = torch.arange(index.shape[2], device=index.device)[:, None].expand(index.shape)
        table = owner.new_full((*index.shape[:2], length + 1), nothing)
        table = table.scatter(-1, index.flatten(2), owner.flatten(2))
        table[..., length] = nothing
        return table

    return cluster_of(blocks.query_index, -1), cluster_of(blocks.key_index, -2)
