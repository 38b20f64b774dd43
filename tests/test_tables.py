"""Tables as numbers and as people read them, from made-up run records."""

import json
from pathlib import Path

import pandas as pd
import pytest

from albert_lsh.errors import OneLineError
from albert_lsh.record import write_predictions
from albert_study.evidence.differences import differences
from albert_study.evidence.formats import Table, form, in_parts, wide
from albert_study.evidence.looks import save
from albert_study.evidence.readable import readable_tables
from albert_study.evidence.readable_studies import pivot
from albert_study.evidence.records import LIST, list_studies, load_published
from albert_study.evidence.report import build, fingerprint, inputs
from albert_study.evidence.statistics import Difference, paired
from albert_study.evidence.study_figures import (
    plot_scores,
    write_figures,
)
from albert_study.evidence.tables import beside_published, changes, score_table, write_tables

# F1 by arm and seed; accuracy is 0.1 less everywhere.
from records import F1, checkout, runs_of, write_run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return checkout(tmp_path)


def test_runs_come_in_order_and_one_row_each(tree):
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="sst2", study="other", headline="accuracy")
    runs = runs_of(tree)
    assert list(zip(runs["arm"], runs["seed"], strict=True)) == [(a, s) for a in F1 for s in F1[a]]
    assert set(runs["version.torch"]) == {"2.13.0"}
    assert len(runs_of(tree, study=None)) == len(runs) + 1


def test_a_table_names_all_machines(tree):
    path = tree / "results/runs/mini/mrpc/model/softmax/seed-1/result.json"
    path.write_text(path.read_text().replace("some processor", "another"))
    write_tables("mini", root=tree)
    table = readable_tables(tree)["mini-attended"]
    assert table.note.startswith("On cpu, some processor; cpu, another. ")
    assert list(table.rows) == ["mrpc: pairs"]


def test_scores_are_means_and_sample_deviations_over_the_seeds_there_are(tree):
    scores = score_table(runs_of(tree)).set_index("arm")
    assert list(scores["seeds"]) == [3, 2, 1]
    assert scores["score"].to_dict() == pytest.approx({"softmax": 0.88, "reformer": 0.81, "lsh": 0.87})
    assert scores.loc["softmax", "sd"] == pytest.approx(0.02)
    assert scores.loc["reformer", "sd"] == pytest.approx(0.02 / 2**0.5)
    assert pd.isna(scores.loc["lsh", "sd"])
    assert scores.loc["softmax", "accuracy"] == pytest.approx(0.78)
    assert (scores.loc["softmax", "majority"], scores.loc["softmax", "chance"]) == pytest.approx((0.7, 0.5))
    assert scores.loc["softmax", "train_seconds"] == 11


def test_the_table_for_reading(tree):
    write_run(tree, "softmax", 0, {"exact": 70.0, "f1": 80.04}, task="squad")
    read = pivot(score_table(runs_of(tree)))
    assert list(read.index) == [*F1, "majority class", "chance"]
    assert read["mrpc (f1)"].to_dict() == {
        "softmax": "0.880 ± 0.020 (3)",
        "reformer": "0.810 ± 0.014 (2)",
        "lsh": "0.870 (1)",
        "majority class": "0.700",
        "chance": "0.500",
    }
    assert read.loc["softmax", "squad (f1)"] == "80.0 (1)"
    assert read.loc["lsh", "squad (f1)"] == ""


def test_baselines_are_those_of_the_arm_with_most_runs(tree):
    """Each fold has another majority, and an arm may have been run in one fold alone."""
    scores = score_table(runs_of(tree))
    scores.loc[scores["seeds"] < 3, "majority.f1"] = 0.75
    for order in (scores, scores[::-1]):
        assert pivot(order).loc["majority class", "mrpc (f1)"] == "0.700"


def test_a_model_is_named_where_an_arm_has_several(tree):
    scores = score_table(runs_of(tree))
    own = scores.assign(model="of " + scores["arm"])
    assert list(pivot(own).index) == [*F1, "majority class", "chance"]
    read = pivot(pd.concat([scores, own]))
    assert read.loc["lsh, some/model", "mrpc (f1)"] == read.loc["lsh, of lsh", "mrpc (f1)"] == "0.870 (1)"


