"""What all attentions promise: pairs, budgets, padding, seeds, dropout, named errors; outputs: test_references.py."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from albert_lsh import attention
from albert_lsh.attention import lsh
from attention_cases import ALL, CASES, HASHED, PLAIN, SETTINGS, padding, run, tensors


def test_mean_keys_count_as_pairs_and_comparisons_are_reported():
    """40 tokens, 2 seen by all, the other 38 in 10 clusters of at most 4, one of which each query chooses."""
    query, key, _ = tensors((1, 2, 40, 8))
    settings = {"n_hashes": 1, "cluster_size": 4, "global_tokens": 2}
    near = attention.coverage("lsh", query, key, **settings)
    far = attention.coverage("lsh", query, key, **settings, far_field=True)
    assert far.pairs - near.pairs == pytest.approx(9 / 40)
    assert near.compared == far.compared == pytest.approx(10 / 40)
    assert (2 + 3) / 40 <= near.pairs <= (2 + 4) / 40
    for block_size, blocks in ((4, 10), (16, 3)):  # a block of 16 is compared once with each of the ten
        blocked = attention.coverage("lsh", query, key, **settings, choose="mean-query", block_size=block_size)
        assert blocked.compared == pytest.approx(blocks * 10 / 40**2)
    assert attention.coverage("lsh", query, key, **settings, block_size=16).compared == pytest.approx(10 / 40)


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_contiguous():  # an expanded view takes no memory
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("more", [{"block_size": 1}, {"block_size": 64, "choose": "mean-key"}, {}], ids=str)
def test_choosing_clusters_needs_no_table_of_all_queries_and_clusters(more):
    """16,384 queries and 4,096 clusters are 2 ** 26 pairs; no more than 2 ** 20 numbers are there at once."""
    with Largest() as largest:
        attention.attend("lsh", *tensors((1, 1, 2**14, 4)), n_hashes=1, cluster_size=4, **more)
    assert largest.numbers <= 2**20


@pytest.mark.parametrize("more", [{"block_size": 1}, {"block_size": 7}, {}], ids=str)
def test_how_many_blocks_choose_at_once_changes_nothing(monkeypatch, more):
    monkeypatch.setattr(lsh, "BLOCKS", 100)
    inputs, mask = tensors((2, 3, 300, 8)), padding((2, 3, 300, 8), "scattered")
    at_once = attention.attend("lsh", *inputs, mask, cluster_size=4, **more)
    for scores in (1, 1000, 30_000):
        monkeypatch.setattr(lsh, "SCORES_AT_ONCE", scores)
        assert torch.equal(attention.attend("lsh", *inputs, mask, cluster_size=4, **more), at_once)


def test_queries_choose_for_themselves_up_to_two_thousand_tokens_and_in_blocks_above():
    """By default the number of comparisons grows with the length, and no longer with its square."""
    compared = {}
    for length in (600, 2047, 8192, 16384):
        query, key, _ = tensors((1, 1, length, 4))
        seen = [lsh.lsh_mean_keys(query, key, **attention.check("lsh", more)) for more in ({}, {"block_size": 1})]
        compared[length], alone = (int(counts[1]) for counts in seen)
        assert compared[length] == alone if length < 2048 else compared[length] < alone / 4
    assert compared[16384] <= 2.01 * compared[8192]
    query, key, value = tensors((1, 2, 600, 8))
    explicit = attention.attend("lsh", query, key, value, block_size=1)
    assert torch.equal(attention.attend("lsh", query, key, value), explicit)


def test_four_thousand_tokens_at_a_sixteenth():
    inputs = tensors((1, 1, 4096, 16))
    out = attention.attend("lsh", *inputs, **attention.settings_for("lsh", 4096, 1 / 16))
    assert out.isfinite().all()


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


WITH_PADDING = [*CASES, ("reformer", SETTINGS["reformer"][0]), ("reformer", {"full_attn_thres": 10**6})]


def some_padding(length):
    """Three sequences: without padding, with padding anywhere, and of three tokens."""
    mask = torch.rand(3, length, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0], mask[2] = True, torch.arange(length) < 3
    return mask


def filled(rows, mask, value):
    return rows.masked_fill(~mask[:, None, :, None], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [40, 640])
@pytest.mark.parametrize(("name", "settings"), WITH_PADDING, ids=lambda x: x if isinstance(x, str) else "")
def test_whatever_stands_in_padding_changes_nothing_and_gets_nothing(name, settings, length, dtype):
    """Bit by bit what zeros in padding give, and zeros for the padding, in the output and in all gradients."""
    inputs, mask = tensors((3, 2, length, 8), dtype), some_padding(length)
    upstream = tensors((3, 2, length, 8), seed=1)[0]

    def found(value):
        rows = [filled(t, mask, value) for t in inputs]
        return run(lambda *t: attention.attend(name, *t, mask, seed=1, **settings), rows, filled(upstream, mask, value))

    expected = found(0.0)
    for tensor in expected:
        assert tensor.isfinite().all()
        assert torch.equal(tensor, filled(tensor, mask, 0.0))
    for value in (torch.nan, torch.inf, 1e30):
        for tensor, other in zip(found(value), expected, strict=True):
            assert torch.equal(tensor, other)


@pytest.mark.parametrize("length", [40, 640])
@pytest.mark.parametrize(("name", "settings"), WITH_PADDING, ids=lambda x: x if isinstance(x, str) else "")
def test_whatever_stands_in_padding_is_never_looked_at(name, settings, length):
    inputs, mask = tensors((3, 2, length, 8)), some_padding(length)
    zeros, nans = ([filled(t, mask, value) for t in inputs[:2]] for value in (0.0, torch.nan))
    seen = attention.pairs(name, *zeros, mask, seed=1, **settings)
    assert torch.equal(attention.pairs(name, *nans, mask, seed=1, **settings), seen)
    coverage = attention.coverage(name, *nans, mask, seed=1, **settings)
    assert coverage == attention.coverage(name, *zeros, mask, seed=1, **settings)
    assert 0 < coverage.pairs <= 1
    assert 0 < coverage.mass <= 1.001


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


@pytest.mark.parametrize("tokens", [9, 0], ids=["beside another", "alone"])
@pytest.mark.parametrize("length", [9, 640])
@pytest.mark.parametrize(("name", "settings"), WITH_PADDING, ids=lambda x: x if isinstance(x, str) else "")
def test_a_sequence_of_nothing_but_padding(name, settings, length, tokens):
    """Its output is zero, gradients are finite, and of nothing the shares are zero."""
    mask = torch.arange(length) < torch.tensor([[tokens], [0]])
    inputs = tensors((2, 2, length, 4))
    out, *grads = run(lambda *t: attention.attend(name, *t, mask, **settings), inputs, torch.ones(2, 2, length, 4))
    assert not out[1].any()
    assert all(g.isfinite().all() and not g[1].any() for g in grads)
    coverage = attention.coverage(name, *inputs[:2], mask, **settings)
    assert coverage == (0, 0, 0) if tokens == 0 else 0 < coverage.pairs <= 1


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
        ("lsh", {"cluster_size": 0}, "lsh: cluster_size=0 must be a whole number, 1 to 2147483647"),
        ("lsh", {"hashing": "tee"}, "lsh: hashing='tee' is not one of: tree, plain, keys, cross-polytope"),
        ("lsh", {"choose": "collision"}, "lsh: hashing='tree' sorts queries and keys apart"),
        ("lsh", {**PLAIN, "cluster_size": 1}, "lsh: cluster_size=1 must be 2 or more with choose='collision'"),
        ("lsh", {**PLAIN, "far_field": True}, "lsh: far_field=True needs one clustering"),
        ("lsh", {"n_hashes": 0}, "n_hashes=0 must be a whole number, 1 to 2147483647"),
        ("lsh", {"far_field": 1}, "far_field=1 is not one of: False, True"),
        ("yoso", {"hash_code_len": 40}, "hash_code_len=40 must be a whole number, 1 to 20"),
        ("lsh", {"n_hashes": 10**30}, "must be a whole number, 1 to 2147483647"),
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
    with pytest.raises(ValueError, match=r"value \(2, 2, 8, 3\)"):
        attention.attend("lsh", query, key, value[..., :3])
    with pytest.raises(ValueError, match=r"padding_mask must be bool of shape \(batch, length\) = \(2, 8\)"):
        attention.attend("lsh", query, key, value, torch.ones(2, 8))
    with pytest.raises(ValueError, match=r"got torch.bool of shape \(2, 9\)"):
        attention.attend("lsh", query, key, value, torch.ones(2, 9, dtype=torch.bool))
