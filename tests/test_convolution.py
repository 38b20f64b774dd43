"""The convolution of the values: against the reference and the originals, and what it promises."""

import pytest
import torch
from albert_lsh import attention
from albert_lsh.attention import naive
from transformers import NystromformerConfig, YosoConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

REFERENCES = {"nystrom": naive.nystrom, "yoso": naive.yoso, "yoso-e": naive.yoso_e}
SETTINGS = {
    "nystrom": {"num_landmarks": 7},
    "yoso": {"n_hashes": 5, "hash_code_len": 3},
    "yoso-e": {"hash_code_len": 4},
}


def tensors(shape, size):
    """Query, key, value, a filter for each head, and the gradient from above."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator) for s in (shape, shape, shape, (shape[1], size), shape)]


def padding(shape, kind):
    """None, padding at the end, or anywhere; the first sequence is full, every sequence has a token."""
    if kind == "full":
        return None
    lengths = torch.linspace(shape[2], 1, shape[0]).long()[:, None]
    mask = torch.arange(shape[2]) < lengths
    if kind == "scattered":
        mask |= torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    return mask


def out_and_gradients(function, inputs, upstream):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    out.backward(upstream.to(out.dtype))
    return [t.detach().double() for t in (out, *(leaf.grad for leaf in leaves))]


def error(measured, reference):
    difference = sum((m - r).square().sum() for m, r in zip(measured, reference, strict=True))
    return (difference / sum(r.square().sum() for r in reference)).sqrt().item()


@pytest.mark.parametrize("kind", ["full", "padded", "scattered"])
@pytest.mark.parametrize(("shape", "size"), [((1, 1, 1, 3), 3), ((2, 3, 5, 5), 1), ((3, 2, 37, 12), 5)], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_output_and_all_gradients_are_the_references(name, shape, size, kind):
    *inputs, upstream = tensors(shape, size)
    mask, settings = padding(shape, kind), {**SETTINGS[name], "conv_kernel_size": size}

    def ours(query, key, value, weight):
        return attention.attend(name, query, key, value, mask, seed=3, conv_weight=weight, **settings)

    def reference(query, key, value, weight):
        full = {**attention.check(name, settings), "conv_weight": weight, "scaling": shape[-1] ** -0.5}
        return REFERENCES[name](query, key, value, mask, generator=torch.Generator().manual_seed(3), **full)

    found, expected = (out_and_gradients(f, inputs, upstream) for f in (ours, reference))
    assert error(found, expected) < 2e-6
    assert error(found[-1:], expected[-1:]) < 2e-6  # of the filters


def original(name, heads, landmarks):
    """Transformers' layer with a convolution of 5 values, over 48 tokens, and the settings that say the same."""
    torch.manual_seed(0)
    common = {"hidden_size": 8 * heads, "num_attention_heads": heads}
    if name == "yoso-e":
        config = YosoConfig(**common, hash_code_len=7, use_expectation=True, conv_window=5)
        return YosoSelfAttention(config).eval(), {"hash_code_len": 7, "conv_kernel_size": 5}
    config = NystromformerConfig(**common, num_landmarks=landmarks, segment_means_seq_len=48, conv_kernel_size=5)
    layer = NystromformerSelfAttention(config).eval()
    layer.init_option = "exact"  # the pseudo-inverse begins for each head and sequence by itself, as ours does
    return layer, {"num_landmarks": landmarks, "conv_kernel_size": 5}


