"""Where results go, and files that are written in one step."""

import os
import shutil
from pathlib import Path


def repository_root() -> Path:
    """The folder that holds `results/`: the checkout of this library, or the working directory without one."""
    checkout = Path(__file__).resolve().parents[3]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def run_folder(study: str, task: str, model: str, arm: str, seed: int) -> Path:
    """results/runs/<study>/<task>/<model>/<arm>/seed-<n>; of the model's name the part behind the last slash."""
    return repository_root() / "results" / "runs" / study / task / Path(model).name / arm / f"seed-{seed}"


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


def delete(folder: Path) -> None:
    """Delete a folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
