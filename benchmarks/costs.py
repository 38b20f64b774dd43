"""Full costs counted again, where records have them by an older rule: results/costs.csv, which tables take instead.

    python benchmarks/costs.py    with the Hub, or what stands in for it; nothing is trained

Records keep what was counted then. A mean key beside lists of keys took four products a pair until 30 November 2026,
and takes two (`compute.mean_unseen`). Of switched models the cost was that of eight texts; here it is that of all.
"""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from albert_lsh import load_tokenizer
from albert_lsh.attention import mean_cost
from albert_lsh.data import encode, load_data
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.model.load import load_config
from albert_lsh.record import RETIRED, provenance, read_result
from albert_study.probe.variants import TRUNCATION, read_rows
from albert_study.records import COSTS, record_paths
from albert_study.reproduce import RUNS, run_again

ROOT = repository_root()
LISTS = ("lsh", "random", "window", "top-k")  # attentions whose keys are lists
SWITCHED = ("runs/no-training/*/*/*/seed-*/fidelity-*.csv", "no-training-second/*.csv")
OF_A_LENGTH = ("runs/*/reading/*[0-9].csv", "runs/*/[0-9]*[0-9].csv", "runs/rotary/nano.csv", "runs/rotary/rotary.csv")
CHANGED = "2026-11-30T17:24"  # the rule
Row = dict[str, Any]


@cache
def lengths_of(parameters: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a split's texts, as they are read and whole; of a run's data. parameters: JSON."""
    run = run_again("", json.loads(parameters))
    data = load_data(run.about, **run.examples)
    rows = encode({split: data[split]}, run.about, load_tokenizer(run.model), run.max_length)[split]
    length = np.array(rows["length"])
    return length, np.array(rows["whole_length"]) if "whole_length" in rows.column_names else length


@cache
def head_dim(model: str) -> int:
    config = load_config(model)
    return config.hidden_size // config.num_attention_heads


def costs_of_runs() -> Iterator[Row]:
    """Of runs, on the 64 texts that a run of that time counted: the first of each 64th."""
    for path in record_paths(ROOT):
        result = read_result(path)
        run, date = result["parameters"], result["environment"]["date"]
        settings = run["attention_settings"]
        is_older = run["attention"] in LISTS and settings.get("mean_key") and date < CHANGED
        if not is_older or not path.is_relative_to(ROOT / RUNS):
            continue
        names = ("task", "model", "max_length", "data_revision", "train_examples", "eval_examples", "held_out_examples")
        parameters = {name: run.get(name) for name in (*names, "folds", *(["seed"] if run.get("folds") else []))}
        split = next(name for name in result["examples"] if name != "train")
        length, whole = lengths_of(json.dumps(parameters), split)
        count = min(64, len(length))
        sample = length[[number * len(length) // count for number in range(count)]]
        kept = (length.astype(float) ** 2).sum() / (whole.astype(float) ** 2).sum()
        cost = mean_cost(run["attention"], sample.tolist(), head_dim(run["model"]), **settings) * kept
        yield {"record": path.relative_to(ROOT).as_posix(), "cost": cost}


def costs_of_switched(path: Path) -> Iterator[Row]:
    """Of attentions switched into a model, on all texts that it was asked about."""
    for row in read_rows(path):
        if row["attention"] in (RETIRED, TRUNCATION):
            continue
        trained = sorted((ROOT / RUNS / "no-training" / row["task"]).glob("*/softmax/*/result.json"))[0]
        names = ("task", "model", "max_length")
        parameters = {name: read_result(trained)["parameters"][name] for name in names}
        length, _ = lengths_of(json.dumps(parameters | {"eval_examples": row["examples"]}), row["split"])
        cost = mean_cost(
            row["attention"], length.tolist(), head_dim(parameters["model"]), **json.loads(row["settings"])
        )
        yield {"variant": row["variant"], "share": row.get("share_asked"), "cost": cost}


def costs_at_a_length(path: Path) -> Iterator[Row]:
    """Of lists with a mean key that a pretrained model was asked with, in sequences of one length."""
    for row in read_rows(path):
        settings = json.loads(row["settings"])
        if row["attention"] in LISTS and settings.get("mean_key") and row["date"] < CHANGED:
            model = "nano" if row["model"].startswith("results/") else row["model"]  # one of that shape, not kept
            cost = mean_cost(row["attention"], [row["length"]], head_dim(model), **settings)
            yield {"variant": row["variant"], "share": row.get("share_asked"), "cost": cost}


def main() -> None:
    rows = [*costs_of_runs()]
    for patterns, costs_of in ((SWITCHED, costs_of_switched), (OF_A_LENGTH, costs_at_a_length)):
        paths = [path for pattern in patterns for path in sorted((ROOT / "results").glob(pattern))]
        for path in (path for path in paths if not path.stem.endswith("-heads")):
            record = {"record": path.relative_to(ROOT).as_posix()}
            rows += [record | row for row in costs_of(path)]
    write_atomically(ROOT / COSTS, pd.DataFrame([row | provenance("cpu") for row in rows]).to_csv(index=False))


if __name__ == "__main__":
    main()
