"""Parts of attention one after the other in torch's fused kernel: no scores are stored, forward or backward.

Every round of every part gathers its rows, and torch's own fused attention works inside the blocks and returns the
log-sum-exp of each query beside its output. What rounds and parts give is merged as it comes. In the backward pass the
fused backward is called block by block with the *merged* output and the *merged* log-sum-exp: the weight of a key is
then exp(score - log-sum-exp over everything the query sees), the one that it has in the whole softmax, so that the
blocks' gradients add up and the merge needs none of its own (as ring attention does, Liu et al. 2023).

torch's operators for this are private and are used here only; where they are missing, `attend_part` and `merge` do the
same in plain torch.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import AT_ONCE, MASKED, Blocks, slices
from albert_lsh.attention.compute.parts import Part

FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def is_available(query: Tensor, dropout: float) -> bool:
    """Whether the fused operators can do it: on a CPU, without dropout of attention weights."""
    return FORWARD is not None and BACKWARD is not None and query.device.type == "cpu" and dropout == 0


class Piece(NamedTuple):
    """Some blocks of a round: rows of flat tensors, one behind the last where a place is empty."""

    queries: Tensor  # (blocks, places), long
    keys: Tensor
    bias: Tensor | None  # (blocks, 1, queries or 1, keys) float32: hides empty places, and what the part hides
    number: int  # of the round


def pieces(part: Part, rows: slice, length: int, n_keys: int, dim: int) -> Iterator[Piece]:
    """The blocks of all rounds of a part for some rows (batch and heads are one), a few at a time."""
    n = rows.stop - rows.start
    row = torch.arange(n, device=part.blocks.key_index.device)[:, None, None]
    for number in range(part.blocks.key_index.shape[1]):
        queries, keys = (index[rows, number] for index in part.blocks)  # (n, blocks, places)
        for some in slices(keys.shape[1], AT_ONCE // (n * keys.shape[2] * dim)):
            query, key = queries[:, some], keys[:, some]
            no_query, no_key = query == length, key == n_keys
            bias = None if part.bias is None else part.bias.of(rows, number, some, query, key)
            if no_key.any():
                hidden = torch.zeros(key.shape, device=key.device).masked_fill(no_key, MASKED).unsqueeze(-2)
                bias = hidden if bias is None else (bias + hidden).clamp(min=MASKED)
            yield Piece(
                (query + row * length).masked_fill(no_query, n * length).flatten(0, 1),
                (key + row * n_keys).masked_fill(no_key, n * n_keys).flatten(0, 1),
                None if bias is None else bias.expand(*key.shape[:2], -1, -1).flatten(0, 1).unsqueeze(1),
                number,
            )


def side_by_side(*tensors: Tensor) -> Tensor:
    """(rows, places, dim) each as one flat tensor, the dims side by side, with a row of zeros behind the last.

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


