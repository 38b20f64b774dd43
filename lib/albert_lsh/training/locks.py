"""One process at a time in a run's folder.

`hold` takes a folder's lock for the rest of the process, `release` gives it back earlier. The operating system frees
the lock of a process that ends, in whatever way, so that a killed run can be resumed at once.
"""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from albert_lsh.errors import OneLineError

WAIT = 30.0  # seconds; a notebook's kernel outlives the process that started it by some seconds
_held: dict[Path, FileLock] = {}  # the locks of this process; holding a folder twice takes one lock


class FolderInUseError(OneLineError):
    """Another process holds a run's folder; the message names it."""


def hold(folder: str | Path, name: str = "run", wait: float = WAIT) -> None:
    """Lock a folder until `release`, or until this process ends. A folder that this process holds stays locked.

    Args:
        folder: made if it is not there. name: of the lock; locks of different names do not exclude each other.
        wait: seconds to wait for another process to end.
    Raises:
        FolderInUseError: another process still holds it. ValueError: not a folder, or not writable.
    """
    path = _path(folder, name)
    if path in _held:
        return
    lock, holder = FileLock(path, thread_local=False), path.with_suffix(".holder")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=wait)
        holder.write_text(f"process {os.getpid()} on {platform.node()} (since {now})")
    except Timeout as error:
        by = holder.read_text() if holder.exists() else "another process"
        raise FolderInUseError(f"{folder} is in use by {by} (waited {wait:g} s); wait for it, or end it") from error
    except OSError as error:
        lock.release()
        raise ValueError(f"{folder} cannot be locked: {error}") from error
    _held[path] = lock


def release(folder: str | Path, name: str = "run") -> None:
    """Unlock a folder; does nothing if this process does not hold it."""
    if lock := _held.pop(path := _path(folder, name), None):
        path.with_suffix(".holder").unlink(missing_ok=True)
        lock.release()


def _path(folder: str | Path, name: str) -> Path:
    return Path(folder).resolve() / f".{name}.lock"
