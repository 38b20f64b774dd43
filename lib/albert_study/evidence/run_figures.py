"""Figures in which a notebook shows its own run, and how it shows saved ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from sklearn.metrics import ConfusionMatrixDisplay

from albert_lsh.attention import names
from albert_lsh.model.passes import Pass
from albert_study.evidence.looks import style_of


def subplots(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """A figure and its axes; closed for pyplot, so that a notebook shows it once, where it is returned."""
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained", **grid)
    plt.close(figure)
    return figure, axes


def plot_history(history: pd.DataFrame) -> Figure:
    """Training and evaluation loss (nats, of numbers squared errors) against the step; in pretraining also the masked
    tokens' (`mlm_loss`)."""
    figure, axis = subplots(6, 3)
    for name, style in (("train_loss", "-"), ("eval_loss", "o--"), ("mlm_loss", "o--")):
        if name in history:
            rows = history.dropna(subset=[name])
            axis.plot(rows["step"], rows[name], style, label=name.replace("_", " "))
    axis.set(xlabel="optimiser step", ylabel="loss", ylim=(0, None))
    axis.legend(frameon=False)
    return figure


def plot_histories(histories: dict[str, pd.DataFrame], metric: str = "accuracy") -> Figure:
    """Loss in training and evaluation, and a metric in evaluation, against the step, for several runs.

    histories: tables of `recipe.history_of` by the runs' labels; an attention's name gives its colour.
    """
    figure, axes = subplots(9, 3, ncols=2)
    for label, history in histories.items():
        look: dict[str, Any] = {"color": style_of(label).colour} if label in names() else {}
        training, evaluation = (history.dropna(subset=[name]) for name in ("train_loss", "eval_loss"))
        (line,) = axes[0].plot(training["step"], training["train_loss"], linewidth=0.8, **look)
        for axis, column in zip(axes, ("eval_loss", metric), strict=True):
            axis.plot(evaluation["step"], evaluation[column], "o--", color=line.get_color(), label=label)
    axes[0].set(xlabel="optimiser step", ylabel="loss", ylim=(0, None))
    axes[1].set(xlabel="optimiser step", ylabel=metric)
    axes[0].legend(frameon=False)
    return figure


def plot_answers(labels: np.ndarray, predictions: np.ndarray, names: list[str] | None) -> Figure:
    """A confusion matrix; for a task that predicts a number (no `names`), predictions against labels."""
    figure, axis = subplots(4, 3.4)
    if names:
        ConfusionMatrixDisplay.from_predictions(
            labels, predictions, labels=range(len(names)), display_labels=names, cmap="Greys", ax=axis, colorbar=False
        )
    else:
        axis.plot(labels, predictions, ".", alpha=0.3)
        axis.set(xlabel="label", ylabel="prediction")
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
    panels = {"softmax's weights": weights.cpu(), f"keys seen under {seen.attention}": counts.cpu() > 0}
    size = min(10.0, 2.5 + 0.13 * len(tokens))
    figure, axes = subplots(2 * size, size, ncols=2)
    for axis, (title, image) in zip(axes, panels.items(), strict=True):
        axis.imshow(image, interpolation="nearest", cmap="Greys", vmin=0, vmax=float(image.max()))
        axis.set(title=title, xlabel="key", ylabel="query")
        if len(tokens) <= 80:
            axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
            axis.set_yticks(range(len(tokens)), tokens, fontsize=7)
    return figure


def plot_fidelity(table: pd.DataFrame) -> Figure:
    """Share of the score that is kept, and error of the attention's output, against the share of pairs attended."""
    figure, axes = subplots(8, 3.2, ncols=2)
    for name, rows in table.sort_values("share").groupby("attention", sort=False):
        style = style_of(str(name))
        look = {"color": style.colour, "linestyle": style.line, "marker": style.marker, "label": name}
        axes[0].plot(rows["share"], rows["kept"], **look)
        axes[1].plot(rows["share"], rows["error"], **look)
    axes[0].axhline(1, color="black", linewidth=0.6)
    axes[0].set(xlabel="share of pairs attended", ylabel="share of the score kept", ylim=(-0.1, 1.1))
    axes[1].set(xlabel="share of pairs attended", ylabel="error of the attention's output", ylim=(0, None))
    axes[1].legend(frameon=False)
    return figure


def plot_heads(looks: pd.DataFrame) -> Figure:
    """Error of the attention's output by layer and head, one panel a variant."""
    if "share_asked" in looks:  # a variant for each share that it was asked for
        shares = looks["share_asked"].map(lambda share: "" if pd.isna(share) else f" {share:g}")
        looks = looks.assign(variant=looks["variant"] + shares)
    variants = list(looks["variant"].unique())
    columns = min(4, len(variants))
    rows = -(-len(variants) // columns)
    figure, axes = subplots(2.6 * columns, 1.9 * rows, nrows=rows, ncols=columns, squeeze=False)
    means = looks.groupby(["variant", "layer", "head"])["error"].mean().reset_index()
    for axis, variant in zip(axes.flat, variants, strict=False):
        grid = means[means["variant"] == variant].pivot(index="layer", columns="head", values="error")
        image = axis.imshow(grid, cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axis.set_title(variant, fontsize=8)
        axis.set(xlabel="head", ylabel="layer", xticks=range(grid.shape[1]), yticks=range(grid.shape[0]))
    for axis in list(axes.flat)[len(variants) :]:
        axis.axis("off")
    figure.colorbar(image, ax=axes, label="error")
    return figure


def show_figure(svg: Path) -> None:
    """Show a saved figure in a notebook, as SVG and PNG: JupyterLab hides SVG in notebooks it does not trust."""
    display({"image/svg+xml": svg.read_text(), "image/png": svg.with_suffix(".png").read_bytes()}, raw=True)
