"""The report: `python -m albert_study.evidence.report` compiles report/report.typ into report/report.pdf.

The report reads tables and figures itself. Typst cannot ask whether a file exists, so results/tables/index.csv lists
what there is; with it in place, any Typst compiler does (`typst compile --root . report/report.typ`).
"""

import os
from pathlib import Path

from albert_lsh.training.files import repository_root, write_atomically


def write_index(root: Path) -> Path:
    """List the tables and figures there are in results/tables/index.csv."""
    index = root / "results" / "tables" / "index.csv"
    tables = [
        path for folder in ("tables", "efficiency", "long_range") for path in (root / "results" / folder).glob("*.csv")
    ]
    there = [path for path in tables if path != index and ".partial" not in path.name]
    found = sorted(path.relative_to(root).as_posix() for path in [*there, *(root / "figures").glob("*.svg")])
    write_atomically(index, "\n".join(["file", *found]) + "\n")
    return index


def build_report(root: str | Path | None = None) -> Path:
    """Compile the report with whatever studies have tables; returns report/report.pdf.

    Raises:
        ValueError: Typst's own message, if it cannot be compiled.
    """
    import typst  # only here: the library does without the "study" extra

    root = Path(root) if root else repository_root()
    write_index(root)
    report = root / "report" / "report.pdf"
    partial = report.with_name("report.partial.pdf")
    try:
        typst.compile(str(report.with_suffix(".typ")), output=str(partial), root=str(root))
    except typst.TypstError as error:
        raise ValueError(f"report/report.typ cannot be compiled: {error}") from error
    os.replace(partial, report)
    return report


if __name__ == "__main__":
    print(build_report())
