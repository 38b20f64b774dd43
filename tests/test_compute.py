"""The ways of computing attention over the keys that are seen, against a loop over queries and keys in float64."""

import pytest
import torch

from albert_lsh.attention import lsh, plain_lsh, random, shared_qk_lsh, top_k, window
from albert_lsh.attention.compute import cpu, dense, plain
from albert_lsh.attention.rows import AT_ONCE, MASKED, clear_padding
from attention_cases import error, padding, tensors

ROUNDS = {"n_hashes": 3, "cluster_size": 5}
LSH = {"n_hashes": 2, "cluster_size": 4, "global_tokens": 2}
SEEN = {
    "lsh": (lsh, LSH),
    "lsh, no global tokens": (lsh, {**LSH, "global_tokens": 0}),
    "plain-lsh": (plain_lsh, ROUNDS),
    "plain-lsh, one round": (plain_lsh, {**ROUNDS, "n_hashes": 1}),
    "plain-lsh, sequences differ": (plain_lsh, {"n_hashes": (4, 1), "cluster_size": (5, 2)}),
    "random, global tokens": (random, {**ROUNDS, "global_tokens": 3}),
    "window": (window, {"keys": 20, "global_tokens": 0}),
    "window, global tokens": (window, {"keys": 9, "global_tokens": 2}),
    "top-k": (top_k, {"keys": 7}),
    "chunks": (shared_qk_lsh, {"n_hashes": 3, "bucket_size": 4}),
    "one chunk, its keys twice": (shared_qk_lsh, {"n_hashes": 2, "bucket_size": 64}),
    "chunks and the rest": (shared_qk_lsh, {"n_hashes": 1, "bucket_size": 4, "rest": True}),
}
each_seen = pytest.mark.parametrize(("module", "settings"), SEEN.values(), ids=SEEN)


def case(module, settings, shape, kind, dtype=torch.float32):
    """What is seen, and query, key and value of the dtype with the mean rows that it asks for behind them."""
    mask = padding(shape, kind)
    query, key, value = (clear_padding(x, mask) for x in tensors(shape, dtype))
    settings = {name: torch.tensor(x)[: shape[0]] if isinstance(x, tuple) else x for name, x in settings.items()}
    generator = torch.Generator().manual_seed(5)
    if module is shared_qk_lsh:
        seen = module.see(query, mask, generator=generator, **{"rest": False, **settings})
        if settings.get("rest"):
            key, value = (torch.cat([x, x.mean(2, keepdim=True)], dim=2) for x in (key, value))
        return seen, [query, key, value], mask
    tokens = torch.ones(shape[:3], dtype=torch.bool) if mask is None else mask[:, None].expand(shape[:3])
    seen = module.see(query.float(), key.float(), tokens, scaling=0.4, generator=generator, **settings)
    return seen, [query, key, value], mask


def reference(query, key, value, *, seen, scaling):
    """Output and log-sum-exp; of queries without any key zeros, and what is left of nothing."""
    counts = counts_of(seen, query.shape[2], key.shape[2])
    nothing = (counts == 0).all(-1, keepdim=True)
    scores = query @ key.transpose(-1, -2) * scaling + counts.masked_fill(nothing, 1).log()
    return (scores.softmax(-1) @ value).masked_fill(nothing, 0), scores.logsumexp(-1).masked_fill(
        nothing[..., 0], MASKED
    )


def counts_of(seen, length, n_keys):
    """For how many keys each key stands before each query, (batch, heads, length, n_keys) float64: by definition."""
    batch, heads, rounds, blocks, _ = seen.keys.shape
    queries = seen.queries.expand(batch, heads, rounds, blocks, -1).tolist()
    keys = seen.keys.tolist()
    bias = None if seen.bias is None else seen.bias.double().exp().tolist()
    counts = torch.zeros(batch, heads, length, n_keys, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for r in range(rounds):
                for c in range(blocks):
                    for i in queries[b][h][r][c]:
                        for place, j in enumerate(keys[b][h][r][c]):
                            if i < length and j < n_keys and not (seen.others_only and i == j):
                                counts[b, h, i, j] += 1.0 if bias is None else bias[b][h][r][c][place]
    return counts.clamp(max=1) if seen.clusters is not None else counts


def found(way, inputs, mask, upstream, **keywords):
    """Output, log-sum-exp and the gradients of both together, float64.

    Left out are padding, and queries that see no key at all, of which the log-sum-exp tells.
    """
    leaves = [x.clone().requires_grad_() for x in inputs]
    out, log_sum = way(*leaves, **keywords)
    some = log_sum > MASKED / 2 if mask is None else (log_sum > MASKED / 2) & mask[:, None]
    out, log_sum = torch.where(some[..., None], out, 0), torch.where(some, log_sum, 0)
    ((out.double() * upstream[0]).sum() + (log_sum.double() * upstream[1]).sum()).backward()
    return [x.detach().double() for x in (out, log_sum, some, *(leaf.grad for leaf in leaves))]


def errors(seen, inputs, mask):
    """For each way the errors of output, log-sum-exp, whether a query sees any key, and each gradient.

    The dense way does not know how often a key is listed.
    """
    shape, generator = inputs[0].shape, torch.Generator().manual_seed(2)
    upstream = [torch.randn(n, generator=generator).to(inputs[0].dtype).double() for n in (shape, shape[:3])]
    expected = found(reference, [x.double() for x in inputs], mask, upstream, seen=seen, scaling=0.4)
    ways = [plain.attend, cpu.attend, *([dense.attend] if seen.each_once else [])]
    measured = [found(way, inputs, mask, upstream, seen=seen, scaling=0.4) for way in ways]
    return [[error([one], [other]) for one, other in zip(each, expected, strict=True)] for each in measured]


SHAPE = (2, 2, 37, 12)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@each_seen
def test_output_log_sum_and_gradients_are_the_loops(module, settings, kind):
    for each in errors(*case(module, settings, SHAPE, kind)):
        assert max(each) < 2e-6  # float32 keeps 6e-8


@each_seen
def test_bfloat16_rounds_no_worse_than_the_plain_way(module, settings):
    """Of each of the outputs and gradients the error is at most twice that of plain torch in the same precision."""
    allowed, *others = errors(*case(module, settings, SHAPE, "padded", torch.bfloat16))
    assert 1e-4 < allowed[0] < 1e-2
    for each in others:
        assert all(one <= max(2 * most, 1e-6) for one, most in zip(each, allowed, strict=True))


@pytest.mark.parametrize(
    ("module", "settings", "shape"),
    [
        (lsh, {**LSH, "cluster_size": 20}, (8, 1, 600, 32)),
        (plain_lsh, {"n_hashes": 2, "cluster_size": 50}, (4, 2, 600, 32)),
        (shared_qk_lsh, {"n_hashes": 2, "bucket_size": 25}, (4, 1, 600, 32)),
        (top_k, {"keys": 10}, (1, 1, 600, 32)),
    ],
    ids=["lsh", "plain-lsh", "chunks", "top-k"],
)
def test_blocks_that_are_gathered_in_pieces(module, settings, shape):
    """A round's keys and values are more numbers than are gathered at once."""
    seen, inputs, mask = case(module, settings, shape, "padded")
    pieces = list(cpu.pieces(seen.flat(), slice(0, shape[0] * shape[1]), shape[2], inputs[1].shape[2], 2 * shape[3]))
    assert seen.keys[:, :, 0].numel() * 2 * shape[3] > AT_ONCE
    assert len(pieces) > seen.keys.shape[2]
    for each in errors(seen, inputs, mask):
        assert max(each) < 2e-6
