"""Softmax over the keys that each query sees. `attend` is the door; `pick` chooses the backend behind it.

    masked      all scores in one product, most of them masked: the fastest for short sequences
    grouped     `ClusterKeys` of long sequences on a CPU: one cluster at a time, with all queries that chose it
    gathered    every device, dtype and dropout: the rows of the keys seen, block by block
    triton      a GPU that Triton knows: kernels that gather their rows themselves

`mean_key` merges one key more into what they give, the mean of the keys that a query does not see; `grouped` does so
itself.
"""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from albert_lsh.attention.compute.gathered import Gathered
from albert_lsh.attention.compute.grouped import Grouped
from albert_lsh.attention.compute.masked import Masked
from albert_lsh.attention.compute.mean_key import MeanKey, with_mean_key
from albert_lsh.attention.keys import ClusterKeys, Keys
from albert_lsh.attention.rows import is_in_cache, refuse_second_derivative

# Computing all scores and masking most of them is faster than gathering keys in sequences of up to MASKED_LENGTH
# tokens, and where each query has a list of its own with more than 1 / MASKED_PART of the keys (measured on a CPU).
MASKED_LENGTH = 512
MASKED_PART = 8
# Clusters are computed one at a time if there are at most sqrt(MOST_GROUPED * length): which query chose which is a
# table of queries by clusters.
MOST_GROUPED = 16

WIDEST = 128  # numbers in a row that the kernels take; a narrower one is filled up to a power of two inside of them
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST = (8, 0)  # compute capability that Triton asks for; a T4 has 7.5
KERNELS_ON_CPU = False  # tests set it: tensors on the CPU too, which only Triton's interpreter can do


class Backend(Protocol):
    """How the softmax over some keys is computed; batch and heads are one dimension here."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output (rows, length, dim) and log-sum-exp (rows, length), of tensors (rows, length, dim)."""

    def backward(
        self, query: Tensor, key: Tensor, value: Tensor, up: Tensor, total: Tensor, delta: Tensor
    ) -> list[Tensor]:
        """Gradients of query, key and value.

        up: of the output. total: the log-sum-exp. delta: (rows, length), up times output, less the gradient of total.
        """


def attend(
    query: Tensor, key: Tensor, value: Tensor, keys: Keys | ClusterKeys, *, scaling: float, dropout: float = 0.0
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
    return compute(pick(query, key, value, keys, scaling, dropout), query, key, value)


def compute(backend: Backend, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """What `attend` returns, by a backend."""
    rows = [x.flatten(0, 1).contiguous() for x in (query, key, value)]
    with torch.autocast(query.device.type, enabled=False):
        out, log_sum = SparseSoftmax.apply(backend, *rows)
    return out.unflatten(0, query.shape[:2]), log_sum.unflatten(0, query.shape[:2])


def pick(
    query: Tensor, key: Tensor, value: Tensor, keys: Keys | ClusterKeys, scaling: float, dropout: float,
    has_mean_key: bool = False,
) -> Backend:  # fmt: skip
    """The fastest backend that device, dtype, length and keys allow. has_mean_key: `Grouped` computes it too."""
    kernels = can_use_kernels(query, key, value, dropout)
    if isinstance(keys, ClusterKeys):
        length, count = query.shape[2], keys.members.shape[2]
        few = length > MASKED_LENGTH and count**2 <= MOST_GROUPED * length
        if few and is_in_cache(query.device) and not kernels:
            return Grouped(keys, scaling, dropout, has_mean_key)
        keys = keys.lists()
    if kernels and not keys.earlier_only:
        return import_module("albert_lsh.attention.compute.triton").Kernels(keys.flat(), scaling)
    return (Masked if is_short(keys, query.shape[2]) else Gathered)(keys.flat(), scaling, dropout)


def is_short(keys: Keys, length: int) -> bool:
    """Whether all scores are computed, and most of them masked."""
    each_once = keys.clusters is not None or keys.queries.shape[2] == 1
    many = keys.queries.shape[-1] == 1 and keys.keys.shape[-1] * MASKED_PART > length
    return each_once and (many or length <= MASKED_LENGTH)


class SparseSoftmax(torch.autograd.Function):
    """Output and log-sum-exp of a backend, with the gradients of both; batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, total = backend.forward(query, key, value)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.backend = backend
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, up: Tensor | None, grad_total: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, out, total = ctx.saved_tensors
        up = torch.zeros_like(out) if up is None else up
        delta = (up.float() * out.float()).sum(-1)
        delta = delta if grad_total is None else delta - grad_total
        return None, *ctx.backend.backward(query, key, value, up, total, delta)


def attend_with_mean(query, key, value, keys, mask: Tensor, *, scaling: float, dropout: float = 0.0) -> Tensor:
    """`attend` with one key more for each query, the mean of those that it does not see; the output alone.

    mask: (batch, heads, length) bool, True where there is a token. keys and values are zeros elsewhere.
    """
    backend = pick(query, key, value, keys, scaling, dropout, has_mean_key=True)
    out, log_sum = compute(backend, query, key, value)
    if isinstance(backend, Grouped):
        return out
    with torch.autocast(query.device.type, enabled=False):  # sums of many keys are float32
        return with_mean_key(query, out, log_sum, mean_unseen(key.float(), value.float(), keys, mask), scaling)


def mean_unseen(key: Tensor, value: Tensor, keys: Keys | ClusterKeys, mask: Tensor) -> MeanKey:
    """The mean of the keys that each query does not see. key, value: float32, zeros in padding."""
    if isinstance(keys, ClusterKeys):
        rows = torch.cat([key, value, mask.unsqueeze(-1).to(key.dtype)], dim=-1)  # the sum of ones is their number
        key_sum, value_sum, count = keys.sum_unseen(rows).split([key.shape[-1], value.shape[-1], 1], dim=-1)
    else:
        # With scores of zero all keys weigh alike: attention gives the mean of what is seen, and how much that is.
        zeros = torch.zeros_like(key[..., :1])
        key_seen, log_count = attend(zeros, zeros, key, keys, scaling=1.0)
        value_seen, _ = attend(zeros, zeros, value, keys, scaling=1.0)
        seen = log_count.detach().exp().round().unsqueeze(-1)  # (batch, heads, length, 1)
        count = (mask.sum(-1)[..., None, None] - seen).clamp(min=0)
        key_sum, value_sum = (x.sum(2, keepdim=True) - m * seen for x, m in ((key, key_seen), (value, value_seen)))
    return MeanKey(key_sum / count.clamp(min=1), value_sum / count.clamp(min=1), count.squeeze(-1))


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
