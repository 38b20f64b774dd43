"""Attentions that are asked one after the other, under names of their own; and tables with a row for each.

`list_variants` takes them as a notebook or a study names them. `fill` has them measured and writes their table; what an
earlier call has measured is kept.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from albert_lsh import attention as attentions
from albert_lsh.training.files import write_atomically
from albert_lsh.training.parameters import ParameterError, from_given

SHARE = "share_asked"  # the column of `Variant.share`
Name = tuple[str, float | None]
Measured = tuple[dict[str, Any], pd.DataFrame]  # of one variant: its row, and the looks behind it


class Variant(NamedTuple):
    """An attention with its settings; label and share are its own together."""

    label: str
    attention: str
    settings: dict[str, Any]
    share: float | None = None  # of the pairs that was asked for, where the settings were chosen by one

    @property
    def name(self) -> Name:
        return self.label, self.share

    @property
    def columns(self) -> dict[str, Any]:
        """How a row of a table names it."""
        asked = {} if self.share is None else {SHARE: self.share}
        return {"variant": self.label, **asked, "attention": self.attention, "settings": json.dumps(self.settings)}


def list_variants(given: dict[str, Any]) -> list[Variant]:
    """Variants as a notebook or a study names them, their settings completed.

    Args:
        given: {label: {"attention": name, settings ...}}; "share" and "length" among the settings stand for those
            that `attention.settings_for` gives, and "shares", a list, for a variant with each share.
    Raises:
        ValueError: no variant, or one that cannot be (the message names it).
    """
    if not given:
        raise ValueError("variants={} must name at least one")
    found = []
    for label, value in given.items():
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("attention", None)
        try:
            if {"share", "shares"} <= settings.keys():
                raise ValueError("share and shares cannot both be given")
            for share in settings.pop("shares", [settings.pop("share", None)]):
                chosen = settings if share is None else attentions.settings_for(name, share=share, **settings)
                found.append(Variant(label, name, attentions.check(name, chosen), share))
        except (ValueError, TypeError) as error:
            raise ValueError(f"variants: {label!r}: {error}") from error
    return found


def from_given_with_variants(cls: Any, given: dict[str, Any], notebook: str) -> Any:
    """`from_given` for a dataclass with `variants`; ParameterError says what is wrong with these too."""
    made = from_given(cls, given, notebook)
    try:
        list_variants(made.variants)
    except ValueError as error:
        raise ParameterError(f"{error} ({notebook})") from error
    return made


def fill(
    path: Path,
    beside: str,
    variants: list[Variant],
    same: dict[str, Any],
    measure: Callable[[list[Variant]], Iterator[Measured]],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table with a row for each variant, and one beside it with the looks behind the rows; measures what is missing.

    After each variant both are written under a name with ".partial", where the next call finds them if this one is
    interrupted. The tables appear under their own names when all variants are there, the one at `path` last. Rows of
    variants that are not asked for stay in a finished table; unfinished ones go.

    Args:
        path: of the table; the other one has "-<beside>" in its name.
        same: columns that are added to every row; a row in which they differ is measured again.
        measure: yields the variants' rows, which begin with `Variant.columns`, and their looks.
    Returns:
        The rows, and the looks with a column `variant`, of these variants in their order.
    """
    final = path, path.with_name(f"{path.stem}-{beside}.csv")
    partial = final[0].with_suffix(".partial.csv"), final[1].with_suffix(".partial.csv")
    wanted = {variant.name: {**variant.columns, **same} for variant in variants}
    finished = _read(final, variants)
    kept = _fitting(finished, wanted)
    there = _fitting(_read(partial, variants), wanted) | kept
    missing = [variant for variant in variants if variant.name not in there]
    for variant, (row, looks) in zip(missing, measure(missing) if missing else (), strict=True):
        there[variant.name] = {**row, **same}, looks.assign(**_named(variant.name))
        _write(partial, there)
    there = {name: there[name] for name in wanted}
    if there.keys() != kept.keys():
        _write(final, there | {name: found for name, found in finished.items() if name not in wanted})
        for file in partial:
            file.unlink(missing_ok=True)
    return _tables(there)


def _named(name: Name) -> dict[str, Any]:
    """The columns of a variant's name."""
    label, share = name
    return {"variant": label} if share is None else {"variant": label, SHARE: share}


def _read(files: tuple[Path, Path], variants: list[Variant]) -> dict[Name, Measured]:
    """What a table and the one beside it hold, by variant; older rows, without a column for the share, as newer ones.

    Their label ended in the share, in two digits. Whether they are those variants, their settings say.
    """
    table, looks = (
        pd.read_csv(file, dtype={"variant": str}) if file.exists() else pd.DataFrame({"variant": []}) for file in files
    )
    older: dict[str, list[Name]] = {}
    for variant in variants:
        for label in (variant.label, f"{variant.label} {variant.share:.2g}") if variant.share is not None else ():
            older.setdefault(label, []).append(variant.name)
    found: dict[Name, Measured] = {}
    for row in table.to_dict("records"):
        share = row.get(SHARE)
        of_row = looks[looks["variant"] == row["variant"]]
        if SHARE in of_row:
            of_row = of_row[of_row[SHARE].isna() if pd.isna(share) else of_row[SHARE] == share]
        names = [(row["variant"], share)] if pd.notna(share) else older.get(row["variant"], [(row["variant"], None)])
        for name in names:
            found[name] = {**{str(k): v for k, v in row.items()}, **_named(name)}, of_row.assign(**_named(name))
    return found


def _fitting(found: dict[Name, Measured], wanted: dict[Name, dict[str, Any]]) -> dict[Name, Measured]:
    """Those that are wanted and were measured in the same way, with looks."""
    return {
        name: (row, looks)
        for name, (row, looks) in found.items()
        if name in wanted and row.items() >= wanted[name].items() and len(looks)
    }


def _tables(found: dict[Name, Measured]) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, looks = zip(*found.values(), strict=True)
    return pd.DataFrame(rows), pd.concat([part for part in looks if len(part)], ignore_index=True)


def _write(files: tuple[Path, Path], found: dict[Name, Measured]) -> None:
    """The table last: where it stands, the one beside it does too."""
    table, looks = _tables(found)
    if SHARE in looks:
        looks[SHARE] = looks[SHARE].astype(object)  # it names rows, and is not to be shortened
    write_atomically(files[1], looks.to_csv(index=False, float_format="%.6g"))
    write_atomically(files[0], table.to_csv(index=False))
