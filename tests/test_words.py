"""The bag of words, on tasks whose answer counting can, and cannot, find; what always giving the same answer scores."""

import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh import find_task
from albert_lsh.run import ParameterError
from albert_study.experiments.words import (
    BagOfWords,
    ConstantAnswers,
    beside_the_original,
    constant_answers,
    scores_of,
    write_constants,
    write_scores,
)


def sentences(n):
    words = ["good", "fine", "bad", "poor"]
    texts = [f"a {words[i % 4]} film number {i % 7}" for i in range(n)]
    return Dataset.from_dict({"sentence": texts, "label": [int(i % 4 < 2) for i in range(n)]})


def pairs(n):
    words = ["cat", "dog", "sea", "sun"]
    rows = [(words[i % 4], words[(i % 4 + i // 4 % 2) % 4]) for i in range(n)]
    texts = {"sentence1": [f"the {a} is here" for a, _ in rows], "sentence2": [f"here is the {b}" for _, b in rows]}
    return Dataset.from_dict({**texts, "label": [float(a == b) for a, b in rows]})


def test_words_that_decide_are_found_and_their_order_is_not_seen():
    assert scores_of(find_task("sst2"), sentences(80), sentences(40))["accuracy"] == 1
    assert scores_of(find_task("stsb"), pairs(80), pairs(40))["pearson"] > 0.95
    rows = Dataset.from_dict({"sentence": ["man bites dog", "dog bites man"] * 20, "label": [0, 1] * 20})
    assert scores_of(find_task("sst2"), rows, rows)["accuracy"] == 0.5


def test_a_table_has_a_row_for_each_task(tmp_path):
    given = {"tasks": ["mini-mrpc", "mini-sst2"], "train_examples": 500, "results_root": str(tmp_path)}
    table = write_scores(BagOfWords.parse(given | {"folds": 3}))
    assert table["task"].tolist() == given["tasks"]
    assert table["folds"].tolist() == [3, 3]
    assert table["headline"].between(0.3, 1).all()
    kept = pd.read_csv(tmp_path / "results/runs/notebook/bag-of-words.csv")
    assert kept["headline"].tolist() == pytest.approx(table["headline"].tolist(), rel=1e-5)


def test_published_scores_of_sst2_and_squad_2_are_those_of_a_constant():
    rows = Dataset.from_dict({"sentence": ["a"] * 872, "label": [1] * 444 + [0] * 428})
    table = beside_the_original(constant_answers(find_task("sst2"), "validation", rows)).set_index("answer")
    assert table["right"].to_dict() == {"negative": 428, "positive": 444}
    assert table["same"].to_dict() == {"negative": False, "positive": True}
    assert table["between"].to_dict() == {"negative": 16, "positive": 0}
    answers = [{"text": ["x"], "answer_start": [0]}] * 5928 + [{"text": [], "answer_start": []}] * 5945
    rows = Dataset.from_dict({"id": [str(n) for n in range(11873)], "answers": answers})
    table = beside_the_original(constant_answers(find_task("squad-v2"), "validation", rows)).set_index("metric")
    assert table.loc["f1", ["right", "same", "between"]].tolist() == [5945, True, 0]


def test_what_has_no_bag_of_words_or_no_constant_is_refused(tmp_path):
    assert write_constants(ConstantAnswers.parse({"tasks": ["mini-mrpc"], "results_root": str(tmp_path)})).empty
    with pytest.raises(ParameterError, match="tasks: 'stsb' predicts a number"):
        ConstantAnswers.parse({"tasks": ["stsb"]})
    with pytest.raises(ParameterError, match="'squad' asks for a span"):
        BagOfWords.parse({"tasks": ["squad"]})
