"""A reader's own data: from a file to notebook, run, tables and predictions; what is read as what; what is wrong."""

import json
import math
import os
import random
import shutil
from pathlib import Path

import pandas as pd
import papermill
import pytest
from datasets import ClassLabel, Dataset

from albert_lsh import Run, find_task, fit, load_data, squad
from albert_lsh.kinds import Regression, TaskError
from albert_lsh.predict import main
from albert_lsh.record import read_result
from albert_lsh.run import ParameterError
from albert_lsh.sources import task_of, without_answers
from albert_lsh.train import train_loop
from albert_study.compare import scores
from albert_study.experiments.words import BagOfWords, write_scores
from albert_study.records import load
from albert_study.tables.studies import score_table
from test_study_file import load as read_study

ROOT = Path(__file__).resolve().parents[1]
QUICK = {"model": "mini", "epochs": 1, "max_length": 32, "precision": "fp32", "device": "cpu", "save_model": True}


def parse(folder, task, **changes):
    return Run.parse({"task": task, "results_root": str(folder), **QUICK, **changes})


def reviews(path, examples=200):
    """Sentences and what is said in them, as a spreadsheet has them."""
    rng, rows = random.Random(0), []
    for number in range(examples):
        word = rng.choice(["lovely", "great"] if number % 2 else ["awful", "bad"])
        rows.append((f"Room {number}, with a view, was {word}.", ("Bad", "Good")[number % 2], number))
    pd.DataFrame(rows, columns=["review", "mood", "id"]).to_csv(path, index=False)


def ask(capsys, folder, file):
    capsys.readouterr()
    main(["predict", "--model", str(folder / "model"), str(file)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_csv_goes_through_notebook_run_tables_and_predict_and_no_record_names_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "lib"))
    reviews(tmp_path / "reviews.csv")
    values = {"task": "reviews.csv", "label_column": "mood", "text_columns": "review", "results_root": str(tmp_path)}
    done = papermill.execute_notebook(
        ROOT / "notebooks/glue.ipynb", tmp_path / "out.ipynb", {**QUICK, **values}, progress_bar=False
    )
    for said in (
        "reviews.csv: train is all of it, 200 rows",
        "what is read: review; what is answered: mood, one of Bad, Good (labels=[]: a number)",
        "reviews.csv: 40 of 200 examples, drawn with a fixed seed, are held out",
    ):
        assert json.dumps(done).count(said) == 1
    (path,) = tmp_path.glob("results/runs/notebook/reviews.csv/mini/softmax-*/seed-0/result.json")
    record, card = read_result(path), (path.parent / "model" / "README.md").read_text()
    assert record["examples"] == {"train": 160, "validation": 40}
    assert {"accuracy", "matthews"} == set(record["metrics"]) == set(record["majority"]) == set(record["chance"])
    described = {"text_columns": ["review"], "label_column": "mood", "labels": ["Bad", "Good"]}
    assert record["parameters"].items() >= {"task": "reviews.csv", **described}.items()
    assert str(tmp_path) not in path.read_text() + card + (path.parent / "model" / "config.json").read_text()

    run = parse(tmp_path, "reviews.csv", label_column="mood", text_columns="review")
    assert (run.folder, fit(run).record) == (path.parent, record)
    elsewhere = parse(tmp_path / "other", str(tmp_path / "reviews.csv"), label_column="mood", text_columns="review")
    assert (elsewhere.recorded()["task"], elsewhere.text_columns) == ("reviews.csv", ["review"])
    table = score_table(scores(load(tmp_path, "notebook"), tmp_path), metrics=True).frame()
    assert list(table) == ["reviews.csv (accuracy)", "reviews.csv (matthews)"]
    (tmp_path / "more.txt").write_text("Room 7 was lovely.\nRoom 8 was bad.\n")
    answers = ask(capsys, path.parent, tmp_path / "more.txt")
    more = pd.DataFrame({"id": [7, 8], "review": ["Room 7 was lovely.", "Room 8 was bad."]})
    more.to_csv(tmp_path / "more.csv")
    assert ask(capsys, path.parent, tmp_path / "more.csv") == answers
    assert [list(answer["scores"]) for answer in answers] == [["Bad", "Good"]] * 2
    words = {"tasks": ["reviews.csv"], "text_columns": ["review"], "label_column": "mood"}
    table = write_scores(BagOfWords.parse({**words, "results_root": str(tmp_path)}))
    assert table[["task", "accuracy", "train"]].values.tolist() == [["reviews.csv", 1, 160]]

    words |= {"tasks": [str(tmp_path / "reviews.csv")], "results_root": str(tmp_path / "other")}
    assert BagOfWords.parse(words).recorded()["tasks"] == ["reviews.csv"]

    reviews(tmp_path / "reviews.csv", 100)  # another file is another run, and the first one's is not to be had
    assert parse(tmp_path, "reviews.csv", label_column="mood", text_columns="review").folder != run.folder
    with pytest.raises(ParameterError, match=f"data_revision='{run.data_revision}': .*reviews.csv' has changed"):
        Run.parse(record["parameters"] | {"results_root": str(tmp_path)})
    os.remove(tmp_path / "reviews.csv")
    assert task_of(record["parameters"]).labels == ("Bad", "Good")


