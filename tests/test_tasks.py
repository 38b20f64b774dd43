"""Tasks: data in the Hub's schemas, cut into the parts of a run, encoded; scores beside what needs no reading."""

from dataclasses import replace

import datasets
import numpy as np
import pytest
from datasets import Dataset

from albert_lsh import metrics, tasks
from albert_lsh.data import load_data
from albert_lsh.kinds import TaskError
from albert_lsh.run import ParameterError, Run
from albert_lsh.sources import MOST_CLASSES, find_task
from albert_lsh.tasks import TASKS


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes rows of a task of the table, which then are its data on the Hub."""
    monkeypatch.setattr(tasks, "load_dataset", lambda *_, **__: datasets.load_dataset(str(tmp_path)))

    def splits_of(rows, splits=("train", "validation")):
        for split in splits:
            Dataset.from_list(rows).to_parquet(tmp_path / f"{split}.parquet")

    return splits_of


def texts(rows, column="sentence"):
    return rows[column][:]


def test_an_unknown_task_is_named_and_the_embedded_ones_have_the_labels_of_the_table():
    with pytest.raises(TaskError, match="task='mrcp' is not one of: mrpc"):
        load_data("mrcp")
    for name in ("mini-mrpc", "mini-sst2", "mini-mnli"):
        assert tuple(load_data(name)["train"].features["label"].names) == TASKS[name].labels


@pytest.mark.parametrize(
    ("task", "metric"), [("mnli", "f1"), ("sst2", "recall"), ("stsb", "accuracy"), ("squad", "em")]
)
def test_a_task_cannot_have_a_metric_that_its_kind_does_not_have(task, metric):
    with pytest.raises(TaskError, match=f"task='{task}': metrics='{metric}' must be one of"):
        replace(TASKS[task], metrics=(metric,))


def test_the_labels_of_every_task_are_called_label(write):
    rows = [{"question1": "a", "question2": "c", "is_duplicate": label} for label in (0, 1)]
    write(rows)
    assert load_data("kor-qpair")["validation"]["label"][:] == [0, 1]
    with pytest.raises(TaskError, match="split 'train' has no label, sentence1, sentence2"):
        load_data("mrpc")
    write([*rows, {**rows[0], "is_duplicate": 2}], splits=("train",))
    with pytest.raises(TaskError, match="split 'train', row 2: is_duplicate=2 must be 0 to 1"):
        load_data("kor-qpair")
    number = Dataset.from_list([{"sentence1": "a", "sentence2": "b", "label": float("nan")}])
    with pytest.raises(TaskError, match="split 'train', row 0: label=nan must be a finite number"):
        find_task("stsb").check(number, "train")


def test_a_long_context_is_the_articles_paragraphs_in_their_order_and_answers_move_with_it(write):
    """As many words as fit, also where the article ends; the question's own paragraph is anywhere among them."""
    paragraphs = [" ".join([f"w{n}"] * (100 + 10 * n)) + f" the answer {n} here" for n in range(12)]
    rows = [{"id": f"{n} {k}", "title": "t", "context": paragraphs[n], "question": f"which {n}?",
             "answers": {"text": [f"answer {n}"], "answer_start": [paragraphs[n].index(f"answer {n}")]}}
            for n in range(12) for k in range(4)]  # fmt: skip
    write([*rows, rows[0] | {"id": "alone", "title": "short"}])
    data = load_data("squad-articles")["validation"]
    assert len(data) == 21
    *long, alone = data
    assert alone["context"] == paragraphs[0]
    places = []
    for row in long:
        parts = row["context"].split("\n")
        number = int(row["question"][6:-1])
        first = paragraphs.index(parts[0])
        assert parts == paragraphs[first : first + len(parts)]
        assert number - first in range(len(parts))
        (start,), (answer,) = row["answers"]["answer_start"], row["answers"]["text"]
        assert row["context"][start:].startswith(f"{answer} here")
        assert 1400 - 214 < len(row["context"].split()) <= 1400
        places.append(start / len(row["context"]))
    assert 0.3 < np.mean(places) < 0.7
    assert load_data("squad-articles")["validation"][:] == data[:]


