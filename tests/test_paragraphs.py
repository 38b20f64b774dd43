"""A pretrained model that reads paragraphs: what it is given, and that every number is of the right attention."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from albert_lsh import attention, load_model, load_tokenizer, record_passes
from albert_lsh.files import OneLineError
from albert_study.probe import paragraphs
from albert_study.probe.paragraphs import MaskedWords, Reading, measure_masked_words, measure_reading, sequences

FEW = {"few": {"attention": "key-clusters", "n_hashes": 2, "cluster_size": 4}, "random": {"attention": "random"}}
VARIANTS = {
    "key-clusters": {"attention": "key-clusters", "share": 0.5},
    "all keys": {"attention": "top-k", "share": 1.0},
}


def read(folder):
    """The tables of a small model, whose weights are drawn anew, the same every time."""
    torch.manual_seed(0)
    parameters = {"model": "mini", "task": "mini-squad", "max_length": 32, "paragraphs": 3, "seed": 4}
    return measure_reading(Reading.parse({**parameters, "variants": FEW, "results_root": str(folder)}))


def mask(folder, **more):
    parameters = {"model": "nano", "task": "mini-squad", "max_length": 24, "paragraphs": 6}
    return MaskedWords.parse({"variants": VARIANTS, **parameters, "results_root": str(folder), **more})


def test_another_model_has_another_table(tmp_path):
    """Named by its last part; a folder is below results_root."""
    (tmp_path / "mine").mkdir()
    tables = [mask(tmp_path, model=name).output for name in ("nano", "mini", "./mine")]
    assert [Path(table).name for table in tables] == [
        f"masked-words-{n}-train-24.csv" for n in ("nano", "mini", "mine")
    ]
    assert Path(mask(tmp_path, model="./mine").model).parent == tmp_path


def test_paragraphs_are_read_whole_or_put_together(tmp_path):
    tokenizer, texts = load_tokenizer("mini"), mask(tmp_path).texts()
    assert len(texts) == len(set(texts))
    assert not set(texts) & set(mask(tmp_path, split="validation").texts())  # to choose by, and to report
    for length, count in ((24, 5), (200, 2)):
        ids = sequences(texts, tokenizer, length, count, join=True)
        assert ids.shape == (count, length)
        assert (ids != tokenizer.pad_token_id).all()
        assert len(ids.unique(dim=0)) == count
    assert tokenizer.decode(ids[0]).count("[SEP]") == 1
    for length, join in ((5_000, False), (10_000_000, True)):
        with pytest.raises(OneLineError, match=f"paragraphs=2 of max_length={length}: only 0 are that long") as error:
            sequences(texts, tokenizer, length, 2, join=join)
        would_do = int(re.search(r"max_length=(\d+) would do$", str(error.value))[1])
        assert len(sequences(texts, tokenizer, would_do, 2, join=join)) == 2
    with pytest.raises(OneLineError, match="take fewer"):
        sequences(texts, tokenizer, 24, 1_000_000, join=False)


def test_each_variants_numbers_are_its_own(tmp_path, monkeypatch):
    """Held against models loaded with the candidate, and, one layer at a time, against softmax on the same tensors."""
    table, layers = read(tmp_path / "together")
    ids = sequences(Reading.parse({"variants": FEW, "task": "mini-squad"}).texts(), load_tokenizer("mini"), 32, 3, True)

    def passes_and_states(**chosen):
        torch.manual_seed(0)
        model = load_model("mini", head="base", seed=4, **chosen)
        with record_passes(model) as passes, torch.no_grad():
            return passes, model(ids).last_hidden_state

    passes, states = passes_and_states()
    for _, row in table.iterrows():
        settings, errors = json.loads(row["settings"]), []
        for one in passes:
            tensors = one.query, one.key, one.value
            softmax = attention.attend("softmax", *tensors)
            other = attention.attend(row["attention"], *tensors, seed=one.seed, **settings)
            errors.append(((other - softmax).norm() / softmax.norm()).item())
        of_layers = layers[layers["variant"] == row["variant"]]
        assert of_layers["error"].tolist() == pytest.approx(errors, rel=1e-4)
        assert row["error"] == pytest.approx(sum(errors) / len(errors), rel=1e-4)
        _, switched = passes_and_states(attention=row["attention"], settings=settings)
        assert row["drift"] == pytest.approx(((switched - states).norm() / states.norm()).item(), rel=1e-4)
    monkeypatch.setattr(paragraphs, "AT_ONCE", 64)  # two sequences, then one
    numbers = ["drift", "share", "mass", "recall"]
    pd.testing.assert_frame_equal(read(tmp_path / "apart")[0][numbers], table[numbers], rtol=1e-4)


def test_the_loss_is_the_models_own_and_all_keys_lose_nothing(tmp_path):
    settings = mask(tmp_path)
    table, by_text = measure_masked_words(settings)
    tokenizer, model = load_tokenizer("nano"), load_model("nano", head="masked-lm", attention="softmax")
    tokens = sequences(settings.texts(), tokenizer, 24, 6, join=False)
    hidden = paragraphs.hide(tokens, settings.seed)
    with torch.no_grad():
        logits = model(tokens.masked_fill(hidden, tokenizer.mask_token_id)).logits
    expected = -logits.log_softmax(-1)[hidden].gather(-1, tokens[hidden][:, None]).mean().item()
    assert table["softmax_loss"].tolist() == pytest.approx([expected, expected], rel=1e-4)
    rows = table.set_index("variant")
    assert rows.loc["all keys", "change"] == pytest.approx(0, abs=1e-4)
    clusters, sums = rows.loc["key-clusters"], by_text[by_text["variant"] == "key-clusters"]
    assert clusters["loss"] - clusters["softmax_loss"] == pytest.approx(clusters["difference"], abs=1e-5)
    assert clusters["change"] > 0.01
    difference = (sums["loss"] - sums["softmax_loss"]).sum() / sums["words"].sum()
    assert difference == pytest.approx(clusters["difference"], abs=1e-5)
    assert sums["words"].sum() == clusters["words"] == hidden.sum().item()
    more = mask(tmp_path, variants={**VARIANTS, "window": {"attention": "window", "share": 0.5}})
    assert measure_masked_words(more)[0]["date"].tolist()[:2] == table["date"].tolist()  # what was measured is kept
