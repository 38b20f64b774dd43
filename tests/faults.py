"""Kill and damage runs and studies, more than a hundred times; the next start must end as if nothing had happened.

make faults                                         a line for each fault, also in logs/faults.csv
python tests/faults.py 1 "bit flipped" truncated    one fault of each of these kinds
"""

import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch

from albert_lsh import Run, fit, load_model, load_tokenizer
from albert_lsh.files import run_folder
from albert_study.compare import write_tables
from checkouts import copy_code, start_study, write_study
from disturbed import LOG, PLACE, WAIT, failed, finish

WHOLE = PLACE / "whole"  # where the undisturbed runs are
ATTENTIONS: dict[str, dict] = {
    "softmax": {},
    "key-clusters": {"n_hashes": 2, "cluster_size": 4},
}  # the second is disturbed
RUN = {"model": "mini", "epochs": 2, "train_examples": 32, "eval_examples": 8, "batch_size": 8, "max_length": 48}
RUN |= {"learning_rate": 1e-3, "precision": "fp32", "save_model": True}
CHECKOUT = PLACE / "checkout"
Fault = tuple[str, str, str]  # where it struck, what a user was told, how the run ended
OPERATIONS: list[str] = []  # what the run does to files, in order
die = partial(signal.raise_signal, signal.SIGKILL)
study = partial(start_study, CHECKOUT, "faults")


def folder_of(root: Path, attention: str = "key-clusters") -> Path:
    return run_folder("faults", "mini-mrpc", "mini", attention, 0, str(root))


