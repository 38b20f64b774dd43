"""How anything is shown: `form`, the one formatter of numbers; `table`, a pivot; plots: `curves`, `dots`, maps.

Figures are vector; `names` has the colours.
"""

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from albert_study.names import look_of, looks_of

if TYPE_CHECKING:  # a model takes seconds to import
    from albert_lsh.interface import Pass

Line = Mapping[Any, Any]  # of a table of numbers
Cells = Mapping[str, str | Callable[[Line], str]]  # by title of a column its template, see `table`


# ---- tables ---------------------------------------------------------------------------------------------------------
class Table(NamedTuple):
    """A table to be read: titles of its columns, the first that of the labels; its cells; what was measured."""

    titles: list[str]
    rows: list[list[str]]
    note: str = ""

    def frame(self) -> pd.DataFrame:
        """The labels are its index."""
        labels, *columns = zip(*self.rows, strict=True)
        index = pd.Index(labels, name=self.titles[0] or None)
        return pd.DataFrame(dict(enumerate(columns)), index).set_axis(self.titles[1:], axis="columns")


def form(value: Any, how: str = "") -> str:
    """A number as it is written; nothing where there is none.

    how: the number of decimals, with "%" in front for a percentage, "p" for one without its sign, "+" for a sign; "P"
        for a p-value, "," for thousands, "" for a text. 0.125 is "13%" as "%", "12.5" as "p1", "+0.1" as "+1".

    Decimals are rounded half away from zero: 58.65 becomes 58.7. Python's own formats round the binary value, to 58.6.
    """
    if is_missing(value):
        return ""
    if not how or isinstance(value, str):
        return str(value)
    if how == ",":
        return f"{value:,.0f}"
    if how == "P":
        return "<.001" if value < 0.001 else form(value, "3")
    kind, digits = (how[0], how[1:] or "0") if how[0] in "+%p" else ("", how)
    number = Decimal(str(value)) * (100 if kind in ("%", "p") else 1)
    shown = (abs(number) if kind == "+" else number).quantize(Decimal(1).scaleb(-int(digits)), ROUND_HALF_UP)
    # -0.0003 is "-0.000" with a sign: an interval that begins there holds zero
    sign = ("-" if number < 0 else "+") if kind == "+" else ""
    return f"{sign}{shown if shown else abs(shown):f}{'%' if kind == '%' else ''}"


def is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def columns(spec: str) -> dict[str, Any]:
    """Titles and templates of a table's cells: "pairs={pairs:%}; cost={cost:%}"."""
    return dict(column.split("=", 1) for column in spec.split("; "))


def fill(template: str, line: Line) -> str:
    """A template with a line's numbers in their places: "{score:3} ± {sd:3} ({seeds:0})". Decimals "s": its `digits`.

    A number that is missing takes the text before it along; where the first is missing, all is empty.
    """
    filled, known = "", True
    for number, (text, name, how, _) in enumerate(Formatter().parse(template)):
        value = line.get(name) if name else None
        if name is None:
            filled += text if known else ""
        elif is_missing(value) and number == 0:
            return ""
        elif known := not is_missing(value):
            filled += text + form(value, (how or "").replace("s", f"{line.get('digits', 3):.0f}"))
    return filled


def table(
    lines: pd.DataFrame,
    label: str,
    cells: Cells,
    across: str | list[str] | None = None,
    order: Iterable[str] | None = None,
    note: str = "",
    corner: str = "",
) -> Table:
    """A table of the numbers in `lines`, one row a line; with `across` a pivot of them.

    Args:
        label: the template of a row's label, see `fill`.
        cells: by title of a column the template of its cells, or a function of a line that gives one.
        across: for each different value of these columns, in the order of the lines, all of `cells`, whose titles are
            then templates too; columns without a number are left out. Rows are the different labels.
        order: of the labels, where it is not that of the lines.
    """
    columns: dict[str, dict[Any, str]] = {}
    for _, group in lines.groupby(across, sort=False, dropna=False) if across else [(None, lines)]:
        each = group.to_dict("records")
        places = [fill(label, line) for line in each] if across else range(len(each))
        for title, cell in cells.items():
            templates = [cell(line) if callable(cell) else cell for line in each]
            filled = map(fill, templates, each)
            column = dict(zip(places, filled, strict=True))
            if not across or any(column.values()):
                columns.setdefault(title.format_map(each[0]) if across else title, {}).update(column)
    labels = [fill(label, line) for line in lines.to_dict("records")]
    named = {name: name for name in (labels if order is None else order)} if across else dict(enumerate(labels))
    rows = [[name, *(column.get(place, "") for column in columns.values())] for place, name in named.items()]
    return Table([corner, *columns], rows, note)


