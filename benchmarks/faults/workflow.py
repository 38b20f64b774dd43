"""Faults of a study, in a checkout of its own: its notebook's kernel killed, its workflow killed, and more.

A study of two runs, one of them finished; the other's notebook, the tables and the report are to be made.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import psutil
import yaml

from faults import runs
from faults.bench import FULL, Bench, Seen
from faults.runs import ASKED, ATTENTIONS, STUDY, Broken, require

ROOT = Path(__file__).resolve().parents[2]
JOB, OTHER = "mini-mrpc/mini/lsh/seed-0", "mini-mrpc/mini/softmax/seed-0"
LONG = 1800.0  # seconds; no start of the study takes longer, on a busy machine either
PARTS = {"kernel": "ipykernel", "runner": "albert_study.runner", "snakemake": "snakemake", "make": "albert_study.make"}
SCORES = "tables/faults-scores.csv"
KEPT = (*runs.SAME, "result.json", "notebook.ipynb")


class Checkout:
    """A copy of the repository's code with the study; made once undisturbed, then reset for each fault."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.whole, self.log = folder, folder.with_name(f"{folder.name}-whole"), folder.with_suffix(".log")
        if not self.whole.exists():
            self.copy_code()
            require(self.ends(self.begin("make")) == 0, f"the undisturbed study failed: {self.log.read_text()[-2000:]}")
            shutil.copytree(self.folder / "results", self.whole)

    def copy_code(self) -> None:
        runs.fresh(self.folder)
        left_out = shutil.ignore_patterns("__pycache__", "*.pdf", "*.egg-info", "build")
        for name in ("lib", "notebooks", "profiles", "report"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=left_out)
        for name in ("pyproject.toml", "Snakefile", "environment.yml"):
            shutil.copy(ROOT / name, self.folder)
        (self.folder / "studies").mkdir()
        shutil.copy(ROOT / "studies" / "published.csv", self.folder / "studies")
        arms = {name: {"attention_settings": settings} for name, settings in ATTENTIONS.items()}
        given = {name: value for name, value in ASKED.items() if name != "task"}
        content = {"parameters": given, "tasks": {"mini-mrpc": {"arms": arms}}}
        (self.folder / "studies" / f"{STUDY}.yaml").write_text(yaml.safe_dump(content))

    def reset(self) -> None:
        """One run is finished, nothing else is made."""
        for name in ("results", "figures", "logs", "report/build"):
            place = self.folder / name
            for path in place.iterdir() if place.exists() else []:  # `results` may be a disk of its own
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        kept = f"runs/{STUDY}/{OTHER}"
        shutil.copytree(self.whole / kept, self.folder / "results" / kept)

    def begin(self, what: str, log: Path | None = None) -> subprocess.Popen:
        """`make study`, or its job alone (what="runner"), in a session of its own."""
        command = [sys.executable, "-m", PARTS[what], STUDY, *([JOB] if what == "runner" else [])]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {**os.environ, "PYTHONPATH": str(self.folder / "lib"), "PATH": path}
        with (log or self.log).open("w") as said:
            return subprocess.Popen(
                command, cwd=self.folder, env=own, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )

    def ends(self, process: subprocess.Popen) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(LONG)
        kill_all(process)
        raise Broken("it hangs")

    def check(self, place: str, message: str, what: str) -> Seen:
        """Start the study, or its job, again; it must end as if undisturbed."""
        self.check_finished()
        done = (self.folder / "results" / "runs" / STUDY / JOB / "result.json").exists()
        before = runs.contents(self.folder / "results" / "runs" / STUDY / JOB) if done else {}
        status = self.ends(self.begin(what))
        require(status == 0, f"the next start failed ({status}): {error_in(self.log)}")
        self.check_finished()
        job = self.folder / "results" / "runs" / STUDY / JOB
        for name in ("history.csv", "predictions.parquet", "result.json"):
            require(not done or (job / name).read_bytes() == before[name], f"{name} of a finished run was changed")
        require((job / "notebook.ipynb").exists(), "no notebook is kept")
        require(not list(job.glob("*.partial*")), "parts of a notebook are left behind")
        if what == "make":
            scores, whole = (pd.read_csv(root / SCORES)["score"] for root in (self.folder / "results", self.whole))
            require(scores.equals(whole), f"{SCORES} has other scores")
        return Seen(place, message, "was finished" if done else "made", runs.difference(self.of_whole(JOB), job))

    def of_whole(self, job: str) -> Path:
        return self.whole / "runs" / STUDY / job

    def check_finished(self) -> None:
        """The finished run's files are as they were."""
        for name in KEPT:
            there, whole = self.folder / "results" / "runs" / STUDY / OTHER / name, self.of_whole(OTHER) / name
            require(
                there.exists() and there.read_bytes() == whole.read_bytes(), f"{name} of a finished run was changed"
            )


