"""Where answers part, on made-up answers."""

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.run import ParameterError
from albert_lsh.tasks import find_task
from albert_study.evidence.readable_measurements import detail_tables
from albert_study.evidence.report import where_answers_change
from albert_study.experiments.words import Details, common_pieces, details, distance, groups_of

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


def test_people_see_what_an_arm_does_above_two_softmax_models(tmp_path):
    table = details(TASK, ROWS, {"softmax": {0: answers(), 1: answers([1])}, "lsh": {0: answers([0, 2])}})
    folder = tmp_path / "results" / "runs" / "details"
    folder.mkdir(parents=True)
    table.assign(study="albert", commit="0123456789abc").to_csv(folder / "albert-kor-qpair.csv", index=False)
    (name, shown), (other, worth) = detail_tables(tmp_path)
    assert (name, other) == ("details-albert-kor-qpair", "details-albert-kor-qpair-worth")
    assert worth.rows.loc["all", ["examples", "softmax"]].tolist() == ["120", "100%"]
    assert worth.rows.loc["all", "lsh"].startswith("-2% (-")
    assert worth.note.startswith("Softmax's accuracy")
    assert shown.rows.loc["all", ["examples", "two softmax models"]].tolist() == ["120", "1%"]
    assert shown.rows.loc["all", "lsh"].startswith("2% (-")
    assert "numbers differ: yes" in shown.rows.index
    assert shown.note.startswith("Answers that differ")
    table.assign(study="albert", commit="0123456789abc", task="kor-sts").to_csv(
        folder / "albert-kor-sts.csv", index=False
    )
    shown = dict(detail_tables(tmp_path))["details-albert-kor-sts"]
    assert (shown.rows.loc["all", "two softmax models"], shown.note[:7]) == ("0.01", "How far")
    assert "nearer under each arm" in dict(detail_tables(tmp_path))["details-albert-kor-sts-worth"].note
    assert list(detail_tables(tmp_path / "elsewhere")) == []


def test_squads_f1_is_shown_from_0_to_100(tmp_path):
    own = pd.DataFrame({"id": range(3), "answered": True, "start": 0, "end": 4, "f1": [1.0, 0.5, 1.0]})
    table = details(find_task("squad"), squad_rows(), {"softmax": {0: own, 1: own}, "lsh": {0: own.assign(f1=0.5)}})
    folder = tmp_path / "results" / "runs" / "details"
    folder.mkdir(parents=True)
    table.assign(study="minilm", commit="0123456789abc").to_csv(folder / "minilm-squad.csv", index=False)
    shown = dict(detail_tables(tmp_path))["details-minilm-squad-worth"].rows.loc["all"]
    assert shown["softmax"] == "83.3"
    assert shown["lsh"].startswith("-33.3 (")


def test_the_report_says_where_an_arm_changes_more():
    alike, other = range(2, 120, 6), range(5, 120, 6)  # where the texts have most in common, and least
    softmax = {0: answers(), 1: answers(other)}
    arms = {"softmax": softmax, "same": softmax, "lsh": {0: answers(alike), 1: answers(alike)}}
    found = where_answers_change(details(TASK, ROWS, arms))
    assert found["as much as two"] == ["same"]
    (most,) = (one for one in found["more"] if one["feature"] == "in common")
    assert most == {"feature": "in common", "where": "most", "arms": ["lsh"]}
    numbers = {"softmax": {0: answers(), 1: answers()}, "lsh": {0: answers(range(0, 120, 6))}}
    (yes,) = (one for one in where_answers_change(details(TASK, ROWS, numbers))["more"] if "numbers" in one["feature"])
    assert yes == {"feature": "numbers differ", "where": "yes", "arms": ["lsh"]}


def in_groups(yes, no):
    """A feature's two groups, each with what answers gain there and the half-width of its interval."""
    groups = {"": (0.0, 0.0), "yes": yes, "no": no}
    rows = pd.DataFrame({"arm": "lsh", "feature": ["all", "negated", "negated"], "group": list(groups)})
    rows[["above", "low", "high"]] = 0.0
    gained, half = zip(*groups.values(), strict=True)
    return rows.assign(gained=gained, gained_low=np.subtract(gained, half), gained_high=np.add(gained, half))


@pytest.mark.parametrize(
    ("yes", "no", "where"),
    [
        ((-0.040, 0.02), (-0.013, 0.015), ["yes"]),  # told from zero, 0.027 by 0.025, though the intervals meet
        ((-0.040, 0.02), (-0.013, 0.020), []),  # 0.027 by 0.028
        ((0.013, 0.015), (-0.040, 0.020), ["no"]),
    ],
)
def test_groups_are_told_apart_by_the_interval_of_their_difference(yes, no, where):
    found = where_answers_change(in_groups(yes, no))["loses more"]
    assert [(one["feature"], one["where"], one["arms"]) for one in found] == [("negated", w, ["lsh"]) for w in where]


def test_an_arm_that_loses_in_every_group_is_named():
    lost = where_answers_change(in_groups((-0.5, 0.1), (-0.4, 0.1)).assign(gained_high=[-0.1, -0.4, -0.3]))
    assert lost["loses everywhere"] == ["lsh"]
    assert where_answers_change(in_groups((-0.5, 0.1), (-0.4, 0.5)))["loses everywhere"] == []


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match=r"softmax has seeds \[0\]: two are needed"):
        details(TASK, ROWS, {"softmax": {0: answers()}, "lsh": {0: answers()}})
    with pytest.raises(ValueError, match="lsh, seed 2: its 119 answers are not those to the 120 examples"):
        details(TASK, ROWS, {"softmax": {0: answers(), 1: answers()}, "lsh": {2: answers()[:-1]}})
    with pytest.raises(ValueError, match=r"lsh has seeds \[3\], softmax \[0, 1\]: none in common"):
        details(TASK, ROWS, {"softmax": {0: answers(), 1: answers()}, "lsh": {3: answers()}})
    with pytest.raises(ParameterError, match="task='sst2' must be one of pairs of texts"):
        Details.parse({"study": "albert", "task": "sst2", "arms": ["lsh"]})
