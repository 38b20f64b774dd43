"""The attentions under test, and tables that grow by a candidate at a time.

A notebook's parameter `variants` names candidates: {label: {"attention": name, settings ...}}.
"""

import json
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import quote

import pandas as pd

from albert_lsh import attention as attentions
from albert_lsh.files import write_atomically
from albert_lsh.interface import todays_settings
from albert_lsh.record import SCHEMA
from albert_lsh.run import Place, Settings
from albert_study.records import with_todays_name

SHARE = "share_asked"  # the column of a candidate's share
TRUNCATION = "truncation"  # in place of an attention's name: softmax on shorter texts
Rows = list[dict[str, Any]]
Measured = Iterator[tuple[dict[str, Any], pd.DataFrame]]  # of each candidate: its row, and a table of details


class Candidate(NamedTuple):
    """An attention, or truncation, with its settings; label and share (of the pairs, if any) together are its own."""

    label: str
    attention: str
    settings: dict[str, Any]
    passes: list[int] | None = None  # numbers of the passes that have it, the others having softmax; None: all

    @property
    def unit(self) -> dict[str, Any]:
        """The columns that name it in a table."""
        return {"variant": self.label, SHARE: self.settings.get("share")}

    @property
    def columns(self) -> dict[str, Any]:
        """What a row of a table says of it."""
        passes = None if self.passes is None else json.dumps(self.passes)
        return self.unit | {"attention": self.attention, "settings": json.dumps(self.settings), "passes": passes}

    @property
    def file_name(self) -> str:
        """Its name as that of a file, without an ending."""
        share = self.settings.get("share")
        return quote(self.label if share is None else f"{self.label} {share!r}", safe=" ,:()")


def candidates_of(variants: dict[str, Any], by_pass: bool = False) -> list[Candidate]:
    """Candidates as a notebook or a study names them, their settings completed.

    Args:
        variants: {label: {"attention": name, settings ...}}; "shares", a list in place of the setting "share", stands
            for a candidate with each share.
        by_pass: whether "passes" may be given too: numbers, from 0, of the passes that have it in place of all.
    Raises:
        ValueError: no candidate, or one that cannot be (the message names it).
    """
    if not variants:
        raise ValueError("variants={} must name at least one")
    candidates = []
    for label, value in variants.items():
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("attention", None)
        passes = settings.pop("passes", None) if by_pass and name != TRUNCATION else None
        try:
            if passes is not None and not (isinstance(passes, list) and passes and all(type(n) is int for n in passes)):
                raise ValueError(f"passes={reprlib.repr(passes)} must be a list of numbers, one or more")
            if {"share", "shares"} <= settings.keys():
                raise ValueError("share and shares cannot both be given")
            shares = settings.pop("shares", [None])
            if not isinstance(shares, list) or not shares:
                raise ValueError(f"shares={reprlib.repr(shares)} must be a list with one or more")
            for budget in [{} if share is None else {"share": share} for share in shares]:
                candidates.append(Candidate(label, name, complete(name, settings | budget), passes))
        except ValueError as error:
            raise ValueError(f"variants: {label!r}: {error}") from error
    return candidates


def complete(name: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of an attention, or of a truncation; ValueError if they are none."""
    if name != TRUNCATION:
        return attentions.check(name, settings)
    share = settings.get("share")
    if settings.keys() != {"share"} or not isinstance(share, float | int) or not 0 < share <= 1:
        what = reprlib.repr(settings)
        raise ValueError(f"{TRUNCATION} takes a share, over 0 and at most 1, and nothing else; not {what}")
    return settings


class TableSettings(Settings):
    """The parameters of a notebook that writes one table."""

    usual: ClassVar[str]  # where the table is if `output` is None; {names} are parameters
    output: Place | None = None

    def completed(self, place: str) -> Self:
        usual = Path(str(self.results_root), self.usual.format_map(vars(self)))
        return self.model_copy(update={"output": self.output or str(usual)})

    @property
    def results(self) -> list[str]:
        return [str(self.output)]


class GrowingTable:
    """CSV files that grow by a unit at a time, and appear when they are finished.

    What is measured is at once written to a file with ".partial" in its name, where the next call finds it if this one
    is interrupted. A unit, {column: value}, has all rows with these values; None stands for no value.
    """

    def __init__(self, path: Path, *beside: Path):
        """beside: files with other rows of the same units; their numbers have six digits."""
        self.paths, self.partial = (path, *beside), path.with_suffix(".partial.json")
        begun = json.loads(self.partial.read_text(encoding="utf-8")) if self.partial.exists() else None
        self.tables: list[Rows] = begun or [read_rows(file) for file in self.paths]

    def find(self, unit: dict[str, Any], table: int = 0) -> Rows:
        """The rows of a unit."""
        return [row for row in self.tables[table] if is_of(row, unit)]

    def put(self, unit: dict[str, Any], *rows: Rows) -> None:
        """Rows of a unit, a list for each file, in place of those that it has."""
        for number, more in enumerate(rows):
            others = [row for row in self.tables[number] if not is_of(row, unit)]
            self.tables[number] = others + [{k: v for k, v in (row | unit).items() if v is not None} for row in more]
        write_atomically(self.partial, json.dumps(self.tables, default=lambda number: number.item()))

    def finish(self) -> None:
        """Write the files, the first one last."""
        if self.partial.exists():
            for path, rows in reversed([*zip(self.paths, self.tables, strict=True)]):
                table = pd.DataFrame(rows)
                if SHARE in table:
                    table[SHARE] = table[SHARE].astype(object)  # it names rows, and is not to be shortened
                digits = None if path == self.paths[0] else "%.6g"
                write_atomically(path, table.to_csv(index=False, float_format=digits))
            self.partial.unlink()


def is_of(row: dict[str, Any], unit: dict[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in unit.items())


def read_rows(path: Path) -> Rows:
    """The rows of a CSV file, each without what it lacks; none if there is no file."""
    if not path.exists():
        return []
    table = pd.read_csv(path, dtype={"variant": str})
    named = map(with_todays_name, table.to_dict("records"))
    rows = [{str(k): v for k, v in row.items() if pd.notna(v)} for row in named]
    for row in rows:
        if {"attention", "settings"} <= row.keys():
            settings = todays_settings(json.loads(row["settings"]))
            row["settings"] = json.dumps(attentions.recorded(row["attention"], settings))
    return rows


def fill(
    path: Path, beside: str, candidates: list[Candidate], same: dict[str, Any], measure: Callable[[list], Measured]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the candidates that a table lacks, and say which one is measured.

    Args:
        path: of the table, a row for each candidate; one with "-<beside>" in its name has their details. Rows of other
            candidates stay there.
        same: columns of every row; a candidate whose row has other values or settings is measured again.
        measure: yields the row and the details of each candidate that it is given.
    Returns:
        The rows of these candidates, and their details.
    """
    table = GrowingTable(path, path.with_name(f"{path.stem}-{beside}.csv"))
    missing = [candidate for candidate in candidates if not table.find(candidate.columns | same)]
    measured = measure(missing)
    for number, candidate in enumerate(missing, 1):
        share = f", share {candidate.settings['share']:g}" if candidate.settings.get("share") else ""
        print(f"{number} of {len(missing)}: {candidate.label}{share}", flush=True)
        row, details = next(measured)
        details = details.assign(schema=SCHEMA)
        table.put(candidate.unit, [candidate.columns | row | same], details.to_dict("records"))  # type: ignore[arg-type]
    table.finish()
    rows, details = (pd.DataFrame([row for c in candidates for row in table.find(c.unit, n)]) for n in (0, 1))
    return rows, details
