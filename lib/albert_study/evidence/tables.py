"""Tables of a study, as numbers: results/tables/*.csv. `readable` turns them into what people read.

score_table(runs)                    one row a task, model and arm
changes(runs)                        one row a pair of arms and metric, where runs have kept no predictions
beside_published(runs, published)    ours beside studies/published.csv
write_tables("minilm")               all of a study's, as results/tables/minilm-*.csv
"""

import math
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh import attention
from albert_lsh.files import repository_root, write_atomically
from albert_study.carried import carried
from albert_study.evidence.bootstrap import holm
from albert_study.evidence.calibration import calibration
from albert_study.evidence.differences import LEVEL, comparisons, differences
from albert_study.evidence.formats import listed
from albert_study.evidence.records import (
    COSTS,
    SETTINGS,
    load_bag_of_words,
    load_pretraining,
    load_published,
    load_reading,
    load_runs,
    load_switched,
    planned,
)
from albert_study.evidence.statistics import paired, paired_ratio
from albert_study.evidence.switched import predictors, switched_table
from albert_study.evidence.variety import with_variety
from albert_study.evidence.word_order import load_words, word_order

ARM = ["task", "model", "arm"]  # what is averaged over seeds
HEAD_DIM = 64  # of ALBERT and BERT
# Two pretraining runs that differ in nothing but these saw the same sequences, masks and first weights.
ATTENTION = ("attention", "attention_settings")
FORM = ("recompute", "feed_forward_chunk", "device")  # how it is computed, not what


def score_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Per task, model and arm: mean and standard deviation over seeds, baselines, means of all metrics and costs.

    `sd` is the sample standard deviation, NaN with one seed. Settings and commits that differ between the seeds of an
    arm are listed side by side.
    """
    return pd.DataFrame([_score_row(arm) for _, arm in runs.groupby(ARM, sort=False)])


def _score_row(arm: pd.DataFrame) -> dict[str, Any]:
    first, mean, sd = arm.iloc[0], arm.mean(numeric_only=True), arm.std(numeric_only=True)
    row = {name: first[name] for name in [*ARM, "attention", "headline"]}
    row |= {"score": mean["score"], "sd": sd["score"], "seeds": len(arm)}
    row |= {kind: mean.get(f"{kind}.{first['headline']}", math.nan) for kind in ("majority", "chance")}
    row |= {name: mean[name] for name in COSTS if name in mean}
    row |= {name: listed(arm[name]) for name in [*SETTINGS, "commit"]}
    row |= {str(name): value for name, value in first.items() if str(name).startswith("examples.")}
    row["processor"] = listed(arm["processor"])
    for metric in metrics_of(arm):
        row |= {metric: mean[f"metric.{metric}"], f"sd.{metric}": sd[f"metric.{metric}"]}
        row |= {f"{kind}.{metric}": mean.get(f"{kind}.{metric}", math.nan) for kind in ("majority", "chance")}
    return row


def with_most_runs(scores: pd.DataFrame) -> pd.Series:
    """The row of a score table whose baselines stand for its task: each fold has others, and an arm may lack folds."""
    return scores.iloc[int(scores["seeds"].argmax())]


def metrics_of(runs: pd.DataFrame) -> Iterator[str]:
    """The metrics that these runs have."""
    for column in runs:
        if str(column).startswith("metric.") and runs[column].notna().any():
            yield str(column).removeprefix("metric.")


def changes(runs: pd.DataFrame) -> pd.DataFrame:
    """What lies between arms, per task, model and metric, paired by seed: `differences` for runs without predictions.

    Only seeds that both arms have count; `standard_error` is that of the mean difference, NaN with one such seed.
    `p_holm` is corrected for the study's number of comparisons of headlines, and `clear` says whether it is below 5 %.
    The attended shares say whether anything was hashed.
    """
    rows = []
    for (task, model), group in runs.groupby(["task", "model"], sort=False):
        arms = {str(arm): rows_of.set_index("seed") for arm, rows_of in group.groupby("arm")}
        for before, after, what in comparisons(arms):
            seeds = arms[before].index.intersection(arms[after].index)
            shares = [arms[arm].loc[seeds, "attended_share"].mean() for arm in (before, after)]
            for metric in metrics_of(group):
                found = paired(*(arms[arm][f"metric.{metric}"] for arm in (before, after)))
                row = {"task": task, "model": model, "change": what, "from": before, "to": after, "metric": metric}
                row |= {"headline": metric == group["headline"].iloc[0], "difference": found.mean}
                row |= {"standard_error": found.standard_error, "seeds": found.pairs, "p": found.p}
                rows.append(row | dict(zip(("attended_from", "attended_to"), shares, strict=True)))
    table = pd.DataFrame(rows)
    table = table[table["seeds"] > 0].reset_index(drop=True) if rows else table
    if table.empty:
        return table
    table["p_holm"] = holm(table.loc[table["headline"], "p"])
    return table.assign(clear=table["p_holm"] < LEVEL)


def beside_published(runs: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Ours beside the published scores of the same task, arm and metric; empty where there is none.

    The published model may be another one: both are named.
    """
    ours = [
        {name: row[name] for name in ARM}
        | {"metric": metric, "ours": row[metric], "sd": row[f"sd.{metric}"], "seeds": row["seeds"]}
        | {kind: row[f"{kind}.{metric}"] for kind in ("majority", "chance")}
        for row in score_table(runs).to_dict("records")
        for metric in metrics_of(runs)
        if pd.notna(row.get(metric))
    ]
    theirs = published.rename(columns={"value": "published", "model": "published_model"})
    return pd.DataFrame(ours).merge(theirs, on=["task", "arm", "metric"])


