"""Arms against each other, from the predictions of their runs."""

import numpy as np
import pandas as pd
import pytest

from albert_lsh.record import read_predictions, write_predictions
from albert_study.evidence.differences import differences
from albert_study.evidence.readable_studies import difference_tables, pivot
from albert_study.evidence.study_figures import plot_differences
from albert_study.evidence.tables import with_bag_of_words


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


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_nothing_is_clear_from_fewer_than_three_seeds(tmp_path, seeds):
    same = differences(runs_of(tmp_path / "same", {"softmax": 0.9, "lsh": 0.99}, seeds=range(seeds)))
    assert same["not_inferior"].tolist() == [seeds == 3]
    table = differences(runs_of(tmp_path, {"softmax": 0.9, "lsh": 0.5}, seeds=range(seeds)))
    assert table[["seeds", "examples", "clear"]].values.tolist() == [[seeds, 400, seeds == 3]]


def test_arms_trained_otherwise_stand_against_those_trained_alike(tmp_path):
    names = ["softmax-8000", "softmax-20000", "new-8000", "reformer-8000", "lsh-20000", "lsh-10-epochs"]
    table = differences(runs_of(tmp_path, dict.fromkeys(names, 0.8)))
    assert table[["from", "to", "change"]].values.tolist() == [
        ["softmax-8000", "new-8000", "new projections"],
        ["softmax-8000", "reformer-8000", "the 2020 attention"],
        ["new-8000", "reformer-8000", "tying, with new projections"],
        ["softmax-20000", "lsh-20000", "lsh"],
    ]


def test_an_interval_goes_no_further_than_scores(tmp_path):
    """Two seeds that differ widely: Student's factor for one degree of freedom is 12.7."""
    runs = runs_of(tmp_path, {"softmax": 0.9, "lsh": 0.9}, seeds=[0])
    far = runs_of(tmp_path, {"softmax": 0.9, "lsh": 0.3}, seeds=[1])
    (row,) = differences(pd.concat([runs, far])).to_dict("records")
    assert (row["low"], row["high"]) == pytest.approx((-row["score_from"], 1 - row["score_from"]))
    for path in tmp_path.rglob("predictions.parquet"):
        table = read_predictions(path)
        label = table["id"].astype(int) % 2
        write_predictions(path, table.assign(label=label, logit_0=abs(label - table["answer"]).astype(float)))
    (row,) = differences(pd.concat([runs, far]).assign(headline="pearson", score=0.5)).to_dict("records")
    assert (row["low"], row["high"]) == pytest.approx((-1.5, 0.5))


def test_runs_without_predictions_are_left_out(tmp_path):
    runs = runs_of(tmp_path, {"softmax": 0.9, "lsh": 0.5})
    (tmp_path / "lsh" / "seed-1" / "predictions.parquet").unlink()
    assert differences(runs)["seeds"].tolist() == [2]
    for path in tmp_path.rglob("predictions.parquet"):
        path.unlink()
    assert differences(runs).empty


def test_people_see_the_interval_and_bold_only_what_holm_leaves(tmp_path):
    found = differences(runs_of(tmp_path, {"softmax": 0.9, "new": 0.7, "lsh": 0.9}))
    ((name, table),) = difference_tables("albert", lambda name: found)
    assert name == "albert-differences-sst2"
    rows = table.rows
    assert rows.loc["softmax → new", "difference"].startswith("**-0.")
    assert not rows.loc["softmax → lsh", "difference"].startswith("**")
    low, high = map(float, rows.loc["softmax → lsh", "95 % interval"].split(" to "))
    assert low <= 0 <= high
    assert rows["seeds"].tolist() == ["3", "3"]
    assert table.note == "accuracy, 400 examples. Study albert: m."
    ((_, table),) = difference_tables("albert", lambda name: found.assign(examples=[400, 80]))  # of five folds one
    assert table.note == "accuracy, 80 to 400 examples. Study albert: m."


def test_cross_validated_differences_are_over_folds(tmp_path):
    rows = differences(runs_of(tmp_path, {"softmax": 0.9, "new": 0.7}, seeds=(0,)).assign(folds=5))
    ((_, table),) = difference_tables("minilm", lambda name: rows)
    assert table.rows["folds"].tolist() == ["1"]
    assert table.note.endswith("With fewer than 3 folds nothing is tested.")
    (axis,) = plot_differences(rows).axes
    assert axis.get_xlabel().endswith("; folds: 1")


def test_a_forest_plot_has_a_point_for_each_arm_and_task(tmp_path):
    first = differences(runs_of(tmp_path / "1", {"softmax": 0.9, "new": 0.7, "lsh": 0.9}))
    other = differences(runs_of(tmp_path / "2", {"softmax": 0.8, "lsh": 0.9})).assign(task="mrpc")
    figure = plot_differences(pd.concat([first, other]))
    left, right = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["new projections", "lsh"]
    points = [[line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"] for axis in (left, right)]
    assert points[0] == pytest.approx(first[first["from"] == "softmax"]["difference"].tolist())
    assert points[1] == pytest.approx(other["difference"].tolist())


def test_a_forest_plot_has_the_changes_first_and_what_was_added_last(tmp_path):
    arms = {"softmax": 0.9, "mine": 0.8, "truncated": 0.8, "lsh": 0.9, "shared-qk": 0.6, "new": 0.7}
    (axis,) = plot_differences(differences(runs_of(tmp_path, arms))).axes
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == ["new projections", "tied keys", "lsh", "softmax, cut text", "mine"]


def test_a_forest_plot_names_the_score_of_softmax_over_the_most_seeds(tmp_path):
    rows = differences(runs_of(tmp_path, {"softmax": 0.9, "new": 0.7, "lsh": 0.9}))
    early = rows[rows["to"] == "new"].assign(seeds=1, score_from=0.5)
    (axis,) = plot_differences(pd.concat([early, rows[rows["to"] == "lsh"]])).axes
    score = rows["score_from"].iloc[0]
    assert f"\n{score:.3f};" in axis.get_xlabel()


def test_a_forest_plot_goes_no_further_than_scores(tmp_path):
    rows = differences(runs_of(tmp_path, {"softmax": 0.9, "new": 0.7, "lsh": 0.9}))
    rows = rows[rows["from"] == "softmax"].assign(score_from=0.9, low=-4.0, high=3.0)
    (axis,) = plot_differences(rows).axes
    assert axis.get_xlim() == pytest.approx((-1.35, 0.1))


def test_the_bag_of_words_stands_below_scores_of_the_same_examples(tmp_path):
    folder = tmp_path / "results" / "runs" / "bag-of-words"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("task,headline\nsst2,0.81\n")
    scores = pd.DataFrame({"task": ["sst2", "mrpc"], "arm": "softmax", "model": "m", "headline": "accuracy"})
    scores = scores.assign(accuracy=[0.9, 0.8], **{"sd.accuracy": 0.01}, seeds=3)
    scores = scores.assign(**{f"{kind}.accuracy": 0.5 for kind in ("majority", "chance")})
    table = pivot(with_bag_of_words(scores, tmp_path))
    assert table.loc["bag of words"].tolist() == ["0.810", ""]
    assert list(table.index) == ["softmax", "bag of words", "majority class", "chance"]
    held_out = with_bag_of_words(scores.assign(**{"examples.held-out": 100}), tmp_path)
    assert "bag_of_words" not in held_out
    assert "bag_of_words" not in with_bag_of_words(scores, tmp_path / "elsewhere")
