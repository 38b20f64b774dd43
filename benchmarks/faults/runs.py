"""One embedded run, made in a process of its own as often as a fault asks, and what must hold after a fault.

The library is imported once; every start of the run is a fork, which takes one or two seconds to its end.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict

from albert_lsh import load_tokenizer
from albert_lsh.files import run_folder
from albert_lsh.run import Run
from albert_lsh.tasks import encode, find_task, load_data
from albert_lsh.train import fit

ASKED = {"task": "mini-mrpc", "model": "mini", "epochs": 2, "train_examples": 32, "eval_examples": 8, "batch_size": 8}
ASKED |= {"max_length": 48, "learning_rate": 1e-3, "eval_steps": 3, "precision": "fp32", "save_model": True}
ATTENTIONS: dict[str, dict[str, Any]] = {"softmax": {}, "lsh": {"n_hashes": 2, "cluster_size": 4}}
STUDY = "faults"
SAME = ("history.csv", "predictions.parquet", "model/model.safetensors")  # byte for byte
WAIT = 240.0  # seconds; no start takes longer
Work = Callable[[], Any]  # a start: what a process does
Hook = Callable[[str], None]  # called with what a run is about to do to a file


class Broken(Exception):
    """What must hold after a fault does not."""


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def folder_of(root: Path, attention: str, task: str = "mini-mrpc") -> Path:
    """Where the run is below `root`, as a study would place it."""
    return run_folder(STUDY, task, "mini", attention, 0, str(root))


def parameters(root: Path, attention: str, task: str = "mini-mrpc") -> dict[str, Any]:
    given = {**ASKED, "task": task, "attention": attention, "attention_settings": ATTENTIONS[attention]}
    return {**given, "output_dir": str(folder_of(root, attention, task)), "results_root": str(root)}


def encoded(task: str = "mini-mrpc") -> DatasetDict:
    data = load_data(task, train_examples=ASKED["train_examples"], eval_examples=ASKED["eval_examples"])
    return encode(data, find_task(task), load_tokenizer("mini"), ASKED["max_length"])


def make(root: Path, attention: str, task: str = "mini-mrpc", data: DatasetDict | None = None) -> None:
    """The run, from its parameters to its record."""
    run = Run.parse(parameters(root, attention, task))
    fit(run, load_data(task, train_examples=run.train_examples, eval_examples=run.eval_examples), data or encoded(task))


def start(work: Callable[[], Any], log: Path) -> int:
    """Begin `work` in a process of its own, which writes what a user would see to `log`; returns its number."""
    log.write_text("")
    if process := os.fork():
        return process
    status = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        torch.set_num_threads(1)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(process: int, seconds: float = WAIT) -> int | None:
    """The exit status, negative for a signal; None if the process has not ended after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def finish(work: Callable[[], Any], log: Path) -> str:
    """`work` to its end; what it said. Broken if it failed."""
    process = start(work, log)
    status = status_of(process)
    if status is None:
        kill(process)
    require(status == 0, f"the next start failed ({status}): {last_line(log)}")
    return log.read_text()


def last_line(log: Path) -> str:
    """The last error that a process named, or else what it said last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = r"^[\w.]+(Error|Exit|Exception|Failed)\b|memory allocation of \d+ bytes failed"
    errors = [line for line in lines if re.search(named, line)]
    return (errors or lines or [""])[-1]


def watch(folder: Path, hook: Hook) -> None:
    """From now on call `hook` in this process before each change to a file below `folder`, with what it is."""
    kinds = {"os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir", "shutil.rmtree": "delete"}
    below = f"{folder}/"
    busy: list[str] = []

    def audit(event: str, arguments: tuple) -> None:
        if busy or not (event in kinds or event == "open"):
            return
        path = str(arguments[0])
        if not path.startswith(below) or (event == "os.mkdir" and os.path.exists(path)):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        busy.append(event)
        try:
            hook(f"{kinds.get(event, 'open')} {path.removeprefix(below)}")
        finally:
            busy.clear()

    sys.addaudithook(audit)


def operations(root: Path, attention: str, log: Path) -> list[str]:
    """Make the run undisturbed, and list what it did to files."""
    listing = log.with_suffix(".operations")

    def work() -> None:
        watch(folder_of(root, attention), lambda name: print(name, file=opened, flush=True))
        make(root, attention)

    with listing.open("w") as opened:
        finish(work, log)
    return listing.read_text().splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but locks, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def sealed(folder: Path) -> int | None:
    """The step of the newest checkpoint that is complete."""
    states = list((folder / "checkpoints").glob("checkpoint-*/trainer_state.json"))
    steps = [0]
    for path in states:
        with contextlib.suppress(ValueError):
            steps.append(json.loads(path.read_text())["global_step"])
    return max(steps) or None


def went_on(said: str) -> int | None:
    """The step after which a run went on, as it says; None if it began anew."""
    found = re.search(r"^going on after step (\d+), from", said, re.MULTILINE)
    return int(found[1]) if found else None


def difference(whole: Path, run: Path) -> float:
    """Of the score from the undisturbed run's; Broken if anything else that a run leaves differs."""
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (whole, run))
    for name in SAME:
        require((whole / name).read_bytes() == (run / name).read_bytes(), f"{name} is not the undisturbed run's")
    for name in ("metrics", "resolved", "attended_share", "parameters"):
        require(first[name] == second[name], f"{name} of result.json is not the undisturbed run's")
    require(not (run / "checkpoints").exists(), "checkpoints are left behind")
    return second["headline"]["value"] - first["headline"]["value"]


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
