"""Figures of time, memory and quality, from the tables of `measure.measure_efficiency`.

`python -m albert_study.efficiency.figures` draws those of the report again, from results/efficiency/.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from albert_lsh.files import repository_root
from albert_study.evidence.growth import IN_BLOCKS, NOT_DRAWN, crossing_bounds, slopes
from albert_study.evidence.looks import LOOK, add_legend, new_figure, save, style_of
from albert_study.evidence.records import load_measurements


def case_look(case: str) -> dict[str, Any]:
    """Line and marker of a case: those of its attention, the marker hollow for a second form of it."""
    kind = case.split(",")[0]
    style = style_of("reformer" if kind == "reformer-pytorch" else kind)
    hollow = {"markerfacecolor": "white"} if "," in case else {}
    return {"color": style.colour, "linestyle": style.line, "marker": style.marker} | hollow


def plot_growth(table: pd.DataFrame, value: str, quantity: str, unit: float = 1.0) -> Figure:
    """A quantity of each case against the length, on log axes.

    The legend has the fitted power of the length and, for times, the length from which a case is faster than softmax.
    """
    figure, axes = new_figure(6.6, 4.4)
    axis, powers = axes[0, 0], slopes(table, value)
    faster = crossing_bounds(table).dropna() if value == "seconds" else pd.DataFrame()
    for case, rows in table.groupby("case", sort=False):
        if case in NOT_DRAWN:
            continue
        notes = [f"{powers[case]:.1f}"] if pd.notna(powers.get(case)) else []
        if case in faster.index:
            above, up_to = faster.loc[case]
            known = above in (0, up_to)
            notes += [f"from {up_to:,.0f}" if known else f"from {above:,.0f} to {up_to:,.0f}"]
        label = f"{case} ({', '.join(notes)})" if notes else str(case)
        axis.plot(rows["length"], rows[value] / unit, label=label, **case_look(str(case)))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(xlabel="length (tokens)", ylabel=quantity)
    add_legend(figure, axis, 2)
    return figure


def plot_quality(table: pd.DataFrame) -> Figure:
    """What is kept of softmax attention on real text against the time it takes, one point per case."""
    figure, axes = new_figure(6.6, 3.6, ncols=2)
    table = table[table["case"] != IN_BLOCKS]
    estimates = table["case"].str.startswith(("nystrom", "yoso"))  # no key is left out: all mass is there
    panels = {"mass": ("softmax's mass on the keys attended", table[~estimates]), "error": ("error of output", table)}
    for axis, (value, (label, rows)) in zip(axes[0], panels.items(), strict=True):
        for case, seconds, found in zip(rows["case"], rows["seconds"], rows[value], strict=True):
            axis.plot(seconds, found, label=case, **case_look(case) | {"linestyle": ""})
        axis.set_xscale("log")
        axis.set(xlabel="seconds, forward and backward, all layers", ylabel=label)
    add_legend(figure, axes[0, 1], 3)  # its panel has all cases
    return figure


def draw_efficiency(tables: dict[str, pd.DataFrame]) -> dict[str, Figure]:
    """A figure for each of the tables time, memory and quality, by file name."""
    figures = {}
    with mpl.rc_context(LOOK):
        both = tables["time"][tables["time"]["pass"] == "forward+backward"]
        figures["efficiency-time"] = plot_growth(both, "seconds", "seconds, forward and backward")
        if "memory" in tables:
            peaks = tables["memory"][tables["memory"]["kind"] == "attention"]
            figures["efficiency-memory"] = plot_growth(peaks, "bytes", "peak memory (MiB)", 2**20)
        if "quality" in tables:
            figures["efficiency-quality"] = plot_quality(tables["quality"])
    return figures


def save_efficiency(tables: dict[str, pd.DataFrame], folder: str) -> list[Path]:
    """Save the figures of the tables in a folder, as SVG and PDF; returns the SVGs."""
    with mpl.rc_context(LOOK):  # without its salt the same figure would be another file
        return [save(figure, Path(folder) / name)[0] for name, figure in draw_efficiency(tables).items()]


def redraw(root: Path) -> list[Path]:
    """The figures of what was measured below `root` in float32 on a CPU, which are the report's; returns the SVGs."""
    names = ("time", "memory", "quality")
    measured = {name: load_measurements(f"{name}-cpu-fp32", "efficiency", root) for name in names}
    tables = {name: rows for name, rows in measured.items() if len(rows)}
    return save_efficiency(tables, str(root / "figures")) if "time" in tables else []


if __name__ == "__main__":
    print(*redraw(repository_root()), sep="\n")
