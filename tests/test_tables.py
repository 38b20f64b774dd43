"""Tables as people read them: of numbers, each with how it is written."""

import json

import pandas as pd
import pytest

from albert_study.compare import differences, write_tables
from albert_study.records import load
from albert_study.report import document_tables, numbers, spell, write_numbers
from albert_study.scores import scores
from albert_study.show import columns, form, parts, table, text
from albert_study.tables import difference_tables, score_table, score_tables
from records import F1, answered, write_run

WRITTEN = [
    (58.65, "1", "58.7"), (2.5, "0", "3"), (-0.00005, "4", "-0.0001"), (-0.00004, "4", "0.0000"),
    (6.5e-05, "5", "0.00007"), (1234567.5, "0", "1234568"), (1e-07, "3", "0.000"), (0.125, "%", "13%"),
    (0.125, "%1", "12.5%"), (0.5075, "%1", "50.8%"), (0.125, "p1", "12.5"), (12345.0, ",", "12,345"),
    (0.0004, "P", "<.001"), (0.0304, "P", "0.030"), (-0.25, "%", "-25%"),
    (0.02, "+2", "+0.02"), (-0.02, "+2", "-0.02"), (-0.0003, "+3", "-0.000"), (0.0, "+3", "+0.000"),
]  # fmt: skip


def write(root, name, lines):
    path = root / "results" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines).to_csv(path, index=False)


def made(makers, *arguments):
    return {name: table.frame() for name, table in makers(*arguments)}


@pytest.mark.parametrize(
    ("value", "how", "expected"), [*WRITTEN, (float("nan"), "2", ""), (None, "", ""), ("a", "", "a")]
)
def test_numbers_are_rounded_half_away_from_zero_as_the_decimal_that_a_table_has(value, how, expected):
    assert form(value, how) == expected


def test_documents_write_numbers_as_pages_do(tree):
    typst = pytest.importorskip("typst")
    write_numbers(tree)
    each = ((value, *spell(how)) for value, how, _ in WRITTEN)
    calls = ", ".join(f'form({value!r}, {digits}, kind: "{kind}")' for value, digits, kind in each)
    (tree / "report" / "asked.typ").write_text(f'#import "shared.typ": form\n#metadata(({calls})) <asked>')
    texts = typst.query(str(tree / "report/asked.typ"), "<asked>", field="value", one=True, root=str(tree))
    assert json.loads(texts) == [expected.replace("-", "−") for *_, expected in WRITTEN]


def test_documents_mark_runs_that_came_later_and_show_no_mean_where_none_stands_for_them(tree):
    typst = pytest.importorskip("typst")
    write_numbers(tree)
    path = tree / "report" / "numbers.json"
    line = {"study": "x", "task": "mrpc", "from": "softmax", "seeds": 2, "over": "seeds", "difference": -0.1}
    line |= {"low": -0.2, "high": 0.1, "lowest_to": 0.3, "highest_to": 0.8, "has_mean": True}
    arms = {"a": {"later": 0}, "b": {"later": 1}, "c": {"later": 1, "has_mean": False}}
    over = {"weights": "equal", "share": 0.5, "difference": -0.1, "low": -0.2, "high": 0.1, "tasks": 2, "seeds": 6}
    lines = [{"to": arm} | line | more for arm, more in arms.items()]
    made = json.loads(path.read_text()) | {"differences": lines, "equivalence": [over | {"later": 1}]}
    path.write_text(json.dumps(made))
    calls = ", ".join(f'told("x", "mrpc", "{arm}")' for arm in arms)
    (tree / "report" / "asked.typ").write_text(f"""#import "shared.typ": *
#let plain(it) = if it.has("text") {{ it.text }} else {{ it.at("children", default: ()).map(plain).join(default: " ") }}
#metadata(({calls}, over-tasks(0.5)).map(plain)) <asked>""")
    texts = json.loads(typst.query(str(tree / "report/asked.typ"), "<asked>", field="value", one=True, root=str(tree)))
    assert [" ".join(text.split()) for text in texts] == [
        "−0.100 (−0.200 to +0.100; 2 runs)",
        "−0.100 (−0.200 to +0.100; 2 runs)†",
        "0.300 to 0.800 (2 runs)†",
        "−0.10 points (−0.20 to +0.10; 2 tasks, 6 runs)†",
    ]


