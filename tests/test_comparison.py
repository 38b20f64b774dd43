"""compare.ipynb: one task fine-tuned under several attentions, and how long runs take."""

import json
import re
from pathlib import Path

import pytest

from albert_lsh.data import load_data
from albert_lsh.run import ParameterError, Run
from albert_study.comparison import Comparison, check_time, compare, score_and_cost
from albert_study.forecast import SIZES, forecast, seconds_of

SMALL = {"task": "mini-mrpc", "model": "mini", "train_examples": 64, "eval_examples": 32, "epochs": 1, "device": "cpu"}
VARIANTS = {"softmax": {"attention": "softmax"}, "a quarter": {"attention": "lsh", "share": 0.25}}


def test_every_variant_is_a_run_as_glue_makes_it():
    runs = Comparison.parse({**SMALL, "variants": VARIANTS, "learning_rate": "1e-4"}).runs()
    lsh = {"attention": "lsh", "attention_settings": {"share": 0.25}, "learning_rate": 1e-4}
    assert list(runs) == ["softmax", "a quarter"]
    assert runs["a quarter"] == Run.parse({**SMALL, **lsh})


def test_hours_on_a_cpu_are_named_before_anything_is_loaded(minilm, tmp_path, capsys):
    """MiniLM, three times over the tokens of MNLI, without a GPU."""
    given = {"task": "mnli", "model": minilm, "max_length": 64, "variants": VARIANTS, "device": "cpu"}
    asked = Comparison.parse({**given, "results_root": str(tmp_path)})
    with pytest.raises(ParameterError, match='task="mini-mrpc", model="mini" for .* or take_hours=True to go on'):
        check_time(asked, asked.runs())
    assert re.search(r"about [\d.,]+ (hours|minutes) of training.*; train_examples takes", capsys.readouterr().out)
    for going_on in ({**given, "take_hours": True}, {**given, **SMALL, "max_length": None}):
        check_time(comparison := Comparison.parse(going_on), comparison.runs())
    assert re.search(r"about \d+ seconds of training", capsys.readouterr().out)


def test_runs_are_recorded_shown_beside_the_baselines_and_not_made_twice(tmp_path, capsys):
    runs = Comparison.parse({**SMALL, "variants": VARIANTS, "results_root": str(tmp_path)}).runs()
    data = load_data("mini-mrpc", train_examples=64, eval_examples=32)
    rows = compare(runs, data)
    paths = rows["record"].unique()
    assert "2 of 2: a quarter" in capsys.readouterr().out
    records = [json.loads(Path(path).read_text()) for path in paths]
    assert [record["parameters"]["attention"] for record in records] == ["softmax", "lsh"]

    table = score_and_cost(rows)
    assert list(table.index) == ["softmax", "a quarter", "majority class", "chance"]
    assert table.loc["softmax", ["pairs", "cost"]].to_list() == ["100%", "100%"]
    assert table.loc["a quarter", "pairs"] < "30%"
    assert {"mini-mrpc (accuracy)", "mini-mrpc (f1)"} <= set(table)
    assert "training" in score_and_cost(rows.assign(cores_of_others=0.1))
    assert "training" not in score_and_cost(rows.assign(cores_of_others=[0.1, *[1.0] * (len(rows) - 1)]))
    assert "training times are left out: other programs" in capsys.readouterr().out

    dates = [record["environment"]["date"] for record in records]
    compare(runs, data)
    assert capsys.readouterr().out.count("this run was made already") == 2
    assert [json.loads(Path(path).read_text())["environment"]["date"] for path in paths] == dates


def test_a_forecast_takes_the_times_of_like_runs_and_counts_the_others(tmp_path, monkeypatch):
    run = Run.parse({**SMALL, "train_examples": 900, "epochs": 2})
    counted = seconds_of(run, {})
    assert 0 < counted < 600
    record = {"parameters": {**run.identity(), "epochs": 1.0}, "examples": {"train": 100}, "train_seconds": 100.0}
    for number, text in enumerate([json.dumps(record), "{"]):
        (path := tmp_path / "results" / "runs" / str(number) / "result.json").parent.mkdir(parents=True)
        path.write_text(text)
    took = "expected: about {} of training, {} at a time, by the times of like runs or by counting"
    assert forecast([run], 4, tmp_path) == took.format("30 minutes", 1)
    assert forecast([run, run], 4, tmp_path) == took.format("30 minutes", 2)
    monkeypatch.delitem(SIZES, "mini-mrpc")
    assert forecast([run], 4, tmp_path) == ""
