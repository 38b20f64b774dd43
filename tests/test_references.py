"""Every attention against its naive reference, output and gradients; and against softmax and other packages."""

import numpy as np
import pytest
import torch
from reformer_pytorch.reformer_pytorch import LSHAttention
from transformers import NystromformerConfig, YosoConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

from albert_lsh import attention
from albert_lsh.attention import shared_qk_lsh, yoso
from albert_lsh.attention.compute import cpu, dispatch
from albert_lsh.attention.select.hashing import generators_of_rounds
from albert_lsh.attention.shared_qk_lsh import draw_rotations
from attention_cases import CASES, IDS, REFERENCES, SETTINGS, SHAPES, WITH_REST, error, padding, run, tensors
from references import naive

SPARSE = set(WITH_REST) - {"shared-qk-lsh"}  # which gathers at any length
of_sparse = pytest.mark.parametrize(
    ("name", "settings"),
    [c for c in CASES if c[0] in SPARSE],
    ids=[i for i, c in zip(IDS, CASES, strict=True) if c[0] in SPARSE],
)


def test_every_attention_has_a_reference():
    """`reformer` is another package's, and its own reference."""
    assert set(attention.names()) - set(REFERENCES) == {"reformer"}


def test_torch_has_the_fused_kernel():
    """A private operator, whose name a release of torch may change."""
    assert cpu.is_available(torch.zeros(1), dropout=0.0)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_output_and_gradients_are_the_references(name, settings, shape, kind):
    check_reference(name, settings, shape, kind)


@pytest.mark.parametrize("way", ["all scores", "gathered"])
@pytest.mark.parametrize("kind", ["full", "scattered"])
@of_sparse
def test_what_training_computes_is_the_references(monkeypatch, name, settings, kind, way):
    """Dropout takes other ways than the fused kernel's. This one is too rare to drop anything."""
    if way == "gathered":
        monkeypatch.setattr(dispatch, "DENSE_LENGTH", 0)
        monkeypatch.setattr(dispatch, "SHARED_LENGTH", 0)
    check_reference(name, settings, (2, 2, 37, 12), kind, dropout=1e-12)


@pytest.mark.parametrize("kind", ["full", "scattered"])
@of_sparse
def test_long_sequences_are_the_references(monkeypatch, name, settings, kind):
    """Keys are gathered above `DENSE_LENGTH` tokens."""
    monkeypatch.setattr(dispatch, "DENSE_LENGTH", 20)
    monkeypatch.setattr(dispatch, "DENSE_PART", 0)
    check_reference(name, settings, (2, 2, 37, 12), kind)


@pytest.mark.parametrize("kind", ["full", "scattered"])
@pytest.mark.parametrize("more", [{"global_tokens": 0}, {"rest": True}, {"n_hashes": 1}], ids=str)
def test_above_512_tokens_queries_are_computed_by_cluster(more, kind):
    check_reference("lsh", {"n_hashes": 4, "cluster_size": 8, **more}, (2, 1, 530, 4), kind)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_yoso_with_the_tables_of_long_sequences(monkeypatch, shape, kind):
    monkeypatch.setattr(yoso, "PAIRWISE_LENGTH", 0)
    check_reference("yoso", SETTINGS["yoso"][0], shape, kind)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize("bucket_size", [2, 3, 5])
def test_many_buckets_are_combinations_of_few_choices(monkeypatch, bucket_size, kind):
    monkeypatch.setattr(shared_qk_lsh, "MOST_BUCKETS", 4)
    monkeypatch.setattr(naive, "MOST_BUCKETS", 4)
    check_reference("shared-qk-lsh", {"bucket_size": bucket_size, "n_hashes": 2}, (3, 1, 70, 8), kind)


def check_reference(name, settings, shape, kind, dropout=0.0):
    inputs, mask = tensors(shape), padding(shape, kind)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    measured = run(lambda *t: attention.attend(name, *t, mask, seed=3, dropout=dropout, **settings), inputs, upstream)
    full = attention.check(name, settings)
    keywords = {"scaling": shape[-1] ** -0.5, "generator": torch.Generator().manual_seed(3), **full}
    reference = run(lambda *t: REFERENCES[name](*t, mask, **keywords), inputs, upstream)
    assert error(measured, reference) < 2e-6  # float32 keeps 6e-8; the largest seen is 4e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["full", "padded"])
@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_half_precision_rounds_no_worse_than_softmax(name, settings, dtype, kind):
    check_half_precision(name, settings, dtype, kind)


@pytest.mark.parametrize("kind", ["full", "padded"])
@of_sparse
def test_half_precision_in_training_rounds_no_worse_than_softmax(name, settings, kind):
    check_half_precision(name, settings, torch.bfloat16, kind, dropout=1e-12)


@pytest.mark.parametrize("kind", ["full", "padded"])
@of_sparse
def test_the_fused_kernel_in_half_precision_rounds_no_worse_than_softmax(monkeypatch, name, settings, kind):
    """It serves longer sequences."""
    monkeypatch.setattr(cpu, "SLOW_LENGTH", 0)
    check_half_precision(name, settings, torch.bfloat16, kind)