def test_changes_are_paired_by_seed(tree):
    table = changes(runs_of(tree))
    rows = table[table["headline"]].set_index(["from", "to"])
    original = rows.loc[("softmax", "reformer")]
    # Seeds 0 and 1 have both: differences -0.10 and -0.06. Unpaired it would be -0.07.
    assert original["difference"] == pytest.approx(-0.08)
    assert original["standard_error"] == pytest.approx(0.02)
    assert original["seeds"] == 2
    alone = rows.loc[("softmax", "lsh")]
    assert alone["difference"] == pytest.approx(-0.03)
    assert pd.isna(alone["standard_error"])
    assert (alone["attended_from"], alone["attended_to"]) == (1.0, 0.4)
    assert ("lsh", "window") not in rows.index
    assert original["p_holm"] == pytest.approx(2 * original["p"])  # one seed has p = 1, and counts


def test_arms_without_a_seed_in_common_are_not_compared(tmp_path):
    write_run(tmp_path, "softmax", 0, {"f1": 0.9})
    write_run(tmp_path, "lsh", 1, {"f1": 0.8})
    assert changes(runs_of(tmp_path)).empty


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda record: None, "damaged"),
        (lambda record: {**record, "status": "running"}, "not of a complete run"),
        (lambda record: {k: v for k, v in record.items() if k != "majority"}, "'majority'"),
        (lambda record: {**record, "metrics": {"f1": "high"}}, "high"),
        (lambda record: {**record, "metrics": 3}, "damaged"),
        (lambda record: {**record, "environment": {}}, "'packages'"),
        (lambda record: {**record, "parameters": {"task": "mrpc"}}, "'attention'|'model'"),
    ],
    ids=["cut", "unfinished", "no-majority", "text-score", "number-for-metrics", "no-packages", "no-parameters"],
)
def test_a_damaged_record_is_named(tree, damage, said):
    path = tree / "results/runs/mini/mrpc/model/reformer/seed-1/result.json"
    record = damage(json.loads(path.read_text()))
    path.write_text(json.dumps(record) if record else path.read_text()[:100])
    with pytest.raises(ValueError, match=said) as caught:
        runs_of(tree)
    assert str(path) in str(caught.value)


def test_what_stands_on_the_list_is_not_changed_by_a_readers_runs(tree):
    """Neither by another seed of a listed study, nor by a study of his own, which he still can look at."""
    write_tables("mini", root=tree)
    write_figures("mini", root=tree)
    paths = sorted(tree.glob("results/runs/*/*/*/*/seed-*/result.json"))
    (tree / LIST).write_text("\n".join(path.parent.relative_to(tree).as_posix() for path in paths))
    before, made = runs_of(tree), inputs(tree)
    fingerprints = [fingerprint(tree, made)]
    write_run(tree, "lsh", 1, {"accuracy": 0.1, "f1": 0.2})
    write_run(tree, "softmax", 0, {"accuracy": 0.5, "f1": 0.5}, study="notebook")
    with pytest.warns(UserWarning, match="1 run not named in results/records.txt: left out"):
        assert runs_of(tree).equals(before)
    assert list_studies(tree).index.tolist() == ["mini"]
    assert runs_of(tree, "notebook")["score"].tolist() == [0.5]
    write_tables("notebook", root=tree)
    write_figures("notebook", root=tree)
    assert inputs(tree) == made
    assert fingerprint(tree, made) == fingerprints[0]
    own = build(tree, "report/build/notebook.pdf")
    assert [path.relative_to(tree).as_posix() for path in own] == ["report/build/notebook.pdf"]
    assert json.loads((tree / "report/numbers.json").read_text())["studies"][0]["name"] == "notebook"


def test_arms_that_answered_other_examples_are_named_and_not_compared(tmp_path):
    rows = []
    for arm, ids in (("softmax", range(20)), ("lsh", range(20)), ("new", range(10))):
        folder = tmp_path / arm
        table = pd.DataFrame({"split": "validation", "id": ids, "label": 0, "answer": 0})
        write_predictions(folder / "predictions.parquet", table)
        row = {"model": "m", "task": "sst2", "arm": arm, "seed": 0, "folder": folder, "headline": "accuracy"}
        rows.append(row | {"score": 1.0})
    with pytest.warns(UserWarning, match="sst2: softmax and new are not compared: the two arms, or their seeds"):
        table = differences(pd.DataFrame(rows))
    assert table["to"].tolist() == ["lsh"]