@pytest.mark.filterwarnings("ignore:An input array is constant")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_folder_of_numbers_has_its_open_test_split_answered(tmp_path, capsys, precision):
    (tmp_path / "pairs").mkdir()
    for split, examples in (("train", 60), ("dev", 20), ("test", 5)):
        rows = [{"one": f"A {i} b.", "other": f"A {i} c.", "likeness": i % 7 / 2} for i in range(examples)]
        table = pd.DataFrame(rows).drop(columns=["likeness"] if split == "test" else [])
        table.to_json(tmp_path / "pairs" / f"{split}.jsonl", orient="records", lines=True)
    run = parse(tmp_path, "pairs", text_columns="one,other", label_column="likeness", precision=precision)
    assert (run.labels, type(run.about)) == ([], Regression)
    trained = fit(run)
    assert trained.record["examples"] == {"train": 60, "validation": 20}
    assert set(trained.record["metrics"]) == {"pearson", "spearman"}
    lines = (trained.folder / "answers-test.jsonl").read_text().splitlines()
    assert "pairs: validation is dev.jsonl, 20 rows" in capsys.readouterr().out
    answers = ask(capsys, trained.folder, tmp_path / "pairs" / "test.jsonl")
    assert [json.loads(line) for line in lines] == [{"value": pytest.approx(row["value"])} for row in answers]
    assert len(lines) == 5


def test_a_file_that_changed_after_its_run_was_described_is_not_trained_on(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps(rows([1, 0] * 9)))
    run = parse(tmp_path, "own.json", labels="no,yes")
    (tmp_path / "own.json").write_text(json.dumps(rows([0, 1] * 9)))
    with pytest.raises(TaskError, match=f"data_revision='{run.data_revision}': '.*own.json' has changed"):
        fit(run)


def test_files_may_leave_while_a_run_trains(tmp_path, monkeypatch):
    (tmp_path / "pairs").mkdir()
    for split, labels in (("train", [1, 0] * 9), ("validation", [1, 0] * 9), ("test", [None] * 2)):
        (tmp_path / "pairs" / f"{split}.json").write_text(json.dumps(rows(labels)))
    run = parse(tmp_path, "pairs", labels="no,yes", save_model=False)

    def train(*args):
        shutil.rmtree(tmp_path / "pairs")
        return train_loop(*args)

    monkeypatch.setattr("albert_lsh.train.train_loop", train)
    assert len((fit(run).folder / "answers-test.jsonl").read_text().splitlines()) == 2


