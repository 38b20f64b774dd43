"""Do the experiments write the numbers that they wrote in another checkout? On this machine, in about ten minutes.

    python tests/golden_experiments.py OLD_CHECKOUT

Each notebook's work is done with both, on embedded data, and details and constant answers on data of the Hub; every
number of every file must be the same, but for times.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

LIB = Path(__file__).resolve().parents[1] / "lib"
FEW = {"lsh": {"attention": "lsh", "shares": [0.5, 0.25]}, "window": {"attention": "window", "share": 0.5}}
CUT = {"cut": {"attention": "truncation", "share": 0.5}}
TEXTS = {"task": "mini-squad", "model": "nano", "max_length": 24, "paragraphs": 6, "variants": FEW}
STEPS = {"steps": 4, "eval_steps": 2, "precision": "fp32", "device": "cpu"}
PRETRAIN = {**STEPS, "eval_sequences": 8, "batch_size": 8}
LONG = {**STEPS, "max_length": 32, "eval_examples": 8, "batch_size": 4}
SIZES = {
    "lengths": [128],
    "step_lengths": [64],
    "step_cases": ["softmax"],
    "keys": 64,
    "repeats": 1,
    "text_length": 256,
}
JOBS: list[tuple[str, dict[str, Any]]] = [
    ("pretrain", {**PRETRAIN, "tokenizer": "nano"}),  # learning one is not exactly repeatable
    ("pretrain", {**PRETRAIN, "tokenizer": "nano", "attention": "lsh", "precision": "bf16", "masked_share": 0.3}),
    ("pretrain", {**PRETRAIN, "start": "nano", "max_length": 600, "attention": "window"}),
    ("long_range", {**LONG, "only": ["full", "LSH-1"]}),
    ("long_range", {**LONG, "task": "listops", "train_examples": 40, "only": ["softmax", "lsh"]}),
    ("fidelity", {"examples": 24, "looked_into": 8, "variants": FEW | CUT}),
    ("reading", TEXTS),
    ("masked_words", TEXTS),
    ("bag_of_words", {"tasks": ["mini-mrpc", "mini-sst2"], "train_examples": 500, "folds": 3}),
    ("constant_answers", {"tasks": ["mrpc", "squad-v2"]}),
    ("details", {"study": "minilm", "task": "stsb", "arms": ["lsh"]}),
    ("efficiency", {**SIZES, "cases": ["softmax", "lsh", "reformer-pytorch"], "text_model": "nano"}),
]
# By notebook: the class of its parameters, and the function that does its work; before the rebuilding, and after.
PLACES = {
    "pretrain": ("pretraining.parameters:Pretraining pretraining.pretrain:pretrain", "pretrain:Pretraining :pretrain"),
    "long_range": ("long_range.parameters:LongRange long_range.train:train_all", "long_range:LongRange :train_all"),
    "fidelity": ("probe.fidelity:Asked :measure_all", "..probe:Fidelity :measure_fidelity"),
    "reading": ("probe.reading:Reading :read_all", "..reading:Reading :measure_reading"),
    "masked_words": ("probe.masked_words:MaskedWords :measure_all", "..reading:MaskedWords :measure_masked_words"),
    "bag_of_words": ("probe.bag_of_words:BagOfWords :write_scores", "words:BagOfWords :write_scores"),
    "constant_answers": ("evidence.constant_answers:Constant :write_constants",
                         "words:ConstantAnswers :write_constants"),
    "details": ("evidence.details:Details :write_details", "words:Details :write_details"),
    "efficiency": ("efficiency.parameters:EfficiencyParameters efficiency.measure:measure_efficiency",
                   "efficiency:Efficiency :measure_efficiency"),
}  # fmt: skip
OTHER = {"seconds", "least", "most", "bytes", "train_seconds", "examples_per_second", "tokens_per_second", "settings"}
OTHER |= {"peak_memory_bytes", "date", "commit", "environment", "checksum", "parameters", "resolved", "packages"}


def make(folder: Path) -> None:
    """Do all jobs with the library that is on the path."""
    is_new = importlib.util.find_spec("albert_study.experiments") is not None
    package = "albert_study.experiments" if is_new else "albert_study"
    for number, (notebook, given) in enumerate(JOBS):
        first, second = (place.split(":") for place in PLACES[notebook][is_new].split())
        home = importlib.import_module(first[0] if first[0][0] == "." else f".{first[0]}", package)
        work = getattr(importlib.import_module(f".{second[0]}", package) if second[0] else home, second[1])
        kind, place = getattr(home, first[1]), folder / f"{number}-{notebook}"
        known = kind.model_fields if is_new else kind.__dataclass_fields__
        places = {"output_dir": place, "figures_dir": place, "output": place / "table.csv"}
        given = given | {name: str(path) for name, path in places.items() if name in known}
        given |= {"results_root": str(folder)} if notebook == "fidelity" else {}
        settings = kind.parse(given) if is_new else kind.check(given)
        arguments = [settings, settings.load_data()] if notebook == "long_range" else [settings]
        if notebook == "fidelity":
            home.train_small_model(settings)
            subject = (home.Subject if is_new else home.prepare)(settings.run, settings.split, settings.examples)
            arguments = [subject, settings]
        work(*arguments)


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
