"""Do the experiments write the numbers that they wrote in another checkout? On this machine, in about five minutes.

    python tests/golden_experiments.py OLD_CHECKOUT      of a commit that has albert_study.experiments

Each notebook's work is done with both, on embedded data, and constant answers on data of the Hub; every
number of every file must be the same, but for times.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

LIB = Path(__file__).resolve().parents[1] / "lib"
FEW = {"lsh": {"attention": "lsh", "shares": [0.5, 0.25]}, "window": {"attention": "window", "share": 0.5}}
CUT = {"cut": {"attention": "truncation", "share": 0.5}}
TEXTS = {"task": "mini-squad", "model": "nano", "max_length": 24, "paragraphs": 6, "variants": FEW}
STEPS = {"steps": 4, "eval_steps": 2, "precision": "fp32", "device": "cpu"}
PRETRAIN = {**STEPS, "eval_sequences": 8, "batch_size": 8, "tokenizer": "nano"}  # learning one is not repeatable
LONG = {**STEPS, "max_length": 32, "eval_examples": 8, "batch_size": 4}
SIZES: dict[str, Any] = {"lengths": [128], "step_lengths": [64], "step_cases": ["softmax"], "keys": 64, "repeats": 1}
SIZES |= {"cases": ["softmax", "lsh", "reformer-pytorch"], "text_length": 256, "text_model": "nano"}
# The module, the class of its parameters, and the function that does the work.
JOBS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("experiments.pretrain", "Pretraining", "pretrain", PRETRAIN),
    ("experiments.pretrain", "Pretraining", "pretrain",
     {**PRETRAIN, "attention": "lsh", "precision": "bf16", "masked_share": 0.3}),
    ("experiments.pretrain", "Pretraining", "pretrain",
     {**PRETRAIN, "tokenizer": None, "start": "nano", "max_length": 600, "attention": "window"}),
    ("experiments.long_range", "LongRange", "train_all", {**LONG, "only": ["full", "LSH-1"]}),
    ("experiments.long_range", "LongRange", "train_all",
     {**LONG, "task": "listops", "train_examples": 40, "only": ["softmax", "lsh"]}),
    ("probe", "Fidelity", "measure_fidelity", {"examples": 24, "looked_into": 8, "variants": FEW | CUT}),
    ("reading", "Reading", "measure_reading", TEXTS),
    ("reading", "MaskedWords", "measure_masked_words", TEXTS),
    ("experiments.words", "BagOfWords", "write_scores",
     {"tasks": ["mini-mrpc", "mini-sst2"], "train_examples": 500, "folds": 3}),
    ("experiments.words", "ConstantAnswers", "write_constants", {"tasks": ["mrpc", "squad-v2"]}),
    ("experiments.efficiency", "Efficiency", "measure_efficiency", SIZES),
]  # fmt: skip
OTHER = {"seconds", "least", "most", "bytes", "train_seconds", "examples_per_second", "tokens_per_second", "settings"}
OTHER |= {"peak_memory_bytes", "date", "commit", "environment", "checksum", "parameters", "resolved", "packages"}


def make(folder: Path) -> None:
    """Do all jobs with the library that is on the path."""
    for number, (module, kind, work, parameters) in enumerate(JOBS):
        home, place = import_module(f"albert_study.{module}"), folder / f"{number}-{kind}"
        places = {"output_dir": place, "figures_dir": place, "output": place / "table.csv"}
        places |= {"results_root": folder} if kind == "Fidelity" else {}
        named = {name: str(path) for name, path in places.items() if name in getattr(home, kind).model_fields}
        settings = getattr(home, kind).parse(parameters | named)
        arguments = [settings, settings.load_data()] if kind == "LongRange" else [settings]
        if kind == "Fidelity":
            home.train_small_model(settings)
            arguments = [home.Subject(settings.run, settings.split, settings.examples), settings]
        getattr(home, work)(*arguments)


def numbers(path: Path) -> Any:
    """What a file says, but for OTHER."""
    if path.suffix == ".json":
        return {name: value for name, value in json.loads(path.read_text()).items() if name not in OTHER}
    if path.suffix in (".csv", ".parquet"):
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        return sorted(map(str, table.drop(columns=OTHER & set(table)).sort_index(axis=1).to_dict("records")))
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".safetensors" else None


def main(old: str) -> int:
    with tempfile.TemporaryDirectory() as place:
        files = []
        for folder, lib in ((Path(place, "old"), f"{old}/lib"), (Path(place, "new"), LIB)):
            command = [sys.executable, __file__, "--make", str(folder)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(lib)})
            paths = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
            files.append({str(path.relative_to(folder)): path for path in paths})
        alone = sorted(files[0].keys() ^ files[1].keys())
        both = sorted(files[0].keys() & files[1].keys())
        differing = [path for path in both if numbers(files[0][path]) != numbers(files[1][path])]
        print(f"{len(both)} files; in one alone: {alone or 'none'}; differing: {differing or 'none'}")
        return len(alone + differing)


if __name__ == "__main__":
    sys.exit(make(Path(sys.argv[2])) if sys.argv[1] == "--make" else main(sys.argv[1]))  # type: ignore[func-returns-value]
