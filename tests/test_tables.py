"""Tables as people read them: of numbers, each with how it is written.

What tables say is held by the committed pages and documents that show them: they must be what today's code makes of
today's numbers (test_repository.py), as results/tables must be (test_records.py). Here is what these do not show.
"""

import json

import pandas as pd
import pytest

from albert_lsh.record import write_predictions
from albert_study.compare import scores, write_tables
from albert_study.records import load
from albert_study.report import of_difference, over_tasks, printed, texts
from albert_study.show import form
from albert_study.tables import all_tables
from albert_study.tables.studies import score_table, score_tables
from records import F1, answered, write_run

SCORES = {"accuracy": 0.8, "f1": 0.8}
WRITTEN = [
    (58.65, "1", "58.7"), (2.5, "0", "3"), (-0.00005, "4", "-0.0001"), (-0.00004, "4", "0.0000"),
    (6.5e-05, "5", "0.00007"), (1234567.5, "0", "1234568"), (1e-07, "3", "0.000"), (0.125, "%", "13%"),
    (0.125, "%1", "12.5%"), (0.5075, "%1", "50.8%"), (0.125, "p1", "12.5"), (12345.0, ",", "12,345"),
    (0.0004, "P", "<.001"), (0.0304, "P", "0.030"), (-0.25, "%", "-25%"),
    (0.02, "+2", "+0.02"), (-0.02, "+2", "-0.02"), (-0.0003, "+3", "-0.000"), (0.0, "+3", "+0.000"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "how", "expected"), [*WRITTEN, (float("nan"), "2", ""), (None, "", ""), ("a", "", "a")]
)
def test_numbers_are_rounded_half_away_from_zero_as_the_decimal_that_a_table_has(value, how, expected):
    assert form(value, how) == expected


def test_documents_mark_runs_that_came_later_and_show_no_mean_where_none_stands_for_them():
    line = {"task": "mrpc", "metric": "f1", "seeds": 2, "over": "seeds", "difference": -0.1, "low": -0.2, "high": 0.1}
    line |= {"lowest_to": 0.3, "highest_to": 0.8, "has_mean": True, "constant_to": 2, "clear": True}
    line |= {"cost_to": 0.5, "pairs_to": 0.4}
    constant = {"difference": float("nan"), "later": 0}
    changes = ({"later": 0}, {"later": 1}, {"later": 1, "has_mean": False}, constant)
    assert [printed(of_difference(line | change)["told"]) for change in changes] == [
        "−0.100 (−0.200 to +0.100; 2 runs)",
        "−0.100 (−0.200 to +0.100; 2 runs)†",
        "0.300 to 0.800 (2 runs)†",
        "constant (2 of 2 runs)",
    ]
    over = {"difference": -0.1, "low": -0.23, "high": 0.1, "tasks": 2, "seeds": 6, "later": 1}
    assert printed(over_tasks(over)) == {
        "told": "−0.10 points (−0.23 to +0.10; 2 tasks, 6 runs)†",
        "bound": "no loss above 0.3 points on average over 2 tasks",
    }


def test_scores_stand_above_what_can_be_had_without_attention(tree):
    path = write_run(tree, "softmax", 0, {"exact": 70.0, "f1": 80.04}, task="squad") / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "full_cost": 0.75}))
    lines = scores(load(tree, "mini"), tree)
    read = score_table(lines).frame()
    assert list(read.index) == [*F1, "always the same answer", "chance"]
    assert read["mrpc (f1)"].tolist() == ["0.880 ± 0.020 (3)", "0.810 ± 0.014 (2)", "0.870 (1)", "0.700", "0.500"]
    assert read.loc["softmax", ["squad (f1)", "squad: cost"]].tolist() == ["80.0 (1)", "75%"]
    assert read.loc["key-clusters", "squad (f1)"] == ""
    assert "mrpc: cost" not in read
    assert "squad (exact)" in score_table(lines, metrics=True).frame()
    other = lines["model"].where(lines["task"] == "mrpc", "owner/other")  # a model for each task: its column says which
    assert list(score_table(lines.assign(model=other)).frame().index) == [*read.index]
    assert score_table(lines.assign(model=other)).frame().loc["softmax", "squad, other (f1)"] == "80.0 (1)"


def test_runs_of_one_number_an_arm_are_read_as_text(tmp_path):
    """Where every arm has one run that is not constant, the column looks like one of numbers."""
    flat = pd.DataFrame({"id": range(4), "label": [0.0, 5, 2, 1], "logit_0": 2.5})
    runs = {("new", 0): flat, ("new", 1): flat.assign(logit_0=flat["label"])}
    lines = scores(answered(tmp_path, runs, "stsb"), tmp_path).assign(commit="c")
    (tmp_path / "results/tables").mkdir(parents=True)
    lines.to_csv(tmp_path / "results/tables/x-scores.csv", index=False)
    table = dict(score_tables(tmp_path, pd.DataFrame(), "x"))["x-scores"]
    assert table.frame()["stsb (pearson)"].tolist() == ["1 constant, 0.500"]
    write_run(tmp_path, "new", 0, {"pearson": 0.5}, task="stsb", study="x", headline="pearson")
    assert texts(tmp_path)["scores"]["x/stsb/new"]["dots"] == [0.5]


def test_an_interval_of_one_run_is_marked(tree):
    """It is over examples alone; those of more runs are not marked, and the note says what the mark is."""
    for arm in ("softmax", "new"):
        for seed in range(2 if arm == "softmax" else 1):
            table = pd.DataFrame({"id": range(50), "label": [0, 1] * 25, "answer": [0, 1] * 20 + [seed] * 10})
            write_predictions(write_run(tree, arm, seed, SCORES, study="one") / "predictions.parquet", table)
    write_tables("one", root=tree)
    shown = all_tables(tree, "one")["one-differences-mrpc"]
    assert [cell.endswith(")‡") for cell in shown.frame()["difference (95 % interval)"]] == [True]
    assert "‡: of one run, over examples alone" in shown.note


def test_the_table_of_the_ladder_has_every_run_of_its_study_and_no_other(tree):
    for study, arm, seed in (("x", "softmax", 1), ("x", "2020-block", 0), ("other", "softmax", 2)):
        folder = write_run(tree, arm, seed, SCORES, study=study)
        answer = [1] * 40 + [0] * (10 * (arm == "softmax")) + [1] * (10 * (arm != "softmax"))
        table = pd.DataFrame({"id": range(50), "label": [0, 1] * 25, "answer": answer})
        write_predictions(folder / "predictions.parquet", table)
        record = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(record | {"eval_loss": 0.5}))
    write_tables("x", "other", root=tree)
    tables = all_tables(tree)
    assert "other" not in tables
    rows = tables["x"].frame()
    assert rows[["arm", "seed", "loss", "most frequent answer"]].values.tolist() == [
        ["0 block of 2020", "0", "0.5000", "100.0%"], ["4 keys of their own", "1", "0.5000", "80.0%"]
    ]  # fmt: skip


def test_every_table_of_a_study_alone_is_its_own(tree):
    write_tables("mini", root=tree)
    assert {name for name in all_tables(tree, "mini")} == {"mini-scores", "mini-settings", "mini-differences-mrpc"}
