"""Switched attention: what is measured, and that it is right."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from albert_lsh import attention, find_task
from albert_lsh.encoders import ModelError
from albert_lsh.metrics import sample
from albert_lsh.model.load import load_tokenizer
from albert_lsh.record import SCHEMA
from albert_lsh.run import ParameterError, Run
from albert_lsh.train import keep_model, prepare_model
from albert_study.probe import switched
from albert_study.probe.switched import Fidelity, Subject, measure_fidelity, positions_left, without_a_threshold
from albert_study.probe.variants import Variant
from encoders import change_weights

SETTINGS = {"n_hashes": 1, "cluster_size": 3}
FEW = {"few": {"attention": "key-clusters", **SETTINGS}}


@pytest.fixture(params=["mini-mrpc", "mini-squad"])
def trained(request, tmp_path):
    """The folder of a run that kept its model; the model is as it was drawn, which is all that is needed here."""
    parameters = {"task": request.param, "train_examples": 300, "batch_size": 8, "save_model": True}
    run = Run.parse(parameters | {"output_dir": str(tmp_path)})
    keep_model(run, prepare_model(run), load_tokenizer("mini"), run.about)
    record = {"status": "complete", "schema": SCHEMA, "metrics": {}, "headline": {}, "parameters": run.recorded()}
    (tmp_path / "result.json").write_text(json.dumps(record))
    return tmp_path


def ask(folder, variants=FEW, **more):
    return Fidelity.parse({"trained": str(folder), "variants": variants, "examples": 24, "looked_into": 8} | more)


def measure(settings):
    return measure_fidelity(Subject(settings.run, settings.split, settings.examples), settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_model_trained_on_a_gpu_is_asked_on_a_machine_without(trained):
    record = json.loads((trained / "result.json").read_text())
    record["parameters"] |= {"device": "cuda", "precision": "fp16"}
    (trained / "result.json").write_text(json.dumps(record))
    run = ask(trained).run
    assert run.device == "cpu"
    assert run.precision in ("bf16", "fp32")


def test_a_variant_that_is_softmax_changes_nothing_and_another_does(trained):
    everything = {"attention": "key-clusters", "n_hashes": 2, "cluster_size": 512}
    table, details = measure(ask(trained, {"all": everything, **FEW}))
    same, other = (row for _, row in table.iterrows())
    assert (same["changed"], same["share"], same["score"]) == (0, 1, same["softmax"])
    assert same[["mass", "recall"]].tolist() == pytest.approx([1, 1])
    assert max(same["drift"], same["error"]) < 1e-5
    assert 0 < other["share"] < 0.7
    assert other["drift"] > 1e-3 < other["error"]
    assert 0 < other["recall"] < 1
    assert set(details["layer"]) == set(range(len(set(details["layer"]))))
    assert (details[details["variant"] == "all"]["error"] < 1e-5).all()


def test_a_model_of_one_fold_is_asked_nothing_it_may_have_been_trained_on(trained):
    record = json.loads((trained / "result.json").read_text())
    record["parameters"]["folds"] = 5
    (trained / "result.json").write_text(json.dumps(record))
    settings = ask(trained)
    with pytest.raises(ParameterError, match="trained on 4 of folds=5"):
        Subject(settings.run, settings.split)


def test_texts_that_are_looked_into_are_no_shorter_than_others(trained):
    settings = ask(trained)
    subject = Subject(settings.run, settings.split, settings.examples)
    (batch,) = sample(subject.model, subject.tokenizer, subject.encoded, 1)  # shortest first
    assert batch["attention_mask"].sum() == subject.encoded["length"][12]


def test_the_cost_is_that_of_all_texts_however_few_are_looked_into(trained):
    settings = ask(trained, looked_into=1)
    subject = Subject(settings.run, settings.split, settings.examples)
    table, _ = measure_fidelity(subject, settings)
    ((variant, cost),) = table[["settings", "cost"]].itertuples(index=False)
    lengths = np.array(subject.encoded["length"])
    config = subject.model.config
    width = config.hidden_size // config.num_attention_heads
    each = [attention.cost("key-clusters", int(n), width, **json.loads(variant)) for n in lengths]
    assert len(set(lengths)) > 1
    assert cost == pytest.approx((each * lengths**2).sum() / (lengths**2).sum())


def test_softmax_on_shorter_texts_is_a_variant_that_costs_its_share(trained):
    settings = ask(trained, {"cut": {"attention": "truncation", "shares": [1.0, 0.3]}})
    subject = Subject(settings.run, "held-out", 24)
    table, _ = measure_fidelity(subject, settings)
    whole, cut = (row for _, row in table.iterrows())
    assert (whole["changed"], whole["cost"], whole["score"]) == (0, 1, whole["softmax"])
    assert cut["cost"] == cut["share"] == pytest.approx(0.3, abs=0.06)  # a text has few tokens
    row, text = subject.truncated(0.3)[0], subject.encoded[0]
    assert (row["input_ids"][0], row["input_ids"][-1]) == (text["input_ids"][0], text["input_ids"][-1])
    assert row["length"] == len(row["input_ids"]) == len(row["attention_mask"]) < text["length"]


def test_which_tokens_of_a_pair_are_left():
    special = [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert positions_left(special, 7) == [0, 1, 2, 4, 5, 6, 8]  # the longer text gives first
    assert positions_left(special, 7, only_last=True) == [0, 1, 2, 3, 4, 5, 8]
    assert positions_left(special, 1) == [0, 1, 4, 5, 8]  # every text keeps a token


def test_loss_and_area_do_not_hang_on_a_threshold():
    task = find_task("mini-mrpc")
    table = pd.DataFrame({"label": [0, 0, 1, 1], "logit_0": [0.0] * 4, "logit_1": [1.0, 2.0, 3.0, 4.0]})
    right = without_a_threshold(task, table)
    assert right["auc"] == 1  # though all four are answered with 1
    assert right["loss"] == pytest.approx(np.log1p(np.exp([1.0, 2.0, -3.0, -4.0])).mean())
    assert without_a_threshold(task, table.assign(logit_1=-table["logit_1"]))["auc"] == 0
    numbers = pd.DataFrame({"label": [0.0, 2.0], "logit_0": [1.0, 2.0]})
    assert without_a_threshold(find_task("stsb"), numbers) == {"loss": 0.5}


def test_the_error_is_that_of_the_attentions_output(trained):
    subject = Subject(ask(trained).run, "held-out", 8)
    one = switched.trace(subject.model, list(sample(subject.model, subject.tokenizer, subject.encoded, 8))).passes[0][0]
    measured = switched.summary(
        switched.compare(one, Variant("few", "key-clusters", SETTINGS)).assign(layer=0, batch=0), ["layer"]
    )
    tensors = one.query, one.key, one.value, one.padding_mask
    softmax = attention.attend("softmax", *tensors)
    difference = attention.attend("key-clusters", *tensors, seed=one.seed, **SETTINGS) - softmax
    assert measured["error"].item() == pytest.approx((difference.norm() / softmax.norm()).item(), rel=1e-4)
    share = attention.coverage("key-clusters", *tensors[:2], one.padding_mask, seed=one.seed, **SETTINGS)
    assert measured["pairs"].item() == pytest.approx(share.pairs)
    assert measured["mass"].item() == pytest.approx(share.mass, rel=1e-4)


def test_a_model_that_is_not_all_there_is_refused(trained, tmp_path):
    change_weights(trained / "model", lambda w: {k: v for k, v in w.items() if "encoder" not in k})
    with pytest.raises(ModelError, match="lacks weights: albert.encoder"):
        Subject(ask(trained).run, "held-out", 8)
    with pytest.raises(ParameterError, match="has no result.json; glue.ipynb or squad.ipynb .* save_model=True makes"):
        _ = ask(tmp_path / "nothing").run
    settings = ask(trained)
    with pytest.raises(
        ParameterError, match="train_examples=None .* saw all training examples; take split=.validation"
    ):
        Subject(settings.run.model_copy(update={"train_examples": None}), "held-out", 8)
    with pytest.raises(ParameterError, match="split='tests' is not in the data of 'mini-.*; take split=.validation"):
        Subject(settings.run, "tests", 8)
    result = trained / "result.json"
    result.write_text(result.read_text().replace('"attention": "softmax"', '"attention": "window"'))
    with pytest.raises(ParameterError, match="was trained with attention='window', which cannot be compared"):
        _ = settings.run
    with pytest.raises(ParameterError, match=r"model is not there \(models are not kept in the repository\)"):
        Subject(Run.parse({"task": "mini-mrpc", "output_dir": str(tmp_path / "nothing")}))
