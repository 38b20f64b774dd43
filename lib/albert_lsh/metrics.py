"""Scores of answers, what the majority class and uniform random guessing reach, and what a model attends to.

GLUE's metrics by task (Wang et al. 2019), computed by scikit-learn and scipy; `squad` has SQuAD's official ones.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor, nn
from transformers import PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.attention import Coverage
from albert_lsh.attention.rows import count_tokens
from albert_lsh.interface import Pass, record_passes

logger = logging.getLogger(__name__)

WORTH, FALLING = 0.15, 0.1  # see `hardly_trained`
NEARLY_ALL = 0.95  # of the pairs; reformer never attends to a query's own key
AT_ONCE, SHORT = 8, 512  # so many examples of up to so many tokens are looked into together

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
    """The scores of always answering with the class most frequent in training."""
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


def by_split(table: pd.DataFrame, score_rows: Callable[[pd.DataFrame], dict[str, float]]) -> dict[str, float]:
    """A score of each split's rows; the metrics of a second split have its name behind them (accuracy_mismatched)."""
    values: dict[str, float] = {}
    for split, rows in table.groupby("split", sort=False):
        suffix = "_" + str(split).removeprefix("validation_") if values else ""
        values |= {name + suffix: value for name, value in score_rows(rows).items()}
    return values


def intervals(
    table: pd.DataFrame, score_rows: Callable[[pd.DataFrame], dict[str, float]], draws: int = 400
) -> dict[str, list[float]]:
    """The 95% interval [low, high] of each score over the examples: percentiles of a bootstrap within each split.

    Args:
        table: a task's predictions. score_rows: what is to have intervals, such as the task's `mean_scores`.
    """
    parts: Any = table.groupby(table["split"] if "split" in table else np.zeros(len(table)), sort=False)
    generator = np.random.default_rng(0)
    drawn = [score_rows(parts.sample(frac=1, replace=True, random_state=generator)) for _ in range(draws)]
    bounds = pd.DataFrame(drawn).quantile([0.025, 0.975])
    return {str(name): bounds[name].tolist() for name in bounds}


def mean_coverage(passes: Iterable[Pass]) -> Coverage:
    """The coverage of several passes: means over all their pairs, of the mass over all their queries.

    Warns of a sparse attention that attends to (nearly) all pairs.
    """
    weighted, weights, chooses = np.zeros(3), np.zeros(3), ""
    for one in passes:
        tokens = count_tokens(one.query, one.padding_mask)
        pairs = int(tokens.square().sum())
        weight = np.array(Coverage(pairs, int(tokens.sum()), pairs), float)
        weighted, weights = weighted + weight * one.coverage(), weights + weight
        chooses = one.attention if attentions.chooses_keys(one.attention) else chooses
    coverage = Coverage(*(weighted / weights.clip(min=1)).tolist())  # 0 for nothing but padding
    if chooses and coverage.pairs > NEARLY_ALL:
        all_pairs = f"attention={chooses!r} attends to {coverage.pairs:.0%} of the pairs, as softmax does"
        fewer = 'such as {"share": 0.25}, or of reformer smaller bucket_size and full_attn_thres'
        logger.warning("%s; attention_settings %s, would leave pairs out", all_pairs, fewer)
    return coverage


@torch.no_grad()
def recorded(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Iterator[Pass]:
    """What every attention of the model was called with, batch after batch; one batch's is kept at a time.

    batches: the model's inputs by name, on its device.
    """
    for batch in batches:
        with record_passes(model) as passes:
            model(**batch)
        yield from passes


def mean_attended(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Coverage:
    """The `mean_coverage` of a model in evaluation, over all passes, heads and batches (as `recorded` takes them)."""
    return mean_coverage(recorded(model.eval(), batches))


def sample(model: PreTrainedModel, tokenizer: Any, data: Dataset, examples: int) -> Iterator[Any]:
    """Inputs of `examples` examples spread evenly over `data` (all, if it has fewer), at most eight at a time.

    They stand in the middle of as many parts: of texts sorted by length, the first of each would be too short. Above
    512 tokens there are fewer at a time: what is asked of them takes memory for every pair.
    """
    count = min(examples, len(data))
    rows = data.select([(2 * number + 1) * len(data) // (2 * count) for number in range(count)])
    rows = rows.select_columns([name for name in tokenizer.model_input_names if name in data.column_names])
    longest = max(map(len, rows["input_ids"]))
    at_once = max(1, min(AT_ONCE, AT_ONCE * SHORT**2 // longest**2))
    for start in range(0, len(rows), at_once):
        batch = rows.select(range(start, min(start + at_once, len(rows)))).to_dict()
        yield tokenizer.pad(batch, return_tensors="pt").to(model.device)


def attended(model: PreTrainedModel, tokenizer: Any, data: Dataset, examples: int = 64) -> Coverage:
    """What the model attends to in evaluation, over all passes and heads of so many examples; of long ones fewer, with
    as many pairs as examples of SHORT tokens have.

    Padding that is not masked counts as tokens, in softmax too (`attention.Coverage`).
    Pairs and cost are shares of what softmax has on the whole texts: with max_length=16 an attention that sees every
    pair of 16 tokens sees a quarter of those of a text of 32.
    """
    longest = max(data["length"]) if "length" in data.column_names else 0
    if longest > SHORT:
        examples = max(1, examples * SHORT**2 // longest**2)
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
