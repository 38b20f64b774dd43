"""What lies between arms: `write_tables("minilm")` makes results/tables/minilm-*.csv.

differences(rows, root)    a line a pair of arms, with intervals over seeds and examples (see `intervals`)
equivalence(lines)         does `key-clusters` stay within MARGIN of softmax, task by task and over tasks?
switched(rows, root)       models whose attention was replaced, with nothing trained: what is kept
shuffled(rows, root)       texts as they are, and with their words in random order
"""

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import read_predictions
from albert_study import intervals, scores
from albert_study.candidates import Candidate
from albert_study.intervals import CLEAR_FROM, Difference, Error
from albert_study.records import check_complete, load, read, studies_of, wide
from albert_study.scores import Answers, answers_of, are_apart, base_of, headlines, in_order, runs_of, scale_of

NEIGHBOURS = (  # compared besides with softmax: from, to, and what lies between them
    ("2020-block", "with-residual", "the residual connection back"),
    ("with-residual", "with-mask", "padding masked"),
    ("with-mask", "tied-keys", "pretrained projections kept"),
    ("new", "reformer", "tying, with new projections"),
    ("shared-qk", "reformer", "new projections, with tying"),
    ("shared-qk", "shared-qk-lsh", "hashing, with tying"),
    ("reformer", "new-shared-qk-lsh", "hashing, with tying and new projections"),
    ("new", "new-shared-qk-lsh", "tying and hashing, with new projections"),
    ("random", "key-clusters", "key-clusters instead of random keys"),
    ("random", "random-rest", "a mean key for the rest"),
    ("random-rest", "key-clusters", "key-clusters instead of random keys, both with a rest"),
    ("window", "key-clusters", "key-clusters instead of the nearest keys"),
    ("truncated", "key-clusters", "key-clusters instead of shorter texts"),
    ("nano-random", "nano", "pretraining"),
    ("nano-key-clusters-random", "nano-key-clusters", "pretraining, with hashing"),
)
DIAGNOSTICS = ["pairs", "mass", "recall", "error", "drift", "changed"]
FAMILIES = {"key-clusters": "B", "lsh-tree": "B of version 1"}  # of what is compared with softmax; else "A"
LEVEL = 0.05
MARGIN = 1.0  # points, hundredths of the best score: an arm that differs by less is as good


