"""How varied answers are, on made-up predictions."""

import pandas as pd
import pytest

from albert_lsh.tasks import find_task
from albert_study.evidence.readable_studies import pivot
from albert_study.evidence.variety import is_constant, variety, variety_table, with_variety


def test_variety_is_0_for_one_answer_and_1_for_answers_as_varied_as_the_gold_ones():
    numbers = pd.DataFrame({"label": [0.0, 5.0, 2.0, 1.0]})
    assert variety(find_task("stsb"), numbers.assign(logit_0=numbers["label"] + 1)) == pytest.approx(1)
    assert variety(find_task("stsb"), numbers.assign(logit_0=numbers["label"] / 4)) == pytest.approx(0.25)
    assert variety(find_task("stsb"), numbers.assign(logit_0=2.75)) == 0
    classes = pd.DataFrame({"label": [0, 1, 1, 1]})
    assert variety(find_task("mrpc"), classes.assign(answer=0)) == 0
    assert variety(find_task("mrpc"), classes.assign(answer=[1, 0, 0, 0])) == 1
    assert variety(find_task("mrpc"), classes.assign(answer=[0, 1, 0, 1])) == 2


def test_a_model_that_says_the_same_to_everything_has_no_correlation():
    numbers = pd.DataFrame({"label": [0.0, 5.0, 2.0], "logit_0": [2.5, 2.5, 2.51]})  # rounding makes two of one
    assert is_constant(find_task("stsb"), numbers)
    assert not is_constant(find_task("stsb"), numbers.assign(logit_0=[2.5, 2.52, 2.51]))
    assert is_constant(find_task("mrpc"), pd.DataFrame({"answer": [1, 1, 1]}))
    assert not is_constant(find_task("mrpc"), pd.DataFrame({"answer": [1, 0, 1]}))
    rows = {"task": "stsb", "model": "m", "arm": ["new", "reformer", "softmax"], "headline": "pearson", "seeds": 3}
    rows |= {"pearson": [0.001, 0.1, 0.8], "sd.pearson": 0.01, "majority.pearson": 0.0, "chance.pearson": 0.0}
    shown = pivot(pd.DataFrame(rows | {"constant": [3, 1, 0]}))["stsb (pearson)"]
    assert shown["new"] == "constant (3)"
    assert shown["reformer"] == "0.100 ± 0.010 (3, 1 constant)"
    assert shown["softmax"] == "0.800 ± 0.010 (3)"


def test_answers_to_squad_vary_where_one_stands_elsewhere_than_the_one_before():
    places = pd.DataFrame({"start": [4, 4, 4, 9], "end": [9, 9, 12, 12]})
    assert variety(find_task("squad"), places) == 0.75  # the first counts as another


@pytest.mark.parametrize("drawn", ["eval_examples", "held_out_examples"])
def test_of_a_part_of_squad_it_is_not_said(drawn, tmp_path):
    """There a question and the one before it are of different paragraphs."""
    pd.DataFrame({"id": ["a", "b"], "start": [4, 4], "end": [9, 9]}).to_parquet(tmp_path / "predictions.parquet")
    run = {"task": "squad", "model": "m", "arm": "new", "seed": 0, "folder": tmp_path}
    runs = pd.DataFrame([run | {"eval_examples": None, "held_out_examples": None}])
    scores = pd.DataFrame({"task": "squad", "model": "m", "arm": ["new"], "commit": "0123456789"})
    assert with_variety(scores, runs)["variety"].tolist() == [0.5]
    assert "variety" not in with_variety(scores, runs.assign(**{drawn: 100}))


def test_the_table_has_a_mean_over_seeds_of_the_runs_that_kept_their_predictions(tmp_path):
    rows = []
    for arm, seed, answers in (("softmax", 0, [0, 1, 1, 1]), ("softmax", 1, [0, 0, 1, 1]), ("new", 0, None)):
        folder = tmp_path / arm / str(seed)
        folder.mkdir(parents=True)
        rows.append({"task": "mrpc", "model": "m", "arm": arm, "seed": seed, "folder": folder})
        if answers:
            made = pd.DataFrame({"id": range(4), "label": [0, 1, 1, 1], "answer": answers})
            made.to_parquet(folder / "predictions.parquet")
    scores = pd.DataFrame({"task": "mrpc", "model": "m", "arm": ["softmax", "new"], "commit": "0123456789"})
    found = with_variety(scores, pd.DataFrame(rows))
    assert found["variety"].tolist() == [1.5, pytest.approx(float("nan"), nan_ok=True)]
    ((name, table),) = variety_table("albert", found)
    assert name == "albert-variety"
    assert table.rows["mrpc"].tolist() == ["150.0%", ""]
    assert list(variety_table("albert", scores)) == []
