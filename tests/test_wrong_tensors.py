"""Tensors as nobody should give them, to every attention with settings of every kind: refused, or the right result."""

import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from albert_lsh import attention
from attention_cases import tensors
from wrong_values import REFUSED, VALUES, answer

NAMES = st.sampled_from(attention.names())
HUGE = ("cluster_size", "bucket_size", "global_tokens", "keys", "top_keys", "full_attn_thres")
FEW = ("hash_code_len", "pinv_iterations")


@st.composite
def with_settings(draw, names=NAMES):
    """An attention and settings that it can take, small enough to compute."""
    name, chosen = draw(names), {}
    for setting in attention.check(name):
        numbers = st.integers(0, 9 if setting in FEW else 60)
        numbers = numbers | st.just(2**31 - 1) if setting in HUGE else numbers
        kinds = {
            "share": st.floats(0.001, 1),
            "mean_key": st.booleans(),
            "conv_kernel_size": st.sampled_from([1, 3, 7]),
        }
        if draw(st.booleans()):
            chosen[setting] = draw(kinds.get(setting, numbers))
    if budget := chosen.keys() & {"share", "keys"}:  # in the place of sizes, and one of them
        left_out = {*attention.ATTENTIONS[name].sizes, *sorted(budget)[1:]}
        chosen = {setting: value for setting, value in chosen.items() if setting not in left_out}
    assume(answer(lambda: attention.check(name, chosen), f"{name}: ") is not REFUSED)
    return name, chosen


def attend(chosen, inputs, mask=None, *, seed=0, heads=None):
    """`attention.attend`, with filters where the settings have a convolution."""
    (name, settings), heads = chosen, heads or inputs[0].shape[1]
    size = settings.get("conv_kernel_size")
    weight = None if size is None else torch.linspace(-1, 1, heads * size).view(heads, size)
    return attention.attend(name, *inputs, mask, seed=seed, conv_weight=weight, **settings)


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.integers(1, 12))
LONG = st.tuples(st.just(2), st.just(1), st.integers(510, 520), st.just(4))
SEEDS = st.integers(0, 99)
LAYOUTS = {
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "dimensions first": lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
    "every other": lambda x: x.repeat_interleave(2, dim=3)[..., ::2],
}


def tokens(shape, seed):
    """A mask with tokens anywhere; some sequences have none."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(shape[0], 1, generator=generator) * 1.4 - 0.2
    return torch.rand(shape[0], shape[2], generator=generator) < share


# float16 ends at 65,504, which scores of larger rows exceed. Sums of products of three rows of 1e12 fit in float32.
KINDS = st.sampled_from([(torch.float32, size) for size in (0.0, 1e-30, 1.0, 50.0, 1e12)])
KINDS |= st.sampled_from([(torch.bfloat16, 1.0), (torch.bfloat16, 100.0), (torch.float16, 1.0), (torch.float64, 1.0)])
GARBAGE = st.sampled_from([float("nan"), float("inf"), float("-inf"), 6e4])


@settings(max_examples=200)
@given(with_settings(), st.integers(0, 19).flatmap(lambda n: SHAPES if n else LONG), SEEDS, KINDS, GARBAGE)
@example(("key-clusters", {"share": 0.25, "global_tokens": 2**31 - 1}), (1, 1, 9, 4), 0, (torch.float32, 1.0), 0.0)
@example(("improved-clustered", {"num_clusters": 60, "top_keys": 60}), (1, 1, 9, 4), 0, (torch.float32, 1.0), 0.0)
@example(("reformer", {"bucket_size": 8}), (1, 1, 40, 4), 0, (torch.float16, 1.0), 0.0)
@example(("reformer", {"bucket_size": 2**31 - 1, "full_attn_thres": 0}), (1, 1, 9, 4), 0, (torch.float32, 1.0), 0.0)
def test_what_is_finite_stays_finite_and_garbage_stays_in_padding(chosen, shape, seed, kind, garbage):
    """Bit by bit: output, gradients, pairs and coverage."""
    mask, (dtype, size) = tokens(shape, seed), kind
    inputs, upstream = [(x * size).to(dtype) for x in tensors(shape, seed=seed)], tensors(shape, dtype, seed + 1)[0]

    def computed(value):
        *leaves, up = (x.masked_fill(~mask[:, None, :, None], value) for x in (*inputs, upstream))
        leaves = [x.requires_grad_() for x in leaves]
        out = attend(chosen, leaves, mask, seed=seed)
        looks = attention.pairs, attention.coverage
        pairs, coverage = (look(chosen[0], *leaves[:2], mask, seed=seed, **chosen[1]) for look in looks)
        grads = torch.autograd.grad(out, leaves, up, materialize_grads=True) if size <= 50 else []
        return [out.detach(), *grads, pairs], coverage

    (out, *others), coverage = computed(0.0)
    assert (out.shape, out.dtype) == (shape, dtype)
    assert all(x.isfinite().all() for x in (out, *others))
    assert not any(x[~mask[:, None].expand(shape[:3])].any() for x in (out, *others))
    again, same = computed(garbage)
    assert all(map(torch.equal, again, (out, *others)))
    assert same == coverage


@settings(max_examples=150)
@given(with_settings(), SHAPES, SEEDS, st.sampled_from([*LAYOUTS]))
@example(("key-clusters", {}), (1, 1, 2, 4), 0, "every other")
def test_neither_layout_in_memory_nor_float64_matters(chosen, shape, seed, layout):
    """float64 is at least as exact; the package of `reformer` draws other directions in it."""
    inputs = tensors(shape, seed=seed)
    expected = attend(chosen, inputs, seed=seed)
    for change in (LAYOUTS[layout], torch.Tensor.double) if chosen[0] != "reformer" else (LAYOUTS[layout],):
        out = attend(chosen, [change(x) for x in inputs], seed=seed)
        # the arc cosine of `yoso-e` keeps half of float32's digits where a query and a key are parallel
        atol = 1e-3 if chosen[0] == "yoso-e" else 2e-5
        torch.testing.assert_close(out.float(), expected, atol=atol, rtol=1e-4)


@settings(max_examples=150)
@given(with_settings(), SHAPES, SEEDS, GARBAGE, st.lists(st.integers(0, 2), min_size=1, unique=True))
def test_garbage_in_a_token_stays_in_its_sequence(chosen, shape, seed, garbage, where):
    inputs = tensors((shape[0] + 1, *shape[1:]), seed=seed)
    for number in where:
        inputs[number][0, :, seed % shape[2], 0] = garbage
    beside = attend(chosen, inputs, seed=seed)[1:]
    torch.testing.assert_close(beside, attend(chosen, [x[1:] for x in inputs], seed=seed))


# In reformer-pytorch the number of buckets follows from the padded length.
OURS = with_settings(st.sampled_from([name for name in attention.names() if name != "reformer"]))


@settings(max_examples=250)
@given(OURS, st.integers(1, 3), st.integers(0, 19).flatmap(lambda n: st.integers(*(2, 40) if n else (505, 560))),
       st.integers(1, 9), st.integers(0, 30), SEEDS, GARBAGE, st.permutations(range(3)))  # fmt: skip
def test_neither_padding_nor_the_others_of_a_batch_change_anything(
    chosen, heads, length, dim, more, seed, garbage, order
):
    """Padding on the right, whatever stands in it; other sequences in another order, or none; to float32's rounding."""
    mask, inputs = tokens((3, heads, length), seed), tensors((3, heads, length, dim), seed=seed)
    expected = attend(chosen, inputs, mask, seed=seed)
    padded = [F.pad(x, (0, 0, 0, more), value=garbage) for x in inputs]
    out = attend(chosen, padded, F.pad(mask, (0, more)), seed=seed)
    torch.testing.assert_close(out, F.pad(expected, (0, 0, 0, more)), atol=1e-5, rtol=1e-4)
    for part in (order, [0]):
        out = attend(chosen, [x[part] for x in inputs], mask[part], seed=seed)
        torch.testing.assert_close(out, expected[part], atol=1e-5, rtol=1e-4)