def forward_of_rows(query: Tensor, sources: list[Tensor], parts: list[tuple[Part, int]], rows: slice, scaling: float):
    """Output and log-sum-exp, (n, length, dim) and (n, length) float32, of some rows.

    query: (n, length, dim); sources: keys and values, flat and side by side.
    """
    n, length, dim = query.shape
    flat, which_round = side_by_side(query), 0
    n_rounds = sum(part.blocks.key_index.shape[1] for part, _ in parts)
    total = query.new_full((n_rounds, n * length + 1), MASKED, dtype=torch.float32)
    out = query.new_zeros(n_rounds, n * length + 1, sources[0].shape[1] - dim, dtype=torch.float32)
    for part, which in parts:
        source = sources[which]
        for one in pieces(part, rows, length, (len(source) - 1) // n, source.shape[1]):
            k, v = gather(source, one.keys).split([dim, source.shape[1] - dim], dim=-1)
            found, log_sum = FORWARD(gather(flat, one.queries), k, v, attn_mask=one.bias, scale=scaling)
            index = one.queries.flatten()
            out[which_round + one.number].index_copy_(0, index, found.flatten(0, 2).float())
            total[which_round + one.number].index_copy_(0, index, log_sum.flatten())
        which_round += part.blocks.key_index.shape[1]
    if n_rounds > 1:
        every = total.logsumexp(0, keepdim=True)
        out, total = torch.einsum("rl,rld->ld", (total - every).exp_(), out)[None], every
    return out[0, :-1].view(n, length, -1), total[0, :-1].view(n, length)


def add_rows(place: Tensor, index: Tensor, rows: Tensor, distinct: bool) -> None:
    """Add rows (blocks, 1, places, dim) at index (blocks, places); faster where no row is added to twice."""
    index, rows = index.flatten(), rows.flatten(0, 2).float()
    if distinct:
        place.index_copy_(0, index, place.index_select(0, index).add_(rows))
    else:
        place.index_add_(0, index, rows)


def backward_of_rows(sides: Tensor, total: Tensor, sources, sums, parts, rows: slice, n: int, scaling: float) -> None:
    """Add the gradients of some rows to sums: of the query first, then of keys and values; flat, float32.

    sides: query, output and upstream gradient, flat and side by side; total: log-sum-exp; sources as forward.
    """
    length, dim = (len(sides) - 1) // n, sums[0].shape[1]
    for part, which in parts:
        source = sources[which]
        widths = [dim, source.shape[1] - dim]
        for one in pieces(part, rows, length, (len(source) - 1) // n, source.shape[1]):
            q, o, up = gather(sides, one.queries).split([dim, widths[1], widths[1]], dim=-1)
            k, v = gather(source, one.keys).split(widths, dim=-1)
            log_sum = total[one.queries].unsqueeze(1)
            found = BACKWARD(up, q, k, v, o, log_sum, 0.0, False, attn_mask=one.bias, scale=scaling)
            add_rows(sums[0], one.queries, found[0], distinct=True)
            add_rows(sums[1 + 2 * which], one.keys, found[1], part.distinct)
            add_rows(sums[2 + 2 * which], one.keys, found[2], part.distinct)


class FusedAttention(torch.autograd.Function):
    """Softmax over all keys that some parts show to a query; see `attend`. Batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, scaling: float, parts: list[tuple[Part, int]], query: Tensor, *given: Tensor):
        out = query.new_empty(*query.shape[:2], given[1].shape[-1])
        total = query.new_empty(query.shape[:2], dtype=torch.float32)
        for rows in slices(len(query), AT_ONCE // query[0].numel()):
            sources = [side_by_side(k[rows], v[rows]) for k, v in zip(given[::2], given[1::2], strict=True)]
            out[rows], total[rows] = forward_of_rows(query[rows], sources, parts, rows, scaling)
        ctx.save_for_backward(query, out, total, *given)
        ctx.scaling, ctx.parts = scaling, parts
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, out, total, *given = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (query, *given)]
        for rows in slices(len(query), AT_ONCE // query[0].numel()):
            sides = side_by_side(query[rows], out[rows], upstream[0][rows])
            sources = [side_by_side(k[rows], v[rows]) for k, v in zip(given[::2], given[1::2], strict=True)]
            n = rows.stop - rows.start
            sums = [x.new_zeros(n * x.shape[1] + 1, x.shape[2], dtype=torch.float32) for x in (query, *given)]
            log_sum = F.pad(total[rows].flatten(), (0, 1), value=-MASKED)  # an empty place gives no weight
            backward_of_rows(sides, log_sum, sources, sums, ctx.parts, rows, n, ctx.scaling)
            for grad, found in zip(grads, sums, strict=True):
                grad[rows] = found[:-1].view(n, -1, found.shape[1])
        return None, None, *grads


def attend(
    query: Tensor, sources: list[tuple[Tensor, Tensor]], parts: list[tuple[Part, int]], scaling: float
) -> tuple[Tensor, Tensor]:
    """Softmax over all keys that the parts show to a query.

    Args:
        query: (batch, heads, length, head_dim).
        sources: pairs of key and value, (batch, heads, n_keys, head_dim) each, that parts take from.
        parts: each with the number of its source.
    Returns:
        (batch, heads, length, head_dim) in query's dtype, and the log-sum-exp (batch, heads, length) of the scores,
        float32, about MASKED where a query sees no key, without gradient. Rows of padding are anything.
    """
    flat = [(one_batch(part), which) for part, which in parts]
    rows = [x.flatten(0, 1) for source in sources for x in source]
    found = FusedAttention.apply(scaling, flat, query.flatten(0, 1), *rows)
    out, log_sum = (x.unflatten(0, query.shape[:2]) for x in found)
    return out, log_sum


class MaskedAttention(torch.autograd.Function):
    """Softmax attention with a bias made again for every few rows, forward and backward; see `attend_masked`."""

    @staticmethod
    def forward(ctx: Any, scaling: float, bias_of: Callable[[slice], Tensor], query: Tensor, *given: Tensor):
        out = query.new_empty(*query.shape[:2], given[1].shape[-1])
        total = query.new_empty(query.shape[:2], dtype=torch.float32)
        for rows in slices(len(query), AT_ONCE // (query.shape[1] * given[0].shape[1])):
            q, k, v = (x[rows].unsqueeze(1) for x in (query, *given))
            found, log_sum = FORWARD(q, k, v, attn_mask=bias_of(rows).unsqueeze(1), scale=scaling)
            out[rows], total[rows] = found.squeeze(1), log_sum.squeeze(1)
        ctx.save_for_backward(query, *given, out, total)
        ctx.scaling, ctx.bias_of = scaling, bias_of
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in saved[:3]]
        for rows in slices(len(saved[0]), AT_ONCE // (saved[0].shape[1] * saved[1].shape[1])):
            up, q, k, v, out, total = (x[rows].unsqueeze(1) for x in (upstream[0], *saved))
            bias = ctx.bias_of(rows).unsqueeze(1)
            found = BACKWARD(up, q, k, v, out, total, 0.0, False, attn_mask=bias, scale=ctx.scaling)
            for grad, part in zip(grads, found, strict=True):
                grad[rows] = part.squeeze(1)
        return None, None, *grads


def attend_masked(query: Tensor, key: Tensor, value: Tensor, bias_of: Callable[[slice], Tensor], scaling: float):
    """Softmax over all keys, without their bias ever being there for more than a few rows at once.

    Args:
        query, key, value: (batch, heads, length or keys, head_dim).
        bias_of: gives that of some rows, batch and heads being one: (n, length, keys), float32, without gradient.
    Returns:
        (batch, heads, length, head_dim) in query's dtype.
    """
    rows = (x.flatten(0, 1) for x in (query, key, value))
    return MaskedAttention.apply(scaling, bias_of, *rows).unflatten(0, query.shape[:2])


def one_batch(part: Part) -> Part:
    """A part with batch and heads put into one."""
    queries, keys = part.blocks
    return part._replace(blocks=Blocks(queries.expand(*keys.shape[:3], -1, -1).flatten(0, 1), keys.flatten(0, 1)))
