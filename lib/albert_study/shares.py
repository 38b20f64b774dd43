"""Attentions at several shares of the pairs: from which on are they as good as softmax? (studies/lsh-limit.yaml)"""

import re

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from albert_study.names import METRICS, SHARES, TITLES, look_of, scale_of
from albert_study.show import add_legend, new_figure

ARM = re.compile(rf"^(.+)-({'|'.join(SHARES)})$")  # an attention, and its share
NAMES = {"lsh": "LSH", "lsh-mean": "LSH, mean key", "key-clusters": "key clusters, mean key"}
NAMES |= {"random-mean": "random keys, mean key", "smyrf-2x32": "SMYRF, 2 × 32"}
WITHIN = 2  # points below softmax that the study takes for as good
AXES = {"pairs": "pairs seen, %", "cost": "full cost, %"}


def has_shares(arms: list[str]) -> bool:
    """Whether arms of a study are one attention at several shares."""
    bases = [match[1] for arm in arms if (match := ARM.fullmatch(arm))]
    return len(bases) > len(set(bases))


def plot_shares(runs: pd.DataFrame) -> Figure:
    """Every run's score against the pairs that it saw, and against its full cost; a row of panels a task of several
    shares.

    runs: of `headlines`. Runs of an attention are joined from share to share, by their means. Grey: as good as softmax.
    """
    bases = runs["arm"].str.replace(ARM.pattern, r"\1", regex=True)
    runs = runs.assign(base=bases)
    tasks = [task for task in runs["task"].unique() if has_shares([*runs.loc[runs["task"] == task, "arm"].unique()])]
    figure, axes = new_figure(6.6, 2.2 * len(tasks) + 0.7, nrows=len(tasks), ncols=len(AXES), sharey="row")
    for row, task in enumerate(tasks):
        of_task = runs[runs["task"] == task]
        metric = str(of_task["measure"].iloc[0])
        softmax = of_task.loc[of_task["arm"] == "softmax", "value"].mean()
        for axis, (x, label) in zip(axes[row], AXES.items(), strict=True):
            axis.axhline(softmax, color="black", linewidth=0.8, label="softmax")
            axis.axhspan(softmax - WITHIN * scale_of(task, metric)[0] / 100, softmax, color="#dddddd", zorder=0)
            for base, name in NAMES.items():
                if (points := of_task[of_task["base"] == base]).empty:
                    continue
                look = look_of(base.removesuffix("-mean").split("-2")[0]) | {"linewidth": 0.8, "markersize": 4}
                if base == "lsh":
                    look |= {"markerfacecolor": "white"}
                means = points.groupby("arm")[[x, "value"]].mean().sort_values(x)
                axis.plot(points[x], points["value"], **look | {"linestyle": ""})
                axis.plot(means[x], means["value"], **look | {"marker": ""})
                axis.plot([], [], label=name, **look)
            axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
            axis.set_xlim(0, 1.06 * of_task.loc[of_task["arm"] != "softmax", x].max())
            axis.set(
                title=TITLES.get(task, task) if x == "pairs" else "", xlabel=label if row + 1 == len(tasks) else ""
            )
        axes[row, 0].set_ylabel(METRICS[metric])
    add_legend(figure, axes[0, 0], columns=3)
    return figure
