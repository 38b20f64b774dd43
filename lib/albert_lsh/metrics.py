"""Scores of a task, and what the majority class and uniform random guessing reach.

GLUE's metrics by task (Wang et al. 2019), computed by scikit-learn and scipy; `squad` has SQuAD's official ones.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import PreTrainedModel

from albert_lsh import squad
from albert_lsh.attention import Coverage
from albert_lsh.interface import mean_attended
from albert_lsh.tasks import Task

WORTH, FALLING = 0.15, 0.1  # see `hardly_trained`

# Each takes (labels, answers), arrays of shape (n,): class numbers, or values for the correlations.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
    "pearson": lambda labels, values: pearsonr(labels, values).statistic if len(labels) > 1 else np.nan,
    "spearman": lambda labels, values: spearmanr(labels, values).statistic if len(labels) > 1 else np.nan,
}


def scores(names: tuple[str, ...], labels: np.ndarray, answers: np.ndarray) -> dict[str, float]:
    """The metrics of these names, 0 to 1 (correlations -1 to 1); (n,) class numbers, or values for correlations."""
    values = {name: float(METRICS[name](labels, answers)) for name in names}
    # A correlation with a constant, or of one example, is undefined; a model that always says the same has none.
    return {name: 0.0 if np.isnan(value) else value for name, value in values.items()}


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


def predictions(task: Task, split: str, logits: np.ndarray, rows: Dataset) -> pd.DataFrame:
    """A model's answers on a split, as `record.write_predictions` keeps them; of SQuAD see `squad.predictions`.

    Args:
        logits: (n, num_labels), in the order of rows.
        rows: of `encode`, with labels and idx.
    """
    kind = np.float32 if task.is_regression else np.int8
    columns = {"split": split, "id": np.asarray(rows["idx"], np.int32), "label": np.asarray(rows["labels"], kind)}
    if not task.is_regression:
        columns["answer"] = logits.argmax(-1).astype(kind)
    return pd.DataFrame(columns | {f"logit_{n}": column.astype(np.float32) for n, column in enumerate(logits.T)})


def by_split(table: pd.DataFrame, score_rows: Callable[[pd.DataFrame], dict[str, float]]) -> dict[str, float]:
    """A score of each split's rows; the metrics of a second split have its name behind them (accuracy_mismatched)."""
    values: dict[str, float] = {}
    for split, rows in table.groupby("split", sort=False):
        suffix = "_" + str(split).removeprefix("validation_") if values else ""
        values |= {name + suffix: value for name, value in score_rows(rows).items()}
    return values


def scores_of(task: Task, table: pd.DataFrame) -> dict[str, float]:
    """The task's scores of a table of `predictions`; of SQuAD see `squad.scores_of`."""
    answer = "logit_0" if task.is_regression else "answer"
    return by_split(table, lambda rows: scores(task.metrics, rows["label"].to_numpy(), rows[answer].to_numpy()))


def score_split(task: Task, rows: Dataset, encoded: Dataset, logits: Any) -> dict[str, float]:
    """The task's scores of one split, during training; `rows` of `load_data`, `encoded` of `encode`."""
    if task.is_squad:
        return squad.score(rows, squad.texts_of(rows, squad.predictions(rows, encoded, logits)))
    return scores_of(task, predictions(task, "", np.asarray(logits), encoded))


def score(
    task: Task, data: DatasetDict, encoded: DatasetDict, logits: dict[str, Any]
) -> tuple[dict[str, dict[str, float]], pd.DataFrame]:
    """The task's scores of a model, beside those of the majority class (SQuAD: of no answer) and of guessing.

    Args:
        data, encoded: of `load_data` and `encode`, with "train".
        logits: by evaluated split, as Trainer predicts them.
    Returns:
        {"score": {metric: value}, "majority": ..., "chance": ...}, as `by_split` names them; and the table of
        `predictions` of all splits.
    """
    if task.is_squad:
        ((split, pair),) = logits.items()
        table, rows = squad.predictions(data[split], encoded[split], pair), data[split]
        constant, guesses = squad.majority_score(rows), squad.chance_score(rows)
        return {"score": squad.scores_of(rows, table), "majority": constant, "chance": guesses}, table
    tables = [predictions(task, split, np.asarray(rows), encoded[split]) for split, rows in logits.items()]
    table, seen = pd.concat(tables, ignore_index=True), np.asarray(encoded["train"]["labels"])
    return {
        "score": scores_of(task, table),
        "majority": by_split(table, lambda rows: majority(task.metrics, seen, rows["label"].to_numpy())),
        "chance": by_split(table, lambda rows: chance(task.metrics, rows["label"].to_numpy(), task.num_labels)),
    }, table


