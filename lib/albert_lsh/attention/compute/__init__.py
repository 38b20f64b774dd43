"""Attention over chosen keys: one door, behind which the fastest way is taken that device and settings allow.

masked      short sequences: all scores, most of them masked
grouped     clusters of keys on a CPU: one cluster at a time, with all queries that chose it
gathered    every device, dtype and dropout: the rows of the keys seen, block by block
triton      a GPU that Triton knows: kernels that gather their rows themselves
"""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.clusters import Clusters
from albert_lsh.attention.compute.gathered import Gathered
from albert_lsh.attention.compute.grouped import Grouped
from albert_lsh.attention.compute.masked import Masked, MaskedClusters
from albert_lsh.attention.keys import Keys, is_in_cache, refuse_second_derivative

# Computing all scores and masking most of them is faster than gathering keys in sequences of up to MASKED_LENGTH
# tokens, and where each query has a list of its own with more than 1 / MASKED_PART of the keys (measured on a CPU).
MASKED_LENGTH = 512
MASKED_PART = 8
# Clusters are computed one at a time if there are at most sqrt(MOST_GROUPED * length): a table has them by queries.
MOST_GROUPED = 16

WIDEST = 128  # numbers in a row that the kernels take; a narrower one is filled up to a power of two inside of them
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST = (8, 0)  # compute capability that Triton asks for; a T4 has 7.5
KERNELS_ON_CPU = False  # tests set it: tensors on the CPU too, which only Triton's interpreter can do


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Keys | Clusters, *, scaling: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees.

    Args:
        query, key, value: (batch, heads, length, head_dim).
        keys: which keys each query sees.
        scaling: factor of the scores. dropout: probability with which an attention weight is dropped.
    Returns:
        (batch, heads, length, head_dim) in query's dtype, and the log-sum-exp (batch, heads, length) of the scores,
        float32. Both have gradients. Rows of padding are undefined.
    """
    if isinstance(keys, Clusters):
        if are_grouped(query, key, value, keys, dropout):
            return compute(Grouped(keys, scaling, dropout), query, key, value)
        keys = keys.lists()
    if can_use_kernels(query, key, value, dropout) and not keys.earlier_only:
        way = import_module("albert_lsh.attention.compute.triton").Kernels(keys.flat(), scaling)
    else:
        way = (Masked if is_short(keys, query.shape[2]) else Gathered)(keys.flat(), scaling, dropout)
    return compute(way, query, key, value)


def attend_with_mean(query, key, value, keys, mask: Tensor, *, scaling: float, dropout: float = 0.0) -> Tensor:
    """`attend` with one key more for each query, the mean of those that it does not see; the output alone.

    mask: (batch, heads, length) bool, True where there is a token. keys and values are zeros elsewhere.
    """
    clusters = keys if isinstance(keys, Clusters) else None
    if clusters is not None:
        if are_grouped(query, key, value, clusters, dropout):
            return compute(Grouped(clusters, scaling, dropout, with_mean=True), query, key, value)[0]
        if query.shape[2] <= MASKED_LENGTH:
            return compute(MaskedClusters(clusters, scaling, dropout), query, key, value)[0]
        keys = clusters.lists()
    out, log_sum = attend(query, key, value, keys, scaling=scaling, dropout=dropout)
    k, v = key.float(), value.float()
    means = mean_unseen(k, v, keys, mask) if clusters is None else clusters.mean_unseen(k, v)
    return with_mean_key(query, out, log_sum, *means, scaling)


def are_grouped(query: Tensor, key: Tensor, value: Tensor, clusters: Clusters, dropout: float) -> bool:
    """Whether clusters are computed one at a time: large ones of long sequences, on a CPU, without Triton's kernels."""
    length, count = query.shape[2], clusters.members.shape[2]
    few = length > MASKED_LENGTH and count**2 <= MOST_GROUPED * length
    return few and is_in_cache(query.device) and not can_use_kernels(query, key, value, dropout)


