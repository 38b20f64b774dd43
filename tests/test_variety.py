"""How varied answers are, on made-up predictions."""

import pandas as pd
import pytest

from albert_lsh.tasks.table import find_task
from albert_study.evidence.variety import variety, variety_table, with_variety


def test_variety_is_0_for_one_answer_and_1_for_answers_as_varied_as_the_gold_ones():
    numbers = pd.DataFrame({"label": [0.0, 5.0, 2.0, 1.0]})
    assert variety(find_task("stsb"), numbers.assign(logit_0=numbers["label"] + 1)) == pytest.approx(1)
    assert variety(find_task("stsb"), numbers.assign(logit_0=numbers["label"] / 4)) == pytest.approx(0.25)
    assert variety(find_task("stsb"), numbers.assign(logit_0=2.75)) == 0
    classes = pd.DataFrame({"label": [0, 1, 1, 1]})
    assert variety(find_task("mrpc"), classes.assign(answer=0)) == 0
    assert variety(find_task("mrpc"), classes.assign(answer=[1, 0, 0, 0])) == 1
    assert variety(find_task("mrpc"), classes.assign(answer=[0, 1, 0, 1])) == 2


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
