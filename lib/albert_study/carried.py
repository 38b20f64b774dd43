"""Files of the repository that the package carries too: studies/, notebooks/ and the texts of report/ (setup.py)."""

from pathlib import Path

from albert_lsh.files import repository_root


def carried(path: str, root: Path | None = None) -> Path:
    """The file or folder below `root`, or else in the repository, or else in the package."""
    below = [root or repository_root(), repository_root(), Path(__file__).parent]
    return next((folder / path for folder in below if (folder / path).exists()), below[0] / path)
