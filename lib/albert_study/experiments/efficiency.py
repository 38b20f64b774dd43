"""Time and memory of the attentions, alone and in a training step.

reformer-pytorch stands beside ours; each has about the same number of keys per query. Cases are timed in one process
and take turns: what disturbs one disturbs all, and ratios stay meaningful. Each row names its commit and machine. Rows
that are there are not measured again.
"""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from reformer_pytorch import LSHAttention
from torch import Tensor
from transformers import AlbertConfig, PreTrainedModel

from albert_lsh import attention
from albert_lsh.model.load import load_model
from albert_lsh.model.memory import recompute_activations
from albert_lsh.record import provenance
from albert_lsh.run import Count, Device, Place, Precision, Settings, on_this_machine
from albert_study.probe.variants import GrowingTable, growing_table

HEADS, HEAD_DIM, VOCABULARY = 12, 64, 30_000  # ALBERT-base's
STEP_TOKENS = 1024  # a training step has two sequences, or one if two are more tokens
LONGEST_STORED = 4096  # tokens up to which a step may store its activations; reformer's at 8,192 take more than 24 GB
ENOUGH = 30  # seconds that a case has taken, after which it is not repeated
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PASSES = {"forward": False, "forward+backward": True}

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of tensors (1, HEADS, length, HEAD_DIM)
Workload = Callable[[], None]


