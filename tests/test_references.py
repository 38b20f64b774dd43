"""Every attention against its naive reference, output and gradients; and against softmax and other packages."""

import pytest
import torch
from reformer_pytorch.reformer_pytorch import LSHAttention

from albert_lsh import attention
from albert_lsh.attention import compute, rows, shared_qk
from albert_lsh.attention.choose.hashing import generators_of_rounds
from albert_lsh.attention.published import yoso
from albert_lsh.attention.softmax import attend_nearby
from attention_cases import (
    CASES,
    REFERENCES,
    SETTINGS,
    SHAPES,
    WITH_MEAN_KEY,
    check_half_precision,
    check_reference,
    each,
    error,
    label,
    padding,
    run,
    tensors,
)
from references import naive

KINDS = pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
SPARSE = [c for c in CASES if c[0] in {*WITH_MEAN_KEY, "smyrf"}]


def test_every_attention_has_a_reference():
    """`reformer` is another package's, and its own reference."""
    without = set(attention.names()) - set(REFERENCES)
    assert without == {"reformer"}, "a function of its name is missing in tests/references/naive.py"


@KINDS
@pytest.mark.parametrize("shape", SHAPES, ids=label)
@each(CASES)
def test_output_and_gradients_are_the_references(name, settings, shape, kind):
    check_reference(name, settings, shape, kind)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 37, 192, 193, 300])  # three blocks of 64 queries, and more
@pytest.mark.parametrize("distance", [0, 5, 70])
def test_local_layers_are_softmax_in_a_window(distance, length, dtype, kind):
    shape = 3, 2, length, 4
    mask, upstream, inputs = padding(shape, kind), torch.randn(shape), tensors(shape, dtype)
    tokens = torch.ones(3, length, dtype=torch.bool) if mask is None else mask
    up = upstream * tokens[:, None, :, None]

    def ours(query, key, value):
        out = attend_nearby(query, key, value, mask, distance, scaling=0.7, dropout=0.0)
        assert out.isfinite().all()
        return out * tokens[:, None, :, None]

    expected = run(naive.nearby, [x.double() for x in inputs], up, mask, distance, scaling=0.7)
    assert error(run(ours, inputs, up), expected) < (2e-6 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dropout", [0.0, 1e-12])  # too rare to drop anything, computed all the same
@pytest.mark.parametrize("at_once", [1, 2**11, 2**18])
@each(SPARSE)
def test_long_sequences_are_the_references(monkeypatch, name, settings, at_once, dropout):
    """Keys are gathered above MASKED_LENGTH tokens: block by block, a few blocks at a time, all at once."""
    monkeypatch.setattr(compute, "MASKED_LENGTH", 20)
    monkeypatch.setattr(compute, "MASKED_PART", 0)
    monkeypatch.setattr(rows.slices, "__defaults__", (at_once,))
    check_reference(name, settings, (2, 2, 37, 12), "scattered", dropout=dropout)


def test_a_key_met_twice_weighs_once_among_more_clusters_than_a_byte_counts():
    """300 of them."""
    check_reference("random", {"n_hashes": 6, "cluster_size": 2}, (1, 2, 600, 4), "full")


@pytest.mark.parametrize("backend", ["grouped", "gathered"])
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"global_tokens": 0}, "full"),
        ({"mean_key": True}, "scattered"),
        ({"n_hashes": 1}, "scattered"),
        ({"mean_key": True, "axes": 3}, "scattered"),
    ],
    ids=label,
)
def test_above_512_tokens_queries_of_key_clusters_are_computed_by_cluster(monkeypatch, more, kind, backend):
    """On a CPU one cluster at a time; on a GPU, where its kernels cannot do it, in blocks."""
    if backend == "gathered":
        monkeypatch.setattr(compute, "MOST_GROUPED", 0)
    check_reference("key-clusters", {"n_hashes": 4, "cluster_size": 8, **more}, (2, 1, 530, 4), kind)