def is_short(keys: Keys, length: int) -> bool:
    """Whether all scores are computed, and most of them masked."""
    each_once = keys.clusters is not None or keys.queries.shape[2] == 1
    many = keys.queries.shape[-1] == 1 and keys.keys.shape[-1] * MASKED_PART > length
    return each_once and (many or length <= MASKED_LENGTH)


def compute(way: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, computed in this way."""
    rows = [x.flatten(0, 1).contiguous() for x in (query, key, value)]
    with torch.autocast(query.device.type, enabled=False):
        out, log_sum = ChosenAttention.apply(way, *rows)
    return out.unflatten(0, query.shape[:2]), log_sum.unflatten(0, query.shape[:2])


class ChosenAttention(torch.autograd.Function):
    """Softmax over the keys that each query sees, and its log-sum-exp; batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, way: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, total = way.forward(query, key, value)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.way = way
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, up: Tensor | None, of_total: Tensor | None) -> tuple[Tensor | None, ...]:
        """A way needs `delta`, upstream gradient times output, less the gradient of the log-sum-exp."""
        refuse_second_derivative()
        query, key, value, out, total = ctx.saved_tensors
        up = torch.zeros_like(out) if up is None else up
        delta = (up.float() * out.float()).sum(-1)
        delta = delta if of_total is None else delta - of_total
        return None, *ctx.way.backward(query, key, value, up, total, delta)


def can_use_kernels(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether Triton's kernels can do it: on a GPU that Triton knows, without dropout of weights, rows not too long."""
    known = query.dtype in KERNEL_DTYPES and query.dtype == key.dtype == value.dtype
    placed = torch.cuda.get_device_capability(query.device) >= OLDEST if query.is_cuda else KERNELS_ON_CPU
    if dropout > 0 or not known or not placed or not has_triton():
        return False
    widest = max(query.shape[-1], value.shape[-1])
    if widest > WIDEST:
        warn_of(widest)
    return widest <= WIDEST


@cache
def has_triton() -> bool:
    """torch brings it along for CUDA only."""
    return find_spec("triton") is not None


@cache
def warn_of(dim: int) -> None:
    """Say once that rows are too long."""
    warnings.warn(f"head dimension {dim} is above {WIDEST}: attention without Triton's kernels, slowly", stacklevel=4)


def with_mean_key(query, out, log_sum, mean_key, mean_value, count, scaling: float) -> Tensor:
    """The output of `attend` with one key more for each query, the mean of `count` keys, all of which it stands for.

    It has the mean of their values, and the logarithm of their number is added to its score.

    Args:
        mean_key, mean_value: (batch, heads, length or 1, head_dim). count: (batch, heads, length or 1).
    """
    score = (query.float() * mean_key).sum(-1) * scaling + count.clamp(min=1).log()
    weight = torch.sigmoid(score - log_sum).masked_fill(count == 0, 0.0).unsqueeze(-1)
    return torch.lerp(out.float(), mean_value, weight).to(query.dtype)


def mean_unseen(key: Tensor, value: Tensor, keys: Keys, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean key and value (batch, heads, length, head_dim) and number (batch, heads, length) of the keys not seen.

    key, value: float32, zeros in padding. mask: (batch, heads, length) bool, True where there is a token.
    """
    # Attention with queries of zero weighs all keys alike: it gives the mean of what is seen, and how much that is.
    zeros = torch.zeros_like(key)
    seen_keys, log_count = attend(zeros, key, key, keys, scaling=1.0)
    seen_values, _ = attend(zeros, key, value, keys, scaling=1.0)
    seen_count = log_count.detach().exp().round().unsqueeze(-1)
    count = mask.sum(-1)[..., None, None] - seen_count
    of_keys, of_values = (
        (rows.sum(2, keepdim=True) - seen * seen_count) / count.clamp(min=1)
        for rows, seen in ((key, seen_keys), (value, seen_values))
    )
    return of_keys, of_values, count.clamp(min=0).squeeze(-1)
