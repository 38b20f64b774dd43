"""Runs of the old code and of this, side by side: scores, predictions, curves and kept weights must be equal.

    python tests/golden_runs.py OLD_CHECKOUT      of a commit that has albert_lsh.training, on the same machine
By hand, in half a minute: choices of keys differ between processors, so that expected numbers cannot be kept.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
SAME = ["metrics", "headline", "majority", "chance", "attended_share", "attention_mass", "full_cost", "examples"]
SAME += ["parameters", "resolved", "intervals"]
SMALL = {"model": "mini", "train_examples": 300, "eval_examples": 100, "epochs": 1, "precision": "fp32"}
LSH, KEPT = {"attention": "lsh", "attention_settings": {"share": 0.25}}, {"save_model": True, "train_examples": 64}
CASES = {
    "accumulated": {"task": "mini-mrpc", "batch_size": 8, "accumulation": 4, "eval_steps": 3},
    "kept": {"task": "mini-mrpc", **LSH, **KEPT},
    "fold": {"task": "mini-mrpc", "folds": 5, "seed": 6},
    "held out": {"task": "mini-sst2", "held_out_examples": 50, "shuffle_words": 0},
    "two splits": {"task": "mini-mnli", "evaluation_settings": {"share": 0.5}, **LSH},
    "squad": {"task": "mini-squad"},
    "squad 2.0, kept": {"task": "mini-squad-v2", **LSH, **KEPT, "eval_steps": 1},
    "squad, windows": {"task": "mini-squad", "max_length": 32, "accumulation": 2},
}
NEW = "from albert_lsh import Run, fit\nfor case in cases:\n    fit(Run.parse(case))"
OLD = """
from albert_lsh import Parameters, find_task, load_data, load_tokenizer
from albert_lsh.tasks import metrics, squad
from albert_lsh.tasks.data import encode
from albert_lsh.training.recipe import attended, keep_model, prepare_model, train
from albert_lsh.training.record import environment, write_result

for case in cases:
    task = find_task(case["task"])
    run = Parameters.check(case, "squad.ipynb" if task.is_squad else "glue.ipynb")
    data, tokenizer = load_data(run.task, run.data_dir, **run.examples), load_tokenizer(run.model)
    split = next(name for name in data if name != "train")
    if task.is_squad:
        encoded = {name: squad.windows(rows, tokenizer, max_length=run.max_length) for name, rows in data.items()}
        model, scored = prepare_model(run, head="question-answering"), squad.for_trainer(data[split], encoded[split])
    else:
        encoded, scored = encode(data, task, tokenizer, run.max_length), metrics.for_trainer(task)
        model = prepare_model(run, head="classification", **task.model_options)
    fitted = train(model, tokenizer, run, encoded["train"], encoded[split], scored)
    if task.is_squad:
        scores, table = squad.score_answers(fitted.trainer, data[split], encoded[split])
    else:
        scores, table = metrics.score_splits(fitted.trainer, task, encoded)
    keep_model(run, model, tokenizer)
    sizes, seen = {name: len(rows) for name, rows in data.items()}, attended(model, tokenizer, encoded[split])
    write_result(run, task.headline, scores, seen, fitted, sizes, environment(run.device), table)
"""


def make(code: str, checkout: Path, folder: Path) -> None:
    """All cases, in a process that knows one of the two checkouts."""
    code = f"cases = {[{**SMALL, **case, 'output_dir': str(folder / name)} for name, case in CASES.items()]}\n{code}"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(checkout / "lib"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, check=True)


def contents(folder: Path) -> dict[str, Any]:
    """What is compared of a run, by name."""
    record = json.loads((folder / "result.json").read_text())
    del record["parameters"]["output_dir"]
    values = {name: record.get(name) for name in SAME}
    values["history.csv"] = (folder / "history.csv").read_text()
    values["predictions.parquet"] = pd.read_parquet(folder / "predictions.parquet").to_csv()
    weights = folder / "model" / "model.safetensors"
    return values | {"model": weights.exists() and weights.read_bytes()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        old, new = Path(name) / "old", Path(name) / "new"
        make(OLD, Path(sys.argv[1]).resolve(), old)
        make(NEW, ROOT, new)
        pairs = {case: (contents(old / case), contents(new / case)) for case in CASES}
    differing = {case: [key for key in one if one[key] != other[key]] for case, (one, other) in pairs.items()}
    print("\n".join(f"{case}: {', '.join(names) or 'equal'}" for case, names in differing.items()))
    sys.exit(any(differing.values()))
