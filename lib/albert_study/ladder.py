"""The ladder, drawn: scores from the block of 2020 up to softmax, one change a rung (studies/ladder.yaml)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from albert_study.compare import runs_of, words_of
from albert_study.names import METRICS, TITLES, base_of
from albert_study.records import BASELINES, load
from albert_study.show import GREY, add_legend, dots

# Runs made before the ladder that are a rung of it, by study: their task, and which arm is which rung. In `reformer`
# residual connection and mask are kept. Seeds and rates are others; texts of all but SST-2 are cut at 128 tokens,
# and those of MRPC with more than 64 are hashed.
EARLIER: dict[str, tuple[str, dict[str, str]]] = {
    "transplants": ("sst2", {"reformer": "with-mask", "shared-qk": "tied-keys", "softmax": "softmax"}),
    "minilm": ("mrpc", {"reformer": "with-mask", "shared-qk": "tied-keys", "softmax": "softmax",
                        "key-clusters": "key-clusters"}),
    "more-examples": ("sst2", {"key-clusters-67349": "key-clusters"}),
    "albert": ("kor-sts", {"reformer": "with-mask", "shared-qk": "tied-keys", "softmax": "softmax",
                           "key-clusters": "key-clusters"}),
    "albert-sentiment": ("nsmc", {"reformer": "with-mask", "shared-qk": "tied-keys", "softmax": "softmax"}),
}  # fmt: skip


def earlier_rungs(root: Path) -> pd.DataFrame:
    """Runs of earlier studies that are a rung of the ladder, named as it: those of EARLIER."""
    tables = []
    for study, (task, arms) in EARLIER.items():
        rows = load(root, study) if (root / "results/runs" / study).is_dir() else pd.DataFrame(columns=["task", "arm"])
        tables.append(
            rows[(rows["task"] == task) & rows["arm"].isin([*arms, *BASELINES.values()])].replace({"arm": arms})
        )
    return pd.concat(tables)


def plot_ladder(rows: pd.DataFrame, names: Mapping[str, str], root: Path) -> Figure:
    """Scores rung by rung, a dot a run, hollow where it says the same to everything; one panel a task, at most five.
    Runs at other rates or of more epochs stand in their rung's row; those of another study than the first are crosses.

    Accuracies where tasks have them, since constants are plain there. Lines: a bag of words on the same examples, and
    the constant answer. Tasks with one of the arms alone are left out.

    names: how each arm is called, from top to bottom; others are not drawn.
    """
    runs = runs_of(rows, root)
    runs = runs.assign(arm=runs["arm"].map(base_of))
    runs = runs[runs["arm"].isin(names) & (runs["split"] != "shuffled")]
    has_accuracy = runs["task"].isin(runs.loc[runs["measure"] == "accuracy", "task"])
    runs = runs[(runs["measure"] == "accuracy") | (runs["is_headline"] & ~has_accuracy)]
    first = rows["study"].iloc[0]
    arms = (
        runs[runs["task"].isin(runs.loc[runs["study"] == first, "task"])].groupby("task", sort=False)["arm"].nunique()
    )
    panels = {}
    for task, of_task in runs[runs["task"].isin(arms[arms > 1].nlargest(5).index)].groupby("task", sort=False):
        value = of_task["value"].fillna(of_task["majority class"])  # a constant has no correlation
        lines = of_task.assign(name=of_task["arm"], value=value, full=~of_task["constant"], low=np.nan, high=np.nan)
        is_earlier = lines["study"] != first
        panels[TITLES.get(str(task), str(task))] = lines[~is_earlier].sort_values("seed"), lines[is_earlier]
    most_runs = max(panel.groupby("arm").size().max() for panel, _ in panels.values())
    drawn = {arm: name for arm, name in names.items() if arm in {*runs["arm"]}}
    figure = dots({title: panel for title, (panel, _) in panels.items()}, drawn, max(0.22, 0.045 * most_runs), 0.16)
    for axis, (panel, others) in zip(figure.axes, panels.values(), strict=True):
        axis.plot(others["value"], others["arm"].map(list(drawn).index), "x", color="#888888", markersize=4, zorder=1)
        measure = panel["measure"].iloc[0]
        axis.axvline(panel["majority class"].mean(), color=GREY, linewidth=0.9)
        axis.axvline(words_of(rows, panel, measure).max(), color=GREY, linestyle=":", linewidth=1.2)
        axis.set_xlabel(METRICS[measure])
        axis.margins(x=0.08)
    point: dict[str, Any] = {"marker": "o", "color": "black", "linestyle": "", "markersize": 4}
    handles = {"a run": point, "a run that always gives the same answer": point | {"markerfacecolor": "white"}}
    if any(len(others) for _, others in panels.values()):
        handles["a run of an earlier study"] = {"marker": "x", "color": "#888888", "linestyle": "", "markersize": 4}
    handles |= {"always the same answer": {"color": GREY}, "a bag of words": {"color": GREY, "linestyle": ":"}}
    for label, look in handles.items():
        figure.axes[0].plot([], [], label=label, **look)
    add_legend(figure, figure.axes[0], columns=3)
    return figure
