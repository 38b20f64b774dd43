"""compare.ipynb: one task fine-tuned under several attentions, and how long runs take."""

import json
from pathlib import Path

import pytest

from albert_lsh.data import load_data
from albert_lsh.run import ParameterError, Run
from albert_study.comparison import ORIGINAL, Comparison, check_time, compare, score_and_cost
from albert_study.figures import plot_ladder
from albert_study.forecast import say_how_long
from albert_study.ladder import LADDER
from albert_study.scores import RUNGS
from albert_study.study_file import StudyFile

SMALL = {"task": "mini-mrpc", "model": "mini", "train_examples": 64, "eval_examples": 32, "epochs": 1, "device": "cpu"}
QUARTER = {"attention": "key-clusters", "attention_settings": {"share": 0.25}}
ARMS = {"softmax": {"attention": "softmax"}, "a quarter": QUARTER}


def test_every_arm_is_a_run_as_glue_makes_it():
    runs = Comparison.parse({**SMALL, "arms": ARMS, "learning_rate": "1e-4"}).runs()
    assert list(runs) == ["softmax", "a quarter"]
    assert runs["a quarter"] == Run.parse({**SMALL, **QUARTER, "learning_rate": 1e-4, "max_length": 64})
    slower = Comparison.parse(
        {**SMALL, "arms": {"a quarter": {**QUARTER, "learning_rate": 1e-5}}, "learning_rate": 1e-4}
    )
    assert slower.runs()["a quarter"].learning_rate == 1e-5


def test_the_study_of_the_ladder_has_the_arms_of_the_notebook_and_every_rung_a_name():
    """But for learning rates, which belong to a study's models, and how long it trains."""
    assert list(RUNGS) == list(LADDER)
    of_study = dict.fromkeys(LADDER, 0)
    for task, entry in StudyFile("ladder").study.tasks.items():
        if task == "squad":  # of 128 tokens, which are hashed
            continue
        for name in entry.arms.keys() & LADDER.keys():
            values = entry.arms[name].values()
            assert {key: value for key, value in values.items() if key != "learning_rate"} == LADDER[name]
            of_study[name] += 1
    assert all(of_study.values())


@pytest.mark.parametrize(("device", "task", "model"), [("cuda", "sst2", ORIGINAL), ("cpu", "mini-mrpc", "mini")])
def test_what_is_left_open_depends_on_the_machine(device, task, model, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: device == "cuda")
    ladder = Comparison.parse({"task": None, "model": None, "arms": None, "epochs": ""})
    assert (ladder.task, ladder.model, ladder.names) == (task, model, RUNGS)
    assert ladder.train_examples == (20_000 if device == "cuda" else None)
    given = Comparison.parse({"device": device, "train_examples": 10, "arms": ARMS})
    assert (given.task, given.train_examples, given.names["a quarter"]) == (task, 10, "a quarter")
    whole = Comparison.parse({"task": "mrpc", "device": device})
    assert (whole.model, whole.train_examples, whole.max_length) == (ORIGINAL, None, 64)


def test_hours_are_named_before_anything_is_loaded_where_like_runs_are_recorded(root, capsys):
    """By a run of the same task and model with another attention: an example took a second."""
    hours = Comparison.parse({**SMALL, "arms": ARMS, "train_examples": 7200, "results_root": str(root)})
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
    runs = Comparison.parse({**SMALL, "arms": ARMS, "results_root": str(tmp_path)}).runs()
    data = load_data("mini-mrpc", train_examples=64, eval_examples=32)
    rows = compare(runs, data)
    paths = rows["record"].dropna().unique()  # a bag of words has none
    assert "2 of 2: a quarter" in capsys.readouterr().out
    records = [json.loads(Path(path).read_text()) for path in paths]
    assert [record["parameters"]["attention"] for record in records] == ["softmax", "key-clusters"]

    table = score_and_cost(rows.assign(cores_of_others=0.1))
    assert list(table.index) == ["softmax", "a quarter", "bag of words", "majority class", "chance"]
    assert table.loc["softmax", ["pairs", "cost"]].to_list() == ["100%", "100%"]
    assert table.loc["a quarter", "pairs"] < "30%"
    assert {"mini-mrpc (accuracy)", "mini-mrpc (f1)"} <= set(table)
    assert table.loc["softmax", "training"].endswith(" s")
    assert "training" not in score_and_cost(rows.assign(cores_of_others=[0.1, *[1.0] * (len(rows) - 1)]))
    assert "training times are left out: other programs" in capsys.readouterr().out

    words = rows.query("kind == 'bag of words' and measure == 'accuracy'")["value"].item()
    (axis,) = plot_ladder(rows, {label: label for label in runs}, tmp_path).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["softmax", "a quarter"]
    levels = [
        line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1 and line.get_marker() == "None"
    ]
    assert levels == [records[0]["majority"]["accuracy"], words]

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
