"""Switched attention: what is measured, that it is right, and that an interrupted table is taken up."""

import dataclasses
import json

import pandas as pd
import papermill
import pytest
import torch
from albert_lsh import attention, fidelity, load_model, reading, record_passes, switch_attention
from albert_lsh.diagnostics import compare, look, summary
from albert_lsh.fidelity import Asked
from albert_lsh.model import extend_positions, load_tokenizer
from albert_lsh.runs import ParameterError, Parameters
from albert_lsh.training import keep_model, prepare_model, sample
from albert_lsh.variants import Variant
from test_study import ROOT

SETTINGS = {"n_hashes": 1, "cluster_size": 3}


def keep_untrained(folder, task):
    """What a run leaves that kept its model; the model is as it was drawn, which is all that is needed here."""
    given = {"task": task, "train_examples": 300, "batch_size": 8, "save_model": True, "output_dir": str(folder)}
    run = Parameters.check(given, "squad.ipynb" if "squad" in task else "glue.ipynb")
    head = "question-answering" if "squad" in task else "classification"
    keep_model(run, prepare_model(run, head=head), load_tokenizer("mini"))
    record = {"status": "complete", "parameters": dataclasses.asdict(run), "metrics": {}, "headline": {}}
    (folder / "result.json").write_text(json.dumps(record))


@pytest.fixture(params=["mini-mrpc", "mini-squad"])
def trained(request, tmp_path):
    """The folder of a run that kept its model."""
    keep_untrained(tmp_path, request.param)
    return tmp_path


def ask(folder, **variants):
    given = {"trained": str(folder), "variants": variants, "examples": 24, "looked_into": 8}
    return Asked.check(given)


def test_a_variant_that_is_softmax_changes_nothing_and_another_does(trained):
    everything = {"attention": "lsh", "n_hashes": 2, "cluster_size": 512}
    asked = ask(trained, all=everything, few={"attention": "lsh", **SETTINGS})
    table, looks = fidelity.measure_all(fidelity.prepare(asked.run, "held-out", 24), asked)
    same, other = (row for _, row in table.iterrows())
    assert (same["changed"], same["share"], same["score"]) == (0, 1, same["softmax"])
    assert same[["mass", "recall"]].tolist() == pytest.approx([1, 1])
    assert max(same["drift"], same["error"]) < 1e-5
    assert 0 < other["share"] < 0.7
    assert other["drift"] > 1e-3 < other["error"]
    assert 0 < other["recall"] < 1
    assert set(looks["layer"]) == set(range(len(set(looks["layer"]))))
    assert (looks[looks["variant"] == "all"]["error"] < 1e-5).all()


def test_the_error_is_that_of_the_attentions_output(trained):
    subject = fidelity.prepare(ask(trained, few={"attention": "lsh", **SETTINGS}).run, "held-out", 8)
    seen = look(subject.model, list(sample(subject.model, subject.tokenizer, subject.encoded, 8))).passes[0][0]
    rows = compare(seen, Variant("few", "lsh", SETTINGS))
    tensors = seen.query, seen.key, seen.value, seen.padding_mask
    softmax = attention.attend("softmax", *tensors)
    difference = attention.attend("lsh", *tensors, seed=seen.seed, **SETTINGS) - softmax
    measured = summary(rows.assign(layer=0, batch=0), ["layer"])
    assert measured["error"].item() == pytest.approx((difference.norm() / softmax.norm()).item(), rel=1e-4)
    share = attention.coverage("lsh", *tensors[:2], seen.padding_mask, seed=seen.seed, **SETTINGS)
    assert measured["pairs"].item() == pytest.approx(share.pairs)
    assert measured["mass"].item() == pytest.approx(share.mass, rel=1e-4)


def test_held_out_examples_are_not_those_of_training(trained):
    run = ask(trained, few={"attention": "window"}).run
    data = fidelity.load_data(run.task, train_examples=300)["train"]
    rows = fidelity.prepare(run, "held-out", 50).examples
    assert len(rows) == 50
    texts = {json.dumps([row[c] for c in row if c != "id"]) for row in data}
    assert not texts & {json.dumps([row[c] for c in row if c != "id"]) for row in rows}
    with pytest.raises(ValueError, match="train_examples=None of"):
        fidelity.prepare(dataclasses.replace(run, train_examples=None), "held-out", 50)


def test_a_table_is_taken_up_where_it_was_left(trained):
    first = ask(trained, few={"attention": "lsh", **SETTINGS})
    subject = fidelity.prepare(first.run, "held-out", 24)
    fidelity.measure_all(subject, first)
    path = trained / "fidelity-held-out.csv"
    marked = pd.read_csv(path).assign(score=-1.0)  # a row that is kept is not measured again
    marked.to_csv(path, index=False)
    both = ask(trained, few={"attention": "lsh", **SETTINGS}, window={"attention": "window", "n_hashes": 4})
    table, looks = fidelity.measure_all(subject, both)
    assert table["variant"].tolist() == ["few", "window"]
    assert table["score"].tolist()[0] == -1.0 != table["score"].tolist()[1]
    changed = ask(trained, few={"attention": "lsh", "n_hashes": 2, "cluster_size": 3})
    table, looks = fidelity.measure_all(subject, changed)
    assert table["score"].tolist() != [-1.0]
    assert set(looks["variant"]) == {"few"}
    pd.read_csv(path).assign(score=-1.0).to_csv(path, index=False)
    fewer = dataclasses.replace(changed, looked_into=4)
    assert fidelity.measure_all(subject, fewer)[0]["score"].tolist() != [-1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {}}, "variants={} must name at least one"),
        ({"variants": {"a": {"attention": "lhs"}}}, "variants: 'a': attention='lhs' is not one of"),
        ({"variants": {"a": {"n_hashes": 2}}}, "variants: 'a': attention=None is not one of"),
        ({"variants": {"a": {"attention": "lsh", "share": 2}}}, "variants: 'a': share=2 must be above 0"),
        ({"splt": "validation"}, "'splt' is not a parameter of fidelity.ipynb; did you mean 'split'"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ParameterError, match=message):
        Asked.check({"trained": ".", "variants": {"a": {"attention": "window"}}, **change})


