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
from albert_lsh.runs import ParameterError, from_given, write_atomically

Measured = tuple[dict[str, Any], pd.DataFrame]  # of one variant: its row, and the looks behind it


class Variant(NamedTuple):
    """An attention with its settings, under a name of its own."""

    label: str
    attention: str
    settings: dict[str, Any]

    @property
    def columns(self) -> dict[str, Any]:
        """How a row of a table names it."""
        return {"variant": self.label, "attention": self.attention, "settings": json.dumps(self.settings)}


def list_variants(given: dict[str, Any]) -> list[Variant]:
    """Variants as a notebook or a study names them, their settings completed.

    Args:
        given: {label: {"attention": name, settings ...}}; "share" and "length" among the settings stand for those
            that `attention.settings_for` gives.
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
            if "share" in settings:
                settings = attentions.settings_for(name, **settings)
            found.append(Variant(label, name, attentions.check(name, settings)))
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
    wanted = {variant.label: {**variant.columns, **same} for variant in variants}
    finished = _read(final)
    kept = _fitting(finished, wanted)
    there = _fitting(_read(partial), wanted) | kept
    missing = [variant for variant in variants if variant.label not in there]
    for variant, (row, looks) in zip(missing, measure(missing) if missing else (), strict=True):
        there[variant.label] = {**row, **same}, looks.assign(variant=variant.label)
        _write(partial, there)
    there = {label: there[label] for label in wanted}
    if there.keys() != kept.keys():
        _write(final, there | {label: found for label, found in finished.items() if label not in wanted})
        for file in partial:
            file.unlink(missing_ok=True)
    return _tables(there)


def _read(files: tuple[Path, Path]) -> dict[str, Measured]:
    """What a table and the one beside it hold, by variant."""
    table, looks = (
        pd.read_csv(file, dtype={"variant": str}) if file.exists() else pd.DataFrame({"variant": []}) for file in files
    )
    rows: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
    return {row["variant"]: (row, looks[looks["variant"] == row["variant"]]) for row in rows}


def _fitting(found: dict[str, Measured], wanted: dict[str, dict[str, Any]]) -> dict[str, Measured]:
    """Those that are wanted and were measured in the same way, with looks."""
    return {
        label: (row, looks)
        for label, (row, looks) in found.items()
        if label in wanted and row.items() >= wanted[label].items() and len(looks)
    }


def _tables(found: dict[str, Measured]) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, looks = zip(*found.values(), strict=True)
    return pd.DataFrame(rows), pd.concat([part for part in looks if len(part)], ignore_index=True)


def _write(files: tuple[Path, Path], found: dict[str, Measured]) -> None:
    """The table last: where it stands, the one beside it does too."""
    table, looks = _tables(found)
    write_atomically(files[1], looks.to_csv(index=False, float_format="%.6g"))
    write_atomically(files[0], table.to_csv(index=False))