def pretraining_gaps(runs: pd.DataFrame) -> pd.DataFrame:
    """Each pretraining run against the softmax run that differs from it in the attention alone, by metric.

    Both were evaluated on the same held-out sequences and masks, so that the difference is paired; its error is taken
    over sequences and says nothing about other seeds.

    Raises:
        ValueError: the runs were evaluated on different masked tokens.
    """
    rows = []
    parameters = runs.columns[: runs.columns.get_loc("metric.mlm_loss")]
    where = (*ATTENTION, *FORM, "run", "folder", "output_dir", "cache_dir", "resume")
    for _, of_kind in runs.groupby([name for name in parameters if name not in where], dropna=False, sort=False):
        is_softmax = of_kind["attention"] == "softmax"
        pairs = product(of_kind[~is_softmax].to_dict("records"), of_kind[is_softmax].to_dict("records"))
        for other, one in pairs:
            before, after = (pd.read_csv(Path(row["folder"]) / "held-out.csv") for row in (one, other))
            if not before["tokens"].equals(after["tokens"]):
                raise ValueError(f"{other['run']} and {one['run']} were evaluated on different masked tokens")
            for metric, column in (("mlm_loss", "lost"), ("mlm_accuracy", "found"), ("sop_accuracy", "order")):
                weights = before["tokens"] if column != "order" else pd.Series(1.0, before.index)
                found = paired_ratio(before[column], after[column], weights)
                row = {"from": one["run"], "to": other["run"], "metric": metric, "difference": found.mean}
                rows.append(row | {"standard_error": found.standard_error, "sequences": found.pairs})
    return pd.DataFrame(rows)


def settings_table() -> pd.DataFrame:
    """The settings of `lsh` that spend a share of the pairs, by length and share; empty where a budget is too small.

    Shares of the length: keys that all see, keys of chosen clusters. `cost` is that of everything, as a share of full
    attention's, with heads of HEAD_DIM.
    """
    rows: list[dict[str, Any]] = []
    for length in (2**k for k in range(5, 15)):
        for share in (0.5, 0.25, 0.125, 0.0625):
            rows.append({"attention": "lsh", "length": length, "share": share})
            try:
                settings = attention.settings_for("lsh", length, share)
            except ValueError:
                continue
            everybodys, size, chosen = (settings[k] for k in ("global_tokens", "cluster_size", "n_hashes"))
            rows[-1] |= {"global_tokens": everybodys, "cluster_size": size, "n_hashes": chosen}
            rows[-1] |= {"of_all": everybodys / length, "of_clusters": chosen * size / length}
            rows[-1] |= {"cost": attention.cost("lsh", length, HEAD_DIM, **settings)}
    return pd.DataFrame(rows).astype({name: "Int64" for name in ("global_tokens", "cluster_size", "n_hashes")})


def write_tables(*studies: str, root: str | Path | None = None) -> list[Path]:
    """Write results/tables/<study>-<name>.csv of each study, the names being those of `study_tables`,
    and once what all have in common: results/tables/{settings,pretraining,pretraining-gaps}.csv.

    Returns the paths written. A table without rows (no neighbouring arms, nothing published) is not written, and an
    older one is deleted. A warning names the runs of a study that are not made yet.

    Raises:
        ValueError: some of the switched models, or of the readings, have no table; nothing is written.
    """
    root = Path(root) if root else repository_root()
    tables: dict[str, pd.DataFrame] = {}
    for study in studies:
        tables |= {f"{study}-{name}": table for name, table in study_tables(study, root).items()}
    written = []
    for name, table in (tables | common_tables(root)).items():
        path = root / "results" / "tables" / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)
            continue
        write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
        written.append(path)
    return written


def study_tables(study: str, root: Path) -> dict[str, pd.DataFrame]:
    """A study's own tables, by name."""
    runs = load_runs(root / "results" / "runs", study)
    plan, missing = planned(study, root, f"{study}/*/*/*/seed-*/result.json")
    if missing:
        made = f"{len(plan) - len(missing)} of the {len(plan)} runs"
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        warnings.warn(f"{study}: {made} of the study are made; missing: {', '.join(missing[:3])}{more}", stacklevel=3)
    variants, held_out = (load_switched(study, root, split) for split in ("validation", "held-out"))
    switched = variants if variants.empty else switched_table(variants)
    found = differences(runs)
    return {
        "runs": runs.drop(columns=["folder", "study"]),
        "scores": with_variety(with_bag_of_words(score_table(runs), root), runs),
        "changes": changes(runs) if found.empty else pd.DataFrame(),
        "differences": found,
        "published": beside_published(runs, load_published(carried("studies/published.csv", root))),
        "variants": variants if variants.empty else variants.drop(columns="folder"),
        "switched": switched,
        "predictors": switched if switched.empty else predictors(switched),
        "held-out": held_out if held_out.empty else switched_table(held_out),
        "reading": load_reading(study, root),
        "shuffled": word_order(runs, load_words(root, study)),
    }


def with_bag_of_words(scores: pd.DataFrame, root: Path) -> pd.DataFrame:
    """The scores with a column `bag_of_words`: its headline on the same examples, where it was measured."""
    found = scores["task"].map(load_bag_of_words(root))
    if "examples.held-out" in scores:
        found = found.where(scores["examples.held-out"].isna())
    return scores if found.isna().all() else scores.assign(bag_of_words=found)


def common_tables(root: Path) -> dict[str, pd.DataFrame]:
    """Tables that belong to no study, by name."""
    found = {"settings": settings_table(), "calibration": calibration()}
    pretraining = load_pretraining(root / "results" / "pretraining")
    if pretraining.empty:
        return found
    gaps = pretraining_gaps(pretraining)
    return found | {"pretraining": pretraining.drop(columns="folder"), "pretraining-gaps": gaps}
