"""Parts of attention one after the other in torch's fused kernel: no scores are stored, forward or backward.

Every round of every part gathers its rows, and torch's own fused attention works inside the blocks and returns the
log-sum-exp of each query beside its output. What rounds and parts give is merged as it comes. In the backward pass the
fused backward is called block by block with the *merged* output and the *merged* log-sum-exp: the weight of a key is
then exp(score - log-sum-exp over everything the query sees), the one that it has in the whole softmax, so that the
blocks' gradients add up and the merge needs none of its own (as ring attention does, Liu et al. 2023).

torch's operators for this are private and are used here only; where they are missing, `attend_part` and `merge` do the
same in plain torch.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention.clusters import AT_ONCE, MASKED, Blocks, slices
from albert_lsh.attention.parts import Part

FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def is_available(query: Tensor, dropout: float) -> bool:
    """Whether the fused operators can do it: on a CPU, without dropout of attention weights."""
    return FORWARD is not None and BACKWARD is not None and query.device.type == "cpu" and dropout == 0


class Shown(NamedTuple):
    """One round of a part, of some heads; positions are row numbers in a flat tensor, 0 where a place is empty."""

    queries: Tensor  # (clusters, places), long
    keys: Tensor
    no_query: Tensor | None  # (clusters, 1, places) bool; None where no place is empty
    bias: Tensor | None  # (clusters, 1, queries or 1, keys) float32: hides empty places, and what the part hides


def shown(part: Part, heads: slice, number: int, length: int, n_keys: int) -> Shown:
    """Round `number` of a part whose batch and heads are one, for some of them."""
    queries, keys = (index[heads, number] for index in part.blocks)  # (heads, clusters, places)
    no_query, no_key = queries == length, keys == n_keys
    bias = None if part.bias is None else part.bias.of(heads, number, queries, keys)
    if no_key.any():
        bias = torch.zeros(1, 1, 1, 1, device=keys.device) if bias is None else bias
        bias = bias.masked_fill(no_key.unsqueeze(-2), MASKED)
    if bias is not None:
        bias = bias.expand(*keys.shape[:2], *bias.shape[2:])
    first = torch.arange(len(keys), device=keys.device)[:, None, None]
    return Shown(
        (queries.masked_fill(no_query, 0) + first * length).flatten(0, 1),
        (keys.masked_fill(no_key, 0) + first * n_keys).flatten(0, 1),
        no_query.flatten(0, 1).unsqueeze(1) if no_query.any() else None,
        None if bias is None else bias.flatten(0, 1).unsqueeze(1).float(),
    )


def gather(rows: Tensor, index: Tensor) -> Tensor:
    """Rows of (..., dim), flat, at (clusters, places), for the operators: (clusters, 1, places, dim)."""
    found = rows.reshape(-1, rows.shape[-1]).index_select(0, index.flatten())
    return found.view(len(index), 1, -1, rows.shape[-1])


def forward_of_heads(query: Tensor, sources: list[Tensor], parts: list[tuple[Part, int]], heads: slice, scaling: float):
    """Output and log-sum-exp, (heads, length, dim) and (heads, length) float32, of some heads.

    query: (heads, length, dim); sources: keys and values side by side, (heads, n_keys, dim + value_dim).
    """
    length, dim = query.shape[1:]
    total, out = query.new_full(query.shape[:2], MASKED, dtype=torch.float32), torch.zeros(())
    for part, which in parts:
        source = sources[which]
        for number in range(part.blocks.key_index.shape[1]):
            one = shown(part, heads, number, length, source.shape[1])
            k, v = gather(source, one.keys).split([dim, source.shape[-1] - dim], dim=-1)
            found, log_sum = FORWARD(gather(query, one.queries), k, v, attn_mask=one.bias, scale=scaling)
            slot = slot_of_query(one, total.numel())
            found = found.flatten(0, 2).index_select(0, slot).view(*total.shape, -1).float()
            log_sum = log_sum.flatten()[slot].view_as(total)
            merged = torch.logaddexp(total, log_sum)
            out = out * (total - merged).exp_().unsqueeze(-1) + found.mul_((log_sum - merged).exp_().unsqueeze(-1))
            total = merged
    return out, total


def slot_of_query(one: Shown, n_queries: int) -> Tensor:
    """Where each query stands among the places of a round: (n_queries,), long; anything for one that does not."""
    index = one.queries if one.no_query is None else one.queries.masked_fill(one.no_query[:, 0], n_queries)
    place = torch.arange(index.numel(), device=index.device)
    return place.new_zeros(n_queries + 1).scatter_(0, index.flatten(), place)[:n_queries]


def backward_of_heads(sides, total, sources, sums, parts, heads: slice, dim: int, scaling: float) -> None:
    """Add the gradients of some heads to sums: of the query first, then of each source, all (heads, rows, ...) float32.

    sides: query, output and upstream gradient side by side; total: log-sum-exp; sources as in `forward_of_heads`.
    """
    length = sides.shape[1]
    for part, which in parts:
        source = sources[which]
        widths = [dim, source.shape[-1] - dim]
        for number in range(part.blocks.key_index.shape[1]):
            one = shown(part, heads, number, length, source.shape[1])
            q, o, up = gather(sides, one.queries).split([dim, widths[1], widths[1]], dim=-1)
            k, v = gather(source, one.keys).split(widths, dim=-1)
            log_sum = total.flatten()[one.queries].unsqueeze(1)
            if one.no_query is not None:  # gives nothing: no gradient arrives, and all its weights are 0
                up, log_sum = up.masked_fill(one.no_query.unsqueeze(-1), 0), log_sum.masked_fill(one.no_query, -MASKED)
            of_q, of_k, of_v = BACKWARD(
                up, q, k, v, o, log_sum, 0.0, False, attn_mask=one.bias, scale=scaling
            )  # fmt: skip
            for place, grad, index in (
                (sums[0], of_q, one.queries),
                (sums[1 + which], torch.cat([of_k, of_v], dim=-1), one.keys),
            ):
                place.view(-1, place.shape[-1]).index_add_(0, index.flatten(), grad.flatten(0, 2).float())


class FusedAttention(torch.autograd.Function):
    """Softmax over all keys that some parts show to a query; see `attend`. Batch and heads are one here.

    Rows that are gathered at the same places lie side by side, query with output and upstream gradient, key with value:
    gathering takes as much time as arithmetic, and one long row is faster than several short ones.
    """

    @staticmethod
    def forward(ctx: Any, scaling: float, parts: list[tuple[Part, int]], query: Tensor, *rows: Tensor):
        sources = [torch.cat(pair, dim=-1) for pair in zip(rows[::2], rows[1::2], strict=True)]
        out = query.new_empty(*query.shape[:2], rows[1].shape[-1])
        total = query.new_empty(query.shape[:2], dtype=torch.float32)
        for heads in slices(len(query), AT_ONCE // query[0].numel()):
            some = [source[heads] for source in sources]
            out[heads], total[heads] = forward_of_heads(query[heads], some, parts, heads, scaling)
        ctx.save_for_backward(query, out, total, *rows)
        ctx.scaling, ctx.parts = scaling, parts
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, out, total, *rows = ctx.saved_tensors
        dim, grads = query.shape[-1], [torch.empty_like(x) for x in (query, *rows)]
        for heads in slices(len(query), AT_ONCE // query[0].numel()):
            sides = torch.cat([x[heads] for x in (query, out, upstream[0])], dim=-1)
            sources = [torch.cat([k[heads], v[heads]], -1) for k, v in zip(rows[::2], rows[1::2], strict=True)]
            sums = [torch.zeros_like(x, dtype=torch.float32) for x in (query[heads], *sources)]
            backward_of_heads(sides, total[heads], sources, sums, ctx.parts, heads, dim, ctx.scaling)
            grads[0][heads] = sums[0]
            for number, of_source in enumerate(sums[1:]):
                grads[1 + 2 * number][heads], grads[2 + 2 * number][heads] = of_source[..., :dim], of_source[..., dim:]
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


def one_batch(part: Part) -> Part:
    """A part with batch and heads put into one."""
    (queries, keys), bias = part
    return Part(Blocks(queries.expand(*keys.shape[:3], -1, -1).flatten(0, 1), keys.flatten(0, 1)), bias)