def test_a_file_as_old_as_the_one_it_replaced_is_read_anew(tmp_path):
    file, words = tmp_path / "own.json", []
    for labels in (["a", "b"] * 9, ["c", "d"] * 9):
        file.write_text(json.dumps(rows(labels)))
        os.utime(file, (0, 0))
        words.append(find_task(str(file)).labels)
    assert words == [("a", "b"), ("c", "d")]


def test_an_answered_test_split_is_scored_too_and_classes_are_those_of_all_splits(tmp_path):
    for split, names, examples in (("train", "ab", 30), ("validation", "ab", 30), ("test", "abc", 21)):
        rows = [{"text": f"{split} {i}", "label": names[i % len(names)]} for i in range(examples)]
        pd.DataFrame(rows).to_csv(tmp_path / f"{split}.csv", index=False)
    run = parse(tmp_path.parent, tmp_path.name, save_model=False)
    assert run.labels == ["a", "b", "c"]
    assert set(fit(run).record["metrics"]) == {"accuracy", "matthews", "accuracy_test", "matthews_test"}


@pytest.mark.parametrize("ending", ["json", "parquet"])
@pytest.mark.parametrize("nothing", [None, math.nan, -1, -1.0], ids=str)
def test_a_split_without_labels_is_answered_and_not_scored(tmp_path, nothing, ending):
    for split, labels in (("train", [1.0, 0.0] * 9), ("test", [nothing] * 2)):
        path, examples = tmp_path / f"{split}.{ending}", rows(labels)
        path.write_text(json.dumps(examples)) if ending == "json" else Dataset.from_list(examples).to_parquet(path)
    task = find_task(str(tmp_path))
    assert task.labels == ("0", "1")
    assert ([*load_data(task)], [*without_answers(task)]) == (["train", "validation"], ["test"])


def test_the_official_json_of_squad_is_read_and_no_paragraph_is_in_both_parts(tmp_path, capsys):
    articles = []
    for number in range(20):
        context = f"Anna lost ball {number} in the park. Ben found it near the school."
        answer = {"text": f"ball {number}", "answer_start": 10}
        asked = [{"id": f"{number}-{n}", "question": "What did Anna lose?", "answers": [answer]} for n in range(2)]
        never = {"id": f"{number}-x", "question": "Who is Paul?", "answers": [], "is_impossible": True}
        articles.append({"title": "Balls", "paragraphs": [{"context": context, "qas": [*asked, never]}]})
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": articles}, indent=1))
    run = parse(tmp_path, "dev-v2.0.json")
    data = load_data(run.about)
    assert {split: len(rows) for split, rows in data.items()} == {"train": 48, "validation": 12}
    assert not {*data["train"]["context"]} & {*data["validation"]["context"]}
    trained = fit(run, data)
    assert {"exact", "f1", "best_f1", "no_answer_f1"} <= set(trained.record["metrics"])
    assert trained.record["majority"] == squad.majority_score(data["validation"])
    (tmp_path / "questions.txt").write_text("Who is Paul?\tAnna lost a ball in the park.\n")
    (answer,) = ask(capsys, trained.folder, tmp_path / "questions.txt")
    assert set(answer) == {"answer", "score", "start", "end"}
    with pytest.raises(ParameterError, match="belongs to squad.ipynb"):
        Run.parse(run.recorded() | {"results_root": str(tmp_path)}, "glue.ipynb")
    table = score_table(scores(load(tmp_path, "notebook"), tmp_path)).frame()
    assert [name for name in table if "(f1)" in name] == ["dev-v2.0.json (f1)"]
    assert f"{trained.record['majority']['f1']:.1f}" == table.loc["always the same answer", "dev-v2.0.json (f1)"]


