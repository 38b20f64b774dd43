"""Scores of classification and regression, and what the majority class and uniform random guessing reach.

GLUE's metrics by task (Wang et al. 2019), computed by scikit-learn and scipy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import EvalPrediction, Trainer

from albert_lsh.tasks.table import Task

# Each takes (labels, predictions), arrays of shape (n,): class numbers, or values for the correlations.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
    "pearson": lambda labels, values: pearsonr(labels, values).statistic if len(labels) > 1 else np.nan,
    "spearman": lambda labels, values: spearmanr(labels, values).statistic if len(labels) > 1 else np.nan,
}


def scores(names: tuple[str, ...], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The metrics of these names, 0 to 1 (correlations -1 to 1)."""
    found = {name: float(METRICS[name](labels, predictions)) for name in names}
    # A correlation with a constant, or of one example, is undefined; a model that always says the same has found none.
    return {name: 0.0 if np.isnan(value) else value for name, value in found.items()}


def majority(names: tuple[str, ...], train_labels: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of always answering with the class most frequent in training; 0 for correlations."""
    if "pearson" in names:
        return dict.fromkeys(names, 0.0)
    classes, counts = np.unique(train_labels, return_counts=True)
    return scores(names, labels, np.full_like(labels, classes[counts.argmax()]))


def chance(names: tuple[str, ...], labels: np.ndarray, num_labels: int) -> dict[str, float]:
    """The expected scores of uniform random guessing.

    With two classes, of which a share p is positive, half of the positives are found and a share p of the answers
    "positive" is right: F1 = p / (p + 1/2), up to the sampling of a finite set.
    """
    positive = float(np.mean(labels == 1))
    expected = {"accuracy": 1 / max(num_labels, 1), "f1": positive / (positive + 0.5)}
    return {name: expected.get(name, 0.0) for name in names}


def answers_of(logits: np.ndarray, num_labels: int) -> np.ndarray:
    """Class numbers from logits (n, num_labels), or the values themselves if one number is predicted."""
    return logits[:, 0] if num_labels == 1 else logits.argmax(-1)


def for_trainer(task: Task) -> Callable[[EvalPrediction], dict[str, float]]:
    """The task's metrics as Trainer wants them."""

    def compute(seen: EvalPrediction) -> dict[str, float]:
        answers = answers_of(np.asarray(seen.predictions), task.num_labels)
        return scores(task.metrics, np.asarray(seen.label_ids), answers)

    return compute


def predictions(task: Task, split: str, logits: np.ndarray, rows: Dataset) -> pd.DataFrame:
    """A model's answers on a split, as `tasks.predictions` keeps them.

    Args:
        logits: (n, num_labels), in the order of rows.
        rows: of `table.encode`, with labels and idx.
    """
    kind = np.float32 if task.is_regression else np.int8
    columns = {"split": split, "id": np.asarray(rows["idx"], np.int32), "label": np.asarray(rows["labels"], kind)}
    if not task.is_regression:
        columns["answer"] = answers_of(logits, task.num_labels).astype(kind)
    return pd.DataFrame(columns | {f"logit_{n}": column.astype(np.float32) for n, column in enumerate(logits.T)})


def by_split(table: pd.DataFrame, score: Callable[[pd.DataFrame], dict[str, float]]) -> dict[str, float]:
    """`score` of each split's rows; the metrics of a second split have its name behind them (accuracy_mismatched)."""
    found: dict[str, float] = {}
    for split, rows in table.groupby("split", sort=False):
        suffix = "_" + str(split).removeprefix("validation_") if found else ""
        found |= {name + suffix: value for name, value in score(rows).items()}
    return found


def scores_of(task: Task, table: pd.DataFrame) -> dict[str, float]:
    """The task's scores of a table of `predictions`."""
    answer = "logit_0" if task.is_regression else "answer"
    return by_split(table, lambda rows: scores(task.metrics, rows["label"].to_numpy(), rows[answer].to_numpy()))


def intervals(task: Task, table: pd.DataFrame, draws: int = 400) -> dict[str, list[float]]:
    """The 95% interval [low, high] of each score over the examples: percentiles of a bootstrap within each split.

    Args:
        table: predictions of any task, SQuAD's too (of which exact and f1 have an interval).
    """

    def score(rows: pd.DataFrame) -> dict[str, float]:
        return {n: 100 * rows[n].mean() for n in task.metrics} if task.is_squad else scores_of(task, rows)

    parts: Any = table.groupby(table["split"] if "split" in table else np.zeros(len(table)), sort=False)
    generator = np.random.default_rng(0)
    drawn = [score(parts.sample(frac=1, replace=True, random_state=generator)) for _ in range(draws)]
    found = pd.DataFrame(drawn).quantile([0.025, 0.975])
    return {str(name): found[name].tolist() for name in found}


def score_splits(trainer: Trainer, task: Task, encoded: DatasetDict) -> tuple[dict, pd.DataFrame]:
    """The task's scores on its evaluation splits, beside those of the majority class and of guessing.

    Returns:
        {"score": {metric: value}, "majority": ..., "chance": ...}, as `by_split` names them; and the table of
        `predictions`.
    """
    evaluated = {split: rows for split, rows in encoded.items() if split != "train"}
    logits = {split: np.asarray(trainer.predict(rows).predictions) for split, rows in evaluated.items()}
    tables = [predictions(task, split, logits[split], rows) for split, rows in evaluated.items()]
    table, seen = pd.concat(tables, ignore_index=True), np.asarray(encoded["train"]["labels"])
    return {
        "score": scores_of(task, table),
        "majority": by_split(table, lambda rows: majority(task.metrics, seen, rows["label"].to_numpy())),
        "chance": by_split(table, lambda rows: chance(task.metrics, rows["label"].to_numpy(), task.num_labels)),
    }, table
