"""compare.ipynb: one task fine-tuned under several attentions, and how long runs take."""

import json
from pathlib import Path

import pytest

from albert_lsh.data import load_data
from albert_lsh.run import ParameterError, Run
from albert_study.comparison import Comparison, check_time, compare, score_and_cost
from albert_study.forecast import say_how_long

SMALL = {"task": "mini-mrpc", "model": "mini", "train_examples": 64, "eval_examples": 32, "epochs": 1, "device": "cpu"}
VARIANTS = {"softmax": {"attention": "softmax"}, "a quarter": {"attention": "key-clusters", "share": 0.25}}


def test_every_variant_is_a_run_as_glue_makes_it():
    runs = Comparison.parse({**SMALL, "variants": VARIANTS, "learning_rate": "1e-4"}).runs()
    clustered = {"attention": "key-clusters", "attention_settings": {"share": 0.25}, "learning_rate": 1e-4}
    assert list(runs) == ["softmax", "a quarter"]
    assert runs["a quarter"] == Run.parse({**SMALL, **clustered})


def test_hours_are_named_before_anything_is_loaded_where_like_runs_are_recorded(root, capsys):
    """By a run of the same task and model with another attention: an example took a second."""
    hours = Comparison.parse({**SMALL, "variants": VARIANTS, "train_examples": 7200, "results_root": str(root)})
    check_time(hours, hours.runs())
    assert capsys.readouterr().out == ""
    record_of_a_second(root)
    with pytest.raises(ParameterError, match='task="mini-mrpc", model="mini" for .* or take_hours=True to go on'):
        check_time(hours, hours.runs())
    for going_on in ({"take_hours": True}, {"train_examples": None}):
        comparison = hours.model_copy(update=going_on)
        check_time(comparison, comparison.runs())
    said = "expected: about {} of training, 1 at a time, by the times of like runs"
    assert capsys.readouterr().out.splitlines() == [said.format(took) for took in ("4 hours", "4 hours", "3.3 minutes")]


def test_runs_are_recorded_shown_beside_the_baselines_and_not_made_twice(tmp_path, capsys):
    runs = Comparison.parse({**SMALL, "variants": VARIANTS, "results_root": str(tmp_path)}).runs()
    data = load_data("mini-mrpc", train_examples=64, eval_examples=32)
    rows = compare(runs, data)
    paths = rows["record"].unique()
    assert "2 of 2: a quarter" in capsys.readouterr().out
    records = [json.loads(Path(path).read_text()) for path in paths]
    assert [record["parameters"]["attention"] for record in records] == ["softmax", "key-clusters"]

    table = score_and_cost(rows.assign(cores_of_others=0.1))
    assert list(table.index) == ["softmax", "a quarter", "majority class", "chance"]
    assert table.loc["softmax", ["pairs", "cost"]].to_list() == ["100%", "100%"]
    assert table.loc["a quarter", "pairs"] < "30%"
    assert {"mini-mrpc (accuracy)", "mini-mrpc (f1)"} <= set(table)
    assert table.loc["softmax", "training"].endswith(" s")
    assert "training" not in score_and_cost(rows.assign(cores_of_others=[0.1, *[1.0] * (len(rows) - 1)]))
    assert "training times are left out: other programs" in capsys.readouterr().out

    dates = [record["environment"]["date"] for record in records]
    compare(runs, data)
    assert capsys.readouterr().out.count("this run was made already") == 2
    assert [json.loads(Path(path).read_text())["environment"]["date"] for path in paths] == dates


def test_a_forecast_takes_the_times_of_like_runs_and_counts_the_others(root, capsys):
    run, other = (Run.parse({**SMALL, **more}) for more in ({"train_examples": 900, "epochs": 2}, {"model": "nano"}))
    assert say_how_long([run, other]) == 0
    record_of_a_second(root)
    assert say_how_long([run, run, other], 4) == 1800
    took = "expected: about 30 minutes of training, 2 at a time, by the times of like runs; without 1 of 3 runs\n"
    assert capsys.readouterr().out == took
    run.folder.mkdir(parents=True)
    (run.folder / "result.json").write_text("{}")
    assert say_how_long([run, other]) == 0  # it is made


def record_of_a_second(root):
    """A run with all of its task's hundred examples, of which each took a second; and a damaged record."""
    run = Run.parse({**SMALL, "train_examples": None, "attention": "window"}).identity()
    record = {"parameters": run, "examples": {"train": 100}, "train_seconds": 100.0}
    for number, text in enumerate([json.dumps(record), "{"]):
        (path := root / "results" / "runs" / str(number) / "result.json").parent.mkdir(parents=True)
        path.write_text(text)
