"""How figures look: a colour, a line style, a marker and a hatch for each attention, the same in every figure.

So they can be read in grey too. Figures are vector, and the same, byte for byte, whenever the data are.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from albert_lsh.attention import names
from albert_study.evidence.differences import TRAINED


class Style(NamedTuple):
    """How an attention looks."""

    colour: str
    line: Any
    marker: str
    hatch: str


STYLES = {  # colours after Okabe and Ito, told apart by colour-blind readers too
    "softmax": Style("#000000", "-", "o", ""),
    "softmax-eager": Style("#7f7f7f", "-", "h", ""),
    "reformer": Style("#d55e00", "--", "s", "///"),
    "shared-qk": Style("#e69f00", "-.", "^", "\\\\\\"),
    "shared-qk-lsh": Style("#cc79a7", (0, (6, 1, 1, 1, 1, 1)), "v", "xxx"),
    "plain-lsh": Style("#999933", (0, (3, 1.5)), "d", "xx"),
    "lsh": Style("#0072b2", (0, (7, 1.5)), "D", "---"),
    "window": Style("#56b4e9", ":", "P", "..."),
    "random": Style("#009e73", (0, (1, 1.5)), "X", "|||"),
    "top-k": Style("#cfae00", (0, (3, 1, 1, 1)), "*", "++"),
    "nystrom": Style("#882255", (0, (5, 1, 1, 1, 1, 1)), "p", "oo"),
    "yoso": Style("#44aa99", (0, (2, 1)), "<", "OO"),
    "yoso-e": Style("#117733", (0, (4, 2)), ">", "**"),
    # arms of studies that are more than an attention
    "new": Style("#aa4499", (0, (8, 2)), "H", "////"),
    "new-best-rate": Style("#882266", (0, (5, 1)), "h", "///"),
    "new-shared-qk-lsh": Style("#cc6677", (0, (3, 1, 1, 1, 1, 1)), "8", "\\\\"),
    "lsh-third": Style("#4477aa", (0, (2, 2)), "D", "--"),
    "lsh-half": Style("#88bbdd", (0, (4, 2)), "D", "-"),
    "truncated": Style("#666666", (0, (1, 1)), "o", ".."),
}
SPARE = (  # for attentions that are added
    Style("#661100", (0, (5, 2)), "s", "//"),
    Style("#332288", (0, (2, 1, 1, 1)), "^", "\\\\"),
    Style("#888888", (0, (6, 2, 1, 2)), "o", "oo"),
)
LOOK: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "svg.hashsalt": "albert-lsh",
    "pdf.fonttype": 42,
}


def style_of(attention: str) -> Style:
    """The style of an attention, or of an arm that has its own.

    An attention added to the library gets a spare one, anything else is grey.
    """
    added = (name for name in names() if name not in STYLES)
    return {**dict(zip(added, SPARE, strict=False)), **STYLES}.get(attention, Style("#999999", "-", "*", "++"))


def look_of(arm: str, attention: str) -> str:
    """Whose style an arm has: its own where it has one, however it was trained, else its attention's."""
    shorter = TRAINED.sub("", arm)
    return shorter if shorter in STYLES else attention


def hollow(attentions: "pd.Series[str]") -> dict[str, dict[str, Any]]:
    """Matplotlib's arguments for variants, in the colour of their attention.

    The first variant of an attention has a full marker, the second a hollow one, the others other hollow ones.

    attentions: by variant.
    """
    looks: dict[str, dict[str, Any]] = {}
    for (variant, attention), rank in zip(attentions.items(), attentions.groupby(attentions).cumcount(), strict=True):
        style = style_of(attention)
        marker = (style.marker, style.marker, "s", "^", "v")[min(rank, 4)]
        look = {"color": style.colour, "linestyle": style.line, "marker": marker}
        size = {"markersize": 5, "markeredgewidth": 0.8}  # a smaller hollow marker looks like a full one
        looks[str(variant)] = look | size | ({"markerfacecolor": "white"} if rank else {})
    return looks


def plain(text: object) -> str:
    """The text with its dollar signs escaped: Matplotlib reads what is between two of them as a formula."""
    return str(text).replace("$", r"\$")


def lighter(colour: str) -> tuple[float, ...]:
    """The colour mixed with white; opaque, because a transparent hatched surface loses its hatch in SVG."""
    return tuple(0.6 + 0.4 * part for part in to_rgb(colour))


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """A figure of this size in inches with a grid of axes, always a two-dimensional array."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(squeeze=False, **grid)


def add_legend(figure: Figure, axis: Axes, columns: int) -> None:
    """The axis's legend below the whole figure."""
    look: dict[str, Any] = {"ncols": columns, "fontsize": 8, "handlelength": 2.4, "columnspacing": 0.9}
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", **look)


def settle(figure: Figure) -> None:
    """Lay the figure out, once, and round where its axes are: the last digits of Matplotlib's solver differ between
    processes."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:
        bounds = (round(number, 6) for number in axis.get_position(original=True).bounds)
        axis.set_position(Bbox.from_bounds(*bounds))


def save(figure: Figure, stem: Path) -> list[Path]:
    """The figure as <stem>.svg, <stem>.pdf and <stem>.png (150 dots an inch), each in one step and without dates."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    settle(figure)
    for kind, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None}), ("png", {})):
        partial = stem.with_name(f"{stem.name}.partial.{kind}")
        figure.savefig(partial, format=kind, metadata=metadata, dpi=150)
        os.replace(partial, f"{stem}.{kind}")
    return [Path(f"{stem}.{kind}") for kind in ("svg", "pdf", "png")]
