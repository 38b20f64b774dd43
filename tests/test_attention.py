"""Every attention against its naive reference, output and gradients; and what all of them promise."""

import numpy as np
import pytest
import torch
from albert_lsh import attention
from albert_lsh.attention import fused, lsh, naive
from albert_lsh.attention.shared_qk import draw_rotations
from reformer_pytorch.reformer_pytorch import LSHAttention
from transformers import NystromformerConfig, YosoConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

REFERENCES = {
    "softmax": naive.softmax,
    "softmax-eager": naive.softmax,
    "shared-qk": naive.shared_qk,
    "shared-qk-lsh": naive.shared_qk_lsh,
    "lsh": naive.lsh,
    "window": naive.window,
    "random": naive.random,
    "top-k": naive.top_k,
    "nystrom": naive.nystrom,
    "yoso": naive.yoso,
    "yoso-e": naive.yoso_e,
}
PLAIN = {"hashing": "plain", "choose": "collision", "global_tokens": 0}
LSH = [
    {"n_hashes": 3, "cluster_size": 3},
    {**PLAIN, "n_hashes": 3, "cluster_size": 7},
    {**PLAIN, "n_hashes": 3, "cluster_size": 7, "duplicates": "each"},
    {**PLAIN, "n_hashes": 1, "cluster_size": 2, "window": 4},
    {"n_hashes": 3, "cluster_size": 5, "hashing": "keys", "choose": "collision", "global_tokens": 2, "window": 3},
    {"n_hashes": 2, "cluster_size": 4, "hashing": "cross-polytope", "choose": "collision"},
    {"n_hashes": 2, "cluster_size": 4, "hashing": "cross-polytope"},
    {"n_hashes": 1, "cluster_size": 3, "hashing": "plain", "block_size": 2, "global_tokens": 0},
    {"n_hashes": 2, "cluster_size": 5, "block_size": 4, "window": 5},
    {"n_hashes": 2, "cluster_size": 4, "far_field": True},
    {"n_hashes": 1, "cluster_size": 1, "far_field": True, "global_tokens": 0},
    {"n_hashes": 2, "cluster_size": 3, "far_field": True, "block_size": 3, "choose": "mean-query", "window": 4},
]
SETTINGS = {
    "shared-qk-lsh": [{"bucket_size": 5, "n_hashes": 3}, {"bucket_size": 64, "n_hashes": 2}],
    "lsh": LSH,
    "random": [{"n_hashes": 3, "cluster_size": 7}, {"n_hashes": 2, "cluster_size": 4, "global_tokens": 2}],
    "window": [{"n_hashes": 3, "cluster_size": 7}, {"n_hashes": 1, "cluster_size": 2, "global_tokens": 3}],
    "top-k": [{"n_hashes": 2, "cluster_size": 3}],
    "reformer": [{"bucket_size": 4, "n_hashes": 2, "full_attn_thres": 8}],
    "nystrom": [{"num_landmarks": 7}],
    "yoso": [{"n_hashes": 5, "hash_code_len": 3}],
    "yoso-e": [{"hash_code_len": 4}],
}
CASES = [(name, settings) for name in REFERENCES for settings in SETTINGS.get(name, [{}])]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in settings.items())]) for name, settings in CASES]
ALL = [(name, SETTINGS.get(name, [{}])[0]) for name in attention.names()]
HASHED = ["shared-qk-lsh", "lsh", "random", "yoso"]
# (batch, heads, length, head_dim): a lone token, fewer tokens than a cluster, no multiple of anything, a multiple
SHAPES = [(1, 1, 1, 3), (2, 3, 5, 5), (2, 2, 37, 12), (1, 2, 60, 16)]


def tensors(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


def padding(shape, kind):
    """None, padding at the end, or padding anywhere; the first sequence is full, every sequence has a token."""
    batch, _, length, _ = shape
    if kind == "full":
        return None
    mask = torch.arange(length) < torch.linspace(length, 1, batch).long()[:, None]
    if kind == "scattered":
        mask = mask | (torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) < 0.3)
        mask = mask.flip(1)
    return mask


