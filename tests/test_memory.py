"""Recomputation and chunks change no result."""

import copy

import pytest
import torch
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

from albert_lsh import load_model, record_passes, save_memory, switch_attention
from albert_lsh.model.config import load_config

LSH = {"n_hashes": 1, "cluster_size": 3}


@pytest.fixture(params=["albert", "bert", "distilbert"])
def name(request, tmp_path):
    if request.param == "albert":
        return "mini"
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    if request.param == "distilbert":
        shape = {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}
        DistilBertModel(DistilBertConfig(**shape, hidden_dim=48)).save_pretrained(tmp_path)
        return str(tmp_path)
    BertModel(config).save_pretrained(tmp_path)
    return str(tmp_path)


def loss_and_gradients(name, saving, training, dropout):
    torch.manual_seed(1)
    config = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if load_config(name).model_type == "distilbert":
        config = {"dropout": dropout, "attention_dropout": dropout}
    model = save_memory(load_model(name, attention="lsh", settings=LSH, seed=3, **config), **saving)
    model.train(training)
    ids = torch.arange(5, 49).view(2, 22)
    torch.manual_seed(2)  # of dropout and hashes
    loss = model(ids, labels=torch.tensor([0, 1])).loss
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "saving", [{"recompute": True}, {"feed_forward_chunk": 5}, {"recompute": True, "feed_forward_chunk": 7}], ids=str
)
def test_loss_and_gradients_are_the_same(name, saving, training):
    """Chunks draw their dropout in another order, so they are compared without."""
    dropout = 0.0 if "feed_forward_chunk" in saving else 0.1
    plain, grads = loss_and_gradients(name, {}, training, dropout)
    loss, others = loss_and_gradients(name, saving, training, dropout)
    assert loss == pytest.approx(plain, rel=1e-6)
    for one, other in zip(grads, others, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_less_is_stored_for_the_backward_pass(name):
    """Bytes of the tensors that autograd keeps."""
    stored = {}
    savings = {"plain": {}, "recomputed": {"recompute": True}, "chunked": {"feed_forward_chunk": 4}}
    for label, saving in savings.items():
        model = save_memory(load_model(name, head="base"), **saving).train()
        kept = {}

        def pack(tensor, kept=kept):
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(torch.arange(5, 49).view(2, 22))
        stored[label] = sum(kept.values())
    assert stored["recomputed"] < 0.6 * stored["plain"]
    assert stored["chunked"] < stored["plain"]


@pytest.mark.parametrize(
    ("saving", "positions"),
    [({}, [22]), ({"recompute": True}, [22] * 2), ({"feed_forward_chunk": 5}, [5, 5, 5, 5, 2] * 2)],
    ids=str,
)
def test_every_layer_goes_through_its_positions_so_and_again_if_recomputed(name, saving, positions):
    """What the widest parts of every layer are given, forward and backward."""
    model = save_memory(load_model(name, head="base"), **saving).train()
    widest = getattr(model.config, "hidden_dim", None) or model.config.intermediate_size  # hidden_dim: DistilBERT
    wide = [m for m in model.modules() if getattr(m, "out_features", 0) == widest]
    given = {m: [] for m in wide}
    for module in wide:
        module.register_forward_hook(lambda module, inputs, _: given[module].append(inputs[0].shape[1]))
    model(torch.arange(5, 49).view(2, 22)).last_hidden_state.sum().backward()
    times = model.config.num_hidden_layers // len(wide)  # ALBERT has one layer
    assert times * len(wide) == model.config.num_hidden_layers
    assert [sorted(found) for found in given.values()] == [sorted(positions * times)] * len(wide)


def shallow_copy(model):
    """What DataParallel makes of a model for another device: new modules and parameters, all else shared."""
    modules = list(model.modules())
    replicas = {module: module._replicate_for_data_parallel() for module in modules}
    for module in modules:
        replicas[module]._modules = {name: replicas[child] for name, child in module.named_children()}
        for name, parameter in module.named_parameters(recurse=False):
            setattr(replicas[module], name, torch.nn.Parameter(parameter.detach().clone()))
    return replicas[model]


SAVING = {"recompute": True, "feed_forward_chunk": 7}


@pytest.mark.parametrize("copied", [copy.deepcopy, shallow_copy])
def test_a_copy_has_its_own_weights_and_gradients(name, copied):
    torch.manual_seed(1)
    model, ids = load_model(name, head="base", attention="lsh", settings=LSH), torch.arange(5, 49).view(2, 22)
    save_memory(model, **SAVING)
    before, twin = model(ids).last_hidden_state.detach(), copied(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.1)
    plain = load_model(name, head="base", attention="lsh", settings=LSH)
    parts = dict(twin.named_parameters())
    assert parts.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(parts)
    outs = [one(ids).last_hidden_state for one in (twin, plain)]
    torch.testing.assert_close(*outs)
    outs[0].square().sum().backward()
    assert all(parameter.grad is not None for key, parameter in parts.items() if "pooler" not in key)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(model(ids).last_hidden_state, before)


def test_saved_weights_keep_their_names(name, tmp_path):
    save_memory(load_model(name, head="base"), **SAVING).save_pretrained(tmp_path)
    load_model(str(tmp_path), head="base", complete=True)


@pytest.mark.parametrize("way", ["ours", "Transformers'"])
def test_a_pass_done_again_has_its_own_number_and_is_recorded_once(name, way):
    """Passes 0 and 1 have different attentions, hashes and seeds; Transformers recomputes only some types of model."""
    found = []
    for recompute in (False, True):
        torch.manual_seed(1)
        model = switch_attention(load_model(name), "lsh", LSH, passes=[1])
        save_memory(model, recompute=recompute and way == "ours")
        if recompute and way != "ours":
            if not model.supports_gradient_checkpointing:
                pytest.skip("Transformers cannot recompute this type")
            model.gradient_checkpointing_enable()
        torch.manual_seed(2)
        with record_passes(model.train()) as passes:
            model(torch.arange(5, 49).view(2, 22), labels=torch.tensor([0, 1])).loss.backward()
        assert [p.attention for p in passes] == ["softmax", "lsh"]
        found.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*found)
