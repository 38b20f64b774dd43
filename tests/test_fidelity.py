"""Switched attention: what is measured, that it is right, and that an interrupted table is taken up."""

import ast
import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch

from albert_lsh import attention, load_model, record_passes, switch_attention
from albert_lsh.files import repository_root
from albert_lsh.metrics import sample
from albert_lsh.model.load import ModelError, load_tokenizer
from albert_lsh.record import SCHEMA
from albert_lsh.run import ParameterError, Run
from albert_lsh.train import keep_model, prepare_model
from albert_study.probe import fidelity, truncation
from albert_study.probe.candidates import Candidate
from albert_study.probe.diagnostics import compare, look, summary
from albert_study.probe.fidelity import Asked
from weights import change_weights

SETTINGS = {"n_hashes": 1, "cluster_size": 3}


def keep_untrained(folder, task):
    """What a run leaves that kept its model; the model is as it was drawn, which is all that is needed here."""
    given = {"task": task, "train_examples": 300, "batch_size": 8, "save_model": True, "output_dir": str(folder)}
    run = Run.parse(given)
    keep_model(run, prepare_model(run), load_tokenizer("mini"))
    record = {"status": "complete", "schema": SCHEMA, "metrics": {}, "headline": {}}
    (folder / "result.json").write_text(json.dumps({**record, "parameters": run.recorded()}))


@pytest.fixture(params=["mini-mrpc", "mini-squad"])
def trained(request, tmp_path):
    """The folder of a run that kept its model."""
    keep_untrained(tmp_path, request.param)
    return tmp_path


def ask(folder, **variants):
    given = {"trained": str(folder), "variants": variants, "examples": 24, "looked_into": 8}
    return Asked.check(given)


