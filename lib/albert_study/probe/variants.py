"""Which attentions a trained model is asked under, `variants`, and tables that grow by one of them at a time.

variants = {label: {"attention": name, settings ...}}
"""

import json
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import pandas as pd
from pydantic import field_validator

from albert_lsh import attention as attentions
from albert_lsh.files import lock, write_atomically
from albert_lsh.interface import todays_settings
from albert_lsh.record import SCHEMA
from albert_lsh.run import Place, Seed, Settings
from albert_study.records import with_todays_name

SHARE = "share_asked"  # the column of a variant's share
TRUNCATION = "truncation"  # in place of an attention's name: softmax on shorter texts
Rows = list[dict[str, Any]]
Measured = Iterator[tuple[dict[str, Any], pd.DataFrame]]  # of each variant: its row, and a table of details


class Variant(NamedTuple):
    """An attention, or truncation, with its settings; label and share (of the pairs, if any) together are its own."""

    label: str
    attention: str
    settings: dict[str, Any]

    @property
    def unit(self) -> dict[str, Any]:
        """The columns that name it in a table."""
        return {"variant": self.label, SHARE: self.settings.get("share")}

    @property
    def columns(self) -> dict[str, Any]:
        """What a row of a table says of it."""
        return self.unit | {"attention": self.attention, "settings": json.dumps(self.settings)}


def variants_of(variants: dict[str, Any]) -> list[Variant]:
    """Variants as a notebook or a study names them, their settings completed.

    Args:
        variants: {label: {"attention": name, settings ...}}; "shares", a list in place of the setting "share", stands
            for a variant with each share.
    Raises:
        ValueError: no variant, or one that cannot be (the message names it).
    """
    if not variants:
        raise ValueError("variants={} must name at least one")
    each = []
    for label, value in variants.items():
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("attention", None)
        try:
            if {"share", "shares"} <= settings.keys():
                raise ValueError("share and shares cannot both be given")
            shares = settings.pop("shares", [None])
            if not isinstance(shares, list) or not shares:
                raise ValueError(f"shares={reprlib.repr(shares)} must be a list with one or more")
            for budget in [{} if share is None else {"share": share} for share in shares]:
                each.append(Variant(label, name, complete(name, settings | budget)))
        except ValueError as error:
            raise ValueError(f"variants: {label!r}: {error}") from error
    return each


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

    usual: ClassVar[str]  # where the table is if `output` is None; {0} is the object
    output: Place | None = None

    def completed(self, place: str) -> Self:
        usual = Path(str(self.results_root), self.usual.format(self))
        return self.model_copy(update={"output": self.output or str(usual)})

    @property
    def named(self) -> str:
        """The model, if there is one, as files are named."""
        return Path(str(getattr(self, "model", ""))).name

    @property
    def results(self) -> list[str]:
        return [str(self.output)]


class Probe(TableSettings):
    """What the notebooks that switch attentions have in common."""

    variants: dict[str, Any]
    seed: Seed = 0  # of the hashes

    @field_validator("variants")
    @classmethod
    def known(cls, variants: dict[str, Any]) -> dict[str, Any]:
        variants_of(variants)
        return variants


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


@contextmanager
def growing_table(path: Path, *beside: Path) -> Iterator[GrowingTable]:
    """A `GrowingTable` that this process alone fills, and that is finished at the end.

    Raises:
        FolderInUseError: another process fills it.
    """
    with lock(path.parent, path.name):
        table = GrowingTable(path, *beside)
        yield table
        table.finish()


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
    path: Path, beside: str, variants: list[Variant], same: dict[str, Any], measure: Callable[[list], Measured]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the variants that a table lacks, and say which one is measured.

    Args:
        path: of the table, a row for each variant; one with "-<beside>" in its name has their details. Rows of other
            variants stay there.
        same: columns of every row; a variant whose row has other values or settings is measured again.
        measure: yields the row and the details of each variant that it is given.
    Returns:
        The rows of these variants, and their details.
    """
    with growing_table(path, path.with_name(f"{path.stem}-{beside}.csv")) as table:
        missing = [variant for variant in variants if not table.find(variant.columns | same)]
        measured = measure(missing)
        for number, variant in enumerate(missing, 1):
            share = f", share {variant.settings['share']:g}" if variant.settings.get("share") else ""
            print(f"{number} of {len(missing)}: {variant.label}{share}", flush=True)
            row, details = next(measured)
            details = details.assign(schema=SCHEMA)
            table.put(variant.unit, [variant.columns | row | same], details.to_dict("records"))  # type: ignore[arg-type]
    rows, details = (pd.DataFrame([row for one in variants for row in table.find(one.unit, n)]) for n in (0, 1))
    return rows, details
