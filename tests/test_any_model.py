"""Any supported model of Transformers: however it was made, it takes one of our attentions, keeps it, and says no."""

import copy
import functools
import json
import subprocess
import sys

import peft
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import AutoModel

from albert_lsh import attention, extend_positions, load_model, recompute_activations, record_passes, switch_attention
from albert_lsh.encoders import ModelError, attention_modules
from albert_lsh.model.projections import draw_projections, drop_residual
from encoders import TYPES, batch, config_of

LSH = {"n_hashes": 2, "cluster_size": 4}
BATCH = batch()
KEEP = BATCH["attention_mask"].bool()


def states(model):
    with torch.no_grad():
        return model.eval()(**BATCH).last_hidden_state[KEEP]


def global_layers(model):
    """Those that have our attention; local layers stay as they are."""
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * 3
    return [number for number, kind in enumerate(kinds) if kind == "full_attention"]


@pytest.fixture(scope="module", params=TYPES)
def plain(request):
    """A model of each type, as Transformers makes it."""
    torch.manual_seed(0)
    return AutoModel.from_config(config_of(request.param))


def test_a_model_that_transformers_made_is_switched_and_back(plain, tmp_path):
    softmax = states(plain)
    plain.save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    assert switch_attention(model, "key-clusters", {"n_hashes": 2, "cluster_size": 40}) is model
    torch.testing.assert_close(states(model), softmax, atol=1e-5, rtol=0)  # one cluster holds all tokens
    switch_attention(model, "key-clusters", LSH, seed=4)
    with record_passes(model) as passes:
        hashed = states(model)
    assert [p.seed for p in passes] == [4 + 1_000_003 * number for number in global_layers(model)]
    assert {p.attention for p in passes} == {"key-clusters"}
    loaded = load_model(tmp_path, head="base", attention="key-clusters", settings=LSH, seed=4)
    torch.testing.assert_close(hashed, states(loaded), atol=1e-5, rtol=0)  # ours has another form of ALBERT's GELU
    torch.testing.assert_close(states(switch_attention(model, "softmax")), softmax, atol=1e-5, rtol=0)


def output_and_gradients(model, inputs):
    """The states of tokens, and every weight's gradient of their product with random numbers."""
    keep = inputs["attention_mask"].bool()
    up = torch.randn(*keep.shape, 32, generator=torch.Generator().manual_seed(1))
    out = model(**inputs).last_hidden_state
    weights = {name: p for name, p in model.named_parameters() if not name.startswith("pooler")}
    gradients = torch.autograd.grad((out * up)[keep].sum(), list(weights.values()), allow_unused=True)
    return {"output": out[keep], **dict(zip(weights, gradients, strict=True))}


def assert_alike(ours, expected):
    expected = {name: value for name, value in expected.items() if value is not None}
    assert len(expected) > 15
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, atol=4e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("own", ["eager", "sdpa"])
def test_softmax_has_the_outputs_and_gradients_of_the_type_s_own(plain, own):
    """And so has every attention that sees all keys."""
    model = AutoModel.from_config(copy.deepcopy(plain.config), attn_implementation=own).eval()
    model.load_state_dict(plain.state_dict())
    expected = output_and_gradients(model, BATCH)
    for name, settings in {"softmax": {}, "key-clusters": {"n_hashes": 2, "cluster_size": 40}}.items():
        with record_passes(switch_attention(model, name, settings)) as passes:
            ours = output_and_gradients(model, BATCH)
        assert len(passes) == len(global_layers(model))
        assert_alike(ours, expected)


