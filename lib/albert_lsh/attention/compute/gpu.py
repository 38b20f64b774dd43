"""Attention over the keys that are seen on a GPU: Triton kernels that gather their rows themselves.

Each round is one launch, and rounds follow one another. The backward pass is that of `cpu`: with the merged output and
the merged log-sum-exp the blocks' gradients add up (ring attention, Liu et al. 2023). Besides the inputs, the output
and their gradients nothing in memory grows with length times head_dim: no sorted rows, no scores. See `kernels`.
"""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.rows import MASKED, refuse_second_derivative
from albert_lsh.attention.seen import Seen

WIDEST = 128  # numbers in a row, at most; a narrower one is filled up to a power of two inside the kernels
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST = (8, 0)  # compute capability that Triton asks for; a T4 has 7.5
ON_CPU = False  # tests set it: tensors on the CPU too, which only Triton's interpreter (TRITON_INTERPRET=1) can do


@cache
def kernels() -> Any:
    """The module of the kernels; None without Triton, which torch brings along for CUDA only."""
    return import_module("albert_lsh.attention.compute.kernels") if find_spec("triton") else None


@cache
def warn_of(dim: int) -> None:
    """Say once that rows are too long."""
    warnings.warn(f"head dimension {dim} is above {WIDEST}: attention without Triton's kernels, slowly", stacklevel=4)


def is_available(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether the kernels can do it: on a GPU that Triton knows, without dropout of weights, rows not too long."""
    known = query.dtype in DTYPES and query.dtype == key.dtype == value.dtype
    placed = torch.cuda.get_device_capability(query.device) >= OLDEST if query.is_cuda else ON_CPU
    if dropout > 0 or not known or not placed or kernels() is None:
        return False
    widest = max(query.shape[-1], value.shape[-1])
    if widest > WIDEST:
        warn_of(widest)
    return widest <= WIDEST


def arguments(seen: Seen, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> dict[str, Any]:
    """The arguments of both kernels; batch and heads are one. Tables that are not there are None."""
    _, n_rounds, n_clusters, query_places = seen.queries.shape
    key_places, dim, value_dim = seen.keys.shape[3], query.shape[2], value.shape[2]
    of_query, of_key = seen.clusters or (None, None)
    tables = dict(queries=seen.queries, keys=seen.keys, of_query=of_query, of_key=of_key, bias=seen.bias)
    return {name: None if table is None else table.contiguous() for name, table in tables.items()} | dict(
        scaling=scaling, length=query.shape[1], n_keys=key.shape[1], n_rounds=n_rounds, n_clusters=n_clusters,
        query_places=query_places, key_places=key_places, about_queries=tuning_size(query_places),
        about_keys=tuning_size(key_places), OTHERS=seen.others_only, DIM=dim, VALUE_DIM=value_dim,
        WIDE=max(16, power_above(dim)), VALUE_WIDE=max(16, power_above(value_dim)),
    )  # fmt: skip


def power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def tuning_size(places: int) -> int:
    """The size of a block for the autotuner, which tunes once for sizes between the same powers of two."""
    return min(128, max(16, power_above(places)))


def launch(kernel: Any, given: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The rounds one after the other: a query's sums go on from those of the round before."""
    rows, n_rounds, n_clusters, places = given["queries"].shape
    with torch.cuda.device_of(tensors["query"]):
        for number in range(n_rounds):
            kernel[lambda tiles: (rows * n_clusters * -(-places // tiles["TILE_Q"]),)](
                **tensors, **given, number=number
            )


class GatheredAttention(torch.autograd.Function):
    """Softmax over the keys that each query sees; see `attend`. Batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, scaling: float, seen: Seen, *rows: Tensor):
        query, key, value = (x.contiguous() for x in rows)
        out = query.new_zeros(*query.shape[:2], value.shape[-1], dtype=torch.float32)
        total = query.new_full(query.shape[:2], MASKED, dtype=torch.float32)
        given = arguments(seen, query, key, value, scaling)
        launch(kernels().forward, given, dict(query=query, key=key, value=value, out=out, total=total))
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.given = given
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, of_log_sum: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, out, total = ctx.saved_tensors
        delta = (upstream.float() * out.float()).sum(-1)
        delta = delta if of_log_sum is None else delta - of_log_sum
        inputs = dict(query=query, key=key, value=value, upstream=upstream.contiguous(), total=total, delta=delta)
        sums = [torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value)]
        launch(kernels().backward, ctx.given, inputs | dict(zip(("of_q", "of_k", "of_v"), sums, strict=True)))
        return None, None, *(x.to(query.dtype) for x in sums)


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Seen, scaling: float) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees; see `dispatch.attend`. Rows of padding are zeros."""
    rows = (x.flatten(0, 1) for x in (query, key, value))
    out, log_sum = GatheredAttention.apply(scaling, seen.flat(), *rows)
    return out.unflatten(0, query.shape[:2]), log_sum.unflatten(0, query.shape[:2])
