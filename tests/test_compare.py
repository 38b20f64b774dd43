"""Scores and differences with intervals over seeds and examples, on made-up answers.

That tables of real answers come out as before is held by the committed ones (test_records.py)."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import matthews_corrcoef
from statsmodels.stats.weightstats import DescrStatsW

from albert_lsh.files import repository_root
from albert_study.compare import comparisons, differences, headlines, scores, write_tables
from albert_study.intervals import (
    Error,
    difference,
    equivalence,
    errors_of,
    interval,
    kept,
    p_of_margin,
    p_of_none,
    paired_ratio,
    pooled,
    weighted_mean,
)
from albert_study.records import load
from records import answered, tidy, write_run

ROOT = repository_root()


def answers(right):
    """Predictions of two classes that are right where `right` says so."""
    return pd.DataFrame({"id": range(len(right)), "label": 0, "answer": np.where(right, 0, 1)})


def arms_of(root, shares, seeds=(0, 1, 2), examples=400, **more):
    """Runs of a task of two classes; shares: of right answers, by arm."""
    generator = np.random.default_rng(0)
    difficulty, tables = generator.random(examples), {}
    for arm, share in shares.items():
        for seed in seeds:
            right = np.clip(difficulty + generator.normal(0, 0.05, examples), 0, 1) < share
            tables[arm, seed] = answers(right)
    return answered(root, tables, "sst2", **more)


LEVELS = np.random.default_rng(2).normal(size=100_000) * np.sqrt(1.01)


def drawn(generator, difficulty, level):
    return answers(difficulty + generator.normal(0, 0.1, len(difficulty)) < np.quantile(LEVELS, level))


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_interval_covers_examples_and_seeds(seeds):
    """Many experiments in which the second arm is better by 0.05 on average; seeds differ, and examples do."""
    generator, inside, noise = np.random.default_rng(1), [], 0.03 if seeds > 1 else 0
    for _ in range(100):
        difficulty = generator.normal(size=200)
        arms = [{seed: drawn(generator, difficulty, 0.7 + gain + generator.normal(0, noise)) for seed in range(seeds)}
                for gain in (0.0, 0.05)]  # fmt: skip
        change = difference(*arms, "accuracy", draws=100)
        low, high = interval(change.mean, change.errors)
        inside.append(low <= 0.05 <= high)
    assert np.mean(inside) > 0.9  # of the 95 % that are claimed


def test_the_interval_covers_the_parts_of_a_cross_validation():
    """Five parts of 200 examples, each answered by a model of its own; the second arm is better by 0.05. A fifth of
    what chance does to the models is common to all of them, because they share training examples."""
    generator, inside = np.random.default_rng(3), []
    for _ in range(300):
        arms: list[dict] = [{}, {}]
        common = generator.normal(0, 0.06, 2)
        for part in range(5):
            difficulty = generator.normal(size=200)
            for arm, gain, shared in zip(arms, (0.0, 0.05), common, strict=True):
                chance = 0.2**0.5 * shared + 0.8**0.5 * generator.normal(0, 0.06)
                table = drawn(generator, difficulty, 0.7 + gain + chance)
                arm[part] = table.assign(id=table["id"] + 200 * part)
        change = difference(*arms, "accuracy", folds=5)
        low, high = interval(change.mean, change.errors)
        inside.append(low <= 0.05 <= high)
    assert (change.seeds, change.examples) == (5, 1000)
    assert 0.91 < np.mean(inside) < 0.99


@pytest.mark.parametrize("line", pd.read_csv(ROOT / "results/tables/calibration.csv").to_dict("records"),
                         ids=lambda line: f"{line['seeds']:.0f} seeds, {line['ratio']:g}")  # fmt: skip
def test_intervals_and_small_p_values_come_about_as_often_as_the_table_says(line):
    """Two arms that do not differ, compared many times; seeds vary the mean `ratio` times as much as examples do.

    With Satterthwaite's degrees of freedom alone a p-value below .0025 came in 2.2 % of three seeds.
    """
    generator, of_examples = np.random.default_rng(0), 1 / (1 + line["ratio"])
    seeds = int(line["seeds"])
    common = generator.normal(0, math.sqrt(of_examples), (50_000, 1))
    each = common + generator.normal(0, math.sqrt(seeds * (1 - of_examples)), (50_000, seeds))
    mean, errors = each.mean(1), errors_of(each, of_examples)
    low, high = interval(mean, errors)
    assert ((low <= 0) & (high >= 0)).mean() == pytest.approx(line["covered"], abs=0.005)
    assert (p_of_none(mean, errors) < line["small"]).mean() == pytest.approx(line["found"], abs=0.0005)
    assert line["found"] < 1.25 * line["small"]


def test_equal_arms_do_not_differ_and_arms_that_cannot_be_paired_are_refused():
    one, other = answers(np.arange(4) < 3), answers(np.ones(4, bool)).assign(id=[0, 1, 2, 4])
    same = difference({0: one, 1: one}, {0: one, 1: one}, "accuracy", draws=200)
    assert (*interval(same.mean, same.errors), p_of_none(same.mean, same.errors)) == (0, 0, 1)
    assert p_of_margin(same.mean, same.errors, 0.01) == 0
    with pytest.raises(ValueError, match=r"no seed in both arms: \[0\] and \[1\]"):
        difference({0: one}, {1: one}, "accuracy")
    with pytest.raises(ValueError, match="answered other examples"):
        difference({0: one}, {0: other}, "accuracy")


def test_the_error_of_a_paired_ratio_is_that_of_repeated_experiments():
    generator, ratios = np.random.default_rng(0), []
    for _ in range(400):
        tokens = pd.Series(generator.integers(5, 20, 200))
        before = tokens * generator.normal(3, 0.5, 200)
        ratios.append(paired_ratio(before, before + tokens * generator.normal(0.1, 0.3, 200), tokens))
    means, errors = np.array(ratios).T
    assert means.mean() == pytest.approx(0.1, abs=0.005)
    assert errors.mean() == pytest.approx(means.std(), rel=0.12)


def test_scores_of_squad_2_are_those_of_all_its_questions(tree):
    """Its records also have scores of questions with and without an answer, and those of the best threshold."""
    values = {"exact": 60.0, "f1": 70.0, "has_answer_f1": 50.0, "best_f1_threshold": 2.0}
    write_run(tree, "softmax", 0, values, task="squad-v2", study="two")
    lines = scores(load(tree, "two"), tree)
    assert lines[["measure", "score", "majority", "chance"]].values.tolist() == [
        ["f1", 70.0, 0.7, 0.5], ["exact", 60.0, 0.7, 0.5]
    ]  # fmt: skip


def test_the_bag_of_words_is_beside_scores_of_as_many_training_examples(tmp_path):
    """And none beside held-out ones."""
    words = {"kind": "bag of words", "study": "bag-of-words", "arm": "bag of words", "task": "sst2"}
    lines = [{"task": "sst2", "arm": arm, "split": split, "record": arm, "measure": measure, "value": value}
             for arm, split, size in (("a", "validation", 8000), ("b", "held-out", 8000), ("c", "validation", 900))
             for measure, value in (("accuracy", 0.9), ("train_examples", size))]  # fmt: skip
    counted = [{**words, "record": size, "measure": measure, "value": value}
               for size, score in ((8000.2, 0.81), (67349, 0.9))
               for measure, value in (("train", size), ("headline", score))]  # fmt: skip
    table = scores(pd.concat([tidy(lines), tidy(counted)]), tmp_path)
    assert dict(zip(table["arm"], table["bag_of_words"].fillna(0), strict=True)) == {"a": 0.81, "b": 0.0, "c": 0.0}


def test_lsh_of_the_ladder_which_has_a_mean_key_is_called_otherwise():
    assert [what for *_, what in comparisons(["softmax", "lsh"])] == ["LSH (random hashing)"]
    assert [what for *_, what in comparisons(["softmax", "2020-block", "lsh"])] == [
        "0 block of 2020",
        "LSH ¼, mean key",
    ]


def test_every_arm_stands_against_softmax_and_its_neighbours(tmp_path):
    runs = arms_of(tmp_path, {"softmax": 0.9, "new": 0.7, "reformer": 0.6, "key-clusters": 0.9, "random": 0.9})
    table = differences(runs.assign(attention=runs["arm"].replace("new", "softmax")), tmp_path)
    assert list(zip(table["from"], table["to"], strict=True)) == [
        ("softmax", "new"), ("softmax", "reformer"), ("softmax", "key-clusters"), ("softmax", "random"),
        ("new", "reformer"), ("random", "key-clusters"),
    ]  # fmt: skip
    lines, means = table.set_index(["from", "to"]), runs.groupby("arm")["value"].mean()
    assert lines.loc[("softmax", "new"), "difference"] == pytest.approx(means["new"] - means["softmax"])
    clear = {pair for pair, yes in lines["clear"].items() if yes}
    assert clear == {("softmax", "new"), ("softmax", "reformer"), ("new", "reformer")}
    assert table["difference"].between(table["low"], table["high"]).all()
    # softmax and key-clusters are not in the family: Holm's factor for the smallest of the other five
    assert table["family"].tolist() == ["A", "A", "B", "A", "A", "A"]
    assert (table["p_holm"] / table["p"]).max() == pytest.approx(5)
    assert np.isnan(lines.loc[("softmax", "key-clusters"), "p_holm"])


def test_the_interval_of_a_correlation_reaches_below_zero(tmp_path):
    """Matthews's, of CoLA, is a correlation: a score may fall from .2 to below 0, and its interval with it."""
    label, generator = np.arange(400) % 2, np.random.default_rng(0)
    tables = {}
    for seed in range(3):
        for arm, right in (("softmax", 0.6), ("shared-qk", 0.4)):
            answer = np.where(generator.random(400) < right, label, 1 - label)
            tables[arm, seed] = pd.DataFrame({"id": range(400), "label": label, "answer": answer})
    rows = answered(tmp_path, tables, "cola")
    matthews = [matthews_corrcoef(table["label"], table["answer"]) for table in tables.values()]
    line = differences(rows.assign(value=matthews, attention=rows["arm"]), tmp_path).iloc[0]
    assert line["low"] < line["difference"] < line["high"] < 0
    assert line["low"] < -line["score_from"]


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_nothing_is_tested_from_fewer_than_three_seeds(tmp_path, seeds):
    rows = arms_of(tmp_path, {"softmax": 0.9, "new": 0.5, "key-clusters": 0.9}, range(seeds), share=0.5)
    table = differences(rows.assign(attention=rows["arm"].replace("new", "softmax")), tmp_path)
    assert table[["seeds", "examples", "clear"]].values.tolist() == [[seeds, 400, seeds == 3], [seeds, 400, False]]
    assert equivalence(table.assign(study="x"))["p"].notna().tolist() == [seeds == 3]


