"""The attentions under test, and tables with a row for each.

`candidates_of` takes them as a notebook's parameter `variants` names them. `fill` has them measured and writes their
table; what an earlier call has measured is kept.
"""

import json
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd

from albert_lsh import attention as attentions
from albert_lsh.training.files import settle, write_atomically
from albert_study.probe import truncation

SHARE = "share_asked"  # the column of `Candidate.share`
KEYS = ("variant", SHARE)  # the columns that name a candidate
CandidateName = tuple[str, float | None]
Measured = tuple[dict[str, Any], pd.DataFrame]  # of one candidate: its row, and the looks behind it


class Candidate(NamedTuple):
    """An attention, or truncation, with its settings; label and share together are its own."""

    label: str
    attention: str
    settings: dict[str, Any]
    passes: list[int] | None = None  # numbers of the passes that have it, the others having softmax; None: all

    @property
    def share(self) -> float | None:
        """The share of the pairs that was asked for; None where the settings give the budget in another way."""
        return self.settings.get("share")

    @property
    def name(self) -> CandidateName:
        return self.label, self.share

    @property
    def file_name(self) -> str:
        """Its name as that of a file, without an ending."""
        return quote(self.label if self.share is None else f"{self.label} {self.share!r}", safe=" ,:()")

    @property
    def columns(self) -> dict[str, Any]:
        """How a row of a table names it."""
        share = {} if self.share is None else {SHARE: self.share}
        passes = {} if self.passes is None else {"passes": json.dumps(self.passes)}
        settings = json.dumps(self.settings)
        return {"variant": self.label, **share, "attention": self.attention, "settings": settings, **passes}


def candidates_of(given: dict[str, Any], by_pass: bool = False) -> list[Candidate]:
    """Candidates as a notebook or a study names them, their settings completed.

    Args:
        given: {label: {"attention": name, settings ...}}; "shares", a list in place of the setting "share", stands
            for a candidate with each share.
        by_pass: whether "passes" may be given too: numbers, from 0, of the passes that have it in place of all.
    Raises:
        ValueError: no candidate, or one that cannot be (the message names it).
    """
    if not given:
        raise ValueError("variants={} must name at least one")
    found = []
    for label, value in given.items():
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("attention", None)
        passes = settings.pop("passes", None) if by_pass and name != truncation.NAME else None
        try:
            if not (passes is None or (isinstance(passes, list) and passes and all(type(n) is int for n in passes))):
                raise ValueError(f"passes={reprlib.repr(passes)} must be a list of numbers, one or more")
            if {"share", "shares"} <= settings.keys():
                raise ValueError("share and shares cannot both be given")
            shares = settings.pop("shares", [None])
            if not isinstance(shares, list) or not shares:
                raise ValueError(f"shares={reprlib.repr(shares)} must be a list with one or more")
            for budget in [{} if share is None else {"share": share} for share in shares]:
                asked = {**settings, **budget}
                checked = truncation.check(asked) if name == truncation.NAME else attentions.check(name, asked)
                found.append(Candidate(label, name, checked, passes))
        except ValueError as error:
            raise ValueError(f"variants: {label!r}: {error}") from error
    return found


def told(missing: list[Candidate]) -> Iterator[Candidate]:
    """The candidates, each printed with its number when its turn comes."""
    for number, candidate in enumerate(missing, 1):
        share = "" if candidate.share is None else f", share {candidate.share:g}"
        print(f"{number} of {len(missing)}: {candidate.label}{share}", flush=True)
        yield candidate


def fill(
    path: Path,
    beside: str,
    candidates: list[Candidate],
    same: dict[str, Any],
    measure: Callable[[list[Candidate]], Iterator[Measured]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table with a row for each candidate, and one beside it with their looks; measures what is missing.

    After each candidate everything is written to a file with ".partial" in its name, where the next call finds it if
    this one is interrupted. The tables appear when all candidates are there, the one at `path` last. Rows of candidates
    that are not asked for stay in a finished table.

    Args:
        path: of the table; the other one has "-<beside>" in its name.
        same: columns that are added to every row; a row in which they differ is measured again.
        measure: yields the candidates' rows, which begin with `Candidate.columns`, and their looks.
    Returns:
        The rows, and the looks with the columns of a name, of these candidates in their order.
    """
    looks_path, partial = path.with_name(f"{path.stem}-{beside}.csv"), path.with_suffix(".partial.json")
    wanted = {candidate.name: {**candidate.columns, **same} for candidate in candidates}

    def fitting(found: dict[CandidateName, Measured]) -> dict[CandidateName, Measured]:
        """Those that are wanted and were measured in the same way."""
        return {
            name: (row, looks)
            for name, (row, looks) in found.items()
            if name in wanted
            and row.items() >= wanted[name].items()
            and ("passes" in wanted[name] or pd.isna(row.get("passes")))
        }

    for file in (path, looks_path, partial):
        settle(file)
    finished = _read(path, looks_path)
    kept = fitting(finished)
    there = fitting(_read_partial(partial)) | kept
    missing = [candidate for candidate in candidates if candidate.name not in there]
    for candidate, (row, looks) in zip(missing, measure(missing) if missing else (), strict=True):
        there[candidate.name] = {**row, **same}, looks.assign(**{key: row[key] for key in KEYS if key in row})
        begun = [(row, looks.to_dict("records")) for row, looks in there.values()]
        write_atomically(partial, json.dumps(begun, default=lambda number: number.item()) + "\n")
    there = {name: there[name] for name in wanted}
    if there.keys() != kept.keys():
        table, looks = _tables(there | {name: found for name, found in finished.items() if name not in wanted})
        if SHARE in looks:
            looks[SHARE] = looks[SHARE].astype(object)  # it names rows, and is not to be shortened
        write_atomically(looks_path, looks.to_csv(index=False, float_format="%.6g"))
        write_atomically(path, table.to_csv(index=False))
    partial.unlink(missing_ok=True)
    return _tables(there)


def _name(row: dict[Any, Any]) -> CandidateName:
    """The candidate that a row of either table is of."""
    share = row.get(SHARE)
    return row["variant"], None if pd.isna(share) else share


def _read(path: Path, looks_path: Path) -> dict[CandidateName, Measured]:
    """What a table and the one beside it hold, by candidate."""
    if not path.exists() or not looks_path.exists():
        return {}
    table, looks = (pd.read_csv(file, dtype={"variant": str}) for file in (path, looks_path))
    rows = [{str(k): v for k, v in row.items() if pd.notna(v)} for row in table.to_dict("records")]
    for row in rows:
        row["settings"] = json.dumps(attentions.recorded(row["attention"], json.loads(row["settings"])))
    names = [_name(row) for row in looks.to_dict("records")]
    return {_name(row): (row, looks[[name == _name(row) for name in names]]) for row in rows}


def _read_partial(partial: Path) -> dict[CandidateName, Measured]:
    """What an interrupted call has measured, by candidate."""
    found = json.loads(partial.read_text(encoding="utf-8")) if partial.exists() else []
    return {_name(row): (row, pd.DataFrame(looks)) for row, looks in found}


def _tables(found: dict[CandidateName, Measured]) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, looks = zip(*found.values(), strict=True)
    return pd.DataFrame(rows), pd.concat(looks, ignore_index=True)