def test_a_task_without_training_data_is_cut_by_article(write):
    answers = {"text": ["a"], "answer_start": [0]}
    row = {"id": "1", "title": "t", "context": "a b", "question": "c", "answers": answers}
    write([row], splits=("train",))
    for rows, message in (
        ([], "task='korquad': there is no split 'validation'"),
        ([row], "task='korquad': articles: there is 1, too few to train on 113 and evaluate on others"),
        ([{k: v for k, v in row.items() if k != "title"}], "task='korquad': there is no column title"),
    ):
        if rows:
            write(rows)
        with pytest.raises(TaskError, match=message):
            load_data("korquad")
    rows = [{**row, "id": f"{article}-{n}", "title": f"{article}"} for article in range(140) for n in range(2)]
    write(rows)
    data = load_data("korquad")
    titles = {split: set(of_split["title"]) for split, of_split in data.items()}
    assert {split: len(names) for split, names in titles.items()} == {"train": 113, "validation": 27}
    assert not titles["train"] & titles["validation"]
    assert len(data["train"]) + len(data["validation"]) == len(rows)


def test_shuffled_words_are_those_of_each_text_in_an_order_of_seed_and_text_alone():
    data = load_data("mini-mrpc", train_examples=20, eval_examples=50, shuffle_words=3)
    plain, shuffled = data["validation"], data["shuffled"]
    assert list(data) == ["train", "validation", "shuffled"]
    for column in ("sentence1", "sentence2"):  # each for itself
        pairs = list(zip(texts(plain, column), texts(shuffled, column), strict=True))
        assert all(sorted(one.split()) == sorted(other.split()) for one, other in pairs)
        assert sum(one != other for one, other in pairs) > 40
    assert all(plain[name][:] == shuffled[name][:] for name in ("label", "idx"))
    few, many, other = (
        load_data("mini-sst2", eval_examples=size, shuffle_words=seed)["shuffled"]
        for size, seed in ((20, 0), (200, 0), (20, 1))
    )
    order = dict(zip(many["idx"], many["sentence"], strict=True))
    assert texts(few) == [order[number] for number in few["idx"]] != texts(other)
    with pytest.raises(TaskError, match="task='mini-squad': shuffle_words=0, but its answers are places in the text"):
        load_data("mini-squad", shuffle_words=0)
    with pytest.raises(ParameterError, match="shuffle_words=0, but its answers are places in the text"):
        Run.parse({"task": "mini-squad", "shuffle_words": 0})


def test_subsets_are_the_same_for_every_run_and_held_out_examples_are_not_trained_on():
    whole, first = load_data("mini-sst2"), load_data("mini-sst2", train_examples=50, eval_examples=20)
    assert {split: len(rows) for split, rows in first.items()} == {"train": 50, "validation": 20}
    sizes = {"train_examples": 50, "eval_examples": 7, "held_out_examples": 20}
    data = load_data("mini-sst2", **sizes, shuffle_words=0)
    assert {split: len(rows) for split, rows in data.items()} == {"train": 50, "held-out": 20, "shuffled": 20}
    assert texts(data["train"]) == texts(first["train"])
    assert {*texts(data["train"]), *texts(data["held-out"])} <= {*texts(whole["train"])}
    assert not {*data["train"]["idx"]} & {*data["held-out"]["idx"]}
    assert data["shuffled"]["idx"][:] == data["held-out"]["idx"][:]
    with pytest.raises(TaskError, match="train_examples=None of 6000: the run saw all training examples"):
        load_data("mini-sst2", held_out_examples=20)


