"""The figures of documents: `write_figures("minilm")` draws figures/minilm-*, and what studies share.

    python -m albert_study.figures          all of them
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from albert_lsh.tasks.table import find_task
from albert_lsh.training.files import repository_root
from albert_study.compare import ARMS, METRICS, TRAINED, base_of, in_order, runs_of, scale_of
from albert_study.compare import MARGIN
from albert_study.records import list_studies, load, load_history, wide
from albert_study.show import LOOK, add_legend, curves, dots, plain, save
from albert_study.tables import OBJECTIVES, TITLES, between, read

TICKS = (-0.5, -0.05, 0.0, 0.05)  # of differences of scores from 0 to 1


def histories(runs: pd.DataFrame, root: Path) -> pd.DataFrame:
    """The curves of runs below each other, by arm as `name`."""
    tables = [load_history((root / run["record"]).parent).assign(name=run["arm"], attention=run["attention"]) for run in runs.to_dict("records")]
    return pd.concat(tables).round({"epoch": 4})


def seeds_of(runs: pd.DataFrame) -> str:
    """How many seeds the arms have: "3 seeds", or "1 to 3 seeds" where they differ."""
    counts = runs.groupby("arm")["seed"].nunique()
    return f"{between(counts)} seed{'s' if counts.max() > 1 else ''}"


def plot_loss(runs: pd.DataFrame, root: Path) -> Figure:
    """Training and evaluation loss of one task against the optimiser step."""
    task = find_task(runs["task"].iloc[0])
    unit = "squared error" if task.is_regression else "nats"
    figure = curves(histories(runs, root), "step", {"train_loss": f"loss ({unit})", "eval_loss": ""}, size=(6.6, 2.7))
    figure.axes[0].set(title=f"{task.name}, training", ylim=(0, None))
    figure.axes[1].set(title=f"evaluation ({seeds_of(runs)})", ylim=figure.axes[0].get_ylim())
    for axis in figure.axes:
        axis.set(xlabel="optimiser step", xlim=(0, None))
    return figure
