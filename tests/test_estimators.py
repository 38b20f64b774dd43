"""nystrom and yoso: Transformers' originals, and where short references do not look."""

import numpy as np
import pytest
import torch
from transformers import NystromformerConfig, YosoConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

from albert_lsh import attention
from attention_cases import SETTINGS, error, run, tensors

each_name = pytest.mark.parametrize("name", ["nystrom", "yoso", "yoso-e"])


def attend(name, query, key, value, weight=None, *, mask=None, **settings):
    size = {} if weight is None else {"conv_kernel_size": weight.shape[1]}
    settings = {**SETTINGS[name][0], **size, **settings}
    return attention.attend(name, query, key, value, mask, seed=3, conv_weight=weight, **settings)


def original(name, heads, landmarks, window):
    """Transformers' layer, over 48 tokens, and the settings that say the same."""
    torch.manual_seed(0)
    common = {"hidden_size": 8 * heads, "num_attention_heads": heads}
    if name == "yoso-e":
        config = YosoConfig(**common, hash_code_len=7, use_expectation=True, conv_window=window)
        return YosoSelfAttention(config).eval(), {"hash_code_len": 7}
    config = NystromformerConfig(**common, num_landmarks=landmarks, segment_means_seq_len=48, conv_kernel_size=5)
    layer = NystromformerSelfAttention(config).eval()
    layer.init_option, layer.conv_kernel_size = "exact", window  # the pseudo-inverse begins for each head by itself
    return layer, {"num_landmarks": landmarks}


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    ("name", "heads", "landmarks"), [("nystrom", 1, 8), ("nystrom", 3, 8), ("nystrom", 3, 48), ("yoso-e", 3, None)]
)
def test_the_originals_in_transformers(name, heads, landmarks, window):
    """Output, and gradients of hidden states, of every projection and of the filters; 48 landmarks are softmax."""
    layer, settings = original(name, heads, landmarks, window)
    computed = []
    for ours in (False, True):
        layer.zero_grad()
        hidden = torch.randn(2, 48, 8 * heads, generator=torch.Generator().manual_seed(1), requires_grad=True)
        if ours:
            parts = (getattr(layer, part)(hidden) for part in ("query", "key", "value"))
            rows = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]
            weight = layer.conv.weight[:, 0, :, 0] if window else None
            out = attend(name, *rows, weight, **settings).transpose(1, 2).flatten(2)
        else:  # YosoSelfAttention multiplies the values by the mask, so tokens must have ones
            out = layer(hidden, torch.ones(2, 48) if name == "yoso-e" else None)[0]
        out.square().mul(torch.arange(8.0 * heads)).sum().backward()
        grads = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
        computed.append({"out": out.detach(), "hidden": hidden.grad, **grads})
    for part, expected in computed[0].items():
        if part != "key.bias":  # softmax is blind to a constant in all keys: rounding errors on both sides
            assert error([computed[1][part].double()], [expected.double()]) < 2e-5, part


def test_yoso_comes_to_its_expectation_as_one_over_the_root_of_the_hashes():
    rows, counts = tensors((2, 4, 64, 16)), (16, 64, 256, 1024)
    expected = attend("yoso-e", *rows, hash_code_len=4)
    errors = [(attend("yoso", *rows, n_hashes=n, hash_code_len=4) - expected).norm() for n in counts]
    assert np.polyfit(np.log(counts), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.07)


@each_name
def test_autocast_leaves_their_precision_alone(name):
    """Landmarks, inverse and angles are float32 whatever the model around them computes in."""
    inputs, upstream = tensors((2, 3, 40, 8)), tensors((2, 3, 40, 8), seed=2)[0]

    def inside(*rows):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(name, *rows)

    expected = run(lambda *t: attend(name, *t), inputs, upstream)
    assert all(map(torch.equal, run(inside, inputs, upstream), expected))


@pytest.mark.parametrize("iterations", [6, 100])
def test_short_sequences_beside_long_ones_have_softmax_and_finite_gradients(iterations):
    """Fewer tokens than landmarks leave segments empty, and so a matrix without an inverse."""
    inputs, upstream = [3 * t for t in tensors((3, 2, 100, 16))], torch.ones(3, 2, 100, 16)
    mask, settings = torch.arange(100) < torch.tensor([[100], [50], [0]]), {"num_landmarks": 64}
    settings |= {"pinv_iterations": iterations}
    nystrom = run(lambda *t: attend("nystrom", *t, mask=mask, **settings), inputs, upstream)
    softmax = run(lambda *t: attention.attend("softmax", *t, mask), inputs, upstream)
    for one, other in zip(nystrom, softmax, strict=True):
        assert one[0].isfinite().all()
        torch.testing.assert_close(one[1:], other[1:], atol=1e-5, rtol=1e-4)


def test_of_random_vectors_yosos_gradient_from_expectations_is_nearer_to_the_exact_one():
    """Cosines with the gradient of the queries of `yoso-e`, whose weights are those expectations in the sum as well."""
    inputs, upstream = tensors((2, 4, 64, 16)), tensors((2, 4, 64, 16), seed=2)[0]
    exact = run(lambda *t: attend("yoso-e", *t, hash_code_len=6), inputs, upstream)[1]

    def cosine(**settings):
        grad = run(lambda *t: attend("yoso", *t, hash_code_len=6, n_hashes=32, **settings), inputs, upstream)[1]
        return torch.cosine_similarity(grad.flatten(), exact.flatten(), dim=0)

    assert cosine(n2_backward=True) > 0.9 > 0.8 > cosine()


@pytest.mark.parametrize("length", [9, 600])
@pytest.mark.parametrize("name", ["yoso", "yoso-e"])
def test_rows_of_zeros_have_no_gradient_and_spoil_no_other(name, length):
    inputs = [x.detach() for x in tensors((1, 1, length, 4))]
    for rows in inputs[:2]:
        rows[:, :, 3] = 0
    query, key, value = (x.requires_grad_() for x in inputs)
    grads = torch.autograd.grad(attention.attend(name, query, key, value).square().sum(), (query, key, value))
    assert not grads[0][:, :, 3].any()
    assert not grads[1][:, :, 3].any()
    assert max(grad.abs().max() for grad in grads) < 1e3


@pytest.mark.parametrize("name", ["yoso", "yoso-e"])
def test_a_query_that_is_its_key_collides_always(name):
    """The product of a unit vector with itself is rounded to above 1, of which there is no angle."""
    rows, _, value = tensors((2, 3, 64, 33))
    assert (torch.nn.functional.normalize(rows, dim=-1).square().sum(-1) > 1).any()
    computed = run(lambda *t: attend(name, *t), [rows, rows, value], torch.ones_like(value))
    assert all(x.isfinite().all() for x in computed)
    far = {"hash_code_len": 40} if name == "yoso-e" else {"n_hashes": 20, "hash_code_len": 12}
    out = attend(name, 1e3 * rows, rows, value, **far)  # nothing else collides so often
    assert torch.nn.functional.cosine_similarity(out, value, dim=-1).mean() > 0.95