@pytest.mark.parametrize("kind", sorted({"modernbert", "ultrabert"} & TYPES.keys()))
def test_local_layers_stay_as_they_are(kind):
    """Also where their blocks are more than three (of 64 tokens), and where padding stands among the tokens."""
    model = AutoModel.from_config(config_of(kind, max_position_embeddings=300), attn_implementation="sdpa").eval()
    inputs = batch(length=290)
    inputs["attention_mask"][0, 40:60] = 0
    expected = output_and_gradients(model, inputs)
    assert_alike(output_and_gradients(switch_attention(model, "softmax"), inputs), expected)
    switch_attention(model, "window", {"keys": 1})  # a token sees itself alone, or its neighbours in local layers
    with record_passes(model) as passes:
        assert (output_and_gradients(model, inputs)["output"] - expected["output"]).abs().max() > 1e-2
    assert len(passes) == 2
    with pytest.raises(ValueError, match="^passes: 1 is a local layer, which sees a window"):
        switch_attention(model, "window", passes=[0, 1])


def test_what_stands_in_padding_changes_nothing(plain):
    model = switch_attention(copy.deepcopy(plain), "key-clusters", LSH).eval()
    inputs = {name: value.clone() for name, value in BATCH.items()}
    inputs["attention_mask"][0, 4:7] = 0
    keep = inputs["attention_mask"].bool()
    with torch.no_grad():
        before = model(**inputs).last_hidden_state[keep]
        inputs["input_ids"] = torch.where(keep, inputs["input_ids"], 7)
        assert torch.equal(model(**inputs).last_hidden_state[keep], before)


def test_positions_are_extended_and_the_first_stay(plain):
    model = copy.deepcopy(plain).requires_grad_(False)
    extend_positions(model, 70).eval()
    assert not any(weight.requires_grad for weight in model.parameters())
    assert torch.equal(states(model), states(plain))
    with torch.no_grad():
        assert model(input_ids=batch(length=70)["input_ids"]).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="^length=70 must be above the 70 positions"):
        extend_positions(model, 70)


def test_positions_that_are_scaled_are_set_when_the_model_is_loaded():
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    with pytest.raises(ValueError, match="^rope_type='dynamic': load_model.*max_position_embeddings=70"):
        extend_positions(AutoModel.from_config(config_of("eurobert", rope_parameters=rope)), 70)


def test_layers_that_are_computed_again_have_the_same_gradients(plain):
    model = switch_attention(copy.deepcopy(plain), "key-clusters", LSH, seed=4)
    passes = []
    for changed in (lambda model: model, recompute_activations):
        saving, made = changed(copy.deepcopy(model)).train(), []
        for module in saving.modules():
            module.p = 0.0  # of dropout
        for module in attention_modules(saving):
            module.register_forward_hook(lambda *_, made=made: made.append(1))
        torch.manual_seed(2)  # of hashes, in training
        gradients = output_and_gradients(saving, BATCH)
        passes.append((len(made), gradients))
    assert passes[1][0] == 2 * passes[0][0] == 6
    assert_alike(passes[1][1], passes[0][1])


def test_under_autocast_all_of_a_type_s_tensors_have_its_dtype(plain):
    model = switch_attention(copy.deepcopy(plain), "key-clusters", LSH).eval()
    with torch.autocast("cpu", torch.bfloat16), record_passes(model) as passes:
        out = states(model)
    assert {x.dtype for p in passes for x in (p.query, p.key, p.value)} == {torch.bfloat16}
    assert out.isfinite().all()


def test_asked_for_by_the_package_s_name_it_is_key_clusters(plain, tmp_path):
    plain.save_pretrained(tmp_path)
    expected = states(load_model(tmp_path, head="base", attention="key-clusters"))
    named = AutoModel.from_pretrained(tmp_path, attn_implementation="albert_lsh")
    later = AutoModel.from_pretrained(tmp_path)
    later.set_attn_implementation("albert_lsh")
    for model in (named, later):  # load_model computes ALBERT's activation as one operation: the same but for rounding
        torch.testing.assert_close(states(model), expected, atol=2e-6, rtol=0)


