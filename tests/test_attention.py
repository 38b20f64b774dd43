"""What all attentions promise: pairs, budgets, padding, seeds, dropout, named errors; outputs: test_references.py."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from albert_lsh import attention
from albert_lsh.attention import lsh
from attention_cases import ALL, BUDGETED, CASES, HASHED, SETTINGS, WITH_REST, padding, run, tensors


def test_mean_keys_count_as_pairs():
    """40 tokens, 2 seen by all, the other 38 in 10 clusters of at most 4, one of which each query chooses."""
    query, key, _ = tensors((1, 2, 40, 8))
    settings = {"n_hashes": 1, "cluster_size": 4, "global_tokens": 2}
    near = attention.coverage("lsh", query, key, **settings)
    rest = attention.coverage("lsh", query, key, **settings, rest=True)
    assert (2 + 3) / 40 <= near.pairs <= (2 + 4) / 40
    assert rest.pairs - near.pairs == pytest.approx(1 / 40)
    assert near.mass == rest.mass


def few_keys(name):
    """Settings with which a query misses some keys; none where there is no budget."""
    return [{"keys": 5}] if attention.ATTENTIONS[name].spend else [{}]


REST_OF = {
    "lsh": [{"n_hashes": 2, "cluster_size": 3}],
    "plain-lsh": [{"n_hashes": 2, "cluster_size": 4}],
    "random": [{"n_hashes": 9, "cluster_size": 5}],
    "window": [{"keys": 5, "global_tokens": 1}],
}
# shared-qk-lsh has the mean of all tokens.
MISSING_SOME = [(n, s) for n in WITH_REST if n != "shared-qk-lsh" for s in REST_OF.get(n, few_keys(n))]


@pytest.mark.parametrize(("name", "settings"), MISSING_SOME, ids=lambda x: x if isinstance(x, str) else "")
def test_the_rest_is_one_key_of_each_query_that_misses_any(name, settings):
    """Padding, and the 4 tokens of the second sequence, which windows and clusters may see whole, have none."""
    query, key, _ = tensors((2, 2, 23, 8))
    mask = torch.arange(23) < torch.tensor([[23], [4]])
    settings = {**settings, "rest": True}  # it takes one of `keys`
    met = attention.pairs(name, query, key, mask, seed=7, **settings) > 0
    misses = (met.sum(-1) < mask.sum(-1)[:, None, None]) & mask[:, None]
    assert misses.any()
    seen = attention.coverage(name, query, key, mask, seed=7, **settings)
    assert seen.pairs == pytest.approx(int(met.sum() + misses.sum()) / (2 * (23**2 + 4**2)))


def test_the_rest_of_shared_qk_lsh_is_the_mean_of_all_tokens():
    query, key, _ = tensors((1, 2, 23, 8))
    with_rest, without = (
        attention.coverage("shared-qk-lsh", query, key, bucket_size=4, n_hashes=1, rest=rest) for rest in (True, False)
    )
    assert with_rest.pairs - without.pairs == pytest.approx(1 / 23)


class Largest(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.is_contiguous():  # an expanded view takes no memory
            self.numbers = max(self.numbers, out.numel())
        return out


def test_choosing_clusters_needs_no_table_of_all_queries_and_clusters():
    """16,384 queries and 4,096 clusters are 2 ** 26 pairs; no more than 2 ** 20 numbers are there at once."""
    settings = attention.check("lsh", {"n_hashes": 1, "cluster_size": 4, "global_tokens": 0})
    with Largest() as largest:
        see(*tensors((1, 1, 2**14, 4))[:2], settings)
    assert largest.numbers <= 2**20


def see(query, key, settings):
    settings = {name: value for name, value in settings.items() if name not in ("share", "keys", "rest")}
    mask = torch.ones(query.shape[:3], dtype=torch.bool)
    return lsh.see(query, key, mask, scaling=0.5, generator=torch.Generator().manual_seed(0), **settings)


def test_how_many_queries_choose_at_once_changes_nothing():
    """Alone, all queries of a sequence choose at once; in a batch of twenty, some hundred at a time."""
    inputs = tensors((20, 1, 600, 4))
    together = attention.attend("lsh", *inputs, cluster_size=3)
    alone = attention.attend("lsh", *(t[7:8] for t in inputs), cluster_size=3)
    torch.testing.assert_close(together[7:8], alone)


@pytest.mark.parametrize("settings", [{"share": 0.25}, {}], ids=["README", "no settings"])
@pytest.mark.parametrize("length", [64, 128, 256, 512, 1024, 2048])
def test_lsh_sees_less_than_three_tenths_of_the_pairs(length, settings):
    query, key, _ = tensors((1, 1, length, 8))
    seen = attention.coverage("lsh", query, key, None, **settings)
    assert 0.15 < seen.pairs < 0.3


def test_four_thousand_tokens_at_a_sixteenth():
    out = attention.attend("lsh", *tensors((1, 1, 4096, 16)), share=1 / 16)
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
    """And its cost that of the sequences without their padding."""
    shape = (2, 2, 23, 8)
    (query, key, _), mask = tensors(shape), padding(shape, "padded")
    met = attention.pairs(name, query, key, mask, seed=7, **settings) > 0
    pairs, mass, queries, products = 0, 0.0, 0, 0.0
    for b in range(2):
        n = int(mask[b].sum())
        for h in range(2):
            weights = (query[b, h, :n] @ key[b, h, :n].T * 8**-0.5).softmax(-1)
            pairs += int(met[b, h].sum())
            mass += float((weights * met[b, h, :n, :n]).sum())
            queries += n
        products += attention.cost(name, n, 8, **settings) * n**2
    seen = attention.coverage(name, query, key, mask, seed=7, **settings)
    assert seen.pairs == pytest.approx(pairs / (2 * (23**2 + 1)))
    assert seen.mass == pytest.approx(mass / queries)
    assert seen.cost == pytest.approx(products / (23**2 + 1))


WITH_PADDING = [*CASES, ("reformer", SETTINGS["reformer"][0]), ("reformer", {"full_attn_thres": 10**6})]


def some_padding(length):
    """Three sequences: without padding, with padding anywhere, and of three tokens."""
    mask = torch.rand(3, length, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0], mask[2] = True, torch.arange(length) < 3
    return mask


def filled(rows, mask, value):
    return rows.masked_fill(~mask[:, None, :, None], value)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 2, 40, 8), torch.float32), ((3, 2, 40, 8), torch.bfloat16), ((3, 1, 520, 4), torch.float32)],
    ids=str,
)
@pytest.mark.parametrize(("name", "settings"), WITH_PADDING, ids=lambda x: x if isinstance(x, str) else "")
def test_whatever_stands_in_padding_changes_nothing_and_gets_nothing(name, settings, shape, dtype):
    """Bit by bit what zeros in padding give, and zeros for the padding, in the output and in all gradients."""
    inputs, mask = tensors(shape, dtype), some_padding(shape[2])
    upstream = tensors(shape, seed=1)[0]

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


@pytest.mark.parametrize(("name", "settings"), WITH_PADDING, ids=lambda x: x if isinstance(x, str) else "")
def test_whatever_stands_in_padding_is_never_looked_at(name, settings):
    inputs, mask = tensors((3, 2, 40, 8)), some_padding(40)
    zeros, nans = ([filled(t, mask, value) for t in inputs[:2]] for value in (0.0, torch.nan))
    seen = attention.pairs(name, *zeros, mask, seed=1, **settings)
    assert torch.equal(attention.pairs(name, *nans, mask, seed=1, **settings), seen)
    coverage = attention.coverage(name, *nans, mask, seed=1, **settings)
    assert coverage == attention.coverage(name, *zeros, mask, seed=1, **settings)
    assert 0 < coverage.pairs <= 1
    assert 0 < coverage.mass <= 1.001


BUDGETS = [(name, {"share": share}) for name in BUDGETED for share in (0.3, 0.6)]
RESTS = [(name, {"share": 0.4, "rest": True}) for name in WITH_REST if name in BUDGETED]


@pytest.mark.parametrize("lengths", [(40, 17, 3), (560, 530, 40)], ids=str)
@pytest.mark.parametrize(
    ("name", "settings"),
    [*(c for c in ALL if c[0] != "reformer"), *BUDGETS, *RESTS],
    ids=lambda x: x if isinstance(x, str) else "-".join(f"{k}={v}" for k, v in x.items()),
)
def test_a_sequence_does_not_depend_on_its_batch(name, settings, lengths):
    """The same sequence alone and beside longer ones: no padding in its clusters, the same hashes, its own budget."""
    inputs = tensors((3, 2, lengths[0], 8))
    mask = torch.arange(lengths[0]) < torch.tensor(lengths)[:, None]
    together = attention.attend(name, *inputs, mask, seed=1, **settings)
    for b, n in enumerate(lengths):
        alone = attention.attend(name, *(t[b : b + 1, :, :n] for t in inputs), seed=1, **settings)
        torch.testing.assert_close(together[b : b + 1, :, :n], alone)


# Among keys with equal scores, or nearly, these choose as rounding has it (docs/faults.md says so).
TIES = ("reformer", "lsh", "top-k", "improved-clustered")


@pytest.mark.parametrize("length", [40, 600])
@pytest.mark.parametrize(
    ("name", "settings"), [c for c in ALL if c[0] not in TIES], ids=lambda x: x if isinstance(x, str) else ""
)
def test_equal_tokens_do_not_depend_on_their_batch_either(name, settings, length):
    """Of a few kinds of tokens, or one: rounding must not decide whose turn it is."""
    inputs, few = tensors((3, 2, length, 16)), tensors((1, 2, 5, 16), seed=1)
    settings = {"share": 0.25} if attention.ATTENTIONS[name].spend else settings
    n = length - 3
    for kinds in (5, 1):
        which = torch.arange(n) * 7 % kinds
        for rows, kind in zip(inputs[:2], few, strict=False):
            rows[1, :, :n] = kind[0, :, which]
        mask = torch.arange(length) < torch.tensor([length, n, length // 2])[:, None]
        together = attention.attend(name, *inputs, mask, seed=1, **settings)[1:2, :, :n]
        alone = attention.attend(name, *(rows[1:2, :, :n] for rows in inputs), seed=1, **settings)
        torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("tokens", [9, 0], ids=["beside another", "alone"])
@pytest.mark.parametrize("length", [9, 520])
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
    ("name", "settings"),
    [*(c for c in ALL if attention.ATTENTIONS[c[0]].drops), RESTS[0]],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_dropout_drops_weights_and_keeps_the_mean(name, settings):
    query, key, _ = tensors((1, 1, 24, 8))
    value = torch.ones(1, 1, 24, 8)
    torch.manual_seed(0)
    seeds = range(400) if name == "reformer" else [0] * 400  # the package's dropout follows the seed too
    outs = torch.stack([attention.attend(name, query, key, value, seed=s, dropout=0.5, **settings) for s in seeds])
    assert outs.std(0).mean() > 0.05  # without dropout every output is 1
    assert outs.mean().item() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("length", [23, 700])
@pytest.mark.parametrize(("name", "settings"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_torchs_default_dtype_changes_nothing(name, settings, length):
    """Other libraries set it, and every tensor that is made without a dtype follows it."""
    inputs, mask = tensors((2, 2, length, 8)), padding((2, 2, length, 8), "padded")
    settings = settings if length < 100 or not attention.ATTENTIONS[name].spend else {"share": 0.25}

    def everything():
        rows = [x.clone().requires_grad_() for x in inputs]
        out = attention.attend(name, *rows, mask, dropout=0.0, seed=3, **settings)
        seen = attention.coverage(name, *rows[:2], mask, seed=3, **settings)
        return [out, *torch.autograd.grad(out.square().sum(), rows, allow_unused=True, materialize_grads=True)], seen

    expected, seen = everything()
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            got, seen_again = everything()
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(map(torch.equal, got, expected)), dtype
        assert seen_again == pytest.approx(seen, abs=1e-6), dtype


TWICE = {"softmax-eager", "shared-qk", "linear", "improved-clustered", "reformer"}


@pytest.mark.parametrize("length", [23, 700])
@pytest.mark.parametrize(("name", "settings"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_second_derivatives_are_right_or_refused(name, settings, length):
    """By the way of finite differences of the first; what refuses says so, ours with what can do it."""
    rows = [x.requires_grad_() for x in tensors((1, 1, length, 4))]
    settings = settings if length < 100 or not attention.ATTENTIONS[name].spend else {"share": 0.25}

    def slope(*given, graph=False):
        out = attention.attend(name, *given, seed=3, **settings)
        return torch.autograd.grad(out.sin().sum(), given, create_graph=graph, materialize_grads=True)

    direction = [torch.zeros_like(rows[0]), torch.zeros_like(rows[1]), torch.ones_like(rows[2])]  # moves no choice

    def twice():
        along = sum((g * d).sum() for g, d in zip(slope(*rows, graph=True), direction, strict=True))
        return torch.autograd.grad(along, rows, materialize_grads=True)

    if name not in TWICE:
        with pytest.raises((ValueError, RuntimeError), match="this attention has first|_backward is not implemented"):
            twice()
        return
    second = twice()
    step = 1e-2
    ends = [slope(*((r + sign * step * d).detach().requires_grad_() for r, d in zip(rows, direction, strict=True)))
            for sign in (1, -1)]  # fmt: skip
    for got, above, below in zip(second, *ends, strict=True):
        torch.testing.assert_close(got, (above - below) / (2 * step), atol=2e-3, rtol=2e-2)


def test_large_scores_in_float16_stay_finite():
    query, key, value = (x.half() for x in tensors((1, 2, 300, 32)))
    query, key = query * 300, key * 300
    for name in attention.names():
        if name != "reformer":
            rows = [x.clone().requires_grad_() for x in (query, key, value)]
            out = attention.attend(name, *rows, dropout=0.1)
            out.float().sum().backward()
            assert out.isfinite().all(), name
            assert all(x.grad is None or x.grad.isfinite().all() for x in rows), name


def test_lsh_finds_similar_keys_where_random_does_not():
    """Every key has one query that matches it: with clusters of an eighth, hashing finds most of the mass."""
    generator = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(torch.randn(1, 4, 128, 16, generator=generator), dim=-1) * 4
    query = key[:, :, torch.randperm(128, generator=generator)] * 2
    names = ("lsh", "plain-lsh", "random")
    shares = {n: attention.coverage(n, query, key, n_hashes=2, cluster_size=16) for n in names}
    assert min(shares["lsh"].mass, shares["plain-lsh"].mass) > 2 * shares["random"].mass
    assert shares["lsh"].pairs == pytest.approx(shares["random"].pairs, abs=0.03)


def test_controls_have_lshs_number_of_keys():
    query, key, _ = tensors((1, 2, 60, 8))
    rounds = {"n_hashes": 3, "cluster_size": 6}
    settings = {
        "lsh": {**rounds, "global_tokens": 0}, "plain-lsh": rounds, "random": rounds,
        "window": {"keys": 18}, "top-k": {"keys": 18},
    }  # fmt: skip
    for name, given in settings.items():
        assert attention.pairs(name, query, key, **given).sum(-1).unique().tolist() == [18], name


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lhs", {}, "attention='lhs' is not one of: softmax, softmax-eager, reformer"),
        ("lsh", {"n_hash": 2}, "attention 'lsh' has no setting 'n_hash'; it has: share, keys, n_hashes, cluster_size"),
        ("lsh", {"cluster_size": 0}, "lsh: cluster_size=0 must be a whole number, 1 to 2147483647"),
        ("lsh", {"n_hashes": 0}, "n_hashes=0 must be a whole number, 1 to 2147483647"),
        ("lsh", {"n_hashes": 10**30}, "must be a whole number, 1 to 2147483647"),
        ("lsh", {"n_hashes": 2.0}, "n_hashes=2.0 must be a whole number"),
        ("plain-lsh", {"rest": None}, "rest=None is not one of: False, True"),
        ("plain-lsh", {"global_tokens": 2}, "attention 'plain-lsh' has no setting 'global_tokens'"),
        ("window", {"keys": 0}, "window: keys=0 must be a whole number, 1 to 2147483647"),
        ("window", {"n_hashes": 2}, "attention 'window' has no setting 'n_hashes'; it has: share, keys, global_tokens"),
        ("shared-qk-lsh", {"bucket_size": 1}, "shared-qk-lsh: bucket_size=1 must be a whole number, 2 to 2147483647"),
        ("yoso", {"hash_code_len": 40}, "hash_code_len=40 must be a whole number, 1 to 20"),
        ("reformer", {"bucket_size": None}, "bucket_size=None must be a whole number"),
        ("reformer", {"share": 0.25}, "attention 'reformer' has no setting 'share'"),
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
