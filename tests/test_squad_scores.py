"""Scores of SQuAD: the official definition on hand-made hard cases; no network."""

import pytest
from datasets import Dataset

from albert_lsh.squad import majority_score, normalize, score


def references(**golds):
    """Examples that only a scorer needs: by id, the reference answers."""
    rows = [
        {"id": key, "answers": {"text": list(texts), "answer_start": [0] * len(texts)}} for key, texts in golds.items()
    ]
    return Dataset.from_list(rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower, (Paris)!", "eiffeltower paris"),
        ("an apple a day", "apple day"),
        ("theatre Ana", "theatre ana"),
        ("A.", ""),  # punctuation goes first, then the article that is left
        ("the\u00a0end", "end"),  # a no-break space is white space
        ("“quoted” – 5", "“quoted” – 5"),  # only ASCII punctuation goes
        ("a–b", "–b"),  # a dash that stays is a word boundary
        ("áa", "áa"),  # á is a letter, so there is no boundary before a
        ("ÉCOLE", "école"),
    ],
)
def test_normalize(text, expected):
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("golds", "answer", "exact", "f1"),
    [
        (["Saint Bernadette"], "the Saint Bernadette.", 100, 100),
        (["a b c d"], "b c e", 0, 200 * 2 / 6),  # "a" is an article: b c d against b c e
        (["new new york"], "new york york", 0, 200 * 2 / 6),  # bags: new and york count once each
        (["new new york"], "new new", 0, 200 * 2 / 5),  # and new counts twice
        (["Rome", "in Rome", "Rome in Italy"], "in Rome", 100, 100),
        (["x y", "x y z w"], "x y z", 0, 100 * 6 / 7),  # 4/5 against the first, 6/7 against the second
        (["caf\u00e9"], "cafe\u0301", 0, 0),  # composed and decomposed differ in the official scripts
        (["“Yes”"], "Yes", 0, 0),
        (["Rome"], "", 0, 0),
        (["The"], "", 100, 0),  # 1.1 keeps the reference and gives texts without words an F1 of 0
        (["The"], "an", 100, 0),
        (["The", "Who"], "the who", 100, 100),
    ],
)
def test_score_of_version_1(golds, answer, exact, f1):
    result = score(references(q=golds), {"q": answer})
    assert result == {"exact": exact, "f1": pytest.approx(f1)}


@pytest.mark.parametrize(
    ("golds", "answer", "exact", "f1"),
    [
        ([], "", 100, 100),
        ([], "the", 100, 100),  # normalises to nothing
        ([], "Rome", 0, 0),
        (["Rome"], "", 0, 0),
        (["The"], "", 100, 100),  # no reference is left, so no answer is right
        (["The", "Rome"], "", 0, 0),  # the first reference is dropped
        (["The", "Rome"], "a Rome", 100, 100),
    ],
)
def test_score_of_version_2(golds, answer, exact, f1):
    result = score(references(q=golds, other=[]), {"q": answer, "other": "wrong"})
    assert (result["exact"], result["f1"]) == (exact / 2, f1 / 2)


def test_score_by_kind_of_question_and_best_threshold():
    examples = references(a=["x"], b=["x y"], c=["x"], d=[], e=[])
    answers = {"a": "x", "b": "x", "c": "z", "d": "x", "e": "x"}
    null = {"a": -3.0, "d": -2.0, "b": -1.0, "c": 0.0, "e": 1.0}
    result = score(examples, answers, null)
    assert result["exact"] == pytest.approx(20)
    assert result["f1"] == pytest.approx((100 + 200 / 3) / 5)
    assert result["has_answer_exact"] == pytest.approx(100 / 3)
    assert result["has_answer_f1"] == pytest.approx((100 + 200 / 3) / 3)
    assert result["no_answer_exact"] == result["no_answer_f1"] == 0
    # From no answer at all, 2 right: a makes 3, d 2, b 2 (F1 2.67), c no change, e 1.
    assert result["best_exact"] == result["best_f1"] == pytest.approx(60)
    assert result["best_exact_threshold"] == result["best_f1_threshold"] == -3
    # With d most certain of no answer, F1 gains from b what exact match does not: 2, 3, 3.67.
    result = score(examples, answers, null | {"d": 2.0})
    assert (result["best_exact"], result["best_exact_threshold"]) == (pytest.approx(60), -3)
    assert (result["best_f1"], result["best_f1_threshold"]) == (pytest.approx(100 * (3 + 2 / 3) / 5), -1)


def test_best_threshold_is_zero_when_no_answer_to_anything_is_best():
    result = score(references(a=["x"], b=[]), {"a": "z", "b": "z"}, {"a": -5.0, "b": 5.0})
    assert (result["best_exact"], result["best_exact_threshold"]) == (50, 0)


@pytest.mark.parametrize(
    ("answers", "null", "message"),
    [
        ({"a": "x"}, None, r"1 of 2 .* missing from the answers.*'b'"),
        ({"a": "x", "b": "", "zz": ""}, None, r"1 of 2 .* in the answers but not in the examples.*'zz'"),
        ({"a": "x", "b": ""}, {"b": 0.0}, r"1 of 2 .* missing from the no_answer_scores.*'a'"),
    ],
)
def test_score_demands_full_coverage(answers, null, message):
    with pytest.raises(ValueError, match=message):
        score(references(a=["x"], b=[]), answers, null)


def test_score_refuses_no_examples_and_repeated_ids():
    with pytest.raises(ValueError, match="no examples"):
        score(references(a=["x"]).select([]), {})
    row = {"id": "a", "answers": {"text": ["x"], "answer_start": [0]}}
    with pytest.raises(ValueError, match=r"1 of 1 .* twice.*'a'"):
        score(Dataset.from_list([row, row]), {"a": "x"})


def test_majority_score():
    assert majority_score(references(a=["x"], b=["y"])) == {"exact": 0, "f1": 0}
    result = majority_score(references(a=["x"], b=[], c=[], d=[]))
    assert (result["exact"], result["has_answer_f1"], result["no_answer_f1"]) == (75, 0, 100)
