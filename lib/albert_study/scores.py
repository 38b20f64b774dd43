"""Runs as tables and figures take them, and scores over seeds.

runs_of(rows, root)     a line a run and metric, with its baselines; which runs say the same to everything, came later
scores(rows, root)      a line an arm and metric: mean and deviation over seeds, every run, baselines, costs
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from albert_lsh.kinds import Classification, QuestionAnswering
from albert_lsh.record import read_predictions
from albert_lsh.tasks import TASKS
from albert_study.records import BASELINES
from albert_study.study_file import added_later

RUNGS = {  # of `ladder.LADDER`, in words; on it softmax is a rung
    "2020-block": "0 block of 2020",
    "with-residual": "1 + residual",
    "with-mask": "2 + mask",
    "tied-keys": "3 projections kept",
    "softmax": "4 keys of their own",
    "lsh": "LSH ¼",
    "key-clusters": "key clusters ½",
}
BESIDE = {"no-residual": "softmax, no residual", "tied-keys-causal": "rung 3, causal"}  # beside the ladder
ARMS = {  # what an arm is, beside softmax, in words and in the order of figures
    **{arm: RUNGS[arm] for arm in ("2020-block", "with-residual", "with-mask", "tied-keys")},
    **BESIDE,
    "new": "new projections",
    "new-best-rate": "new projections, best rate",
    "shared-qk": "tied keys",
    "shared-qk-2e-4": "tied keys at 2e-4",
    "reformer": "new and tied",
    "shared-qk-lsh": "tied, hashed",
    "new-shared-qk-lsh": "new, tied, hashed",
    "lsh": "LSH (random hashing)",
    "key-clusters": "key clusters",
    "key-clusters-third": "key clusters at a third",
    "key-clusters-half": "key clusters at a half",
    "lsh-tree": "key clusters, version 1",  # as `record.todays_method` calls it
    "lsh-tree-third": "key clusters, version 1, at a third",
    "lsh-tree-half": "key clusters, version 1, at a half",
    "random-rest": "random keys, mean key",
    "random": "random keys",
    "window": "nearest keys",
    "nystrom": "Nyström",
    "yoso-e": "YOSO-E",
    "truncated": "softmax, cut text",
}
# How an arm was trained, where a study varies it: "new-10-epochs", "new-20000" (examples), "softmax-rate-of-2020".
TRAINED = re.compile(r"-(\d+-epochs|\d{4,}|rate-of-\d{4})$")
METRICS = {  # those that are shown, by the name they have in a table
    "f1": "F1",
    "accuracy": "accuracy",
    "accuracy_mismatched": "acc. mism.",
    "exact": "exact",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "accuracy_f1_mean": "mean of acc. and F1",
}
APART = 10.0  # points, hundredths of the best score: runs that differ by more have no mean that stands for them
CORRELATIONS = ("pearson", "spearman", "matthews")  # none of answers that are all the same
ARM = ["task", "model", "arm"]  # what is averaged over seeds
Answers = dict[int, pd.DataFrame]  # predictions by seed


def scale_of(task: Any, metric: str) -> tuple[int, int]:
    """The best score of a task, and how many decimals of its scores mean something.

    Of one's own data only those of SQuAD's schema have an F1.
    """
    if task in TASKS and metric in ("exact", "f1"):
        return TASKS[task].perfect, TASKS[task].digits
    kind = QuestionAnswering if metric in ("exact", "f1") else Classification
    return kind.perfect, kind.digits


def listed(values: Iterable[Any]) -> str:
    """The different values, in their order: "a; b"."""
    return "; ".join(dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values))


def in_order(arms: Iterable[str]) -> list[str]:
    """The arms, each once, as figures have them: softmax, those of ARMS, and others."""
    places = ["softmax", *ARMS]
    return sorted(dict.fromkeys(arms), key=lambda arm: places.index(arm) if arm in places else len(places))


def base_of(arm: str) -> str:
    """The arm without how it was trained: "softmax-8000" is softmax."""
    return TRAINED.sub("", arm)


def runs_of(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """The metrics of fine-tuned runs, beside each of them the run's baselines, folds and numbers of examples.

    Also whether a run is `constant`, which leaves it no correlation, and whether it came `later` (see `added_later`).
    """
    rows = rows[rows["kind"] == "fine-tuned"]
    is_baseline, is_metric = rows["arm"].isin(BASELINES.values()), rows["measure"].isin(METRICS)
    places = ["record", "split", "measure"]
    baselines = rows[is_baseline & is_metric].pivot(index=places, columns="arm", values="value")
    baselines = baselines.reindex(columns=["majority class", "chance"])
    numbers = rows[~is_baseline & ~is_metric].pivot(index="record", columns="measure", values="value")
    numbers = numbers.reindex(columns=["folds", "train_examples", "eval_examples", "held_out_examples"])
    table = rows[~is_baseline & is_metric].join(baselines, on=places).join(numbers, on="record")
    later = {study: added_later(study, root) for study in table["study"].unique()}
    each = table[["study", "task", "arm", "seed"]].itertuples(index=False)
    is_flat = {record: is_constant(answers_of_run(root, record)) for record in table["record"].unique()}
    constant = table["record"].map(is_flat).astype(bool)
    table = table.assign(constant=constant, later=[tuple(run) in later[study] for study, *run in each])
    table["value"] = table["value"].mask(table["constant"] & table["measure"].isin(CORRELATIONS))
    return table.astype({"is_headline": bool})


def headlines(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Of `runs_of` the metrics that stand for their tasks, of texts as they are."""
    runs = runs_of(rows, root)
    return runs[runs["is_headline"] & (runs["split"] != "shuffled")]


