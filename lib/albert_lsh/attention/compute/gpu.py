"""Parts of attention on a GPU: Triton kernels that gather their rows themselves, forward and backward.

Rounds and parts follow one another as in `cpu`, and the backward pass is the same: with the merged output and the
merged log-sum-exp the blocks' gradients add up (ring attention, Liu et al. 2023). Here each round is one launch, and
beside the inputs, the output and their gradients there is nothing in memory that grows with the length: no rows in
sorted order, no scores, no biases. See `kernels`.
"""

import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.compute.blocks import MASKED
from albert_lsh.attention.compute.cpu import one_batch
from albert_lsh.attention.compute.parts import Bias, Part

WIDEST = 128  # numbers of a row, at most; a narrower one is filled up to a power of two inside the kernels
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


def is_available(query: Tensor, sources: list[tuple[Tensor, Tensor]], dropout: float) -> bool:
    """Whether the kernels can do it: on a GPU that Triton knows, without dropout of weights, rows not too long."""
    rows = [query, *(x for source in sources for x in source)]
    known = query.dtype in DTYPES and all(x.dtype == query.dtype for x in rows)
    placed = torch.cuda.get_device_capability(query.device) >= OLDEST if query.is_cuda else ON_CPU
    if dropout > 0 or not known or not placed or kernels() is None:
        return False
    widest = max(x.shape[-1] for x in rows)
    if widest > WIDEST:
        warn_of(widest)
    return widest <= WIDEST


def arguments(part: Part, query: Tensor, value: Tensor, n_keys: int, scaling: float) -> dict[str, Any]:
    """What both kernels are told of a part whose batch and heads are one; None for tables that it does not have."""
    (queries, keys), bias, _ = part
    _, n_rounds, n_clusters, query_places = queries.shape
    key_places, dim, value_dim = keys.shape[3], query.shape[2], value.shape[2]
    bias = Bias() if bias is None else bias
    of_query, of_key = bias.clusters or (None, None)
    window = bias.window
    counted = bias.number_in if window is not None else None
    position, start, width = window or (None, None, None)
    tables = dict(
        queries=queries, keys=keys, of_query=of_query, of_key=of_key, position=position, start=start, width=width,
        left=bias.left, number_in=counted,
    )  # fmt: skip
    return {name: None if table is None else table.contiguous() for name, table in tables.items()} | dict(
        scaling=scaling, length=query.shape[1], n_keys=n_keys, n_rounds=n_rounds, n_clusters=n_clusters,
        query_places=query_places, key_places=key_places, n_numbers=0 if counted is None else counted.shape[1],
        about_queries=about(query_places), about_keys=about(key_places), OWN=bias.own, BEYOND=bias.beyond,
        DIM=dim, VALUE_DIM=value_dim, WIDE=max(16, power_above(dim)), VALUE_WIDE=max(16, power_above(value_dim)),
    )  # fmt: skip


def power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def about(places: int) -> int:
    """The size of a block for the autotuner, which tunes once for sizes between the same powers of two."""
    return min(128, max(16, power_above(places)))


def launch(kernel: Any, given: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The rounds of a part one after the other, as a query's sums are those of the round before."""
    rows, n_rounds, n_clusters, places = given["queries"].shape
    for number in range(n_rounds):
        kernel[lambda tiles: (rows * n_clusters * -(-places // tiles["TILE_Q"]),)](**tensors, **given, number=number)


class GatheredAttention(torch.autograd.Function):
    """Softmax over all keys that some parts show to a query; see `attend`. Batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, scaling: float, parts: list[tuple[Part, int]], query: Tensor, *rows: Tensor):
        query, rows = query.contiguous(), tuple(x.contiguous() for x in rows)
        out = query.new_zeros(*query.shape[:2], rows[1].shape[-1], dtype=torch.float32)
        total = query.new_full(query.shape[:2], MASKED, dtype=torch.float32)
        given = [arguments(part, query, rows[2 * n + 1], rows[2 * n].shape[1], scaling) for part, n in parts]
        with torch.cuda.device_of(query):
            for (_, n), one in zip(parts, given, strict=True):
                tensors = dict(query=query, key=rows[2 * n], value=rows[2 * n + 1], out=out, total=total)
                launch(kernels().forward, one, tensors)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, out, total, *rows)
        ctx.given, ctx.sources = given, [n for _, n in parts]
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, out, total, *rows = ctx.saved_tensors
        delta = (upstream[0].float() * out.float()).sum(-1)
        sums = [torch.zeros_like(x, dtype=torch.float32) for x in (query, *rows)]
        with torch.cuda.device_of(query):
            for n, one in zip(ctx.sources, ctx.given, strict=True):
                inputs = dict(query=query, key=rows[2 * n], value=rows[2 * n + 1], upstream=upstream[0].contiguous())
                grads = dict(of_q=sums[0], of_k=sums[2 * n + 1], of_v=sums[2 * n + 2])
                launch(kernels().backward, one, inputs | grads | dict(total=total, delta=delta))
        return None, None, *(x.to(query.dtype) for x in sums)


def attend(
    query: Tensor, sources: list[tuple[Tensor, Tensor]], parts: list[tuple[Part, int]], scaling: float
) -> tuple[Tensor, Tensor]:
    """Softmax over all keys that the parts show to a query; arguments and results are those of `cpu.attend`.

    Rows of padding are zeros, and the log-sum-exp is MASKED where a query sees no key.
    """
    flat = [(one_batch(part), which) for part, which in parts]
    rows = [x.flatten(0, 1) for source in sources for x in source]
    found = GatheredAttention.apply(scaling, flat, query.flatten(0, 1), *rows)
    out, log_sum = (x.unflatten(0, query.shape[:2]) for x in found)
    return out, log_sum
