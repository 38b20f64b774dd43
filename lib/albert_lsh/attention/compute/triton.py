"""A GPU that Triton knows: kernels that gather their rows from where they lie.

A program takes a tile of one block's queries and goes through the block's keys tile by tile, as FlashAttention 2 does
(Dao 2023, algorithms 1 and 2). The block's positions say where a tile's rows lie, as in the hash-sparse kernels of
Pagliardini et al. (2023), but nothing is copied into sorted order. Each round is one launch. Its softmax starts from
the output and the log-sum-exp of the rounds before, so that rounds need no merging; backward, with the merged output
and log-sum-exp, the rounds' gradients add up (ring attention, Liu et al. 2023). Besides the inputs, the output and
their gradients nothing in memory grows with length times head_dim: no sorted rows, no scores.

A position equal to the number of rows means "no token": it loads zeros and stores nothing. Rows are numbered in 64
bits, because row times width passes 2^31 in long batches. Tables of `Keys` that are None are compiled away.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from albert_lsh.attention.keys import Keys
from albert_lsh.attention.rows import MASKED

NOTHING = tl.constexpr(MASKED)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
# Queries and keys of a tile, warps, stages of the pipeline
TILES = [(16, 16, 2, 2), (32, 32, 4, 2), (16, 64, 4, 2), (32, 64, 4, 3), (64, 32, 4, 3)]
TILES += [(64, 64, 4, 2), (64, 64, 8, 2), (128, 64, 8, 2)]
CONFIGS = [
    triton.Config({"TILE_Q": q, "TILE_K": k}, num_warps=warps, num_stages=stages)
    for q, k, warps, stages in (TILES[1:2] if INTERPRETED.value else TILES)
]


def worth_trying(configs: list[Any], _: Any, **arguments: Any) -> list[Any]:
    """The configurations whose tiles a block can fill; small ones for float32, which goes without tensor cores."""
    most = 32 if arguments["query"].dtype.itemsize == 4 else 128
    most_q, most_k = (min(most, arguments[name]) for name in ("about_queries", "about_keys"))
    return [c for c in configs if c.kwargs["TILE_Q"] <= most_q and c.kwargs["TILE_K"] <= most_k]


def tuned(*accumulated: str) -> Any:
    """Autotuning of a kernel that adds to the tensors `accumulated`: they are put back after every trial."""
    return triton.autotune(
        CONFIGS,
        key=["about_queries", "about_keys", "DIM", "VALUE_DIM"],  # and, unasked, the dtypes of the tensors
        restore_value=list(accumulated),
        prune_configs_by={"early_config_prune": worth_trying},
    )


@triton.jit
def product(a, b):
    """a @ b, summed in float32.

    "ieee" is for float32 only: the tensor cores' format for it keeps ten bits, and results would not be those of the
    other backends. The interpreter multiplies the bits of bfloat16 as whole numbers, therefore float32 there.
    """
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def tile(number, query_places, n_clusters, TILE_Q: tl.constexpr):
    """What a program works on: row (batch and head), cluster, and the first of its queries' places."""
    tiles = tl.cdiv(query_places, TILE_Q)
    return number // tiles // n_clusters, number // tiles % n_clusters, number % tiles * TILE_Q


@triton.jit
def positions(index, block, place, places, nothing):
    """What stands in some places of a block, `nothing` behind its last."""
    return tl.load(index + block * places + place, mask=place < places, other=nothing)


@triton.jit
def load_rows(source, row, index, n, DIM: tl.constexpr, WIDE: tl.constexpr):
    """Rows of (rows, n, DIM) at index, as (places, WIDE), zeros where there are none; where they lie, and which are."""
    column = tl.arange(0, WIDE)
    at, real = (row * n + index)[:, None] * DIM + column, (index < n)[:, None] & (column < DIM)
    return tl.load(source + at, mask=real, other=0.0), at, real


