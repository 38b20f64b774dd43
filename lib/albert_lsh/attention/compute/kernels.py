"""Triton kernels for `gpu`: one round, forward and backward, rows read from where they lie.

A program takes a tile of one block's queries and goes through the block's keys tile by tile, as FlashAttention 2 does
(Dao 2023, algorithms 1 and 2). The block's positions say where a tile's rows lie, as in the hash-sparse kernels of
Pagliardini et al. (2023), but nothing is copied into sorted order. The softmax of a round starts from the output and
the log-sum-exp of the rounds before, so that rounds need no merging.

A position equal to the number of rows means "no token": it loads zeros and stores nothing. Rows are numbered in 64
bits, because row times width passes 2^31 in long batches. Tables of `seen.Seen` that are None are compiled away.
"""

from typing import Any

import triton
import triton.language as tl

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
    other ways. The interpreter multiplies the bits of bfloat16 as whole numbers, therefore float32 there.
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
def rows_at(row, index, n, DIM: tl.constexpr, WIDE: tl.constexpr):
    """Where the rows at index are in (rows, n, DIM), as (places, WIDE), and which of these numbers there are."""
    column = tl.arange(0, WIDE)
    return (row * n + index)[:, None] * DIM + column, (index < n)[:, None] & (column < DIM)


@triton.jit
def tile_scores(q, k, at_query, at_key, place, row, block, scaling, tables, sizes, OTHERS: tl.constexpr):
    """Scores of a tile with the bias of `seen.Seen`; -inf where there is no key or its bias is MASKED.

    at_query, at_key: positions of the tile's rows; place: places of its keys in their block.
    """
    of_query, of_key, bias = tables
    length, n_keys, n_rounds, key_places = sizes
    scores = product(q, tl.trans(k)) * scaling
    if bias is not None:
        scores += tl.load(bias + block * key_places + place, mask=place < key_places, other=NOTHING)[None, :]
    if of_query is not None:
        met = tl.zeros(scores.shape, tl.int32)
        for other in range(0, n_rounds):
            one = (row * n_rounds + other) * (length + 1)
            alike = tl.load(of_query + one + at_query)[:, None] == tl.load(of_key + one + at_key)[None, :]
            met += alike.to(tl.int32)
        scores -= tl.log(tl.maximum(met, 1).to(tl.float32))
    seen = (at_key < n_keys)[None, :] & (scores > NOTHING / 2)
    if OTHERS:
        seen = seen & (at_query[:, None] != at_key[None, :])
    return tl.where(seen, scores, float("-inf"))


@tuned("out", "total")
@triton.jit(do_not_specialize=["number"])
def forward(
    query, key, value, out, total, queries, keys, of_query, of_key, bias,
    scaling, number, length, n_keys, n_rounds, n_clusters, query_places, key_places,
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
    at_q, real_q = rows_at(row, at_query, length, DIM, WIDE)
    at_o, real_o = rows_at(row, at_query, length, VALUE_DIM, VALUE_WIDE)
    q = tl.load(query + at_q, mask=real_q, other=0.0)
    found = tl.load(out + at_o, mask=real_o, other=0.0)
    highest = tl.load(total + row * length + at_query, mask=real, other=NOTHING)
    weight = tl.full((TILE_Q,), 1.0, tl.float32)  # of what was found, in units of exp(highest)
    tables = of_query, of_key, bias
    sizes = length, n_keys, n_rounds, key_places
    for first_key in range(0, key_places, TILE_K):
        place = first_key + tl.arange(0, TILE_K)
        at_key = positions(keys, block, place, key_places, n_keys)
        at_k, real_k = rows_at(row, at_key, n_keys, DIM, WIDE)
        at_v, real_v = rows_at(row, at_key, n_keys, VALUE_DIM, VALUE_WIDE)
        k = tl.load(key + at_k, mask=real_k, other=0.0)
        v = tl.load(value + at_v, mask=real_v, other=0.0)
        scores = tile_scores(q, k, at_query, at_key, place, row, block, scaling, tables, sizes, OTHERS)
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrunk = tl.exp(highest - higher)
        weights = tl.exp(scores - higher[:, None])
        weight = weight * shrunk + tl.sum(weights, 1)
        found = found * shrunk[:, None] + product(weights.to(v.dtype), v)
        highest = higher
    tl.store(out + at_o, found / weight[:, None], mask=real_o)
    tl.store(total + row * length + at_query, highest + tl.log(weight), mask=real)


@tuned("of_q", "of_k", "of_v")
@triton.jit(do_not_specialize=["number"])
def backward(
    query, key, value, upstream, total, delta, of_q, of_k, of_v,
    queries, keys, of_query, of_key, bias,
    scaling, number, length, n_keys, n_rounds, n_clusters, query_places, key_places,
    about_queries, about_keys, OTHERS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    WIDE: tl.constexpr, VALUE_WIDE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a round to of_q, of_k and of_v.

    total: log-sum-exp over everything that a query sees; delta: the product of its output and upstream gradient.

    A query stands in one place of a round: its gradient is loaded, added to and stored. A key may stand in several
    blocks, and a block's queries in several tiles, so gradients of keys are added atomically. Their last bits differ
    from run to run, as with index_add_.
    """
    row, cluster, first = tile(tl.program_id(0).to(tl.int64), query_places, n_clusters, TILE_Q)
    block = (row * n_rounds + number) * n_clusters + cluster
    at_query = positions(queries, block, first + tl.arange(0, TILE_Q), query_places, length)
    real = at_query < length
    at_q, real_q = rows_at(row, at_query, length, DIM, WIDE)
    at_o, real_o = rows_at(row, at_query, length, VALUE_DIM, VALUE_WIDE)
    q = tl.load(query + at_q, mask=real_q, other=0.0)
    up = tl.load(upstream + at_o, mask=real_o, other=0.0)
    log_sum = tl.load(total + row * length + at_query, mask=real, other=float("inf"))  # no query: all weights are 0
    mean = tl.load(delta + row * length + at_query, mask=real, other=0.0)
    found = tl.zeros((TILE_Q, WIDE), tl.float32)
    tables = of_query, of_key, bias
    sizes = length, n_keys, n_rounds, key_places
    for first_key in range(0, key_places, TILE_K):
        place = first_key + tl.arange(0, TILE_K)
        at_key = positions(keys, block, place, key_places, n_keys)
        at_k, real_k = rows_at(row, at_key, n_keys, DIM, WIDE)
        at_v, real_v = rows_at(row, at_key, n_keys, VALUE_DIM, VALUE_WIDE)
        k = tl.load(key + at_k, mask=real_k, other=0.0)
        v = tl.load(value + at_v, mask=real_v, other=0.0)
        scores = tile_scores(q, k, at_query, at_key, place, row, block, scaling, tables, sizes, OTHERS)
        weights = tl.exp(scores - log_sum[:, None])
        of_scores = weights * (product(up, tl.trans(v)) - mean[:, None])
        weights, of_scores = weights.to(q.dtype), of_scores.to(q.dtype)
        found += product(of_scores, k)
        grad_k = product(tl.trans(of_scores), q) * scaling
        tl.atomic_add(of_k + at_k, grad_k, mask=real_k, sem="relaxed")
        grad_v = product(tl.trans(weights), up)
        tl.atomic_add(of_v + at_v, grad_v, mask=real_v, sem="relaxed")
    before = tl.load(of_q + at_q, mask=real_q, other=0.0)
    tl.store(of_q + at_q, before + found * scaling, mask=real_q)
