"""Attention over gathered keys in torch's fused kernel: no scores are stored, forward or backward.

Every round gathers the rows of its blocks. torch's fused attention gives each block's output and, for each query, the
log-sum-exp of its scores. From these the rounds are merged.

In the backward pass the fused backward is called for each block, with the *merged* output and the *merged* log-sum-exp.
It then computes a key's weight as exp(score - merged log-sum-exp), which is its weight in the whole softmax. So the
blocks' gradients can simply be added up, and merging needs no backward pass (as in ring attention, Liu et al. 2023).

torch's operators for this are private and are used here and in `dense` only; where they are missing, `plain` serves.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.plain import times_met
from albert_lsh.attention.rows import AT_ONCE, MASKED, refuse_second_derivative, slices
from albert_lsh.attention.seen import Seen

# Tokens up to which the fused backward takes longer than plain products in bfloat16; see `is_slow`.
SLOW_LENGTH = 256

FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def is_available(query: Tensor, dropout: float) -> bool:
    """Whether the fused operators can do it: on a CPU, without dropout of attention weights, not in float64.

    They read a mask as numbers of query's dtype or float32; a bias of ours is float32, and in float64 read as garbage.
    """
    there = FORWARD is not None and BACKWARD is not None
    return there and query.device.type == "cpu" and query.dtype != torch.float64 and dropout == 0


def is_slow(query: Tensor) -> bool:
    """Whether storing all scores takes less time than torch's fused attention: in short sequences in bfloat16, with a
    backward pass.

    With 12 heads of 64 and 32 sequences of 30 tokens the fused forward and backward take five times as long, with 16 of
    200 tokens 1.8 times (one core of an AMD EPYC with AVX512-BF16). In float32 the fused ones are the faster.
    """
    trains = torch.is_grad_enabled() and query.requires_grad
    in_bfloat16 = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return trains and in_bfloat16 and query.shape[2] <= SLOW_LENGTH


def without_log_sum(out: Tensor, upstream: Tensor, of_log_sum: Tensor | None) -> Tensor:
    """The output that, given to the fused backward, makes it add the gradient of the log-sum-exp too.

    The backward subtracts upstream . out from every key's upstream . value. A gradient of the log-sum-exp is added at
    the same place, so it is taken off the output along the upstream gradient.
    """
    if of_log_sum is None:
        return out
    along = upstream.float()
    share = of_log_sum / along.square().sum(-1).clamp(min=torch.finfo(torch.float32).tiny)
    return (out.float() - share.unsqueeze(-1) * along).to(out.dtype)


class Piece(NamedTuple):
    """Some blocks of a round, as rows of flat tensors; the row behind the last stands in empty places."""

    queries: Tensor  # (blocks, places), long
    keys: Tensor
    bias: Tensor | None  # (blocks, 1, queries or 1, keys) float32
    number: int  # of the round


def pieces(seen: Seen, rows: slice, length: int, n_keys: int, dim: int) -> Iterator[Piece]:
    """The blocks of all rounds for some rows (batch and heads are one), a few at a time."""
    n = rows.stop - rows.start
    row = torch.arange(n, device=seen.keys.device)[:, None, None]
    for number in range(seen.keys.shape[1]):
        for some in slices(seen.keys.shape[2], AT_ONCE // (n * seen.keys.shape[3] * dim)):
            query, key = seen.queries[rows, number, some], seen.keys[rows, number, some]
            bias = piece_bias(seen, rows, number, some, n_keys)
            yield Piece(
                (query + row * length).masked_fill(query == length, n * length).flatten(0, 1),
                (key + row * n_keys).masked_fill(key == n_keys, n * n_keys).flatten(0, 1),
                None if bias is None else bias.expand(*key.shape[:2], -1, -1).flatten(0, 1).unsqueeze(1),
                number,
            )


def piece_bias(seen: Seen, rows: slice, number: int, some: slice, n_keys: int) -> Tensor | None:
    """The bias of some blocks, (n, blocks, queries or 1, keys) float32; None where it is zero."""
    query, key = seen.queries[rows, number, some].unsqueeze(-1), seen.keys[rows, number, some].unsqueeze(-2)
    bias = None if seen.bias is None else seen.bias[rows, number, some].unsqueeze(-2)
    if seen.clusters is not None:
        of_query, of_key = seen.clusters
        met = times_met((of_query[rows], of_key[rows]), query, key)
        bias = -met.clamp(min=1).float().log() if bias is None else bias - met.clamp(min=1).float().log()
    hidden = key == n_keys
    if seen.others_only:
        hidden = hidden | (query == key)
    elif not hidden.any():
        return bias
    bias = torch.zeros((), device=key.device, dtype=torch.float32) if bias is None else bias
    return torch.where(hidden, MASKED, bias)


def side_by_side(*tensors: Tensor) -> Tensor:
    """(rows, places, dim) each as one flat tensor, dims side by side, and a row of zeros at the end.

    One long row is gathered faster than several short ones.
    """
    widths = [x.shape[-1] for x in tensors]
    count = tensors[0].shape[0] * tensors[0].shape[1]
    flat = tensors[0].new_empty(count + 1, sum(widths))
    for place, x in zip(flat[:-1].split(widths, dim=-1), tensors, strict=True):
        place.view(*x.shape).copy_(x)
    flat[-1] = 0
    return flat


def gather(flat: Tensor, index: Tensor) -> Tensor:
    """Rows of a flat tensor at (blocks, places), as the operators want them: (blocks, 1, places, dim)."""
    return flat.index_select(0, index.flatten()).view(len(index), 1, -1, flat.shape[-1])


def forward_of_rows(query: Tensor, source: Tensor, seen: Seen, rows: slice, scaling: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, (n, length, dim) and (n, length) float32, of some rows.

    query: (n, length, dim); source: keys and values, flat and side by side.
    """
    n, length, dim = query.shape
    flat, n_rounds = side_by_side(query), seen.keys.shape[1]
    total = query.new_full((n_rounds, n * length + 1), MASKED, dtype=torch.float32)
    out = query.new_zeros(n_rounds, n * length + 1, source.shape[1] - dim, dtype=torch.float32)
    for one in pieces(seen, rows, length, (len(source) - 1) // n, source.shape[1]):
        k, v = gather(source, one.keys).split([dim, source.shape[1] - dim], dim=-1)
        found, log_sum = FORWARD(gather(flat, one.queries), k, v, attn_mask=one.bias, scale=scaling)
        index = one.queries.flatten()
        out[one.number].index_copy_(0, index, found.flatten(0, 2).float())
        total[one.number].index_copy_(0, index, log_sum.flatten())
    if n_rounds > 1:
        merged = total.logsumexp(0, keepdim=True)
        out, total = torch.einsum("rl,rld->ld", (total - merged).exp_(), out)[None], merged
    return out[0, :-1].view(n, length, -1), total[0, :-1].view(n, length)


def add_rows(place: Tensor, index: Tensor, rows: Tensor, distinct: bool) -> None:
    """Add rows (blocks, 1, places, dim) at index (blocks, places); faster where no row is added to twice."""
    index, rows = index.flatten(), rows.flatten(0, 2).float()
    if distinct:
        place.index_copy_(0, index, place.index_select(0, index).add_(rows))
    else:
        place.index_add_(0, index, rows)


def backward_of_rows(sides: Tensor, total: Tensor, source, sums, seen: Seen, rows: slice, scaling: float) -> None:
    """Add the gradients of some rows to sums: of query, key and value; flat, float32.

    sides: query, output and upstream gradient, flat and side by side; total: log-sum-exp; source as forward.
    """
    n, dim = rows.stop - rows.start, sums[0].shape[1]
    length, widths = (len(sides) - 1) // n, [dim, source.shape[1] - dim]
    for one in pieces(seen, rows, length, (len(source) - 1) // n, source.shape[1]):
        q, o, up = gather(sides, one.queries).split([dim, widths[1], widths[1]], dim=-1)
        k, v = gather(source, one.keys).split(widths, dim=-1)
        log_sum = total[one.queries].unsqueeze(1)
        found = BACKWARD(up, q, k, v, o, log_sum, 0.0, False, attn_mask=one.bias, scale=scaling)
        add_rows(sums[0], one.queries, found[0], distinct=True)
        add_rows(sums[1], one.keys, found[1], seen.distinct)
        add_rows(sums[2], one.keys, found[2], seen.distinct)


class GatheredAttention(torch.autograd.Function):
    """Softmax over the keys that each query sees; see `attend`. Batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, scaling: float, seen: Seen, query: Tensor, key: Tensor, value: Tensor):
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        total = query.new_empty(query.shape[:2], dtype=torch.float32)
        for rows in slices(len(query), AT_ONCE // query[0].numel()):
            source = side_by_side(key[rows], value[rows])
            out[rows], total[rows] = forward_of_rows(query[rows], source, seen, rows, scaling)
        ctx.save_for_backward(query, out, total, key, value)
        ctx.scaling, ctx.seen = scaling, seen
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, out, total, *given = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (query, *given)]
        out = without_log_sum(out, *upstream)
        for rows in slices(len(query), AT_ONCE // query[0].numel()):
            sides = side_by_side(query[rows], out[rows], upstream[0][rows])
            source, n = side_by_side(*(x[rows] for x in given)), rows.stop - rows.start
            sums = [x.new_zeros(n * x.shape[1] + 1, x.shape[2], dtype=torch.float32) for x in (query, *given)]
            log_sum = F.pad(total[rows].flatten(), (0, 1), value=-MASKED)  # an empty place gives no weight
            backward_of_rows(sides, log_sum, source, sums, ctx.seen, rows, ctx.scaling)
            for grad, found in zip(grads, sums, strict=True):
                grad[rows] = found[:-1].view(n, -1, found.shape[1])
        return None, None, *grads


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Seen, scaling: float) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees; see `dispatch.attend`."""
    rows = (x.flatten(0, 1) for x in (query, key, value))
    out, log_sum = GatheredAttention.apply(scaling, seen.flat(), *rows)
    return out.unflatten(0, query.shape[:2]), log_sum.unflatten(0, query.shape[:2])
