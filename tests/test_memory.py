"""Recomputed activations change no result."""

import copy

import pytest
import torch

from albert_lsh import load_model, recompute_activations, record_passes, switch_attention
from encoders import save_encoder

LSH = {"n_hashes": 1, "cluster_size": 3}
IDS = torch.arange(5, 49).view(2, 22)


@pytest.fixture(scope="module", params=["albert", "distilbert"])
def folder(request, tmp_path_factory):
    return save_encoder(request.param, tmp_path_factory.mktemp(request.param))


def loss_and_gradients(folder, recompute, training):
    torch.manual_seed(1)
    model = load_model(folder, attention="key-clusters", settings=LSH, seed=3).train(training)
    if recompute:
        recompute_activations(model)
    torch.manual_seed(2)  # of dropout and hashes
    loss = model(IDS, labels=torch.tensor([0, 1])).loss
    loss.backward()
    return loss, [weight.grad for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("training", [False, True])
def test_loss_and_gradients_are_the_same(folder, training):
    plain, recomputed = (loss_and_gradients(folder, recompute, training) for recompute in (False, True))
    torch.testing.assert_close(recomputed, plain, rtol=1e-4, atol=1e-6)


def test_less_is_stored_for_the_backward_pass(folder):
    """Bytes of the tensors that autograd keeps."""
    stored = []
    for changed in (lambda model: model, recompute_activations):
        model, kept = changed(load_model(folder, head="base")).train(), {}

        def pack(tensor, kept=kept):
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(IDS)
        stored.append(sum(kept.values()))
    assert stored[1] < 0.6 * stored[0]


def test_a_copy_has_its_own_weights_and_gradients_and_names_of_weights_stay(folder, tmp_path):
    model = recompute_activations(load_model(folder, head="base", attention="key-clusters", settings=LSH))
    before, twin = model(IDS).last_hidden_state.detach(), copy.deepcopy(model)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.mul_(1.1)
    twin.save_pretrained(tmp_path)
    out = twin(IDS).last_hidden_state
    torch.testing.assert_close(out, load_model(str(tmp_path), head="base", complete=True)(IDS).last_hidden_state)
    out.square().sum().backward()
    assert all(weight.grad is not None for key, weight in twin.named_parameters() if "pooler" not in key)
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(model(IDS).last_hidden_state, before)


@pytest.mark.parametrize("way", ["ours", "Transformers'"])
def test_a_pass_done_again_has_its_own_number_and_is_recorded_once(folder, way):
    """Pass 1 alone has hashes, and in evaluation a seed; Transformers recomputes only some types of model."""
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(1)
        model = switch_attention(load_model(folder), "key-clusters", LSH, passes=[1]).train()
        if recompute and way == "ours":
            recompute_activations(model)
        if recompute and way != "ours":
            if not model.supports_gradient_checkpointing:
                pytest.skip("Transformers cannot recompute this type")
            model.gradient_checkpointing_enable()
        torch.manual_seed(2)
        with record_passes(model) as passes:
            model(IDS, labels=torch.tensor([0, 1])).loss.backward()
        assert [p.attention for p in passes] == ["softmax", "key-clusters", "softmax"]
        gradients.append([weight.grad for weight in model.parameters() if weight.grad is not None])
    torch.testing.assert_close(*gradients)
