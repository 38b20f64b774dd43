"""Notebooks executed, and kept without any folder of a machine or text of others.

papermill and nbformat are imported where they are used: they take seconds, and most commands execute nothing.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albert_lsh.files import FolderInUseError, lock, relative_to_root, repository_root
from albert_study.carried import carried
from albert_study.gpus import one_gpu

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


def clean(path: Path, ours: bool) -> None:
    """Rewrite every absolute path in an executed notebook, and empty the cells tagged `examples`.

    ours: the data are our own, so that examples may be shown.
    """
    import nbformat

    notebook = nbformat.from_dict(_cleaned(nbformat.read(path, as_version=4)))
    for cell in notebook.cells:
        if not ours and EXAMPLES in cell.metadata.get("tags", []):
            cell.outputs = []
    about = notebook.metadata.papermill
    about["output_path"] = about["output_path"].replace(".partial.ipynb", ".ipynb")
    nbformat.write(notebook, path)


def _cleaned(value: Any) -> Any:
    """A copy of a part of a notebook, all texts rewritten but those that encode pictures."""
    if isinstance(value, dict):
        return {k: v if k.startswith("image/p") else _cleaned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_cleaned(v) for v in value]
    return without_folders(value) if isinstance(value, str) else value


def places(kept: Path) -> tuple[Path, Path]:
    """Where the notebook that will be `kept` is while it is executed, and where it is when that has failed."""
    return kept.with_suffix(".partial.ipynb"), kept.with_suffix(".failed.partial.ipynb")


def was_cut_off(kept: Path) -> bool:
    """Whether a notebook was executed, but killed or without room on the disk before it could be kept."""
    return not kept.exists() and any(place.exists() for place in places(kept))


@contextmanager
def executing(kept: Path) -> Iterator[Path]:
    """Within, a notebook is executed at the path that is yielded; it is renamed to `kept` at the end.

    If it fails, it goes to <name>.failed.partial.ipynb until it succeeds. Nobody else executes it meanwhile.

    Raises:
        SystemExit: naming `kept` and what went wrong.
    """
    partial, failed = places(kept)
    try:
        with lock(kept.parent, kept.stem):
            partial.unlink(missing_ok=True)  # of an attempt that was killed
            try:
                with one_gpu():
                    yield partial
                if partial.exists():
                    os.replace(partial, kept)
                failed.unlink(missing_ok=True)
            except Exception as error:
                if partial.exists():
                    os.replace(partial, failed)
                text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
                raise SystemExit(f"FAILED {relative_to_root(kept)}\n{text}") from error
    except FolderInUseError as error:
        raise SystemExit(f"error: {error}") from error


def execute_notebook(name: str, output: Path, parameters: dict[str, Any], attempts: int = 3) -> None:
    """papermill, from the repository's root; a kernel that loses a race for a port while starting is started again."""
    import papermill

    root = repository_root()
    look = {"progress_bar": False, "kernel_name": "python3"}
    try:
        papermill.execute_notebook(carried(f"notebooks/{name}"), output, parameters, cwd=str(root), **look)
    except RuntimeError as error:
        if "before replying to kernel_info" not in str(error) or attempts == 1:
            raise
        execute_notebook(name, output, parameters, attempts - 1)
