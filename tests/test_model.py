"""A model with our attentions: pretrained weights kept, attention saved and restored, hashes of the passes, errors."""

import copy
import json
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AlbertModel, AutoModel

from albert_lsh import attention, load_model, record_passes, switch_attention
from albert_lsh.encoders import attention_modules
from albert_lsh.model.projections import draw_projections
from encoders import batch, config_of, save_encoder

SETTINGS = {
    "reformer": {"bucket_size": 4, "n_hashes": 2},
    "shared-qk-lsh": {"bucket_size": 4, "n_hashes": 2},
    "nystrom": {"num_landmarks": 6},
    **{name: {"n_hashes": 2, "cluster_size": 4} for name in ("key-clusters", "random")},
    "window": attention.settings_for("window", 21, 0.4),
}


@pytest.fixture(scope="module", params=["albert", "bert"])
def folder(request, tmp_path_factory):
    return save_encoder(request.param, tmp_path_factory.mktemp(request.param))


def states(model, **more):
    with torch.no_grad():
        return model(**batch(), **more)[0]


def test_alberts_activation_is_one_operation_and_its_gradients_are_those_of_transformers():
    config = config_of("albert", attn_implementation="sdpa")
    ours = load_model(config, head="base").train()
    plain = AlbertModel(config).train()
    plain.load_state_dict(ours.state_dict())
    assert (plain.config.hidden_act, ours.config.hidden_act) == ("gelu_new", "gelu_pytorch_tanh")
    for model in (ours, plain):
        model(**batch()).last_hidden_state[:, 0].exp().sum().backward()
    for (name, weight), expected in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if expected.grad is not None:
            torch.testing.assert_close(weight.grad, expected.grad, atol=6e-5, rtol=1e-6, msg=name)


@pytest.mark.parametrize("name", attention.names())
def test_every_weight_that_the_attention_can_use_is_used_and_saving_keeps_attention_and_outputs(folder, name, tmp_path):
    pretrained = AutoModel.from_pretrained(folder).state_dict()
    model = load_model(folder, attention=name, settings=SETTINGS.get(name), seed=3, num_labels=3)
    weights = model.base_model.state_dict()
    lost = {key for key in pretrained if key not in weights or not torch.equal(pretrained[key], weights[key])}
    projections = {key for key in pretrained if ".attention" in key and "LayerNorm" not in key}
    assert lost == (projections if name == "reformer" else set())

    model.save_pretrained(tmp_path)
    again = load_model(str(tmp_path))
    assert again.config.albert_lsh == model.config.albert_lsh
    assert (again.config.albert_lsh["attention"], again.config.albert_lsh["seed"]) == (name, 3)
    assert torch.equal(states(again), states(model))
    another = "random" if name == "window" else "window"
    assert load_model(str(tmp_path), attention=another).config.albert_lsh["settings"] == attention.check(another)


@pytest.mark.parametrize("name", attention.names())
def test_all_passes_train_and_differ_and_evaluation_repeats(folder, name):
    model = load_model(folder, head="question-answering", attention=name, settings=SETTINGS.get(name))
    with record_passes(model) as passes:
        first = states(model)
        states(model)
    assert len(passes) == 6  # three layers, twice
    assert [p.seed for p in passes[:3]] == [p.seed for p in passes[3:]]
    assert len({p.seed for p in passes[:3]}) == 3
    if name in ("random", "shared-qk-lsh", "reformer"):
        one = passes[0]
        redrawn = attention.pairs(name, one.query, one.key, one.padding_mask, seed=passes[1].seed, **one.settings)
        assert not torch.equal(one.pairs(), redrawn)
    assert torch.equal(first, states(model))

    positions = torch.tensor([1, 2, 3])
    losses = []
    for _ in range(2):
        torch.manual_seed(11)
        model.zero_grad()
        loss = model.train()(**batch(), start_positions=positions, end_positions=positions).loss
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]  # reproducible for a seed
    unused = {key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()}
    tied = ".key." if name.startswith("shared-qk") else "key.bias"  # softmax is blind to a constant in all keys
    blind = ("pooler", "token_type", "qa_outputs.bias")  # a constant in the scores of all places changes nothing either
    assert all(tied in key or any(part in key for part in blind) for key in unused), unused


@pytest.mark.parametrize("name", attention.names())
def test_gradients_are_finite_in_float16(folder, name):
    """The precision of Colab's T4. The package's own attention made NaN of the zeros that fill up its buckets."""
    model = load_model(folder, attention=name, settings=SETTINGS.get(name), seed=0).train()
    with torch.autocast("cpu", torch.float16):
        out = model(**batch()).logits
    out.float().square().sum().backward()
    gradients = {key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None}
    assert len(gradients) > 10
    assert [key for key, gradient in gradients.items() if not gradient.isfinite().all()] == []