def test_a_number_that_is_missing_takes_the_text_before_it_along():
    line = {"score": 0.8484, "sd": float("nan"), "seeds": 3, "digits": 3}
    assert text(parts("{score:s} ± {sd:s} ({seeds:0})", line)) == "0.848 (3)"
    assert text(parts("{score:s} ({sd:s} to {sd:s})", line)) == "0.848"
    assert parts("{sd:s} ({seeds:0})", line) == []
    assert parts("**{score:+2}** of {name}", line | {"name": "x"}) == ["**", (0.8484, "+2"), "** of ", "x"]


def test_a_pivot_has_the_columns_that_there_are_numbers_for():
    lines = pd.DataFrame({"variant": ["b", "a", "b"], "task": ["x", "x", "y"], "share": [0.5, 0.25, 1], "cost": None})
    cells = columns("{task}={share:%}; {task}, cost={cost:%}")
    found = table(lines, "{variant}", cells, "task").frame()
    assert found.to_dict("index") == {"b": {"x": "50%", "y": "100%"}, "a": {"x": "25%", "y": ""}}
    assert list(table(lines, "{variant}", cells, "task", ["a", "b"]).frame().index) == ["a", "b"]


def test_scores_stand_above_what_can_be_had_without_attention(tree):
    path = write_run(tree, "softmax", 0, {"exact": 70.0, "f1": 80.04}, task="squad") / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "full_cost": 0.75}))
    lines = scores(load(tree, "mini"), tree)
    read = score_table(lines).frame()
    assert list(read.index) == [*F1, "majority class", "chance"]
    assert read["mrpc (f1)"].tolist() == ["0.880 ± 0.020 (3)", "0.810 ± 0.014 (2)", "0.870 (1)", "0.700", "0.500"]
    assert read.loc["softmax", ["squad (f1)", "squad: cost"]].tolist() == ["80.0 (1)", "75%"]
    assert read.loc["lsh", "squad (f1)"] == ""
    assert "mrpc: cost" not in read
    assert "squad (exact)" in score_table(lines, metrics=True).frame()


def test_baselines_are_those_of_the_arm_with_most_runs(tree):
    """Each fold has another majority, and an arm may have been run in one fold alone."""
    lines = scores(load(tree, "mini"), tree)
    lines.loc[lines["seeds"] < 3, "majority"] = 0.75
    for order in (lines, lines[::-1]):
        assert score_table(order).frame().loc["majority class", "mrpc (f1)"] == "0.700"


def test_a_model_is_named_where_an_arm_has_several(tree):
    lines = scores(load(tree, "mini"), tree)
    own = lines.assign(model="of " + lines["arm"])
    assert list(score_table(own).frame().index) == [*F1, "majority class", "chance"]
    read = score_table(pd.concat([lines, own])).frame()
    assert read.loc["lsh, some/model", "mrpc (f1)"] == read.loc["lsh, of lsh", "mrpc (f1)"] == "0.870 (1)"


