"""What the runs of a study say together, written to results/tables/: `python -m albert_study.compare` makes all tables.

runs_of(rows, root)        a line a run and metric, with its baselines; which runs are constant, which came later
scores(rows, root)         a line an arm and metric: mean and deviation over seeds, every run, baselines, costs
differences(rows, root)    a line a pair of arms, with intervals over seeds and examples (see `intervals`)
switched(rows, root)       models whose attention was replaced, with nothing trained: what is kept
shuffled(rows, root)       texts as they are, and with their words in random order
"""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import read_predictions
from albert_study import intervals
from albert_study.intervals import CLEAR_FROM, LEVEL, Difference, Error, equivalence
from albert_study.names import CORE, METRICS, SHARES, base_of, in_order, names_of, scale_of
from albert_study.records import BASELINES, added_later, load, read, say_missing, studies_of, variant_file, wide

NEIGHBOURS = (  # compared besides with softmax: from, to, and what lies between them
    ("2020-block", "with-residual", "the residual connection back"),
    ("with-residual", "with-mask", "padding masked"),
    ("with-mask", "tied-keys", "pretrained projections kept"),
    ("queries-as-keys", "unit-queries-as-keys", "keys of length one, tied"),
    ("unit-queries-as-keys", "shared-qk", "no own key, with tied ones of length one"),
    ("new-query-key", "new", "new value and output, with new query and key"),
    ("new", "reformer", "tying, with new projections"),
    ("shared-qk", "reformer", "new projections, with tying"),
    ("shared-qk", "shared-qk-lsh", "hashing, with tying"),
    ("reformer", "new-shared-qk-lsh", "hashing, with tying and new projections"),
    ("new", "new-shared-qk-lsh", "tying and hashing, with new projections"),
    ("random", "key-clusters", "key-clusters instead of random keys"),
    ("random", "random-rest", "a mean key for the rest"),
    ("random-rest", "key-clusters", "key-clusters instead of random keys, both with a rest"),
    ("window", "key-clusters", "key-clusters instead of the nearest keys"),
    *((f"lsh-{share}", f"lsh-mean-{share}", f"a mean key, LSH at {sign}") for share, sign in SHARES.items()),
    *((f"random-mean-{s}", f"lsh-mean-{s}", f"hashing instead of random keys at {SHARES[s]}") for s in CORE),
    *((f"lsh-mean-{s}", f"key-clusters-{s}", f"clustering instead of hashing at {SHARES[s]}") for s in CORE),
    ("truncated", "key-clusters", "key-clusters instead of shorter texts"),
    ("nano-random", "nano", "pretraining"),
    ("nano-key-clusters-random", "nano-key-clusters", "pretraining, with hashing"),
)
APART = 10.0  # points, hundredths of the best score: runs that differ by more have no mean that stands for them
CORRELATIONS = ("pearson", "spearman", "matthews")  # none of answers that are all the same
ARM = ["task", "model", "arm"]  # what is averaged over seeds
TESTED, PLANNED_RUNS = "within-a-point", 5  # the study whose test of key-clusters was planned before its runs; a side
Answers = dict[int, pd.DataFrame]  # predictions by seed


# ---- runs and scores ------------------------------------------------------------------------------------------------
def listed(values: Iterable[Any]) -> str:
    """The different values, in their order: "a; b"."""
    return "; ".join(dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values))


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
    cost, examples, train_examples; of headlines also bag_of_words (see `words_of`) and variety, a mean over
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
    same_examples = table["is_headline"] & (table["split"] != "held-out")
    table["bag_of_words"] = words_of(rows, table).where(same_examples)
    of_arms = runs[runs["is_headline"]].groupby(ARM, sort=False)
    varied = [(*arm, mean_variety(of_arm, root)) for arm, of_arm in of_arms]
    return table.merge(pd.DataFrame(varied, columns=[*ARM, "variety"]).assign(is_headline=True), "left")


