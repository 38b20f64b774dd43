"""Intervals over seeds and examples."""

import numpy as np
import pandas as pd
import pytest

from albert_lsh import metrics
from albert_study.evidence.bootstrap import difference, holm, not_inferior, score_of
from albert_study.evidence.calibration import calibration


def answers(right, labels=None):
    """Predictions of two classes that are right where `right` says so."""
    labels = np.zeros(len(right), int) if labels is None else labels
    return pd.DataFrame({"id": range(len(right)), "label": labels, "answer": np.where(right, labels, 1 - labels)})


def test_weighted_scores_are_the_scores_of_the_repeated_examples():
    generator = np.random.default_rng(0)
    labels, chosen = generator.integers(0, 2, 50), generator.integers(0, 50, 50)
    weights = np.bincount(chosen, minlength=50).astype(float)[None]
    classes = pd.DataFrame({"label": labels, "answer": generator.integers(0, 2, 50)})
    for name in ("accuracy", "f1", "matthews"):
        expected = metrics.METRICS[name](classes["label"][chosen], classes["answer"][chosen])
        assert score_of(name, classes)(weights).item() == pytest.approx(expected)
    values = pd.DataFrame({"label": generator.normal(size=50), "logit_0": generator.normal(5, 2, size=50)})
    expected = metrics.METRICS["pearson"](values["label"].to_numpy()[chosen], values["logit_0"].to_numpy()[chosen])
    assert score_of("pearson", values)(weights).item() == pytest.approx(expected)
    constant = values.assign(logit_0=1.0)
    assert score_of("pearson", constant)(weights).item() == 0  # as `metrics.scores` has it
    spans = pd.DataFrame({"f1": generator.random(50)})
    assert score_of("f1", spans)(weights).item() == pytest.approx(100 * spans["f1"].to_numpy()[chosen].mean())
    with pytest.raises(ValueError, match="metric='bleu' is not one of: accuracy, f1, exact, matthews, pearson"):
        score_of("bleu", classes)


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_covers_examples_and_seeds(seeds):
    """Many experiments in which the second arm is better by 0.05 on average; seeds differ, and examples do."""
    generator, inside, experiments = np.random.default_rng(1), 0, 100
    for _ in range(experiments):
        difficulty = generator.normal(size=200)
        arms = []
        for gain in (0.0, 0.05):
            own = {}
            for seed in range(seeds):
                level = 0.7 + gain + (generator.normal(0, 0.03) if seeds > 1 else 0)
                quantile = np.quantile(difficulty_of_all, level)
                own[seed] = answers(difficulty + generator.normal(0, 0.1, 200) < quantile)
            arms.append(own)
        found = difference(*arms, "accuracy", draws=100)
        inside += found.low <= 0.05 <= found.high
    assert inside / experiments > 0.9  # of the 95 % that are claimed


def test_the_interval_covers_the_parts_of_a_cross_validation():
    """Five parts of 200 examples, each answered by a model of its own; the second arm is better by 0.05. A fifth of
    what chance does to the models is common to all of them, because they share training examples."""
    generator, inside, experiments = np.random.default_rng(3), 0, 300
    for _ in range(experiments):
        arms: list[dict] = [{}, {}]
        common = generator.normal(0, 0.06, 2)
        for part in range(5):
            difficulty = generator.normal(size=200)
            for arm, gain, shared in zip(arms, (0.0, 0.05), common, strict=True):
                chance = 0.2**0.5 * shared + 0.8**0.5 * generator.normal(0, 0.06)
                quantile = np.quantile(difficulty_of_all, 0.7 + gain + chance)
                table = answers(difficulty + generator.normal(0, 0.1, 200) < quantile)
                arm[part] = table.assign(id=table["id"] + 200 * part)
        found = difference(arms[0], arms[1], "accuracy", folds=5)
        inside += found.low <= 0.05 <= found.high
    assert (found.seeds, found.examples) == (5, 1000)
    assert 0.91 < inside / experiments < 0.99


difficulty_of_all = np.random.default_rng(2).normal(size=100_000) * np.sqrt(1.01)


def test_equal_arms_do_not_differ_and_a_large_difference_is_seen():
    generator = np.random.default_rng(0)
    same = {seed: answers(generator.random(300) < 0.8) for seed in range(3)}
    found = difference(same, same, "accuracy", draws=200)
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert not_inferior(found, 0.8)
    worse = {seed: answers(generator.random(300) < 0.6) for seed in range(3)}
    found = difference(same, worse, "accuracy", draws=400)
    assert found.high < 0
    assert found.p < 0.03
    assert (found.seeds, found.examples) == (3, 300)
    assert not not_inferior(found, 0.8)


def test_intervals_and_small_p_values_come_about_as_often_as_they_say():
    """With Satterthwaite's degrees of freedom alone a p-value below .0025 came in 2.2 % of three seeds."""
    found = calibration()
    assert found["found"].max() < 1.25 * found["small"].iloc[0]
    assert found.groupby("seeds")["covered"].min().to_dict() == pytest.approx({2: 0.87, 3: 0.92, 5: 0.94}, abs=0.01)


def test_arms_that_cannot_be_paired_are_refused():
    one, other = answers(np.ones(4, bool)), answers(np.ones(4, bool)).assign(id=[0, 1, 2, 4])
    with pytest.raises(ValueError, match=r"no seed in both arms: \[0\] and \[1\]"):
        difference({0: one}, {1: one}, "accuracy")
    with pytest.raises(ValueError, match="answered other examples"):
        difference({0: one}, {0: other}, "accuracy")


def test_holm_corrects_within_a_family():
    found = holm(pd.Series([0.01, 0.04, 0.03], index=["a", "b", "c"]))
    assert found.to_dict() == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
