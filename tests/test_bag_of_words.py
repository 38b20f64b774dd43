"""The bag of words, on tasks whose answer counting can, and cannot, find."""

import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.run import ParameterError
from albert_lsh.tasks import find_task
from albert_study.probe.bag_of_words import BagOfWords, scores_of, write_scores


def sentences(n):
    words = ["good", "fine", "bad", "poor"]
    texts = [f"a {words[i % 4]} film number {i % 7}" for i in range(n)]
    return Dataset.from_dict({"sentence": texts, "label": [int(i % 4 < 2) for i in range(n)]})


def pairs(n):
    words = ["cat", "dog", "sea", "sun"]
    rows = [(words[i % 4], words[(i % 4 + i // 4 % 2) % 4]) for i in range(n)]
    texts = {"sentence1": [f"the {a} is here" for a, _ in rows], "sentence2": [f"here is the {b}" for _, b in rows]}
    return Dataset.from_dict({**texts, "label": [float(a == b) for a, b in rows]})


def test_words_that_decide_are_found():
    assert scores_of(find_task("sst2"), sentences(80), sentences(40))["accuracy"] == 1
    assert scores_of(find_task("stsb"), pairs(80), pairs(40))["pearson"] > 0.95


def test_an_order_of_words_is_not_seen():
    texts = ["man bites dog", "dog bites man"] * 20
    rows = Dataset.from_dict({"sentence": texts, "label": [0, 1] * 20})
    assert scores_of(find_task("sst2"), rows, rows)["accuracy"] == 0.5


def test_a_table_has_a_row_for_each_task(tmp_path):
    given = {"tasks": ["mini-mrpc", "mini-sst2"], "train_examples": 500, "results_root": str(tmp_path)}
    table = write_scores(BagOfWords.check(given | {"folds": 3}))
    assert table["task"].tolist() == given["tasks"]
    assert table["folds"].tolist() == [3, 3]
    assert table["headline"].between(0.3, 1).all()
    kept = pd.read_csv(tmp_path / "results/runs/notebook/bag-of-words.csv")
    assert kept["headline"].tolist() == pytest.approx(table["headline"].tolist(), rel=1e-5)


def test_a_span_is_refused():
    with pytest.raises(ParameterError, match="'squad' asks for a span"):
        BagOfWords.check({"tasks": ["squad"]})
