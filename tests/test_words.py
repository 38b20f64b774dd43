"""The bag of words, on tasks whose answer counting can, and cannot, find; and what a constant answer scores."""

import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.tasks import find_task
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


def test_published_scores_of_sst2_and_squad_2_are_those_of_a_constant():
    rows = Dataset.from_dict({"sentence": ["a"] * 872, "label": [1] * 444 + [0] * 428})
    table = words.beside_the_original(words.constant_answers(find_task("sst2"), "validation", rows)).set_index("answer")
    assert table["right"].to_dict() == {"negative": 428, "positive": 444}
    assert table["same"].to_dict() == {"negative": False, "positive": True}
    assert table["between"].to_dict() == {"negative": 16, "positive": 0}
    answers = [{"text": ["x"], "answer_start": [0]}] * 5928 + [{"text": [], "answer_start": []}] * 5945
    rows = Dataset.from_dict({"id": [str(n) for n in range(11873)], "answers": answers})
    table = words.beside_the_original(words.constant_answers(find_task("squad-v2"), "validation", rows))
    assert table.set_index("metric").loc["f1", ["right", "same", "between"]].tolist() == [5945, True, 0]