def test_runs_are_shown_one_by_one_where_their_mean_stands_for_none_and_marked_where_they_came_later():
    line = {"task": "stsb", "model": "m", "measure": "pearson", "is_headline": True, "seeds": 3, "sd": 0.01}
    line |= {"majority": 0, "chance": 0, "bag_of_words": None, "pairs": None, "cost": None}
    arms = [
        ("new", None, 3, None, False, 0),
        ("reformer", 0.1, 1, "0.05; 0.15", False, 0),
        ("lsh", 0.8, 0, "", False, 1),
    ]
    arms += [("random", 0.4, 0, "0.1; 0.2; 0.9", True, 3), ("softmax", 0.8, 0, "", False, 0)]
    names = ("arm", "score", "constant", "runs", "apart", "later")
    lines = [line | dict(zip(names, arm, strict=True)) for arm in arms]
    scored = score_table(pd.DataFrame(lines)).frame()["stsb (pearson)"]
    assert scored.tolist() == [
        "constant (3)", "1 constant, 0.050, 0.150", "0.800 ± 0.010 (3)†", "0.100, 0.200, 0.900†", "0.800 ± 0.010 (3)",
        "0.000", "0.000",
    ]  # fmt: skip
    classes = score_table(pd.DataFrame([lines[1] | {"task": "sst2", "measure": "accuracy"}]))
    assert classes.frame().loc["reformer", "sst2 (accuracy)"] == "0.100 ± 0.010 (3, 1 constant)"


def test_runs_of_one_number_an_arm_are_read_as_text(tmp_path):
    """Where every arm has one run that is not constant, the column looks like one of numbers."""
    flat = pd.DataFrame({"id": range(4), "label": [0.0, 5, 2, 1], "logit_0": 2.5})
    runs = {("new", 0): flat, ("new", 1): flat.assign(logit_0=flat["label"])}
    write(tmp_path, "tables/x-scores", scores(answered(tmp_path, runs, "stsb"), tmp_path).assign(commit="c"))
    frame = made(score_tables, tmp_path, pd.DataFrame(), "x")["x-scores"]
    assert frame["stsb (pearson)"].tolist() == ["1 constant, 0.500"]
    assert numbers(tmp_path)["scores"][0]["runs"] == [0.5]


def test_a_table_names_models_and_machines_and_says_how_many_examples_and_seeds_there_are(tree):
    write_tables("mini", root=tree)
    table = dict(difference_tables(tree, load(tree), "mini"))["mini-differences-mrpc"]
    note = "mrpc: F1, intervals over seeds alone. Study mini: some/model. With fewer than 3 seeds nothing is tested. "
    assert table.note == note + "Whether lsh stays near softmax is tested in a table of its own."
    cells = table.frame().loc["softmax → reformer", ["from", "to", "difference", "seeds", "pairs seen"]]
    assert cells.tolist() == ["0.890", "0.810", "-0.080", "2", "100% → 40%"]
    assert table.frame().loc["softmax → lsh", "95 % interval"] == ""
    lines = differences(load(tree, "mini"), tree).assign(examples=[400, 80], clear=True, over="folds")
    write(tree, "tables/mini-differences", lines)
    ((_, table),) = difference_tables(tree, load(tree), "mini")
    assert table.note.startswith("mrpc: F1, 80 to 400 examples.")
    assert table.frame().loc["softmax → lsh", ["difference", "folds"]].tolist() == ["**-0.030**", "1"]
    lines = lines.assign(constant_from=[1, 0], lowest_to=[0.1, 0.8], highest_to=[0.9, 0.8], pairs_from=0.4, later=1)
    write(tree, "tables/mini-differences", lines)
    ((_, table),) = difference_tables(tree, load(tree), "mini")
    cells = table.frame().loc["softmax → reformer", ["from", "to", "pairs seen", "folds"]]
    assert cells.tolist() == ["1 of 2 constant", "0.100 to 0.900", "40%", "2†"]
    assert table.note.endswith("†: with runs that were added after scores of the task had been seen.")
    settings = dict(score_tables(tree, load(tree), "mini"))["mini-settings"]
    assert settings.note == "Study mini: some/model, commit 0123456789."
    assert settings.frame()["attentions"].tolist() == ["softmax", "reformer", "lsh"]


def test_every_table_of_a_study_alone_is_its_own(tree):
    write_tables("mini", root=tree)
    assert {name for name in document_tables(tree, "mini")} == {"mini-scores", "mini-settings", "mini-differences-mrpc"}
