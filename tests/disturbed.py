"""Work in a process of its own, which a test can disturb.

The library is imported once; every start is a fork, which takes a second or two.
"""

import os
import re
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from tqdm import tqdm

PLACE = Path(os.environ.get("FAULTS", "/nowhere"))  # of all that is written
LOG = PLACE / "log"  # what the last start said
WAIT = 1200  # seconds, which no start takes, on a busy machine either
Work = Callable[[], Any]


def start(work: Work, log: Path = LOG) -> Any:
    """Begin `work` in a fork, which writes what a user would see to a log."""

    def child() -> None:
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
        torch.set_num_threads(1)
        tqdm.set_lock(RLock())  # its own, where all forks share one that a killed process may hold
        work()

    log.write_text("")
    (process := get_context("fork").Process(target=child, daemon=True)).start()
    return process


def end(process: Any) -> int:
    """Its exit status."""
    process.join(WAIT)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def finish(work: Work) -> str:
    """What `work` said; AssertionError if it failed."""
    assert end(start(work)) == 0, last_error(LOG)
    return LOG.read_text()


def failed(work: Work, cause: str = "") -> str:
    """What `work` said when it failed, which must name the cause; "" if it did not fail, or was killed."""
    status = end(start(work))
    message = last_error(LOG) if status not in (0, -9) else ""
    assert not message or re.search(cause, message), f"the end ({status}) does not name the cause: {message}"
    return message


def last_error(log: Path) -> str:
    """The last error that a process named, or else what it said last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = r"^[\w.]+(Error|Exit|Exception|Failed)\b|^error: |memory allocation of \d+ bytes failed"
    return ([line for line in lines if re.search(named, line)] or lines or [""])[-1]
