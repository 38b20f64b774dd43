"""The tables of efficiency.ipynb: time, training steps, memory, and what is kept of softmax on real text.

Cases are timed in one process and take turns: what disturbs one disturbs all, and ratios stay meaningful. Each
row names its commit and machine. Rows that are there are not measured again: an interrupted measurement goes on where
it was.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import BatchEncoding

from albert_lsh import attention
from albert_lsh.files import write_atomically
from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, max_positions
from albert_lsh.model.passes import Pass
from albert_lsh.record import provenance
from albert_lsh.run import ParameterError
from albert_lsh.training.parameters import recorded
from albert_study.efficiency.contenders import CONTENDERS
from albert_study.efficiency.parameters import EFFICIENCY_NOTEBOOK, STEPS, EfficiencyParameters
from albert_study.efficiency.workloads import Workload, batch_of, inputs, memory_of, one_pass, seconds_of, training_step
from albert_study.probe.candidates import Candidate
from albert_study.probe.diagnostics import compare, look, summary
from albert_study.probe.reading import load_texts, sequences

LONGEST_STORED = 4096  # tokens up to which a step may store its activations; reformer's at 8,192 take more than 24 GB

TableRow = dict[str, Any]


class GrowingTable:
    """Rows of a CSV file. New ones stand in a file named ".partial" until the table is finished."""

    def __init__(self, path: Path):
        self.path, self.partial = path, path.with_suffix(".partial.csv")
        there = next((file for file in (self.partial, self.path) if file.exists()), None)
        self.rows: list[TableRow] = pd.read_csv(there).to_dict("records") if there else []  # type: ignore[assignment]

    def lacks(self, unit: TableRow, **same: Any) -> bool:
        """Whether no row is of this unit, for instance a case and a length.

        Raises:
            ParameterError: there is a row, but it was measured with other parameters than `same`.
        """
        there = next((row for row in self.rows if unit.items() <= row.items()), None)
        if there and (other := {name: there[name] for name in same if there[name] != same[name]}):
            raise ParameterError(
                f"{self.path} has {unit} measured with {other}, not {same}; delete it, or choose another output_dir "
                f"({EFFICIENCY_NOTEBOOK})"
            )
        return there is None

    def add(self, rows: list[TableRow]) -> None:
        if rows:
            self.rows += rows
            write_atomically(self.partial, pd.DataFrame(self.rows).to_csv(index=False))

    def finish(self) -> pd.DataFrame:
        if self.partial.exists():
            self.partial.replace(self.path)
        return pd.DataFrame(self.rows)


def measure_efficiency(asked: EfficiencyParameters) -> dict[str, pd.DataFrame]:
    """Measure what the tables lack, and write them to output_dir; prints what is being measured.

    Returns:
        Tables by kind: time, and step, memory and quality where asked for.
    Raises:
        ParameterError: a table has a row that was measured with other parameters.
    """
    tables = {"time": time_passes(asked)}
    if asked.step_lengths:
        tables["step"] = time_steps(asked)
    if asked.memory:
        tables["memory"] = measure_memory(asked, tables["time"])
    if asked.text_model:
        tables["quality"] = measure_quality(asked)
    return tables


def tell(what: str) -> None:
    """Print what is measured now, and when it began."""
    print(f"{datetime.now():%H:%M:%S}  {what}", flush=True)


def fitting(cases: list[str], length: int, asked: EfficiencyParameters) -> list[str]:
    """The cases that can be measured at a length."""
    longest = {
        case: asked.longest_quadratic if contender.quadratic else contender.longest or length
        for case, contender in CONTENDERS.items()
    }
    return [case for case in cases if length <= longest[case]]


def fitting_steps(asked: EfficiencyParameters) -> list[tuple[int, list[str]]]:
    """Each length with the training steps that a machine with 24 GB has room for."""
    return [
        (length, [x for x in asked.step_cases if length <= LONGEST_STORED or STEPS[x][1].get("recompute")])
        for length in sorted(asked.step_lengths)
    ]


def timed_rows(runs: dict[str, Workload], asked: EfficiencyParameters, **columns: Any) -> list[TableRow]:
    """One row per function: the case, its median, least and most seconds, how often it was repeated, and `columns`."""
    columns |= {"precision": asked.precision, "threads": torch.get_num_threads(), **provenance(asked.device)}
    return [
        {"case": case, "seconds": float(np.median(found)), "least": min(found), "most": max(found)}
        | {"repeats": len(found), **columns}
        for case, found in seconds_of(runs, asked.repeats).items()
    ]


def time_passes(asked: EfficiencyParameters) -> pd.DataFrame:
    """Seconds by case, length and pass: forward, or forward and backward.

    Left out are cases that took more than `slowest` seconds at a smaller length.
    """
    table, passes = GrowingTable(asked.table("time")), {"forward": False, "forward+backward": True}
    for number, length in enumerate(sorted(asked.lengths), 1):
        slow = {row["case"] for row in table.rows if row["seconds"] > asked.slowest and row["length"] < length}
        cases = [case for case in fitting(asked.cases, length, asked) if case not in slow]
        cases = [case for case in cases if table.lacks({"case": case, "length": length}, keys=asked.keys)]
        built = {case: CONTENDERS[case].build(length, asked.keys) for case in cases}
        rows, tensors = [], inputs(length, asked)
        for name, backward in passes.items() if cases else ():
            tell(f"time, {name}, length {number} of {len(asked.lengths)}, {length:,} tokens: {'; '.join(cases)}")
            runs = {case: one_pass(attend, tensors, backward) for case, attend in built.items()}
            rows += timed_rows(runs, asked, length=length, **{"pass": name}, keys=asked.keys)
        table.add(rows)
    return table.finish()


def time_steps(asked: EfficiencyParameters) -> pd.DataFrame:
    """Seconds of a training step of ALBERT-base's shape, by case and length."""
    table = GrowingTable(asked.table("step"))
    for number, (length, cases) in enumerate(fitting_steps(asked), 1):
        keys = min(asked.keys, length // 2)
        cases = [case for case in cases if table.lacks({"case": case, "length": length}, keys=keys)]
        if cases:
            tell(f"training step, length {number} of {len(asked.step_lengths)}, {length:,} tokens: {'; '.join(cases)}")
        runs = {case: training_step(length, case, asked) for case in cases}
        table.add(timed_rows(runs, asked, length=length, batch=batch_of(length), keys=keys))
    return table.finish()


def measure_memory(asked: EfficiencyParameters, timed: pd.DataFrame) -> pd.DataFrame:
    """Peak memory in bytes, by kind (attention or step), case and length.

    timed: the table of `time_passes`; what it leaves out is not measured here either.
    """
    table, same = GrowingTable(asked.table("memory")), {"keys": asked.keys, "precision": asked.precision}
    timed = timed[timed["case"].isin(asked.cases) & timed["length"].isin(asked.lengths)]
    units = [("attention", *unit) for unit in timed[["case", "length"]].drop_duplicates().itertuples(index=False)]
    units += [("step", case, length) for length, cases in fitting_steps(asked) for case in cases]
    for number, (kind, case, length) in enumerate(units, 1):
        unit = {"kind": kind, "case": case, "length": length}
        if table.lacks(unit, **same):
            tell(f"memory, {number} of {len(units)}: {kind}, {case}, {length:,} tokens")
            table.add([unit | {"bytes": memory_of(kind, case, length, asked)} | same | provenance(asked.device)])
    return table.finish()


def measure_quality(asked: EfficiencyParameters) -> pd.DataFrame:
    """What each case keeps of softmax attention on a real text, its cost, and its seconds, all layers together.

    Peers are left out: they do not take a model's own queries and keys.
    Columns: pairs (share attended), mass (of softmax, on these), error (of the output), cost (multiply-adds as a share
    of full attention's).
    """
    table, name, length = GrowingTable(asked.table("quality")), asked.text_model or "", asked.text_length
    same: TableRow = {"keys": asked.keys, "text_model": recorded(asked)["text_model"]}
    cases = [case for case in fitting(asked.cases, length, asked) if CONTENDERS[case].attention not in ("", "reformer")]
    missing = [case for case in cases if table.lacks({"case": case, "length": length}, **same)]
    passes = text_passes(name, length) if missing else []
    for number, case in enumerate(missing, 1):
        tell(f"on text, {number} of {len(missing)}: {case}")
        contender = CONTENDERS[case]
        settings = contender.settings(length, asked.keys)
        candidate = Candidate(case, contender.attention, settings)
        looks = pd.concat(compare(one, candidate).assign(layer=n, batch=0) for n, one in enumerate(passes))
        found = summary(looks.assign(all=0), ["all"]).iloc[0]
        columns = {**same, **{column: found[column] for column in ("pairs", "mass", "error")}}
        columns["cost"] = attention.cost(contender.attention, length, passes[0].query.shape[-1], **settings)
        attend = contender.build(length, asked.keys)
        layers = [one_pass(attend, [one.query, one.key, one.value], backward=True) for one in passes]
        table.add(timed_rows({case: in_turn(layers)}, asked, length=length, **columns))
    return table.finish()


def in_turn(runs: list[Workload]) -> Workload:
    """A function that calls all of these."""

    def run() -> None:
        for one in runs:
            one()

    return run


def text_passes(name: str, length: int) -> list[Pass]:
    """The attention passes of an encoder that reads `length` tokens: paragraphs of SQuAD one after the other."""
    model, tokenizer = load_model(name, head="base", complete=True), load_tokenizer(name)
    if length > max_positions(model.config):
        extend_positions(model, length)
    ids = sequences(load_texts("squad"), tokenizer, length, 1)
    return look(model, [BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})]).passes[0]
