"""Where results go, and files that are written in one step."""

import dataclasses
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from albert_lsh.pretrained import FOLDERS

DRIVE = Path("/content/drive")  # where Colab mounts it


def repository_root() -> Path:
    """The folder that holds `results/`: the checkout of this library, or the working directory without one."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def root_of(results_root: str | None = None) -> Path:
    """Where results, figures and relative paths are: `results_root`, or `repository_root()` if that is None.

    Raises:
        ValueError: it is on Google Drive, which is not mounted and cannot be.
    """
    root = (repository_root() / Path(results_root or "").expanduser()).resolve()
    if root.is_relative_to(DRIVE) and not DRIVE.is_mount():
        try:
            from google.colab import drive

            drive.mount(str(DRIVE))
        except Exception as error:
            raise ValueError(f"results_root={results_root!r}: Drive cannot be mounted here ({error})") from error
    return root


def placed(asked: Any, paths: Iterable[str], sources: Iterable[str] = ()) -> Any:
    """Parameters with `results_root` and every path of theirs absolute; ~ is the home folder.

    Args:
        asked: a dataclass. paths: names of its fields that hold a path or None.
        sources: of its fields that hold a path or a name: it stays as it is where the root has no such path.
    """
    root = root_of(asked.results_root)
    given = {name: root / Path(value).expanduser() for name in paths if (value := getattr(asked, name))}
    names = {name: value for name in sources if (value := getattr(asked, name)) and value not in FOLDERS}
    found = {name: root / Path(value).expanduser() for name, value in names.items()}
    given |= {name: path for name, path in found.items() if os.path.exists(path)}  # False for a name that is too long
    return dataclasses.replace(asked, results_root=str(root), **{name: str(path) for name, path in given.items()})


def recorded(parameters: Any) -> dict[str, Any]:
    """All parameters but `results_root`, and paths as seen from there: records name no folder of a machine."""
    if not dataclasses.is_dataclass(parameters):
        return parameters.recorded()
    values = dataclasses.asdict(parameters)  # type: ignore[arg-type]
    root = f"{values.pop('results_root') or repository_root()}{os.sep}"
    return {name: v.removeprefix(root) if isinstance(v, str) else v for name, v in values.items()}


def identity_of(parameters: Any) -> dict[str, Any]:
    """Everything that decides the result."""
    return parameters.what() if dataclasses.is_dataclass(parameters) else parameters.identity()  # type: ignore


def run_folder(study: str, task: str, model: str, arm: str, seed: int, results_root: str | None = None) -> Path:
    """results/runs/<study>/<task>/<model>/<arm>/seed-<n>; of the model's name the part behind the last slash."""
    return root_of(results_root) / "results" / "runs" / study / task / Path(model).name / arm / f"seed-{seed}"


def relative_to_root(path: Path) -> str:
    """The path as seen from the checkout, so that records name no folder of a machine."""
    path = path.resolve()
    return str(path.relative_to(repository_root()) if path.is_relative_to(repository_root()) else path)


def write_atomically(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a reader sees the old file or the new one, never a part of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def settle(path: Path) -> None:
    """Finish what `write_atomically` began where renaming is copying, as on Google Drive, and was cut off.

    To be called before a file is read that another session may have written. The file is then the beginning of the
    temporary one, which is still there, and is whole if its last line ends.
    """
    partial = path.with_name(path.name + ".partial")
    if path.exists() and partial.exists():
        whole = partial.read_bytes()
        if whole.endswith(b"\n") and whole.startswith(path.read_bytes()):
            os.replace(partial, path)


@contextmanager
def explain_disk(folder: Path) -> Iterator[None]:
    """Turn a write that failed for want of room, or of the disk, into a ValueError that says so, and where.

    Torch says nothing about a full disk; it counts the bytes that should be written, and finds fewer.
    """
    again = "a run goes on from its last checkpoint when it is started again"
    try:
        yield
    except Exception as error:
        if re.search("Transport endpoint|Input/output error|Stale file handle", str(error)):
            raise ValueError(f"{folder} cannot be reached ({error}); mount it again: {again}") from error
        if not re.search(r"No space left|Disk quota|inline_container\.cc|PytorchStreamWriter", str(error)):
            raise
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = f"{shutil.disk_usage(there).free / 1e6:,.1f} MB are free"
        raise ValueError(f"{folder} cannot be written, No space left on device? ({free} there); {again}") from error


def delete(folder: Path) -> None:
    """Delete a folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
