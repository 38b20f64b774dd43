"""Attention inside clusters of tokens: what `lsh`, `shared-qk-lsh` and `random` have in common.

A round of hashing sorts the tokens of a sequence and cuts the sorted row into clusters. All that attention needs to
know of it is which queries and which keys stand together; `Blocks` holds that, `attend_part` makes a softmax inside
every block, and `merge` puts rounds and parts together by their log-sum-exp (Kitaev et al. 2020, section 2).

An index equal to `length` means "no token here"; it points at a row of zeros appended to every tensor, so padding and
empty places need no special case.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Scores of places without a token. Finite, so that a block without any key gives zeros and not NaN.
MASKED = -1e30


class Blocks(NamedTuple):
    """Which tokens meet: positions in the sequence, `length` where there is none.

    Every token that is not padding occurs exactly once a round among the queries.
    """

    query_index: Tensor  # (batch, heads, rounds, clusters, queries per cluster), long
    key_index: Tensor  # (batch, heads, rounds, clusters, keys per cluster), long


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


def cut(order: Tensor, n_tokens: Tensor, size: int) -> Tensor:
    """Cut sorted tokens into ceil(n / size) clusters whose sizes differ by one at most.

    Args:
        order: (batch, heads, rounds, length), positions sorted by bucket, padding last.
        n_tokens: (batch,), tokens of each sequence; only these are dealt out.
        size: the most tokens that a cluster may have.
    Returns:
        (batch, heads, rounds, clusters, size) positions; `length` in places without a token. A sequence needs
        ceil(n / size) clusters; the rest, there for longer ones in the batch, is empty.
    """
    batch, heads, rounds, length = order.shape
    size = min(size, length)
    cluster = torch.arange(-(-length // size) + 1, device=order.device)
    n = n_tokens[:, None]
    needed = (-(-n // size)).clamp(min=1)
    start = (cluster.clamp(max=needed) * n) // needed  # (batch, clusters + 1)
    rank = start[:, :-1, None] + torch.arange(size, device=order.device)  # (batch, clusters, size)
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


class Part(NamedTuple):
    """Some of the keys that the queries see."""

    blocks: Blocks
    # float32, broadcast to (batch, heads, rounds, clusters, queries, keys); MASKED where a key is not seen. Or a
    # function of query_index (..., queries, 1) and key_index (..., 1, keys) that gives it, so that nobody stores it
    bias: Tensor | Callable[[Tensor, Tensor], Tensor] | None = None

    def bias_of(self, query_index: Tensor, key_index: Tensor) -> Tensor | None:
        """The bias at these positions, if it is a function of them; else as it stands."""
        if callable(self.bias):
            return self.bias(query_index.unsqueeze(-1), key_index.unsqueeze(-2))
        return self.bias


def attend_part(
    query: Tensor, key: Tensor, value: Tensor, part: Part, *, scaling: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Softmax attention inside every block.

    Args:
        query: (batch, heads, length, head_dim).
        key, value: (batch, heads, n_keys, head_dim); n_keys is the index that stands for "no key here".
        part: which of them meet.
        scaling: factor of the scores, usually head_dim ** -0.5.
        dropout: probability with which an attention weight is dropped.
    Returns:
        For each round (batch, heads, rounds, length, head_dim) and the log-sum-exp (batch, heads, rounds, length) of
        each query's scores. Scores and softmax are float32 whatever the inputs are.
    """
    blocks, length = part.blocks, query.shape[2]
    q, k, v = take(query, blocks.query_index), take(key, blocks.key_index), take(value, blocks.key_index)
    scores = (q @ k.transpose(-1, -2)).float() * scaling  # (batch, heads, rounds, clusters, queries, keys)
    if (bias := part.bias_of(*blocks)) is not None:
        scores = scores + bias
    scores = scores.masked_fill((blocks.key_index == key.shape[2]).unsqueeze(-2), MASKED).clamp(min=MASKED)
    log_sum = scores.logsumexp(-1)
    weights = F.dropout(scores.softmax(-1), dropout)
    out = (weights.to(v.dtype) @ v).flatten(3, 4)  # (batch, heads, rounds, clusters * queries, head_dim)
    slot = slot_of_query(blocks, length)
    out = take(out.flatten(0, 1), slot.flatten(0, 1)).view(*slot.shape, -1)  # as `take` wants it
    return out.float(), log_sum.flatten(3).gather(-1, slot)


def merge(parts: list[tuple[Tensor, Tensor]], dtype: torch.dtype, padding_mask: Tensor | None) -> Tensor:
    """What `attend_part` gave for several parts and rounds, as one softmax over all their keys.

    Returns:
        (batch, heads, length, head_dim) of that dtype; rows of padding are zero.
    """
    out, log_sum = (torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))
    share = log_sum.softmax(dim=2)  # (batch, heads, rounds, length)
    return clear_padding((out * share.unsqueeze(-1)).sum(2).to(dtype), padding_mask)


def clear_padding(out: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Zero the rows of padding of (batch, heads, length, head_dim)."""
    return out if padding_mask is None else out * padding_mask[:, None, :, None]


def times_met(blocks: Blocks, length: int) -> Tensor:
    """For every place in a block, in how many rounds its query and its key meet; for blocks of `cut` on both sides.

    Returns:
        (batch, heads, rounds, clusters, queries, keys), long. The count that the Reformer paper calls N (its
        equation 6 subtracts log N from the scores, so that a key met in several rounds weighs once).
    """

    def cluster_of(index: Tensor) -> Tensor:  # (batch, heads, places) -> cluster in each round: (..., places, rounds)
        owner = torch.arange(index.shape[3], device=index.device)[:, None].expand(index.shape)
        table = owner.new_full((*index.shape[:3], length + 1), -1).scatter(-1, index.flatten(3), owner.flatten(3))
        flat = index.flatten(2).unsqueeze(2).expand(-1, -1, index.shape[2], -1)
        return table.gather(-1, flat).transpose(2, 3).unflatten(2, index.shape[2:])

    of_query, of_key = cluster_of(blocks.query_index), cluster_of(blocks.key_index)
    return (of_query.unsqueeze(-2) == of_key.unsqueeze(-3)).sum(-1)


def count_pairs(parts: list[Part], length: int) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int. Quadratic; for short sequences.

    Keys behind `length`, which stand for several, are left out.
    """
    batch, heads = parts[0].blocks.query_index.shape[:2]
    counts = torch.zeros(batch, heads, (length + 1) ** 2, dtype=torch.int, device=parts[0].blocks.query_index.device)
    for part in parts:
        blocks, bias = part.blocks, part.bias_of(*part.blocks)
        key = blocks.key_index.clamp(max=length)
        pair = blocks.query_index.unsqueeze(-1) * (length + 1) + key.unsqueeze(-2)
        met = torch.ones_like(pair, dtype=torch.int) if bias is None else (bias > MASKED / 2).expand_as(pair).int()
        counts.scatter_add_(-1, pair.flatten(2), met.flatten(2))
    return counts.view(batch, heads, length + 1, length + 1)[:, :, :length, :length]