def run(function, inputs, upstream, *args, **kwargs):
    """Output and the three gradients, as float64."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = function(*leaves, *args, **kwargs)
    out.backward(upstream.to(out.dtype))
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
    return [t.detach().double() for t in (out, *grads)]


def error(measured, reference):
    """Frobenius norm of the difference over that of the reference, for output and gradients together."""
    difference = sum((m - r).square().sum() for m, r in zip(measured, reference, strict=True))
    return (difference / sum(r.square().sum() for r in reference)).sqrt().item()


@pytest.fixture(params=["dense", "fused", "rows"])
def way(request, monkeypatch):
    """How `lsh` is computed: short sequences densely, long ones in torch's fused kernel, or without it in steps."""
    monkeypatch.setattr(lsh, "DENSE_LENGTH", 10**6 if request.param == "dense" else 0)
    if request.param == "rows":
        monkeypatch.setattr(fused, "FORWARD", None)


def test_torch_has_the_fused_kernel():
    """A private operator, whose name a release of torch may change."""
    assert fused.is_available(torch.zeros(1), dropout=0.0)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("settings", LSH, ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items()))
def test_lsh_is_the_reference_either_way(way, settings, shape, kind):
    check_reference("lsh", settings, shape, kind)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(
    ("name", "settings"), [c for c in CASES if c[0] != "lsh"], ids=[i for i in IDS if not i.startswith("lsh")]
)
def test_output_and_gradients_are_the_references(name, settings, shape, kind):
    check_reference(name, settings, shape, kind)


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("settings", SETTINGS["shared-qk-lsh"], ids=lambda s: f"bucket_size={s['bucket_size']}")
def test_shared_qk_lsh_without_the_fused_kernel(monkeypatch, settings, shape, kind):
    monkeypatch.setattr(fused, "FORWARD", None)
    check_reference("shared-qk-lsh", settings, shape, kind)


def check_reference(name, settings, shape, kind):
    inputs, mask = tensors(shape), padding(shape, kind)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    measured = run(lambda *t: attention.attend(name, *t, mask, seed=3, **settings), inputs, upstream)
    full = attention.check(name, settings)
    keywords = {"scaling": shape[-1] ** -0.5, "generator": torch.Generator().manual_seed(3), **full}
    reference = run(lambda *t: REFERENCES[name](*t, mask, **keywords), inputs, upstream)
    assert error(measured, reference) < 2e-6  # float32 keeps 6e-8; the largest seen is 4e-7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["full", "padded"])
@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_half_precision_rounds_no_worse_than_softmax(way, name, settings, dtype, kind):
    """The error allowed is three times what torch's own softmax attention makes of the same rounded inputs."""
    shape = (2, 2, 37, 16)
    inputs, mask = tensors(shape, dtype), padding(shape, kind)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    keywords = {"scaling": shape[-1] ** -0.5, "generator": torch.Generator().manual_seed(3)}
    measured = run(lambda *t: attention.attend(name, *t, mask, seed=3, **settings), inputs, upstream)
    exact = [t.double() for t in inputs]
    reference = run(
        lambda *t: REFERENCES[name](*t, mask, **keywords, **attention.check(name, settings)), exact, upstream
    )
    plain = run(lambda *t: attention.attend("softmax", *t, mask), inputs, upstream)
    allowed = 3 * error(plain, run(lambda *t: naive.softmax(*t, mask, scaling=0.25), exact, upstream))
    assert error(measured, reference) < allowed


@pytest.mark.parametrize("duplicates", ["once", "each"])
@pytest.mark.parametrize("kind", ["full", "padded"])
def test_lsh_with_one_cluster_is_softmax(kind, duplicates):
    shape = (2, 3, 41, 8)
    inputs, mask, upstream = tensors(shape), padding(shape, kind), torch.ones(shape)
    settings = {"n_hashes": 2, "cluster_size": 41, "duplicates": duplicates}
    ours = run(lambda *t: attention.attend("lsh", *t, mask, **settings), inputs, upstream)
    softmax = run(lambda *t: attention.attend("softmax", *t, mask), inputs, upstream)
    assert error(ours, softmax) < 1e-6