def words_of(rows: pd.DataFrame, lines: pd.DataFrame, measure: str = "headline") -> "pd.Series[float]":
    """What a bag of words scores that was trained on as many examples of a line's task; NaN where none was.

    lines: with task and train_examples. In cross-validation a bag of words has the mean of its folds' sizes.
    """
    counted = rows[rows["kind"] == "bag of words"]
    words = (wide(counted) if len(counted) else counted).reindex(columns=["task", "train", measure])
    each = lines[["task", "train_examples"]].itertuples(index=False)
    alike = [words[(words["task"] == task) & ((words["train"] - size).abs() < 1)] for task, size in each]
    return pd.Series([same[measure].max() for same in alike], lines.index, dtype=float)


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


# ---- differences ----------------------------------------------------------------------------------------------------
def comparisons(arms: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """From, to and what changes: every arm but softmax against softmax, then the other neighbours; where a study varies
    the training (TRAINED), among arms that were trained alike."""
    arms = [*arms]
    alike, names = dict[str, list[str]](), names_of(arms)
    for arm in arms:
        alike.setdefault(arm[len(base_of(arm)) :], []).append(base_of(arm))
    for how, bases in sorted(alike.items(), key=lambda item: (len(item[0]), item[0])):  # by number: 8000, 20000
        for arm in in_order(bases) if "softmax" in bases else ():
            if arm != "softmax":
                yield "softmax" + how, arm + how, names.get(arm, arm)
        known = [neighbours for neighbours in NEIGHBOURS if {*neighbours[:2]} <= {*bases}]
        yield from ((start + how, end + how, what) for start, end, what in known)


def differences(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """A line for each pair of arms that can be compared, by model and task; empty where there are none.

    Columns: model, task, metric, family, change, from, to, share (that `to` is asked for), difference, low, high (95 %,
    no further than scores go), p, error, freedom, error_of_seeds (see `intervals`), seeds, over ("seeds"; in
    cross-validation "folds"), examples (none where no run of a task kept predictions: intervals are over seeds alone),
    later (how many of the runs), p_holm, clear (p_holm is below 5 %), has_mean; and of both arms, ending in _from and
    _to: score (mean over these seeds), lowest, highest, constant (how many of the runs), pairs, cost.

    Where a run is constant there is no difference. Where runs of an arm are far apart a mean stands for them only if it
    is clear; elsewhere has_mean is false, and tables, figures and texts show neither difference nor interval.

    Two families of questions were named. "A": which change hurts, and what lies between neighbours? It is tested here,
    for each model, from CLEAR_FROM seeds or more. "B": does `key-clusters` stay near softmax? See `equivalence`.
    """
    lines = []
    for (model, task, metric), group in headlines(rows, root).groupby(["model", "task", "measure"], sort=False):
        arms = {str(arm): of_arm.set_index("seed") for arm, of_arm in group.groupby("arm", sort=False)}
        answers = {arm: answers_of(of_arm.reset_index(), root) for arm, of_arm in arms.items()}
        kept = [arm for arm in arms if answers[arm]]
        for before, after, what in comparisons(kept or arms):
            first, then = (set(answers[arm] if kept else arms[arm].index) for arm in (before, after))
            if not (seeds := sorted(first & then)):
                continue
            line = {"model": model, "task": task, "metric": metric, "change": what}
            pair = arms[before].loc[seeds], arms[after].loc[seeds]
            try:
                line |= {"from": before, "to": after} | compared(str(task), *pair, answers[before], answers[after])
                lines.append(line)
            except ValueError as error:  # of runs with different eval_examples
                print(f"{task}: {before} and {after} are not compared: {error}")
    table = pd.DataFrame(lines)
    if lines:
        in_family = table[(table["seeds"] >= CLEAR_FROM) & (table["family"] == "A")]
        of_models = in_family.fillna({"p": 1.0}).groupby("model")["p"]  # constant ones count, too
        corrected = of_models.transform(intervals.holm)
        table["p_holm"] = corrected.where(in_family["p"].notna())
        table["clear"] = table["p_holm"] < LEVEL
        table["has_mean"] = table["difference"].notna() & (table["clear"] | ~table.pop("apart"))
    return table


def compared(task: str, first: pd.DataFrame, then: pd.DataFrame, before: Answers, after: Answers) -> dict[str, Any]:
    """What `differences` says of two arms, of their runs by seed and, if these kept them, their predictions."""
    metric, highest = first["measure"].iloc[0], scale_of(task, first["measure"].iloc[0])[0]
    folds = int(first["folds"].iloc[0]) if first["folds"].notna().all() else None
    base, attention = base_of(first["arm"].iloc[0]), then["attention"].iloc[0]
    line: dict[str, Any] = {"family": "B" if (base, attention) == ("softmax", "key-clusters") else "A"}
    line["share"] = then["share"].iloc[0]
    for name, runs in (("from", first), ("to", then)):
        values = {"score": runs["value"].mean(), "lowest": runs["value"].min(), "highest": runs["value"].max()}
        values |= {"constant": runs["constant"].sum(), "pairs": runs["pairs"].mean(), "cost": runs["cost"].mean()}
        line |= {f"{column}_{name}": value for column, value in values.items()}
    if before:
        change = intervals.difference(before, after, metric, folds=folds)
    else:  # runs that kept no predictions: over seeds alone, without an error if it is one
        each = then["value"] - first["value"]
        change = Difference(each.mean(), [Error(each.sem(), len(each) - 1)], len(each), 0)
    line |= {"over": "folds" if folds else "seeds", "seeds": change.seeds, "examples": change.examples}
    line |= {"later": int((first["later"] | then["later"]).sum())}
    of_arms = first["value"], then["value"]
    line["apart"] = any(are_apart(task, metric, values.min(), values.max()) for values in of_arms)
    if first["constant"].any() or then["constant"].any():
        return line | dict.fromkeys(("difference", "low", "high", "p", "error", "freedom", "error_of_seeds"), np.nan)
    lowest, score = -highest if metric in CORRELATIONS else 0, line["score_from"]
    low, high = intervals.interval(change.mean, change.errors)
    line |= {"difference": change.mean, "low": max(low, lowest - score), "high": min(high, highest - score)}
    line |= {"p": intervals.p_of_none(change.mean, change.errors), "error": change.errors[0].size}
    return line | {"freedom": change.errors[0].freedom, "error_of_seeds": change.errors[-1].size}


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
    variant = variant_file(lines["variant"].iloc[0], float(lines["share"].iloc[0]))
    records = dict(zip(lines["seed"], lines["record"], strict=True))
    folders = {seed: root / record.replace(".csv", "-predictions") for seed, record in records.items()}
    before, after = ({seed: read_predictions(folder / f"{name}.parquet") for seed, folder in folders.items()}
                     for name in ("softmax", variant))  # fmt: skip
    metric, majority = lines["metric"].iloc[0], float(lines["majority"].mean())
    return intervals.kept(before, after, metric, constant(metric, next(iter(before.values())), majority), draws=500)


def constant(metric: str, answers: pd.DataFrame, score: float) -> intervals.Scored:
    """The answer that a model of this score gives to everything, scored; where it is no class the score as it is."""
    if "answer" not in answers:
        return lambda weights: np.full(len(weights), score)
    scored = [intervals.score_of(metric, answers.assign(answer=answer)) for answer in answers["label"].unique()]
    return min(scored, key=lambda of: abs(of(np.ones((1, len(answers))))[0] - score))


def shuffled(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Does a model see the order of words? A line a task and arm of runs that answered shuffled texts too.

    Columns: task, model, arm, metric, train_examples, examples, seeds, score, shuffled (means over seeds), difference,
    low, high (95 %, over seeds and examples), changed (share of answers that are another class when words are shuffled;
    none where a number is predicted), changed_low, changed_high, bag_of_words (of as many training examples), majority,
    commit, later (how many of the runs). There is no difference where a run has no correlation.
    """
    runs, lines = runs_of(rows, root), []
    for (task, model, arm), of_arm in runs[runs["is_headline"]].groupby(ARM, sort=False):
        before, after = answers_of(of_arm, root), answers_of(of_arm, root, "shuffled")
        if not after:
            continue
        metric, size = of_arm["measure"].iloc[0], of_arm["train_examples"].iloc[0]
        of_seeds, change = of_arm[of_arm["seed"].isin(list(after))], intervals.difference(before, after, metric)
        is_shuffled = of_seeds["split"] == "shuffled"
        plain, mixed = of_seeds[~is_shuffled], of_seeds[is_shuffled]
        line = {"task": task, "model": model, "arm": arm, "metric": metric, "train_examples": int(size)}
        line |= {"examples": change.examples, "seeds": change.seeds, "score": plain["value"].mean()}
        low, high = intervals.interval(change.mean, change.errors)
        line |= {"shuffled": mixed["value"].mean(), "difference": change.mean, "low": low, "high": high}
        line |= {"later": int(plain["later"].sum())}
        line |= dict.fromkeys(("difference", "low", "high"), np.nan) if plain["value"].isna().any() else {}
        line |= {} if metric == "pearson" else changed(before, after)
        lines.append(line | {"majority": plain["majority class"].mean(), "commit": listed(plain["commit"])})
    table = pd.DataFrame(lines)
    if lines:
        table["bag_of_words"] = words_of(rows, table)
        tasks, bases = list(table["task"].unique()), table["arm"].map(base_of)
        places = table.assign(task=table["task"].map(tasks.index), arm=bases.map(in_order(bases).index))
        table = table.loc[places.sort_values(["task", "train_examples", "arm"], kind="stable").index]
    return table.reset_index(drop=True)


def changed(before: Answers, after: Answers) -> dict[str, float]:
    """The share of answers that are another class after than before, with its interval over seeds and examples."""
    other = np.array([(before[seed]["answer"] != after[seed]["answer"]).to_numpy(float) for seed in sorted(after)])
    mean = float(other.mean())
    low, high = intervals.interval(mean, intervals.errors_of(other.mean(1), other.mean(0).var(ddof=1) / other.shape[1]))
    return {"changed": mean, "changed_low": max(low, 0.0), "changed_high": min(high, 1.0)}


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
                mean, error = intervals.paired_ratio(before[column], after[column], weights)
                gap = {"from": one["arm"], "to": other["arm"], "metric": metric, "difference": mean}
                table.append(gap | {"standard_error": error, "sequences": len(before)})
    return pd.DataFrame(table)


# ---- written --------------------------------------------------------------------------------------------------------
def write_tables(*studies: str, root: str | Path | None = None) -> list[Path]:
    """Write results/tables/<study>-{scores,differences,switched,shuffled}.csv, and of all studies pretraining-gaps.csv,
    no-training-second.csv and equivalence.csv; of study TESTED alone, whose test was planned before its runs, another
    equivalence.csv. Returns the paths. A table without rows is not written, and an older one is deleted. A line names
    results that are not made yet.
    """
    root, tables = Path(root or repository_root()), dict[str, pd.DataFrame]()
    for study in studies:
        say_missing(study, root)
        rows = load(root, study)
        makers = {"scores": scores, "differences": differences, "switched": switched, "shuffled": shuffled}
        tables |= {f"{study}-{name}": make(rows, root) for name, make in makers.items()}
    rows = load(root)
    tables["pretraining-gaps"] = gaps(rows, root)
    tables["no-training-second"] = switched(rows[rows["study"] == "no-training-second"], root)
    folder = root / "results" / "tables"
    written = [path for name, table in tables.items() for path in replace_table(folder / f"{name}.csv", table)]
    # as they are written, so that those of a study that is made again enter as those of all others do
    pairs = {study: read(root, f"tables/{study}-differences").assign(study=study) for study in sorted(studies_of(root))}
    planned = [pairs.pop(TESTED, pd.DataFrame())]
    tests = ("equivalence", [*pairs.values()], CLEAR_FROM), (f"{TESTED}-equivalence", planned, PLANNED_RUNS)
    for name, lines, least in tests:
        filled = [table for table in lines if len(table)] or [pd.DataFrame(columns=["family", "difference", "share"])]
        written += replace_table(folder / f"{name}.csv", equivalence(pd.concat(filled, ignore_index=True), least))
    return written


def replace_table(path: Path, table: pd.DataFrame) -> list[Path]:
    """Write a table; one without rows is not written, and an older one is deleted. Returns what is written."""
    if table.empty:
        path.unlink(missing_ok=True)
        return []
    write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
    return [path]


if __name__ == "__main__":
    print(*write_tables(*studies_of(repository_root())), sep="\n")