def intervals(task: Task, table: pd.DataFrame, draws: int = 400) -> dict[str, list[float]]:
    """The 95% interval [low, high] of each score over the examples: percentiles of a bootstrap within each split.

    Args:
        table: predictions of any task, SQuAD's too (of which exact and f1 have an interval).
    """

    def score_rows(rows: pd.DataFrame) -> dict[str, float]:
        return {n: 100 * rows[n].mean() for n in task.metrics} if task.is_squad else scores_of(task, rows)

    parts: Any = table.groupby(table["split"] if "split" in table else np.zeros(len(table)), sort=False)
    generator = np.random.default_rng(0)
    drawn = [score_rows(parts.sample(frac=1, replace=True, random_state=generator)) for _ in range(draws)]
    bounds = pd.DataFrame(drawn).quantile([0.025, 0.975])
    return {str(name): bounds[name].tolist() for name in bounds}


def sample(model: PreTrainedModel, tokenizer: Any, data: Dataset, examples: int) -> Iterator[Any]:
    """Inputs of `examples` examples spread evenly over `data` (all, if it has fewer), eight at a time."""
    count = min(examples, len(data))
    rows = data.select([number * len(data) // count for number in range(count)])
    rows = rows.select_columns([name for name in tokenizer.model_input_names if name in data.column_names])
    for start in range(0, len(rows), 8):
        batch = rows.select(range(start, min(start + 8, len(rows)))).to_dict()
        yield tokenizer.pad(batch, return_tensors="pt").to(model.device)


def attended(model: PreTrainedModel, tokenizer: Any, data: Dataset, examples: int = 64) -> Coverage:
    """What the model attends to in evaluation, over all passes and heads of some examples.

    Padding that is not masked counts as tokens, in softmax too (`attention.Coverage`).
    Pairs and cost are shares of what softmax has on the whole texts: with max_length=16 an attention that sees every
    pair of 16 tokens sees a quarter of those of a text of 32.
    """
    coverage = mean_attended(model, sample(model, tokenizer, data, examples))
    if "whole_length" not in data.column_names:  # SQuAD's windows leave nothing out
        return coverage
    length, whole = (np.array(data[name], dtype=float) for name in ("length", "whole_length"))
    kept = float((length**2).sum() / (whole**2).sum())
    return coverage._replace(pairs=coverage.pairs * kept, cost=coverage.cost * kept)


def hardly_trained(history: pd.DataFrame, score: float, constant: float, best: float = 1.0) -> str | None:
    """What speaks against taking a score for what the attention can do, in a sentence; None if nothing does.

    Either the score is closer to always the same answer's than WORTH of the way to a perfect one, or it is not close to
    a perfect one and the training loss still fell by FALLING between the last two quarters of training.

    Args:
        history: of `Trained`. score, constant: the headline, and that of always the same answer. best: a perfect one.
    """
    reasons, gained = [], (score - constant) / (best - constant) if best > constant else 1.0
    if not gained >= WORTH:  # nor is a score that is no number
        reasons.append(f"the score, {score:.3g}, is near that of always the same answer, {constant:.3g}")
    losses = history["train_loss"].dropna().to_numpy()
    third, last = (part.mean() for part in np.array_split(losses, 4)[2:]) if len(losses) >= 4 else (0.0, 0.0)
    if not gained > 1 - WORTH and last < (1 - FALLING) * third:
        reasons.append(f"the training loss is still falling ({third:.3g} to {last:.3g} in the last half)")
    how = "more epochs, more examples or another learning_rate may change it"
    return f"hardly trained: {'; '.join(reasons)}; {how}" if reasons else None
