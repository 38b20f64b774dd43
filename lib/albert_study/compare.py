"""Scores over seeds, and what lies between arms: `write_tables("minilm")` makes results/tables/minilm-*.csv.

scores(rows, root)         a line an arm and metric: mean and deviation over seeds, baselines, costs
differences(rows, root)    a line a pair of arms, with intervals over seeds and examples (see `intervals`)
switched(rows, root)       models whose attention was replaced, with nothing trained: what is kept
shuffled(rows, root)       texts as they are, and with their words in random order
"""

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import read_predictions
from albert_lsh.tasks import TASKS, Task
from albert_study.candidates import Candidate
from albert_study.intervals import CLEAR_FROM, Difference, crossed, difference, holm, paired_ratio, student
from albert_study.records import BASELINES, OWN, check_complete, list_studies, load, task_named, wide

ARMS = {  # what an arm is, beside softmax, in words and in the order of figures
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
NEIGHBOURS = (  # compared besides with softmax: from, to, and what lies between them
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
# How an arm was trained, where a study varies it: "lsh-10-epochs", "lsh-20000" (examples), "softmax-rate-of-2020".
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
DIAGNOSTICS = ["pairs", "mass", "recall", "error", "drift", "changed"]
LEVEL = 0.05
MARGIN = 0.01  # of the score of the arm compared with: a loss up to this counts as none
ARM = ["task", "model", "arm"]  # what is averaged over seeds
Answers = dict[int, pd.DataFrame]  # predictions by seed


def scale_of(task: Any) -> tuple[int, int]:
    """The best score of a task, and how many decimals of its scores mean something."""
    return (100, 1) if task in {**TASKS, **OWN} and task_named(task).is_squad else (1, 3)


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


# ---- scores ---------------------------------------------------------------------------------------------------------
def runs_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The metrics of fine-tuned runs, beside each of them the run's baselines, folds and numbers of examples."""
    rows = rows[rows["kind"] == "fine-tuned"]
    is_baseline, is_metric = rows["arm"].isin(BASELINES.values()), rows["measure"].isin(METRICS)
    places = ["record", "split", "measure"]
    baselines = rows[is_baseline & is_metric].pivot(index=places, columns="arm", values="value")
    baselines = baselines.reindex(columns=["majority class", "chance"])
    numbers = rows[~is_baseline & ~is_metric].pivot(index="record", columns="measure", values="value")
    numbers = numbers.reindex(columns=["folds", "train_examples", "eval_examples", "held_out_examples"])
    table = rows[~is_baseline & is_metric].join(baselines, on=places).join(numbers, on="record")
    return table.assign(is_headline=table["measure"] == table["task"].map(lambda task: task_named(task).headline))


def headlines(rows: pd.DataFrame) -> pd.DataFrame:
    """Of `runs_of` the metrics that stand for their tasks, of texts as they are."""
    runs = runs_of(rows)
    return runs[runs["is_headline"] & (runs["split"] != "shuffled")]


def answers_of(runs: pd.DataFrame, root: Path, split: str | None = None) -> Answers:
    """The predictions of an arm's runs on a split (None: the one reported), by seed; only of runs that kept them."""
    answers = {}
    for run in runs.to_dict("records"):
        path = (root / run["record"]).with_name("predictions.parquet")
        table = read_predictions(path) if path.exists() else pd.DataFrame()
        if "split" in table:
            table = table[table["split"] == (split or table["split"].iloc[0])].reset_index(drop=True)
        elif split:
            continue
        if len(table):
            answers[run["seed"]] = table
    return answers


def scores(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """A line a task, model, arm and metric; the metric that stands for its task has `is_headline`.

    Columns: score, sd (sample standard deviation over seeds, NaN with one), seeds, majority, chance, low and high (of
    the runs), pairs, cost, examples, train_examples; of headlines also bag_of_words, on the same examples, variety, a
    mean over seeds, and constant, how many of them say the same to everything (see `variety`). Settings, processors and
    commits stand side by side where the seeds of an arm differ.
    """
    runs = runs_of(rows)
    runs = runs[runs["split"] != "shuffled"]
    columns = {"score": ("value", "mean"), "sd": ("value", "std"), "seeds": ("value", "size")}
    columns |= {"low": ("value", "min"), "high": ("value", "max")}
    columns |= {"majority": ("majority class", "mean"), "chance": ("chance", "mean")}
    columns |= {name: (name, "mean") for name in ("pairs", "cost")}
    columns |= {name: (name, "first") for name in ("examples", "train_examples")}
    texts = ("length", "batch_size", "learning_rate", "epochs", "precision", "device", "commit")
    groups = runs.groupby([*ARM, "attention", "split", "measure", "is_headline"], sort=False, dropna=False)
    table = groups.agg(**columns, **{name: (name, listed) for name in texts}).reset_index()
    place, rank = table.groupby(ARM, sort=False).ngroup(), table["measure"].map(list(METRICS).index)
    table = table.assign(place=place, rank=rank).sort_values(["place", "rank"]).drop(columns=["place", "rank"])
    words = rows[(rows["kind"] == "bag of words") & (rows["study"] == "bag-of-words") & (rows["measure"] == "headline")]
    same_examples = table["is_headline"] & (table["split"] != "held-out")
    table["bag_of_words"] = table["task"].map(words.groupby("task")["value"].last()).where(same_examples)
    varied = [(*arm, *varieties(runs, root)) for arm, runs in headlines(rows).groupby(ARM, sort=False)]
    constants = pd.DataFrame(varied, columns=[*ARM, "variety", "constant"]).assign(is_headline=True)
    return table.merge(constants, "left", [*ARM, "is_headline"])


def varieties(runs: pd.DataFrame, root: Path) -> tuple[float, int]:
    """How varied the answers of an arm's runs are, a mean over seeds, and how many of them are constant.

    Not of a part of SQuAD: it is drawn, and no question follows one about the same paragraph.
    """
    task = task_named(runs["task"].iloc[0])
    is_part = task.is_squad and runs[["eval_examples", "held_out_examples"]].notna().any(axis=None)
    tables = [] if is_part else [variety(task, table) for table in answers_of(runs, root).values()]
    return (sum(share for share, _ in tables) / len(tables), sum(same for _, same in tables)) if tables else (np.nan, 0)


def variety(task: Task, predictions: pd.DataFrame) -> tuple[float, bool]:
    """How varied answers are (0: the same to everything, 1: as the gold answers), and whether they are all the same.

    Of numbers it is their standard deviation, of classes the share without the most frequent one; over the gold
    answers'. Predictions are rounded as the run's precision rounds: numbers are the same if there are but two of them.
    Of SQuAD, in the order of its data: the share of answers that stand elsewhere than that to the question before,
    mostly one about the same paragraph.
    """
    if task.is_squad:
        places = predictions[["start", "end"]]
        return float((places != places.shift()).any(axis=1).mean()), False
    if task.is_regression:
        values = predictions["logit_0"]
        return float(values.std() / predictions["label"].std()), values.nunique() <= 2
    answers, gold = (1 - predictions[name].value_counts(normalize=True).iloc[0] for name in ("answer", "label"))
    return float(answers / gold), predictions["answer"].nunique() == 1


# ---- differences ----------------------------------------------------------------------------------------------------
def comparisons(arms: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """From, to and what changes: every arm but softmax against softmax, then the other neighbours; where a study varies
    the training (TRAINED), among arms that were trained alike."""
    alike: dict[str, list[str]] = {}
    for arm in arms:
        alike.setdefault(arm[len(base_of(arm)) :], []).append(base_of(arm))
    for how, bases in sorted(alike.items(), key=lambda item: (len(item[0]), item[0])):  # by number: 8000, 20000
        for arm in in_order(bases) if "softmax" in bases else ():
            if arm != "softmax":
                yield "softmax" + how, arm + how, ARMS.get(arm, arm)
        yield from ((start + how, end + how, what) for start, end, what in NEIGHBOURS if {start, end} <= set(bases))


def differences(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """A line for each pair of arms that can be compared, by model and task; empty where there are none.

    Columns: model, task, metric, change, from, to, score_from, score_to (means over the seeds of both), difference,
    low, high (95 %, no further than scores go), p, not_inferior, seeds, over ("seeds"; in cross-validation "folds"),
    examples (none where no run of a task kept predictions: intervals are over seeds alone), cost_from, cost_to,
    p_holm, clear (p_holm is below 5 %). From fewer than CLEAR_FROM seeds nothing is tested or not inferior.
    """
    lines = []
    for (model, task), group in headlines(rows).groupby(["model", "task"], sort=False):
        arms = {str(arm): of_arm.set_index("seed") for arm, of_arm in group.groupby("arm", sort=False)}
        answers = {arm: answers_of(of_arm.reset_index(), root) for arm, of_arm in arms.items()}
        kept = [arm for arm in arms if answers[arm]]
        for before, after, what in comparisons(kept or arms):
            first, then = (set(answers[arm] if kept else arms[arm].index) for arm in (before, after))
            if not (seeds := sorted(first & then)):
                continue
            line = {"model": model, "task": task, "metric": group["measure"].iloc[0], "change": what}
            pair = arms[before].loc[seeds], arms[after].loc[seeds]
            try:
                line |= {"from": before, "to": after} | compared(str(task), *pair, answers[before], answers[after])
                lines.append(line)
            except ValueError as error:  # of runs with different eval_examples
                print(f"{task}: {before} and {after} are not compared: {error}")
    table = pd.DataFrame(lines)
    if lines:
        table["p_holm"] = table[table["seeds"] >= CLEAR_FROM].groupby("model")["p"].transform(holm)
        table["clear"] = table["p_holm"] < LEVEL
    return table


def compared(task: str, first: pd.DataFrame, then: pd.DataFrame, before: Answers, after: Answers) -> dict[str, Any]:
    """What `differences` says of two arms, of their runs by seed and, if these kept them, their predictions."""
    metric, score, highest = first["measure"].iloc[0], first["value"].mean(), scale_of(task)[0]
    folds = int(first["folds"].iloc[0]) if first["folds"].notna().all() else None
    change = difference(before, after, metric, folds=folds) if before else over_seeds(then["value"] - first["value"])
    lowest = -highest if metric == "pearson" else 0
    line: dict[str, Any] = {"score_from": score, "score_to": then["value"].mean(), "difference": change.mean}
    line |= {"low": max(change.low, lowest - score), "high": min(change.high, highest - score), "p": change.p}
    line |= {"not_inferior": change.seeds >= CLEAR_FROM and change.low > -MARGIN * abs(score)}
    line |= {"seeds": change.seeds, "over": "folds" if folds else "seeds", "examples": change.examples}
    return line | {"cost_from": first["cost"].mean(), "cost_to": then["cost"].mean()}


def over_seeds(each: pd.Series) -> Difference:
    """A mean difference over seeds, with Student's interval (NaN with one seed); for runs that kept no predictions."""
    half, p = student(each.mean(), each.var(ddof=1) / len(each), len(each) - 1)
    return Difference(each.mean(), each.mean() - float(half), each.mean() + float(half), float(p), len(each), 0)


# ---- attention switched, words shuffled, pretraining ----------------------------------------------------------------
def switched(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Per task, variant and share asked for: means over models (seeds) that were fine-tuned with softmax, and the ends
    of the 95 % interval of what is kept of the score, over models and examples; the best variants on top."""
    lines = wide(rows[rows["kind"] == "switched"]).dropna(axis="columns", how="all")
    if lines.empty:
        return lines
    lines["kept"] = lines.get("kept", np.nan)  # not there if softmax is no better than the majority class
    names = [name for name in METRICS if name in lines]  # a model has one of them
    lines["metric"], lines["score"] = lines[names].notna().idxmax(axis=1), lines[names].bfill(axis=1).iloc[:, 0]
    groups = lines.drop(columns=names).groupby(["split", "task", "variant", "share", "metric"], sort=False)
    table = groups[[name for name in lines.select_dtypes("number") if name not in ("share", "seed", *names)]].mean()
    ends = pd.DataFrame({name: kept_between(group, root) for name, group in groups}, index=["kept_low", "kept_high"]).T
    table = table.join(ends.rename_axis(table.index.names)).assign(seeds=groups["seed"].nunique())
    table = table.join(groups[["attention", "commit"]].agg(listed)).reset_index()
    best = table.groupby(["split", "task", "variant"])["kept"].transform("mean")
    keys = ["split", "task", "best", "share"]
    table = table.assign(best=best).sort_values(keys, ascending=[True, True, False, False]).drop(columns="best")
    return table.reset_index(drop=True)


def kept_between(lines: pd.DataFrame, root: Path) -> tuple[float, float]:
    """The ends of the 95 % interval of the share of the score that a variant keeps: seeds and examples."""
    variant = Candidate(lines["variant"].iloc[0], "", {"share": float(lines["share"].iloc[0])}).file_name
    records = dict(zip(lines["seed"], lines["record"], strict=True))
    folders = {seed: root / record.replace(".csv", "-predictions") for seed, record in records.items()}
    before, after = ({seed: read_predictions(folder / f"{name}.parquet") for seed, folder in folders.items()}
                     for name in ("softmax", variant))  # fmt: skip
    change = difference(before, after, lines["metric"].iloc[0], draws=500)
    gain = float(lines["softmax"].mean() - lines["majority"].mean()) or np.nan
    return 1 + change.low / gain, 1 + change.high / gain


def predictors(table: pd.DataFrame) -> pd.DataFrame:
    """Which diagnostic predicts the score? Spearman's rank correlation of each with what is kept, by task.

    `all` is taken over the variants and shares of `switched` together, `at_a_share` over the variants at each share,
    a mean over the shares that have four variants or more.
    """
    tables = []
    for task, of_task in table.groupby("task", sort=False) if len(table) else ():
        shares = [of_share for _, of_share in of_task.groupby("share") if len(of_share) >= 4]
        together, *each = (part.reindex(columns=DIAGNOSTICS).corrwith(part["kept"], method="spearman")
                           for part in (of_task, *shares))  # fmt: skip
        values = {"all": together, "at_a_share": pd.DataFrame(each, columns=DIAGNOSTICS).mean()}
        tables.append(pd.DataFrame({"task": task, "diagnostic": DIAGNOSTICS, **values}))
    return pd.concat(tables, ignore_index=True) if tables else table


def shuffled(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Does a model see the order of words? A line a task and arm of runs that answered shuffled texts too.

    Columns: task, model, arm, metric, train_examples, examples, seeds, score, shuffled (means over seeds), difference,
    low, high (95 %, over seeds and examples), changed (share of answers that are another class when words are shuffled;
    none where a number is predicted), changed_low, changed_high, bag_of_words (of as many training examples), majority,
    commit.
    """
    runs, words, lines = runs_of(rows), wide(rows[rows["kind"] == "bag of words"]), []
    for (task, model, arm), of_arm in runs[runs["is_headline"]].groupby(ARM, sort=False):
        before, after = answers_of(of_arm, root), answers_of(of_arm, root, "shuffled")
        if not after:
            continue
        metric, size = of_arm["measure"].iloc[0], of_arm["train_examples"].iloc[0]
        of_seeds, change = of_arm[of_arm["seed"].isin(list(after))], difference(before, after, metric)
        is_shuffled = of_seeds["split"] == "shuffled"
        plain, mixed = of_seeds[~is_shuffled], of_seeds[is_shuffled]
        line = {"task": task, "model": model, "arm": arm, "metric": metric, "train_examples": int(size)}
        line |= {"examples": change.examples, "seeds": change.seeds, "score": plain["value"].mean()}
        line |= {"shuffled": mixed["value"].mean(), "difference": change.mean, "low": change.low, "high": change.high}
        line |= {} if task_named(str(task)).is_regression else changed(before, after)
        same = words[(words["task"] == task) & (words["train"] == size)] if len(words) else words
        line["bag_of_words"] = same["headline"].iloc[0] if len(same) else np.nan
        lines.append(line | {"majority": plain["majority class"].mean(), "commit": listed(plain["commit"])})
    table = pd.DataFrame(lines)
    if lines:
        tasks, bases = list(table["task"].unique()), table["arm"].map(base_of)
        places = table.assign(task=table["task"].map(tasks.index), arm=bases.map(in_order(bases).index))
        table = table.loc[places.sort_values(["task", "train_examples", "arm"], kind="stable").index]
    return table.reset_index(drop=True)


def changed(before: Answers, after: Answers) -> dict[str, float]:
    """The share of answers that are another class after than before, with its interval over seeds and examples."""
    other = np.array([(before[seed]["answer"] != after[seed]["answer"]).to_numpy(float) for seed in sorted(after)])
    half, _ = crossed(other.mean(1), other.mean(0).var(ddof=1) / other.shape[1])
    mean = float(other.mean())
    return {"changed": mean, "changed_low": max(mean - float(half), 0.0), "changed_high": min(mean + float(half), 1.0)}


def gaps(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Each pretraining run against the softmax run that differs from it in the attention alone, by metric.

    Both were evaluated on the same held-out sequences and masks, so that the difference is paired; its error is taken
    over sequences and says nothing about other seeds.

    Raises:
        ValueError: the runs were evaluated on different masked tokens.
    """
    lines = wide(rows[(rows["kind"] == "pretrained") & (rows["split"] == "held-out") & (rows["attention"] != "")])
    same = ["model", "variant", "seed", "length", "batch_size", "learning_rate", "steps", "masked_share"]
    columns, table = {"mlm_loss": "lost", "mlm_accuracy": "found", "sop_accuracy": "order"}, []
    for _, alike in lines.groupby(same, dropna=False, sort=False) if len(lines) else ():
        is_softmax = alike["attention"] == "softmax"
        for other, one in product(alike[~is_softmax].to_dict("records"), alike[is_softmax].to_dict("records")):
            before, after = (pd.read_csv((root / run["record"]).with_name("held-out.csv")) for run in (one, other))
            if not before["tokens"].equals(after["tokens"]):
                raise ValueError(f"{other['arm']} and {one['arm']} were evaluated on different masked tokens")
            for metric, column in columns.items():
                weights = before["tokens"] if column != "order" else pd.Series(1.0, before.index)
                mean, error = paired_ratio(before[column], after[column], weights)
                gap = {"from": one["arm"], "to": other["arm"], "metric": metric, "difference": mean}
                table.append(gap | {"standard_error": error, "sequences": len(before)})
    return pd.DataFrame(table)


# ---- written --------------------------------------------------------------------------------------------------------
def write_tables(*studies: str, root: str | Path | None = None) -> list[Path]:
    """Write results/tables/<study>-{scores,differences,switched,shuffled}.csv, and pretraining-gaps.csv; returns the
    paths. A table without rows is not written, and an older one is deleted. A warning names runs that are not made yet.

    Raises:
        ValueError: some of the switched models, or of the readings, have no table; nothing is written.
    """
    root, tables = Path(root or repository_root()), dict[str, pd.DataFrame]()
    for study in studies:
        check_complete(study, root)
        rows = load(root, study)
        made = {"scores": scores, "differences": differences, "switched": switched, "shuffled": shuffled}
        tables |= {f"{study}-{name}": make(rows, root) for name, make in made.items()}
        tables[f"{study}-predictors"] = predictors(tables[f"{study}-switched"])
    tables["pretraining-gaps"] = gaps(load(root), root)
    written = []
    for name, table in tables.items():
        path = root / "results" / "tables" / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
            written.append(path)
    return written


if __name__ == "__main__":
    print(*write_tables(*list_studies(repository_root()).query("listed > 0").index), sep="\n")
