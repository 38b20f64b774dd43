"""What a model reaches that gives every example the same answer, beside published scores.

Where a published score is that of a constant answer, the model behind it has learnt nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from datasets import Dataset
from pydantic import Field

from albert_lsh.tasks import metrics
from albert_lsh.tasks.data import load_data
from albert_lsh.tasks.squad_scores import score
from albert_lsh.tasks.table import Task, find_task
from albert_lsh.training.files import placed, write_atomically
from albert_lsh.training.parameters import errors_named, from_given
from albert_lsh.training.record import provenance
from albert_study.records import published as load_published

SOURCE, ARM = "the original study (2020)", "reformer"


@dataclass(frozen=True)
class Constant:
    """The parameters of constant_answers.ipynb."""

    tasks: Annotated[list[str], Field(min_length=1)]
    output: str = "results/runs/notebook/constant-answers.csv"
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict) -> "Constant":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        with errors_named("constant_answers.ipynb"):
            asked = from_given(cls, given, "constant_answers.ipynb")
            for name in asked.tasks:
                if find_task(name).is_regression:
                    raise ValueError(f"tasks: {name!r} predicts a number; a constant has no correlation with anything")
            return placed(asked, ["output"])


def constant_answers(task: Task, split: str, examples: Dataset) -> pd.DataFrame:
    """The scores of each constant answer on a split: task, split, answer, right (how many), examples, and the metrics.

    In question answering the only constant is no answer. Scores of SQuAD are in percent, all others from 0 to 1.
    """
    about = {"task": task.name, "split": split, "examples": len(examples)}
    if task.is_squad:
        scores = score(examples, dict.fromkeys(examples["id"], ""))
        right = sum(not answers["text"] for answers in examples["answers"])
        return pd.DataFrame([about | {"answer": "no answer", "right": right, **{k: scores[k] for k in task.metrics}}])
    labels, rows = np.asarray(examples["label"]), []
    for number, name in enumerate(task.labels):
        scores = metrics.scores(task.metrics, labels, np.full_like(labels, number))
        rows.append(about | {"answer": name, "right": int((labels == number).sum()), **scores})
    return pd.DataFrame(rows)


def beside_the_original(constants: pd.DataFrame) -> pd.DataFrame:
    """Every constant answer's score beside the original's LSH score, a row for each metric that it published.

    `same` says whether the two agree to the digits that were published; `between` how many examples lie between them.
    """
    published = load_published()
    theirs = published[(published["source"] == SOURCE) & (published["arm"] == ARM)][["task", "metric", "value"]]
    found = constants
    if {"accuracy", "f1"} <= set(found):
        found = found.assign(accuracy_f1_mean=(found["accuracy"] + found["f1"]) / 2)
    names = [name for name in ("accuracy", "f1", "accuracy_f1_mean", "exact") if name in found]
    ours = found.melt(["task", "split", "answer", "right", "examples"], names, "metric", "constant").dropna()
    both = ours.merge(theirs.rename(columns={"value": "original"}), on=["task", "metric"])
    unit = np.where(both["original"] > 1, 0.01, 0.001)  # of the last digit that was published
    both["same"] = (both["constant"] - both["original"]).abs() <= unit / 2 + 1e-9
    whole = np.where(both["original"] > 1, 100, 1)
    both["between"] = ((both["original"] - both["constant"]) / whole * both["examples"]).round().astype(int)
    order = list(dict.fromkeys(constants["task"]))
    return both.sort_values(["task", "metric", "constant"], key=lambda c: c.map(order.index) if c.name == "task" else c)


def write_constants(asked: Constant) -> pd.DataFrame:
    """The table of `beside_the_original` for the evaluation splits of all tasks, written to asked.output."""
    found = []
    for name in asked.tasks:
        task, data = find_task(name), load_data(name)
        found += [constant_answers(task, split, rows) for split, rows in data.items() if split != "train"]
    table = beside_the_original(pd.concat(found, ignore_index=True)).assign(**provenance("cpu"))
    write_atomically(Path(asked.output), table.to_csv(index=False, float_format="%.6g"))
    return table
