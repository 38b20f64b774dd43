"""Attention of short sequences: all scores in one product, most of them masked, which beats gathering rows.

In the fused product the mask is the only matrix of length x length numbers, made again for every few rows, forward and
backward. It cannot drop weights, and in bfloat16 its backward is slow; `step_by_step` stores scores and weights, as the
attention of 2020 did.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.cpu import BACKWARD, FORWARD, without_log_sum
from albert_lsh.attention.rows import AT_ONCE, MASKED, products, refuse_second_derivative, slices
from albert_lsh.attention.seen import Seen


def mask_of(seen: Seen, rows: slice, length: int, n_keys: int) -> Tensor:
    """The bias of all pairs of some rows, batch and heads being one: (n, 1, length, n_keys), float32."""
    queries, keys = seen.queries[rows].unsqueeze(-1), seen.keys[rows].unsqueeze(-2)
    # The last row and the last column are those of no query and no key; they are cut off.
    bias = torch.full((len(keys), (length + 1) * (n_keys + 1)), MASKED, device=keys.device, dtype=torch.float32)
    index = (queries * (n_keys + 1) + keys).flatten(1)
    if seen.bias is None:
        bias.scatter_(1, index, 0.0)
    else:
        bias.scatter_(1, index, seen.bias[rows].unsqueeze(-2).expand(*queries.shape[:-1], -1).flatten(1))
    bias = bias.view(len(keys), 1, length + 1, n_keys + 1)[:, :, :length, :n_keys]
    if seen.others_only:
        bias.diagonal(dim1=-2, dim2=-1).fill_(MASKED)
    return bias


class MaskedAttention(torch.autograd.Function):
    """torch's fused attention under the bias of `mask_of`; see `attend`."""

    @staticmethod
    def forward(ctx: Any, scaling: float, seen: Seen, query: Tensor, *given: Tensor):
        out = query.new_empty(*query.shape[:2], given[1].shape[-1])
        total = query.new_empty(query.shape[:2], dtype=torch.float32)
        length, n_keys = query.shape[1], given[0].shape[1]
        for rows in slices(len(query), AT_ONCE // (length * n_keys)):
            q, k, v = (x[rows].unsqueeze(1) for x in (query, *given))
            bias = mask_of(seen, rows, length, n_keys)
            found, log_sum = FORWARD(q, k, v, attn_mask=bias, scale=scaling)
            out[rows], total[rows] = found.squeeze(1), log_sum.squeeze(1)
        ctx.save_for_backward(query, *given, out, total)
        ctx.scaling, ctx.seen = scaling, seen
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, out, total = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (query, key, value)]
        length, n_keys = query.shape[1], key.shape[1]
        up, out = upstream[0], without_log_sum(out, *upstream)
        for rows in slices(len(query), AT_ONCE // (length * n_keys)):
            one = [x[rows].unsqueeze(1) for x in (up, query, key, value, out, total)]
            bias = mask_of(ctx.seen, rows, length, n_keys)
            found = BACKWARD(*one, 0.0, False, attn_mask=bias, scale=ctx.scaling)
            for grad, part in zip(grads, found, strict=True):
                grad[rows] = part.squeeze(1)
        return None, None, *grads


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Seen, scaling: float) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees; see `dispatch.attend`. Each key weighs once."""
    rows = (x.flatten(0, 1).contiguous() for x in (query, key, value))  # the operators read garbage from other strides
    out, log_sum = MaskedAttention.apply(scaling, seen.flat(), *rows)
    return out.unflatten(0, query.shape[:2]), log_sum.unflatten(0, query.shape[:2])


def step_by_step(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, scaling: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """The same on every device, each step an operation of its own, which can also drop weights."""
    length, n_keys = query.shape[2], key.shape[2]
    bias = mask_of(seen.flat(), slice(None), length, n_keys).view(*query.shape[:2], length, n_keys)
    scores = products(query, key) * scaling + bias
    weights, best = scores.softmax(-1), scores.detach().argmax(-1, keepdim=True)
    log_sum = scores.gather(-1, best) - weights.gather(-1, best).log()  # on a CPU sooner than logsumexp
    return (F.dropout(weights, dropout).to(value.dtype) @ value).to(query.dtype), log_sum.squeeze(-1)
