"""What bounds the speed of attention inside clusters on a CPU: the kernel, and the allocator.

    OMP_NUM_THREADS=1 python benchmarks/bound.py      writes results/efficiency/bound.csv, in a few minutes

Rates of torch's fused kernel, forward and backward, in blocks of so many queries and keys, beside that of one large
matrix product: no attention of as many keys can be faster than the kernel. And the time of reformer-pytorch and of
plain LSH at 4,096 tokens in a process that gives memory back to the system and takes it again (glibc's default), and in
one that keeps it: what of a ratio is page faults.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance
from albert_study.experiments.efficiency import CONTENDERS, Efficiency, inputs, one_pass, seconds_of

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
SHAPES = [(64, 128), (128, 128), (256, 256), (512, 512)]  # queries and keys of a block
DIM, PAIRS, LENGTH, KEYS = 64, 2**23, 4096, 512
TIMED = ["softmax", "reformer-pytorch", "reformer-pytorch, one round", "lsh", "lsh, one round"]
KEPT = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000", "MALLOC_TOP_PAD_": "500000000"}


def seconds(run: Callable[[], Any]) -> float:
    """Median of five, after one that warms up."""
    return statistics.median(seconds_of({"": run}, 5)[""])


def rates() -> list[dict[str, Any]]:
    """Gflop/s of a large product, and of the fused kernel by shape of its blocks."""
    a = torch.randn(2048, 2048)
    rows = [{"what": "product of 2048 x 2048", "gflops": 2 * 2048**3 / seconds(lambda: a @ a) / 1e9}]
    for queries, keys in SHAPES:
        blocks = PAIRS // (queries * keys)
        q, up = (torch.randn(blocks, 1, queries, DIM) for _ in range(2))
        k, v = (torch.randn(blocks, 1, keys, DIM) for _ in range(2))
        out, log_sum = FORWARD(q, k, v)
        of_pass = {
            "forward": (4, seconds(lambda: FORWARD(q, k, v))),  # noqa: B023
            "backward": (10, seconds(lambda: BACKWARD(up, q, k, v, out, log_sum, 0.0, False))),  # noqa: B023
        }
        for name, (products, took) in of_pass.items():
            rate = blocks * queries * keys * DIM * products / took / 1e9
            rows.append({"what": f"fused kernel, {name}", "queries": queries, "keys": keys, "gflops": rate})
    return rows


def timed() -> dict[str, float]:
    """Seconds of each case, forward and backward, in this process."""
    tensors = inputs(LENGTH, Efficiency(lengths=[LENGTH], cases=TIMED, step_lengths=[], step_cases=[]))
    runs = {name: one_pass(CONTENDERS[name].build(LENGTH, KEYS), tensors, backward=True) for name in TIMED}
    return {name: statistics.median(taken) for name, taken in seconds_of(runs, 3).items()}


def main() -> None:
    rows = rates()
    for allocator, variables in (("default", {}), ("memory kept", KEPT)):
        done = subprocess.run([sys.executable, __file__, "timed"], capture_output=True, text=True, check=True,
                              env={**os.environ, **variables})  # fmt: skip
        for case, took in json.loads(done.stdout.splitlines()[-1]).items():
            rows.append({"what": case, "allocator": allocator, "length": LENGTH, "keys": KEYS, "seconds": took})
    table = pd.DataFrame(rows).assign(threads=torch.get_num_threads(), **provenance("cpu"))
    write_atomically(repository_root() / "results" / "efficiency" / "bound.csv", table.to_csv(index=False))


if __name__ == "__main__":
    print(json.dumps(timed())) if sys.argv[1:] == ["timed"] else main()