def test_two_one_sided_tests_are_those_of_statsmodels_and_a_pooled_error_is_that_of_independent_tasks():
    each = np.random.default_rng(0).normal(0.2, 0.5, 6)
    assert p_of_margin(each.mean(), errors_of(each, 0.0), 1.0) == pytest.approx(DescrStatsW(each).ttost_mean(-1, 1)[0])
    assert p_of_margin(1.5, errors_of(each, 0.0), 1.0) > 0.9  # beyond the margin
    worse = p_of_margin(0.0, [Error(0.1, 9), Error(0.5, 2)], 1.0)
    assert worse == pytest.approx(0.09175, abs=1e-5)
    same = pooled([Error(0.3, 4)] * 4)
    assert same == (pytest.approx(0.15), pytest.approx(16))
    assert pooled([Error(3.0, 4), Error(0.0, 4)]) == (pytest.approx(1.5), pytest.approx(4))


def line_of(task, difference, error=0.002, **more):
    """A line of `differences` of family B, its numbers in the unit of the task's score."""
    line = {
        "study": "x",
        "model": "m",
        "task": task,
        "metric": "f1",
        "from": "softmax",
        "to": "key-clusters",
        "family": "B",
    }
    line |= {"share": 0.5, "pairs_to": 0.4, "cost_to": 1.0, "difference": difference, "error": error, "freedom": 10}
    line |= {"low": difference - 2 * error, "high": difference + 2 * error, "error_of_seeds": error, "seeds": 3}
    return line | {"over": "seeds", "later": 0} | more


