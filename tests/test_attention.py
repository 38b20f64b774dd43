"""What all attentions promise: pairs, coverage, padding, the batch, seeds, dropout, dtypes, errors in words."""

import pytest
import torch

from albert_lsh import attention
from attention_cases import ALL, HASHED, QUARTER, SETTINGS, WITH_MEAN_KEY, each, padding, run, tensors

NO_WEIGHTS = ("nystrom", "yoso", "yoso-e")  # that are dropped


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@each(ALL)
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


MISSING_SOME = {
    "key-clusters": {"n_hashes": 2, "cluster_size": 3},
    "lsh": {"n_hashes": 2, "cluster_size": 4},
    "random": {"n_hashes": 9, "cluster_size": 5},
    "window": {"keys": 5, "global_tokens": 1},
    "top-k": {"keys": 5},
}
WITH_MEAN = [(name, {**settings, "mean_key": True}) for name, settings in MISSING_SOME.items()]


@each([*ALL, *WITH_MEAN])
def test_coverage_is_the_share_of_pairs_and_of_softmaxs_mass(name, settings):
    """The mean key is one of each query that misses any; the cost is that of the sequences without their padding."""
    lengths = torch.tensor([23, 4])  # all four may be seen
    (query, key, _), mask = tensors((2, 2, 23, 8)), torch.arange(23) < lengths[:, None]
    met = attention.pairs(name, query, key, mask, seed=7, **settings) > 0
    misses = (met.sum(-1) < lengths[:, None, None]) & mask[:, None] & settings.get("mean_key", False)
    assert misses.any() == ((name, settings) in WITH_MEAN)
    mass, products = 0.0, 0.0
    for b, n in enumerate(lengths.tolist()):
        weights = (query[b, :, :n] @ key[b, :, :n].transpose(-1, -2) * 8**-0.5).softmax(-1)
        mass += float((weights * met[b, :, :n, :n]).sum())
        products += attention.cost(name, n, 8, **settings) * n**2
    expected = int(met.sum() + misses.sum()) / (2 * (23**2 + 4**2)), mass / (2 * 27), products / (23**2 + 4**2)
    assert attention.coverage(name, query, key, mask, seed=7, **settings) == pytest.approx(expected)
    assert attention.coverage(name, query, key, torch.zeros_like(mask), **settings) == (0, 0, 0)
    rows = {*MISSING_SOME, "shared-qk-lsh"}  # which has the mean of all tokens
    assert rows == set(WITH_MEAN_KEY), "an attention with a mean key has a row in MISSING_SOME, tests/test_attention.py"


@pytest.mark.parametrize("length", [40, 600])
@each([*ALL, *WITH_MEAN])
def test_autocast_changes_nothing(name, settings, length):
    """A model that is trained in mixed precision hands its attention bfloat16; sums of keys stay float32."""
    shape = (1, 2, length, 8)
    inputs, upstream = tensors(shape, dtype=torch.bfloat16), tensors(shape, seed=2, dtype=torch.bfloat16)[0]

    def attend(*rows):
        return attention.attend(name, *rows, seed=7, **settings)

    def inside(*rows):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(*rows)

    assert all(map(torch.equal, run(inside, inputs, upstream), run(attend, inputs, upstream)))


# Among keys with equal scores, or nearly, these choose as rounding has it.
TIES = ("reformer", "key-clusters", "top-k", "improved-clustered")


