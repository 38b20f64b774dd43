"""The attention block of the study of 2020: output and gradients, padding that is seen, and no residual connection."""

import json
import math

import pytest
import torch
from transformers import AutoModel

from albert_lsh import attention, load_model, pad_inputs, switch_attention
from albert_lsh.encoders import ModelError
from albert_lsh.model.projections import drop_residual
from attention_cases import each, padding, tensors
from encoders import SMALL, batch, config_of, save_encoder
from references.naive import shared_qk_one

HASHED = {"bucket_size": 4, "n_hashes": 3}
ALL_PAIRS = {"bucket_size": 4, "full_attn_thres": 64}
THEIRS = {"residual": False, "mask_padding": False}
KINDS = pytest.mark.parametrize("kind", ["albert", "bert"])


def rounds_of(rows, seed, bucket_size, n_hashes):
    """The chunks of all rounds, one after another; rows (n, head_dim), n a multiple of two buckets."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        directions = torch.randn(rows.shape[1], n_hashes, len(rows) // bucket_size // 2, dtype=rows.dtype)
    for r in range(n_hashes):
        along = rows @ directions[:, r]
        bucket = torch.cat([along, -along], -1).argmax(-1).tolist()
        order = sorted(range(len(rows)), key=lambda i: (bucket[i], i))
        yield from (order[i : i + bucket_size] for i in range(0, len(order), bucket_size))


def attend_text(x, seen, layer, seed, bucket_size, n_hashes=None, full_attn_thres=0):
    """The package's layer on one text: x (n, hidden); seen: (n,) bool, the tokens that meet others."""
    n, heads = len(x), []
    scaling = (x.shape[1] // layer.heads) ** -0.5
    queries, values = ((x @ w.weight.T).chunk(layer.heads, 1) for w in (layer.toqk, layer.tov))
    for q, v in zip(queries, values, strict=True):
        counts = torch.ones(n, n)
        if n > full_attn_thres:
            counts.zero_()
            filled = torch.cat([q.detach(), q.new_zeros(-n % (2 * bucket_size), q.shape[1])])
            chunks = list(rounds_of(filled, seed, bucket_size, n_hashes))
            for c, chunk in enumerate(chunks):
                for i in chunk:
                    for j in chunk + chunks[c - 1]:  # before the first chunk stands the last
                        if i < n and j < n:
                            counts[i, j] += 1
        counts = counts * seen * seen[:, None]
        heads.append(shared_qk_one(q, v, counts, scaling, causal=False))
    return torch.cat(heads, 1) @ layer.to_out.weight.T + layer.to_out.bias


def encode(model, inputs, settings):
    """The last hidden states of a model with `reformer`, from its embeddings on."""
    chosen = settings | {"residual": True, "mask_padding": True} | settings
    ours = {name: chosen[name] for name in ("bucket_size", "n_hashes", "full_attn_thres") if name in chosen}
    seen = inputs["attention_mask"].bool() | (not chosen["mask_padding"])
    x, encoder = model.embeddings(inputs["input_ids"]), model.encoder
    is_albert = model.config.model_type == "albert"
    if is_albert:
        x = encoder.embedding_hidden_mapping_in(x)
    for number in range(model.config.num_hidden_layers):
        layer = encoder.albert_layer_groups[0].albert_layers[0] if is_albert else encoder.layer[number]
        block = layer.attention if is_albert else layer.attention.self
        block = block.reformer if hasattr(block, "reformer") else block
        seed = 7 + 1_000_003 * number
        a = torch.stack([attend_text(row, s, block.lsh, seed, **ours) for row, s in zip(x, seen, strict=True)])
        if chosen["residual"]:
            a = (layer.attention if is_albert else layer.attention.output).LayerNorm(a + x)
        if is_albert:
            x = layer.full_layer_layer_norm(layer.ffn_output(layer.activation(layer.ffn(a))) + a)
        else:
            x = layer.output.LayerNorm(layer.output.dense(layer.intermediate(a)) + a)
    return x


@pytest.mark.parametrize("theirs", [THEIRS, {"residual": False}, {"mask_padding": False}, {}], ids=str)
@pytest.mark.parametrize("how", [HASHED, ALL_PAIRS], ids=["hashed", "all pairs"])
@KINDS
def test_output_and_every_gradient_of_a_model_are_those_of_the_description(kind, how, theirs):
    settings, inputs = how | theirs, batch()
    torch.manual_seed(1)
    model = load_model(config_of(kind), head="base", attention="reformer", settings=settings, seed=7).double()
    upstream = torch.randn(3, 21, SMALL["hidden_size"], dtype=torch.float64)
    parameters = {n: p for n, p in model.named_parameters() if not n.startswith("pooler")}
    rows = inputs["attention_mask"].bool() | ("mask_padding" in theirs)  # else those of padding are nobody's
    outputs = [x[rows] for x in (model(**inputs).last_hidden_state, encode(model, inputs, settings))]
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
    ours, reference = (torch.autograd.grad((out * upstream[rows]).sum(), parameters.values()) for out in outputs)
    for name, gradient, expected in zip(parameters, ours, reference, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9, msg=name)
    left = {n for n in parameters if ".attention." in n}
    assert any("LayerNorm" in n for n in left) == settings.get("residual", True)


@pytest.mark.parametrize("masked", [True, False])
@KINDS
def test_padding_changes_a_text_where_it_is_not_masked(kind, masked):
    """Without hashing: in buckets padding takes room, masked or not."""
    settings = ALL_PAIRS | {"mask_padding": masked}
    model, inputs = load_model(config_of(kind), head="base", attention="reformer", settings=settings), batch()
    ids = inputs["input_ids"][2:, :5]
    with torch.no_grad():
        alone, padded = model(ids)[0], model(**inputs)[0][2:, :5]
    assert torch.allclose(alone, padded, atol=1e-5) == masked


@each([("hashed", HASHED), ("all pairs", ALL_PAIRS)])
def test_bare_tensors_are_attended_to_as_if_nothing_were_padded(name, settings):
    (query, key, value), mask = tensors((2, 2, 21, 8)), padding((2, 2, 21, 8), "padded")
    more = {"seed": 3, "mask_padding": False, "residual": False, **settings}
    plain = attention.attend("reformer", query, key, value, seed=3, **settings)
    assert torch.equal(attention.attend("reformer", query, key, value, mask, **more), plain)
    assert not torch.equal(attention.attend("reformer", query, key, value, mask, seed=3, **settings), plain)
    pairs = attention.pairs("reformer", query, key, mask, **more)
    assert torch.equal(pairs, attention.pairs("reformer", query, key, seed=3, **settings))
    coverage = attention.coverage("reformer", query, key, mask, **more)
    assert coverage == attention.coverage("reformer", query, key, seed=3, **settings)


@KINDS
def test_no_attention_weight_of_the_package_is_dropped(kind):
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5}
    config = config_of(kind, **options)
    model = load_model(config, head="base", attention="reformer", settings=ALL_PAIRS).train()
    assert model.config.attention_probs_dropout_prob == 0
    assert torch.equal(model(**batch())[0], model(**batch())[0])


