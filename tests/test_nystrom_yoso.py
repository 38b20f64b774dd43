"""nystrom and yoso where short references on small tensors do not look: autocast, dropout, pieces, extremes."""

import pytest
import torch

from albert_lsh import attention
from albert_lsh.attention import yoso
from attention_cases import error

SETTINGS = {
    "nystrom": {"num_landmarks": 7},
    "yoso": {"n_hashes": 5, "hash_code_len": 3},
    "yoso-e": {"hash_code_len": 4},
}


def tensors(shape):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def out_and_gradients(name, inputs, mask=None, **settings):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = attention.attend(name, *leaves, mask, seed=3, **settings)
    out.mul(torch.arange(1.0, out.shape[-1] + 1)).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("name", SETTINGS)
def test_autocast_leaves_their_precision_alone(name):
    """Landmarks, inverse and angles are float32 whatever the model around them computes in."""
    inputs = tensors((2, 3, 40, 8))
    plain, *grads = out_and_gradients(name, inputs, **SETTINGS[name])
    leaves = [t.clone().requires_grad_() for t in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        inside = attention.attend(name, *leaves, seed=3, **SETTINGS[name])
    inside.mul(torch.arange(1.0, 9)).sum().backward()  # outside, as Trainer does
    for one, other in zip([inside, *(leaf.grad for leaf in leaves)], [plain, *grads], strict=True):
        assert torch.equal(one, other)


def test_dropout_of_nystrom_also_drops_in_short_sequences():
    query, key, _ = tensors((1, 1, 6, 8))
    torch.manual_seed(0)
    value = torch.ones(1, 1, 6, 8)
    outs = [attention.attend("nystrom", query, key, value, dropout=0.5, num_landmarks=6) for _ in range(400)]
    assert torch.stack(outs).std(0).mean() > 0.05  # without dropout every output is 1
    assert torch.stack(outs).mean().item() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("iterations", [6, 100])
def test_short_sequences_beside_long_ones_have_softmax_and_finite_gradients(iterations):
    """Fewer tokens than landmarks leave segments empty, and so a matrix without an inverse."""
    inputs = [3 * t for t in tensors((3, 4, 200, 16))]
    mask = torch.arange(200) < torch.tensor([[200], [100], [0]])
    found = out_and_gradients("nystrom", inputs, mask, num_landmarks=128, pinv_iterations=iterations)
    softmax = out_and_gradients("softmax", inputs, mask)
    for one, other in zip(found, softmax, strict=True):
        assert one[0].isfinite().all()
        torch.testing.assert_close(one[1:], other[1:])


@pytest.mark.parametrize("at_once", [1, 900, 3000])
def test_yosos_backward_in_pieces_is_the_whole(at_once, monkeypatch):
    """12 dimensions of the values one at a time, a few at a time (the last piece smaller), and all at once."""
    monkeypatch.setattr(yoso, "PAIRWISE_LENGTH", 0)
    inputs = tensors((2, 3, 9, 12))
    whole = out_and_gradients("yoso", inputs, **SETTINGS["yoso"])
    monkeypatch.setattr(yoso, "TABLE_NUMBERS", at_once)
    for one, other in zip(out_and_gradients("yoso", inputs, **SETTINGS["yoso"]), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_yosos_tables_are_its_pairs_at_the_length_where_one_takes_over():
    """The last token is padding: what is left is the same on both sides."""
    length = yoso.PAIRWISE_LENGTH + 1
    inputs = tensors((2, 2, length, 8))
    mask = (torch.arange(length) < length - 1).expand(2, -1)
    tables = out_and_gradients("yoso", inputs, mask)
    pairs = out_and_gradients("yoso", [t[:, :, :-1] for t in inputs], mask[:, :-1])
    assert error([t[:, :, :-1] for t in tables], pairs) < 2e-6  # measured: 2.2e-7


@pytest.mark.parametrize("name", ["yoso", "yoso-e"])
def test_a_query_that_is_its_key_collides_always(name):
    """The product of a unit vector with itself is rounded to above 1, of which there is no angle."""
    rows, _, value = tensors((2, 3, 64, 33))
    products = torch.nn.functional.normalize(rows, dim=-1).square().sum(-1)
    assert (products > 1).any()
    for found in out_and_gradients(name, [rows, rows, value], **SETTINGS[name]):
        assert found.isfinite().all()
    far = {"hash_code_len": 40} if name == "yoso-e" else {"n_hashes": 20, "hash_code_len": 12}
    out = attention.attend(name, 1e3 * rows, rows, value, **far)  # nothing else collides so often
    near = torch.nn.functional.cosine_similarity(out, value, dim=-1)
    assert near.mean() > 0.95