def test_what_stays_near_softmax_is_tested_in_points_task_by_task_and_over_tasks():
    lines = [line_of("mrpc", -0.004), line_of("squad", -0.2, 0.2), line_of("stsb", 0.004, 0.02)]
    lines += [line_of("squad", -5.0, 0.2, share=0.25), line_of("sst2", -0.3, seeds=2), line_of("cola", np.nan)]
    table = equivalence(pd.DataFrame([*lines, line_of("rte", -0.3, family="A")]))
    assert table["task"].tolist() == ["mrpc", "squad", "stsb", "sst2", "squad", "all", "all"]  # no mean of one task
    assert table["difference"].tolist()[:6] == pytest.approx([-0.4, -0.2, 0.4, -30, -5, -0.2 / 3])
    weighted = (-0.4 - 0.2 + 0.4 / 100) / 2.01  # by precision the third counts a hundredth
    assert table["difference"].tolist()[6] == pytest.approx(weighted)
    assert table["error"].tolist()[-2] == pytest.approx((0.2**2 + 0.2**2 + 2**2) ** 0.5 / 3)
    assert table[["seeds", "tasks"]].values.tolist()[-2] == [9, 3]
    assert table["p"].isna().tolist() == [False, False, False, True, False, False, True]
    # few runs say little about their own error, so a mean that is weighted by it has no interval
    assert table[["low", "high", "error", "freedom"]].iloc[-1].isna().all()
    assert table["within"].tolist() == [False] * 7  # from three seeds one family of five
    near = pd.DataFrame([line_of("mrpc", -0.004, 0.0001), line_of("stsb", 0.004, 0.0001, seeds=5)])
    assert equivalence(near)["within"].tolist() == [True, True, True, False]
    assert equivalence(near, least=5)[["task", "within"]].values.tolist() == [["mrpc", False], ["stsb", True]]
    # several lines of a task are no more evidence than one
    twice = equivalence(pd.DataFrame([*lines[:3], line_of("mrpc", -0.004, study="y")]))
    assert twice["error"].iloc[-2] == pytest.approx(table["error"].iloc[-2])
    assert twice["difference"].iloc[-2] == pytest.approx(table["difference"].iloc[-2])
    assert equivalence(pd.DataFrame(lines[-1:])).empty


