"""The card of a fine-tuned model: what huggingface_hub reads of it, and that it says what the record says."""

import shlex

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from scipy.stats import binomtest

from albert_lsh import Run, find_task, fit, load_model, load_tokenizer
from albert_lsh.card import HUB_METRICS, write_card
from albert_lsh.metrics import intervals
from albert_lsh.record import read_result
from checkouts import ROOT, committed

RECORDS = [ROOT / path for path in committed("results/runs/*/seed-0/result.json")]
WITH_CARDS = [path for path in RECORDS if "nano-lsh-tree" not in path.parts]  # a model that left the package


def kept_run(folder, **changes):
    """The folder of a run of nano-key-clusters that keeps its model."""
    values = {
        "task": "mini-mrpc",
        "model": "nano-key-clusters",
        "attention": "key-clusters",
        "attention_settings": {"share": 0.5},
    }
    values |= {"train_examples": 64, "eval_examples": 40, "epochs": 1, "max_length": 24, "device": "cpu"}
    values |= {"precision": "fp32", "save_model": True, "output_dir": str(folder), **changes}
    return fit(Run.parse(values)).folder


def made(folder, record):
    write_card(folder, record)
    return ModelCard.load(folder / "README.md")


def test_a_run_that_keeps_its_model_writes_its_card_and_its_command_makes_the_run_again(tmp_path):
    folder = kept_run(tmp_path, residual=False, seed=4)
    record, card = read_result(folder / "result.json"), ModelCard.load(folder / "model" / "README.md")
    assert {one.metric_type: one.metric_value for one in card.data.eval_results} == record["metrics"]
    assert {one.dataset_split for one in card.data.eval_results} == {"validation"}
    for text in (
        "without the residual connection around attention",
        f"full cost: {record['full_cost']:.0%} of softmax attention's",
        '"share": 0.5',
        "One run, seed 4: an interval covers the examples, by a bootstrap, and not seeds",
        record["environment"]["commit"].removesuffix("-dirty"),
        f"transformers {record['environment']['packages']['transformers']}",
        *(f"| {name} | {value:.3f} | {low:.3f} to {high:.3f} |"
          for (name, value), (low, high) in zip(record["metrics"].items(), record["intervals"].values(), strict=True)),
    ):  # fmt: skip
        assert text in card.text
    assert str(folder) not in card.content

    line = next(line for line in card.text.splitlines() if line.startswith("papermill"))
    _, notebook, _, _, parameters = shlex.split(line)
    cells = nbformat.read(ROOT / notebook, as_version=4).cells
    variables: dict = {}
    exec(next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])), variables)
    del variables["__builtins__"], variables["options"]
    run = Run.parse({**variables, **yaml.safe_load(parameters)})
    assert run.identity() == {name: record["parameters"][name] for name in run.identity()}


@pytest.mark.parametrize("path", WITH_CARDS, ids=lambda path: "-".join(path.parts[-6:-2]))
def test_the_hub_reads_the_card_of_every_committed_record(path, tmp_path):
    record = read_result(path)
    card, task = made(tmp_path, record), find_task(record["parameters"]["task"])
    name, scores = model_index_to_eval_results(card.data.to_dict()["model-index"])
    assert f"# {name}\n" in card.text
    ours = {hub: metric for metric, hub in HUB_METRICS.items()}
    for one in scores:
        key = ours.get(one.metric_type, one.metric_type) + "_mismatched" * one.dataset_split.endswith("_mismatched")
        assert (record["metrics"][key], task.dataset) == (one.metric_value, one.dataset_type)
    assert len(scores) == len([name for name in record["metrics"] if name.split("_")[0] in task.metrics]) > 0
    assert card.data.base_model == (record["parameters"]["model"] if "/" in record["parameters"]["model"] else None)
    assert card.data.datasets == [task.dataset]
    assert ("the record has no intervals" in card.text) == (not record.get("intervals"))


def test_of_two_splits_each_score_stands_at_its_own(tmp_path):
    record = read_result(next(path for path in RECORDS if "mnli" in path.parts))
    record["metrics"]["accuracy_mismatched"] = 0.25
    record["examples"]["validation_mismatched"] = 9832
    scores = {one.dataset_split: one.metric_value for one in made(tmp_path, record).data.eval_results}
    names = {"validation_matched": "accuracy", "validation_mismatched": "accuracy_mismatched"}
    assert scores == {split: record["metrics"][name] for split, name in names.items()}


def test_a_folder_is_no_base_model_of_the_hub(tmp_path):
    record = read_result(RECORDS[0])
    for model in ("/somewhere/on/this/machine", "results/runs/a/b/c/seed-0/model", "nano"):
        card = made(tmp_path, {**record, "parameters": {**record["parameters"], "model": model}})
        assert card.data.base_model is None
        assert "/somewhere" not in card.content
    for part in (load_model("mini"), load_tokenizer("mini")):
        part.save_pretrained(tmp_path / "kept" / "model")
    folder = kept_run(tmp_path / "run", model="kept/model", results_root=str(tmp_path))
    assert read_result(folder / "result.json")["parameters"]["model"] == "kept/model"  # as a repository is called
    assert ModelCard.load(folder / "model" / "README.md").data.base_model is None


def test_intervals_are_as_wide_as_the_binomial_and_of_every_split():
    task, generator = find_task("mnli"), np.random.default_rng(0)
    right = {"validation_matched": 0.8, "validation_mismatched": 0.6}
    answers = {split: (generator.random(500) > share).astype(int) for split, share in right.items()}
    parts = [pd.DataFrame({"split": split, "label": 0, "answer": answer}) for split, answer in answers.items()]
    bounds = intervals(pd.concat(parts, ignore_index=True), task.mean_scores)
    for name, answer in zip(("accuracy", "accuracy_mismatched"), answers.values(), strict=True):
        exact = binomtest(int((answer == 0).sum()), 500).proportion_ci(method="wilson")
        assert bounds[name] == pytest.approx([exact.low, exact.high], abs=0.01)
    exact = np.arange(400) % 4 == 0
    table = pd.DataFrame({"exact": exact, "f1": 0.5 + exact / 2})
    bounds = intervals(table, find_task("squad").mean_scores)  # in percent
    half = 196 * np.sqrt(0.25 * 0.75 / 400)
    assert bounds["exact"] == pytest.approx([25 - half, 25 + half], abs=1)
    assert bounds["f1"] == pytest.approx([62.5 - half / 2, 62.5 + half / 2], abs=0.5)
