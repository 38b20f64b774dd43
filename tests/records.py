"""Records of made-up runs, and a checkout that holds some."""

import json
import shutil
from pathlib import Path

import pandas as pd

from albert_lsh.files import repository_root
from albert_study.evidence.records import load_runs

# F1 by arm and seed; accuracy is 0.1 less everywhere.

F1 = {"softmax": {0: 0.90, 1: 0.88, 2: 0.86}, "reformer": {0: 0.80, 1: 0.82}, "lsh": {0: 0.87}}


def write_run(root: Path, arm: str, seed: int, metrics: dict, *, task="mrpc", study="mini", headline="f1") -> Path:
    """A run as the notebooks leave it."""
    folder = root / "results" / "runs" / study / task / "model" / arm / f"seed-{seed}"
    folder.mkdir(parents=True)
    attention = arm.removesuffix("-10-epochs")
    parameters = {"task": task, "model": "some/model", "attention": attention, "attention_settings": {}, "seed": seed}
    parameters |= {"max_length": 64, "batch_size": 32, "learning_rate": 1e-5, "epochs": 3, "precision": "fp32"}
    parameters["random_weights"] = False
    record = {
        "status": "complete",
        "schema": 3,
        "parameters": parameters,
        "metrics": metrics,
        "headline": {"name": headline, "value": metrics[headline]},
        "majority": dict.fromkeys(metrics, 0.7),
        "chance": dict.fromkeys(metrics, 0.5),
        "attended_share": 1.0 if arm == "softmax" else 0.4,
        "attention_mass": 0.6,
        "train_seconds": 10.0 + seed,
        "examples_per_second": 40.0,
        "peak_memory_bytes": 1_000_000_000,
        "examples": {"train": 100, "validation": 20},
        "environment": {
            "python": "3.11",
            "packages": {"torch": "2.13.0"},
            "device": "cpu, some processor",
            "commit": "0123456789abcdef",
            "date": "2026-01-01T00:00:00+00:00",
        },
    }
    (folder / "result.json").write_text(json.dumps(record))
    names = list(metrics)
    rows = [f"{step},{step / 10},{1 / step},,1e-5" + "," * len(names) for step in (5, 10, 20)]
    rows.append("30,3.0,,0.5,1e-5," + ",".join(str(metrics[name]) for name in names))
    header = ",".join(["step", "epoch", "train_loss", "eval_loss", "learning_rate", *names])
    (folder / "history.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def checkout(root: Path) -> Path:
    """A checkout with a study of one task, three arms and unequal numbers of seeds."""
    for arm, seeds in F1.items():
        for seed, f1 in seeds.items():
            write_run(root, arm, seed, {"accuracy": f1 - 0.1, "f1": f1})
    (root / "studies").mkdir()
    shutil.copy(repository_root() / "studies" / "published.csv", root / "studies")
    shutil.copytree(
        repository_root() / "report",
        root / "report",
        ignore=shutil.ignore_patterns("*.pdf", "numbers.json", "tables"),
    )
    return root


def runs_of(tree: Path, study: str | None = "mini") -> pd.DataFrame:
    return load_runs(tree / "results" / "runs", study)