def test_tasks_that_all_answer_alike_are_within_a_point():
    """Without an error there is no precision to weight by."""
    alike = {"error_of_seeds": 0.0, "freedom": np.inf}
    table = equivalence(pd.DataFrame([line_of(task, 0.0, 0.0, **alike) for task in ("mrpc", "stsb")]))
    assert table[["task", "within"]].values.tolist() == [["mrpc", True], ["stsb", True], ["all", True]]


@pytest.mark.parametrize(
    ("shares", "has_mean"), [((0.9, 0.9, 0.85), True), ((0.9, 0.9, 0.3), False), ((0.3, 0.4, 0.45), True)]
)
def test_a_mean_stands_for_runs_that_are_near_each_other_or_clearly_different(tmp_path, shares, has_mean):
    runs = [arms_of(tmp_path, {"softmax": 0.9, "new": share}, [seed]) for seed, share in enumerate(shares)]
    (line,) = differences(pd.concat(runs), tmp_path).to_dict("records")
    assert (line["has_mean"], line["highest_to"] - line["lowest_to"] > 0.1) == (has_mean, shares[2] < 0.8)


def test_arms_that_answered_other_examples_are_named_and_not_compared(tmp_path, capsys):
    counts = {("softmax", 0): 20, ("key-clusters", 0): 20, ("new", 0): 10}
    rows = answered(tmp_path, {arm: answers(np.ones(count, bool)) for arm, count in counts.items()}, "sst2")
    assert differences(rows, tmp_path)["to"].tolist() == ["key-clusters"]
    assert capsys.readouterr().out.startswith("sst2: softmax and new are not compared: the two arms, or their seeds")


def test_runs_that_kept_no_predictions_are_compared_over_seeds_alone(tree):
    table = differences(load(tree, "mini"), tree).set_index("to")
    # Seeds 0 and 1 have both: differences -0.10 and -0.06; Student's factor is 12.7, and scores end at zero.
    line = table.loc["reformer"]
    assert line[["difference", "seeds", "examples"]].tolist() == [pytest.approx(-0.08), 2, 0]
    assert line["high"] == pytest.approx(min(-0.08 + 12.706 * 0.02, 1 - 0.89))
    assert (table.loc["key-clusters", "seeds"], pd.isna(table.loc["key-clusters", "low"])) == (1, True)
    write_run(tree, "softmax", 0, {"f1": 0.9}, study="apart")
    write_run(tree, "key-clusters", 1, {"f1": 0.8}, study="apart")
    assert differences(load(tree, "apart"), tree).empty


