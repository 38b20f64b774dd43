"""How time and memory grow with the length, and from which length on an attention is faster than softmax; figures."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from albert_lsh.files import repository_root
from albert_study.records import read
from albert_study.show import LOOK, add_legend, curves, look_of, new_figure, save

DRAWN = ("softmax", "reformer-pytorch", "lsh", "key-clusters", "window", "nystrom")  # six of more cases
ON_FRONTIER = ("key-clusters", "lsh", "nystrom", "LSG", "top-k")  # lines of their own; the others are grey points


def slopes(table: pd.DataFrame, value: str) -> pd.Series:
    """The power of the length with which each case grows, fitted on log axes from 2,048 tokens on."""
    cases = table[table["length"] >= 2048].groupby("case", sort=False)
    fits = {case: np.polyfit(np.log(of["length"]), np.log(of[value]), 1)[0] for case, of in cases if len(of) > 1}
    return pd.Series(fits, dtype=float)


def crossing_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The length from which each case is faster than softmax: columns `above` and `up_to`, NaN if it never is.

    Both are the same number, interpolated on log axes, if case and softmax were measured on one machine at one commit
    around it. Otherwise the length lies between the two. Lengths where the machines differ are left out.
    `above` is 0 if a case is faster at the smallest length.

    Args:
        table: a row a case and length, with seconds, device and commit.
    """
    table = table.assign(where=table["device"] + " " + table["commit"])
    values = ("seconds", "device", "where")
    seconds, device, where = (table.pivot(index="length", columns="case", values=value) for value in values)
    bounds = {}
    for case in table["case"][table["case"] != "softmax"].unique():
        ratio = (seconds[case] / seconds["softmax"])[device[case] == device["softmax"]]
        lengths, slower = ratio.index.to_numpy(float), np.flatnonzero(ratio >= 1)
        last = slower[-1] if len(slower) else -1
        if last == len(ratio) - 1:
            bounds[case] = (np.nan, np.nan)
        elif last < 0:
            bounds[case] = (0.0, lengths[0])
        elif where.loc[lengths[last : last + 2], [case, "softmax"]].stack().nunique() > 1:
            bounds[case] = (lengths[last], lengths[last + 1])
        else:
            near = slice(last, last + 2)
            crossing = np.exp(np.interp(0, -np.log(ratio.to_numpy()[near]), np.log(lengths[near])))
            bounds[case] = (crossing, crossing)
    return pd.DataFrame.from_dict(bounds, orient="index", columns=["above", "up_to"])


def at_most_six(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that a figure shows; its table has all."""
    drawn = [case for case in DRAWN if case in set(table["case"])][:6]
    return table[table["case"].isin(drawn)] if table["case"].nunique() > 6 else table


def case_look(case: str) -> dict[str, Any]:
    """Line and marker of a case: those of its attention, the marker hollow for a second form of it."""
    kind = case.split(",")[0]
    hollow = {"markerfacecolor": "white"} if "," in case else {}
    return look_of("reformer" if kind == "reformer-pytorch" else kind) | hollow


def plot_growth(table: pd.DataFrame, value: str, quantity: str, unit: float = 1.0) -> Figure:
    """A quantity of each case against the length, on log axes.

    The legend has the fitted power of the length and, for times, the length from which a case is faster than softmax.
    """
    figure, axes = new_figure(6.6, 4.4)
    table, axis = at_most_six(table), axes[0, 0]
    powers = slopes(table, value)
    faster = crossing_bounds(table).dropna() if value == "seconds" else pd.DataFrame()
    for case, rows in table.groupby("case", sort=False):
        notes = [f"{powers[case]:.1f}"] if pd.notna(powers.get(case)) else []
        if case in faster.index:
            above, up_to = faster.loc[case]
            notes += [f"from {up_to:,.0f}" if above in (0, up_to) else f"from {above:,.0f} to {up_to:,.0f}"]
        label = f"{case} ({', '.join(notes)})" if notes else str(case)
        axis.plot(rows["length"], rows[value] / unit, label=label, **case_look(str(case)))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(xlabel="length (tokens)", ylabel=quantity)
    add_legend(figure, axis, 2)
    return figure


def plot_frontier(table: pd.DataFrame) -> Figure:
    """The error of the output on real text against the time of a layer's attention, as a multiple of softmax's.

    A panel a length, a line an attention; its points are the shares of the pairs that it was asked for. The grey line
    is what seeing the best keys would be, in softmax's time x pairs; grey points are the other attentions.

    table: of `benchmarks/frontier.py`.
    """
    is_softmax = table["case"] == "softmax"
    softmax = table[is_softmax].set_index("length")["seconds"]
    lines = table[~is_softmax].assign(time=table["seconds"] / table["length"].map(softmax), name=table["case"])
    best = lines[lines["case"] == "top-k"].assign(name="best keys, if time were the pairs'", look="")
    is_drawn = lines["case"].isin(ON_FRONTIER)
    drawn = pd.concat([lines[is_drawn].assign(look=lines["case"]), best.assign(time=best["share"])])
    drawn["title"] = drawn["length"].map("{:,} tokens".format)
    figure = curves(
        drawn.sort_values(["length", "time"]), "time", {"error": "error of output"}, "title", size=(6.6, 3.4)
    )
    others = lines[~is_drawn].groupby("length")
    for axis, (_, points) in zip(figure.axes, others, strict=True):
        axis.plot(points["time"], points["error"], linestyle="", marker="o", markersize=2.5, color="#bbbbbb", zorder=1)
        axis.axvline(1, color="black", linewidth=0.6)
        axis.set(xscale="log", yscale="log", xlabel="time / softmax's", xlim=(0.08, 160))
        axis.xaxis.set_major_locator(LogLocator(10, numticks=9))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(NullLocator())
    return figure


def save_efficiency(tables: dict[str, pd.DataFrame], folder: str) -> list[Path]:
    """Save a figure of each of the tables time and memory in a folder, as SVG and PDF; returns the SVGs."""
    figures = {}
    with mpl.rc_context(LOOK):  # without its salt the same figure would be another file
        both = tables["time"][tables["time"]["pass"] == "forward+backward"]
        figures["efficiency-time"] = plot_growth(both, "seconds", "seconds, forward and backward")
        if "memory" in tables:
            peaks = tables["memory"][tables["memory"]["kind"] == "attention"]
            figures["efficiency-memory"] = plot_growth(peaks, "bytes", "peak memory (MiB)", 2**20)
        return [save(figure, Path(folder) / name)[0] for name, figure in figures.items()]


def redraw(root: Path) -> list[Path]:
    """The figures of what was measured below `root` in float32 on a CPU, which are the report's; returns the SVGs."""
    measured = {name: read(root, f"efficiency/{name}-cpu-fp32") for name in ("time", "memory")}
    tables = {name: table for name, table in measured.items() if len(table)}
    drawn = save_efficiency(tables, str(root / "figures")) if "time" in tables else []
    if len(frontier := read(root, "efficiency/frontier")):
        with mpl.rc_context(LOOK):
            drawn.append(save(plot_frontier(frontier), root / "figures" / "frontier")[0])
    return drawn


if __name__ == "__main__":
    print(*redraw(repository_root()), sep="\n")
