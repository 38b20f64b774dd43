"""The results of a long task beside what is published."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh.training.record import read_result
from albert_study.long_range.duplication import PUBLISHED_ACCURACY
from albert_study.long_range.tasks import LONG_TASKS

# Accuracy in Long Range Arena: of its authors, and of Nyströmformer's (Reformer stands beside shared-qk-lsh).
ARENA_ACCURACY = {
    "listops": {"softmax": (0.3637, 0.3710), "shared-qk-lsh": (0.3727, 0.1905), "nystrom": (None, 0.3715)},
    "text": {"softmax": (0.6427, 0.6502), "shared-qk-lsh": (0.5610, 0.6488), "nystrom": (None, 0.6552)},
}
PARAMETERS = ("task", "max_length", "label", "attention", "seed", "steps", "batch_size")


def comparison(folder: Path, task: str) -> pd.DataFrame:
    """One row for each result of a task below a folder, beside chance, majority class and the published numbers.

    `shorter` says where a run had less than the published recipe. Duplication has a row for each attention that a
    model was evaluated under.
    """
    rows = []
    for path in sorted(folder.glob(f"{task}-*/*/seed-*/result.json")):
        result = read_result(path)
        asked, scores = result["parameters"], result["metrics"]
        row = {name: asked[name] for name in PARAMETERS}
        row |= {"attention_settings": json.dumps(asked["attention_settings"]), "seconds": result["train_seconds"]}
        row |= {"attended": result["attended_share"], "full_cost": result.get("full_cost"), "shorter": shorter(result)}
        row |= {"test_examples": result["examples"]["test"]}
        row |= {name: result[name]["accuracy"] for name in ("chance", "majority")}
        if task in ARENA_ACCURACY:
            arena, rerun = ARENA_ACCURACY[task].get(asked["attention"], (None, None))
            rows.append(row | {"accuracy": scores["accuracy"], "arena": arena, "rerun": rerun})
            continue
        published = PUBLISHED_ACCURACY.get(asked["label"], {})
        for under in (name.removeprefix("accuracy, ") for name in scores if name != "accuracy"):
            ours = scores[f"accuracy, {under}"]
            rows.append(row | {"evaluated": under, "accuracy": ours, "published": published.get(under)})
    return pd.DataFrame(rows)


def shorter(result: dict[str, Any]) -> str:
    """Where a run has less than the published recipe, and its learning rate if it differs; "" for nothing."""
    asked, task = result["parameters"], LONG_TASKS[result["parameters"]["task"]]
    given = asked | {"train_examples": result["examples"]["train"]}
    published = task.recipe | {"train_examples": task.train_examples or 0}
    named = {
        "steps": "steps",
        "max_length": "tokens",
        "train_examples": "training examples",
        "batch_size": "examples a step",
        "attention_dropout": "attention dropout",
    }
    less = [
        f"{given[name]:,} of {published[name]:,} {what}"
        for name, what in named.items()
        if name not in task.unpublished and given[name] < published[name]
    ]
    if "learning_rate" not in task.unpublished and asked["learning_rate"] != published["learning_rate"]:
        less.append(f"learning rate {asked['learning_rate']:g} instead of {published['learning_rate']:g}")
    return "; ".join(less)