@pytest.mark.parametrize(
    "settings",
    [
        {"n_hashes": 20, "cluster_size": 3, "window": 5, "block_size": 4},
        {"n_hashes": 20, "cluster_size": 3, "far_field": True},
        {"n_hashes": 1, "cluster_size": 1, "far_field": True},
        {"n_hashes": 1, "cluster_size": 1, "far_field": True, "window": 4, "choose": "mean-query", "block_size": 3},
    ],
    ids=["all clusters chosen", "the same with a far field", "clusters of one", "clusters of one and a window"],
)
@pytest.mark.parametrize("kind", ["full", "padded"])
def test_lsh_that_misses_nothing_is_softmax(way, kind, settings):
    shape = (2, 3, 41, 8)
    inputs, mask, upstream = tensors(shape), padding(shape, kind), torch.ones(shape)
    ours = run(lambda *t: attention.attend("lsh", *t, mask, **settings), inputs, upstream)
    assert error(ours, run(lambda *t: attention.attend("softmax", *t, mask), inputs, upstream)) < 1e-6
    assert attention.coverage("lsh", *inputs[:2], mask, **settings).pairs == pytest.approx(1.0)


def test_mean_keys_count_as_pairs_and_comparisons_are_reported():
    """40 tokens, 2 seen by all, the other 38 in 10 clusters of at most 4, one of which each query chooses."""
    query, key, _ = tensors((1, 2, 40, 8))
    settings = {"n_hashes": 1, "cluster_size": 4, "global_tokens": 2}
    near = attention.coverage("lsh", query, key, **settings)
    far = attention.coverage("lsh", query, key, **settings, far_field=True)
    assert far.pairs - near.pairs == pytest.approx(9 / 40)
    assert near.compared == far.compared == pytest.approx(10 / 40)
    assert (2 + 3) / 40 <= near.pairs <= (2 + 4) / 40
    assert attention.coverage("lsh", query, key, **settings, choose="mean-query", block_size=4).compared == 2 / 40


@pytest.mark.parametrize("share", [0.5, 0.25, 0.125])
@pytest.mark.parametrize("length", [24, 57, 256])
@pytest.mark.parametrize("name", ["lsh", "window", "random", "top-k", "shared-qk-lsh"])
def test_settings_for_spend_the_budget_and_no_more(name, length, share):
    if name == "shared-qk-lsh" and share * length < 4:
        with pytest.raises(ValueError, match="leaves 3 keys to choose; shared-qk-lsh needs 4 or more"):
            attention.settings_for(name, length, share)
        return
    query, key, _ = tensors((1, 2, length, 8))
    seen = attention.coverage(name, query, key, **attention.settings_for(name, length, share)).pairs
    assert 0.5 * share < seen <= share


@pytest.mark.parametrize(("length", "share"), [(57, 0.5), (256, 0.5), (256, 0.25), (700, 0.125)])
@pytest.mark.parametrize("window", [0, 6])
def test_a_far_field_is_paid_from_the_budget(length, share, window):
    query, key, _ = tensors((1, 2, length, 8))
    settings = attention.settings_for("lsh", length, share, far_field=True, window=window)
    assert 0.7 * share < attention.coverage("lsh", query, key, **settings).pairs <= share