def test_training_draws_new_hashes_and_drops_attention_weights(folder):
    for name, dropout in (("random", 0.0), ("softmax", 0.5)):
        options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": dropout}
        model = load_model(folder, head="base", attention=name, settings=SETTINGS.get(name), **options).train()
        assert not torch.allclose(states(model), states(model))


def test_a_copied_model_has_its_own_attention_and_records_its_own_passes(folder):
    model = load_model(folder, head="base", attention="key-clusters", settings=SETTINGS["key-clusters"])
    softmax, before = states(load_model(folder, head="base")), states(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(states(twin), before)
        switch_attention(twin, "softmax")
        with record_passes(model) as passes, record_passes(twin) as twins:
            assert torch.equal(states(twin), softmax)
            assert [len(passes), len(twins)] == [0, 3]
            assert torch.equal(states(model), before)
            assert [len(passes), len(twins)] == [3, 3]


@pytest.mark.parametrize("name", ["key-clusters", "reformer"])
def test_two_threads_get_what_one_gets(folder, name):
    """Each thread has its own hashes, and records its own passes."""
    model = load_model(folder, head="base", attention=name, settings=SETTINGS[name])
    for module in attention_modules(model):
        for part in module.modules():
            part.register_forward_pre_hook(lambda *_: time.sleep(0.002))  # lets another thread go on
    inputs = [batch(length=length) for length in (9, 14, 17, 21)]

    def run(texts):
        with record_passes(model) as passes, torch.no_grad():
            time.sleep(0.01)
            return model(**texts).last_hidden_state, [p.seed for p in passes]

    alone = [run(texts) for texts in inputs]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(run, inputs))
    for (out, seeds), (expected, expected_seeds) in zip(together, alone, strict=True):
        assert seeds == expected_seeds
        assert torch.equal(out, expected)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_sequence_longer_than_the_positions_is_refused(kind):
    model = load_model(config_of(kind), head="base")
    with pytest.raises(ValueError, match="a sequence of 41 tokens is longer than the 40 positions.*extend_positions"):
        model(**batch(length=41))
    model(**batch(length=40))


def test_new_projections_replace_nothing_but_projections(folder):
    old, new = load_model(folder, head="base"), load_model(folder, head="base")
    torch.manual_seed(1)
    assert draw_projections(new) is new
    changed = {name for name, tensor in new.state_dict().items() if not tensor.equal(old.state_dict()[name])}
    projections = {name for name in old.state_dict() if ".attention" in name and "LayerNorm" not in name}
    assert {name for name in projections if name.endswith("weight")} <= changed <= projections
    some = draw_projections(load_model(folder, head="base"), ["query", "output"]).state_dict()
    weights = {name for name, tensor in some.items() if not tensor.equal(old.state_dict()[name])}
    assert weights < projections
    assert {re.sub(r".*\.(?=\w+\.weight)", "", name) for name in weights} == {"query.weight", "dense.weight"}
    drawn = torch.cat([p.flatten() for name, p in new.named_parameters() if ".query.weight" in name])
    assert drawn.std().item() == pytest.approx(old.config.initializer_range, rel=0.05)
    with pytest.raises(ValueError, match="'reformer' has new ones already"):
        draw_projections(load_model(folder, head="base", attention="reformer"))


def test_a_model_that_was_saved_earlier_is_read(folder, tmp_path):
    """Of the days when a mean key was called `rest`, and there were settings in evaluation."""
    model = load_model(folder, head="base", attention="key-clusters", settings=SETTINGS["key-clusters"], seed=3)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert (config.pop("attn_implementation"), config["albert_lsh"]["version"]) == ("albert_lsh", 2)
    settings = config["albert_lsh"]["settings"]
    settings["rest"] = settings.pop("mean_key")
    config["albert_lsh"]["evaluation_settings"] = {}
    path.write_text(json.dumps(config))
    for again in (load_model(str(tmp_path), head="base"), AutoModel.from_pretrained(tmp_path).eval()):
        assert torch.equal(states(again), states(model))


def test_a_models_settings_are_checked_once(folder, monkeypatch):
    """When it is loaded, or switched; a pass makes no settings."""
    model = load_model(folder, head="base", attention="key-clusters", settings={"share": 0.4})
    monkeypatch.setattr(attention.ATTENTIONS["key-clusters"], "make", None)
    assert states(model).isfinite().all()