def run(root: Path, attention: str = "key-clusters", hook: Callable[[str], Any] | None = None) -> None:
    """The run; `hook` is called before each change to one of its files, with what it is."""
    folder, busy = f"{folder_of(root, attention)}/", list[str]()

    def audit(event: str, arguments: tuple) -> None:
        changes = event in ("os.rename", "os.remove") or (event == "os.mkdir" and not os.path.exists(arguments[0]))
        changes = changes or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if changes and not busy and str(arguments[0]).startswith(folder):
            busy.append(event)
            hook(f"{event.removeprefix('os.')} {str(arguments[0]).removeprefix(folder)}")
            busy.clear()

    if hook:
        sys.addaudithook(audit)
    values = {**RUN, "task": "mini-mrpc", "attention": attention, "attention_settings": ATTENTIONS[attention]}
    fit(Run.parse(values | {"output_dir": folder, "results_root": str(root)}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but locks, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_same(folder: Path, whole: Path) -> None:
    """A run is as the undisturbed one."""
    first, second = (json.loads((place / "result.json").read_text()) for place in (whole, folder))
    for name in ("history.csv", "predictions.parquet", "model/model.safetensors"):
        assert (whole / name).read_bytes() == (folder / name).read_bytes(), f"{name} is not the undisturbed run's"
    for name in ("metrics", "resolved", "attended_share", "parameters"):
        assert first[name] == second[name], f"{name} of result.json is not the undisturbed run's"
    assert not (folder / "checkpoints").exists(), "checkpoints are left behind"


def begin(root: Path = PLACE / "run", made: Iterable[str] = ("softmax",)) -> Path:
    """A root in which these runs are finished, and nothing else is made."""
    for path in (path for name in ("results", "figures", "logs", "report/build") for path in (root / name).glob("*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for attention in made:
        shutil.copytree(folder_of(WHOLE, attention), folder_of(root, attention))
    return root


def take_up(root: Path) -> str:
    """Start the run again: it must go on where it was, and end as the undisturbed one."""
    folder = folder_of(root)
    states = folder.glob("checkpoints/checkpoint-*/trainer_state.json")  # written last
    newest = max((int(path.parent.name[11:]) for path in states if path.read_text().endswith("\n}\n")), default=None)
    finished = contents(folder) if (folder / "result.json").exists() else {}
    step = re.search(r"^going on after step (\d+)", finish(partial(run, root)), re.MULTILINE)
    assert finished or (step and int(step[1])) == newest, f"went on after {step and step[1]}, not {newest}"
    assert not finished or contents(folder).items() <= finished.items(), "a finished run was changed"
    check_same(folder, folder_of(WHOLE))
    assert contents(folder_of(root, "softmax")) == contents(folder_of(WHOLE, "softmax")), "another run was changed"
    return "was finished" if finished else f"went on after step {newest}" if newest else "began anew"


def killed(rng: random.Random) -> Fault:
    """SIGKILL at any moment."""
    root, seconds = begin(), rng.uniform(0.1, 2.0)
    failed(lambda: (threading.Timer(seconds, die).start(), run(root)))
    return f"after {seconds:.2f} s", "", take_up(root)


def killed_in_saving(rng: random.Random) -> Fault:
    """SIGKILL before what the run does to one of its files, or some milliseconds later."""
    root, later = begin(), rng.choice([0.0, rng.uniform(0, 0.02)])
    number, count = rng.randrange(3, len(OPERATIONS)), iter(range(len(OPERATIONS)))
    kill = threading.Timer(later, die).start if later else die
    failed(partial(run, root, hook=lambda _: next(count, None) == number and kill()))
    return f"before {OPERATIONS[number]}", "", take_up(root)


def damaged(rng: random.Random, how: str) -> Fault:
    """A file of a result, which has a checksum; a truncated one also of a model or a checkpoint."""
    kind = rng.choice(["model", "result", "checkpoint"] if how == "truncated" else ["result"])
    root = begin(made=["softmax"] if kind == "checkpoint" else ATTENTIONS)
    folder = folder_of(root)
    pattern = {"model": "model/*", "result": "result.json", "checkpoint": "checkpoints/checkpoint-4/*"}[kind]
    if kind == "checkpoint":
        failed(partial(run, root, hook=lambda operation: operation == "mkdir checkpoints/checkpoint-8" and die()))
    path = rng.choice(sorted(path for path in folder.glob(pattern) if path.is_file() and path.stat().st_size))
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content[:at] if how == "truncated" else content)
    cause = {"model": "model=", "result": "result.json.*is damaged", "checkpoint": "checkpoint"}[kind]
    message = failed(partial(ask, folder / "model") if kind == "model" else partial(run, root), cause)
    if message:  # what is beyond mending is moved away by hand
        shutil.rmtree(path.parent if kind == "checkpoint" else folder)
    elif kind in ("model", "result"):  # nothing depends on this bit
        shutil.copytree(folder_of(WHOLE), folder, dirs_exist_ok=True)
    return f"{kind}: {path.name}, {how} at byte {at} of {len(content)}", message, take_up(root)


def ask(folder: Path) -> None:
    """A model must answer as the undisturbed run's."""
    answers = []
    for place in (folder_of(WHOLE) / "model", folder):
        tokens = load_tokenizer(str(place))("It rained.", "There was rain.", return_tensors="pt")
        with torch.no_grad():
            answers.append(load_model(str(place), complete=True).eval()(**tokens).logits)
    assert torch.equal(*answers), "other answers, and nothing is said"


def in_a_study(rng: random.Random, part: str) -> Fault:
    """A study, of two runs of which one is finished, in a copy of the code: some seconds after a part of it has begun,
    this is killed."""
    begin(CHECKOUT)
    process, seconds, parts = study(LOG.open("w")), rng.uniform(0, 12), dict[str, psutil.Process]()
    words = {"job": "albert_study.execute", "kernel": "ipykernel_launcher", "snakemake": "snakemake"}
    awaited = part if part in words else "kernel"
    while process.poll() is None and awaited not in parts:
        with contextlib.suppress(psutil.Error):
            for member in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                command = " ".join(member.cmdline()[:9])
                parts |= {name: member for name, word in words.items() if f"-m {word} " in command}
        time.sleep(0.05)
    time.sleep(seconds)
    for name in words if part == "all" else (part,):
        with contextlib.suppress(psutil.Error, KeyError):
            parts[name].kill()
    status, said = process.wait(WAIT), LOG.read_text(errors="replace")
    cause = {"kernel": "FAILED mini-mrpc.*[Kk]ernel died", "job": "FAILED mini-mrpc.*without a word"}
    assert status <= 0 or re.search(cause.get(part, "."), said, re.DOTALL), f"the cause is not named: {said[-300:]}"
    message = said[said.find("FAILED ") :] if "FAILED " in said else ""
    return f"{part}, {seconds:.1f} s after its start", message, make_again()


def make_again() -> str:
    """The study ends as if undisturbed, and what was finished stays as it was."""
    runs, folder = CHECKOUT / "results" / "runs", folder_of(CHECKOUT)
    done, finished = (folder / "result.json").exists(), {**contents(runs)}
    assert study(LOG.open("w")).wait(WAIT) == 0, f"the next start failed: {LOG.read_text()[-300:]}"
    for path in (path for path in finished if path.endswith("result.json") or "/softmax/" in path):
        assert (runs / path).read_bytes() == finished[path], f"{path} of a finished run was changed"
    for attention in ATTENTIONS:
        check_same(folder_of(CHECKOUT, attention), folder_of(WHOLE, attention))
    assert [path.name for path in folder.glob("*.ipynb")] == ["notebook.ipynb"], "no notebook is kept, or a part of it"
    tables = (pd.read_csv(root / "results/tables/faults-scores.csv") for root in (CHECKOUT, WHOLE))
    assert next(tables)["score"].equals(next(tables)["score"]), "other scores"
    return "was finished" if done else "made"


# How many there are of each. It draws where it strikes, lets it strike, and starts the run or the study again.
KINDS: dict[str, tuple[int, Callable[..., Fault]]] = {
    "SIGKILL in training": (24, killed),
    "SIGKILL in saving": (30, killed_in_saving),
    "truncated": (24, partial(damaged, how="truncated")),
    "bit flipped": (24, partial(damaged, how="bit flipped")),
    "SIGKILL of a kernel": (10, partial(in_a_study, part="kernel")),
    "SIGKILL of a job": (5, partial(in_a_study, part="job")),
    "SIGKILL of the workflow": (5, partial(in_a_study, part="snakemake")),
    "SIGKILL of all": (5, partial(in_a_study, part="all")),
}


def campaign(rounds: int, kinds: list[str]) -> int:
    """Make what is undisturbed; draw the faults, kinds in turn, each by its name and number; how many are broken."""
    table, broken = csv.writer(sys.stdout), 0
    said = finish(partial(run, WHOLE, hook=lambda operation: print("\nfile:", operation, flush=True)))
    OPERATIONS.extend(re.findall("^file: (.*)$", said, re.MULTILINE))
    finish(partial(run, WHOLE, "softmax"))
    finish(partial(write_tables, "faults", root=WHOLE))
    copy_code(CHECKOUT)
    arms = {name: {"attention_settings": settings} for name, settings in ATTENTIONS.items()}
    write_study(CHECKOUT, "faults", parameters=RUN, tasks={"mini-mrpc": {"arms": arms}})
    table.writerow(["kind", "number", "place", "message", "outcome"])
    for number in range(rounds):
        for kind, (count, make) in KINDS.items():
            if number < count and kind in kinds:
                try:
                    row = make(random.Random(f"{kind} {number}"))
                except Exception as error:
                    row = ("", "", f"BROKEN: {error!r}")
                    broken += 1
                table.writerow([kind, number, *(text.replace(f"{PLACE}/", "")[:300] for text in row)])
                sys.stdout.flush()
    return broken


if __name__ == "__main__":
    if "FAULTS" in os.environ:
        sys.exit(min(campaign(int(sys.argv[1]), sys.argv[2:] or [*KINDS]), 1))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *(sys.argv[1:] or ["30"])]
        sys.exit(subprocess.run(command, env={**os.environ, "FAULTS": folder}).returncode)
