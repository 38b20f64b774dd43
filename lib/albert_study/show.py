"""What notebooks and documents show: `table`, a pivot, and plots: `curves`, `dots`, ..."""

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from string import Formatter
from typing import Any, NamedTuple

import pandas as pd

Line = Mapping[Any, Any]  # of a table of numbers
Parts = list[Any]  # of a cell: texts, and numbers each with how it is written


# ---- tables ---------------------------------------------------------------------------------------------------------
class Table(NamedTuple):
    """A table to be read: titles of its columns, the first that of the labels; cells of parts; what was measured."""

    titles: list[str]
    rows: list[list[Parts]]
    note: str = ""

    def frame(self) -> pd.DataFrame:
        """As text, the labels its index."""
        labels, *columns = zip(*([text(cell) for cell in row] for row in self.rows), strict=True)
        index = pd.Index(labels, name=self.titles[0] or None)
        return pd.DataFrame(dict(enumerate(columns)), index).set_axis(self.titles[1:], axis="columns")


def form(value: Any, how: str = "") -> str:
    """A number as it is written; nothing where there is none. report/shared.typ writes the same.

    how: the number of decimals, with "%" in front for a percentage, "p" for one without its sign, "+" for a sign, "P" for
        a p-value, "," for thousands, "" for a text. 0.125 is "13%" as "%", "12.5" as "p1", "+0.1" as "+1".

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


def text(cell: Parts) -> str:
    return "".join(part if isinstance(part, str) else form(*part) for part in cell)


def is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def columns(spec: str) -> dict[str, Any]:
    """Titles and templates of a table's cells: "pairs={pairs:%}; cost={cost:%}"."""
    return dict(column.split("=", 1) for column in spec.split("; "))


def parts(template: str, line: Line) -> Parts:
    """A cell: "{score:3} ± {sd:3} ({seeds:0})" of a line's numbers. The decimals "s" are the line's `digits`.

    A number that is missing takes the text before it along; where the first is missing, the cell is empty.
    """
    cell: Parts = []
    known, fields = True, 0
    for text, name, how, _ in Formatter().parse(template):
        if name is None:
            return cell + [text] if known else cell
        value, fields = line.get(name), fields + 1
        known = not is_missing(value)
        if not known and fields == 1:
            return []
        if known:
            cell += [text, str(value) if not how else (value, how.replace("s", f"{line.get('digits', 3):.0f}"))]
    return cell


def table(
    lines: pd.DataFrame,
    label: str,
    cells: Mapping[str, str | Callable[[Line], str | Parts]],
    across: str | list[str] | None = None,
    order: Iterable[str] | None = None,
    note: str = "",
    corner: str = "",
) -> Table:
    """A table of the numbers in `lines`, one row a line; with `across` a pivot of them.

    Args:
        label: the template of a row's label, see `parts`.
        cells: by title of a column the template of its cells, or a function of a line that gives one, or parts.
        across: for each different value of these columns, in the order of the lines, all of `cells`, whose titles are
            then templates too; columns without a number are left out. Rows are the different labels.
        order: of the labels, where it is not that of the lines.
    """
    columns: dict[str, dict[Any, Parts]] = {}
    for _, group in lines.groupby(across, sort=False, dropna=False) if across else [(None, lines)]:
        each = group.to_dict("records")
        places = [text(parts(label, line)) for line in each] if across else range(len(each))
        for title, cell in cells.items():
            column = {}
            for place, line in zip(places, each, strict=True):
                content = cell(line) if callable(cell) else cell
                column[place] = parts(content, line) if isinstance(content, str) else content
            if not across or any(column.values()):
                columns.setdefault(title.format(**each[0]) if across else title, {}).update(column)
    labels = [text(parts(label, line)) for line in lines.to_dict("records")]
    named = {name: name for name in (labels if order is None else order)} if across else dict(enumerate(labels))
    rows = [[[name], *(column.get(place, []) for column in columns.values())] for place, name in named.items()]
    return Table([corner, *columns], rows, note)
