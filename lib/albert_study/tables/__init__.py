"""Every table that documents and pages show, by name; `make refresh` copies them into README and docs."""

from functools import partial
from pathlib import Path
from typing import Any

from albert_study.records import load, studies_of
from albert_study.show import Table
from albert_study.tables import experiments, studies


def all_tables(root: Path, study: str | None = None) -> dict[str, Table]:
    """Every table for which there are results, by name; studies in the order of `studies_of`.

    study: whose tables alone are made.
    """
    rows, names = load(root, study), [study] if study else studies_of(root)
    makers: list[Any] = [partial(make, study=name) for name in names for make in studies.OF_STUDIES]
    makers += [] if study else [*studies.COMMON, *experiments.COMMON]
    named = (made for make in makers for made in make(root, rows))
    return {name: made for name, made in named if made.rows and len(made.titles) > 1}