OWN_WEIGHTS = ("reformer",)


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("albert", name) for name in attention.names() if name not in OWN_WEIGHTS), ("modernbert", "key-clusters")],
)
def test_asked_for_by_an_attention_s_name(kind, name, tmp_path):
    """Read, set later, saved and read again, it is what `load_model` makes."""
    torch.manual_seed(0)
    AutoModel.from_config(config_of(kind)).save_pretrained(tmp_path / "plain")
    made = load_model(tmp_path / "plain", head="base", attention=name)
    expected = states(made)
    read = AutoModel.from_pretrained(tmp_path / "plain", attn_implementation=name)
    later = AutoModel.from_pretrained(tmp_path / "plain", attn_implementation="window")
    later.set_attn_implementation(name)
    read.save_pretrained(tmp_path / "saved")
    for model in (
        read,
        later,
        AutoModel.from_pretrained(tmp_path / "saved"),
        load_model(tmp_path / "saved", head="base"),
    ):
        assert model.config.albert_lsh == made.config.albert_lsh
        torch.testing.assert_close(states(model), expected, atol=2e-6, rtol=0)


def test_its_own_name_keeps_the_settings_that_a_model_has(tmp_path):
    model = switch_attention(AutoModel.from_config(config_of("modernbert")), "window", {"share": 0.5}, seed=7)
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path, attn_implementation="window")
    assert again.config.albert_lsh == model.config.albert_lsh
    again.set_attn_implementation("sdpa")
    again.set_attn_implementation("window")
    assert again.config.albert_lsh == model.config.albert_lsh
    with pytest.raises(ValueError, match="attn_implementation.*windw"):
        AutoModel.from_pretrained(tmp_path, attn_implementation="windw")


def test_projections_of_their_own_are_not_read_by_a_name(plain, tmp_path):
    plain.save_pretrained(tmp_path)
    for way in (
        lambda: AutoModel.from_pretrained(tmp_path, attn_implementation="reformer"),
        lambda: copy.deepcopy(plain).set_attn_implementation("reformer"),
    ):
        with pytest.raises(ModelError, match="cannot have 'reformer' by its name: [^\n]*load_model$"):
            way()


def test_another_implementation_leaves_no_claim(plain, tmp_path):
    plain.save_pretrained(tmp_path / "plain")
    load_model(tmp_path / "plain", head="base", attention="key-clusters").save_pretrained(tmp_path / "key-clusters")
    at_once = AutoModel.from_pretrained(tmp_path / "key-clusters", attn_implementation="sdpa")
    later = AutoModel.from_pretrained(tmp_path / "key-clusters")
    later.set_attn_implementation("sdpa")
    for model in (at_once, later, switch_attention(AutoModel.from_pretrained(tmp_path / "key-clusters"), "softmax")):
        torch.testing.assert_close(states(model), states(plain), atol=1e-5, rtol=0)
        model.save_pretrained(tmp_path / "out")
        kept = json.loads((tmp_path / "out" / "config.json").read_text())
        assert kept.get("albert_lsh", {"attention": "softmax"})["attention"] == "softmax"
        assert "attn_implementation" not in kept


def test_back_from_another_implementation_it_is_the_same_attention(plain, tmp_path):
    """transformers #38750; also of a model that was read with the other, and of one that was copied meanwhile."""
    model = switch_attention(copy.deepcopy(plain), "window", {"share": 0.5}, seed=7, passes=[2])
    model.save_pretrained(tmp_path)
    expected, softmax, kept = states(model), states(plain), dict(model.config.albert_lsh)
    for other in (model, AutoModel.from_pretrained(tmp_path, attn_implementation="eager")):
        for implementation in ("eager", "sdpa", {"": "eager"}):
            other.set_attn_implementation(implementation)
            torch.testing.assert_close(states(other), softmax, atol=1e-5, rtol=0)
        for back in (other, copy.deepcopy(other)):
            back.set_attn_implementation("albert_lsh")
            assert back.config.albert_lsh == kept
            assert torch.equal(states(back), expected)
    with pytest.raises(ValueError, match="attn_implementation.*eagre"):
        model.set_attn_implementation("eagre")
    assert torch.equal(states(model), expected)
    model.set_attn_implementation("eager")
    assert torch.equal(states(switch_attention(model, "window", {"share": 0.5}, 7, [2])), expected)


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_no_other_implementation_has_a_model_that_was_changed(kind, tmp_path):
    made = {
        "projections of its own has 'reformer'": load_model(config_of(kind), head="base", attention="reformer"),
        "no residual connection has 'lsh'": drop_residual(load_model(config_of(kind), head="base", attention="lsh")),
    }
    for message, model in made.items():
        expected = states(model)
        with pytest.raises(ModelError, match=f"^attn_implementation='eager': a model with {message} of 'albert_lsh'"):
            model.set_attn_implementation("eager")
        model.save_pretrained(tmp_path)
        with pytest.raises(ModelError, match=message):
            AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
        assert torch.equal(states(model), expected)
    model = load_model(config_of(kind), head="base", attention="window", settings={"share": 0.5})
    model.set_attn_implementation("sdpa")
    assert drop_residual(model).config.albert_lsh["attention"] == "window"


