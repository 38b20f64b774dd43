"""Scores of classification and regression, and the scores that need no reading: majority class and chance.

GLUE's metrics by task (Wang et al. 2019), computed by scikit-learn and scipy.
"""

from collections.abc import Callable

import numpy as np
from datasets import DatasetDict
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import EvalPrediction, Trainer

from albert_lsh.tasks.table import Task

# Each takes (labels, predictions), arrays of shape (n,): class numbers, or values for the correlations.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
    "pearson": lambda labels, values: pearsonr(labels, values).statistic,
    "spearman": lambda labels, values: spearmanr(labels, values).statistic,
}


def scores(names: tuple[str, ...], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """The metrics of these names, 0 to 1 (correlations -1 to 1)."""
    found = {name: float(METRICS[name](labels, predictions)) for name in names}
    # A correlation with a constant is undefined; a model that always says the same has found none.
    return {name: 0.0 if np.isnan(value) else value for name, value in found.items()}


def majority(names: tuple[str, ...], train_labels: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of always answering with the class most frequent in training; 0 for correlations."""
    if "pearson" in names:
        return dict.fromkeys(names, 0.0)
    classes, counts = np.unique(train_labels, return_counts=True)
    return scores(names, labels, np.full_like(labels, classes[counts.argmax()]))


def chance(names: tuple[str, ...], labels: np.ndarray, num_labels: int) -> dict[str, float]:
    """The expected scores of answers drawn evenly from the classes, whatever is asked.

    With two classes, of which a share p is positive, half of the positives are found and a share p of the answers
    "positive" is right: F1 = p / (p + 1/2), up to the sampling of a finite set.
    """
    positive = float(np.mean(labels == 1))
    expected = {"accuracy": 1 / max(num_labels, 1), "f1": positive / (positive + 0.5)}
    return {name: expected.get(name, 0.0) for name in names}


def answers_of(logits: np.ndarray, num_labels: int) -> np.ndarray:
    """Class numbers from logits (n, num_labels), or the values themselves where one number is predicted."""
    return logits[:, 0] if num_labels == 1 else logits.argmax(-1)


def for_trainer(task: Task) -> Callable[[EvalPrediction], dict[str, float]]:
    """The task's metrics as Trainer wants them."""

    def compute(seen: EvalPrediction) -> dict[str, float]:
        return scores(
            task.metrics, np.asarray(seen.label_ids), answers_of(np.asarray(seen.predictions), task.num_labels)
        )

    return compute


def score_splits(trainer: Trainer, task: Task, encoded: DatasetDict) -> tuple[dict, np.ndarray, np.ndarray]:
    """The task's scores on its evaluation splits, beside majority class and chance.

    Returns:
        {"score": {metric: value}, "majority": ..., "chance": ...}, the metrics of a second split with its name behind
        (accuracy_mismatched); labels and predictions of the first split.
    """
    table: dict[str, dict[str, float]] = {"score": {}, "majority": {}, "chance": {}}
    train_labels = np.asarray(encoded["train"]["labels"])
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for split in (s for s in encoded if s != "train"):
        seen = trainer.predict(encoded[split])
        predictions, labels = answers_of(np.asarray(seen.predictions), task.num_labels), np.asarray(seen.label_ids)
        suffix = "_" + split.removeprefix("validation_") if kept else ""
        rows = {
            "score": scores(task.metrics, labels, predictions),
            "majority": majority(task.metrics, train_labels, labels),
            "chance": chance(task.metrics, labels, task.num_labels),
        }
        for row, values in rows.items():
            table[row] |= {name + suffix: value for name, value in values.items()}
        kept.append((labels, predictions))
    return table, *kept[0]
