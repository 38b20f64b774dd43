"""Arms against each other, from the predictions of their runs."""

import numpy as np
import pandas as pd
import pytest

from albert_lsh.tasks.predictions import write_predictions
from albert_study.evidence.differences import differences


def runs_of(tmp_path, arms, seeds=(0, 1, 2), examples=400):
    """Runs of a task of two classes; arms: the share of right answers by name."""
    generator, rows = np.random.default_rng(0), []
    difficulty = generator.random(examples)
    for arm, share in arms.items():
        for seed in seeds:
            right = np.clip(difficulty + generator.normal(0, 0.05, examples), 0, 1) < share
            folder = tmp_path / arm / f"seed-{seed}"
            table = pd.DataFrame({"split": "validation", "id": range(examples), "label": 0, "answer": 1 - right})
            write_predictions(folder / "predictions.parquet", table)
            row = {"model": "m", "task": "sst2", "arm": arm, "seed": seed, "folder": folder, "headline": "accuracy"}
            rows.append(row | {"score": right.mean(), "full_cost": 0.5})
    return pd.DataFrame(rows)


def test_every_arm_stands_against_softmax_and_its_neighbours(tmp_path):
    runs = runs_of(tmp_path, {"softmax": 0.9, "new": 0.7, "reformer": 0.6, "lsh": 0.9, "random": 0.9})
    table = differences(runs)
    assert list(zip(table["from"], table["to"], strict=True)) == [
        ("softmax", "new"), ("softmax", "reformer"), ("softmax", "lsh"), ("softmax", "random"),
        ("new", "reformer"), ("random", "lsh"),
    ]  # fmt: skip
    rows = table.set_index(["from", "to"])
    assert rows.loc[("softmax", "new"), "difference"] == pytest.approx(
        runs.loc[runs["arm"] == "new", "score"].mean() - runs.loc[runs["arm"] == "softmax", "score"].mean()
    )
    clear = {pair for pair, yes in rows["clear"].items() if yes}
    assert clear == {("softmax", "new"), ("softmax", "reformer"), ("new", "reformer")}
    assert (table["low"] <= table["difference"]).all()
    assert (table["difference"] <= table["high"]).all()
    assert (table["p_holm"] >= table["p"]).all()
    assert not rows.loc[("softmax", "new"), "not_inferior"]


def test_an_interval_of_one_seed_says_how_many_it_has(tmp_path):
    table = differences(runs_of(tmp_path, {"softmax": 0.9, "lsh": 0.5}, seeds=(0,)))
    assert table[["seeds", "examples"]].values.tolist() == [[1, 400]]


def test_runs_without_predictions_are_left_out(tmp_path):
    runs = runs_of(tmp_path, {"softmax": 0.9, "lsh": 0.5})
    (tmp_path / "lsh" / "seed-1" / "predictions.parquet").unlink()
    assert differences(runs)["seeds"].tolist() == [2]
    for path in tmp_path.rglob("predictions.parquet"):
        path.unlink()
    assert differences(runs).empty