def test_settings_for_keep_what_is_fixed_and_refuse_what_cannot_be():
    settings = attention.settings_for("lsh", 256, 0.25, far_field=True, cluster_size=8, window=4)
    assert settings == {
        "far_field": True, "cluster_size": 8, "window": 4, "global_tokens": 2, "n_hashes": 3,
    }  # fmt: skip
    assert attention.settings_for("lsh", 36, 0.5) == attention.settings_for("lsh", 36, 0.5, far_field=True)
    assert "far_field" not in {**attention.settings_for("lsh", 6, 0.5), **attention.settings_for("lsh", 36, 0.4)}
    assert attention.settings_for("window", 100, 0.2, global_tokens=5)["n_hashes"] == 15
    for name, length, share, message in (
        ("softmax", 256, 0.25, "attention='softmax' has no budget"),
        ("lsh", 256, 0, "share=0 must be above 0"),
        ("lsh", 3, 0.25, "share=0.25 of length=3 leaves 0 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            attention.settings_for(name, length, share)
    with pytest.raises(ValueError, match="share=0.25 of length=36 leaves 7 keys to choose, too few for a far field"):
        attention.settings_for("lsh", 36, 0.25, far_field=True)


def test_four_thousand_tokens_at_a_sixteenth():
    inputs = tensors((1, 1, 4096, 16))
    out = attention.attend("lsh", *inputs, **attention.settings_for("lsh", 4096, 1 / 16))
    assert out.isfinite().all()


@pytest.mark.parametrize("n_hashes", [1, 3])
def test_shared_qk_lsh_is_reformer_pytorchs_with_the_same_rotations(n_hashes, monkeypatch):
    shape = (1, 2, 48, 8)
    inputs, upstream = tensors(shape), torch.randn(shape, generator=torch.Generator().manual_seed(2))
    ours = run(
        lambda *t: attention.attend("shared-qk-lsh", *t, seed=4, bucket_size=6, n_hashes=n_hashes), inputs, upstream
    )
    rotations = draw_rotations(inputs[0], 48 // 6, n_hashes, torch.Generator().manual_seed(4))
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


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize(("name", "settings"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_pairs_are_those_that_attend_uses(name, settings, kind):
    """A direct count: which values reach the output of a query, asked one value at a time."""
    shape = (2, 2, 23, 8)
    (query, key, _), mask = tensors(shape), padding(shape, kind)
    counts = attention.pairs(name, query, key, mask, seed=7, **settings)
    seen = torch.zeros_like(counts, dtype=torch.bool)
    for j in range(shape[2]):
        value = torch.zeros(shape)
        value[:, :, j] = 1.0
        seen[..., j] = attention.attend(name, query, key, value, mask, seed=7, **settings)[..., 0] != 0
    assert torch.equal(counts > 0, seen)


@pytest.mark.parametrize(("name", "settings"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_coverage_is_the_share_of_pairs_and_of_softmaxs_mass(name, settings):
    shape = (2, 2, 23, 8)
    (query, key, _), mask = tensors(shape), padding(shape, "padded")
    met = attention.pairs(name, query, key, mask, seed=7, **settings) > 0
    pairs, mass, queries = 0, 0.0, 0
    for b in range(2):
        n = int(mask[b].sum())
        for h in range(2):
            weights = (query[b, h, :n] @ key[b, h, :n].T * 8**-0.5).softmax(-1)
            pairs += int(met[b, h].sum())
            mass += float((weights * met[b, h, :n, :n]).sum())
            queries += n
    seen = attention.coverage(name, query, key, mask, seed=7, **settings)
    assert seen.pairs == pytest.approx(pairs / (2 * (23**2 + 1)))
    assert seen.mass == pytest.approx(mass / queries)


@pytest.mark.parametrize(("name", "settings"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_padding_changes_nothing_and_gets_nothing(name, settings):
    """What stands in padding does not matter, and its rows are zero."""
    shape = (2, 2, 23, 8)
    inputs, mask = tensors(shape), padding(shape, "padded")
    mask[1] = torch.arange(23) < 11
    other = [torch.where(mask[:, None, :, None], t, 100 * torch.randn(shape)) for t in inputs]
    out = attention.attend(name, *inputs, mask, seed=1, **settings)
    if name != "reformer":  # the package hashes padding like tokens, which moves tokens between chunks
        torch.testing.assert_close(attention.attend(name, *other, mask, seed=1, **settings), out)
    assert not out[1, :, 11:].any()


@pytest.mark.parametrize(
    ("name", "settings"), [c for c in ALL if c[0] != "reformer"], ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_sequence_does_not_depend_on_its_batch(name, settings):
    """The same sequence alone and padded to a longer batch: no padding in its clusters, the same hashes."""
    inputs = tensors((2, 2, 40, 8))
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1, 17:] = False
    together = attention.attend(name, *inputs, mask, seed=1, **settings)[1:, :, :17]
    alone = attention.attend(name, *(t[1:, :, :17] for t in inputs), seed=1, **settings)
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize(("name", "settings"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_no_tokens_at_all_give_zeros(name, settings):
    inputs = tensors((2, 2, 9, 4))
    mask = torch.tensor([[True] * 9, [False] * 9])
    leaves = [t.requires_grad_() for t in inputs]
    out = attention.attend(name, *leaves, mask, **settings)
    out.sum().backward()
    assert not out[1].any()
    assert all(t.grad is None or t.grad.isfinite().all() for t in leaves)


@pytest.mark.parametrize("name", [*HASHED, "reformer"])
def test_seeds_decide_the_hashes(name):
    inputs, settings = tensors((1, 2, 40, 8)), SETTINGS[name][0]
    first, again, other = (attention.attend(name, *inputs, seed=s, **settings) for s in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize(
    ("name", "settings"), [c for c in ALL if "yoso" not in c[0]], ids=lambda x: x if isinstance(x, str) else ""
)
def test_dropout_drops_weights_and_keeps_the_mean(name, settings):
    query, key, _ = tensors((1, 1, 24, 8))
    value = torch.ones(1, 1, 24, 8)
    torch.manual_seed(0)
    seeds = range(400) if name == "reformer" else [0] * 400  # the package's dropout follows the seed too
    outs = torch.stack([attention.attend(name, query, key, value, seed=s, dropout=0.5, **settings) for s in seeds])
    assert outs.std(0).mean() > 0.05  # without dropout every output is 1
    assert outs.mean().item() == pytest.approx(1.0, abs=0.03)


def test_lsh_finds_similar_keys_where_random_does_not():
    """Every key has one query that matches it: with clusters of an eighth, hashing finds most of the mass."""
    generator = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(torch.randn(1, 4, 128, 16, generator=generator), dim=-1) * 4
    query = key[:, :, torch.randperm(128, generator=generator)] * 2
    shares = {n: attention.coverage(n, query, key, n_hashes=2, cluster_size=16) for n in ("lsh", "random")}
    assert shares["lsh"].mass > 2 * shares["random"].mass
    assert shares["lsh"].pairs == pytest.approx(shares["random"].pairs, abs=0.03)


def test_window_and_random_have_lshs_number_of_keys():
    query, key, _ = tensors((1, 2, 60, 8))
    settings = {"n_hashes": 3, "cluster_size": 6}
    slots = {
        n: attention.pairs(n, query, key, **settings, **(PLAIN if n == "lsh" else {})).sum(-1).unique().tolist()
        for n in ("lsh", "window", "random", "top-k")
    }
    assert slots == {"lsh": [18], "window": [18], "random": [18], "top-k": [18]}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lhs", {}, "attention='lhs' is not one of: softmax, softmax-eager, reformer"),
        (
            "lsh",
            {"n_hash": 2},
            "attention 'lsh' has no setting 'n_hash'; it has: n_hashes, cluster_size, hashing, choose",
        ),
        ("lsh", {"cluster_size": 0}, "lsh: cluster_size=0 must be a whole number, 1 or more"),
        ("lsh", {"hashing": "tee"}, "lsh: hashing='tee' is not one of: tree, plain, keys, cross-polytope"),
        ("lsh", {"choose": "collision"}, "lsh: hashing='tree' sorts queries and keys apart"),
        ("lsh", {**PLAIN, "far_field": True}, "lsh: far_field=True needs one clustering"),
        ("lsh", {"n_hashes": 0}, "n_hashes=0 must be a whole number, 1 or more"),
        ("lsh", {"n_hashes": 2.0}, "n_hashes=2.0 must be a whole number"),
        ("lsh", {"duplicates": "twice"}, "duplicates='twice' is not one of: once, each"),
        ("reformer", {"bucket_size": None}, "bucket_size=None must be a whole number"),
        ("softmax", {"n_hashes": 2}, "attention 'softmax' has no setting 'n_hashes'; it has: none"),
    ],
)
def test_bad_names_and_settings_are_named(name, settings, message):
    with pytest.raises(ValueError, match="^.*" + message.replace("(", r"\(")):
        attention.attend(name, *tensors((1, 1, 8, 4)), **settings)


def test_bad_tensors_are_named():
    query, key, value = tensors((2, 2, 8, 4))
    with pytest.raises(ValueError, match=r"key \(2, 2, 7, 4\)"):
        attention.attend("lsh", query, key[:, :, :7], value)
    with pytest.raises(ValueError, match=r"padding_mask must be bool of shape \(batch, length\) = \(2, 8\)"):
        attention.attend("lsh", query, key, value, torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"got torch.bool of shape \(2, 9\)"):
        attention.attend("lsh", query, key, value, torch.ones(2, 9, dtype=torch.bool))
