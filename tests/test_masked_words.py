"""The loss of a pretrained model on masked words, under other attentions."""

import pandas as pd
import pytest
import torch

from albert_lsh import load_model, load_tokenizer
from albert_lsh.run import ParameterError
from albert_study.probe.masked_words import MaskedWords, by_paragraph, hide, measure_all, sequences

VARIANTS = {"lsh": {"attention": "lsh", "share": 0.5}, "all keys": {"attention": "top-k", "share": 1.0}}


def asked(tmp_path, **more):
    given = {"model": "nano", "task": "mini-squad", "max_length": 24, "paragraphs": 6, "results_root": str(tmp_path)}
    return MaskedWords.check({"variants": VARIANTS, **given, **more})


def test_the_loss_is_the_models_own_and_all_keys_lose_nothing(tmp_path):
    run = asked(tmp_path)
    table, by_text = measure_all(run)
    tokenizer, model = load_tokenizer("nano"), load_model("nano", head="masked-lm", attention="softmax")
    tokens = sequences(run, tokenizer)
    hidden = hide(tokens, run.seed)
    with torch.no_grad():
        logits = model(tokens.masked_fill(hidden, tokenizer.mask_token_id)).logits
    probabilities = logits.softmax(-1)[hidden].gather(-1, tokens[hidden][:, None])
    expected = -probabilities.log().mean().item()
    assert table["softmax_loss"].tolist() == pytest.approx([expected, expected], rel=1e-4)
    row = table.set_index("variant").loc["all keys"]
    assert row["change"] == pytest.approx(0, abs=1e-4)
    lsh = table.set_index("variant").loc["lsh"]
    assert lsh["loss"] - lsh["softmax_loss"] == pytest.approx(lsh["difference"], abs=1e-5)
    assert lsh["change"] > 0.01
    sums = by_text[by_text["variant"] == "lsh"]
    assert (sums["loss"] - sums["softmax_loss"]).sum() / sums["words"].sum() == pytest.approx(
        lsh["difference"], abs=1e-5
    )
    assert sums["words"].sum() == lsh["words"] == hidden.sum().item()


def test_an_attention_may_have_some_passes_alone(tmp_path):
    window = {"attention": "window", "share": 0.5}
    depth = load_model("nano", attention="softmax").config.num_hidden_layers
    given = {"everywhere": window, "listed": {**window, "passes": [*range(depth)]}, "first": {**window, "passes": [0]}}
    table = measure_all(asked(tmp_path, variants=given))[0].set_index("variant")
    assert table.loc["listed", "change"] == pytest.approx(table.loc["everywhere", "change"])
    assert 0 < table.loc["first", "change"] != pytest.approx(table.loc["everywhere", "change"])
    assert 1 - table.loc["first", "cost"] == pytest.approx((1 - table.loc["everywhere", "cost"]) / depth)
    anew = measure_all(asked(tmp_path, variants={"first": window}))[0]  # now in all passes: another row
    assert anew["change"].item() == pytest.approx(table.loc["everywhere", "change"])


def test_texts_to_choose_by_are_not_those_to_report(tmp_path):
    tokenizer = load_tokenizer("nano")
    chosen, reported = (sequences(asked(tmp_path, split=split), tokenizer) for split in ("train", "validation"))
    assert not {*map(tuple, chosen.tolist())} & {*map(tuple, reported.tolist())}


def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    run = asked(tmp_path)
    table, _ = measure_all(run)
    more = asked(tmp_path, variants={**VARIANTS, "window": {"attention": "window", "share": 0.5}})
    assert measure_all(more)[0]["variant"].tolist() == ["lsh", "all keys", "window"]
    written = pd.read_csv(run.output)
    assert written.loc[:1, "date"].tolist() == table["date"].tolist()


def test_the_error_has_paragraphs_as_units():
    hidden = torch.tensor([[True] * 4, [True] * 4])
    mean, error = by_paragraph(torch.tensor([1.0, 1, 1, 1, 3, 3, 3, 3]), hidden)
    assert (mean, error) == pytest.approx((2, 1))  # two values, 1 and 3


def test_too_little_text_is_named(tmp_path):
    run = asked(tmp_path, max_length=500)
    with pytest.raises(ValueError, match=r"paragraphs=6 of max_length=500: only 0 of 'mini-squad' \(train\)"):
        measure_all(run)
    with pytest.raises(ParameterError, match="split='test'"):
        asked(tmp_path, split="test")
