"""Runs that also answer texts with shuffled words, and models asked for a text's twin."""

import random

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
from albert_study.compare import shuffled
from albert_study.figures import draw_figures
from albert_study.records import load

SMALL = {"model": "mini", "max_length": 32, "train_examples": 64, "eval_examples": 50, "epochs": 1}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for arm in ("softmax", "window"):
        for seed in (0, 1):
            folder = root / "results" / "runs" / "order" / "mini-sst2" / "mini" / arm / f"seed-{seed}"
            changes = {"attention": arm, "seed": seed, "shuffle_words": 0, "output_dir": str(folder)}
            fit(Run.parse({**SMALL, "task": "mini-sst2", **changes}))
    return root


def test_a_run_keeps_its_answers_to_both_and_its_record_both_scores(root):
    folder = root / "results/runs/order/mini-sst2/mini/softmax/seed-0"
    record, table = read_result(folder / "result.json"), read_predictions(folder / "predictions.parquet")
    plain, mixed = (table[table["split"] == split].reset_index(drop=True) for split in ("validation", "shuffled"))
    assert plain["id"].equals(mixed["id"])
    right = [(answers["label"] == answers["answer"]).mean() for answers in (plain, mixed)]
    assert record["metrics"] == dict(zip(("accuracy", "accuracy_shuffled"), right, strict=True))
    assert record["examples"] == {"train": 64, "validation": 50, "shuffled": 50}
    assert record["headline"]["value"] == record["metrics"]["accuracy"]


def test_both_scores_are_in_the_table_and_drawn(root):
    words = root / "results/runs/order/words.csv"
    words.write_text("task,train,headline\nmini-sst2,64,0.7\n")
    table = shuffled(load(root, "order"), root)
    lines = table[["arm", "seeds", "train_examples", "bag_of_words"]].values.tolist()
    assert lines == [["softmax", 2, 64, 0.7], ["window", 2, 64, 0.7]]
    assert table["difference"].tolist() == pytest.approx((table["shuffled"] - table["score"]).tolist())
    (root / "results/tables").mkdir()
    table.to_csv(root / "results/tables/order-shuffled.csv")
    figure = draw_figures("order", root)["order-shuffled"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["softmax", "nearest keys"]


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
    place = {"data_dir": str(folder), "output_dir": str(folder / "runs/softmax/seed-3")}
    return fit(Run.parse({**SMALL, **place, "task": "stsb", "save_model": True, "seed": 3})).folder


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


def test_a_run_without_a_model_or_of_another_task_is_refused(root, tmp_path):
    runs = root / "results/runs/order/mini-sst2/mini/softmax"
    for folder, said in ((runs, "does not predict a number of two texts"), (tmp_path, "no run")):
        with pytest.raises(SystemExit, match=said):
            twins.main([str(folder)])
