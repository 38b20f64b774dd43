"""A pretrained model that reads paragraphs: what it is given, and that every number is of the right attention."""

import json

import pandas as pd
import pytest
import torch

from albert_lsh import attention, load_model, record_passes
from albert_lsh.errors import OneLineError
from albert_lsh.model.load import extend_positions, load_tokenizer
from albert_lsh.run import ParameterError
from albert_study.probe import reading

FEW = {"few": {"attention": "lsh", "n_hashes": 2, "cluster_size": 4}, "random": {"attention": "random"}}


def read(path, variants, seed=0, **more):
    """The tables of a small model, whose weights are drawn anew, the same every time."""
    given = {"model": "mini", "task": "mini-squad", "max_length": 32, "paragraphs": 3, "seed": seed}
    torch.manual_seed(0)
    return reading.read_all(reading.Reading.check({**given, "variants": variants, "output": str(path)}), **more)


def test_paragraphs_are_read_whole_or_put_together():
    tokenizer = load_tokenizer("mini")
    texts = reading.load_texts("mini-squad")
    assert len(texts) == len(set(texts))
    for length, count in ((24, 5), (200, 2)):
        ids = reading.sequences(texts, tokenizer, length, count)
        assert ids.shape == (count, length)
        assert (ids != tokenizer.pad_token_id).all()
        assert len(ids.unique(dim=0)) == count
    assert tokenizer.decode(ids[0]).count("[SEP]") == 1
    with pytest.raises(ValueError, match=r"paragraphs=2 of max_length=100000: there is text for only 0"):
        reading.sequences(texts, tokenizer, 100_000, 2)


def test_extended_positions_repeat_and_take_longer_sequences():
    model = load_model("mini", head="base")
    learned = model.embeddings.position_embeddings.weight.clone()
    present, ids = len(learned), torch.arange(5, 45).repeat(20)[None]
    short = model(ids[:, :present]).last_hidden_state
    with pytest.raises(ValueError, match="a sequence of 800 tokens is longer"):
        model(ids)
    extend_positions(model, 800)
    assert torch.equal(model.embeddings.position_embeddings.weight[present : 2 * present], learned)
    assert torch.equal(model(ids[:, :present]).last_hidden_state, short)
    assert model(ids).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="length=800 must be above the 800 positions"):
        extend_positions(model, 800)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {"a": {"attention": "lhs"}}}, "variants: 'a': attention='lhs' is not one of"),
        ({"task": "mrpc"}, "task='mrpc' has no paragraphs; squad, squad-v2 and mini-squad have"),
        ({"paragraphs": 0}, "paragraphs=0 must be greater than or equal to 1"),
        ({"max_lenght": 5}, "'max_lenght' is not a parameter of reading.ipynb; did you mean 'max_length'"),
    ],
)
def test_bad_parameters_of_reading_are_named(change, message):
    with pytest.raises(ParameterError, match=message):
        reading.Reading.check({"variants": {"a": {"attention": "window"}}, **change})


def test_each_candidates_numbers_are_its_own(tmp_path):
    """Held against models loaded with the candidate, and, one layer at a time, against softmax on the same tensors."""
    table, looks = read(tmp_path / "table.csv", FEW, seed=4)
    ids = reading.sequences(reading.load_texts("mini-squad"), load_tokenizer("mini"), 32, 3)

    def passes_and_states(seed, **chosen):
        torch.manual_seed(0)
        model = load_model("mini", head="base", seed=seed, **chosen)
        with record_passes(model) as passes, torch.no_grad():
            return passes, model(ids).last_hidden_state

    passes, states = passes_and_states(4)
    for _, row in table.iterrows():
        settings, errors = json.loads(row["settings"]), []
        for seen in passes:
            tensors = seen.query, seen.key, seen.value
            softmax = attention.attend("softmax", *tensors)
            other = attention.attend(row["attention"], *tensors, seed=seen.seed, **settings)
            errors.append(((other - softmax).norm() / softmax.norm()).item())
        of_layers = looks[looks["variant"] == row["variant"]]
        assert of_layers["layer"].tolist() == list(range(len(passes)))
        assert of_layers["error"].tolist() == pytest.approx(errors, rel=1e-4)
        assert row["error"] == pytest.approx(sum(errors) / len(errors), rel=1e-4)
        _, switched = passes_and_states(4, attention=row["attention"], settings=settings)
        assert row["drift"] == pytest.approx(((switched - states).norm() / states.norm()).item(), rel=1e-4)


def test_without_a_network_the_error_says_what_to_set_and_that_alone_is_enough(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr("albert_lsh.tasks.load_dataset", no_network)
    given = {"variants": {"few": {"attention": "lsh"}}, "output": str(tmp_path / "table.csv"), "paragraphs": 30}
    with pytest.raises(OneLineError, match='without a network set task="mini-squad", model="mini"$'):
        reading.read_all(reading.Reading.check(given))
    table, _ = reading.read_all(reading.Reading.check({**given, "task": "mini-squad", "model": "mini"}))
    assert table["share"].item() < 0.3


def test_batches_do_not_matter(tmp_path):
    together, _ = read(tmp_path / "together.csv", FEW)
    apart, _ = read(tmp_path / "apart.csv", FEW, batch_tokens=64)  # two sequences, then one
    numbers = ["drift", "share", "mass", "recall"]
    pd.testing.assert_frame_equal(apart[numbers], together[numbers], rtol=1e-4)
