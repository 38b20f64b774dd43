"""Every arm against softmax, and neighbouring arms against each other, from the predictions of their runs.

Intervals cover seeds and examples (`bootstrap`); what is clear is so by Holm's p-values within a model, so that a
comparison counts only if it stands beside all others that were made.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from albert_lsh.record import read_predictions
from albert_study.evidence.bootstrap import CLEAR_FROM, difference, holm, not_inferior
from albert_study.evidence.formats import scale_of

# What an arm is, beside softmax, in words and in the order of figures.
ARMS = {
    "new": "new projections",
    "new-best-rate": "new projections, best rate",
    "shared-qk": "tied keys",
    "reformer": "the 2020 attention",
    "shared-qk-lsh": "tied, hashed",
    "new-shared-qk-lsh": "new, tied, hashed",
    "plain-lsh": "random hashing",
    "lsh": "lsh",
    "lsh-third": "lsh at a third",
    "lsh-half": "lsh at a half",
    "random-rest": "random keys, mean key",
    "random": "random keys",
    "window": "nearest keys",
    "nystrom": "Nyström",
    "yoso-e": "YOSO-E",
    "truncated": "softmax, cut text",
}
# Other neighbours: from, to, and what lies between them.
NEIGHBOURS = (
    ("new", "reformer", "tying, with new projections"),
    ("shared-qk", "reformer", "new projections, with tying"),
    ("shared-qk", "shared-qk-lsh", "hashing, with tying"),
    ("reformer", "new-shared-qk-lsh", "hashing, with tying and new projections"),
    ("new", "new-shared-qk-lsh", "tying and hashing, with new projections"),
    ("random", "lsh", "lsh instead of random keys"),
    ("random", "random-rest", "a mean key for the rest"),
    ("random-rest", "lsh", "lsh instead of random keys, both with a rest"),
    ("window", "lsh", "lsh instead of the nearest keys"),
    ("truncated", "lsh", "lsh instead of shorter texts"),
    ("nano-random", "nano", "pretraining"),
    ("nano-lsh-random", "nano-lsh", "pretraining, with hashing"),
)
LEVEL = 0.05
# How an arm was trained, where a study varies it: "lsh-10-epochs", "lsh-20000" (examples), "softmax-rate-of-2020".
TRAINED = re.compile(r"-(\d+-epochs|\d{4,}|rate-of-\d{4})$")


def predictions_of(runs: pd.DataFrame, split: str | None = None) -> dict[int, pd.DataFrame]:
    """The predictions of an arm's runs on a split, by seed; only of runs that kept them. None: the split reported."""
    found = {}
    for run in runs.to_dict("records"):
        path = run["folder"] / "predictions.parquet"
        if path.exists():
            table = read_predictions(path)
            if "split" in table:
                table = table[table["split"] == (split or table["split"].iloc[0])]
            elif split:
                continue
            if len(table):
                found[run["seed"]] = table.reset_index(drop=True)
    return found


def comparisons(arms: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """From, to and what changes: every arm but softmax against softmax, then the other neighbours; where a study varies
    the training (TRAINED), among arms that were trained alike."""
    alike: dict[str, list[str]] = {}
    for arm in arms:
        attention = TRAINED.sub("", arm)
        alike.setdefault(arm[len(attention) :], []).append(attention)
    for how, own in sorted(alike.items(), key=lambda item: (len(item[0]), item[0])):  # by number: 8000, 20000
        for arm in in_order(own) if "softmax" in own else ():
            if arm != "softmax":
                yield "softmax" + how, arm + how, ARMS.get(arm, arm)
        yield from ((start + how, end + how, what) for start, end, what in NEIGHBOURS if {start, end} <= set(own))


def in_order(arms: Iterable[str]) -> list[str]:
    """The arms, each once, as figures have them; those without a place there last."""
    places = list(ARMS)
    return sorted(dict.fromkeys(arms), key=lambda arm: places.index(arm) if arm in ARMS else len(places))


def differences(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each comparison that can be made from predictions, by model and task; empty where there are none.

    Columns: model, task, metric, change, from, to, score_from, score_to (means over the seeds of both), difference,
    low, high (95 %, no further than scores go), p, not_inferior, seeds, over ("seeds"; in cross-validation "folds"),
    examples, cost_from, cost_to, p_holm, clear (p_holm is below 5 %). From fewer than CLEAR_FROM seeds nothing is
    tested or not inferior.
    """
    rows: list[dict[str, Any]] = []
    for (model, task), group in runs.assign(folds=runs.get("folds")).groupby(["model", "task"], sort=False):
        arms = {str(arm): predictions_of(own) for arm, own in group.groupby("arm", sort=False)}
        metric = group["headline"].iloc[0]
        folds = int(group["folds"].iloc[0]) if group["folds"].notna().all() else None
        for before, after, what in comparisons(arm for arm, own in arms.items() if own):
            seeds = arms[before].keys() & arms[after].keys()
            if not seeds:
                continue
            try:
                found = difference(arms[before], arms[after], metric, folds=folds)
            except ValueError as error:  # of runs with different eval_examples
                warnings.warn(f"{task}: {before} and {after} are not compared: {error}", stacklevel=2)
                continue
            both = group[group["seed"].isin(seeds)].groupby("arm")
            scores = both["score"].mean()
            row = {"model": model, "task": task, "metric": metric, "change": what, "from": before, "to": after}
            row |= {"score_from": scores[before], "score_to": scores[after], "difference": found.mean}
            highest = scale_of(str(task))[0]
            lowest = -highest if metric == "pearson" else 0
            row |= {"low": max(found.low, lowest - scores[before]), "high": min(found.high, highest - scores[before])}
            row["p"] = found.p
            row |= {"not_inferior": found.seeds >= CLEAR_FROM and not_inferior(found, scores[before])}
            row |= {"seeds": found.seeds, "over": "folds" if folds else "seeds", "examples": found.examples}
            if "full_cost" in group:
                costs = both["full_cost"].mean()
                row |= {"cost_from": costs[before], "cost_to": costs[after]}
            rows.append(row)
    table = pd.DataFrame(rows)
    if rows:
        tested = table[table["seeds"] >= CLEAR_FROM]
        table["p_holm"] = tested.groupby("model")["p"].transform(holm)
        table["clear"] = table["p_holm"] < LEVEL
    return table