def test_what_an_attention_cannot_do_is_refused_in_one_line(plain):
    model = switch_attention(copy.deepcopy(plain), "key-clusters").eval()
    with pytest.raises(ValueError, match=r"output_attentions=True: attention 'key-clusters' keeps no weights; [^\n]*$"):
        model(**BATCH, output_attentions=True)
    with pytest.raises(ValueError, match=r"^our attentions take a mask \(batch, length\)[^\n]*$"):
        model(BATCH["input_ids"], attention_mask=torch.ones(3, 1, 21, 21))
    model.set_attn_implementation("eager")
    assert len(model(**BATCH, output_attentions=True).attentions) == 3
    model.config._attn_implementation = "albert_lsh"
    with pytest.raises(ValueError, match="^[^\n]*switch_attention[^\n]*$"):
        model(**BATCH)


def test_the_model_inside_of_a_sentence_transformer(minilm, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    texts = ["It rained on the bus to town.", "Nobody had brought an umbrella, and so we all were wet in the end."]
    model = library.SentenceTransformer(minilm, device="cpu")
    before = model.encode(texts)
    assert switch_attention(model, "key-clusters", LSH) is model
    with record_passes(model) as passes:
        after = model.encode(texts)
    assert {p.attention for p in passes} == {"key-clusters"}
    assert abs(before - after).max() > 1e-3
    model.save(str(tmp_path))
    assert (library.SentenceTransformer(str(tmp_path), device="cpu").encode(texts) == after).all()
    longer = extend_positions(library.SentenceTransformer(str(tmp_path), device="cpu"), 600)
    assert (longer.encode(texts) == after).all()
    with record_passes(longer) as passes:
        longer.encode(["rain " * 700])
    assert {p.query.shape[2] for p in passes} == {longer.max_seq_length} == {600}
    assert abs(switch_attention(model, "softmax").encode(texts) - before).max() < 1e-5
    with pytest.raises(ModelError, match="^Linear holds no model of Transformers$"):
        switch_attention(torch.nn.Linear(2, 2), "key-clusters")


def test_a_lora_trains_and_comes_back_with_the_same_answers(tmp_path):
    tuning = peft.LoraConfig(target_modules=["query", "value"], task_type="SEQ_CLS")
    model = load_model("mini", attention="key-clusters", settings=LSH, seed=4)
    base, ids = copy.deepcopy(model), BATCH["input_ids"] % model.config.vocab_size
    lora = peft.get_peft_model(model, tuning)
    optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=0.1)
    frozen = {name: p.detach().clone() for name, p in lora.named_parameters() if not p.requires_grad}
    lora(input_ids=ids, labels=torch.arange(len(ids)) % 2).loss.backward()
    optimizer.step()
    assert all(torch.equal(p, frozen[name]) for name, p in lora.named_parameters() if name in frozen)
    assert all(p.any() for name, p in lora.named_parameters() if "lora_B" in name)  # zeros, before they are trained
    lora.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(base, tmp_path)
    with torch.no_grad(), record_passes(again) as passes:
        torch.testing.assert_close(again.eval()(input_ids=ids).logits, lora.eval()(input_ids=ids).logits)
        with again.disable_adapter():
            assert not torch.allclose(again(input_ids=ids).logits, lora(input_ids=ids).logits)
    assert passes[0].attention == "key-clusters"


