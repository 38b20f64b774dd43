"""The bag of words, on tasks whose answer counting can, and cannot, find; what always giving the same answer scores;
and where answers part, on made-up ones."""

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.tasks import find_task
from albert_study.experiments import words
from albert_study.experiments.words import (
    BagOfWords,
    common_pieces,
    details,
    distance,
    groups_of,
    scores_of,
    write_scores,
)


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


TASK = find_task("kor-qpair")
FIRST = ["3 apples", "it is red", "the same words", "오늘 비가 안 와", "never mind", "a b"] * 20
SECOND = ["4 apples", "it is not red", "the same words", "오늘 비가 와", "never ever", "c d"] * 20
ROWS = Dataset.from_dict({"question1": FIRST, "question2": SECOND, "label": [0] * 120})


def answers(changed=()):
    table = pd.DataFrame({"id": range(120), "label": 0, "answer": 0})
    table.loc[list(changed), "answer"] = 1
    return table


def test_groups_are_what_asks_for_detail():
    groups = groups_of(TASK, ROWS)
    assert groups["numbers differ", "yes"][:6].tolist() == [True, False, False, False, False, False]
    assert groups["one is negated", "yes"][:6].tolist() == [False, True, False, True, False, False]
    for feature in ("in common", "letters"):
        parts = np.array([groups[feature, name] for name in ("least", "middle", "most")])
        assert parts.sum(0).tolist() == [1] * 120
        assert parts.sum(1).tolist() == [40] * 3
    assert groups["in common", "most"][2]
    assert groups["in common", "least"][5]
    assert common_pieces("", "") == 0


def squad_rows():
    names = ("Rome", "12 legions", "the river Tiber")
    paragraph = "In winter Caesar came to Rome. He had 12 legions. They camped beside the river Tiber."
    answers = [{"text": [name], "answer_start": [paragraph.index(name)]} for name in names]
    questions = ["Where did Caesar come in winter?", "How many had he not?", "Beside what did they camp?"]
    return Dataset.from_dict({"question": questions, "context": [paragraph] * 3, "answers": answers})


def test_groups_of_squad_are_about_the_answer():
    groups = groups_of(find_task("squad"), squad_rows())
    assert groups["a number in the answer", "yes"].tolist() == [False, True, False]
    assert groups["question is negated", "yes"].tolist() == [False, True, False]
    assert groups["letters of the answer", "least"].tolist() == [True, False, False]
    assert groups["answer begins at letter", "most"].tolist() == [False, False, True]
    # Caesar and winter stand 15 and 22 letters before Rome; beside 7 before the river; nothing that the second asks is
    # in the paragraph.
    assert distance("Where did Caesar come in winter?", squad_rows()["context"][0], 25) == (15 + 22) / 2
    assert groups["from the question's words", "least"].tolist() == [False, False, True]
    assert groups["from the question's words", "most"].tolist() == [False, True, False]


def test_answers_to_squad_differ_where_their_spans_do():
    task, rows = find_task("squad"), squad_rows()
    own = pd.DataFrame({"id": range(3), "answered": True, "start": [25, 38, 70], "end": [29, 48, 85], "f1": 1.0})
    longer, later = own.assign(end=[29, 48, 84]), own.assign(start=[25, 41, 74], f1=[1.0, 0.4, 0.8])
    table = details(task, rows, {"softmax": {0: own, 1: own}, "lsh": {0: longer, 1: later}})
    assert table.loc[0, ["parted", "null", "above"]].tolist() == pytest.approx([1.5 / 3, 0, 1.5 / 3])
    assert table.loc[0, ["worth", "gained"]].tolist() == pytest.approx([1, -0.8 / 6])
    one = table.set_index(["feature", "group"]).loc[("a number in the answer", "yes")]
    assert one[["worth", "gained"]].tolist() == pytest.approx([1, -0.3])


def test_what_an_arm_changes_is_counted_above_what_a_seed_changes():
    every_sixth = range(0, 120, 6)  # where the numbers differ
    softmax = {0: answers(), 1: answers([1, 2])}
    table = details(TASK, ROWS, {"softmax": softmax, "lsh": {0: answers(every_sixth), 1: answers(every_sixth)}})
    rows = table.set_index(["feature", "group"])
    assert rows.loc[("all", ""), "null"] == pytest.approx(2 / 120)
    assert rows.loc[("numbers differ", "yes"), ["parted", "null", "above"]].tolist() == pytest.approx([1, 0, 1])
    assert rows.loc[("numbers differ", "no"), "above"] == pytest.approx(-1 / 100)  # against one of two softmax models
    assert (rows["low"] <= rows["above"]).all()
    assert rows.loc[("all", ""), "examples"] == 120
    assert rows.loc[("numbers differ", "yes"), ["worth", "gained"]].tolist() == pytest.approx([1, -1])
    assert rows.loc[("numbers differ", "no"), "gained"] == pytest.approx(1 / 100)  # softmax's second seed errs twice


def test_numbers_part_by_their_distance():
    task, rows = find_task("kor-sts"), ROWS.rename_columns({"question1": "sentence1", "question2": "sentence2"})
    values = [pd.DataFrame({"id": range(120), "label": 0.0, "logit_0": level}) for level in (1.0, 1.5, 3.0)]
    table = details(task, rows, {"softmax": {0: values[0], 1: values[1]}, "lsh": {1: values[2]}})
    assert table.loc[0, ["parted", "null", "above"]].tolist() == pytest.approx([2, 0.5, 1.5])
    assert table.loc[0, ["worth", "gained"]].tolist() == pytest.approx([-1.25, -1.5])  # nearer to zero with softmax


@pytest.mark.parametrize(
    ("softmax", "lsh", "said"),
    [
        ([0], {0: answers()}, r"softmax has seeds \[0\]: two are needed"),
        ([0, 1], {2: answers()[:-1]}, "lsh, seed 2: its 119 answers are not those to the 120 examples"),
        ([0, 1], {3: answers()}, r"lsh has seeds \[3\], softmax \[0, 1\]: none in common"),
    ],
)
def test_what_cannot_be_asked_is_refused(softmax, lsh, said):
    with pytest.raises(ValueError, match=said):
        details(TASK, ROWS, {"softmax": dict.fromkeys(softmax, answers()), "lsh": lsh})