class Contender(NamedTuple):
    """One attention to be measured, at a length and a number of keys."""

    attention: str  # "reformer" stands for the package's own class
    fixed: dict[str, Any]  # settings
    budget: bool = False  # whether it has a number of keys
    quadratic: bool = False  # stores matrices of length x length numbers
    longest: int = 2**24  # tokens; longer sequences need more than 24 GB

    def settings(self, length: int, keys: int) -> dict[str, Any]:
        """With a number of rounds: a query sees keys / rounds keys in each, with buckets its own and the one before."""
        keys = min(keys, length)
        if "n_hashes" in self.fixed:
            in_round = keys // self.fixed["n_hashes"]
            in_buckets = self.attention in ("reformer", "shared-qk-lsh")
            return self.fixed | ({"bucket_size": in_round // 2} if in_buckets else {"cluster_size": in_round})
        return self.fixed | ({"keys": keys} if self.budget else {})

    def build(self, length: int, keys: int) -> Attend:
        settings = self.settings(length, keys)
        if self.attention != "reformer":
            return lambda query, key, value: attention.attend(self.attention, query, key, value, **settings)
        layer = LSHAttention(**settings, dropout=0.0)
        return lambda query, key, value: layer(query.flatten(0, 1), value.flatten(0, 1))[0].view(value.shape)


ONE, SEVERAL = {"n_hashes": 1}, {"n_hashes": 4}  # rounds of hashing
# The hashes of reformer-pytorch's four rounds, rounds x length x length / bucket_size, take 26 GB at 65,536 tokens.
CONTENDERS = {
    "softmax": Contender("softmax", {}),
    "softmax-eager": Contender("softmax-eager", {}, quadratic=True),
    "shared-qk": Contender("shared-qk", {}, quadratic=True),
    "reformer-pytorch": Contender("reformer", SEVERAL, longest=2**15),
    "reformer-pytorch, one round": Contender("reformer", ONE, longest=2**15),
    "shared-qk-lsh": Contender("shared-qk-lsh", SEVERAL),
    "lsh": Contender("lsh", SEVERAL),
    "lsh, one round": Contender("lsh", ONE),
    "key-clusters": Contender("key-clusters", {}, budget=True),
    "random": Contender("random", ONE),
    "window": Contender("window", {}, budget=True, quadratic=True),
    "top-k": Contender("top-k", {}, budget=True, quadratic=True),
    "nystrom": Contender("nystrom", {}, budget=True),
    "yoso": Contender("yoso", {}),
    "yoso-e": Contender("yoso-e", {}, quadratic=True),
}
# A training step: a contender, and whether activations are recomputed.
STEPS = {name: (name, False) for name in CONTENDERS}
STEPS |= {f"{name}, recomputed": (name, True) for name in ("softmax", "key-clusters")}

Size = Annotated[int, Field(ge=64, le=2**24)]  # a power of two: reformer-pytorch cuts a sequence into equal buckets


class Efficiency(Settings):
    """The parameters of efficiency.ipynb, which explains each."""

    notebook: ClassVar[str] = "efficiency.ipynb"
    lengths: Annotated[list[Size], Field(min_length=1)]
    cases: Annotated[list[str], Field(min_length=1)]
    step_lengths: list[Size]
    step_cases: list[str]
    keys: Size = 512
    precision: Precision = "fp32"
    device: Device = "cpu"
    repeats: Count = 5
    longest_quadratic: Count = 4096
    slowest: Annotated[float, Field(ge=0)] = 50.0
    memory: bool = True
    output_dir: Place = Field("results/runs/notebook/efficiency", validate_default=True)

    def completed(self, place: str) -> Self:
        for name, known in (("cases", CONTENDERS), ("step_cases", STEPS)):
            cases = getattr(self, name)
            if unknown := [case for case in cases if case not in known]:
                raise ValueError(f"{name}: {unknown[0]!r} is not one of: {', '.join(known)}")
            if "softmax" not in cases and (name == "cases" or self.step_lengths):
                raise ValueError(f"{name} must have 'softmax', with which the others are compared")
        for size in (*self.lengths, *self.step_lengths, self.keys):
            if size & (size - 1):
                raise ValueError(f"{size} is no power of two, as lengths and keys must be")
        if self.memory and self.device != "cpu":
            raise ValueError(f"memory=True needs device='cpu', not {self.device!r}")
        return self.model_copy(update=on_this_machine(self.device, self.precision))

    def table(self, kind: str) -> Path:
        return Path(self.output_dir) / f"{kind}-{self.device}-{self.precision}.csv"

    @property
    def kinds(self) -> list[str]:
        """The tables that are asked for."""
        wanted = {"time": True, "step": self.step_lengths, "memory": self.memory}
        return [kind for kind in wanted if wanted[kind]]

    @property
    def results(self) -> list[str]:
        return [str(self.table(kind)) for kind in self.kinds]

    def fitting(self, length: int) -> list[str]:
        """The cases that can be measured at a length."""
        known = [(case, CONTENDERS[case]) for case in self.cases]
        return [case for case, one in known if length <= (self.longest_quadratic if one.quadratic else one.longest)]

    def fitting_steps(self, length: int) -> list[str]:
        """The training steps that a machine with 24 GB has room for at a length."""
        return [case for case in self.step_cases if length <= LONGEST_STORED or STEPS[case][1]]


# What is timed, and whose memory is measured


def inputs(length: int, settings: Efficiency) -> list[Tensor]:
    """Query, key and value, (1, HEADS, length, HEAD_DIM), the same for every case."""
    generator = torch.Generator().manual_seed(length)
    tensors = [torch.randn((1, HEADS, length, HEAD_DIM), generator=generator) for _ in range(3)]
    return [tensor.to(settings.device, PRECISIONS[settings.precision]) for tensor in tensors]


def one_pass(attend: Attend, *passes: list[Tensor], backward: bool) -> Workload:
    """A function that goes through an attention once for each query, key and value: forward, or also backward."""

    def run() -> None:
        for tensors in passes:
            leaves = [tensor.detach().requires_grad_(backward) for tensor in tensors]
            with torch.set_grad_enabled(backward):
                out = attend(*leaves)
            if backward:
                out.backward(torch.ones_like(out))

    return run


def base_model(length: int, keys: int, step: str) -> PreTrainedModel:
    """A model of ALBERT-base's shape in training mode, with random weights and positions for `length` tokens.

    Its attention is that of STEPS[step], and sees at most half of the keys.
    """
    case, recompute = STEPS[step]
    config = AlbertConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, intermediate_size=3072,
        max_position_embeddings=max(512, length), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    settings = CONTENDERS[case].settings(length, min(keys, length // 2))
    model = load_model(config, attention=CONTENDERS[case].attention, settings=settings)
    return (recompute_activations(model) if recompute else model).train()


def batch_of(length: int) -> int:
    """Sequences of a training step."""
    return min(2, max(1, STEP_TOKENS // length))


def training_step(length: int, step: str, settings: Efficiency) -> Workload:
    """A function that trains a `base_model` for one step: forward, backward, AdamW."""
    model = base_model(length, settings.keys, step)
    model.to(torch.device(settings.device))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = batch_of(length)
    ids = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    labels = torch.arange(batch, device=model.device) % 2
    dtype = PRECISIONS[settings.precision]

    def run() -> None:
        with torch.autocast(model.device.type, dtype, enabled=dtype is not torch.float32):
            loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def seconds_of(runs: dict[str, Workload], repeats: int) -> dict[str, list[float]]:
    """Seconds of each function, called in turn; slow ones are repeated less. The first call warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            if sum(seconds[name]) < ENOUGH:
                began = time.perf_counter()
                run()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - began)
    return {name: taken[1:] or taken for name, taken in seconds.items()}


def peak_memory(kind: str, case: str, length: int, settings: Efficiency) -> int:
    """Peak memory in bytes (`peak_of`), as Linux counts it in a process that does nothing else.

    A short run comes first, so that what is loaded at first use does not count.

    Args:
        kind: "attention", a forward and backward pass; or "step", a training step.
    """

    def prepare(length: int) -> Workload:
        if kind == "step":
            return training_step(length, case, settings)
        return one_pass(CONTENDERS[case].build(length, settings.keys), inputs(length, settings), backward=True)

    run = prepare(length)
    prepare(64)()
    return peak_of(run)


def peak_of(run: Workload) -> int:
    """Peak memory in bytes while it runs, above what there was before."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed earlier would be taken again without being counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_memory("VmRSS")
    run()
    return resident_memory("VmHWM") - before


def resident_memory(name: str) -> int:
    """Bytes of memory resident now (VmRSS), or at the peak (VmHWM)."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


# The tables


def measure_efficiency(settings: Efficiency) -> dict[str, pd.DataFrame]:
    """Measure what the tables lack, and write them to output_dir; prints what is being measured.

    Returns:
        Tables by kind: time, and step and memory where asked for, without rows measured with other keys.
    """
    measure = {"time": time_passes, "step": time_steps, "memory": measure_memory}
    tables = {}
    for kind in settings.kinds:
        with growing_table(settings.table(kind)) as table:
            measure[kind](settings, table)
        rows = pd.DataFrame(table.tables[0])
        tables[kind] = rows[rows["keys"] == np.minimum(settings.keys, rows["length"] // 2 if kind == "step" else 2**24)]
    return tables


def lacking(table: GrowingTable, cases: list[str], unit: dict[str, Any]) -> list[str]:
    """The cases of which a table has no row for a unit, such as a length and a number of keys; they are printed."""
    missing = [case for case in cases if not table.find({"case": case, **unit})]
    if missing:
        where = ", ".join(f"{name} {value}" for name, value in unit.items())
        print(f"{datetime.now():%H:%M:%S}  {table.paths[0].stem}, {where}: {'; '.join(missing)}", flush=True)
    return missing


def put_seconds(
    table: GrowingTable, runs: dict[str, Workload], settings: Efficiency, unit: dict[str, Any], **columns: Any
) -> None:
    """A row for each case: its median, least and most seconds, how often it was repeated, and the columns."""
    columns |= {"precision": settings.precision, "threads": torch.get_num_threads(), **provenance(settings.device)}
    for case, seconds in seconds_of(runs, settings.repeats).items():
        row = {"case": case, "seconds": float(np.median(seconds)), "least": min(seconds), "most": max(seconds)}
        table.put({"case": case, **unit}, [row | {"repeats": len(seconds), **unit, **columns}])


def time_passes(settings: Efficiency, table: GrowingTable) -> None:
    """Seconds by case, length and pass: forward, or forward and backward.

    Left out are cases that took more than `slowest` seconds at a smaller length.
    """
    for length, (name, backward) in product(sorted(settings.lengths), PASSES.items()):
        slow = [row["case"] for row in table.tables[0] if row["seconds"] > settings.slowest and row["length"] < length]
        cases = [case for case in settings.fitting(length) if case not in slow]
        unit, tensors = {"length": length, "pass": name, "keys": settings.keys}, inputs(length, settings)
        attends = {case: CONTENDERS[case].build(length, settings.keys) for case in lacking(table, cases, unit)}
        runs = {case: one_pass(attend, tensors, backward=backward) for case, attend in attends.items()}
        put_seconds(table, runs, settings, unit)


def time_steps(settings: Efficiency, table: GrowingTable) -> None:
    """Seconds of a training step of ALBERT-base's shape, by case and length."""
    for length in sorted(settings.step_lengths):
        unit = {"length": length, "batch": batch_of(length), "keys": min(settings.keys, length // 2)}
        missing = lacking(table, settings.fitting_steps(length), unit)
        put_seconds(table, {case: training_step(length, case, settings) for case in missing}, settings, unit)


def measure_memory(settings: Efficiency, table: GrowingTable) -> None:
    """Peak memory in bytes, by kind (attention or step), case and length, each in a process of its own.

    An attention that was too slow to be timed is left out.
    """
    timed = GrowingTable(settings.table("time"))
    units = [("attention", length, settings.fitting(length)) for length in settings.lengths]
    units += [("step", length, settings.fitting_steps(length)) for length in sorted(settings.step_lengths)]
    for kind, length, cases in units:
        unit = {"kind": kind, "length": length, "keys": settings.keys, "precision": settings.precision}
        cases = [case for case in cases if kind == "step" or timed.find({"case": case, "length": length})]
        for case in lacking(table, cases, unit):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                row = {"bytes": pool.submit(peak_memory, kind, case, length, settings).result()}
            table.put({"case": case, **unit}, [row | provenance(settings.device)])


# How time grows with the length


def slopes(table: pd.DataFrame, value: str) -> pd.Series:
    """The power of the length with which each case grows, fitted on log axes from 2,048 tokens on."""
    cases = table[table["length"] >= 2048].groupby("case", sort=False)
    fits = {case: np.polyfit(np.log(of["length"]), np.log(of[value]), 1)[0] for case, of in cases if len(of) > 1}
    return pd.Series(fits, dtype=float)


def crossing_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The length from which each case is faster than softmax: columns `above` and `up_to`, NaN if it never is.

    Both are the same number, interpolated on log axes, if case and softmax were measured on one machine at one commit
    around it. Otherwise the length lies between the two. Lengths where the machines differ are left out.
    `above` is 0 if a case is faster at the smallest length.

    Args:
        table: a row a case and length, with seconds, device and commit.
    """
    table = table.assign(where=table["device"] + " " + table["commit"])
    values = ("seconds", "device", "where")
    seconds, device, where = (table.pivot(index="length", columns="case", values=value) for value in values)
    bounds = {}
    for case in table["case"][table["case"] != "softmax"].unique():
        ratio = (seconds[case] / seconds["softmax"])[device[case] == device["softmax"]]
        lengths, slower = ratio.index.to_numpy(float), np.flatnonzero(ratio >= 1)
        last = slower[-1] if len(slower) else -1
        if last == len(ratio) - 1:
            bounds[case] = (np.nan, np.nan)
        elif last < 0:
            bounds[case] = (0.0, lengths[0])
        elif where.loc[lengths[last : last + 2], [case, "softmax"]].stack().nunique() > 1:
            bounds[case] = (lengths[last], lengths[last + 1])
        else:
            near = slice(last, last + 2)
            crossing = np.exp(np.interp(0, -np.log(ratio.to_numpy()[near]), np.log(lengths[near])))
            bounds[case] = (crossing, crossing)
    return pd.DataFrame.from_dict(bounds, orient="index", columns=["above", "up_to"])
