"""A run in a process of its own, which a test can watch and disturb.

The library is imported once; every start of the run is a fork, which takes a second or two.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from albert_lsh.files import run_folder
from albert_lsh.run import Run
from albert_lsh.train import fit

PLACE = Path(os.environ.get("FAULTS", "/nowhere"))  # of all that is written
LOG, WHOLE = PLACE / "log", PLACE / "whole"  # what the last start said; where the undisturbed runs are
ATTENTIONS: dict[str, dict] = {"softmax": {}, "lsh": {"n_hashes": 2, "cluster_size": 4}}  # the second is disturbed
RUN = {"model": "mini", "epochs": 2, "train_examples": 32, "eval_examples": 8, "batch_size": 8, "max_length": 48}
RUN |= {"learning_rate": 1e-3, "eval_steps": 3, "precision": "fp32", "save_model": True}
SAME = ("history.csv", "predictions.parquet", "model/model.safetensors")  # byte for byte
WAIT = 1200  # seconds, which no start takes, on a busy machine either
Work = Callable[[], Any]


def folder_of(root: Path, attention: str = "lsh", task: str = "mini-mrpc") -> Path:
    return run_folder(f"faults-{task}", task, "mini", attention, 0, str(root))


def run(root: Path, attention: str = "lsh", task: str = "mini-mrpc") -> None:
    """The run, from its parameters to its record."""
    values = {**RUN, "task": task, "attention": attention, "attention_settings": ATTENTIONS[attention]}
    values |= {"output_dir": str(folder_of(root, attention, task)), "results_root": str(root)}
    fit(Run.parse(values))


def watched(root: Path, hook: Callable[[str], Any]) -> None:
    """The run, in which `hook` is called before each change to one of its files, with what it is."""
    kinds, folder = {"os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir"}, f"{folder_of(root)}/"
    busy: list[str] = []

    def audit(event: str, arguments: tuple) -> None:
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if busy or not (event in kinds or writes) or not str(arguments[0]).startswith(folder):
            return
        if event != "os.mkdir" or not os.path.exists(arguments[0]):
            busy.append(event)
            hook(f"{kinds.get(event, 'open')} {str(arguments[0]).removeprefix(folder)}")
            busy.clear()

    sys.addaudithook(audit)
    run(root)


def start(work: Work, log: Path = LOG) -> Any:
    """Begin `work` in a fork, which writes what a user would see to a log."""

    def child() -> None:
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
        torch.set_num_threads(1)
        work()

    log.write_text("")
    (process := get_context("fork").Process(target=child)).start()
    return process


def end(process: Any) -> int:
    """Its exit status; AssertionError if it hangs."""
    process.join(WAIT)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("the process hangs")
    return process.exitcode


def finish(work: Work) -> str:
    """What `work` said; AssertionError if it failed."""
    assert end(start(work)) == 0, f"a start failed: {last_error(LOG)}"
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


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but locks, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_same(folder: Path, whole: Path) -> None:
    """A run is as the undisturbed one."""
    first, second = (json.loads((place / "result.json").read_text()) for place in (whole, folder))
    for name in SAME:
        assert (whole / name).read_bytes() == (folder / name).read_bytes(), f"{name} is not the undisturbed run's"
    for name in ("metrics", "resolved", "attended_share", "parameters"):
        assert first[name] == second[name], f"{name} of result.json is not the undisturbed run's"
    assert not (folder / "checkpoints").exists(), "checkpoints are left behind"
