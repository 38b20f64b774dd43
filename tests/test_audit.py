"""What an attention would do to a model on one's own texts."""

import sys

import pandas as pd
import pytest
import torch

from albert_lsh import attention, audit, load_model, load_tokenizer, machine, metrics, record_passes, switch_attention
from albert_lsh.audit import advise, spread

TEXTS = ["a b c d e f g h " * 3, "the film was good and the music was bad " * 4, "one two three"]


def test_a_share_has_the_error_it_has_and_the_model_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(machine, "disturbed", lambda since: "")  # by other tests
    monkeypatch.setattr(sys.modules["albert_lsh.audit"], "LENGTHS", (1024,))  # more than it has positions
    model, tokenizer = load_model("nano-key-clusters", head="base").train(), load_tokenizer("nano-key-clusters")
    before = model.config.to_dict()
    result = audit(model, TEXTS[:1], tokenizer, attention="window", shares=[0.5, 0.25], seconds=0)
    assert (model.config.to_dict(), model.training) == (before, True)
    with record_passes(switch_attention(model, "softmax").eval()) as passes, torch.no_grad():
        model(**tokenizer(TEXTS[:1], return_tensors="pt"))
    for row in result.shares.to_dict("records"):
        errors = []
        for one in passes:
            exact = attention.attend("softmax", one.query, one.key, one.value)
            own = attention.attend("window", one.query, one.key, one.value, share=row["share"])
            errors.append(((own - exact).norm() / exact.norm()).item())
        assert row["error"] == pytest.approx(sum(errors) / len(errors), rel=1e-4)
        assert row["pairs"] <= row["share"]
    assert result.shares["mass"].is_monotonic_decreasing
    assert result.lengths["length"].tolist() == [1024, 1024]
    assert result.advice.startswith("At your ")


def test_fewer_long_texts_are_read_and_fewer_at_a_time(monkeypatch):
    """What is counted takes memory and time for every pair: eight texts of 2,048 tokens at once took 18 GB."""
    monkeypatch.setattr(sys.modules["albert_lsh.audit"], "LENGTHS", (64,))
    monkeypatch.setattr(metrics, "SHORT", 22)  # of so many tokens sixteen are read, eight at a time
    model, tokenizer, read = load_model("nano", head="base"), load_tokenizer("nano"), []
    model.register_forward_pre_hook(lambda _, args, inputs: read.append(inputs["input_ids"].shape), with_kwargs=True)
    audit(model, TEXTS[1:2] * 8, tokenizer, attention="window", shares=[0.5], seconds=0)
    assert read[:4] == [(2, 38), (2, 38), (1, 38), (2, 38)]  # five of eight texts, again and again


def test_texts_are_spread_over_all():
    assert spread(range(100), 4) == [12, 37, 62, 87]
    assert spread(range(3), 16) == [0, 1, 2]
    assert spread(range(3), 0) == [1]


@pytest.mark.parametrize(
    ("ratios", "longer", "tokens", "sentence"),
    [
        ((0.8, 0.5), (2.0, 2.0), 9, "At your 9 tokens (median) key-clusters with a share of 0.5 takes 80% of softmax"),
        ((0.95, 1.2), (1.5, 0.8), 9, "time, keep softmax; from about 4,096 one of 0.25 does (80%)."),
        ((1.1, 1.2), (0.8, 0.95), 3000, "keep softmax; nor does any up to 4,096 tokens."),
    ],
)
def test_the_advice_follows_the_times(ratios, longer, tokens, sentence):
    table = pd.DataFrame({"share": [0.5, 0.25], "error": [0.1, 0.3], "of_softmax": ratios})
    by_length = pd.DataFrame({"length": [2048, 4096], "share": [0.25, 0.25], "of_softmax": longer})
    assert sentence in advise(table, by_length, "key-clusters", tokens)


@pytest.mark.parametrize(
    ("own", "others", "sentence"),
    [(0.3, 64.0, "These times say nothing: other programs used 64.0 of"), (1, 64, "At your")],
)
def test_times_beside_other_programs_are_called_worthless_and_progress_is_shown(
    monkeypatch, capsys, own, others, sentence
):
    """Where they took cores that this process had to wait for."""
    monkeypatch.setattr(sys.modules["albert_lsh.audit"], "LENGTHS", (64,))
    readings = iter([(0.0, 0.0, 0.0), (10.0, 10 * own * torch.get_num_threads(), 10 * others)])
    monkeypatch.setattr(machine, "clocks", lambda: next(readings))
    model, tokenizer = load_model("nano", head="base"), load_tokenizer("nano")
    result = audit(model, TEXTS[:1], tokenizer, attention="window", shares=[0.5], seconds=0)
    assert result.advice.startswith(sentence)
    assert "audit: shares, on the texts: 100%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("texts", "changes", "message"),
    [
        ([], {}, "must be a list of at least one text"),
        ("a text", {}, "must be a list of at least one text"),
        (TEXTS, {"attention": "linear"}, "linear.*share"),
        (TEXTS, {"shares": [1.5]}, "share=1.5"),
    ],
)
def test_what_cannot_be_audited_is_named(texts, changes, message):
    with pytest.raises(ValueError, match=message):
        audit("nano", texts, **changes)
