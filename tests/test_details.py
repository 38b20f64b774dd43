"""Where answers part, on made-up answers."""

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.tasks.table import find_task
from albert_lsh.training.parameters import ParameterError
from albert_study.evidence.details import Details, common_pieces, details, groups_of
from albert_study.evidence.readable_measurements import detail_tables

TASK = find_task("kor-qpair")
ROWS = Dataset.from_dict(
    {
        "question1": ["3 apples", "it is red", "the same words", "오늘 비가 안 와", "never mind", "a b"] * 20,
        "question2": ["4 apples", "it is not red", "the same words", "오늘 비가 와", "never ever", "c d"] * 20,
        "label": [0] * 120,
    }
)


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


def test_numbers_part_by_their_distance():
    task, rows = find_task("kor-sts"), ROWS.rename_columns({"question1": "sentence1", "question2": "sentence2"})
    values = [pd.DataFrame({"id": range(120), "label": 0.0, "logit_0": level}) for level in (1.0, 1.5, 3.0)]
    table = details(task, rows, {"softmax": {0: values[0], 1: values[1]}, "lsh": {2: values[2]}})
    assert table.loc[0, ["parted", "null", "above"]].tolist() == pytest.approx([1.75, 0.5, 1.25])


def test_people_see_what_an_arm_does_above_two_softmax_models(tmp_path):
    table = details(TASK, ROWS, {"softmax": {0: answers(), 1: answers([1])}, "lsh": {0: answers([0, 2])}})
    folder = tmp_path / "results" / "runs" / "details"
    folder.mkdir(parents=True)
    table.assign(study="albert", commit="0123456789abc").to_csv(folder / "albert-kor-qpair.csv", index=False)
    ((name, shown),) = detail_tables(tmp_path)
    assert name == "details-albert-kor-qpair"
    assert shown.rows.loc["all", ["examples", "two softmax models"]].tolist() == ["120", "1%"]
    assert shown.rows.loc["all", "lsh"].startswith("2% (-")
    assert "numbers differ: yes" in shown.rows.index
    assert list(detail_tables(tmp_path / "elsewhere")) == []


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match=r"softmax has seeds \[0\]: two are needed"):
        details(TASK, ROWS, {"softmax": {0: answers()}, "lsh": {0: answers()}})
    with pytest.raises(ValueError, match="lsh, seed 2: its 119 answers are not those to the 120 examples"):
        details(TASK, ROWS, {"softmax": {0: answers(), 1: answers()}, "lsh": {2: answers()[:-1]}})
    with pytest.raises(ParameterError, match="task='sst2' must be one of pairs of texts"):
        Details.check({"study": "albert", "task": "sst2", "arms": ["lsh"]})