# ---- differences ----------------------------------------------------------------------------------------------------
def comparisons(arms: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """From, to and what changes: every arm but softmax against softmax, then the other neighbours; where a study varies
    the training (TRAINED), among arms that were trained alike. Version 1 of `key-clusters` is a neighbour where
    version 2 is not there."""
    alike: dict[str, list[str]] = {}
    for arm in arms:
        alike.setdefault(arm[len(base_of(arm)) :], []).append(base_of(arm))
    for how, bases in sorted(alike.items(), key=lambda item: (len(item[0]), item[0])):  # by number: 8000, 20000
        for arm in in_order(bases) if "softmax" in bases else ():
            if arm != "softmax":
                yield "softmax" + how, arm + how, scores.ARMS.get(arm, arm)
        there = {base.replace("lsh-tree", "key-clusters"): base for base in bases} | {base: base for base in bases}
        yield from ((there[start] + how, there[end] + how, what) for start, end, what in NEIGHBOURS
                    if {start, end} <= there.keys())  # fmt: skip


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
    Version 1 of `key-clusters` (lsh-tree), tested so before version 2 was there, is a family of its own.
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
    line: dict[str, Any] = {"family": FAMILIES.get(attention, "A") if base == "softmax" else "A"}
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
    lowest, score = -highest if metric in scores.CORRELATIONS else 0, line["score_from"]
    low, high = intervals.interval(change.mean, change.errors)
    line |= {"difference": change.mean, "low": max(low, lowest - score), "high": min(high, highest - score)}
    line |= {"p": intervals.p_of_none(change.mean, change.errors), "error": change.errors[0].size}
    return line | {"freedom": change.errors[0].freedom, "error_of_seeds": change.errors[-1].size}


def equivalence(lines: pd.DataFrame) -> pd.DataFrame:
    """Does `key-clusters` stay within MARGIN of softmax? A line a comparison of family B, below them two for each
    share; then the same of version 1.

    lines: of `differences`, of several studies, with a column study.

    Differences, their ends and errors are in points. p is that of a difference of MARGIN or more, by two one-sided
    tests; all of a version are one family (p_holm), and `within` says where p_holm is below 5 %. From fewer than
    CLEAR_FROM seeds nothing is tested. `weights` says how the tasks of a share are weighted, see `over_tasks`. Other
    columns are those of `differences`, without _to.
    """
    lines = lines[lines["family"].isin(FAMILIES.values()) & lines["difference"].notna() & lines["share"].notna()]
    each = {name: lines[lines["family"] == family] for name, family in FAMILIES.items()}
    tables = [of_margin(of_family, name) for name, of_family in each.items() if len(of_family)]
    return pd.concat(tables, ignore_index=True) if tables else lines


def of_margin(lines: pd.DataFrame, name: str) -> pd.DataFrame:
    """What `equivalence` says of one family, the attention `name`."""
    lines = lines.rename(columns=lambda name: name.removesuffix("_to"))
    best = [scale_of(*line)[0] for line in lines[["task", "metric"]].itertuples(index=False)]
    in_points = {name: lines[name] * 100 / best for name in ("difference", "low", "high", "error", "error_of_seeds")}
    lines = lines.assign(**in_points, freedom_of_seeds=lines["seeds"] - 1, tasks=1, weights="")
    lines = lines.sort_values("share", ascending=False, kind="stable")
    of_shares = lines[lines["seeds"] >= CLEAR_FROM].groupby("share", sort=False)
    lines = pd.concat([lines, *(over_tasks(of_share, name) for _, of_share in of_shares)], ignore_index=True)
    is_tested = (lines["seeds"] >= CLEAR_FROM) & (lines["weights"] != "precision")
    tested = lines[is_tested].to_dict("records")
    p = [intervals.p_of_margin(line["difference"], errors_of_line(line), MARGIN) for line in tested]
    lines = lines.assign(p=np.nan, p_holm=np.nan)
    lines.loc[is_tested, "p"] = p
    lines.loc[is_tested, "p_holm"] = intervals.holm(pd.Series(p)).to_numpy() if p else []
    columns = ["study", "model", "task", "metric", "from", "to", "share", "pairs", "cost", "difference", "low", "high"]
    columns += ["error", "freedom", "seeds", "over", "tasks", "weights", "later", "p", "p_holm"]
    return lines[columns].assign(within=lines["p_holm"] < LEVEL)


def over_tasks(lines: pd.DataFrame, name: str) -> pd.DataFrame:
    """The lines of a share; none of one task.

    The first, which is tested, is the plain mean over its tasks: each is one answer to the question. The second is
    weighted by precision (a fixed effect), where all tasks have an error. It says what the tasks say that can be
    measured best, and has no interval: from three to five runs a task's error is known too badly to weight by it as if
    it were known. Where a task has several lines their mean counts, with an error as if they were of the same answers.
    """
    pairs = {"error": "freedom", "error_of_seeds": "freedom_of_seeds"}
    how = {"difference": "mean", "seeds": "sum", "later": "sum", "share": "first"}
    tasks = lines.groupby("task").agg(how | dict.fromkeys(pairs, "mean") | dict.fromkeys(pairs.values(), "min"))
    if len(tasks) < 2:
        return pd.DataFrame()
    line = {"task": "all", "to": name, "tasks": len(tasks), "share": tasks["share"].iloc[0]}
    line |= {name: tasks[name].sum() for name in ("seeds", "later")}
    equal = line | {"weights": "equal", "difference": tasks["difference"].mean()}
    for size, freedom in pairs.items():
        equal[size], equal[freedom] = intervals.pooled(list(map(Error, tasks[size], tasks[freedom])))
    equal["low"], equal["high"] = intervals.interval(equal["difference"], errors_of_line(equal))
    if (tasks["error"] == 0).any():
        return pd.DataFrame([equal])
    weighted = np.average(tasks["difference"], weights=1 / tasks["error"] ** 2)
    return pd.DataFrame([equal, line | {"weights": "precision", "difference": weighted}])


def errors_of_line(line: Any) -> list[Error]:
    return [Error(line["error"], line["freedom"]), Error(line["error_of_seeds"], line["freedom_of_seeds"])]


# ---- attention switched, words shuffled, pretraining ----------------------------------------------------------------
def switched(rows: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Per task, variant and share asked for: means over models (seeds) that were fine-tuned with softmax, and the ends
    of the 95 % interval of what is kept of the score, over models and examples; the best variants on top."""
    lines = wide(rows[rows["kind"] == "switched"]).dropna(axis="columns", how="all")
    if lines.empty:
        return lines
    lines["kept"] = lines.get("kept", np.nan)  # not there if softmax is no better than the majority class
    names = [name for name in scores.METRICS if name in lines]  # a model has one of them
    lines["metric"], lines["score"] = lines[names].notna().idxmax(axis=1), lines[names].bfill(axis=1).iloc[:, 0]
    groups = lines.drop(columns=names).groupby(["split", "task", "variant", "share", "metric"], sort=False)
    table = groups[[name for name in lines.select_dtypes("number") if name not in ("share", "seed", *names)]].mean()
    ends = pd.DataFrame({name: kept_between(group, root) for name, group in groups}, index=["kept_low", "kept_high"]).T
    table = table.join(ends.rename_axis(table.index.names)).assign(seeds=groups["seed"].nunique())
    table = table.join(groups[["attention", "commit"]].agg(scores.listed)).reset_index()
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
    change = intervals.difference(before, after, lines["metric"].iloc[0], draws=500)
    low, high = intervals.interval(change.mean, change.errors)
    gain = float(lines["softmax"].mean() - lines["majority"].mean()) or np.nan
    return 1 + low / gain, 1 + high / gain


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
    commit, later (how many of the runs). There is no difference where a run has no correlation.
    """
    runs, words, lines = runs_of(rows, root), wide(rows[rows["kind"] == "bag of words"]), []
    for (task, model, arm), of_arm in runs[runs["is_headline"]].groupby(scores.ARM, sort=False):
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
        same = words[(words["task"] == task) & (words["train"] == size)] if len(words) else words
        line["bag_of_words"] = same["headline"].iloc[0] if len(same) else np.nan
        lines.append(line | {"majority": plain["majority class"].mean(), "commit": scores.listed(plain["commit"])})
    table = pd.DataFrame(lines)
    if lines:
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
    no-training-second.csv and equivalence.csv; returns the paths. A table without rows is not written, and an older one
    is deleted. A warning names runs that are not made yet.

    Raises:
        ValueError: some of the switched models, or of the readings, have no table; nothing is written.
    """
    root, tables = Path(root or repository_root()), dict[str, pd.DataFrame]()
    for study in studies:
        check_complete(study, root)
        rows = load(root, study)
        makers = {"scores": scores.scores, "differences": differences, "switched": switched, "shuffled": shuffled}
        tables |= {f"{study}-{name}": make(rows, root) for name, make in makers.items()}
        tables[f"{study}-predictors"] = predictors(tables[f"{study}-switched"])
    rows = load(root)
    tables["pretraining-gaps"] = gaps(rows, root)
    tables["no-training-second"] = switched(rows[rows["study"] == "no-training-second"], root)
    folder = root / "results" / "tables"
    written = [path for name, table in tables.items() for path in replace_table(folder / f"{name}.csv", table)]
    # as they are written, so that those of a study that is made again enter as those of all others do
    pairs = [read(root, f"tables/{study}-differences").assign(study=study) for study in sorted(studies_of(root))]
    filled = [lines for lines in pairs if len(lines)] or [pd.DataFrame(columns=["family", "difference", "share"])]
    return written + replace_table(folder / "equivalence.csv", equivalence(pd.concat(filled, ignore_index=True)))


def replace_table(path: Path, table: pd.DataFrame) -> list[Path]:
    """Write a table; one without rows is not written, and an older one is deleted. Returns what is written."""
    if table.empty:
        path.unlink(missing_ok=True)
        return []
    write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
    return [path]


if __name__ == "__main__":
    print(*write_tables(*studies_of(repository_root())), sep="\n")