def test_a_folder_of_squads_json_may_lack_in_one_file_what_another_has(tmp_path):
    never = {"answers": [], "is_impossible": True, "plausible_answers": [{"text": "a", "answer_start": 0}]}
    answered = {"answers": [{"text": "a", "answer_start": 0}]}
    for split, more in (("train", [answered]), ("dev", [answered, never]), ("test", [{}])):
        asked = [{"id": f"{n}", "question": "Which?", **entry} for n, entry in enumerate(more)]
        articles = [{"title": "T", "paragraphs": [{"context": f"a {split}", "qas": asked}]}]
        (tmp_path / f"{split}.json").write_text(json.dumps({"data": articles, "version": "1"}))
    task = find_task(str(tmp_path))
    data = load_data(task)
    assert data["validation"]["answers"][:] == [{"text": ["a"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    assert {split: rows.to_list() for split, rows in without_answers(task).items()} == {
        "test": [{"question": "Which?", "context": "a test"}]
    }


def test_questions_of_splits_that_are_joined_have_ids_of_their_own(tmp_path):
    answers = [{"text": "a", "answer_start": 0}]
    for split in ("train", "dev"):
        asked = [{"id": f"{n}", "question": "Which?", "answers": answers} for n in range(4)]
        articles = [{"title": "T", "paragraphs": [{"context": f"a {split}", "qas": asked}]}]
        (tmp_path / f"{split}.json").write_text(json.dumps({"data": articles}))
    task = find_task(str(tmp_path))
    assert [*load_data(task)] == ["train", "validation"]
    message = "splits 'train' and 'validation', row 0: id='0' must be text, and of no other row"
    with pytest.raises(TaskError, match=message):
        load_data(task, fold=(0, 2))


def test_a_study_may_be_of_ones_own_data(root):
    reviews(root / "reviews.csv")
    text = "parameters: {model: mini, label_column: mood, text_columns: review}\n"
    text += "tasks: {reviews.csv: {arms: {softmax: , key-clusters: }}}\n"
    jobs = read_study(root, text)
    assert [job.name for job in jobs] == [f"reviews.csv/mini/{arm}/seed-0" for arm in ("softmax", "key-clusters")]
    assert {job.notebook for job in jobs} == {"glue.ipynb"}
    assert jobs[0].run.about.labels == ("Bad", "Good")


def rows(labels):
    return [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]


@pytest.mark.parametrize("options", [{"fold": (0, 3)}, {"train_examples": 8, "held_out_examples": 9}, {}])
def test_no_text_is_both_trained_and_evaluated_on(tmp_path, capsys, options):
    texts = [{"text": f"text {number % 20}", "label": number % 2} for number in range(60)]
    (tmp_path / "own.json").write_text(json.dumps(texts))
    train, evaluated = load_data(str(tmp_path / "own.json"), **options).values()
    assert len({*train["text"]} | {*evaluated["text"]}) == len({*train["text"]}) + len({*evaluated["text"]})
    assert len(evaluated) == {"fold": 21, "train_examples": 9}.get([*options, ""][0], 12)
    assert ("are held out and evaluated" in capsys.readouterr().out) == (not options)


def test_labels_are_numbers_or_names_in_all_splits_alike(tmp_path):
    for split, labels in (("train", [*range(5)] * 3), ("validation", [1, 2, 3, 4])):
        (tmp_path / f"{split}.json").write_text(json.dumps(rows(labels)))
    data = load_data(find_task(str(tmp_path), labels=["1", "2", "3", "4", "5"]))
    assert (data["train"]["label"][:5], data["validation"]["label"][:]) == ([*range(5)], [1, 2, 3, 4])


def test_the_classes_of_a_hubs_column_may_be_put_in_another_order(tmp_path):
    for split in ("train", "validation"):
        classes = ClassLabel(names=["neg", "pos"])
        data = Dataset.from_dict({"text": ["poor", "fine"], "label": [0, 1]}).cast_column("label", classes)
        data.to_parquet(tmp_path / f"{split}.parquet")
    for labels, numbers in ((None, [0, 1]), (["pos", "neg"], [1, 0])):
        assert load_data(find_task(str(tmp_path), labels=labels))["train"]["label"][:] == numbers
    with pytest.raises(TaskError, match="row 0: label='neg' must be one of: bad, good"):
        load_data(find_task(str(tmp_path), labels=["bad", "good"]))
