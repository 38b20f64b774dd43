"""The spread of hidden states: its formula, what is left out of it, and that a block without residual loses it."""

import math

import pandas as pd
import pytest
import torch
from transformers import BertConfig

from albert_lsh import load_model, load_tokenizer
from albert_lsh.files import OneLineError
from albert_lsh.model.padding import pad_inputs
from albert_study.experiments.collapse import (
    AS_TRAINED,
    CLS,
    MEAN,
    TOKENS,
    Collapse,
    drop_layer_norm,
    measure_collapse,
    read_texts,
    spread,
    spreads,
    spreads_by_pass,
)


def small(folder, **more):
    values = {"model": "mini", "task": "mini-sst2", "texts": 8, "max_length": 40, "draws": 3}
    return Collapse.parse({**values, "results_root": str(folder), **more})


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The table of a small model, by block, states and pass the draws."""
    folder = tmp_path_factory.mktemp("measured")
    table = measure_collapse(small(folder))
    kept = pd.read_csv(folder / "results/runs/notebook/collapse-mini-mini-sst2-40.csv")
    assert kept["spread"].tolist() == pytest.approx(table["spread"].tolist(), rel=1e-4)
    return table.groupby(["block", "states", "pass"])["spread"].agg(list)


def test_spread_is_the_distance_from_the_mean_as_a_share_of_the_size():
    assert spread(torch.tensor([[3.0, 4.0], [3.0, 4.0]])) == 0
    assert spread(torch.tensor([[3.0, 4.0], [-3.0, -4.0]])) == 1
    assert spread(torch.tensor([[2.0, 0.0], [0.0, 0.0]])) == pytest.approx(math.sqrt(1 / 2))
    vectors = torch.tensor([[1.0, 2.0], [4.0, 6.0], [1.0, 1.0]])  # mean (2, 3): distances² 2, 13, 5; sizes² 5, 52, 2
    assert spread(vectors) == pytest.approx(math.sqrt(20 / 59))
    assert spread(10 * vectors) == pytest.approx(spread(vectors))
    assert spread(torch.zeros(2, 3)) == 0


def test_padding_is_left_out():
    states = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [9.0, 9.0]], [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    first = math.sqrt(1 / 5)  # of tokens 1 and 3: mean 2, distances 1; the other text has one token thrice
    between = math.sqrt((2 * (1 + 0.25)) / (4 + 1))  # of the means (2, 0) and (0, 1)
    expected = {CLS: math.sqrt(1 / 2), MEAN: between, TOKENS: first / 2}
    assert spreads(states, mask) == pytest.approx(expected)
    states[0, 2] = 1e6
    assert spreads(states, mask) == pytest.approx(expected)


@pytest.mark.parametrize("shape", ["nano", "bert"])
def test_states_are_those_of_every_pass(shape):
    """Held against Transformers' own; and a model that pads its inputs further, masked, has the same."""
    model, tokenizer = make(shape), load_tokenizer("nano")
    batch = tokenizer(
        ["a cat", "one more cat sat there", "yes"], padding="max_length", max_length=16, return_tensors="pt"
    )
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states[1:]
    expected = [spreads(of_pass, batch["attention_mask"].bool()) for of_pass in states]
    assert len(expected) == model.config.num_hidden_layers
    for ours, theirs in zip(spreads_by_pass(model, batch), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    for ours, theirs in zip(spreads_by_pass(pad_inputs(model, 24), batch), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)


def make(shape):
    """An encoder of each shape of layers."""
    if shape == "nano":
        return load_model("nano", head="base", attention="softmax")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return load_model(BertConfig(**sizes), head="base")


def test_a_causal_models_cls_is_the_same_for_every_text(measured):
    for depth in (1, 2):
        assert measured["causal, keys are queries", CLS, depth] == pytest.approx([0], abs=1e-6)
        assert measured["causal, keys are queries", TOKENS, depth][0] > 0.1


def test_without_the_residual_connection_tokens_become_one_vector(measured):
    for depth in (1, 2):
        kept = min(measured["new projections", TOKENS, depth])
        for name in ("2020 block", "2020 block, all pairs", "2020 block, all pairs, mask"):
            assert len(set(measured[name, TOKENS, depth])) == 3  # each draw is another
            assert max(measured[name, TOKENS, depth]) < kept / 5
    assert measured["no residual", TOKENS, 2][0] < measured["as pretrained", TOKENS, 2][0] / 5
    assert measured["no residual", CLS, 2] != measured["no residual, no LayerNorm", CLS, 2]
    assert measured["2020 block, all pairs", CLS, 2] != measured["2020 block, all pairs, mask", CLS, 2]


@pytest.mark.parametrize("shape", ["nano", "bert"])
def test_without_layer_norm_attention_is_not_scaled(shape):
    model = make(shape)
    scaled = [name for name, module in model.named_modules() if type(module).__name__ == "LayerNorm"]
    drop_layer_norm(model)
    left = [name for name, module in model.named_modules() if type(module).__name__ == "LayerNorm"]
    assert {name for name in scaled if "attention" in name} == {*scaled} - {*left} != set()


def test_a_trained_model_is_measured_as_it_is(tmp_path):
    settings = {"residual": False, "mask_padding": False, "full_attn_thres": 48}
    model = pad_inputs(load_model("mini", attention="reformer", settings=settings), 48)
    model.save_pretrained(tmp_path / "model")
    load_tokenizer("mini").save_pretrained(tmp_path / "model")
    table = measure_collapse(small(tmp_path, model=str(tmp_path / "model")))
    assert set(table["block"]) == {AS_TRAINED}
    _, texts = read_texts(small(tmp_path))
    batch = load_tokenizer("mini")(texts, padding="max_length", max_length=40, return_tensors="pt")
    expected = [value for of_pass in spreads_by_pass(model.base_model.eval(), batch) for value in of_pass.values()]
    assert table["spread"].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_too_few_texts_are_named(tmp_path):
    with pytest.raises(OneLineError, match="texts=100000: mini-sst2, validation has only"):
        measure_collapse(small(tmp_path, texts=100_000))
