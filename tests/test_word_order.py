"""Runs that also answer texts with shuffled words, and models asked for a text's twin."""

import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset

from albert_lsh.model.load import load_model, load_tokenizer
from albert_lsh.model.passes import record_passes
from albert_lsh.record import read_predictions, read_result
from albert_lsh.run import Run
from albert_lsh.tasks import load_data
from albert_lsh.train import fit
from albert_study import twins
from albert_study.evidence.records import load_runs
from albert_study.evidence.word_order import load_words, plot_word_order, word_order, word_order_tables

SMALL = {"model": "mini", "max_length": 32, "train_examples": 64, "eval_examples": 50, "epochs": 1}


def make(root: Path, **changes) -> Path:
    return fit(Run.parse({**SMALL, **changes})).folder / "result.json"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for arm, attention in (("softmax", "softmax"), ("window", "window")):
        for seed in (0, 1):
            folder = root / "order" / "mini-sst2" / "mini" / arm / f"seed-{seed}"
            given = {"attention": attention, "seed": seed, "shuffle_words": 0, "output_dir": str(folder)}
            make(root, task="mini-sst2", **given)
    return load_runs(root, "order")


def test_a_run_keeps_its_answers_to_both_and_its_record_both_scores(runs):
    folder = runs["folder"][0]
    record, table = read_result(folder / "result.json"), read_predictions(folder / "predictions.parquet")
    plain, shuffled = (table[table["split"] == split].reset_index(drop=True) for split in ("validation", "shuffled"))
    assert plain["id"].equals(shuffled["id"])
    assert record["metrics"] == {
        "accuracy": (plain["label"] == plain["answer"]).mean(),
        "accuracy_shuffled": (shuffled["label"] == shuffled["answer"]).mean(),
    }
    assert record["examples"] == {"train": 64, "validation": 50, "shuffled": 50}
    assert record["headline"]["value"] == record["metrics"]["accuracy"]


def test_the_table_has_both_scores_and_the_share_of_answers_that_change(runs):
    words = pd.DataFrame({"task": ["mini-sst2"], "train": [64.0], "headline": [0.7]})
    table = word_order(runs, words).set_index("arm")
    own = runs[runs["arm"] == "softmax"]
    answers = [read_predictions(folder / "predictions.parquet")["answer"].to_numpy() for folder in own["folder"]]
    assert table.loc["softmax", "changed"] == pytest.approx(sum((a[:50] != a[50:]).mean() for a in answers) / 2)
    assert table.loc["softmax", "changed_low"] <= table.loc["softmax", "changed"]
    assert table.loc["softmax", "difference"] == pytest.approx(
        (own["metric.accuracy_shuffled"] - own["metric.accuracy"]).mean()
    )
    assert table.loc["softmax", "bag_of_words"] == 0.7
    ((name, shown),) = word_order_tables("order", lambda of: table.reset_index())
    assert name == "order-shuffled"
    labels = ["softmax", "nearest keys", "a bag of words", "always the same answer"]
    assert shown.rows["attention"].tolist() == labels
    assert shown.rows["runs"].tolist() == ["2", "2", "", ""]
    figure = plot_word_order(runs, table.reset_index())
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["softmax", "nearest keys"]


def test_runs_without_shuffled_words_have_no_such_table(runs, tmp_path):
    plain = make(tmp_path, task="mini-sst2", output_dir=str(tmp_path / "order/mini-sst2/mini/softmax/seed-0"))
    assert word_order(load_runs(plain.parents[5]), load_words(tmp_path, "order")).empty
    assert not list(word_order_tables("order", lambda of: pd.DataFrame()))


@pytest.fixture(scope="module")
def likeness(tmp_path_factory):
    """A run on a small likeness of sentences that kept its model."""
    folder, drawn = tmp_path_factory.mktemp("stsb"), random.Random(0)
    words = ["red", "blue", "green", "small", "large", "old", "new", "ball", "house", "tree", "river", "road"]
    texts = [" ".join(drawn.sample(words, 5)) for _ in range(80)]
    rows = {"sentence1": texts, "sentence2": texts[1:] + texts[:1], "label": [drawn.uniform(0, 5) for _ in texts]}
    entries = ""
    for split in ("train", "validation"):
        Dataset.from_dict(rows).to_parquet(folder / f"{split}.parquet")
        entries += f"  - split: {split}\n    path: {split}.parquet\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: stsb\n  data_files:\n{entries}---\n")
    given = {"task": "stsb", "data_dir": str(folder), "save_model": True, "seed": 3}
    return make(folder, **given, output_dir=str(folder / "runs/softmax/seed-3")).parent


def test_a_model_is_asked_for_twins_and_a_row_a_run_is_written(likeness):
    twins.main([str(likeness.parents[1])])
    (row,) = pd.read_csv(likeness.parents[1] / "twins.csv").to_dict("records")
    assert (row["task"], row["arm"], row["seed"], row["pairs"]) == ("stsb", "softmax", 3, 80)
    assert 0 <= row["low"] <= row["told_apart"] <= row["high"] <= 1
    model = load_model(str(likeness / "model"), head="classification").eval()
    data_dir = read_result(likeness / "result.json")["parameters"]["data_dir"]
    first = load_data("stsb", data_dir)["validation"]["sentence1"][:]
    again = twins.values(model, load_tokenizer(str(likeness / "model")), first, first, 32)
    alone = twins.values(model, load_tokenizer(str(likeness / "model")), first[7:8], first[7:8], 32)
    assert alone == pytest.approx(again[7:8], abs=1e-5)


@pytest.mark.parametrize("name", ["softmax", "shared-qk"])
def test_weights_are_those_of_the_attention(name):
    model, tokenizer = load_model("nano", head="base", attention=name).eval(), load_tokenizer("nano")
    text = "It rained in the morning."
    with torch.no_grad(), record_passes(model) as passes:
        model(**tokenizer(text, text, return_tensors="pt"))
    weights = twins.weights_of(passes[0])
    assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5)
    if name == "softmax":
        scores = passes[0].query @ passes[0].key.transpose(-1, -2) / passes[0].query.shape[-1] ** 0.5
        assert torch.allclose(weights, scores.softmax(-1), atol=1e-5)
    assert twins.weight_of_copies(model, tokenizer, [text], 64) > 0


def test_a_run_without_a_model_or_of_another_task_is_refused(runs, tmp_path):
    for folder, said in ((runs["folder"][0].parent, "does not predict a number of two texts"), (tmp_path, "no run")):
        with pytest.raises(SystemExit, match=said):
            twins.main([str(folder)])
