"""The weights of a convolution of the values in a model: they begin at zero, are trained, saved, moved and switched."""

import copy

import pytest
import torch
from transformers import AutoModel

from albert_lsh import load_model, switch_attention
from attention_cases import SETTINGS
from encoders import save_encoder

IDS = torch.arange(5, 47).view(2, 21)
MASK = (torch.arange(21) < torch.tensor([[21], [9]])).long()


@pytest.fixture(scope="module", params=["albert", "bert", "roberta"])
def folder(request, tmp_path_factory):
    return save_encoder(request.param, tmp_path_factory.mktemp(request.param))


def filters(model):
    return {name: p for name, p in model.named_parameters() if "convolution" in name}


def fill(model):
    with torch.no_grad():
        for number, weight in enumerate(filters(model).values()):
            weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight) + number)


def states(model):
    with torch.no_grad():
        return model(IDS, attention_mask=MASK).last_hidden_state[MASK.bool()]


@pytest.mark.parametrize("name", ["nystrom", "yoso", "yoso-e"])
def test_a_pretrained_model_computes_at_first_what_it_would_without(folder, name):
    settings = SETTINGS[name][0]
    plain = load_model(folder, head="base", attention=name, settings=settings)
    model = load_model(folder, head="base", attention=name, settings={**settings, "conv_kernel_size": 5})
    assert torch.equal(states(model), states(plain))
    pretrained, weights = AutoModel.from_pretrained(folder).state_dict(), model.state_dict()
    assert all(torch.equal(pretrained[key], weights[key]) for key in pretrained)
    fill(model)
    assert not torch.allclose(states(model), states(plain))


@pytest.mark.parametrize("head", ["base", "classification", "question-answering", "masked-lm"])
def test_the_weights_begin_at_zero_whatever_was_in_memory(folder, head, monkeypatch):
    """Transformers makes room for weights that a checkpoint lacks, and leaves it to the model to fill it."""
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **more: torch.full_like(tensor, 7, **more))
    model = load_model(folder, head=head, attention="yoso", settings={"conv_kernel_size": 5})
    layers = 1 if model.config.model_type == "albert" else 3  # with weights of their own
    assert [tuple(p.shape) for p in filters(model).values()] == [(4, 5)] * layers
    assert not any(p.any() for p in filters(model).values())


def test_the_weights_are_trained_saved_and_loaded_again(folder, tmp_path):
    settings = {"num_landmarks": 7, "conv_kernel_size": 3}
    model = load_model(folder, attention="nystrom", settings=settings, num_labels=3).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(IDS, attention_mask=MASK, labels=torch.tensor([0, 2])).loss.backward()
    optimizer.step()
    assert all(p.any() for p in filters(model).values())
    model.eval().save_pretrained(tmp_path)
    again = load_model(str(tmp_path))
    assert filters(again).keys() == filters(model).keys()
    assert all(torch.equal(p, filters(model)[key]) for key, p in filters(again).items())
    with pytest.raises(ValueError, match=r"convolution.weight is \(4, 3\) in its file, not \(4, 5\)"):
        load_model(str(tmp_path), settings={"conv_kernel_size": 5, "num_landmarks": 7})
    with torch.no_grad():
        assert torch.equal(again(IDS, attention_mask=MASK).logits, model(IDS, attention_mask=MASK).logits)
        assert torch.equal(copy.deepcopy(model)(IDS).logits, model(IDS).logits)


def test_switching_and_moving_keep_the_weights_of_the_same_size(folder):
    """The very parameters, which an optimiser may hold; another size begins at zero."""
    model, settings = load_model(folder, head="base"), {"hash_code_len": 4, "conv_kernel_size": 3}
    plain = states(switch_attention(model, "yoso-e", {"hash_code_len": 4}))
    assert not filters(model)
    assert torch.equal(states(switch_attention(model, "yoso-e", settings)), plain)
    fill(model)
    weights, filled = filters(model), states(model)
    assert torch.equal(states(switch_attention(model, "yoso-e", {"hash_code_len": 4})), plain)
    switch_attention(model, "nystrom", {"num_landmarks": 7, "conv_kernel_size": 3})
    assert torch.equal(states(switch_attention(model, "yoso-e", settings)), filled)
    assert all(p is weights[key] for key, p in filters(model).items())
    switch_attention(model, "yoso-e", {**settings, "conv_kernel_size": 5})
    assert not any(p.any() for p in filters(model).values())
    assert torch.equal(states(model), plain)
    switch_attention(model.to(torch.bfloat16), "yoso-e", {"conv_kernel_size": 7})
    assert {p.dtype for p in filters(model).values()} == {states(model).dtype} == {torch.bfloat16}
