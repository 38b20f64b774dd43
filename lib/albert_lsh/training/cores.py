"""How many of a machine's cores a run takes: those that are free.

Small operations on all cores of a busy machine wait for one another: a run that took 13 seconds with one thread took 98
with two, beside another on two cores.
"""

import os
import time

import psutil
import torch

CHOSEN = "OMP_NUM_THREADS"  # where it is set, it holds
LOOK = 0.3  # seconds


def seconds_of_others() -> float:
    """CPU seconds that other programs have used since the machine started."""
    all_of_them, own = psutil.cpu_times(), os.times()
    return all_of_them.user + all_of_them.system + getattr(all_of_them, "nice", 0.0) - own.user - own.system


def choose_threads(device: str) -> int:
    """Let torch compute on as many threads as cores are free, at least one, and say so; on a CPU only.

    Returns:
        The number of threads.
    """
    if device != "cpu" or CHOSEN in os.environ:
        return torch.get_num_threads()
    before = seconds_of_others()
    time.sleep(LOOK)
    busy = (seconds_of_others() - before) / LOOK
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores - round(busy))
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
        print(f"threads: {threads} of {cores} cores; other programs use {busy:.1f}; {CHOSEN} sets another number")
    return threads