def test_a_sweep_is_named_by_what_varies(tree):
    """Runs of notebooks lie in folders that end in a hash."""
    for arm, given in {
        "lsh": {}, "lsh-e17e51": {"learning_rate": 5e-5}, "lsh-f62280": {"attention_settings": {"share": 0.5}},
        "softmax-00ff00": {"epochs": 1},
    }.items():  # fmt: skip
        folder = write_run(tree, arm, 0, {"accuracy": 0.8, "f1": 0.9}, study="notebook")
        record = json.loads((folder / "result.json").read_text())
        record["parameters"] |= {"attention": arm.split("-")[0], "attention_settings": {"share": 0.25}} | given
        (folder / "result.json").write_text(json.dumps(record))
    runs = runs_of(tree, "notebook")
    assert set(runs["arm"]) == {
        "lsh", "lsh, learning_rate=5e-5, share=0.25", "lsh, learning_rate=1e-5, share=0.5", "softmax-00ff00"
    }  # fmt: skip
    by_arm = runs.set_index("arm")["folder"]
    assert by_arm["lsh, learning_rate=5e-5, share=0.25"].parent.name == "lsh-e17e51"


def test_a_study_without_runs_is_an_error(tree):
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="sst2", study="other", headline="accuracy")
    with pytest.raises(OneLineError, match="nothing-here; studies that have runs here: mini, other; `make study S"):
        runs_of(tree, "nothing-here")
    listed = list_studies(tree)
    assert listed["runs"].to_dict() == {"mini": sum(map(len, F1.values())), "other": 1}
    assert listed.loc["other", "tasks"] == "sst2"
    assert list_studies(tree / "studies").empty


def test_a_history_without_losses_is_named(tree):
    path = tree / "results/runs/mini/mrpc/model/lsh/seed-0/history.csv"
    path.write_text("step,epoch\n1,1\n")
    with pytest.raises(ValueError, match="eval_loss") as caught:
        write_figures("mini", root=tree)
    assert str(path) in str(caught.value)


def test_published_scores_stand_beside_ours(tree):
    table = beside_published(runs_of(tree), load_published())
    original = table[table["source"].str.contains("original")].set_index(["arm", "metric"])
    assert original.loc[("reformer", "f1"), "published"] == 0.823
    assert original.loc[("reformer", "f1"), "ours"] == pytest.approx(0.81)
    assert original.loc[("softmax", "accuracy_f1_mean"), "ours"] == pytest.approx(0.83)
    assert original.loc[("softmax", "f1"), ["majority", "chance", "seeds"]].tolist() == pytest.approx([0.7, 0.5, 3])
    assert set(table["arm"]) == {"softmax", "reformer"}


def test_a_published_value_that_is_no_number_is_an_error(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("source,model,task,arm,metric,value,note\nx,y,mrpc,softmax,f1,ninety,\n")
    with pytest.raises(ValueError, match="ninety"):
        load_published(path)
    path.write_text("source,value\nx,1\n")
    with pytest.raises(ValueError, match="must have the columns"):
        load_published(path)


def test_tables_are_written_and_empty_ones_removed(tree):
    stale = tree / "results" / "tables" / "other-changes.csv"
    stale.parent.mkdir(parents=True)
    stale.write_text("old\n")
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="mini-sst2", study="other", headline="accuracy")
    assert [path.name for path in write_tables("other", root=tree)] == [
        "other-runs.csv", "other-scores.csv", "settings.csv", "calibration.csv"
    ]  # fmt: skip
    assert not stale.exists()
    names = {path.name for path in write_tables("mini", root=tree)}
    common = {"settings.csv", "calibration.csv"}
    assert names == {*(f"mini-{name}.csv" for name in ("runs", "scores", "changes", "published")), *common}
    runs = pd.read_csv(tree / "results" / "tables" / "mini-runs.csv")
    assert {"seed", "learning_rate", "version.torch", "commit", "date", "metric.f1"} <= set(runs)
    assert len(runs) == 6
    assert not list(tree.rglob("*.partial*"))


