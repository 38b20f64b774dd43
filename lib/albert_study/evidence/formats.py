"""How numbers and tables are written in README, docs/, figures and report.

Decimals are rounded half away from zero: 58.65 becomes 58.7. Python's own formats round the binary value and make it
58.6.
"""

import math
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

import pandas as pd

from albert_lsh.tasks import TASKS


class Table(NamedTuple):
    """Rows of strings, their index the first column; and what was measured, in a sentence or two."""

    rows: pd.DataFrame
    note: str = ""


Named = Iterator[tuple[str, Table]]
METRICS = {  # those that are shown, by the name they have in a table
    "f1": "F1", "accuracy": "accuracy", "accuracy_mismatched": "acc. mism.", "exact": "exact",
    "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman",
    "accuracy_f1_mean": "mean of acc. and F1",
}  # fmt: skip


def rounded(value: float | Decimal, digits: int = 0) -> str:
    """The number with so many decimals; a zero has no sign."""
    shown = Decimal(str(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    return f"{shown if shown else abs(shown):f}"


def form(value: Any, how: str = "") -> str:
    """A value as it is shown; nothing where there is none.

    how: the number of decimals, with "%" in front for a percentage, "+" for a sign; "" for a text. 0.125 is "13%" as
        "%", "12.5%" as "%1" and "+0.1" as "+1".
    """
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not how:
        return str(value)
    if how.startswith("%"):
        return f"{rounded(100 * Decimal(str(value)), int(how[1:] or 0))}%"
    if how.startswith("+"):  # -0.0003 is "-0.000": an interval that begins there holds zero
        return f"{'-' if value < 0 else '+'}{rounded(abs(value), int(how[1:]))}"
    return rounded(value, int(how))


def spread(mean: float, error: float, how: str) -> str:
    """ "0.848 ± 0.006"; "0.848" where there is no error."""
    return form(mean, how) + (f" ± {form(error, how.lstrip('+'))}" if pd.notna(error) else "")


def scale_of(task: str) -> tuple[int, int]:
    """The best score of a task, and how many decimals of its scores mean something."""
    return (100, 1) if task in TASKS and TASKS[task].is_squad else (1, 3)


def asked(share: float) -> str:
    """A share that was asked for, with as many digits as it has."""
    return form(share, "%1").replace(".0%", "%")


def between(counts: pd.Series) -> str:
    """ "3", or "1 to 3" where they differ."""
    few, most = int(counts.min()), int(counts.max())
    return str(most) if few == most else f"{few} to {most}"


def listed(values: "pd.Series[Any]") -> str:
    """The different values, in their order: "a; b"."""
    return "; ".join(dict.fromkeys(map(str, values)))


def commits(rows: pd.DataFrame) -> str:
    """The commits at which the rows were measured, shortened; of more than two how many, and how many had changes."""
    found = dict.fromkeys(commit for several in rows["commit"] for commit in str(several).split("; "))
    if len(found) > 2:
        changed = sum(commit.endswith("-dirty") for commit in found)
        return f"{len(found)} commits (named in results/{f'; {changed} with changes' if changed else ''})"
    return f"commit {', '.join(c[:10] + (' with changes' if c.endswith('-dirty') else '') for c in found)}"


def about(study: str, rows: pd.DataFrame) -> str:
    """Which study, models and commits a table comes from."""
    models = f": {', '.join(rows['model'].unique())}" if "model" in rows else ""
    return f"Study {study}{models}, {commits(rows)}."


def listing(rows: pd.DataFrame, index: str, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """A row for each row. columns: by title, the column and its format; columns that the rows lack are left out."""
    found = {title: rows[name].map(lambda value, how=how: form(value, how))
             for title, (name, how) in columns.items() if name in rows}  # fmt: skip
    return pd.DataFrame(found).set_axis(list(rows[index]), axis="index")


def wide(
    rows: pd.DataFrame, index: str, across: str, values: dict[str, tuple[str, str]], title: Callable[[Any], str] = str
) -> pd.DataFrame:
    """A row for each value of `index`; for each value of `across` one column or several.

    values: by what is appended to the title, the column and its format; columns without a value are left out.
    """
    cells: dict[str, Any] = {}
    for key, part in rows.groupby(across, sort=False):
        for name, (column, how) in values.items():
            if column in part and part[column].notna().any():
                shown = part[column].map(lambda value, how=how: form(value, how))
                cells[title(key) + name] = dict(zip(part[index], shown, strict=True))
    return pd.DataFrame(cells).reindex(rows[index].unique()).fillna("")


def in_parts(name: str, table: Table, most: int) -> Named:
    """The table; where it has more than `most` columns several, of about equal width: <name>-1, <name>-2, ..."""
    columns = list(table.rows)
    count = math.ceil(len(columns) / most)
    size = math.ceil(len(columns) / max(count, 1))
    for number in range(count):
        part = table.rows[columns[number * size : (number + 1) * size]]
        rows = part[(part != "").any(axis="columns")]
        yield (name if count == 1 else f"{name}-{number + 1}"), Table(rows, table.note)
