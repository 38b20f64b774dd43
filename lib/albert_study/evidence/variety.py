"""How varied an arm's answers are: 0 where it says the same to everything, 1 where they vary as the gold answers do.

A model that has learnt nothing may have any correlation, of answers that differ in the third digit. This tells. Of
SQuAD, whose gold answers no prediction keeps, it is not set against theirs: it tells whether the question matters.
"""

import numpy as np
import pandas as pd

from albert_lsh.tasks import Task, find_task
from albert_study.evidence.differences import predictions_of
from albert_study.evidence.formats import Named, Table, about, wide


def variety(task: Task, predictions: pd.DataFrame) -> float:
    """Of numbers their standard deviation, of classes the share without the most frequent one; over the gold answers'.

    Predictions are rounded as the run's precision rounds: in bf16 to three digits. Of SQuAD, in the order of its data:
    the share of answers that stand elsewhere than that to the question before, mostly one about the same paragraph.
    """
    if task.is_squad:
        places = predictions[["start", "end"]]
        return float((places != places.shift()).any(axis=1).mean())
    if task.is_regression:
        return float(predictions["logit_0"].std() / predictions["label"].std())
    answers, gold = (1 - predictions[name].value_counts(normalize=True).iloc[0] for name in ("answer", "label"))
    return float(answers / gold)


def is_constant(task: Task, predictions: pd.DataFrame) -> bool:
    """Whether a model says the same to every example; of numbers also if it knows but two, which differ by rounding."""
    if task.is_squad:
        return False
    return predictions["logit_0" if task.is_regression else "answer"].nunique() <= (2 if task.is_regression else 1)


def with_variety(scores: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The scores with two columns, of runs that kept their predictions: `variety`, a mean over seeds, and `constant`,
    how many of them are (`is_constant`).

    Not of a part of SQuAD: it is drawn, and no question follows one about the same paragraph.
    """
    found = {}
    for (name, model, arm), own in runs.groupby(["task", "model", "arm"], sort=False):
        task = find_task(str(name))
        is_part = task.is_squad and own.filter(["eval_examples", "held_out_examples"]).notna().any(axis=None)
        if not is_part and (tables := predictions_of(own)):
            mean = sum(variety(task, table) for table in tables.values()) / len(tables)
            found[name, model, arm] = mean, sum(is_constant(task, table) for table in tables.values())
    if not found:
        return scores
    places = zip(scores["task"], scores["model"], scores["arm"], strict=True)
    columns = np.array([found.get(place, (np.nan, 0)) for place in places])
    return scores.assign(variety=columns[:, 0], constant=columns[:, 1].astype(int))


def variety_table(study: str, scores: pd.DataFrame) -> Named:
    """The column as people read it, tasks across."""
    if "variety" in scores and scores["variety"].notna().any():
        shown = wide(scores, "arm", "task", {"": ("variety", "%1")})
        note = "How varied the answers are: 0% says the same to everything, 100% varies as the gold answers do. "
        if any(find_task(str(name)).is_squad for name in scores["task"]):
            note += "Of SQuAD: how many answers stand elsewhere than that to the question before. "
        yield f"{study}-variety", Table(shown, note + about(study, scores))