def check_half_precision(name, settings, dtype, kind, dropout=0.0):
    """The error allowed is three times what torch's own softmax attention makes of the same rounded inputs."""
    shape = (2, 2, 37, 16)
    inputs, mask = tensors(shape, dtype), padding(shape, kind)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    keywords = {"scaling": shape[-1] ** -0.5, "generator": torch.Generator().manual_seed(3)}
    measured = run(lambda *t: attention.attend(name, *t, mask, seed=3, dropout=dropout, **settings), inputs, upstream)
    exact = [t.double() for t in inputs]
    reference = run(
        lambda *t: REFERENCES[name](*t, mask, **keywords, **attention.check(name, settings)), exact, upstream
    )
    pairs = None if mask is None else mask[:, None, None]
    plain = run(lambda *t: torch.nn.functional.scaled_dot_product_attention(*t, attn_mask=pairs), inputs, upstream)
    allowed = 3 * error(plain, run(lambda *t: naive.softmax(*t, mask, scaling=0.25), exact, upstream))
    assert error(measured, reference) < allowed


@pytest.mark.parametrize(
    "settings",
    [
        {"n_hashes": 2, "cluster_size": 41},
        {"share": 1.0},
        {"n_hashes": 20, "cluster_size": 3, "rest": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["full", "padded"])
def test_lsh_that_misses_nothing_is_softmax(kind, settings):
    shape = (2, 3, 41, 8)
    inputs, mask, upstream = tensors(shape), padding(shape, kind), torch.ones(shape)
    ours = run(lambda *t: attention.attend("lsh", *t, mask, **settings), inputs, upstream)
    assert error(ours, run(lambda *t: attention.attend("softmax", *t, mask), inputs, upstream)) < 1e-6
    assert attention.coverage("lsh", *inputs[:2], mask, **settings).pairs == pytest.approx(1.0)


@pytest.mark.parametrize("n_hashes", [1, 3])
def test_shared_qk_lsh_is_reformer_pytorchs_with_the_same_rotations(n_hashes, monkeypatch):
    shape = (1, 2, 48, 8)
    inputs, upstream = tensors(shape), torch.randn(shape, generator=torch.Generator().manual_seed(2))
    ours = run(
        lambda *t: attention.attend("shared-qk-lsh", *t, seed=4, bucket_size=6, n_hashes=n_hashes), inputs, upstream
    )
    generators = generators_of_rounds(n_hashes, torch.Generator().manual_seed(4))
    rotations = draw_rotations(inputs[0], 48 // 6, generators)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: rotations.permute(0, 2, 1, 3))
    package = LSHAttention(bucket_size=6, n_hashes=n_hashes, random_rotations_per_head=True)

    def theirs(query, key, value):
        return package(query.flatten(0, 1), value.flatten(0, 1))[0].view(shape)

    assert error(ours, run(theirs, inputs, upstream)) < 1e-6


def projected(layer, hidden, heads):
    """A Transformers attention layer's query, key and value of hidden states (batch, length, heads * dim)."""
    return [
        getattr(layer, name)(hidden).unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("query", "key", "value")
    ]


def test_nystrom_is_transformers():
    """One head: with several, Transformers begins the pseudo-inverse with the largest norm of all heads and batches."""
    config = NystromformerConfig(hidden_size=16, num_attention_heads=1, num_landmarks=8, segment_means_seq_len=48)
    torch.manual_seed(0)
    layer, hidden = NystromformerSelfAttention(config).eval(), 3 * torch.randn(1, 48, 16)
    layer.conv_kernel_size = None
    ours = attention.attend("nystrom", *projected(layer, hidden, 1), num_landmarks=8)
    torch.testing.assert_close(ours[:, 0], layer(hidden)[0], rtol=1e-4, atol=1e-5)


def test_yoso_e_is_transformers_with_gradients():
    config = YosoConfig(hidden_size=24, num_attention_heads=3, hash_code_len=7, use_expectation=True, conv_window=None)
    torch.manual_seed(0)
    layer = YosoSelfAttention(config).eval()
    grads = []
    for ours in (False, True):
        hidden = torch.randn(2, 19, 24, generator=torch.Generator().manual_seed(1), requires_grad=True)
        if ours:
            out = attention.attend("yoso-e", *projected(layer, hidden, 3), hash_code_len=7).transpose(1, 2).flatten(2)
        else:
            out = layer(hidden, torch.zeros(2, 19))[0]
        out.square().mul(torch.arange(24.0)).sum().backward()
        grads.append((out.detach(), hidden.grad))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_yoso_comes_to_its_expectation_as_one_over_the_root_of_the_hashes():
    query, key, value = tensors((2, 4, 64, 16))
    expected = attention.attend("yoso-e", query, key, value, hash_code_len=4)
    errors = []
    for n_hashes in (16, 64, 256, 1024):
        settings = {"n_hashes": n_hashes, "hash_code_len": 4}
        errors.append((attention.attend("yoso", query, key, value, **settings) - expected).norm())
    slope = np.polyfit(np.log([16, 64, 256, 1024]), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.07)
