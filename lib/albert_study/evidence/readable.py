"""All tables as people read them: in README, in docs/ and in the report. They are made from results/**/*.csv alone.

`readable_tables(root)` gives each by its name: albert-scores, fidelity-switched-mrpc, efficiency-time-fp32, ...
"""

from pathlib import Path

import pandas as pd

from albert_lsh import attention
from albert_lsh.tasks import TASKS
from albert_study.evidence.formats import Table
from albert_study.evidence.front import front_table
from albert_study.evidence.masked_words import masked_words_tables
from albert_study.evidence.readable_measurements import (
    calibration_tables,
    constant_tables,
    detail_tables,
    efficiency_tables,
    long_tables,
    pretraining_tables,
    time_tables,
)
from albert_study.evidence.readable_studies import (
    change_tables,
    difference_tables,
    reading_tables,
    score_tables,
    switched_tables,
)
from albert_study.evidence.records import LIST, load_measurements
from albert_study.evidence.reliability import reliability_tables
from albert_study.evidence.word_order import twins_table, word_order_tables


def readable_tables(root: Path, own: str | None = None) -> dict[str, Table]:
    """Every table for which there are results, by name; studies in the order of `studies_of`.

    own: a study whose tables alone are made.
    """

    def load(name: str, folder: str = "tables") -> pd.DataFrame:
        return load_measurements(name, folder, root)

    found = {"attentions": attentions_table(), "tasks": tasks_table()}
    of_study = (score_tables, change_tables, difference_tables, switched_tables, reading_tables, word_order_tables)
    for study in [own] if own else studies_of(root):
        for make in of_study:
            found |= make(study, load)
    if own:
        return found
    measured = (time_tables, efficiency_tables, pretraining_tables, long_tables)
    for make_common in (front_table, twins_table, constant_tables, *measured, reliability_tables, calibration_tables):
        found |= make_common(load)
    for make_own in (masked_words_tables, detail_tables):
        found |= make_own(root)
    return found


def figures_of(root: Path, own: str | None = None) -> list[Path]:
    """The figures of `studies_of` and those that studies share; own: of that study alone."""
    tables = (root / "results/tables").glob("*-scores.csv")
    studies = {path.name.removesuffix("-scores.csv") for path in tables}
    others = studies - set(studies_of(root))
    paths = sorted(root.glob("figures/*.svg"))
    if own:
        return [path for path in paths if path.stem.startswith(f"{own}-")]
    return [path for path in paths if not path.stem.startswith(tuple(f"{study}-" for study in others))]


def attentions_table() -> Table:
    """The attentions of the library, with their settings."""
    about = {name: (known.about, ", ".join(known.defaults)) for name, known in attention.ATTENTIONS.items()}
    return Table(pd.DataFrame.from_dict(about, orient="index", columns=["what it is", "settings"]))


def tasks_table() -> Table:
    """The tasks of the library, but for the embedded ones, which are their namesakes with other data."""
    rows = {
        task.name: {
            "data on the Hub": f"{task.dataset}, {task.config}" if task.config else task.dataset,
            "what is read": ", ".join(task.columns),
            "what is answered": "a span" if task.is_squad else ", ".join(task.labels) or "a number",
            "scores": ", ".join(task.metrics),
            "scored on": ", ".join(task.evaluation),
        }
        for task in TASKS.values()
        if task.dataset != "mini"
    }
    return Table(pd.DataFrame.from_dict(rows, orient="index"))


def studies_of(root: Path) -> list[str]:
    """The studies that have tables: the questions asked first, then the others, the embedded one last.

    A reader's own are left out where there is a list of records.
    """
    found = sorted(path.name.removesuffix("-scores.csv") for path in (root / "results/tables").glob("*-scores.csv"))
    if (root / LIST).exists():
        listed = {Path(line).parts[2] for line in (root / LIST).read_text(encoding="utf-8").split()}
        found = [study for study in found if study in listed]
    order = ("albert", "minilm", "original", "original-readme")
    return sorted(found, key=lambda study: (order.index(study) if study in order else len(order), study == "mini"))