@pytest.mark.parametrize(
    ("value", "how", "expected"),
    [
        (58.65, "1", "58.7"), (2.5, "0", "3"), (-0.00005, "4", "-0.0001"), (-0.00004, "4", "0.0000"),
        (6.5e-05, "5", "0.00007"), (1234567.5, "0", "1234568"), (1e-07, "3", "0.000"), (0.125, "%", "13%"),
        (0.125, "%1", "12.5%"), (0.5075, "%1", "50.8%"),
        (0.02, "+2", "+0.02"), (-0.02, "+2", "-0.02"), (-0.0003, "+3", "-0.000"), (0.0, "+3", "+0.000"),
        (float("nan"), "2", ""), (None, "", ""), ("a", "", "a"),
    ],
)  # fmt: skip
def test_numbers_are_rounded_half_away_from_zero_as_the_decimal_that_a_table_has(value, how, expected):
    assert form(value, how) == expected


def test_the_p_value_of_a_difference_is_students():
    # 95 %, two degrees of freedom: 4.303; ten seeds: 2.262
    assert Difference(-0.4303, 0.1, 3).p == pytest.approx(0.05, abs=1e-4)
    assert Difference(0.2262, 0.1, 10).p == pytest.approx(0.05, abs=1e-4)
    assert Difference(5.0, float("nan"), 1).p == 1
    assert [Difference(mean, 0.0, 3).p for mean in (0.0, 0.1)] == [1, 0]
    found = paired(pd.Series({0: 1.0, 1: 2.0, 2: 3.0}), pd.Series({0: 1.5, 1: 2.7, 9: 0.0}))
    assert (found.mean, found.pairs) == (pytest.approx(0.6), 2)


def test_a_wide_table_has_the_columns_that_there_are_values_for():
    rows = pd.DataFrame(
        {"variant": ["b", "a", "b"], "task": ["x", "x", "y"], "share": [0.5, 0.25, 1.0], "cost": [None] * 3}
    )
    found = wide(rows, "variant", "task", {"": ("share", "%"), ", cost": ("cost", "%")})
    assert found.to_dict("index") == {"b": {"x": "50%", "y": "100%"}, "a": {"x": "25%", "y": ""}}
    parts = dict(in_parts("name", Table(found.assign(z="1")), 2))
    assert {name: list(part.rows) for name, part in parts.items()} == {"name-1": ["x", "y"], "name-2": ["z"]}


def test_the_cost_stands_beside_the_share_of_pairs_where_a_record_has_it(tree):
    path = (
        write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="sst2", study="new", headline="accuracy") / "result.json"
    )
    path.write_text(json.dumps({**json.loads(path.read_text()), "full_cost": 0.75}))
    for study in ("new", "mini"):
        write_tables(study, root=tree)
    tables = readable_tables(tree)
    assert tables["new-scores"].rows.loc["softmax", "sst2: cost"] == "75%"
    assert list(tables["mini-scores"].rows) == ["mrpc (f1)", "mrpc: pairs seen"]


def test_a_dollar_is_no_formula_and_a_commit_may_have_any_letter(tree):
    """Also names that no study can have: a record is read as it is."""
    record = json.loads((tree / "results/runs/mini/mrpc/model/lsh/seed-0/result.json").read_text())
    for arm in ("$\\frac$", "a $ b"):
        folder = write_run(tree, arm, 0, {"accuracy": 0.7, "f1": 0.8})
        there = json.loads((folder / "result.json").read_text())
        there["environment"]["commit"] = "ünïcödé-çömmït-of-sömebödy"
        there["parameters"] = record["parameters"] | {"model": "some/$model$"}
        (folder / "result.json").write_text(json.dumps(there))
    drawn, *_ = save(plot_scores(score_table(runs_of(tree))), tree / "figures" / "mini-scores")
    for shown in ("$\\frac$", "a $ b", "mrpc, some/$model$: f1 (of 1)"):
        assert f"<!-- {shown} -->" in drawn.read_text()
    pytest.importorskip("typst")
    write_tables("mini", root=tree)
    assert build(tree)[0].read_bytes().startswith(b"%PDF")
