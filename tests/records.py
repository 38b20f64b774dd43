"""Records of made-up runs, and a checkout that holds some."""

import json
import shutil
from pathlib import Path

import pandas as pd

from albert_lsh.files import repository_root
from albert_lsh.record import SCHEMA, write_predictions
from albert_lsh.sources import find_task
from albert_study.records import COLUMNS

ROOT = repository_root()
# F1 by arm and seed; accuracy is 0.1 less everywhere.
F1 = {"softmax": {0: 0.90, 1: 0.88, 2: 0.86}, "reformer": {0: 0.80, 1: 0.82}, "key-clusters": {0: 0.87}}


def write_run(root: Path, arm: str, seed: int, metrics: dict, *, task="mrpc", study="mini", headline="f1") -> Path:
    """A run as the notebooks leave it."""
    folder = root / "results" / "runs" / study / task / "model" / arm / f"seed-{seed}"
    folder.mkdir(parents=True)
    attention, commit = arm.removesuffix("-10-epochs"), "0123456789abcdef"
    parameters = {"task": task, "model": "some/model", "attention": attention, "seed": seed}
    parameters["attention_settings"] = {"axes": 8} if attention == "key-clusters" else {}
    parameters |= {
        "max_length": 64,
        "batch_size": 16,
        "accumulation": 2,
        "learning_rate": 1e-5,
        "epochs": 3,
        "precision": "fp32",
    }
    record = {"status": "complete", "schema": SCHEMA, "parameters": parameters | {"random_weights": False}}
    record |= {"metrics": metrics, "headline": {"name": headline, "value": metrics[headline]}}
    record |= {"majority": dict.fromkeys(metrics, 0.7), "chance": dict.fromkeys(metrics, 0.5)}
    record |= {"attended_share": 1.0 if arm == "softmax" else 0.4, "attention_mass": 0.6}
    record |= {"train_seconds": 10.0 + seed, "examples_per_second": 40.0, "peak_memory_bytes": 1_000_000_000}
    record |= {"examples": {"train": 100, "validation": 20}}
    record |= {"environment": {"device": "cpu, some processor", "commit": commit, "date": "2026-01-01T00:00:00+00:00"}}
    (folder / "result.json").write_text(json.dumps(record))
    steps = [{"step": step, "epoch": step / 10, "train_loss": 1 / step} for step in (5, 10, 20)]
    steps += [{"step": 30, "epoch": 3.0, "eval_loss": 0.5, **metrics}]
    columns = ["step", "epoch", "train_loss", "eval_loss", *metrics]
    pd.DataFrame(steps, columns=columns).to_csv(folder / "history.csv", index=False)
    return folder


def checkout(root: Path) -> Path:
    """A checkout with a study of one task, three arms and unequal numbers of seeds."""
    for arm, seeds in F1.items():
        for seed, f1 in seeds.items():
            write_run(root, arm, seed, {"accuracy": f1 - 0.1, "f1": f1})
    (root / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "published.csv", root / "studies")
    shutil.copytree(ROOT / "report", root / "report", ignore=shutil.ignore_patterns("*.pdf", "*.html", "texts.json"))
    return root


def tidy(lines: list[dict]) -> pd.DataFrame:
    """Rows of fine-tuned runs, each its headline, of what they say."""
    usual = {"kind": "fine-tuned", "model": "m", "attention": "softmax", "split": "validation", "seed": 0}
    usual |= {"study": "made-up", "is_headline": True}
    headlines = [{"measure": find_task(line["task"]).headline, "commit": "c0"} for line in lines]
    rows = [usual | headline | line for headline, line in zip(headlines, lines, strict=True)]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def answered(root: Path, tables: dict[tuple[str, int], pd.DataFrame], task: str, **more) -> pd.DataFrame:
    """The rows of runs that kept these predictions, by arm and seed; a run's value is its share of right answers."""
    lines = []
    for (arm, seed), table in tables.items():
        folder = root / task / arm / f"seed-{seed}"
        write_predictions(folder / "predictions.parquet", table)
        right = (table["label"] == table["answer"]).mean() if "answer" in table else 0.5
        line = {"task": task, "arm": arm, "seed": seed, "value": right, "cost": 0.5, **more}
        lines.append(line | {"record": f"{folder.relative_to(root)}/result.json"})
    return tidy(lines)