DAMAGES = {
    "fewer tokens": lambda x: x[:, :, 1:],
    "fewer dimensions": lambda x: x[..., 1:],
    "no batch": lambda x: x[0],
    "an empty batch": lambda x: x[:0],
    "a number": lambda x: 3.0,
    "a list": lambda x: x.tolist(),
    "nothing": lambda x: None,
    "another device": lambda x: x.to("meta"),
    **{str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in
       (torch.int64, torch.bool, torch.complex64, torch.bfloat16, torch.float64)},
}  # fmt: skip
MASKS = {
    "floats": lambda x: x.float(),
    "fewer tokens": lambda x: x[:, 1:],
    "of Transformers": lambda x: x[:, None, None],
    "a list": lambda x: x.tolist(),
    "another device": lambda x: x.to("meta"),
}


@settings(max_examples=300)
@given(
    with_settings(),
    SHAPES,
    st.sets(st.integers(0, 2)),
    st.sampled_from([*DAMAGES]),
    st.none() | st.sampled_from([*MASKS]),
)
def test_tensors_that_do_not_fit_are_named(chosen, shape, damaged, damage, mask_damage):
    inputs, mask = tensors(shape), tokens(shape, 0)
    inputs = [DAMAGES[damage](x) if number in damaged else x for number, x in enumerate(inputs)]
    mask = MASKS[mask_damage](mask) if mask_damage else mask
    out = answer(lambda: attend(chosen, inputs, mask, heads=shape[1]), "query", "padding_mask")
    if out is not REFUSED:
        assert len(damaged) in (0, 3)
        assert mask_damage is None
        assert (out.shape, out.dtype) == (inputs[0].shape, inputs[0].dtype)


@settings(max_examples=100)
@given(NAMES, SEEDS | VALUES, VALUES | st.floats(0, 1), VALUES | st.sampled_from([3]), VALUES)
def test_other_arguments_are_named(name, seed, dropout, size, weight):
    inputs = tensors((1, 2, 9, 4))
    given = {"seed": seed, "dropout": dropout}
    if size is not None and "conv_kernel_size" in attention.check(name):
        given |= {"conv_kernel_size": size, "conv_weight": torch.ones(2, 3) if weight is None else weight}
    out = answer(lambda: attention.attend(name, *inputs, **given), "seed=", "dropout=", "conv_kernel_size=")
    assert out is REFUSED or out.isfinite().all()
