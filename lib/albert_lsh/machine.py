"""Where a run ran: versions, processor, threads, memory, and the commits of code, model and data."""

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import torch

from albert_lsh.files import commit_of, repository_root
from albert_lsh.kinds import LOCAL
from albert_lsh.tasks import TASKS

THREADS = "OMP_NUM_THREADS"  # where it is set, it holds
LOOK = 0.3  # seconds in which other programs are watched
WITH_UNITS = 2 / 3  # of float32's time, a training step in bf16 on a CPU that computes in it
PACKAGES = ("torch", "transformers", "accelerate", "datasets", "reformer-pytorch", "papermill", "numpy", "scikit-learn")


def seconds_of_others() -> float:
    """CPU seconds that other programs have used since the machine started."""
    everything, this = psutil.cpu_times(), os.times()
    return everything.user + everything.system + getattr(everything, "nice", 0.0) - this.user - this.system


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clocks() -> tuple[float, float, float]:
    """Seconds: of the clock, of this process, and of other programs, both over all cores."""
    return time.perf_counter(), time.process_time(), seconds_of_others()


def disturbed(since: tuple[float, float, float]) -> str:
    """What other programs took since a reading of `clocks`, where this one had to wait for them; else nothing."""
    wall, process, others = (now - then for now, then in zip(clocks(), since, strict=True))
    cores, threads = count_cores(), torch.get_num_threads()
    if process > 0.7 * threads * wall or threads + others / wall <= cores:
        return ""
    return f"other programs used {others / wall:.1f} of {cores} cores"


def choose_threads(device: str) -> int:
    """Let torch compute on as many threads as cores are free, at least one, and say so; on a CPU only.

    Small operations on all cores of a busy machine wait for one another: a run that took 13 seconds with one thread
    took 98 with two, beside another on two cores.
    """
    if device != "cpu" or THREADS in os.environ:
        return torch.get_num_threads()
    before = seconds_of_others()
    time.sleep(LOOK)
    busy = (seconds_of_others() - before) / LOOK
    threads = max(1, (cores := count_cores()) - round(busy))
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
        print(f"threads: {threads} of {cores} cores; other programs use {busy:.1f}; {THREADS} sets another number")
    return threads


def computes_in_bf16() -> bool:
    """Whether this CPU does; else torch emulates it."""
    return torch.cpu._is_avx512_bf16_supported()


@cache
def time_in_bf16() -> float:
    """A training step in bf16 on this CPU, as a multiple of one in float32; measured where bf16 is emulated."""
    if computes_in_bf16():
        return WITH_UNITS
    layer, texts, seconds = torch.nn.TransformerEncoderLayer(384, 12, 1536, dropout=0), torch.ones(32, 8, 384), []
    for is_bf16 in (False, False, True):
        began = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            layer(texts).float().sum().backward()
        seconds.append(time.process_time() - began)
    return seconds[-1] / seconds[-2]


def peak_memory(on_gpu: bool) -> int:
    """The most bytes allocated on the GPU, or resident in this process."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # which Windows does not have

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def environment(device: str) -> dict[str, Any]:
    """Versions, device ("cpu" or "cuda"), threads of the CPU, commit (with "-dirty" if the code differs), date."""
    installed = {distribution.name: distribution.version for distribution in distributions()}
    return {
        "python": platform.python_version(),
        "packages": {name: installed.get(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def revisions(
    model: str | None, task: str | None, revision: str | None = None, data_revision: str | None = None
) -> dict[str, str]:
    """The commits of the Hub's repositories that a run's model and data came from, as the cache has them.

    Of one's own files it is the digest that stands for a commit.
    """
    data = TASKS[task].dataset if task in TASKS else "/".join((task or "").split("/")[:2])
    is_file = (data_revision or "").startswith(LOCAL)
    commits = {
        "model": commit_of(model or "", "model", revision),
        "data": data_revision if is_file else commit_of(data, "dataset", data_revision),
    }
    return {part: commit for part, commit in commits.items() if commit}


def processor() -> str:
    """The CPU's name, and the instructions that torch uses on it: bf16 is computed otherwise without AVX512."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"cpu, {next(names, platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"


def commit() -> str | None:
    """The checkout's commit, with "-dirty" when code or studies were changed since; None without one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if not Path(__file__).is_relative_to(repository_root()):
        return None  # the working directory may be in somebody else's repository
    try:
        changed = git("status", "--porcelain", "--", "lib", "studies")  # notebooks are edited where they are run
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
