"""Pictures that a notebook shows of its own run."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from sklearn.metrics import ConfusionMatrixDisplay

from albert_lsh.model import Pass


def plot_history(history: pd.DataFrame) -> Figure:
    """Training and evaluation loss against the step."""
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    for name, style in (("train_loss", "-"), ("eval_loss", "o--")):
        if name in history:
            rows = history.dropna(subset=[name])
            axis.plot(rows["step"], rows[name], style, label=name.replace("_", " "))
    axis.set(xlabel="optimiser step", ylabel="loss (nats)", ylim=(0, None))
    axis.legend(frameon=False)
    plt.close(figure)  # a notebook shows the figure that is returned, once
    return figure


def plot_answers(labels: np.ndarray, predictions: np.ndarray, names: list[str] | None) -> Figure:
    """A confusion matrix; for a task that predicts a number (no `names`), predictions against labels."""
    figure, axis = plt.subplots(figsize=(4, 3.4), layout="constrained")
    if names:
        ConfusionMatrixDisplay.from_predictions(
            labels, predictions, labels=range(len(names)), display_labels=names, cmap="Greys", ax=axis, colorbar=False
        )
    else:
        axis.plot(labels, predictions, ".", alpha=0.3)
        axis.set(xlabel="label", ylabel="prediction")
    plt.close(figure)
    return figure


def plot_attention(seen: Pass, tokens: list[str], head: int = 0) -> Figure:
    """For one sequence and head: softmax's weights, and which keys each query really sees.

    Args:
        seen: a pass recorded on a batch of one sequence.
        tokens: its tokens, for the axes.
    """
    query, key = seen.query[0, head].float(), seen.key[0, head].float()
    weights = (query @ key.T * query.shape[-1] ** -0.5).softmax(-1)
    counts = seen.pairs()[0, head]
    panels: list[tuple[Any, str, dict[str, Any]]] = [
        (weights.cpu(), "softmax's weights", dict(cmap="Greys")),
        (counts.cpu() > 0, f"keys seen under {seen.attention}", dict(cmap="Greys", vmin=0, vmax=1)),
    ]
    size = min(10.0, 2.5 + 0.13 * len(tokens))
    figure, axes = plt.subplots(1, 2, figsize=(2 * size, size), layout="constrained")
    for axis, (image, title, style) in zip(axes, panels, strict=True):
        axis.imshow(image, interpolation="nearest", **style)
        axis.set(title=title, xlabel="key", ylabel="query")
        if len(tokens) <= 80:
            axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
            axis.set_yticks(range(len(tokens)), tokens, fontsize=7)
    plt.close(figure)
    return figure
