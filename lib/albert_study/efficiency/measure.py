"""Time and memory of attentions and of their peers, side by side: alone, and inside a model of ALBERT-base's shape.

    python -m albert_study.efficiency.measure '{"kind": "attention", "case": "lsh", "length": 4096}'

prints a case's peak memory in bytes.

Times are taken in one process, the cases in turn, several rounds, so that what disturbs one disturbs all; what counts
is the ratio. Memory is taken in a process of its own for each measurement.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import AlbertConfig, AlbertForSequenceClassification, BatchEncoding, PreTrainedModel

from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, max_positions
from albert_lsh.training.files import write_atomically
from albert_lsh.training.parameters import ParameterError, errors_named, from_given, on_this_machine
from albert_lsh.training.record import provenance
from albert_study.efficiency.cases import CASES, Case
from albert_study.probe.candidates import Candidate
from albert_study.probe.diagnostics import compare, look, summary
from albert_study.probe.reading import load_texts, sequences

HEADS, HEAD_DIM, VOCABULARY = 12, 64, 30000  # ALBERT-base's
STEP_TOKENS = 1024  # of a training step's batch of two sequences, or else one
ENOUGH = 30  # seconds that a case takes before it is not repeated any more
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Inside a model: the case whose attention it has, and options of load_model that save memory.
STEPS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name, case in CASES.items() if case.name} | {
    "softmax, recomputed": ("softmax", {"recompute": True}),
    "lsh, recomputed": ("lsh", {"recompute": True}),
    "lsh, recomputed, in chunks": ("lsh", {"recompute": True, "feed_forward_chunk": 512}),
}
LONGEST_STORED = 4096  # tokens up to which a step may store its activations; reformer's of 8,192 take more than 24 GB


@dataclass(frozen=True)
class Measuring:
    """The parameters of efficiency.ipynb."""

    lengths: list[Any]
    cases: list[Any]
    step_lengths: list[Any]
    step_cases: list[Any]
    keys: int = 512
    precision: str = "fp32"
    device: str = "cpu"
    repeats: int = 5
    longest_quadratic: int = 4096
    slowest: float = 50.0
    memory: bool = True
    text_model: str | None = None
    text_length: int = 2048
    output_dir: str = "results/efficiency"
    figures_dir: str = "figures"

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Measuring":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        asked = from_given(cls, given, "efficiency.ipynb")
        for parameter, choices in (("cases", list(CASES)), ("step_cases", list(STEPS))):
            for name in getattr(asked, parameter):
                if name not in choices:
                    message = f"{parameter}: {name!r} is not one of: {', '.join(choices)} (efficiency.ipynb)"
                    raise ParameterError(message)
        for parameter in ("lengths", "cases"):
            if not getattr(asked, parameter):
                raise ParameterError(f"{parameter}=[] must name one or more (efficiency.ipynb)")
        for parameter in ("lengths", "step_lengths"):
            for length in getattr(asked, parameter):
                if not isinstance(length, int) or length < 64 or length & (length - 1):
                    message = f"{parameter}: {length!r} must be a power of two, 64 or more (efficiency.ipynb)"
                    raise ParameterError(message)
        if asked.keys < 64 or asked.keys & (asked.keys - 1):
            raise ParameterError(f"keys={asked.keys} must be a power of two, 64 or more (efficiency.ipynb)")
        if asked.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise ParameterError(f"precision={asked.precision!r} is not one of: {known} (efficiency.ipynb)")
        if asked.repeats < 1:
            raise ParameterError(f"repeats={asked.repeats} must be 1 or more (efficiency.ipynb)")
        if asked.memory and asked.device != "cpu":
            raise ParameterError(f"memory=True needs device='cpu', not {asked.device!r} (efficiency.ipynb)")
        with errors_named("efficiency.ipynb"):
            return replace(asked, device=on_this_machine(asked.device, "auto")["device"])

    def table(self, kind: str) -> Path:
        return Path(self.output_dir) / f"{kind}-{self.device}-{self.precision}.csv"

    def what(self, *names: str) -> dict[str, Any]:
        """The parameters of these names, and those that decide every table."""
        return {name: getattr(self, name) for name in (*names, "keys", "precision", "device", "repeats")}


def inputs(length: int, measuring: Measuring) -> list[Tensor]:
    """Query, key and value, (1, 12, length, 64), the same for every case."""
    generator = torch.Generator().manual_seed(length)
    shape = (1, HEADS, length, HEAD_DIM)
    dtype = PRECISIONS[measuring.precision]
    return [torch.randn(shape, generator=generator).to(measuring.device, dtype) for _ in range(3)]


def pass_of(case: Callable[..., Tensor], tensors: list[Tensor], backward: bool) -> Callable[[], None]:
    """A function that goes through an attention once."""

    def run() -> None:
        leaves = [t.detach().requires_grad_(backward) for t in tensors]
        with torch.set_grad_enabled(backward):
            out = case(*leaves)
        if backward:
            out.backward(torch.ones_like(out))

    return run


def seconds_of(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each of some functions, called in turn; what takes long is repeated less."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            if sum(seconds[name]) < ENOUGH:
                began = time.perf_counter()
                run()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - began)
    return {name: found[1:] or found for name, found in seconds.items()}  # the first warms up, where there are more


def described(name: str, found: list[float]) -> dict[str, Any]:
    """A row's columns: the case, its median, least and most seconds, and how many they are."""
    columns = {"case": name, "seconds": float(np.median(found)), "least": min(found), "most": max(found)}
    return columns | {"repeats": len(found)}