# ---- plots ----------------------------------------------------------------------------------------------------------
CHARACTERS = 19  # of a legend, in an inch
MARKED = 12  # points of a curve; longer ones have no markers
GREY = "#444444"  # of lines that are no run
LOOK: Any = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 8.5, "axes.spines.top": False,
    "axes.spines.right": False, "lines.linewidth": 1.1, "lines.markersize": 3.5, "legend.frameon": False,
    "svg.hashsalt": "albert-lsh", "pdf.fonttype": 42,
}  # fmt: skip


def plain(text: object) -> str:
    """The text with its dollar signs escaped: Matplotlib reads what is between two of them as a formula."""
    return str(text).replace("$", r"\$")


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """A figure of this size in inches with a grid of axes, always a two-dimensional array."""
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained", squeeze=False, **grid)
    pyplot.close(figure)  # a notebook shows it once, where it is returned
    return figure, axes


def add_legend(figure: Figure, axis: Axes, columns: int) -> None:
    """The axis's legend below the whole figure, in as many columns as there is room for, at most `columns`."""
    handles, labels = axis.get_legend_handles_labels()
    widest = max(map(len, labels), default=0) + 7  # its line, and what is left free
    columns = max(1, min(columns, int(CHARACTERS * figure.get_figwidth() / widest)))
    look: dict[str, Any] = {"ncols": columns, "fontsize": 8, "handlelength": 2.4, "columnspacing": 0.9}
    figure.legend(handles, labels, loc="outside lower center", **look)