@triton.jit
def tile_scores(q, k, at_query, at_key, row, scaling, q_table, k_table, length, n_rounds, OTHERS: tl.constexpr):
    """Scores of a tile; -inf where there is no key. at_query, at_key: positions of the tile's rows."""
    scores = product(q, tl.trans(k)) * scaling
    if q_table is not None:
        met = tl.zeros(scores.shape, tl.int32)
        for other in range(0, n_rounds):
            table = (row * n_rounds + other) * (length + 1)
            alike = tl.load(q_table + table + at_query)[:, None] == tl.load(k_table + table + at_key)[None, :]
            met += alike.to(tl.int32)
        scores -= tl.log(tl.maximum(met, 1).to(tl.float32))
    seen = (at_key < length)[None, :]
    if OTHERS:
        seen = seen & (at_query[:, None] != at_key[None, :])
    return tl.where(seen, scores, float("-inf"))


@tuned("out", "total")
@triton.jit(do_not_specialize=["number"])
def forward(
    query, key, value, out, total, queries, keys, q_table, k_table,
    scaling, number, length, n_rounds, n_clusters, query_places, key_places,
    about_queries, about_keys, OTHERS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    WIDE: tl.constexpr, VALUE_WIDE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Add the keys of a round to `out` and `total`, the softmax over the rounds before.

    A query stands in one place of a round, so no other program reads or writes its output meanwhile.
    """
    row, cluster, first = tile(tl.program_id(0).to(tl.int64), query_places, n_clusters, TILE_Q)
    block = (row * n_rounds + number) * n_clusters + cluster
    at_query = positions(queries, block, first + tl.arange(0, TILE_Q), query_places, length)
    real = at_query < length
    q, _at_q, _real_q = load_rows(query, row, at_query, length, DIM, WIDE)
    summed, at_o, real_o = load_rows(out, row, at_query, length, VALUE_DIM, VALUE_WIDE)
    highest = tl.load(total + row * length + at_query, mask=real, other=NOTHING)
    weight = tl.full((TILE_Q,), 1.0, tl.float32)  # of the sum, in units of exp(highest)
    for first_key in range(0, key_places, TILE_K):
        place = first_key + tl.arange(0, TILE_K)
        at_key = positions(keys, block, place, key_places, length)
        k, _at_k, _real_k = load_rows(key, row, at_key, length, DIM, WIDE)
        v, _at_v, _real_v = load_rows(value, row, at_key, length, VALUE_DIM, VALUE_WIDE)
        scores = tile_scores(q, k, at_query, at_key, row, scaling, q_table, k_table, length, n_rounds, OTHERS)
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrunk = tl.exp(highest - higher)
        weights = tl.exp(scores - higher[:, None])
        weight = weight * shrunk + tl.sum(weights, 1)
        summed = summed * shrunk[:, None] + product(weights.to(v.dtype), v)
        highest = higher
    tl.store(out + at_o, summed / weight[:, None], mask=real_o)
    tl.store(total + row * length + at_query, highest + tl.log(weight), mask=real)


@tuned("grad_q", "grad_k", "grad_v")
@triton.jit(do_not_specialize=["number"])
def backward(
    query, key, value, upstream, total, delta, grad_q, grad_k, grad_v,
    queries, keys, q_table, k_table,
    scaling, number, length, n_rounds, n_clusters, query_places, key_places,
    about_queries, about_keys, OTHERS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    WIDE: tl.constexpr, VALUE_WIDE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a round to grad_q, grad_k and grad_v.

    total: log-sum-exp over everything that a query sees; delta: the product of its output and upstream gradient.

    A query stands in one place of a round: its gradient is loaded, added to and stored. A key may stand in several
    blocks, and a block's queries in several tiles, so gradients of keys are added atomically. Their last bits differ
    from run to run, as with index_add_.
    """
    row, cluster, first = tile(tl.program_id(0).to(tl.int64), query_places, n_clusters, TILE_Q)
    block = (row * n_rounds + number) * n_clusters + cluster
    at_query = positions(queries, block, first + tl.arange(0, TILE_Q), query_places, length)
    real = at_query < length
    q, at_q, real_q = load_rows(query, row, at_query, length, DIM, WIDE)
    up, _at_o, _real_o = load_rows(upstream, row, at_query, length, VALUE_DIM, VALUE_WIDE)
    log_sum = tl.load(total + row * length + at_query, mask=real, other=float("inf"))  # no query: all weights are 0
    mean = tl.load(delta + row * length + at_query, mask=real, other=0.0)
    summed = tl.zeros((TILE_Q, WIDE), tl.float32)
    for first_key in range(0, key_places, TILE_K):
        place = first_key + tl.arange(0, TILE_K)
        at_key = positions(keys, block, place, key_places, length)
        k, at_k, real_k = load_rows(key, row, at_key, length, DIM, WIDE)
        v, at_v, real_v = load_rows(value, row, at_key, length, VALUE_DIM, VALUE_WIDE)
        scores = tile_scores(q, k, at_query, at_key, row, scaling, q_table, k_table, length, n_rounds, OTHERS)
        weights = tl.exp(scores - log_sum[:, None])
        grad_scores = weights * (product(up, tl.trans(v)) - mean[:, None])
        weights, grad_scores = weights.to(q.dtype), grad_scores.to(q.dtype)
        summed += product(grad_scores, k)
        more_k = product(tl.trans(grad_scores), q) * scaling
        tl.atomic_add(grad_k + at_k, more_k, mask=real_k, sem="relaxed")
        more_v = product(tl.trans(weights), up)
        tl.atomic_add(grad_v + at_v, more_v, mask=real_v, sem="relaxed")
    before = tl.load(grad_q + at_q, mask=real_q, other=0.0)
    tl.store(grad_q + at_q, before + summed * scaling, mask=real_q)


class Kernels:
    """Softmax over the keys that each query sees; batch and heads are one here. Rows of padding are zeros."""

    def __init__(self, keys: Keys, scaling: float):
        q_table, k_table = (table.contiguous() for table in keys.clusters) if keys.clusters else (None, None)
        queries, listed = keys.queries.contiguous(), keys.keys.contiguous()
        self.tables: dict[str, Any] = dict(queries=queries, keys=listed, q_table=q_table, k_table=k_table)
        self.others_only, self.scaling = keys.others_only, scaling

    def launch(self, kernel: Any, **tensors: Tensor) -> None:
        """The rounds one after the other: a query's sums go on from those of the round before."""
        (rows, n_rounds, n_clusters, places), key_places = self.tables["queries"].shape, self.tables["keys"].shape[3]
        (_, length, dim), value_dim = tensors["query"].shape, tensors["value"].shape[2]
        options = dict(
            scaling=self.scaling, length=length, n_rounds=n_rounds, n_clusters=n_clusters,
            query_places=places, key_places=key_places, about_queries=tuning_size(places),
            about_keys=tuning_size(key_places), OTHERS=self.others_only, DIM=dim, VALUE_DIM=value_dim,
            WIDE=max(16, triton.next_power_of_2(dim)), VALUE_WIDE=max(16, triton.next_power_of_2(value_dim)),
        )  # fmt: skip
        with torch.cuda.device_of(tensors["query"]):
            for number in range(n_rounds):
                programs = kernel[lambda tiles: (rows * n_clusters * -(-places // tiles["TILE_Q"]),)]
                programs(**tensors, **self.tables, **options, number=number)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out = query.new_zeros(*query.shape[:2], value.shape[-1], dtype=torch.float32)
        total = query.new_full(query.shape[:2], MASKED, dtype=torch.float32)
        self.launch(forward, query=query, key=key, value=value, out=out, total=total)
        return out.to(query.dtype), total

    def backward(self, query, key, value, up, total, delta) -> list[Tensor]:
        grad_q, grad_k, grad_v = sums = [torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value)]
        inputs = dict(query=query, key=key, value=value, upstream=up.contiguous(), total=total, delta=delta)
        self.launch(backward, **inputs, grad_q=grad_q, grad_k=grad_k, grad_v=grad_v)
        return [x.to(query.dtype) for x in sums]


def tuning_size(places: int) -> int:
    """The size of a block for the autotuner, which tunes once for sizes between the same powers of two."""
    return min(128, max(16, triton.next_power_of_2(places)))
