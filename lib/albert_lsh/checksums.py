"""Checksums of what is kept: one flipped bit of a weight, or of a score, is another one and breaks no file format."""

import hashlib
import json
from pathlib import Path
from typing import Any

NAME = "checksums.json"


def checksum_of(record: dict[str, Any]) -> str:
    """The SHA-256 of what a record says, its own entry "checksum" left out."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path, besides: str = NAME) -> dict[str, str]:
    """The SHA-256 of every file but those named `besides`, by its path within the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != besides)
    return {path.relative_to(folder).as_posix(): file_checksum(path) for path in files}
