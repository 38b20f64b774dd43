"""results/ as one tidy table: made-up records, and those that are committed."""

import json
import shutil

import pandas as pd
import pytest

from albert_lsh.files import OneLineError, repository_root
from albert_lsh.record import SCHEMA
from albert_study.compare import differences, write_tables
from albert_study.figures import write_figures
from albert_study.records import COLUMNS, LIST, list_studies, load, published, read, read_run, wide
from albert_study.report import build, numbers
from albert_study.scores import headlines, scale_of
from records import F1, write_run

ROOT = repository_root()


def arms(rows):
    return rows[rows["attention"] != ""].drop_duplicates("record")


def test_a_row_is_a_number_and_runs_come_in_order(tree):
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="sst2", study="other", headline="accuracy")
    rows = load(tree, "mini")
    assert list(rows) == COLUMNS
    runs = arms(rows)
    assert list(zip(runs["arm"], runs["seed"], strict=True)) == [(a, s) for a in F1 for s in F1[a]]
    values = rows.set_index(["arm", "seed", "measure"])["value"].sort_index()
    assert values.loc[("softmax", 1, "f1")] == 0.88
    assert values.loc[("softmax", 1, "accuracy_f1_mean")] == pytest.approx(0.83)
    assert values.loc[("majority class", 1, "f1")].tolist() == [0.7, 0.7]  # softmax's and reformer's run
    assert set(load(tree)["study"]) == {"mini", "other"}
    line = wide(rows).set_index(["arm", "seed"]).loc[("key-clusters", 0)]
    assert (line["f1"], line["train_seconds"], line["train_examples"], line["pairs"]) == (0.87, 10, 100, 0.4)
    own = rows[rows["record"] == line["record"]]
    assert read_run(tree / line["record"], tree)["value"].tolist() == own["value"].tolist()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (None, "damaged"),
        ({"status": "running"}, "not of a complete run"),
        ({"metrics": {"f1": "high"}}, "high"),
        ({"environment": {}}, "'device'"),
        ({"parameters": {"task": "mrpc"}}, "'attention'|'model'"),
    ],
)
def test_a_damaged_record_is_named(tree, changes, said):
    path = tree / "results/runs/mini/mrpc/model/reformer/seed-1/result.json"
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | changes) if changes else text[:100])
    with pytest.raises(ValueError, match=said) as caught:
        load(tree, "mini")
    assert str(path) in str(caught.value)


def test_rows_of_old_tables_have_the_names_of_today_and_new_ones_are_left_alone(tree):
    """A row that was measured before has no schema; of an attention `lsh` the settings say which one it was."""
    rows = (
        ("lsh", "lsh", {"axes": 8}, "key-clusters", "key-clusters"),
        ("lsh, no rest", "lsh", {"axes": 8}, "key-clusters, no rest", "key-clusters"),
        ("lsh-tree", "lsh", {}, "lsh-tree", "lsh-tree"),
        ("pass 1", "lsh", {"axes": 8}, "pass 1", "key-clusters"),
        ("random", "random", {}, "random", "random"),
    )
    table = pd.DataFrame(rows, columns=["variant", "attention", "settings", "label", "name"])
    table = table.assign(settings=table["settings"].map(json.dumps), loss=1.0)
    path = tree / "results" / "runs" / "mini" / "32.csv"
    table.drop(columns=["label", "name"]).to_csv(path, index=False)
    rows = load(tree, "mini").query("kind == 'masked words'")
    assert rows["variant"].tolist() == table["label"].tolist()
    assert rows["attention"].tolist() == table["name"].tolist()
    table.drop(columns=["label", "name"]).assign(schema=SCHEMA).to_csv(path, index=False)
    assert load(tree, "mini").query("kind == 'masked words'")["attention"].tolist() == table["attention"].tolist()
    times = tree / "results" / "efficiency" / "frontier.csv"  # a table that names no attention, and no settings
    times.parent.mkdir()
    pd.DataFrame({"case": ["lsh, 1/4", "lsh-tree", "reformer-pytorch"], "seconds": 1.0}).to_csv(times, index=False)
    cases = read(tree, "efficiency/frontier")["case"].tolist()
    assert cases == ["key-clusters, 1/4", "lsh-tree", "reformer-pytorch"]


def test_what_stands_on_the_list_is_not_changed_by_a_readers_runs(tree, capsys):
    """Neither by another seed of a listed study, nor by a study of his own, which he still can look at."""
    write_tables("mini", root=tree)
    write_figures("mini", root=tree)
    paths = sorted(tree.glob("results/runs/*/*/*/*/seed-*/result.json"))
    (tree / LIST).write_text("\n".join(path.parent.relative_to(tree).as_posix() for path in paths))
    before, shown = load(tree, "mini"), numbers(tree)
    capsys.readouterr()
    write_run(tree, "key-clusters", 1, {"accuracy": 0.1, "f1": 0.2})
    write_run(tree, "softmax", 0, {"accuracy": 0.5, "f1": 0.5}, study="notebook")
    assert load(tree, "mini").equals(before)
    assert capsys.readouterr().out == "1 run not named in results/records.txt: left out\n"
    assert list_studies(tree)["listed"].to_dict() == {"mini": len(paths), "notebook": 0}
    assert arms(load(tree, "notebook"))["arm"].tolist() == ["softmax"]
    write_tables("notebook", root=tree)
    write_figures("notebook", root=tree)
    assert json.dumps(numbers(tree), default=float) == json.dumps(shown, default=float)
    pytest.importorskip("typst")
    own = build(tree, "report/build/notebook.pdf")
    assert [path.relative_to(tree).as_posix() for path in own] == ["report/build/notebook.pdf"]
    assert json.loads((tree / "report/numbers.json").read_text())["studies"] == ["notebook"]