def test_every_example_is_in_one_fold_and_trained_on_in_the_others():
    everything = set(range(sum(len(rows) for rows in load_data("mini-sst2").values())))
    parts = [load_data("mini-sst2", fold=(part, 3)) for part in range(3)]
    assert sorted(number for part in parts for number in part["fold"]["idx"]) == sorted(everything)
    sentences = {}
    for part in parts:
        assert [*part] == ["train", "fold"]
        assert {*part["train"]["idx"]} == everything - {*part["fold"]["idx"]}
        for rows in part.values():
            for number, text in zip(rows["idx"], rows["sentence"], strict=True):
                assert sentences.setdefault(number, text) == text
    assert Run.parse({"task": "mini-sst2", "folds": 3, "seed": 4}).examples["fold"] == (1, 3)


def test_parts_that_cannot_be_are_named():
    for options, message in (
        ({"fold": (0, 3), "held_out_examples": 20}, r"fold=\(0, 3\) and held_out_examples=20: take one of them"),
        ({"fold": (3, 3)}, r"fold=\(3, 3\) must be \(i, n\)"),
        ({"train_examples": "5"}, "train_examples='5' must be a whole number, 1 or more"),
    ):
        with pytest.raises(TaskError, match=message):
            load_data("mini-sst2", **options)


def test_data_that_cannot_be_had_is_one_clear_error(write, tmp_path):
    with pytest.raises(TaskError, match='task=\'sst2\': .*; without a network set task="mini-sst2", model="mini"$'):
        load_data("sst2")
    for split in ("train", "validation"):
        (tmp_path / f"{split}.parquet").write_text("garbage")
    with pytest.raises(TaskError, match=r"task='sst2': the data could not be loaded from .*damaged file.*"):
        load_data("sst2")


def test_scores_by_hand():
    labels, answers = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    scores = metrics.scores(("accuracy", "f1", "matthews"), labels, answers)
    matthews = (2 * 1 - 1 * 1) / (3 * 2 * 3 * 2) ** 0.5
    assert scores == pytest.approx({"accuracy": 3 / 5, "f1": 2 / 3, "matthews": matthews})
    correlated = metrics.scores(("pearson", "spearman"), np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    assert correlated == {"pearson": pytest.approx(1), "spearman": pytest.approx(1)}
    rows = Dataset.from_dict({"labels": [0.0, 2.6, 5.0], "idx": [4, 7, 9]})
    table = find_task("stsb").predictions("validation", rows, rows, np.array([[0.5], [3.25], [4.75]]))
    assert list(table) == ["split", "id", "label", "logit_0"]
    assert find_task("stsb").mean_scores(table)["spearman"] == pytest.approx(1)
    labels = np.array([1, 1, 1, 0])
    assert metrics.majority(("accuracy", "f1"), np.array([1, 1, 0]), labels) == {"accuracy": 0.75, "f1": 6 / 7}
    assert metrics.majority(("accuracy", "f1"), np.array([1, 0, 0]), labels) == {"accuracy": 0.25, "f1": 0.0}
    assert metrics.chance(("accuracy", "f1"), labels, 2) == {"accuracy": 0.5, "f1": 0.6}


def test_an_answer_may_be_any_of_as_many_classes_as_are_accepted():
    task = find_task("owner/name", ["text"], "label", [f"{number}" for number in range(MOST_CLASSES)])
    rows = Dataset.from_dict({"labels": [3, MOST_CLASSES - 1], "idx": [0, 1]})
    table = task.predictions("validation", rows, rows, np.eye(MOST_CLASSES)[[130, MOST_CLASSES - 1]])
    assert table[["label", "answer"]].values.tolist() == [[3, 130], [MOST_CLASSES - 1] * 2]


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_a_constant_prediction_has_no_correlation():
    assert metrics.scores(("pearson", "spearman"), np.array([1.0, 2, 3]), np.ones(3)) == {"pearson": 0, "spearman": 0}
    assert metrics.scores(("matthews",), np.array([0, 1, 1]), np.ones(3)) == {"matthews": 0}