def fill(
    path: Path, asked: dict[str, Any], units: list[dict[str, Any]], make: Callable[..., list[dict[str, Any]]]
) -> pd.DataFrame:
    """The rows that make(rows so far, **unit) gives for each unit, in a table at `path` when all are there.

    Until then they are kept beside it, so that measuring goes on where it was interrupted if `asked` and the commit are
    the same. A finished table of the same `asked`, which stands beside it as JSON, is not measured again.

    Raises:
        ParameterError: a table is there that was measured with other parameters.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside, text = path.with_suffix(".json"), json.dumps(asked, indent=1) + "\n"
    if path.exists():
        if not beside.exists() or beside.read_text() != text:
            raise ParameterError(
                f"{path} is there, measured with other parameters; delete it to measure again, or choose another "
                "output_dir (efficiency.ipynb)"
            )
        return pd.read_csv(path)
    same = hashlib.sha256((text + provenance("cpu")["commit"]).encode()).hexdigest()[:8]
    partial = path.with_suffix(f".{same}.partial.csv")
    kept = pd.read_csv(partial).to_dict("records") if partial.exists() else []
    rows = [{str(k): v for k, v in row.items()} for row in kept]
    for unit in units:
        if not any(unit.items() <= row.items() for row in rows):
            rows += make(rows, **unit)
            write_atomically(partial, pd.DataFrame(rows).to_csv(index=False))
    table = pd.DataFrame(rows)
    write_atomically(beside, text)
    write_atomically(path, table.to_csv(index=False))
    partial.unlink()
    return table


def times(measuring: Measuring) -> pd.DataFrame:
    """Seconds by case, length and pass, one row each.

    A case that took more than `slowest` seconds at one length is left out at longer ones, and one that stores a matrix
    of length x length above `longest_quadratic`.
    """
    common = {"keys": measuring.keys, "precision": measuring.precision, "threads": torch.get_num_threads()}
    common |= provenance(measuring.device)

    def make(rows: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
        slow = {row["case"] for row in rows if row["seconds"] > measuring.slowest}
        tensors, found = inputs(length, measuring), []
        names = [name for name in fitting(measuring.cases, length, measuring) if name not in slow]
        built = {name: CASES[name].build(length, measuring.keys) for name in names}
        for backward in (False, True):
            runs = {name: pass_of(case, tensors, backward) for name, case in built.items()}
            for name, seconds in seconds_of(runs, measuring.repeats).items():
                row = {"length": length, "pass": "forward+backward" if backward else "forward"}
                found.append(described(name, seconds) | row | common)
        return found

    asked = measuring.what("lengths", "cases", "longest_quadratic", "slowest")
    return fill(measuring.table("time"), asked, [{"length": length} for length in sorted(measuring.lengths)], make)


def fitting(names: list[str], length: int, measuring: Measuring) -> list[str]:
    """The cases that can be measured at a length."""

    def longest(case: Case) -> int:
        return measuring.longest_quadratic if case.quadratic else case.longest or length

    return [name for name in names if length <= longest(CASES[name])]


def base_model(folder: str, length: int, keys: int, step: str) -> PreTrainedModel:
    """A model of ALBERT-base's shape with random weights and an attention, for sequences of `length` tokens.

    folder: where its weights are, or are put.
    """
    case, options = STEPS[step]
    if not (Path(folder) / "config.json").exists():
        config = AlbertConfig(
            vocab_size=VOCABULARY, hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, intermediate_size=3072,
            max_position_embeddings=512, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        AlbertForSequenceClassification(config).save_pretrained(folder)
    found = CASES[case]
    settings = found.settings(length, min(keys, length // 2))
    model = load_model(folder, attention=found.name, settings=settings, **options)
    return (model if length <= max_positions(model.config) else extend_positions(model, length)).train()


def steps_of(cases: list[str], length: int) -> list[str]:
    """Those of the models whose training step a machine with 24 GB has room for."""
    return [name for name in cases if length <= LONGEST_STORED or STEPS[name][1].get("recompute")]


def batch_of(length: int) -> int:
    return min(2, max(1, STEP_TOKENS // length))


def step_of(model: PreTrainedModel, length: int, measuring: Measuring) -> Callable[[], None]:
    """A function that makes one training step: forward, backward, AdamW; the model is moved to the device."""
    model.to(torch.device(measuring.device))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = batch_of(length)
    ids = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    labels = torch.arange(batch, device=model.device) % 2
    low, kind = PRECISIONS[measuring.precision], model.device.type

    def step() -> None:
        with nullcontext() if low is torch.float32 else torch.autocast(kind, dtype=low):
            loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps(measuring: Measuring) -> pd.DataFrame:
    """Seconds of a training step of ALBERT-base's shape, by case and length; at most half of the keys are seen."""
    common = {"precision": measuring.precision, "threads": torch.get_num_threads()} | provenance(measuring.device)

    def make(rows: list[dict[str, Any]], length: int) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            models = {
                name: base_model(folder, length, measuring.keys, name)
                for name in steps_of(measuring.step_cases, length)
            }
        runs = {name: step_of(model, length, measuring) for name, model in models.items()}
        columns = {"length": length, "batch": batch_of(length), "keys": min(measuring.keys, length // 2)}
        return [
            described(name, found) | columns | common for name, found in seconds_of(runs, measuring.repeats).items()
        ]

    units = [{"length": length} for length in sorted(measuring.step_lengths)]
    return fill(measuring.table("step"), measuring.what("step_lengths", "step_cases"), units, make)


def peak_memory(kind: str, case: str, length: int, keys: int = 512, precision: str = "fp32") -> int:
    """Bytes that a forward and backward pass of an attention, or a model's step, takes above what was there before.

    For Linux, and for a process that has done nothing else.
    """
    measuring = Measuring([length], [case], [length], [case], keys=keys, precision=precision)
    if kind == "step":
        with tempfile.TemporaryDirectory() as folder:
            run = step_of(base_model(folder, length, keys, case), length, measuring)
            step_of(base_model(folder, 64, keys, case), 64, measuring)()  # what is loaded at first use is no cost
    else:
        run = pass_of(CASES[case].build(length, keys), inputs(length, measuring), backward=True)
        pass_of(CASES[case].build(64, 64), inputs(64, measuring), backward=True)()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; what a process inherits is none of its own
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def resident(name: str) -> int:
    """Bytes of memory resident now (VmRSS), or at the peak (VmHWM), as Linux counts them."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def memories(measuring: Measuring, slow: pd.DataFrame) -> pd.DataFrame:
    """Peak memory by kind (attention or step), case and length, each in a process of its own.

    slow: the table of `times`; what is missing there is not measured here.
    """
    timed = set(zip(slow["case"], slow["length"], strict=True))
    attentions = [("attention", n, x) for x in sorted(measuring.lengths) for n in measuring.cases if (n, x) in timed]
    models = [("step", n, x) for x in sorted(measuring.step_lengths) for n in steps_of(measuring.step_cases, x)]
    common = {"keys": measuring.keys, "precision": measuring.precision}

    def make(rows: list[dict[str, Any]], **unit: Any) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "albert_study.efficiency.measure", json.dumps(unit | common)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"measuring the memory of {unit} failed:\n{done.stderr}")
        return [unit | {"bytes": int(done.stdout.split()[-1])} | common | provenance(measuring.device)]

    units = [{"kind": kind, "case": name, "length": length} for kind, name, length in attentions + models]
    asked = measuring.what("lengths", "cases", "step_lengths", "step_cases", "longest_quadratic", "slowest")
    return fill(measuring.table("memory"), asked, units, make)


def qualities(measuring: Measuring) -> pd.DataFrame:
    """What each attention keeps of softmax's on real queries and keys, and its time on these, summed over layers.

    One text of `text_length` tokens, SQuAD's paragraphs one after the other, in the encoder `text_model`.
    """
    assert measuring.text_model is not None
    name, length = measuring.text_model, measuring.text_length
    model, tokenizer = load_model(name, head="base", complete=True), load_tokenizer(name)
    if length > max_positions(model.config):
        extend_positions(model, length)
    ids = sequences(load_texts("squad"), tokenizer, length, 1)
    passes = look(model, [BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})]).passes[0]
    common = {"keys": measuring.keys, "text_model": name, "threads": torch.get_num_threads()} | provenance("cpu")

    def make(rows: list[dict[str, Any]], case: str, length: int) -> list[dict[str, Any]]:
        found = CASES[case]
        variant = Candidate(case, found.name, found.settings(length, measuring.keys))
        looks = pd.concat(compare(one, variant).assign(layer=n, batch=0) for n, one in enumerate(passes))
        row = summary(looks.assign(all=0), ["all"]).iloc[0]
        share = {name: row[name] for name in ("pairs", "mass", "error")}
        built = found.build(length, measuring.keys)

        def every_layer() -> None:
            for one in passes:
                pass_of(built, [one.query, one.key, one.value], backward=True)()

        seconds = seconds_of({case: every_layer}, measuring.repeats)[case]
        return [described(case, seconds) | {"length": length} | share | common]

    ours = [n for n in fitting(measuring.cases, length, measuring) if CASES[n].name not in ("", "reformer")]
    asked = measuring.what("cases", "text_model", "text_length", "longest_quadratic")
    return fill(measuring.table("quality"), asked, [{"case": n, "length": length} for n in ours], make)


def slopes(table: pd.DataFrame, value: str, least: int = 2048) -> pd.Series:
    """The power of the length with which each case grows, fitted on log axes from `least` tokens on."""
    grown = {}
    for case, rows in table[table["length"] >= least].groupby("case", sort=False):
        if len(rows) > 1:
            grown[case] = np.polyfit(np.log(rows["length"]), np.log(rows[value]), 1)[0]
    return pd.Series(grown, dtype=float)


def crossing_bounds(table: pd.DataFrame, against: str = "softmax") -> pd.DataFrame:
    """From which length on is each case faster than another? Columns `above` and `up_to`, NaN where it never is.

    Both are the same, interpolated on log axes, where the lengths around were measured on one machine at one commit.
    Else all that is known is that it lies between them; and `above` is 0 where it is faster at the least length.

    table: rows of one pass.
    """
    rows = table.assign(where=table["device"] + " " + table["commit"]).set_index(["case", "length"])
    found = {}
    for case in table["case"][table["case"] != against].unique():
        both = pd.merge(
            rows.loc[case], rows.loc[against], left_index=True, right_index=True, suffixes=("", "_other")
        ).sort_index()
        both = both[both["where"] == both["where_other"]]
        ratio = (both["seconds"] / both["seconds_other"]).to_numpy()
        lengths, slower = both.index.to_numpy(float), np.flatnonzero(ratio >= 1)
        last = slower[-1] if len(slower) else -1
        if last == len(ratio) - 1:
            found[case] = (np.nan, np.nan)
        elif last < 0:
            found[case] = (0.0, lengths[0])
        elif both["where"].iloc[last] != both["where"].iloc[last + 1]:
            found[case] = (lengths[last], lengths[last + 1])
        else:
            near = slice(last, last + 2)
            crossing = np.exp(np.interp(0, -np.log(ratio[near]), np.log(lengths[near])))
            found[case] = (crossing, crossing)
    return pd.DataFrame.from_dict(found, orient="index", columns=["above", "up_to"])


def crossings(table: pd.DataFrame, against: str = "softmax") -> pd.Series:
    """`crossing_bounds` as one number: the least length where a case is faster at all; NaN where it is not known."""
    bounds = crossing_bounds(table, against)
    return bounds["up_to"].where(bounds["above"].isin([0]) | (bounds["above"] == bounds["up_to"])).rename("length")


def measure_all(measuring: Measuring) -> dict[str, pd.DataFrame]:
    """All tables, by name (time, step, memory, quality), written to output_dir/<name>-<device>-<precision>.csv."""
    tables = {"time": times(measuring)}
    if measuring.step_lengths:
        tables["step"] = steps(measuring)
    if measuring.memory:
        tables["memory"] = memories(measuring, tables["time"])
    if measuring.text_model:
        tables["quality"] = qualities(measuring)
    return tables


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(peak_memory(**json.loads(sys.argv[1])))
