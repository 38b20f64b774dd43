"""Recomputation and chunks change no result."""

import pytest
import torch
from albert_lsh import load_model
from transformers import BertConfig, BertModel

LSH = {"n_hashes": 1, "cluster_size": 3}


@pytest.fixture(params=["albert", "bert"])
def name(request, tmp_path):
    if request.param == "albert":
        return "mini"
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path)
    return str(tmp_path)


def loss_and_gradients(name, saving, training, dropout):
    torch.manual_seed(1)
    config = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = load_model(name, attention="lsh", settings=LSH, seed=3, **saving, **config)
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
        model = load_model(name, head="base", **saving).train()
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
    model = load_model(name, head="base", **saving).train()
    wide = [m for m in model.modules() if getattr(m, "out_features", 0) == model.config.intermediate_size]
    given = {m: [] for m in wide}
    for module in wide:
        module.register_forward_hook(lambda module, inputs, _: given[module].append(inputs[0].shape[1]))
    model(torch.arange(5, 49).view(2, 22)).last_hidden_state.sum().backward()
    times = model.config.num_hidden_layers // len(wide)  # ALBERT has one layer
    assert times * len(wide) == model.config.num_hidden_layers
    assert [sorted(found) for found in given.values()] == [sorted(positions * times)] * len(wide)


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="size=0 must be 1 or more"):
        load_model("mini", head="base", feed_forward_chunk=0)
