"""Every study's tables and figures again, from its records and saved predictions; nothing is trained or evaluated.

    python -m albert_study.evidence.recompute          (make recompute: report, page and README's tables as well)

In a fresh checkout it writes what is committed: `git diff` then shows nothing.
"""

import warnings
from pathlib import Path

from albert_lsh.files import repository_root
from albert_study.evidence.records import list_studies
from albert_study.evidence.study_figures import write_figures
from albert_study.evidence.tables import write_tables


def recompute(root: Path) -> list[Path]:
    """All tables and figures of the studies that have runs below `root`; returns the paths written."""
    studies = list_studies(root).index
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a study whose runs are not all made
        tables = write_tables(*studies, root=root)
    return [*tables, *write_figures(*studies, root=root)]


if __name__ == "__main__":
    for made in recompute(repository_root()):
        print(made.relative_to(repository_root()))