def test_a_run_that_says_the_same_to_everything_has_no_correlation_and_no_difference(tmp_path):
    """Rounding makes two numbers of one; of three the correlation counts. A classifier keeps its accuracy. In
    float32 a flat run is constant, too, though all its numbers differ."""
    flat = pd.DataFrame({"id": range(99), "label": np.arange(99) % 6, "logit_0": 2.5 + np.linspace(-3e-4, 3e-4, 99)})
    assert scores(answered(tmp_path, {("new", 0): flat}, "kor-sts"), tmp_path)["constant"].tolist() == [1]
    numbers = pd.DataFrame({"id": range(4), "label": [0.0, 5.0, 2.0, 1.0]})
    said = {"softmax": [0.1, 4.0, 2.0, 1.0], "new": [2.5, 2.5, 2.5, 2.51], "window": [2.5, 2.4, 2.5, 2.51]}
    rows = answered(tmp_path, {(arm, 0): numbers.assign(logit_0=logits) for arm, logits in said.items()}, "stsb")
    more = answered(tmp_path, {("window", 1): numbers.assign(logit_0=2.5)}, "stsb")
    table = scores(pd.concat([rows, more]), tmp_path).set_index("arm")
    assert table["constant"].to_dict() == {"softmax": 0, "new": 1, "window": 1}
    assert table["score"].tolist() == [0.5, pytest.approx(float("nan"), nan_ok=True), 0.5]
    assert table["seeds"].tolist() == [1, 1, 2]
    lines = differences(rows, tmp_path).set_index("to")
    assert lines["constant_to"].to_dict() == {"new": 1, "window": 0}
    assert lines.loc["new", ["score_to", "difference", "low", "high", "p"]].isna().all()
    assert lines.loc["window", ["low", "high"]].notna().all()
    classes = answered(tmp_path, {("softmax", 0): numbers.assign(label=[0, 1, 1, 1], answer=1)}, "sst2")
    assert scores(classes, tmp_path)[["score", "constant"]].values.tolist() == [[0.75, 1]]


def test_runs_that_the_study_says_came_later_are_counted(tmp_path):
    (tmp_path / "studies").mkdir()
    study = "tasks: {sst2: {later: [2], arms: {softmax: , key-clusters: {later: [0, 1, 2]}, new: {later: []}}}}"
    (tmp_path / "studies/x.yaml").write_text(f"seeds: [0, 1, 2]\n{study}\n")
    rows = arms_of(tmp_path, {"softmax": 0.9, "key-clusters": 0.9, "new": 0.9}, study="x")
    assert headlines(rows, tmp_path).groupby("arm")["later"].sum().to_dict() == {
        "softmax": 1,
        "key-clusters": 3,
        "new": 0,
    }
    assert differences(rows, tmp_path).set_index("to")["later"].to_dict() == {"key-clusters": 3, "new": 1}


@pytest.mark.parametrize("part", ["eval_examples", "held_out_examples"])
def test_of_a_part_of_squad_it_is_not_said_how_varied_answers_are(part, tmp_path):
    """There a question and the one before it are of different paragraphs."""
    rows = answered(tmp_path, {("new", 0): pd.DataFrame({"id": ["a", "b"], "start": [4, 4], "end": [9, 9]})}, "squad")
    assert scores(rows, tmp_path)["variety"].item() == 0.5
    assert np.isnan(scores(pd.concat([rows, rows.assign(measure=part, value=100)]), tmp_path)["variety"].item())


def test_tables_are_written_and_empty_ones_removed(tree):
    stale = tree / "results" / "tables" / "other-differences.csv"
    stale.parent.mkdir(parents=True)
    stale.write_text("old\n")
    write_run(tree, "softmax", 0, {"accuracy": 0.9}, task="mini-sst2", study="other", headline="accuracy")
    assert [path.name for path in write_tables("other", root=tree)] == ["other-scores.csv"]
    assert not stale.exists()
    assert {path.name for path in write_tables("mini", root=tree)} == {"mini-scores.csv", "mini-differences.csv"}
    assert not list(tree.rglob("*.partial*"))


def test_the_interval_of_what_is_kept_is_that_of_a_ratio():
    """Held against a bootstrap that draws variant, softmax and constant answer together; none where softmax has learnt
    nothing that can be told from it."""
    generator = np.random.default_rng(0)
    label = (generator.random(400) < 0.6).astype(int)
    given = [np.where(generator.random(400) < wrong, 1 - label, label) for wrong in (0.25, 0.31, 0.45)]
    answers = [pd.DataFrame({"id": range(400), "label": label, "answer": answer}) for answer in given]
    softmax, variant, hardly = ({0: table} for table in answers)
    drawn = generator.integers(400, size=(4000, 400))
    first, then = ((table["answer"] == label).to_numpy()[drawn].mean(1) for table in answers[:2])
    floor = label[drawn].mean(1)
    constant = weighted_mean(label.astype(float))
    expected = np.quantile((then - floor) / (first - floor), [0.025, 0.975])
    assert kept(softmax, variant, "accuracy", constant) == pytest.approx(expected, abs=0.06)
    assert np.isnan(kept(hardly, variant, "accuracy", constant)).all()
    assert np.isnan(kept({0: softmax[0].assign(answer=1)}, variant, "accuracy", constant)).all()  # none learnt
    with pytest.raises(ValueError, match="answered other examples"):
        kept(softmax, {0: variant[0].iloc[::-1].reset_index(drop=True)}, "accuracy", constant)
