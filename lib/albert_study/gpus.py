"""On a machine with several GPUs, each run uses one that no other run of this user has taken."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices(count: int) -> list[str]:
    """The names (numbers or UUIDs) of the `count` GPUs that torch sees, as CUDA_VISIBLE_DEVICES takes them."""
    named = os.environ.get(VISIBLE, ",".join(map(str, range(count))))
    return [name.strip() for name in named.split(",")][:count]


def lock_folder() -> Path:
    """In the user's own cache: where others can write, a link could take the place of a lock."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "albert-lsh"


@contextmanager
def one_of(devices: list[str], folder: Path) -> Iterator[None]:
    """Within, CUDA sees one of the devices alone, which is locked; with one GPU or none, no lock is taken.

    Raises:
        RuntimeError: all are taken.
    """
    if len(devices) < 2:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    for device in devices:
        lock = FileLock(folder / f"gpu-{re.sub(r'[^A-Za-z0-9.-]', '_', device)}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        before = os.environ.pop(VISIBLE, None)
        os.environ[VISIBLE] = device
        try:
            yield
        finally:
            del os.environ[VISIBLE]
            os.environ |= {VISIBLE: before} if before is not None else {}
            lock.release()
        return
    raise RuntimeError(f"more runs than GPUs at a time: {', '.join(devices)} are taken; the Snakefile starts one each")


@contextmanager
def one_gpu() -> Iterator[None]:
    """Within, the run has one of the GPUs that torch sees."""
    import torch

    with one_of(visible_devices(torch.cuda.device_count()), lock_folder()):
        yield