def test_two_files_of_one_name_are_two_tasks(tree):
    """A reader's reviews.csv has classes, and another of his numbers; each record says what stands for its task."""
    metrics = {"accuracy": {"accuracy": 0.8, "matthews": 0.6}, "pearson": {"pearson": 0.7, "spearman": 0.5}}
    metrics["f1"] = {"exact": 60.0, "f1": 70.0}
    for study, scores in metrics.items():
        write_run(tree, "key-clusters", 0, scores, task="reviews.csv", study=study, headline=study)
        write_run(tree, "softmax", 0, scores, task="reviews.csv", study=study, headline=study)
    tables = {study: load(tree, study) for study in metrics}
    for study, rows in tables.items():
        assert headlines(rows, tree)["measure"].tolist() == [study] * 2
        write_tables(study, root=tree)
        (line,) = differences(rows, tree).to_dict("records")
        assert (line["metric"], line["difference"]) == (study, 0)
        assert scale_of("reviews.csv", study) == ((100, 1) if study == "f1" else (1, 3))


def test_a_sweep_is_named_by_what_varies(tree):
    """Runs of notebooks lie in folders that end in a hash."""
    quarter, half = ({"attention_settings": {"share": share}} for share in (0.25, 0.5))
    changes = {"random": {}, "random-e17e51": {"learning_rate": 5e-5}, "random-f62280": half}
    for arm, given in (changes | {"softmax-00ff00": {"epochs": 1}}).items():
        path = write_run(tree, arm, 0, {"accuracy": 0.8, "f1": 0.9}, study="notebook") / "result.json"
        record = json.loads(path.read_text())
        record["parameters"] |= {"attention": arm.split("-")[0]} | quarter | given
        path.write_text(json.dumps(record))
    by_arm = arms(load(tree, "notebook")).set_index("arm")["record"].str.split("/").str[5]
    assert by_arm.to_dict() == {
        "random, learning_rate=1e-5, share=0.25": "random",
        "random, learning_rate=5e-5, share=0.25": "random-e17e51",
        "random, learning_rate=1e-5, share=0.5": "random-f62280",
        "softmax-00ff00": "softmax-00ff00",
    }


def test_a_study_without_runs_is_an_error(tree):
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="sst2", study="other", headline="accuracy")
    with pytest.raises(OneLineError, match="nothing-here; studies that have runs here: mini, other; `make study S"):
        load(tree, "nothing-here")
    listed = list_studies(tree)
    assert listed["runs"].to_dict() == {"mini": sum(map(len, F1.values())), "other": 1}
    assert listed.loc["other", "tasks"] == "sst2"
    assert list_studies(tree / "studies").empty
    assert load(tree / "studies").empty


def test_a_history_without_losses_is_named(tree):
    path = tree / "results/runs/mini/mrpc/model/key-clusters/seed-0/history.csv"
    path.write_text("step,epoch\n1,1\n")
    with pytest.raises(ValueError, match="eval_loss") as caught:
        write_figures("mini", root=tree)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source,model,task,arm,metric,value,note\nx,y,mrpc,softmax,f1,ninety,", "published.csv is damaged .*ninety"),
        ("value\n1", "published.csv .*expected but not found: .*source"),
    ],
)
def test_a_published_value_that_is_no_number_is_an_error(tmp_path, text, said):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "published.csv").write_text(text)
    with pytest.raises(ValueError, match=said):
        published(tmp_path)


def test_tables_are_not_made_without_some_of_a_studys_models_and_missing_runs_are_told_of(tmp_path, capsys):
    for folder in ("results/runs/no-training", "studies"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    written = {path: path.read_bytes() for path in write_tables("no-training", root=tmp_path)}
    gone = tmp_path / "results/runs/no-training/mrpc/all-MiniLM-L6-v2/softmax/seed-0"
    gone.rename(gone.with_name("elsewhere"))
    with pytest.raises(ValueError, match="fidelity-validation.csv: 5 of 6 tables are there; missing: .*mrpc.*seed-0"):
        write_tables("no-training", root=tmp_path)
    assert "no-training: 7 of the 8 runs of the study are made; missing: " in capsys.readouterr().out
    assert {path: path.read_bytes() for path in written} == written


def test_every_committed_record_is_in_the_table_and_the_committed_tables_are_what_it_gives(tmp_path):
    listed = (ROOT / LIST).read_text().split()
    assert {record.removesuffix("/result.json") for record in load(ROOT)["record"]} >= set(listed)
    shutil.copytree(ROOT / "results/tables", tmp_path / "results/tables")
    for path in [ROOT / "studies", *(ROOT / "results").iterdir()]:
        if path.name != "tables":
            (tmp_path / path.relative_to(ROOT)).symlink_to(path)
    written = write_tables("minilm", "albert", "transplants", "no-training", "word-order", "pretrained", root=tmp_path)
    for path in written:
        kept = pd.read_csv(ROOT / path.relative_to(tmp_path))
        pd.testing.assert_frame_equal(pd.read_csv(path), kept, rtol=1e-3, obj=path.name)


def test_a_study_that_is_made_again_leaves_the_table_of_all_studies_as_it_is(tmp_path):
    """Its differences enter with the digits that are written, as all others do."""
    shutil.copytree(ROOT / "results" / "tables", tmp_path / "results" / "tables")
    for name in ("results/runs", "results/records.txt", "studies"):
        (tmp_path / name).symlink_to(ROOT / name)
    write_tables("more-examples", root=tmp_path)
    for name in ("equivalence", "more-examples-differences"):
        kept = (ROOT / "results" / "tables" / f"{name}.csv").read_text()
        assert (tmp_path / "results" / "tables" / f"{name}.csv").read_text() == kept
