"""Intervals over seeds and examples, from saved predictions.

All seeds of both arms answered the same examples, so seeds and examples are crossed. The variance of a mean difference
is that of the mean over seeds, plus that over examples, found by a bootstrap that draws the same examples for all runs.
The interval is Student's, with the degrees of freedom of Satterthwaite (1946): three seeds say little about their own
variance, and the quantiles of a bootstrap over seeds and examples covered 85 % of what 95 % were to cover. Far from
95 % these degrees of freedom are too many where seeds vary more than examples: the p-value is the larger of this test's
and of Student's over the seeds alone (`tests/test_compare.py` simulates both). With two seeds the interval covers less
than it says, with one it covers examples alone, and nothing is tested from fewer than CLEAR_FROM seeds.

In cross-validation every seed answered its own part of the examples; the spread over the parts then is that of seeds
and examples together. The parts share training examples, so that their differences are alike; the variance of their
mean is corrected as Nadeau and Bengio (2003) do, who take the share of the examples that a part answers as correlation.

That two arms are alike is shown by two one-sided tests (Schuirmann 1987): it is above -margin, and below margin.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from albert_study.names import scale_of

DRAWS = 2000
AT_ONCE = 2**22  # numbers of a matrix that are worked on together
CLEAR_FROM = 3  # seeds or folds
LEVEL = 0.05
MARGIN = 1.0  # points, hundredths of the best score: an arm that differs by less is as good
Scored = Callable[[np.ndarray], np.ndarray]


class Error(NamedTuple):
    """The standard error of a mean, and the degrees of freedom that it is known with; numbers or arrays."""

    size: Any
    freedom: Any


class Difference(NamedTuple):
    """after - before: the mean over seeds, its errors (see `errors_of`), and of what it is made."""

    mean: float
    errors: list[Error]
    seeds: int
    examples: int


def weighted_mean(values: np.ndarray) -> Scored:
    return lambda weights: weights @ values / weights.sum(1)


def weighted_pearson(labels: np.ndarray, values: np.ndarray) -> Scored:
    x, y = labels - labels.mean(), values - values.mean()

    def correlation(weights: np.ndarray) -> np.ndarray:
        total = weights.sum(1)
        mean_x, mean_y = weights @ x / total, weights @ y / total
        products = [weights @ (a * b) / total - m for a, b, m in ((x, y, mean_x * mean_y), (x, x, mean_x**2))]
        spread = products[1] * (weights @ y**2 / total - mean_y**2)
        return np.divide(products[0], np.sqrt(np.maximum(spread, 0)), out=np.zeros_like(total), where=spread > 0)

    return correlation


def score_of(metric: str, table: pd.DataFrame) -> Scored:
    """A task's score as a function of how often each example counts: (draws, examples) -> (draws,).

    Args:
        metric: accuracy, f1 (of a class, or SQuAD's), exact, matthews (of two classes) or pearson.
        table: predictions as `tasks.predictions` describes them.
    Raises:
        ValueError: another metric.
    """
    if metric in table:  # SQuAD's, in percent
        return weighted_mean(100 * table[metric].to_numpy(float))
    names = ("label", "logit_0" if metric == "pearson" else "answer")
    labels, answers = (table[name].to_numpy(float) for name in names)
    if metric in ("pearson", "matthews"):  # Matthews's of two classes is the correlation of their numbers
        return weighted_pearson(labels, answers)
    if metric == "accuracy":
        return weighted_mean((labels == answers).astype(float))
    if metric == "f1":
        both, either = (labels == 1) & (answers == 1), (labels == 1).astype(float) + (answers == 1)
        return lambda weights: 2 * (weights @ both) / np.maximum(weights @ either, 1)
    raise ValueError(f"metric={metric!r} is not one of: accuracy, f1, exact, matthews, pearson")


@lru_cache(8)  # a study has few sizes; SQuAD's counts take 42 MB
def draws_of_examples(examples: int, draws: int) -> np.ndarray:
    """How often each example is drawn: (draws, examples) uint16; the same ones whenever they are asked for."""
    generator, chances = np.random.default_rng(0), np.full(examples, 1 / examples)
    counts = np.empty((draws, examples), np.uint16)
    for part in in_parts(counts):
        part[:] = generator.multinomial(examples, chances, len(part))
    counts.flags.writeable = False
    return counts


def in_parts(matrix: np.ndarray) -> Iterator[np.ndarray]:
    """The matrix, some rows at a time."""
    at_once = max(1, AT_ONCE // matrix.shape[1])
    return (matrix[start : start + at_once] for start in range(0, len(matrix), at_once))


def difference(
    before: dict[int, pd.DataFrame],
    after: dict[int, pd.DataFrame],
    metric: str,
    draws: int = DRAWS,
    folds: int | None = None,
) -> Difference:
    """By how much an arm's score differs from another's; only the seeds that both have count.

    Args:
        before, after: predictions by seed; of a seed both on the same examples in the same order, and all seeds too,
            but in cross-validation.
        metric: see `score_of`.
        folds: in cross-validation, of how many; each seed answers a part of its own. One fold alone has the interval of
            its examples.
    Raises:
        ValueError: no seed in both, or other examples.
    """
    seeds = seeds_of(before, after, folds)
    ids, of_seed = before[seeds[0]]["id"], [before[seed]["id"] for seed in seeds]
    scores = [(score_of(metric, before[seed]), score_of(metric, after[seed])) for seed in seeds]

    def differences(weights: np.ndarray) -> np.ndarray:  # (draws, seeds)
        return np.stack([then(weights) - first(weights) for first, then in scores], axis=1)

    if folds and len(seeds) > 1:
        ones = [np.ones((1, len(answered))) for answered in of_seed]
        each = np.array([(then(one) - first(one))[0] for one, (first, then) in zip(ones, scores, strict=True)])
        variance = each.var(ddof=1) * (1 / len(each) + 1 / (folds - 1))
        errors = [Error(math.sqrt(variance), len(each) - 1)]
    else:
        each = differences(np.ones((1, len(ids))))[0]
        parts = in_parts(draws_of_examples(len(ids), draws))
        drawn = [differences(weights.astype(float)).mean(1) for weights in parts]
        errors = errors_of(each, np.concatenate(drawn).var(ddof=1))
    return Difference(float(each.mean()), errors, len(seeds), sum(map(len, of_seed)) if folds else len(ids))


def seeds_of(before: dict[int, pd.DataFrame], after: dict[int, pd.DataFrame], folds: int | None = None) -> list[int]:
    """The seeds that both arms have; see `difference`."""
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        raise ValueError(f"no seed in both arms: {sorted(before)} and {sorted(after)}")
    ids = before[seeds[0]]["id"]
    if any(not after[s]["id"].equals(before[s]["id"]) or not (folds or before[s]["id"].equals(ids)) for s in seeds):
        raise ValueError("the two arms, or their seeds, answered other examples")
    return seeds


def kept(
    before: dict[int, pd.DataFrame], after: dict[int, pd.DataFrame], metric: str, floor: Scored, draws: int = DRAWS
) -> tuple[float, float]:
    """The ends of the 95 % interval of (after - floor) / (before - floor), by Fieller's theorem (1954), over seeds and
    examples; NaN where before - floor may be zero. ValueError as of `difference`.

    Args: as those of `difference`; floor: as `score_of` gives them, of the same examples.
    """
    seeds = seeds_of(before, after)
    scores = [(score_of(metric, after[seed]), score_of(metric, before[seed])) for seed in seeds]

    def gains(weights: np.ndarray) -> np.ndarray:  # (draws, seeds, 2)
        each = [[scored(weights) - floor(weights) for scored in pair] for pair in scores]
        return np.array(each).transpose(2, 0, 1)

    examples = len(before[seeds[0]])
    each = gains(np.ones((1, examples)))[0]
    drawn = [gains(weights.astype(float)).mean(1) for weights in in_parts(draws_of_examples(examples, draws))]
    of_examples = np.cov(np.concatenate(drawn).T)
    variance = of_examples + (np.cov(each.T) / len(seeds) if len(seeds) > 1 else 0)
    top, bottom = each.mean(0)
    if bottom <= 0:
        return math.nan, math.nan
    line = np.array([1, -top / bottom])
    freedom = errors_of(each @ line, line @ of_examples @ line)[0].freedom
    t = stats.t.ppf(0.975, freedom) ** 2
    a, b, c = bottom**2 - t * variance[1, 1], top * bottom - t * variance[0, 1], top**2 - t * variance[0, 0]
    if a <= 0:  # else the ratios x between the roots of a x^2 - 2 b x + c are those that the data allow
        return math.nan, math.nan
    half = math.sqrt(max(0.0, b**2 - a * c))
    return (b - half) / a, (b + half) / a


def errors_of(each: np.ndarray, of_examples: float) -> list[Error]:
    """Of a mean over seeds: the error that makes its interval, and, of several seeds, that over seeds alone.

    Args:
        each: the difference of each seed, (..., seeds).
        of_examples: the variance that the choice of examples gives the mean.
    """
    freedom = each.shape[-1] - 1
    of_seeds = each.var(-1, ddof=1) / each.shape[-1] if freedom else np.zeros(each.shape[:-1])
    variance = of_seeds + of_examples
    ratio = np.divide(variance, of_seeds, out=np.full_like(variance, math.inf), where=of_seeds > 0)
    both = Error(np.sqrt(variance), max(freedom, 1) * ratio**2)
    return [both, Error(np.sqrt(of_seeds), freedom)] if freedom else [both]


def interval(mean: Any, errors: list[Error]) -> tuple[Any, Any]:
    """The ends of Student's 95 % interval."""
    half = stats.t.ppf(0.975, errors[0].freedom) * errors[0].size
    return mean - half, mean + half


def p_of_none(mean: Any, errors: list[Error]) -> Any:
    """The two-sided p-value of no difference, the largest of all errors'."""
    return np.max([2 * stats.t.sf(standardised(np.abs(mean), error.size), error.freedom) for error in errors], axis=0)


def p_of_margin(mean: float, errors: list[Error], margin: float) -> float:
    """The p-value of a difference of `margin` or more, either way: the largest of both sides' and of all errors'."""
    nearest = margin - abs(mean)
    sides = [stats.t.sf(math.copysign(standardised(abs(nearest), size), nearest), freedom) for size, freedom in errors]
    return float(max(sides))


def standardised(distance: Any, size: Any) -> Any:
    """A distance, at least 0, in standard errors; without error it is none, or beyond all."""
    alike = np.where(distance == 0, 0.0, math.inf)  # no error: two arms that answer alike
    return np.divide(distance, size, out=alike, where=np.asarray(size) > 0)


def pooled(errors: list[Error]) -> Error:
    """The error of the plain mean of independent means (freedom: Satterthwaite)."""
    variances = np.array([error.size for error in errors]) ** 2
    of_each = variances**2 / np.array([error.freedom for error in errors], float)
    freedom = variances.sum() ** 2 / of_each.sum() if of_each.any() else math.inf
    return Error(math.sqrt(variances.sum()) / len(errors), freedom)


def holm(p_values: "pd.Series[float]") -> "pd.Series[float]":
    """The p-values of one family of questions, corrected for their number (Holm 1979)."""
    return pd.Series(multipletests(p_values, method="holm")[1], p_values.index)


def paired_ratio(before: pd.Series, after: pd.Series, weights: pd.Series) -> tuple[float, float]:
    """By how much sum(values) / sum(weights) differs, paired by row, and its standard error.

    The error is that of a ratio of sums (Cochran 1977, chapter 6).
    """
    change = after - before
    mean = float(change.sum() / weights.sum())
    residual = change - mean * weights
    return mean, float(math.sqrt((residual**2).sum() * len(before) / (len(before) - 1)) / weights.sum())


def equivalence(lines: pd.DataFrame, least: int = CLEAR_FROM) -> pd.DataFrame:
    """Does `key-clusters` stay within MARGIN of softmax? A line a comparison, below them two for each share.

    lines: of `compare.differences`, of several studies, with a column study; those of family B count.

    Differences, their ends and errors are in points. p is that of a difference of MARGIN or more, by two one-sided
    tests; all are one family (p_holm), and `within` says where p_holm is below 5 %. From fewer than `least` seeds
    nothing is tested. `weights` says how the tasks of a share are weighted, see `over_tasks`. Other columns are those
    of `differences`, without _to.
    """
    lines = lines[(lines["family"] == "B") & lines["difference"].notna() & lines["share"].notna()]
    if lines.empty:
        return lines
    lines = lines.rename(columns=lambda name: name.removesuffix("_to"))
    best = [scale_of(*line)[0] for line in lines[["task", "metric"]].itertuples(index=False)]
    in_points = {name: lines[name] * 100 / best for name in ("difference", "low", "high", "error", "error_of_seeds")}
    lines = lines.assign(**in_points, freedom_of_seeds=lines["seeds"] - 1, tasks=1, weights="")
    lines = lines.sort_values("share", ascending=False, kind="stable")
    of_shares = lines[lines["seeds"] >= least].groupby("share", sort=False)
    lines = pd.concat([lines, *(over_tasks(of_share) for _, of_share in of_shares)], ignore_index=True)
    is_tested = (lines["seeds"] >= least) & (lines["weights"] != "precision")
    tested = lines[is_tested].to_dict("records")
    p = [p_of_margin(line["difference"], errors_of_line(line), MARGIN) for line in tested]
    lines = lines.assign(p=np.nan, p_holm=np.nan)
    lines.loc[is_tested, "p"] = p
    lines.loc[is_tested, "p_holm"] = holm(pd.Series(p)).to_numpy() if p else []
    columns = ["study", "model", "task", "metric", "from", "to", "share", "pairs", "cost", "difference", "low", "high"]
    columns += ["error", "freedom", "seeds", "over", "tasks", "weights", "later", "p", "p_holm"]
    return lines[columns].assign(within=lines["p_holm"] < LEVEL)


def over_tasks(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines of a share; none of one task.

    The first, which is tested, is the plain mean over its tasks: each is one answer to the question. The second is
    weighted by precision (a fixed effect), where all tasks have an error. It says what the tasks say that can be
    measured best, and has no interval: from three to five runs a task's error is known too badly to weight by it as if
    it were known. Where a task has several lines their mean counts, with an error as if they were of the same answers.
    """
    pairs = {"error": "freedom", "error_of_seeds": "freedom_of_seeds"}
    how = {"difference": "mean", "seeds": "sum", "later": "sum", "share": "first"}
    tasks = lines.groupby("task").agg(how | dict.fromkeys(pairs, "mean") | dict.fromkeys(pairs.values(), "min"))
    if len(tasks) < 2:
        return pd.DataFrame()
    line = {"task": "all", "to": "key-clusters", "tasks": len(tasks), "share": tasks["share"].iloc[0]}
    line |= {name: tasks[name].sum() for name in ("seeds", "later")}
    equal = line | {"weights": "equal", "difference": tasks["difference"].mean()}
    for size, freedom in pairs.items():
        equal[size], equal[freedom] = pooled(list(map(Error, tasks[size], tasks[freedom])))
    equal["low"], equal["high"] = interval(equal["difference"], errors_of_line(equal))
    if (tasks["error"] == 0).any():
        return pd.DataFrame([equal])
    weighted = np.average(tasks["difference"], weights=1 / tasks["error"] ** 2)
    return pd.DataFrame([equal, line | {"weights": "precision", "difference": weighted}])


def errors_of_line(line: Any) -> list[Error]:
    return [Error(line["error"], line["freedom"]), Error(line["error_of_seeds"], line["freedom_of_seeds"])]
