"""A model with our attentions: pretrained weights kept, attention saved and restored, hashes of the passes, errors."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
)

from albert_lsh import attention, load_model, record_passes, switch_attention
from albert_lsh.model.interface import attention_modules
from albert_lsh.model.projections import draw_projections
from encoders import SMALL, batch, save_encoder

SETTINGS = {
    "reformer": {"bucket_size": 4, "n_hashes": 2},
    "shared-qk-lsh": {"bucket_size": 4, "n_hashes": 2},
    "nystrom": {"num_landmarks": 6},
    **{name: {"n_hashes": 2, "cluster_size": 4} for name in ("lsh", "random")},
    "window": attention.settings_for("window", 21, 0.4),
}


@pytest.fixture(scope="module", params=["albert", "bert", "roberta"])
def folder(request, tmp_path_factory):
    return save_encoder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("name", ["softmax", "softmax-eager"])
def test_softmax_is_the_model_as_transformers_loads_it(folder, name):
    plain, ours = AutoModel.from_pretrained(folder).eval(), load_model(folder, head="base", attention=name)
    assert type(ours) is type(plain)
    inputs = batch()
    keep = inputs["attention_mask"].bool()
    with torch.no_grad():
        out, expected = (m(**inputs).last_hidden_state[keep] for m in (ours, plain))
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=0)


def test_alberts_activation_is_one_operation_and_its_gradients_are_those_of_transformers():
    config = AlbertConfig(**SMALL, embedding_size=16, max_position_embeddings=40, attn_implementation="sdpa")
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
def test_every_pretrained_weight_that_the_attention_can_use_is_used(folder, name):
    pretrained = AutoModel.from_pretrained(folder).state_dict()
    model = load_model(folder, head="base", attention=name, settings=SETTINGS.get(name))
    weights = model.state_dict()
    lost = {key for key in pretrained if key not in weights or not torch.equal(pretrained[key], weights[key])}
    projections = {k for k in pretrained if ".attention" in k and "LayerNorm" not in k}
    assert lost == (projections if name == "reformer" else set())
    assert projections


@pytest.mark.parametrize("name", attention.names())
def test_saving_and_loading_restores_attention_settings_and_outputs(folder, name, tmp_path):
    model = load_model(folder, attention=name, settings=SETTINGS.get(name), seed=3, num_labels=3)
    model.save_pretrained(tmp_path / "saved")
    again = load_model(str(tmp_path / "saved"))
    assert again.config.albert_lsh == model.config.albert_lsh
    assert again.config.albert_lsh["attention"] == name
    with torch.no_grad():
        assert torch.equal(again(**batch()).logits, model(**batch()).logits)
    another = "random" if name == "window" else "window"
    other = load_model(str(tmp_path / "saved"), attention=another)
    assert other.config.albert_lsh["settings"] == attention.check(another)


@pytest.mark.parametrize("name", attention.names())
def test_all_passes_train_and_differ_and_evaluation_repeats(folder, name):
    model = load_model(folder, head="question-answering", attention=name, settings=SETTINGS.get(name))
    inputs = batch()
    with record_passes(model) as passes, torch.no_grad():
        first = model(**inputs).start_logits
        model(**inputs)
    assert len(passes) == 6  # three layers, twice
    assert [p.seed for p in passes[:3]] == [p.seed for p in passes[3:]]
    assert len({p.seed for p in passes[:3]}) == 3
    if name in ("lsh", "random", "shared-qk-lsh", "reformer"):
        one = passes[0]
        redrawn = attention.pairs(name, one.query, one.key, one.padding_mask, seed=passes[1].seed, **one.settings)
        assert not torch.equal(one.pairs(), redrawn)
    assert torch.equal(first, model(**inputs).start_logits)

    positions = torch.tensor([1, 2, 3])
    losses = []
    for _ in range(2):
        torch.manual_seed(11)
        model.zero_grad()
        loss = model.train()(**inputs, start_positions=positions, end_positions=positions).loss
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]  # reproducible for a seed
    unused = {k for k, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    tied = ".key." if name.startswith("shared-qk") else "key.bias"  # softmax is blind to a constant in all keys
    blind = ("pooler", "token_type", "qa_outputs.bias")  # a constant in the scores of all places changes nothing either
    assert all(tied in k or any(part in k for part in blind) for k in unused), unused


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


def test_training_draws_new_hashes_and_dropout_is_used(folder):
    model = load_model(folder, head="base", attention="lsh", settings=SETTINGS["lsh"]).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(0)
    outs = [model(**batch()).last_hidden_state for _ in range(2)]
    assert not torch.allclose(*outs)
    softmax = load_model(folder, head="base", attention="softmax", attention_probs_dropout_prob=0.5).train()
    modules = attention_modules(softmax)
    for module in softmax.modules():
        if isinstance(module, torch.nn.Dropout) and not any(module in m.modules() for m in modules):
            module.p = 0.0
    if softmax.config.model_type != "albert":  # whose attention module also holds the dropout behind it
        outs = [softmax(**batch()).last_hidden_state for _ in range(2)]
        assert not torch.allclose(*outs)


def test_a_copied_model_counts_its_own_passes(folder):
    model = load_model(folder, head="base", attention="lsh", settings=SETTINGS["lsh"])
    twin = copy.deepcopy(model)
    with torch.no_grad():
        first, second = model(**batch()).last_hidden_state, twin(**batch()).last_hidden_state
        assert torch.equal(first, second)
        assert torch.equal(second, twin(**batch()).last_hidden_state)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_has_its_own_attention_and_records_its_own_passes(folder, copied):
    model = load_model(folder, head="base", attention="lsh", settings=SETTINGS["lsh"])
    softmax, inputs = load_model(folder, head="base"), batch()
    with torch.no_grad():
        before, twin = model(**inputs).last_hidden_state, copied(model)
        switch_attention(twin, "softmax")
        with record_passes(model) as passes, record_passes(twin) as twins:
            assert torch.equal(twin(**inputs).last_hidden_state, softmax(**inputs).last_hidden_state)
            assert [len(passes), len(twins)] == [0, 3]
            assert torch.equal(model(**inputs).last_hidden_state, before)
            assert [len(passes), len(twins)] == [3, 3]


@pytest.mark.parametrize("name", ["lsh", "reformer"])
def test_two_threads_get_what_one_gets(folder, name):
    """Each thread has its own hashes, and records its own passes."""
    model = load_model(folder, head="base", attention=name, settings=SETTINGS[name])
    for module in attention_modules(model):
        for part in module.modules():
            part.register_forward_pre_hook(lambda *_: time.sleep(0.002))  # lets another thread go on
    inputs = [batch(length=length) for length in (9, 14, 17, 21)]

    def run(given):
        with record_passes(model) as passes, torch.no_grad():
            time.sleep(0.01)
            return model(**given).last_hidden_state, [p.seed for p in passes]

    alone = [run(given) for given in inputs]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(run, inputs))
    for (out, seeds), (expected, expected_seeds) in zip(together, alone, strict=True):
        assert seeds == expected_seeds
        assert torch.equal(out, expected)


def test_a_call_within_a_call_changes_nothing(folder):
    model, inner = load_model(folder, head="base", attention="lsh", settings=SETTINGS["lsh"]), []

    def call_again(module, given, out):
        if not inner:
            inner.append(None)
            inner[0] = model(**batch()).last_hidden_state

    with torch.no_grad():
        expected = model(**batch()).last_hidden_state
        attention_modules(model)[0].register_forward_hook(call_again)
        assert torch.equal(model(**batch()).last_hidden_state, expected)
    assert torch.equal(inner[0], expected)


def test_lsh_with_one_cluster_is_softmax_on_the_real_minilm(minilm):
    """Output and gradients of a real pretrained encoder, in float32."""
    inputs = batch(vocab=30000, length=32)
    found = {}
    for name, settings in (("softmax", {}), ("lsh", {"n_hashes": 2, "cluster_size": 32})):
        model = load_model(minilm, head="base", attention=name, settings=settings)
        out = model(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
        out.square().mean().backward()
        grads = torch.cat([p.grad.flatten() for k, p in model.named_parameters() if "pooler" not in k])
        found[name] = out.detach(), grads
    for ours, softmax in zip(found["lsh"], found["softmax"], strict=True):
        assert (ours - softmax).norm() < 1e-5 * softmax.norm()


def test_evaluation_settings_hold_in_evaluation_alone(folder, tmp_path):
    few, many = SETTINGS["lsh"], {"n_hashes": 5, "cluster_size": 4}
    laid_over = switch_attention(load_model(folder, head="base"), "lsh", few, evaluation_settings={"n_hashes": 5})
    plain = {n: load_model(folder, head="base", attention="lsh", settings=s) for n, s in enumerate((few, many))}
    for training, like in ((False, 1), (True, 0), (False, 1)):
        outs = []
        for model in (laid_over, plain[like]):
            torch.manual_seed(0)
            with record_passes(model) as passes:
                outs.append(model.train(training)(**batch()).last_hidden_state)
            assert {p.settings["n_hashes"] for p in passes} == {2 if training else 5}
        assert torch.equal(*outs)

    laid_over.save_pretrained(tmp_path)
    for given, n_hashes in (({}, 5), ({"settings": few}, 2)):
        again, like = load_model(str(tmp_path), head="base", **given), plain[n_hashes == 5].eval()
        assert torch.equal(again(**batch()).last_hidden_state, like(**batch()).last_hidden_state)
    switch_attention(laid_over, "lsh", few)
    assert torch.equal(laid_over(**batch()).last_hidden_state, plain[0](**batch()).last_hidden_state)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lsh", {"n_hash": 8}, "evaluation_settings: attention 'lsh' has no setting 'n_hash'"),
        ("lsh", {"n_hashes": 0}, "evaluation_settings: lsh: n_hashes=0 must be greater than or equal to 1"),
        ("softmax", {"n_hashes": 8}, "evaluation_settings: attention 'softmax' has no setting 'n_hashes'"),
        ("nystrom", {"conv_kernel_size": 3}, "evaluation_settings: conv_kernel_size has weights"),
    ],
)
def test_bad_evaluation_settings_are_named(folder, name, given, message):
    with pytest.raises(ValueError, match=message):
        switch_attention(load_model(folder), name, SETTINGS.get(name), evaluation_settings=given)


def test_a_sequence_longer_than_the_positions_is_refused(folder):
    model = load_model(folder, head="base")
    with pytest.raises(ValueError, match="a sequence of 41 tokens is longer than the 40 positions"):
        model(**batch(length=41))
    model(**batch(length=40))


def test_new_projections_replace_nothing_but_projections(folder):
    old, new = load_model(folder, head="base"), load_model(folder, head="base")
    torch.manual_seed(1)
    assert draw_projections(new) is new
    changed = {name for name, tensor in new.state_dict().items() if not tensor.equal(old.state_dict()[name])}
    parts = {".".join(name.split(".")[-3:-1]) for name in changed if name.endswith("weight")}
    expected = {"attention.dense"} if old.config.model_type == "albert" else {"output.dense"}
    own = "attention" if old.config.model_type == "albert" else "self"
    assert parts == expected | {f"{own}.{name}" for name in ("query", "key", "value")}
    assert not [name for name in changed if name.endswith("intermediate.dense.weight") or "LayerNorm" in name]
    drawn = torch.cat([p.flatten() for name, p in new.named_parameters() if ".query.weight" in name])
    assert drawn.std().item() == pytest.approx(old.config.initializer_range, rel=0.05)
    torch.manual_seed(1)
    again = draw_projections(load_model(folder, head="base"))
    assert again(**batch())[0].equal(new(**batch())[0])
    assert not old(**batch())[0].equal(new(**batch())[0])
    with pytest.raises(ValueError, match="'reformer' has new ones already"):
        draw_projections(load_model(folder, head="base", attention="reformer"))


def test_as_many_landmarks_as_positions_are_softmax(folder):
    model = load_model(folder, head="base", attention="nystrom", settings={"num_landmarks": 40})
    softmax = load_model(folder, head="base")
    keep, inputs = batch()["attention_mask"].bool(), batch()
    torch.testing.assert_close(model(**inputs).last_hidden_state[keep], softmax(**inputs).last_hidden_state[keep])


def test_passes_that_are_not_chosen_have_softmax(folder, tmp_path):
    ids, settings = batch()["input_ids"], {"n_hashes": 1, "cluster_size": 3}
    model = switch_attention(load_model(folder, head="base"), "lsh", settings, passes=[1])
    with record_passes(model) as passes:
        some = model(ids).last_hidden_state
    assert [p.attention for p in passes[:2]] == ["softmax", "lsh"]
    switch_attention(model, "lsh", settings)
    assert not torch.equal(model(ids).last_hidden_state, some)
    switch_attention(model, "lsh", settings, passes=[1])
    model.save_pretrained(tmp_path)
    assert torch.equal(load_model(str(tmp_path), head="base")(ids).last_hidden_state, some)
    with pytest.raises(ValueError, match="passes: 9 is not one of the model's passes, 0 to"):
        switch_attention(model, "lsh", passes=[9])