def answers_of_run(root: Path, record: str, split: str | None = None) -> pd.DataFrame:
    """The predictions of a run on a split (None: the one reported); empty if it kept none."""
    path = (root / record).with_name("predictions.parquet")
    table = read_predictions(path) if path.exists() else pd.DataFrame()
    if "split" in table:
        return table[table["split"] == (split or table["split"].iloc[0])].reset_index(drop=True)
    return pd.DataFrame() if split else table


def answers_of(runs: pd.DataFrame, root: Path, split: str | None = None) -> Answers:
    """Of an arm's runs that kept predictions of a split, these by seed."""
    tables = (answers_of_run(root, record, split) for record in runs["record"])
    return {seed: table for seed, table in zip(runs["seed"], tables, strict=True) if len(table)}


def is_constant(predictions: pd.DataFrame) -> bool:
    """Whether a model says the same to everything: one class, or a number, in two neighbouring forms at most where it
    is rounded to bfloat16, as older runs are and newer ones are not. Of SQuAD it is not asked."""
    if "answer" in predictions:
        return predictions["answer"].nunique() == 1
    return "logit_0" in predictions and len(torch.tensor(predictions["logit_0"].to_numpy()).bfloat16().unique()) <= 2


def scores(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """A line a task, model, arm and metric; the metric that stands for its task has `is_headline`.

    Columns: score, sd (sample standard deviation over seeds, NaN with one), low, high, runs (all of them, sorted),
    seeds, apart (whether runs differ by more than APART), constant and later (how many are), majority, chance, pairs,
    cost, examples, train_examples; of headlines also bag_of_words, on the same examples, and variety, a mean over
    seeds. A constant run counts in seeds, and of correlations in no other column of scores. Settings, processors and
    commits stand side by side where the seeds of an arm differ.
    """
    runs = runs_of(rows, root)
    runs = runs[runs["split"] != "shuffled"]
    columns: dict[str, Any] = {"score": ("value", "mean"), "sd": ("value", "std"), "seeds": ("value", "size")}
    columns |= {"low": ("value", "min"), "high": ("value", "max")}
    columns |= {"runs": ("value", lambda values: "; ".join(f"{value:.6g}" for value in values.dropna().sort_values()))}
    columns |= {"constant": ("constant", "sum"), "later": ("later", "sum")}
    columns |= {"majority": ("majority class", "mean"), "chance": ("chance", "mean")}
    columns |= {name: (name, "mean") for name in ("pairs", "cost")}
    columns |= {name: (name, "first") for name in ("examples", "train_examples")}
    texts = ("length", "batch_size", "learning_rate", "epochs", "precision", "device", "commit")
    groups = runs.groupby([*ARM, "attention", "split", "measure", "is_headline"], sort=False, dropna=False)
    table = groups.agg(**columns, **{name: (name, listed) for name in texts}).reset_index()
    table["apart"] = [are_apart(*line) for line in table[["task", "measure", "low", "high"]].itertuples(index=False)]
    place, rank = table.groupby(ARM, sort=False).ngroup(), table["measure"].map(list(METRICS).index)
    table = table.assign(place=place, rank=rank).sort_values(["place", "rank"]).drop(columns=["place", "rank"])
    words = rows[(rows["kind"] == "bag of words") & (rows["study"] == "bag-of-words") & (rows["measure"] == "headline")]
    same_examples = table["is_headline"] & (table["split"] != "held-out")
    table["bag_of_words"] = table["task"].map(words.groupby("task")["value"].last()).where(same_examples)
    of_arms = runs[runs["is_headline"]].groupby(ARM, sort=False)
    varied = [(*arm, mean_variety(of_arm, root)) for arm, of_arm in of_arms]
    return table.merge(pd.DataFrame(varied, columns=[*ARM, "variety"]).assign(is_headline=True), "left")


def are_apart(task: Any, metric: str, low: float, high: float) -> bool:
    """Whether runs from `low` to `high` differ so much that their mean stands for none of them."""
    return bool(high - low > APART / 100 * scale_of(task, metric)[0])


def mean_variety(runs: pd.DataFrame, root: Path) -> float:
    """How varied the answers of an arm's runs are, a mean over seeds.

    Not of a part of SQuAD: it is drawn, and no question follows one about the same paragraph.
    """
    is_part = runs[["eval_examples", "held_out_examples"]].notna().any(axis=None)
    tables = answers_of(runs, root).values()
    shares = [variety(table) for table in tables if not (is_part and "start" in table)]
    return sum(shares) / len(shares) if shares else np.nan


def variety(predictions: pd.DataFrame) -> float:
    """How varied answers are: 0 where they are the same to everything, 1 where they vary as the gold answers do.

    Of numbers it is their standard deviation, of classes the share without the most frequent one; over the gold
    answers'. Of SQuAD, in the order of its data: the share of answers that stand elsewhere than that to the question
    before, mostly one about the same paragraph.
    """
    if "start" in predictions:
        places = predictions[["start", "end"]]
        return float((places != places.shift()).any(axis=1).mean())
    if "answer" not in predictions:
        return float(predictions["logit_0"].std() / predictions["label"].std())
    answers, gold = (1 - predictions[name].value_counts(normalize=True).iloc[0] for name in ("answer", "label"))
    return float(answers / gold)