def test_a_model_that_was_not_kept_is_named(tmp_path):
    run = Parameters.check({"task": "mini-mrpc", "output_dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"model is not there \(models are not kept in the repository\)"):
        fidelity.prepare(run)


def test_a_switched_model_is_one_loaded_so_and_reformer_cannot_be():
    ids = torch.arange(5, 45).view(1, -1)
    torch.manual_seed(0)
    model = load_model("mini", head="base")
    switch_attention(model, "lsh", SETTINGS, seed=4)
    torch.manual_seed(0)
    loaded = load_model("mini", head="base", attention="lsh", settings=SETTINGS, seed=4)
    assert torch.equal(model(ids).last_hidden_state, loaded(ids).last_hidden_state)
    assert model.config.albert_lsh == loaded.config.albert_lsh
    with record_passes(model) as passes:
        model(ids)
    assert {p.attention for p in passes} == {"lsh"}
    with pytest.raises(ValueError, match="'lsh' cannot become 'reformer'"):
        switch_attention(model, "reformer")


def test_the_notebook_runs(trained, tmp_path):
    parameters = {"trained": str(trained), "examples": 12, "looked_into": 8}
    parameters["variants"] = {"lsh": {"attention": "lsh", "length": 32, "share": 0.25}, "top-k": {"attention": "top-k"}}
    notebook = ROOT / "notebooks" / "fidelity.ipynb"
    papermill.execute_notebook(
        notebook, tmp_path / "out.ipynb", parameters=parameters, kernel_name="python3", progress_bar=False
    )
    assert pd.read_csv(trained / "fidelity-held-out.csv")["variant"].tolist() == ["lsh", "top-k"]


def test_paragraphs_are_read_whole_or_put_together():
    tokenizer = load_tokenizer("mini")
    texts = reading.load_texts("mini-squad")
    assert len(texts) == len(set(texts))
    for length, count in ((24, 5), (200, 2)):
        ids = reading.sequences(texts, tokenizer, length, count)
        assert ids.shape == (count, length)
        assert (ids != tokenizer.pad_token_id).all()
    assert tokenizer.decode(ids[0]).count("[SEP]") == 1
    with pytest.raises(ValueError, match=r"paragraphs=2 of max_length=100000: there is text for 0 only"):
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


def test_the_reading_notebook_runs(tmp_path):
    variants = {name: {"attention": name, "share": 0.25, "length": 300} for name in ("lsh", "window", "top-k")} | {
        "all": {"attention": "lsh", "n_hashes": 1, "cluster_size": 512}
    }
    parameters = {"model": "mini", "task": "mini-squad", "max_length": 300, "paragraphs": 2, "variants": variants}
    parameters["output"] = str(tmp_path / "table.csv")
    notebook = ROOT / "notebooks" / "reading.ipynb"
    papermill.execute_notebook(
        notebook, tmp_path / "out.ipynb", parameters=parameters, kernel_name="python3", progress_bar=False
    )
    table = pd.read_csv(tmp_path / "table.csv").set_index("variant")
    assert table.loc["all", ["error", "drift"]].max() < 1e-5
    assert (table.loc[["lsh", "window", "top-k"], "share"] <= 0.25).all()
    assert table["mass"].drop("all").idxmax() == "top-k"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {"a": {"attention": "lhs"}}}, "variants: 'a': attention='lhs' is not one of"),
        ({"paragraphs": 0}, "paragraphs=0 must be 1 or more"),
        ({"max_lenght": 5}, "'max_lenght' is not a parameter of reading.ipynb; did you mean 'max_length'"),
    ],
)
def test_bad_parameters_of_reading_are_named(change, message):
    with pytest.raises(ParameterError, match=message):
        reading.Reading.check({"variants": {"a": {"attention": "window"}}, **change})


def test_an_interrupted_reading_goes_on_where_it_was(tmp_path):
    variants = {name: {"attention": name, "n_hashes": 2, "cluster_size": 4} for name in ("window", "random")}
    given = {"model": "mini", "task": "mini-squad", "max_length": 32, "paragraphs": 3}
    asked = reading.Reading.check({**given, "variants": variants, "output": str(tmp_path / "table.csv")})
    torch.manual_seed(0)  # of the model's weights
    table, _ = reading.read_all(asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table-layers.csv", "table.csv"]
    for path in tmp_path.iterdir():
        path.unlink()
    table.head(1).assign(error=-1.0).to_csv(tmp_path / "table.partial.csv", index=False)  # what a killed one leaves
    pd.DataFrame({"variant": ["window"]}).to_csv(tmp_path / "table-layers.partial.csv", index=False)
    torch.manual_seed(0)
    again, _ = reading.read_all(asked)
    assert again["error"].tolist() == [-1.0, pytest.approx(table["error"][1], rel=1e-4)]