def save(figure: Figure, stem: Path) -> list[Path]:
    """The figure as <stem>.svg, <stem>.pdf and <stem>.png (150 dots an inch), each in one step and without dates.

    The same figure is the same file in every process: the layout is made once, and the places of axes are rounded,
    since the last digits of Matplotlib's solver differ.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:
        axis.set_position(Bbox.from_bounds(*(round(number, 6) for number in axis.get_position(original=True).bounds)))
    for kind, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None}), ("png", {})):
        partial, drawn = stem.with_name(f"{stem.name}.partial.{kind}"), io.BytesIO()  # where no disk can be full
        figure.savefig(drawn, format=kind, metadata=metadata, dpi=150)
        partial.write_bytes(drawn.getvalue())
        os.replace(partial, f"{stem}.{kind}")
    return [Path(f"{stem}.{kind}") for kind in ("svg", "pdf", "png")]


def show_figure(svg: Path) -> None:
    """Show a saved figure in a notebook, as SVG and PNG: JupyterLab hides SVG in notebooks it does not trust."""
    display(
        {"image/svg+xml": svg.read_text(encoding="utf-8"), "image/png": svg.with_suffix(".png").read_bytes()}, raw=True
    )


# ---- plots ----------------------------------------------------------------------------------------------------------
def curves(
    lines: pd.DataFrame,
    x: str,
    panels: Mapping[str, str],
    across: str | None = None,
    titles: Iterable[str] = (),
    size: tuple[float, float] = (6.6, 2.7),
) -> Figure:
    """A curve for each `name`: the mean of its lines at each x, in a band from the lowest to the highest.

    Args:
        lines: columns name; attention or look, whose look it has; x; and those of `panels`. Where there are
            <panel>_low and <panel>_high, a bar between them takes the band's place.
        panels: by column what its axis says, side by side; with `across` below each other, a column of panels for each
            of its values.
        titles: of the panels that are side by side.
    """
    groups = list(lines.groupby(across, sort=False)) if across else [("", lines)]
    grid: dict[str, Any] = {"nrows": len(panels), "ncols": len(groups), "sharey": "row"}
    figure, axes = new_figure(*size, **(grid if across else {"ncols": len(panels)}))
    looks = looks_of(lines)
    for column, (title, group) in enumerate(groups):
        for row, (y, label) in enumerate(panels.items()):
            axis = axes[row, column] if across else axes[0, row]
            for name, curve in group.dropna(subset=[x, y]).groupby("name", sort=False):
                points, look = curve.groupby(x)[y].agg(["mean", "min", "max"]), looks[str(name)]
                colour = look["color"]
                if len(points) > MARKED:
                    look = look | {"marker": "", "alpha": 0.5 if "markerfacecolor" in look else 1}
                axis.plot(points.index, points["mean"], label=plain(name), **look)
                if f"{y}_low" in curve:
                    axis.vlines(curve[x], curve[f"{y}_low"], curve[f"{y}_high"], color=colour, linewidth=0.9)
                else:
                    axis.fill_between(points.index, points["min"], points["max"], color=colour, alpha=0.15, linewidth=0)
            axis.set(title=plain(title) if row == 0 else "", ylabel=label if column == 0 else "")
            axis.set_xlabel("" if across and row + 1 < len(panels) else x)
    for axis, title in zip(figure.axes, titles, strict=False):
        axis.set_title(plain(title))
    fullest = max(figure.axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
    add_legend(figure, fullest, 4 if size[0] > 5 else 3)
    return figure


def level(name: str, lines: pd.DataFrame, x: str, **values: float) -> pd.DataFrame:
    """Two lines for `curves`, of something that is the same at every x of `lines`."""
    return pd.DataFrame({"name": name, x: [lines[x].min(), lines[x].max()], **values})


def dots(
    panels: Mapping[str, pd.DataFrame], names: Mapping[str, str], height: float = 0.17, step: float = 0.22
) -> Figure:
    """A row for each of `names`, a panel side by side for each table: points at `value`, a line from `low` to `high`.

    Args:
        panels: by title, lines with name, value, low, high, and full (whether the point is); where there is `other`, a
            hollow point there; `attention` colours a name that has no colour. Several lines of a name stand below each
            other, `step` of a row apart at most.
        names: how each is called, from top to bottom.
        height: inches of a row.
    """
    figure, axes = new_figure(6.6, height * len(names) + 1.15, ncols=len(panels), sharey=True)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for number, name in enumerate(names):
            points = lines[lines["name"] == name]
            attention = points["attention"].iloc[0] if "attention" in points and len(points) else ""
            colour = look_of(name, attention)["color"]
            places = number + (np.arange(len(points)) - (len(points) - 1) / 2) * min(step, 0.7 / max(1, len(points)))
            axis.hlines(places, points["low"], points["high"], color=colour, linewidth=0.9)
            for full, face in ((True, colour), (False, "white")):
                chosen = (points["full"] == full).to_numpy()
                axis.plot(points["value"][chosen], places[chosen], "o", color=colour, markerfacecolor=face)
            if "other" in points:
                axis.plot(points["other"], places, "o", color=colour, markerfacecolor="none", markersize=6)
        axis.set_title(title, loc="left")
        axis.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes[0, 0].set_yticks(range(len(names)), [plain(name) for name in names.values()])
    axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def plot_history(history: pd.DataFrame | dict[str, pd.DataFrame], metric: str = "accuracy") -> Figure:
    """A run's losses in training and evaluation against the step (nats, of numbers squared errors; in pretraining also
    the masked tokens'); of several runs, by label, the losses and a metric in evaluation."""
    if isinstance(history, dict):
        lines = pd.concat(table.assign(name=label) for label, table in history.items())
        panels = {"train_loss": "training loss", "eval_loss": "evaluation loss", metric: metric}
        return curves(lines, "step", panels, size=(10, 3))
    losses = [name for name in ("train_loss", "eval_loss", "mlm_loss") if name in history]
    return curves(history.melt("step", losses, "name", "loss"), "step", {"loss": "loss"}, size=(6, 3))


def plot_attention(recorded: "Pass", tokens: list[str], head: int = 0) -> Figure:
    """For one sequence and head: softmax's weights, and which keys each query really sees.

    Args:
        recorded: a pass recorded on a batch of one sequence.
        tokens: its tokens, for the axes.
    """
    query, key = recorded.query[0, head].float(), recorded.key[0, head].float()
    weights = (query @ key.T * query.shape[-1] ** -0.5).softmax(-1)
    counts = recorded.pairs()[0, head]
    panels = {"softmax's weights": weights.cpu(), f"keys seen under {recorded.attention}": counts.cpu() > 0}
    size = min(10.0, 2.5 + 0.13 * len(tokens))
    figure, axes = new_figure(2 * size, size, ncols=2)
    for axis, (title, image) in zip(axes[0], panels.items(), strict=True):
        axis.imshow(image, interpolation="nearest", cmap="Greys", vmin=0, vmax=float(image.max()))
        axis.set(title=title, xlabel="key", ylabel="query")
        if len(tokens) <= 80:
            axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
            axis.set_yticks(range(len(tokens)), tokens, fontsize=7)
    return figure