@pytest.mark.parametrize("length", [40, 600])
@each([c for c in QUARTER if c[0] not in TIES])
def test_equal_tokens_do_not_depend_on_their_batch(name, settings, length):
    """Of a few kinds of tokens, or one: rounding must not decide whose turn it is."""
    inputs, few, n = tensors((3, 2, length, 16)), tensors((1, 2, 5, 16), seed=1), length - 3
    for kinds in (5, 1):
        for tensor, kind in zip(inputs[:2], few, strict=False):
            tensor[1, :, :n] = kind[0, :, torch.arange(n) * 7 % kinds]
        mask = torch.arange(length) < torch.tensor([length, n, length // 2])[:, None]
        together = attention.attend(name, *inputs, mask, seed=1, **settings)[1:2, :, :n]
        alone = attention.attend(name, *(rows[1:2, :, :n] for rows in inputs), seed=1, **settings)
        torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", [*HASHED, "reformer"])
def test_seeds_decide_the_hashes(name):
    """`key-clusters` draws nothing."""
    inputs, settings = tensors((1, 2, 40, 8)), SETTINGS[name][0]
    first, again, other = (attention.attend(name, *inputs, seed=s, **settings) for s in (5, 5, 6))
    assert torch.equal(first, again)
    assert torch.equal(first, other) is (name == "key-clusters")


@pytest.mark.parametrize("length", [24, 600])
@each([*(c for c in QUARTER if c[0] not in NO_WEIGHTS), ("key-clusters", {"share": 0.4, "mean_key": False})])
def test_dropout_drops_weights_and_keeps_the_mean(name, settings, length):
    """In the backward pass the same ones: the gradient of the values is that of the weights that were kept."""
    (query, key, _), value = tensors((1, 1, length, 8)), torch.ones(1, 1, length, 8, requires_grad=True)
    torch.manual_seed(0)
    draws = range(200 if length < 100 else 10)
    seeds = draws if name == "reformer" else [0] * len(draws)  # the package's dropout follows the seed too
    outs = [attention.attend(name, query, key, value, seed=s, dropout=0.5, **settings) for s in seeds]
    assert torch.stack(outs).std(0).mean() > 0.01  # without dropout every output is 1
    assert torch.stack(outs).mean().item() == pytest.approx(1.0, abs=0.03)
    (grad,) = torch.autograd.grad(outs[0].sum(), value)
    assert grad.sum() == pytest.approx(outs[0].sum().item(), rel=1e-4)
    assert not attention.attend("key-clusters", query, key, value, dropout=1.0, share=0.3, mean_key=False).any()


@pytest.mark.parametrize("length", [24, 600])
def test_weights_add_up_where_scores_are_large(length):
    """The output for values of 1 is 1, and so no query has a gradient."""
    query, key, value = (x.requires_grad_() for x in tensors((1, 1, length, 8)))
    out = attention.attend("key-clusters", query * 30, key * 30, torch.ones_like(value), share=0.25)
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-6, rtol=0)
    (grad,) = torch.autograd.grad(out.sum(), query)
    assert grad.abs().max() < 1e-2


@pytest.mark.parametrize("length", [23, 700])
@each(QUARTER)
def test_torchs_default_dtype_and_device_change_nothing(name, settings, length):
    """Other libraries set them, and every tensor that is made without a dtype or a device follows them."""
    shape = (2, 2, length, 8)
    inputs, mask, upstream = tensors(shape), padding(shape, "padded"), tensors(shape, seed=1)[0]

    def computed(dtype, device):
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                seen = attention.coverage(name, *inputs[:2], mask, seed=3, **settings)
                return seen, run(lambda *t: attention.attend(name, *t, mask, seed=3, **settings), inputs, upstream)
        finally:
            torch.set_default_dtype(torch.float32)

    expected_seen, expected = computed(torch.float32, "cpu")
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")):
        seen, again = computed(dtype, device)
        assert all(map(torch.equal, again, expected)), dtype
        assert seen == pytest.approx(expected_seen, abs=1e-6), dtype


TWICE = {"softmax-eager", "shared-qk", "improved-clustered", "reformer"}  # in torch's own operations alone


@pytest.mark.parametrize("length", [23, 700])
@each([case for case in QUARTER if case[0] not in TWICE])
def test_second_derivatives_are_refused(name, settings, length):
    rows = [x.requires_grad_() for x in tensors((1, 1, length, 4))]
    out = attention.attend(name, *rows, seed=3, **settings)

    def twice():
        slopes = torch.autograd.grad(out.sin().sum(), rows, create_graph=True, materialize_grads=True)
        return torch.autograd.grad(sum(slope.sum() for slope in slopes), rows, materialize_grads=True)

    with pytest.raises((ValueError, RuntimeError), match="this attention has first|_backward is not implemented"):
        twice()


@pytest.mark.parametrize("length", [300, 600])
@pytest.mark.parametrize("name", [name for name in attention.names() if name != "reformer"])
def test_large_scores_in_float16_stay_finite(name, length):
    query, key, value = (x.half() for x in tensors((1, 2, length, 32)))
    inputs = query * 300, key * 300, value
    computed = run(lambda *t: attention.attend(name, *t, dropout=0.1), inputs, torch.ones_like(value))
    assert all(x.isfinite().all() for x in computed)


@pytest.mark.parametrize("length", [40, 600])
def test_lsh_does_not_hide_nan(length):
    """A key that is NaN makes its cluster's score NaN, which counts as the highest: every query sees it."""
    query, key, value = tensors((1, 2, length, 4))
    key[0, 1, 30, 2] = torch.nan
    out = attention.attend("key-clusters", query, key, value, n_hashes=2, cluster_size=4, global_tokens=0)
    assert out.isnan().flatten(2).any(-1).tolist() == [[False, True]]
    assert out[0, 1].isnan().all()


def test_lsh_finds_similar_keys_where_random_does_not():
    """Every key has one query that matches it: with clusters of an eighth, hashing finds most of the mass."""
    generator = torch.Generator().manual_seed(0)
    key = torch.nn.functional.normalize(torch.randn(1, 4, 128, 16, generator=generator), dim=-1) * 4
    query = key[:, :, torch.randperm(128, generator=generator)] * 2
    names = ("key-clusters", "lsh", "random")
    shares = {n: attention.coverage(n, query, key, n_hashes=2, cluster_size=16) for n in names}
    assert min(shares["key-clusters"].mass, shares["lsh"].mass) > 2 * shares["random"].mass
    assert shares["key-clusters"].pairs == pytest.approx(shares["random"].pairs, abs=0.03)
