"""Time and memory of attentions and of their peers, side by side.

    python -m albert_lsh.efficiency memory lsh 4096 512 fp32     peak memory of one case, in a process of its own: bytes

Times are taken in one process, the cases in turn, several rounds, so that what disturbs one disturbs all; what counts
is the ratio. A case is an attention with settings for about the same number of keys per query, or a peer: torch's fused
softmax attention is `softmax`, reformer-pytorch's LSHAttention is a peer of its own.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from reformer_pytorch import LSHAttention
from torch import Tensor

from albert_lsh import attention
from albert_lsh.runs import ParameterError, from_given, provenance, write_atomically

HEADS, HEAD_DIM = 12, 64  # ALBERT-base's
QUADRATIC = ("softmax", "softmax-eager")
MIB = 2**20


@dataclass(frozen=True)
class Measuring:
    """The parameters of efficiency.ipynb."""

    lengths: list[Any]
    cases: list[Any]
    keys: int = 512
    precision: str = "fp32"
    device: str = "cpu"
    repeats: int = 5
    longest_eager: int = 8192
    memory: bool = True
    output_dir: str = "results/efficiency"

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Measuring":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        measuring = from_given(cls, given, "efficiency.ipynb")
        for name in measuring.cases:
            if name not in CASES:
                raise ParameterError(f"cases: {name!r} is not one of: {', '.join(CASES)} (efficiency.ipynb)")
        for length in measuring.lengths:
            if not isinstance(length, int) or length < measuring.keys // 4:
                raise ParameterError(f"lengths: {length!r} must be a whole number, keys / 4 or more (efficiency.ipynb)")
        return measuring


def plain(keys: int) -> dict[str, Any]:
    """Hashed clusters alone, in as many rounds as reformer-pytorch has by default in our cases."""
    return {
        "n_hashes": 4, "cluster_size": keys // 4, "hashing": "plain", "choose": "collision", "global_tokens": 0,
        "duplicates": "each",
    }  # fmt: skip


def of_ours(name: str, settings: Callable[[int, int], dict[str, Any]]) -> Callable[[int, int], Callable[..., Tensor]]:
    """A case that is one of our attentions; settings(length, keys)."""

    def build(length: int, keys: int) -> Callable[..., Tensor]:
        chosen = settings(length, keys)
        return lambda query, key, value: attention.attend(name, query, key, value, **chosen)

    return build


def reformer_pytorch(length: int, keys: int) -> Callable[..., Tensor]:
    """The package's attention: four rounds, each query sees its own bucket and the one before."""
    layer = LSHAttention(bucket_size=keys // 8, n_hashes=4, dropout=0.0)
    return lambda query, key, value: layer(query.flatten(0, 1), value.flatten(0, 1))[0].view(value.shape)


def default_lsh(length: int, keys: int) -> dict[str, Any]:
    """The default, which queries of a block choose together so that the cost stays linear."""
    share = min(1.0, keys / length)
    settings = attention.settings_for("lsh", length, share, far_field=False)
    return {**settings, "block_size": max(1, 2 * round(length**0.5) // 4), "choose": "mean-query"}


CASES: dict[str, Callable[[int, int], Callable[..., Tensor]]] = {
    "softmax": of_ours("softmax", lambda length, keys: {}),
    "softmax-eager": of_ours("softmax-eager", lambda length, keys: {}),
    "reformer-pytorch": reformer_pytorch,
    "shared-qk-lsh": of_ours("shared-qk-lsh", lambda length, keys: {"n_hashes": 4, "bucket_size": keys // 8}),
    "plain lsh": of_ours("lsh", lambda length, keys: plain(keys)),
    "lsh": of_ours("lsh", default_lsh),
    "nystrom": of_ours("nystrom", lambda length, keys: {"num_landmarks": min(keys // 2, length // 2)}),
    "yoso": of_ours("yoso", lambda length, keys: {}),
    "window": of_ours("window", lambda length, keys: {"n_hashes": keys, "cluster_size": 1}),
}


def inputs(length: int, measuring: Measuring) -> list[Tensor]:
    """Query, key and value, (1, 12, length, 64), the same for every case."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[measuring.precision]
    generator = torch.Generator().manual_seed(length)
    shape = (1, HEADS, length, HEAD_DIM)
    return [torch.randn(shape, generator=generator).to(measuring.device, dtype) for _ in range(3)]


def run_once(case: Callable[..., Tensor], tensors: list[Tensor], backward: bool) -> None:
    leaves = [t.detach().requires_grad_(backward) for t in tensors]
    with torch.set_grad_enabled(backward):
        out = case(*leaves)
    if backward:
        out.backward(torch.ones_like(out))
    if tensors[0].is_cuda:
        torch.cuda.synchronize()


def times(measuring: Measuring) -> pd.DataFrame:
    """Seconds by case, length and pass: median, least and most of `repeats`, one row each."""
    about, rows = provenance(measuring.device), []
    for length in measuring.lengths:
        tensors = inputs(length, measuring)
        names = [
            n for n in measuring.cases if n not in ("softmax-eager", "window") or length <= measuring.longest_eager
        ]
        cases = {name: CASES[name](length, measuring.keys) for name in names}
        for backward in (False, True):
            seconds: dict[str, list[float]] = {name: [] for name in cases}
            for number in range(measuring.repeats + 1):
                for name, case in cases.items():
                    began = time.perf_counter()
                    run_once(case, tensors, backward)
                    if number:  # the first warms up
                        seconds[name].append(time.perf_counter() - began)
            for name, found in seconds.items():
                row = {"case": name, "length": length, "pass": "forward+backward" if backward else "forward"}
                row |= {"seconds": float(np.median(found)), "least": min(found), "most": max(found)}
                row |= {"keys": measuring.keys, "precision": measuring.precision, "repeats": measuring.repeats}
                rows.append(row | {"threads": torch.get_num_threads()} | about)
    return pd.DataFrame(rows)


def peak_memory(name: str, length: int, keys: int, precision: str) -> int:
    """Bytes that one forward and backward pass takes at its peak, above what was there: in this process, on Linux."""
    measuring = Measuring([length], [name], keys=keys, precision=precision)
    case, tensors = CASES[name](length, keys), inputs(length, measuring)
    small = [t[:, :, : max(64, keys // 4)] for t in tensors]
    run_once(CASES[name](small[0].shape[2], keys), small, backward=True)  # what is loaded at first use is no cost
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; what a process inherits is none of its own
    before = resident("VmRSS")
    run_once(case, tensors, backward=True)
    return resident("VmHWM") - before


def resident(name: str) -> int:
    """Bytes of memory resident now (VmRSS), or at the peak (VmHWM), as Linux counts them."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def memories(measuring: Measuring) -> pd.DataFrame:
    """Peak memory by case and length, each in a process of its own."""
    about, rows = provenance(measuring.device), []
    for length in measuring.lengths:
        for name in measuring.cases:
            if name in ("softmax-eager", "window") and length > measuring.longest_eager:
                continue
            command = [sys.executable, "-m", "albert_lsh.efficiency", "memory", name, str(length), str(measuring.keys)]
            done = subprocess.run([*command, measuring.precision], capture_output=True, text=True, check=True)
            rows.append({"case": name, "length": length, "bytes": int(done.stdout.split()[-1]), "keys": measuring.keys,
                         "precision": measuring.precision} | about)  # fmt: skip
    return pd.DataFrame(rows)


def measure_all(measuring: Measuring) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Times and memory, written to output_dir/{time,memory}-<device>-<precision>.csv."""
    folder = Path(measuring.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tables = times(measuring), memories(measuring) if measuring.memory else pd.DataFrame()
    for kind, table in zip(("time", "memory"), tables, strict=True):
        if len(table):
            path = folder / f"{kind}-{measuring.device}-{measuring.precision}.csv"
            write_atomically(path, table.to_csv(index=False))
    return tables


def slopes(table: pd.DataFrame, value: str, least: int = 2048) -> pd.Series:
    """The power of the length with which each case grows, fitted on log axes from `least` tokens on."""
    rows = table[table["length"] >= least]
    return rows.groupby("case", sort=False)[["length", value]].apply(
        lambda x: np.polyfit(np.log(x["length"]), np.log(x[value]), 1)[0] if len(x) > 1 else np.nan
    )


if __name__ == "__main__":
    if len(sys.argv) != 6 or sys.argv[1] != "memory" or sys.argv[2] not in CASES:
        raise SystemExit(__doc__)
    print(peak_memory(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
