"""results/ as one tidy table: made-up records, and those that are committed."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from albert_lsh.files import OneLineError, repository_root
from albert_lsh.record import SCHEMA
from albert_study.compare import differences, headlines, write_tables
from albert_study.figures import write_figures
from albert_study.names import scale_of
from albert_study.records import COLUMNS, COSTS, LIST, list_studies, load, published, read, read_run, wide
from albert_study.report import build, texts
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
    assert line["batch_size"] == 32  # of a step: two batches of 16
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
    """A row that was measured before has no schema; of an attention `lsh` the settings say which one it was. Rows of
    version 1 of key-clusters are not read."""
    rows = (
        ("lsh", "lsh", {"axes": 8}, "key-clusters", "key-clusters"),
        ("lsh, no rest", "lsh", {"axes": 8}, "key-clusters, no rest", "key-clusters"),
        ("lsh-tree", "lsh", {}, None, None),
        ("pass 1", "lsh", {"axes": 8}, "pass 1", "key-clusters"),
        ("random", "random", {}, "random", "random"),
    )
    table = pd.DataFrame(rows, columns=["variant", "attention", "settings", "label", "name"])
    table = table.assign(settings=table["settings"].map(json.dumps), loss=1.0)
    path = tree / "results" / "runs" / "mini" / "32.csv"
    table.drop(columns=["label", "name"]).to_csv(path, index=False)
    rows = load(tree, "mini").query("kind == 'masked words'")
    assert rows["variant"].tolist() == table["label"].dropna().tolist()
    assert rows["attention"].tolist() == table["name"].dropna().tolist()
    table.drop(columns=["label", "name"]).assign(schema=SCHEMA).to_csv(path, index=False)
    names = load(tree, "mini").query("kind == 'masked words'")["attention"].tolist()
    assert names == ["lsh", "lsh", "lsh", "random"]
    times = tree / "results" / "efficiency" / "frontier.csv"  # a table that names no attention, and no settings
    times.parent.mkdir()
    pd.DataFrame({"case": ["lsh, 1/4", "lsh-tree", "reformer-pytorch"], "seconds": 1.0}).to_csv(times, index=False)
    cases = read(tree, "efficiency/frontier")["case"].tolist()
    assert cases == ["key-clusters, 1/4", "reformer-pytorch"]


def test_a_cost_that_was_counted_again_takes_the_place_of_the_recorded_one(tree):
    (result,) = tree.glob("results/runs/mini/mrpc/*/softmax/seed-0/result.json")
    run = result.relative_to(tree).as_posix()
    table = "results/runs/mini/32.csv"
    rows = pd.DataFrame({"variant": ["lsh", "lsh", "yoso"], "share_asked": [0.5, 0.25, None], "cost": 1.0, "loss": 1.0})
    rows.assign(schema=SCHEMA, attention=rows["variant"]).to_csv(tree / table, index=False)
    again = [(run, None, None, 0.9), (table, "lsh", 0.25, 0.4), (table, "yoso", None, 0.7)]
    pd.DataFrame(again, columns=["record", "variant", "share", "cost"]).to_csv(tree / COSTS, index=False)
    loaded = load(tree, "mini")
    assert loaded.loc[loaded["record"] == run, "cost"].dropna().unique().tolist() == [0.9]
    asked = loaded.query("kind == 'masked words' and measure == 'loss'")
    assert asked["cost"].tolist() == [1.0, 0.4, 0.7]


def test_what_stands_on_the_list_is_not_changed_by_a_readers_runs(tree, capsys):
    """Neither by another seed of a listed study, nor by a study of his own, which he still can look at."""
    write_tables("mini", root=tree)
    write_figures("mini", root=tree)
    paths = sorted(tree.glob("results/runs/*/*/*/*/seed-*/result.json"))
    (tree / LIST).write_text("\n".join(path.parent.relative_to(tree).as_posix() for path in paths))
    before, shown = load(tree, "mini"), texts(tree)
    capsys.readouterr()
    write_run(tree, "key-clusters", 1, {"accuracy": 0.1, "f1": 0.2})
    own = write_run(tree, "softmax", 0, {"accuracy": 0.5, "f1": 0.5}, study="notebook")
    assert arms(load(tree, "notebook"))["arm"].tolist() == ["softmax"]
    everything = load(tree)
    capsys.readouterr()
    switched = {"variant": "window", "attention": "window", "share_asked": 0.5, "share": 0.4, "score_name": "f1"}
    switched |= {"task": "own.csv", "seed": 0, "score": 0.5, "kept": 0.9, "changed": 0.1}
    folder = tree / "results/runs/notebook"
    tables = [own / "fidelity-validation.csv", folder / "128.csv", folder / "words.csv"]
    for path in tables:
        pd.DataFrame([switched]).to_csv(path, index=False)
    assert load(tree).equals(everything)
    assert set(load(tree, "notebook")["kind"]) == {"fine-tuned", "switched", "masked words", "bag of words"}
    for path in tables:
        path.unlink()
    capsys.readouterr()
    assert load(tree, "mini").equals(before)
    assert capsys.readouterr().out == "1 run not named in results/records.txt: left out\n"
    assert list_studies(tree)["listed"].to_dict() == {"mini": len(paths), "notebook": 0}
    write_tables("notebook", root=tree)
    write_figures("notebook", root=tree)
    assert json.dumps(texts(tree), default=float) == json.dumps(shown, default=float)
    pytest.importorskip("typst")
    pages = build(tree, "report/build/notebook.pdf")
    assert [path.relative_to(tree).as_posix() for path in pages] == ["report/build/notebook.pdf"]
    assert json.loads((tree / "report/texts.json").read_text())["studies"] == ["notebook"]


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


def test_results_of_a_study_that_are_missing_are_named(tree, capsys):
    arms = "{softmax: , reformer: {seeds: [0, 1]}, key-clusters: {seeds: [0]}, window: }"
    text = f"parameters: {{model: model}}\nseeds: [0, 1, 2]\ntasks: {{mrpc: {{arms: {arms}}}}}\n"
    (tree / "studies" / "mini.yaml").write_text(text)
    write_tables("mini", root=tree)
    said = "mini: 6 of the 9 results of the study are made; missing: results/runs/mini/mrpc/model/window/seed-0/"
    assert capsys.readouterr().out.startswith(said)


def test_every_committed_record_is_in_the_table_and_the_committed_tables_are_what_it_gives(tmp_path):
    listed = {name for name in (ROOT / LIST).read_text().split() if "/collapse/" not in name}  # which a figure reads
    records = {record.removesuffix("/result.json") for record in load(ROOT)["record"]}
    assert records >= listed
    assert {name for name in records - listed if Path(name).parent.as_posix() not in listed} == set()
    shutil.copytree(ROOT / "results/tables", tmp_path / "results/tables")
    for path in [ROOT / "studies", *(ROOT / "results").iterdir()]:
        if path.name != "tables":
            (tmp_path / path.relative_to(ROOT)).symlink_to(path)
    studies = ("minilm", "albert", "transplants", "no-training", "word-order", "pretrained", "more-examples")
    for path in write_tables(*studies, root=tmp_path):
        kept = pd.read_csv(ROOT / path.relative_to(tmp_path))
        pd.testing.assert_frame_equal(pd.read_csv(path), kept, rtol=1e-3, obj=path.name)
    for name in ("equivalence", "more-examples-differences"):  # whose digits are those that are written
        kept = (ROOT / "results" / "tables" / f"{name}.csv").read_text()
        assert (tmp_path / "results" / "tables" / f"{name}.csv").read_text() == kept