@KINDS
def test_a_saved_block_comes_back_and_says_what_it_lacks(kind, tmp_path):
    folder = save_encoder(kind, tmp_path / "pretrained")
    model = load_model(folder, head="base", attention="reformer", settings=HASHED | THEIRS, seed=3)
    pad_inputs(model, 32)
    model.save_pretrained(tmp_path / "saved")
    again = load_model(str(tmp_path / "saved"), head="base")
    assert again.config.albert_lsh["settings"] == attention.check("reformer", HASHED | THEIRS)
    assert again.config.padded_length == 32
    with torch.no_grad():
        assert torch.equal(again(**batch())[0], model(**batch())[0])


# Padding by the model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["albert", "bert", "roberta", "distilbert"])
def test_a_model_that_pads_answers_as_for_texts_padded_by_hand(kind):
    name, settings = ("shared-qk", {}) if kind == "distilbert" else ("reformer", HASHED | THEIRS)
    model = load_model(config_of(kind), head="base", attention=name, settings=settings)
    ids = batch()["input_ids"][:1, :9]
    mask = torch.arange(32)[None] < 9
    by_hand = torch.nn.functional.pad(ids, (0, 23), value=1)
    with torch.no_grad():
        expected = model(input_ids=by_hand, attention_mask=mask.long(), output_hidden_states=True)
        assert pad_inputs(model, 32) is model
        for out in (model(ids, output_hidden_states=True), model(ids, torch.ones_like(ids), output_hidden_states=True)):
            assert torch.equal(out.last_hidden_state, expected.last_hidden_state[:, :9])
            assert torch.equal(out.hidden_states[1], expected.hidden_states[1][:, :9])
        assert torch.equal(model(ids, return_dict=False)[0], expected.last_hidden_state[:, :9])
        pad_inputs(model, 10)
        assert model(ids).last_hidden_state.shape[1] == 9
    with pytest.raises(ValueError, match="a sequence of 21 tokens is longer than the 10 that this model pads to"):
        model(**batch())
    with pytest.raises(ValueError, match="takes input_ids, and neither embeddings nor positions"):
        model(inputs_embeds=torch.zeros(1, 9, SMALL["hidden_size"]))
    with pytest.raises(ValueError, match="length=41 must be a whole number, 1 to 40"):
        pad_inputs(model, 41)


