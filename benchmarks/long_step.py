"""What fits: a training step of ALBERT-base's shape at 4,096 tokens, eight sequences, with `lsh` and eager softmax.

    python benchmarks/long_step.py        writes results/efficiency/long-step.csv, in about a quarter of an hour

Both recompute activations. Each has a process of its own, which may have the memory that the machine has left; one
that asks for more is refused, and the row says at which peak and for how many bytes. Eager softmax is asked with one
sequence too, which says what it takes for each.
"""

import json
import re
import resource
import subprocess
import sys
from typing import Any

import pandas as pd
import psutil
import torch

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance
from albert_study.experiments.efficiency import STEPS, base_model, resident_memory

LENGTH, KEYS = 4096, 512
CASES = [("lsh", 8), ("softmax-eager", 1), ("softmax-eager", 8)]


def step(attention: str, batch: int) -> dict[str, Any]:
    """Peak memory of a step above that of the model alone, in a process that has done nothing else."""
    name = f"{attention}, recomputed"
    STEPS[name] = (attention, True)
    model = base_model(LENGTH, KEYS, name)
    ids = torch.randint(30_000, (batch, LENGTH), generator=torch.Generator().manual_seed(0))
    before, left = resident_memory("VmRSS"), psutil.virtual_memory().available
    limit = resident_memory("VmSize") + left
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    row: dict[str, Any] = {"attention": attention, "batch": batch, "length": LENGTH, "left": left, "fits": True}
    try:
        model(ids, labels=torch.arange(batch) % 2).loss.backward()
    except RuntimeError as error:
        if not (refused := re.search(r"you tried to allocate (\d+) bytes", str(error))):
            raise
        row |= {"fits": False, "refused": int(refused.group(1))}
    return row | {"bytes": resident_memory("VmHWM") - before}


def main() -> None:
    rows = []
    for attention, batch in CASES:
        command = [sys.executable, __file__, json.dumps({"attention": attention, "batch": batch})]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{attention}, {batch} sequences: {done.stderr}")
        rows.append(json.loads(done.stdout.splitlines()[-1]) | provenance("cpu"))
    path = repository_root() / "results" / "efficiency" / "long-step.csv"
    write_atomically(path, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(step(**json.loads(sys.argv[1]))))
    else:
        main()
