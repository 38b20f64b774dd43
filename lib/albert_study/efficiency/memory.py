"""Peak memory of one workload, in a process of its own.

    python -m albert_study.efficiency.memory '{"kind": "attention", "case": "lsh", "length": 4096}'

prints the bytes that a forward and backward pass, or a training step (kind "step"), takes above what was there before.
For Linux.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from albert_study.efficiency.contenders import CONTENDERS
from albert_study.efficiency.parameters import EfficiencyParameters
from albert_study.efficiency.workloads import Workload, inputs, one_pass, training_step


def memory_of(**workload: Any) -> int:
    """Bytes, measured in a new process; workload: the arguments of `measure_here`."""
    command = [sys.executable, "-m", "albert_study.efficiency.memory", json.dumps(workload)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"measuring the memory of {workload} failed:\n{done.stderr}")
    return int(done.stdout.split()[-1])


def measure_here(kind: str, case: str, length: int, keys: int = 512, precision: str = "fp32") -> int:
    """Bytes, in this process. A small run comes first, so that what is loaded at first use does not count."""

    def prepare(length: int, keys: int) -> Workload:
        asked = EfficiencyParameters([length], [case], [length], [case], keys=keys, precision=precision)
        if kind == "step":
            return training_step(length, case, asked)
        return one_pass(CONTENDERS[case].build(length, keys), inputs(length, asked), backward=True)

    run = prepare(length, keys)
    prepare(64, 64)()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_memory("VmRSS")
    run()
    return resident_memory("VmHWM") - before


def resident_memory(name: str) -> int:
    """Bytes of memory resident now (VmRSS), or at the peak (VmHWM), as Linux counts them."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(measure_here(**json.loads(sys.argv[1])))