def test_sequences_of_a_batch_have_as_many_axes_and_sampled_keys_as_their_own_lengths_ask_for():
    """Of 300 tokens eight axes from 69 keys, of one token none."""
    check_reference("key-clusters", {"share": 0.25}, (4, 2, 300, 16), "padded")


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_axes_are_those_of_keys_of_any_size(scale):
    query, key, _ = tensors((1, 2, 200, 16))
    chosen = [
        attention.pairs("key-clusters", query / size, key * size, share=0.25, global_tokens=0) for size in (1.0, scale)
    ]
    assert (chosen[0] != chosen[1]).float().mean() < 0.01  # rounding decides a few


@KINDS
@pytest.mark.parametrize("dense_share", [0, 1000])
@pytest.mark.parametrize("at_once", [1, 10**6])
def test_yosos_gradients_of_all_pairs_and_of_those_that_collide(monkeypatch, dense_share, at_once, kind):
    """Below a share of 0 all, below 1,000 those that collide, however many. A head at a time, and all heads at once."""
    monkeypatch.setattr(yoso, "DENSE_SHARE", dense_share)
    monkeypatch.setattr(yoso, "PAIRS_AT_ONCE", at_once)
    for shape in SHAPES:
        check_reference("yoso", SETTINGS["yoso"][0], shape, kind)


@KINDS
@pytest.mark.parametrize("bucket_size", [2, 3, 5])
def test_many_buckets_are_combinations_of_few_choices(monkeypatch, bucket_size, kind):
    monkeypatch.setattr(shared_qk, "MOST_BUCKETS", 4)
    monkeypatch.setattr(naive, "MOST_BUCKETS", 4)
    check_reference("shared-qk-lsh", {"bucket_size": bucket_size, "n_hashes": 2}, (3, 1, 70, 8), kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["masked", "gathered"])
@each(CASES)
def test_half_precision_rounds_no_worse_than_softmax(monkeypatch, name, settings, backend, dtype):
    if backend == "gathered":
        if (name, settings) not in SPARSE:
            pytest.skip("it has one backend")
        monkeypatch.setattr(compute, "MASKED_LENGTH", 0)
    check_half_precision(name, settings, (2, 2, 37, 16), dtype)


@pytest.mark.parametrize(
    "settings",
    [{"n_hashes": 2, "cluster_size": 41}, {"share": 1.0}, {"n_hashes": 20, "cluster_size": 3, "mean_key": True}],
    ids=label,
)
def test_lsh_that_misses_nothing_is_softmax(settings):
    shape = (2, 3, 41, 8)
    inputs, mask, upstream = tensors(shape), padding(shape, "padded"), torch.ones(shape)
    ours = run(lambda *t: attention.attend("key-clusters", *t, mask, **settings), inputs, upstream)
    assert error(ours, run(lambda *t: attention.attend("softmax", *t, mask), inputs, upstream)) < 1e-6
    assert attention.coverage("key-clusters", *inputs[:2], mask, **settings).pairs == pytest.approx(1.0)


@pytest.mark.parametrize("n_hashes", [1, 3])
def test_shared_qk_lsh_is_reformer_pytorchs_with_the_same_rotations(n_hashes, monkeypatch):
    shape = (1, 2, 48, 8)
    inputs, upstream = tensors(shape), torch.randn(shape, generator=torch.Generator().manual_seed(2))
    ours = run(
        lambda *t: attention.attend("shared-qk-lsh", *t, seed=4, bucket_size=6, n_hashes=n_hashes), inputs, upstream
    )
    generators = generators_of_rounds(n_hashes, torch.Generator().manual_seed(4))
    rotations = shared_qk.draw_rotations(inputs[0], 48 // 6, generators)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: rotations.permute(0, 2, 1, 3))
    package = LSHAttention(bucket_size=6, n_hashes=n_hashes, random_rotations_per_head=True)

    def theirs(query, key, value):
        return package(query.flatten(0, 1), value.flatten(0, 1))[0].view(shape)

    assert error(ours, run(theirs, inputs, upstream)) < 1e-6