# The residual connection -----------------------------------------------------------------------------------------


def encode_without_residual(model, inputs):
    """The last hidden states with softmax, LayerNorm(dense(context)) in the place of every attention block's output."""
    x, is_albert, heads = model.embeddings(inputs["input_ids"]), model.config.model_type == "albert", 4
    if is_albert:
        x = model.encoder.embedding_hidden_mapping_in(x)
    hidden = torch.zeros(inputs["attention_mask"].shape).masked_fill(inputs["attention_mask"] == 0, -math.inf)
    for number in range(model.config.num_hidden_layers):
        layer = model.encoder.albert_layer_groups[0].albert_layers[0] if is_albert else model.encoder.layer[number]
        inner, outer = (layer.attention,) * 2 if is_albert else (layer.attention.self, layer.attention.output)
        q, k, v = (part(x).unflatten(-1, (heads, -1)).transpose(1, 2) for part in (inner.query, inner.key, inner.value))
        weights = (q @ k.mT / math.sqrt(q.shape[-1]) + hidden[:, None, None]).softmax(-1)
        a = outer.LayerNorm(outer.dense((weights @ v).transpose(1, 2).flatten(2)))
        if is_albert:
            x = layer.full_layer_layer_norm(layer.ffn_output(layer.activation(layer.ffn(a))) + a)
        else:
            x = layer.output.LayerNorm(layer.output.dense(layer.intermediate(a)) + a)
    return x


@KINDS
def test_without_the_residual_connection_nothing_else_changes(kind, tmp_path):
    folder, inputs = save_encoder(kind, tmp_path / "pretrained"), batch()
    plain, model = (load_model(folder, head="base").double() for _ in range(2))
    assert drop_residual(drop_residual(model)) is model
    assert all(map(torch.equal, plain.parameters(), model.parameters()))
    tokens = inputs["attention_mask"].bool()
    out, expected = model(**inputs)[0][tokens], encode_without_residual(model, inputs)[tokens]
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(out, plain(**inputs)[0][tokens], atol=0.1)
    parameters = [p for n, p in model.named_parameters() if not n.startswith("pooler")]
    ours, reference = (torch.autograd.grad(x.square().sin().sum(), parameters) for x in (out, expected))
    for gradient, expected_gradient in zip(ours, reference, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-7, atol=1e-9)

    model.save_pretrained(tmp_path / "saved")
    again = load_model(str(tmp_path / "saved"), head="base")
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], model(**inputs)[0])
        window = {"attention": "window", "settings": {"keys": 40}}
        for other in (load_model(str(tmp_path / "saved"), head="base", **window), switch_attention(again, **window)):
            torch.testing.assert_close(other(**inputs)[0][tokens], out.detach(), rtol=1e-4, atol=1e-5)
            assert other.config.albert_lsh["residual"] is False
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["attn_implementation"] == "albert_lsh"  # so that Transformers alone refuses it
    by_transformers = AutoModel.from_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="no residual connection around attention; read it with albert_lsh.load_model"):
        by_transformers(**inputs)


def test_the_residual_connection_of_reformer_is_a_setting():
    with pytest.raises(ValueError, match="residual=False: of 'reformer' it is a setting"):
        drop_residual(load_model("mini", attention="reformer"))
    with pytest.raises(ModelError, match="distilbert"):
        drop_residual(load_model(config_of("distilbert"), head="base"))


# Causal ----------------------------------------------------------------------------------------------------------


@each([("shared-qk", {}), ("shared-qk-lsh", {"bucket_size": 8, "n_hashes": 4})])
@KINDS
def test_with_causal_attention_no_text_reaches_its_first_token(kind, name, settings):
    inputs = batch()
    other = inputs | {"input_ids": inputs["input_ids"].roll(1, 1)}
    other["input_ids"][:, 0] = inputs["input_ids"][:, 0]
    for causal in (True, False):
        model = load_model(config_of(kind), head="base", attention=name, settings=settings | {"causal": causal})
        with torch.no_grad():
            first, second = model(**inputs)[0], model(**other)[0]
        assert torch.equal(first[:, 0], second[:, 0]) == causal
        assert not torch.allclose(first[:, 1:], second[:, 1:])