@pytest.mark.parametrize("name", ["softmax", "window", "reformer"])
def test_prefix_tuning_is_refused_by_its_name(name):
    """transformers PR 38301: it is the one way to call an encoder with keys that have no queries."""
    model, inputs = load_model(config_of("bert"), attention=name), {**BATCH, "labels": torch.tensor([0, 1, 0])}
    prompts = peft.get_peft_model(
        copy.deepcopy(model), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4)
    )
    assert prompts(**inputs).loss.isfinite()  # they have queries
    tuned = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4))
    with pytest.raises(ValueError, match=rf"^attention '{name}' takes no keys without queries [^\n]*prefix tuning"):
        tuned(**inputs)
    with pytest.raises(ValueError, match="prefix tuning"):
        tuned(input_ids=inputs["input_ids"])
    if name != "reformer":
        model.set_attn_implementation("sdpa")
        assert tuned(**inputs).loss.isfinite()


def test_weights_that_are_loaded_when_they_are_needed(plain, tmp_path):
    """As by device_map, for a model that is larger than its device."""
    accelerate = pytest.importorskip("accelerate")
    plain.save_pretrained(tmp_path)
    model = load_model(tmp_path, head="base", attention="key-clusters", settings=LSH)
    expected = states(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert torch.equal(states(model), expected)


def test_an_attention_with_weights_of_its_own_names_load_model(tmp_path):
    for name, settings in {"reformer": {"bucket_size": 4}, "yoso-e": {"conv_kernel_size": 3}}.items():
        load_model(config_of("bert"), head="base", attention=name, settings=settings).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=rf"attention '{name}' has weights of its own; [^\n]*load_model"):
            states(AutoModel.from_pretrained(tmp_path))


def test_a_distilbert_has_a_convolution_and_no_new_projections(tmp_path):
    message = "^%s: not in a model of type distilbert; take one of albert, bert, "
    with pytest.raises(ModelError, match=message % "attention 'reformer'"):
        load_model(config_of("distilbert"), head="base", attention="reformer")
    model = load_model(config_of("distilbert"), head="base", attention="yoso-e", settings={"conv_kernel_size": 3})
    with pytest.raises(ModelError, match=message % "projections='new'"):
        draw_projections(model)
    before = states(model)
    for module in attention_modules(model):
        torch.nn.init.normal_(module.convolution.weight, std=0.1)
    assert (states(model) - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    assert torch.equal(states(load_model(tmp_path, head="base")), states(model))


def test_without_the_package_a_saved_model_names_it(tmp_path):
    load_model("mini", attention="key-clusters").save_pretrained(tmp_path)
    code = f"from transformers import AutoModel; AutoModel.from_pretrained({str(tmp_path)!r}"
    code = f"{code}, attn_implementation='sdpa'); {code.partition('; ')[2]})"  # the first succeeds
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'attn_implementation="albert_lsh"` is not supported' in ran.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", [name for name in attention.names() if not name.startswith("softmax")])
def test_what_chooses_keys_says_why_it_cannot_be_exported(name):
    settings = {"bucket_size": 4} if name in ("reformer", "shared-qk-lsh") else None
    model = load_model(config_of("bert"), head="base", attention=name, settings=settings)
    with pytest.raises(ValueError, match=rf"torch.export: attention '{name}' [^\n]*switch_attention[^\n]*$"):
        torch.export.export(model, (BATCH["input_ids"],))
    with pytest.raises(ValueError, match=rf"torch.jit.trace: attention '{name}' [^\n]*switch_attention[^\n]*$"):
        torch.jit.trace(model, BATCH["input_ids"], strict=False)
    if name != "reformer":
        attend, rows = functools.partial(attention.attend, name), tuple(torch.randn(3, 1, 2, 9, 8))
        with pytest.raises(ValueError, match=f"torch.jit.trace: attention '{name}'"):
            torch.jit.trace(lambda *x: attend(*x), rows)
        with pytest.raises(ValueError, match=f"torch.export: attention '{name}'"):
            make_fx(attend)(*rows)
