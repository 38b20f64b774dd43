"""The card of a fine-tuned model: what huggingface_hub reads of it, and that it says what the record says."""

import shlex
import subprocess
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from huggingface_hub.repocard_data import model_index_to_eval_results
from scipy.stats import binomtest

from albert_lsh import Run, find_task
from albert_lsh.card import HUB_METRICS, write_card
from albert_lsh.metrics import intervals
from albert_lsh.record import read_result
from kept import kept_run

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = ["git", "-C", str(ROOT), "ls-files", "results/runs/*/seed-0/result.json"]  # not what `make study` has made
RECORDS = [ROOT / path for path in subprocess.check_output(COMMITTED, text=True).splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return kept_run(tmp_path_factory.mktemp("run"), passes=[0, 2], seed=4)


def made(folder, record):
    write_card(folder, record)
    return ModelCard.load(folder / "README.md")


def test_a_run_that_keeps_its_model_writes_its_card(run):
    record, card = read_result(run / "result.json"), ModelCard.load(run / "model" / "README.md")
    found = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert found == record["metrics"]
    assert {one.dataset_split for one in card.data.eval_results} == {"validation"}
    assert "in passes [0, 2] alone, the others have softmax" in card.text
    assert f"full cost: {record['full_cost']:.0%} of softmax attention's" in card.text
    assert 'settings `{"share": 0.5' in card.text
    assert "One run, seed 4: an interval covers the examples, by a bootstrap, and not seeds" in card.text
    assert record["environment"]["commit"].removesuffix("-dirty") in card.text
    assert f"transformers {record['environment']['packages']['transformers']}" in card.text
    for name, value in record["metrics"].items():
        low, high = record["intervals"][name]
        assert low <= value <= high
        assert f"| {name} | {value:.3f} | {low:.3f} to {high:.3f} |" in card.text
    assert str(run) not in card.content


def test_its_command_makes_the_run_again(run):
    record = read_result(run / "result.json")
    line = next(x for x in ModelCard.load(run / "model" / "README.md").text.splitlines() if x.startswith("papermill"))
    _, notebook, _, _, given = shlex.split(line)
    cells = nbformat.read(ROOT / notebook, as_version=4).cells
    variables: dict = {}
    exec(next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])), variables)
    variables.pop("__builtins__")
    asked = Run.parse({**variables, **yaml.safe_load(given)})
    assert asked.identity() == {name: record["parameters"][name] for name in asked.identity()}


def test_a_run_that_keeps_no_model_has_no_card(tmp_path):
    folder = kept_run(tmp_path, save_model=False)
    assert not (folder / "model").exists()
    assert "intervals" not in read_result(folder / "result.json")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: "-".join(path.parts[-6:-2]))
def test_the_hub_reads_the_card_of_every_committed_record(path, tmp_path):
    record = read_result(path)
    card, task = made(tmp_path, record), find_task(record["parameters"]["task"])
    name, found = model_index_to_eval_results(card.data.to_dict()["model-index"])
    assert name in card.text
    assert found
    for one in found:
        key = {hub: ours for ours, hub in HUB_METRICS.items()}.get(one.metric_type, one.metric_type)
        key += "_mismatched" if one.dataset_split.endswith("_mismatched") else ""
        assert record["metrics"][key] == one.metric_value
        assert one.dataset_type == task.dataset
    assert len(found) == len([name for name in record["metrics"] if name.split("_")[0] in task.metrics])
    assert card.data.base_model == (record["parameters"]["model"] if "/" in record["parameters"]["model"] else None)
    assert card.data.datasets == [task.dataset]
    assert ("the record has no intervals" in card.text) == (not record.get("intervals"))


def test_of_two_splits_each_score_stands_at_its_own(tmp_path):
    record = read_result(next(path for path in RECORDS if "mnli" in path.parts))
    record["metrics"]["accuracy_mismatched"] = 0.25
    record["examples"]["validation_mismatched"] = 9832
    found = {one.dataset_split: one.metric_value for one in made(tmp_path, record).data.eval_results}
    names = {"validation_matched": "accuracy", "validation_mismatched": "accuracy_mismatched"}
    assert found == {split: record["metrics"][name] for split, name in names.items()}


def test_eval_results_hold_the_headline_of_the_hubs_own_split_alone(tmp_path):
    path = next(path for path in RECORDS if path.parts[-6:-4] == ("albert", "kor-qpair"))
    record = read_result(path)
    record["intervals"] = {"accuracy": [0.9, 0.95]}
    made(tmp_path / "whole", record)
    (entry,) = parse_eval_result_entries(yaml.safe_load((tmp_path / "whole/.eval_results/kor-qpair.yaml").read_text()))
    assert (entry.dataset_id, entry.value) == ("songys/kor_qpair", record["headline"]["value"])
    assert entry.notes.endswith("one seed, 95% 0.900 to 0.950")
    for name, value in {"eval_examples": 9, "folds": 5, "held_out_examples": 9, "data_dir": "mine"}.items():
        made(tmp_path / name, {**record, "parameters": {**record["parameters"], name: value}})
        assert not (tmp_path / name / ".eval_results").exists()


@pytest.mark.parametrize("model", ["/somewhere/on/this/machine", "results/runs/a/b/c/seed-0/model", "nano"])
def test_a_folder_is_no_base_model_of_the_hub(model, tmp_path):
    record = read_result(RECORDS[0])
    card = made(tmp_path, {**record, "parameters": {**record["parameters"], "model": model}})
    assert card.data.base_model is None
    assert "/somewhere" not in card.content


def test_intervals_are_as_wide_as_the_binomial_and_of_every_split():
    task, generator = find_task("mnli"), np.random.default_rng(0)
    right = {"validation_matched": 0.8, "validation_mismatched": 0.6}
    parts = [
        pd.DataFrame({"split": split, "label": 0, "answer": (generator.random(500) > share).astype(int)})
        for split, share in right.items()
    ]
    found = intervals(task, pd.concat(parts, ignore_index=True))
    for name, part in zip(("accuracy", "accuracy_mismatched"), parts, strict=True):
        exact = binomtest(int((part["answer"] == 0).sum()), 500).proportion_ci(method="wilson")
        assert found[name] == pytest.approx([exact.low, exact.high], abs=0.01)


def test_squads_scores_have_intervals_in_percent():
    exact = np.arange(400) % 4 == 0
    found = intervals(find_task("squad"), pd.DataFrame({"exact": exact, "f1": 0.5 + exact / 2}))
    half = 196 * np.sqrt(0.25 * 0.75 / 400)
    assert found["exact"] == pytest.approx([25 - half, 25 + half], abs=1)
    assert found["f1"] == pytest.approx([62.5 - half / 2, 62.5 + half / 2], abs=0.5)
