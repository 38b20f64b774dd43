"""Attention over gathered keys: on every device, in every dtype, and with dropout of weights.

Every round gathers the rows of its blocks, a few blocks at a time, so that they stay in the cache and no scores are
stored. From each block's output and log-sum-exp the rounds are merged. In the backward pass the same blocks are
computed with the merged output and log-sum-exp; then their gradients simply add up, and merging needs no gradient.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.masked import PieceSoftmax, delta_of
from albert_lsh.attention.keys import MASKED, Keys, refuse_second_derivative, slices


class Piece(NamedTuple):
    """Some blocks of a round. Positions are rows of flat tensors; the row behind the last stands in empty places."""

    number: int  # of the round
    queries: Tensor  # (blocks, places), long
    keys: Tensor
    bias: Tensor  # (blocks, queries or 1, keys), float32: minus the logarithm of how often a pair meets, or MASKED


def pieces(keys: Keys, rows: slice, length: int, dim: int) -> Iterator[Piece]:
    """The blocks of all rounds for some rows (batch and heads are one), a few keys of `dim` numbers at a time."""
    n, device = rows.stop - rows.start, keys.keys.device
    first = torch.arange(n, device=device)[:, None, None] * length
    for number in range(keys.keys.shape[1]):
        for blocks in slices(keys.keys.shape[2], n * keys.keys.shape[3] * dim, device):
            queries, listed = keys.queries[rows, number, blocks], keys.keys[rows, number, blocks]
            hidden = (listed == length).unsqueeze(-2)
            if keys.others_only:
                hidden = hidden | (queries.unsqueeze(-1) == listed.unsqueeze(-2))
            bias = torch.zeros(hidden.shape, device=device, dtype=torch.float32).masked_fill(hidden, MASKED)
            if keys.clusters is not None:
                bias = bias - times_met(keys.clusters, rows, queries, listed).clamp(min=1).float().log()
            flat = [(x + first).masked_fill(x == length, n * length).flatten(0, 1) for x in (queries, listed)]
            yield Piece(number, flat[0], flat[1], bias.flatten(0, 1))


def times_met(clusters: tuple[Tensor, Tensor], rows: slice, queries: Tensor, listed: Tensor) -> Tensor:
    """In how many rounds each query shares a cluster with each key: (n, blocks, queries, keys), int."""
    met = torch.zeros(*queries.shape, listed.shape[-1], dtype=torch.int, device=queries.device)
    for of_query, of_key in zip(*(table[rows].unbind(1) for table in clusters), strict=True):
        mine, other = (t.gather(1, i.flatten(1)).view_as(i) for t, i in ((of_query, queries), (of_key, listed)))
        met += mine.unsqueeze(-1) == other.unsqueeze(-2)
    return met


def side_by_side(*tensors: Tensor) -> Tensor:
    """(rows, places, dim) each as one flat tensor, dims side by side, and a row of zeros at the end.

    One long row is gathered faster than several short ones.
    """
    flat = tensors[0].new_zeros(tensors[0].shape[0] * tensors[0].shape[1] + 1, sum(x.shape[-1] for x in tensors))
    torch.cat([x.flatten(0, 1) for x in tensors], dim=-1, out=flat[:-1])
    return flat


def gather(flat: Tensor, index: Tensor, *widths: int) -> tuple[Tensor, ...]:
    """Rows of a flat tensor at (blocks, places), apart again: (blocks, places, width) each."""
    return flat.index_select(0, index.flatten()).view(*index.shape, -1).split(widths, dim=-1)


class GatheredAttention(torch.autograd.Function):
    """Softmax over the keys that each query sees; batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, keys: Keys, softmax: PieceSoftmax, query: Tensor, key: Tensor, value: Tensor):
        (heads, length, dim), width, softmax = query.shape, value.shape[2], softmax.from_start()
        out, total = torch.empty_like(value), query.new_empty(heads, length, dtype=torch.float32)
        for rows in slices(heads, length * dim, query.device):
            queries, sources = side_by_side(query[rows]), side_by_side(key[rows], value[rows])
            log_sums = query.new_full((keys.keys.shape[1], len(queries)), MASKED, dtype=torch.float32)
            outs = query.new_zeros(*log_sums.shape, width, dtype=torch.float32)
            for piece in pieces(keys, rows, length, dim + width):
                (q,), (k, v) = gather(queries, piece.queries, dim), gather(sources, piece.keys, dim, width)
                part, log_sum = softmax.forward(q, k, v, piece.bias)
                outs[piece.number].index_copy_(0, piece.queries.flatten(), part.flatten(0, 1).float())
                log_sums[piece.number].index_copy_(0, piece.queries.flatten(), log_sum.flatten())
            merged = log_sums.logsumexp(0)
            outs.mul_((log_sums - merged).exp_().unsqueeze(-1))
            out[rows] = outs.sum(0)[:-1].view(-1, length, width)
            total[rows] = merged[:-1].view(-1, length)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.keys, ctx.softmax = keys, softmax
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, up: Tensor, of_total: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, out, total = ctx.saved_tensors
        (heads, length, dim), width, softmax = query.shape, value.shape[2], ctx.softmax.from_start()
        grads, delta = [torch.empty_like(x) for x in (query, key, value)], delta_of(out, up, of_total)
        for rows in slices(heads, length * dim, query.device):
            queries, sources = side_by_side(query[rows], up[rows]), side_by_side(key[rows], value[rows])
            totals = F.pad(total[rows].flatten(), (0, 1), value=-MASKED)  # an empty place gives no weight
            deltas = F.pad(delta[rows].flatten(), (0, 1))
            sums = [torch.zeros(len(queries), n, device=up.device, dtype=torch.float32) for n in (dim, dim, width)]
            for piece in pieces(ctx.keys, rows, length, dim + width):
                (q, of_out), (k, v) = (
                    gather(queries, piece.queries, dim, width),
                    gather(sources, piece.keys, dim, width),
                )
                parts = softmax.backward(q, k, v, of_out, totals[piece.queries], deltas[piece.queries], piece.bias)
                for place, index, part in zip(sums, (piece.queries, piece.keys, piece.keys), parts, strict=True):
                    place.index_add_(0, index.flatten(), part.flatten(0, 1).float())
            for grad, place in zip(grads, sums, strict=True):
                grad[rows] = place[:-1].view(-1, length, place.shape[1])
        return None, None, *grads