def test_a_model_whose_weights_are_not_all_there_is_refused(trained):
    change_weights(trained / "model", lambda w: {k: v for k, v in w.items() if "encoder" not in k})
    with pytest.raises(ModelError, match="lacks weights: albert.encoder"):
        fidelity.prepare(ask(trained, few={"attention": "lsh", **SETTINGS}).run, "held-out", 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_model_trained_on_a_gpu_is_asked_on_a_machine_without(trained):
    record = json.loads((trained / "result.json").read_text())
    record["parameters"] |= {"device": "cuda", "precision": "fp16"}
    (trained / "result.json").write_text(json.dumps(record))
    run = ask(trained, few={"attention": "lsh", **SETTINGS}).run
    assert run.device == "cpu"
    assert run.precision in ("bf16", "fp32")


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


def test_softmax_on_shorter_texts_is_a_variant_that_costs_its_share(trained):
    asked = ask(trained, cut={"attention": "truncation", "shares": [1.0, 0.3]})
    subject = fidelity.prepare(asked.run, "held-out", 24)
    table, _ = fidelity.measure_all(subject, asked)
    whole, cut = (row for _, row in table.iterrows())
    assert (whole["changed"], whole["cost"], whole["score"]) == (0, 1, whole["softmax"])
    assert cut["cost"] == cut["share"] == pytest.approx(0.3, abs=0.06)  # a text has few tokens
    assert fidelity.measure_all(subject, asked)[0]["score"].equals(table["score"])  # read from its file
    (row,) = truncation.truncated(subject.encoded.select([0]), subject.tokenizer, 0.3, is_squad=False)
    first, last = subject.encoded[0]["input_ids"][0], subject.encoded[0]["input_ids"][-1]
    assert (row["input_ids"][0], row["input_ids"][-1]) == (first, last)
    assert row["length"] == len(row["input_ids"]) == len(row["attention_mask"]) < subject.encoded[0]["length"]


@pytest.mark.parametrize(
    ("n", "only_last", "left"),
    [
        (9, False, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (7, False, [0, 1, 2, 4, 5, 6, 8]),  # the longer text gives first
        (7, True, [0, 1, 2, 3, 4, 5, 8]),
        (1, False, [0, 1, 4, 5, 8]),  # every text keeps a token
    ],
)
def test_which_tokens_of_a_pair_are_left(n, only_last, left):
    assert truncation.positions_left([1, 0, 0, 0, 1, 0, 0, 0, 1], n, only_last=only_last) == left


@pytest.mark.parametrize("settings", [{}, {"share": 0}, {"share": 1.5}, {"share": "half"}, {"share": 0.5, "keys": 3}])
def test_a_truncation_takes_a_share_and_nothing_else(settings, tmp_path):
    with pytest.raises(ParameterError, match="'cut': truncation takes a share, over 0 and at most 1"):
        ask(tmp_path, cut={"attention": "truncation", **settings})


def test_loss_and_area_do_not_hang_on_a_threshold():
    task = fidelity.find_task("mini-mrpc")
    table = pd.DataFrame({"label": [0, 0, 1, 1], "logit_0": [0.0] * 4, "logit_1": [1.0, 2.0, 3.0, 4.0]})
    right = fidelity.without_a_threshold(task, table)
    assert right["auc"] == 1  # though all four are answered with 1
    assert right["loss"] == pytest.approx(np.log1p(np.exp([1.0, 2.0, -3.0, -4.0])).mean())
    assert fidelity.without_a_threshold(task, table.assign(logit_1=-table["logit_1"]))["auc"] == 0
    numbers = pd.DataFrame({"label": [0.0, 2.0], "logit_0": [1.0, 2.0]})
    assert fidelity.without_a_threshold(fidelity.find_task("stsb"), numbers) == {"loss": 0.5}
    assert fidelity.without_a_threshold(fidelity.find_task("squad"), numbers) == {}


def test_the_error_is_that_of_the_attentions_output(trained):
    subject = fidelity.prepare(ask(trained, few={"attention": "lsh", **SETTINGS}).run, "held-out", 8)
    seen = look(subject.model, list(sample(subject.model, subject.tokenizer, subject.encoded, 8))).passes[0][0]
    rows = compare(seen, Candidate("few", "lsh", SETTINGS))
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
        fidelity.prepare(run.model_copy(update={"train_examples": None}), "held-out", 50)


def test_a_row_that_is_there_is_not_measured_again_if_nothing_was_asked_otherwise(trained):
    first = ask(trained, few={"attention": "lsh", **SETTINGS})
    subject = fidelity.prepare(first.run, "held-out", 24)
    fidelity.measure_all(subject, first)
    path = trained / "fidelity-held-out.csv"
    pd.read_csv(path).assign(score=-1.0).to_csv(path, index=False)
    assert fidelity.measure_all(subject, first)[0]["score"].tolist() == [-1.0]
    other = ask(trained, few={"attention": "lsh", "n_hashes": 2, "cluster_size": 3})
    for changed in (other, dataclasses.replace(first, looked_into=4), dataclasses.replace(first, seed=1)):
        assert fidelity.measure_all(subject, changed)[0]["score"].tolist() != [-1.0]
        pd.read_csv(path).assign(score=-1.0).to_csv(path, index=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variants": {"a": {"attention": "lhs"}}}, "variants: 'a': attention='lhs' is not one of"),
        ({"splt": "validation"}, "'splt' is not a parameter of fidelity.ipynb; did you mean 'split'"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ParameterError, match=message):
        Asked.check({"trained": ".", "variants": {"a": {"attention": "window"}}, **change})


def test_a_model_that_was_not_kept_is_named(tmp_path):
    run = Run.parse({"task": "mini-mrpc", "output_dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"model is not there \(models are not kept in the repository\)"):
        fidelity.prepare(run)


def test_a_run_that_is_not_there_is_named_with_what_makes_it(tmp_path):
    with pytest.raises(ParameterError, match="has no result.json; glue.ipynb or squad.ipynb .* save_model=True makes"):
        _ = ask(tmp_path / "nothing", few={"attention": "lsh"}).run


def test_the_notebooks_own_variants_hash_and_are_told_one_by_one(trained, capsys):
    cells = json.loads((repository_root() / "notebooks" / "fidelity.ipynb").read_text())["cells"]
    (cell,) = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    given = {t.targets[0].id: ast.literal_eval(t.value) for t in ast.parse("".join(cell["source"])).body}
    asked = ask(trained, **given["variants"])
    table, _ = fidelity.measure_all(fidelity.prepare(asked.run, given["split"], 24), asked)
    assert given["trained"] is None
    assert (table["share"] <= table["share_asked"]).all()
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [f"1 of {len(table)}: lsh, share 0.5", f"2 of {len(table)}: lsh, share 0.25"]


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
