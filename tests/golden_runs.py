"""Runs of the old code and of this, side by side: scores and predictions must be equal.

    python tests/golden_runs.py OLD_CHECKOUT      of a commit that has albert_lsh.training, on the same machine

By hand: choices of keys differ between processors, so that expected numbers cannot be kept. About three minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
SAME = ("metrics", "headline", "majority", "chance", "attended_share", "attention_mass", "full_cost", "examples")
SAME += ("parameters", "resolved", "intervals")
SMALL = {"model": "mini", "train_examples": 300, "eval_examples": 100, "epochs": 1, "precision": "fp32"}
LSH = {"attention": "lsh", "attention_settings": {"share": 0.25}}
KEPT = {"save_model": True, "train_examples": 64}
CASES = {
    "softmax": {"task": "mini-mrpc"},
    "lsh": {"task": "mini-mrpc", **LSH},
    "accumulated": {"task": "mini-mrpc", "batch_size": 8, "accumulation": 4, "eval_steps": 3},
    "kept": {"task": "mini-mrpc", **LSH, **KEPT},
    "fold": {"task": "mini-mrpc", "folds": 5, "seed": 6},
    "held out": {"task": "mini-sst2", "held_out_examples": 50, "shuffle_words": 0},
    "two splits": {"task": "mini-mnli", "evaluation_settings": {"share": 0.5}, **LSH},
    "squad": {"task": "mini-squad"},
    "squad 2.0, kept": {"task": "mini-squad-v2", **LSH, **KEPT, "eval_steps": 1},
    "squad, windows": {"task": "mini-squad", "max_length": 32, "accumulation": 2},
}
NEW = """
from albert_lsh.run import Run
from albert_lsh.train import fit

for case in cases:
    fit(Run.parse(case))
"""
OLD = """
from albert_lsh import Parameters, find_task, load_data, load_tokenizer
from albert_lsh.tasks import metrics, squad
from albert_lsh.tasks.data import encode
from albert_lsh.training.recipe import attended, keep_model, prepare_model, train
from albert_lsh.training.record import environment, write_result

for case in cases:
    task = find_task(case["task"])
    run = Parameters.check(case, "squad.ipynb" if task.is_squad else "glue.ipynb")
    data, tokenizer = load_data(run.task, **run.examples), load_tokenizer(run.model)
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
    cases = [{**SMALL, **case, "output_dir": str(folder / name)} for name, case in CASES.items()]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "lib"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", f"cases = {cases!r}\n{code}"], env=environment, cwd=folder, check=True)


def compare(old: Path, new: Path) -> list[str]:
    """What differs between the folders of a run."""
    records = [json.loads((folder / "result.json").read_text()) for folder in (old, new)]
    for record in records:
        del record["parameters"]["output_dir"]
    differing = [name for name in SAME if records[0].get(name) != records[1].get(name)]
    for name, read in {"predictions.parquet": pd.read_parquet, "history.csv": pd.read_csv}.items():
        differing += [] if read(old / name).equals(read(new / name)) else [name]
    weights = [(folder / "model" / "model.safetensors") for folder in (old, new)]
    same = [path.exists() and path.read_bytes() for path in weights]
    return differing + (["model"] if same[0] != same[1] else [])


def main(old_checkout: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / "old", Path(name) / "new"]
        for folder, code, checkout in zip(folders, (OLD, NEW), (Path(old_checkout).resolve(), ROOT), strict=True):
            folder.mkdir()
            make(code, checkout, folder)
        found = {case: compare(*(folder / case for folder in folders)) for case in CASES}
    for case, differing in found.items():
        print(f"{case}: {', '.join(differing) or 'equal'}")
    sys.exit(any(found.values()))


if __name__ == "__main__":
    main(sys.argv[1])