@pytest.mark.parametrize(
    ("name", "heads", "landmarks"),
    [("nystrom", 1, 8), ("nystrom", 3, 8), ("nystrom", 3, 48), ("yoso-e", 1, None), ("yoso-e", 3, None)],
)
def test_the_originals_in_transformers(name, heads, landmarks):
    """Output, and the gradients of hidden states, of every projection and of the filters; 48 landmarks are softmax."""
    layer, settings = original(name, heads, landmarks)
    found = []
    for ours in (False, True):
        layer.zero_grad()
        hidden = torch.randn(2, 48, 8 * heads, generator=torch.Generator().manual_seed(1), requires_grad=True)
        if ours:
            rows = [
                getattr(layer, part)(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            ]
            out = attention.attend(name, *rows, conv_weight=layer.conv.weight[:, 0, :, 0], **settings)
            out = out.transpose(1, 2).flatten(2)
        else:  # YosoSelfAttention multiplies the values by the mask, so tokens must have ones
            out = layer(hidden, torch.ones(2, 48) if name == "yoso-e" else None)[0]
        out.square().mul(torch.arange(8.0 * heads)).sum().backward()
        found.append([out.detach(), hidden.grad, *(p.grad.clone() for p in layer.parameters())])
    assert layer.conv.weight.grad.norm() > 1
    for name_of, one, other in zip(["out", "hidden", *dict(layer.named_parameters())], *found, strict=True):
        if name_of != "key.bias":  # softmax is blind to a constant in all keys: rounding errors on both sides
            assert error([other.double()], [one.double()]) < 2e-5, name_of


@pytest.mark.parametrize("name", SETTINGS)
def test_padding_does_not_leak_into_tokens(name):
    """The same sequences in a longer batch, with anything at all in the padding."""
    query, key, value, weight, _ = tensors((2, 3, 40, 8), 7)
    mask = torch.arange(40) < torch.tensor([[23], [11]])
    settings = {**SETTINGS[name], "conv_kernel_size": 7, "conv_weight": weight}
    out = attention.attend(name, query, key, value, mask, **settings)
    short = attention.attend(name, *(x[:, :, :23] for x in (query, key, value)), mask[:, :23], **settings)
    torch.testing.assert_close(out[:, :, :23], short)
    alone = attention.attend(name, *(x[1:, :, :11] for x in (query, key, value)), **settings)
    torch.testing.assert_close(out[1:, :, :11], alone)
    assert not out[:, :, 23:].any()
    assert not out[1, :, 11:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_weights_of_zero_change_nothing(name, dtype):
    query, key, value, weight, _ = tensors((2, 3, 19, 8), 5)
    rows, settings = [x.to(dtype) for x in (query, key, value)], SETTINGS[name]
    plain = attention.attend(name, *rows, padding((2, 3, 19, 8), "padded"), **settings)
    settings = {**settings, "conv_kernel_size": 5}
    mask = padding((2, 3, 19, 8), "padded")
    assert torch.equal(attention.attend(name, *rows, mask, conv_weight=0 * weight, **settings), plain)
    assert not torch.equal(attention.attend(name, *rows, mask, conv_weight=weight, **settings), plain)


def test_half_precision_rounds_no_worse_than_the_values():
    """bfloat16 keeps 8 bits: the convolution's share of the output is off by a rounding or two."""
    query, key, value, weight, _ = tensors((2, 3, 19, 8), 5)
    rows, settings = [x.bfloat16() for x in (query, key, value)], {"hash_code_len": 4}
    plain = attention.attend("yoso-e", *(x.float() for x in rows), **settings)
    settings |= {"conv_kernel_size": 5, "conv_weight": weight.bfloat16()}
    exact = attention.attend("yoso-e", *(x.float() for x in rows), **settings)
    out = attention.attend("yoso-e", *rows, **settings)
    assert out.dtype == torch.bfloat16
    assert (out - exact).norm() < 2**-8 * (exact - plain).norm()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nystrom", {"conv_kernel_size": 4}, "nystrom: conv_kernel_size=4 must be an odd whole number, 1 or more"),
        ("yoso", {"conv_kernel_size": -3}, "yoso: conv_kernel_size=-3 must be an odd whole number"),
        ("yoso-e", {"conv_kernel_size": 3.0}, "yoso-e: conv_kernel_size=3.0 must be an odd whole number"),
        ("yoso", {"conv_kernel_size": True}, "conv_kernel_size=True must be an odd whole number"),
        ("softmax", {"conv_kernel_size": 3}, "attention 'softmax' has no setting 'conv_kernel_size'"),
        ("softmax", {"conv_weight": torch.ones(2, 3)}, "attention 'softmax' has no convolution of the values"),
        ("nystrom", {"conv_kernel_size": 3}, r"conv_kernel_size=3 needs conv_weight of shape .* = (2, 3); got None"),
        ("yoso", {"conv_kernel_size": 3, "conv_weight": torch.ones(2, 5)}, r"= (2, 3); got (2, 5)"),
        ("yoso-e", {"conv_weight": torch.ones(2, 5)}, r"conv_kernel_size=None needs .* = None; got (2, 5)"),
    ],
)
def test_bad_kernels_are_named(name, settings, message):
    rows = [torch.ones(1, 2, 8, 4)] * 3
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        attention.attend(name, *rows, **settings)
