"""Executed notebooks as the repository keeps them: no folder of a machine, no text of others.

To clean notebooks that are kept already:

    python -m albert_study.executed results/efficiency/*.ipynb
"""

import re
import sys
from pathlib import Path
from typing import Any

import nbformat

EXAMPLES = "examples"  # tag of cells that show texts of the data
# An absolute path of two parts or more; it may follow a colour code, but is no part of a URL, a tag or a fraction.
PATH = re.compile(r"(?:(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm)|(?<![\w.:/<~)-]))(?:/[\w.+@~-]+){2,}/?")
# Folders of a checkout or an environment: a path is kept from the first of them on.
ANCHORS = re.compile(r"/((?:site-packages|notebooks|results|figures|studies|report|lib/albert_\w+)(?:/.*|$))")


def without_folders(text: str) -> str:
    """A text in which no absolute path is left: from the checkout's folders on, or else the last part."""

    def shorten(found: re.Match[str]) -> str:
        anchored = ANCHORS.search(found[0])
        return anchored[1] if anchored else Path(found[0]).name

    return PATH.sub(shorten, text)


def clean(notebook: Any, ours: bool = False) -> None:
    """Rewrite every absolute path in an executed notebook, and empty the cells tagged `examples`.

    Args:
        notebook: as nbformat reads it; it is changed.
        ours: the data are our own, so that examples may be shown.
    """
    for cell in notebook.cells:
        if not ours and EXAMPLES in cell.metadata.get("tags", []):
            cell.outputs = []
    notebook.update(nbformat.from_dict(_cleaned(notebook)))
    about = notebook.metadata.get("papermill", {})
    if about.get("output_path"):
        about["output_path"] = about["output_path"].replace(".partial.ipynb", ".ipynb")


def _cleaned(value: Any) -> Any:
    """A copy of a part of a notebook, all texts rewritten but those that encode pictures."""
    if isinstance(value, dict):
        return {k: v if k.startswith("image/p") else _cleaned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v) for v in value]
    return without_folders(value) if isinstance(value, str) else value


def clean_file(path: Path, ours: bool = False) -> None:
    """`clean` a notebook's file."""
    notebook = nbformat.read(path, as_version=4)
    clean(notebook, ours)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        clean_file(Path(name), ours="mini" in Path(name).parts)
