"""The bag of words, on tasks whose answer counting can, and cannot, find; and what a constant answer
scores and loses."""

import math

import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.sources import find_task
from albert_study.experiments import words
from albert_study.experiments.words import BagOfWords, scores_of, write_scores


def test_words_that_decide_are_found_and_their_order_is_not_seen():
    texts = [f"a {('good', 'fine', 'bad', 'poor')[i % 4]} film number {i % 7}" for i in range(80)]
    sentences = Dataset.from_dict({"sentence": texts, "label": [int(i % 4 < 2) for i in range(80)]})
    assert scores_of(find_task("sst2"), sentences, sentences.select(range(40)))["accuracy"] == 1
    nouns = ["cat", "dog", "sea", "sun"]
    both = [(nouns[i % 4], nouns[(i % 4 + i // 4 % 2) % 4]) for i in range(80)]
    first, second = [f"the {one} is here" for one, _ in both], [f"here is the {other}" for _, other in both]
    rows = {"sentence1": first, "sentence2": second, "label": [float(one == other) for one, other in both]}
    pairs = Dataset.from_dict(rows)
    assert scores_of(find_task("stsb"), pairs, pairs.select(range(40)))["pearson"] > 0.95
    rows = Dataset.from_dict({"sentence": ["man bites dog", "dog bites man"] * 20, "label": [0, 1] * 20})
    assert scores_of(find_task("sst2"), rows, rows)["accuracy"] == 0.5


def test_a_table_has_a_row_for_each_task(tmp_path):
    parameters = {"tasks": ["mini-mrpc", "mini-sst2"], "train_examples": 500, "folds": 3}
    table = write_scores(BagOfWords.parse(parameters | {"results_root": str(tmp_path)}))
    assert table["task"].tolist() == parameters["tasks"]
    assert table["folds"].tolist() == [3, 3]
    assert table["headline"].between(0.3, 1).all()
    kept = pd.read_csv(tmp_path / "results/runs/notebook/bag-of-words.csv")
    assert kept["headline"].tolist() == pytest.approx(table["headline"].tolist(), rel=1e-5)


def labelled(*counts):
    return Dataset.from_dict({"label": [label for label, count in enumerate(counts) for _ in range(count)]})


def test_a_constant_loses_least_with_the_shares_of_the_labels_it_is_asked_for():
    constant = words.constant_answer(find_task("mrpc"), "validation", labelled(1, 3), labelled(2, 6))
    assert constant["entropy"] == constant["train_shares"] == constant["train_entropy"] == pytest.approx(0.562335)
    constant = words.constant_answer(find_task("mrpc"), "validation", labelled(1, 3), labelled(4, 4))
    assert constant["entropy"] == pytest.approx(math.log(2))
    assert constant["train_shares"] == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 2)
    constant = words.constant_answer(find_task("mnli"), "validation_matched", labelled(5, 5, 0), labelled(5, 5, 5))
    assert constant["train_shares"] == math.inf  # a class that training never had
    assert constant["train_entropy"] == pytest.approx(math.log(2))


def test_the_original_beside_a_constant():
    train, rows = labelled(29780, 37569), labelled(428, 444)
    constant = words.constant_answer(find_task("sst2"), "validation", train, rows)
    assert [constant[name] for name in ("answer", "right", "examples")] == ["positive", 444, 872]
    table = words.beside_the_original(pd.DataFrame([constant])).set_index(["arm", "metric"])
    assert table.loc[("reformer", "accuracy"), ["same", "between"]].tolist() == [True, 0]
    assert not table.loc[("reformer-8-rounds", "eval_loss"), "same"]
    answers = [{"text": ["x"], "answer_start": [0]}] * 5928 + [{"text": [], "answer_start": []}] * 5945
    rows = Dataset.from_dict({"id": [str(n) for n in range(11873)], "answers": answers})
    constant = words.constant_answer(find_task("squad-v2"), "validation", rows, rows)
    assert constant["right"] == 5945
    table = words.beside_the_original(pd.DataFrame([constant])).set_index(["source", "arm", "metric"])
    assert table.loc[("the original study: report", "reformer", "f1"), "same"]
    assert table.loc[("the original study: report", "reformer", "exact"), "between"] == -20