def error_in(log: Path) -> str:
    """What a study says of a failed job: the line that names it, and the error's last line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
    job = next((line for line in text.splitlines() if line.startswith("FAILED ")), "")
    return f"{job}: {runs.last_line(log)}".removeprefix(": ")


def members(process: subprocess.Popen) -> dict[str, psutil.Process]:
    """The living processes of a session, by their part."""
    found = {}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(one.pid) == process.pid or process.pid in {parent.pid for parent in one.parents()}:
                words = " ".join(one.cmdline())
                part = next((name for name, word in PARTS.items() if f"-m {word}" in words), None)
                if part and "sh -c" not in words:
                    found[part] = one
    return found


def kill_all(process: subprocess.Popen) -> None:
    for _ in range(3):  # what is started meanwhile
        for one in members(process).values():
            with contextlib.suppress(psutil.Error):
                one.send_signal(signal.SIGKILL)
    process.poll()


def checkout_of(bench: Bench) -> Checkout:
    return Checkout(bench.folder / "checkout")


def kernel_killed(bench: Bench, rng: random.Random) -> Seen:
    """SIGKILL for the kernel of a notebook that is being executed, at any moment."""
    checkout, seconds = checkout_of(bench), rng.uniform(0, 12)
    checkout.reset()
    process = checkout.begin("runner")
    while process.poll() is None and "kernel" not in members(process):
        time.sleep(0.05)
    time.sleep(seconds)
    if kernel := members(process).get("kernel"):
        kernel.kill()
    status = checkout.ends(process)
    message = error_in(checkout.log) if status else ""
    require(status == 0 or re.search("FAILED.*[Kk]ernel died", message), f"the cause is not named: {message}")
    return checkout.check(f"{seconds:.1f} s after its start", message, "runner")


def workflow_killed(bench: Bench, rng: random.Random) -> Seen:
    """SIGKILL for `make study`, Snakemake, the process that executes a notebook, or all, at any moment."""
    checkout, part, seconds = checkout_of(bench), rng.choice(["make", "snakemake", "runner", "all"]), rng.uniform(2, 40)
    checkout.reset()
    process = checkout.begin("make")
    deadline = time.monotonic() + seconds
    while process.poll() is None and (time.monotonic() < deadline or part not in {"all", *members(process)}):
        time.sleep(0.05)
    victims = members(process)
    for one in victims.values() if part == "all" else [victims[part]] if part in victims else []:
        with contextlib.suppress(psutil.Error):
            one.kill()
    status = checkout.ends(process)
    message = error_in(checkout.log) if status > 0 else ""
    made = (checkout.folder / "results" / "runs" / STUDY / JOB / "result.json").exists()
    require(
        not message or made or JOB in message or "Snakemake was killed" in message, f"the job is not named: {message}"
    )
    seen = checkout.check(f"{part}, after {seconds:.1f} s", message, "make")
    while members(process):
        time.sleep(0.1)
    return seen


def disk_full(bench: Bench, rng: random.Random) -> Seen:
    """No room for results while a notebook is being executed."""
    checkout, seconds = checkout_of(bench), rng.uniform(0, 12)
    results = checkout.folder / "results"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(results)], check=True)
    try:
        checkout.reset()
        process = checkout.begin("runner")
        while process.poll() is None and not list(results.rglob("*.partial.ipynb")):
            time.sleep(0.05)
        time.sleep(seconds)
        free = os.statvfs(results)
        with (results / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize))
        message = error_in(checkout.log) if checkout.ends(process) else ""
        require(not message or re.search(FULL, message), f"the cause is not named: {message}")
        (results / "ballast").unlink()
        return checkout.check(f"{seconds:.1f} s after a notebook's start", message, "runner")
    finally:
        subprocess.run(["umount", "--lazy", str(results)], check=True)


def started_twice(bench: Bench, rng: random.Random) -> Seen:
    """The same study, some seconds later."""
    checkout, seconds = checkout_of(bench), rng.uniform(0, 8)
    checkout.reset()
    first, other = checkout.begin("make"), checkout.log.with_suffix(".second.log")
    time.sleep(seconds)
    second = checkout.begin("make", other)
    pairs = ((first, checkout.log), (second, other))
    messages = [error_in(log) for process, log in pairs if checkout.ends(process)]
    require(all("is in use by" in one for one in messages), f"the cause is not named: {messages}")
    return checkout.check(f"{seconds:.1f} s later", "; ".join(messages), "make")
