"""Tables of a study: every run, the scores of its arms, what each change costs, and the published counterparts.

    runs = load_runs(study="minilm")     one row a run, from results/runs/<study>/<task>/<model>/<arm>/seed-<n>/
    score_table(runs)                    one row a task, model and arm
    changes(runs)                        one row a pair of neighbouring arms and metric
    beside_published(runs, published)    ours beside studies/published.csv
    write_tables("minilm")               all of them, as results/tables/minilm-*.csv

Scores are as the run records have them: GLUE from 0 to 1, SQuAD from 0 to 100.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh import attention
from albert_lsh.tasks.table import TASKS
from albert_lsh.training.files import repository_root, write_atomically
from albert_lsh.training.record import read_result
from albert_study.evidence.pretraining import gaps, load_pretraining
from albert_study.evidence.rounding import rounded
from albert_study.evidence.switched import check_complete, load_switched, planned, predictors, switched_table
from albert_study.runner import load_readings

# Neighbouring arms: from, to, and what lies between them.
CHANGES = (
    ("softmax", "reformer", "all three changes at once"),
    ("softmax", "shared-qk", "tying queries and keys"),
    ("shared-qk", "shared-qk-lsh", "hashing on top of tying"),
    ("shared-qk-lsh", "reformer", "new projections"),
    ("shared-qk", "reformer", "new projections, and what hashing there is"),
    ("softmax", "lsh", "hashing alone"),
    ("lsh", "window", "the nearest keys instead of hashed ones"),
    ("lsh", "random", "random keys instead of hashed ones"),
    ("nano-random", "nano", "pretraining"),
    ("nano-lsh-random", "nano-lsh", "pretraining, with hashing"),
)
ARM = ["task", "model", "arm"]  # what is averaged over seeds
COSTS = ["attended_share", "attention_mass", "train_seconds", "examples_per_second", "peak_memory_bytes"]
SETTINGS = ["max_length", "batch_size", "learning_rate", "epochs", "precision", "attention_settings"]
PUBLISHED = ["source", "model", "task", "arm", "metric", "value", "note"]


def load_runs(folder: str | Path | None = None, study: str | None = None) -> pd.DataFrame:
    """Every complete run below `folder` (results/runs of the checkout), one row each, sorted by task, arm and seed.

    Columns: study, arm, folder, the run's parameters, its headline (name) and score, metric.<name>, majority.<name>,
    chance.<name>, what it attended and cost, version.<package>, and the rest of its environment.

    Raises:
        ValueError: a result.json that is damaged or incomplete (the message names it), or no run at all.
    """
    folder = Path(folder) if folder else repository_root() / "results" / "runs"
    found = sorted(folder.glob(f"{study or '*'}/*/*/*/seed-*/result.json"))
    if not found:
        raise ValueError(f"no result.json below {folder / (study or '')}: no run of this study is complete yet")
    runs = pd.DataFrame([read_run(path) for path in found])
    keys = runs[["study", "task", "model", "attention", "arm", "seed"]].copy()
    for name, known in (("task", list(TASKS)), ("attention", attention.names())):
        keys[name] = keys[name].map({value: rank for rank, value in enumerate(known)})
    return runs.loc[keys.sort_values(list(keys.columns)).index].reset_index(drop=True)


def read_run(path: Path) -> dict[str, Any]:
    """One run's result.json as a flat row; ValueError naming the file and what is wrong with it."""
    record = read_result(path)
    hint = "delete it, and the run will be made again"
    try:
        row = {
            "study": path.parents[4].name if len(path.parents) > 4 else "",
            "arm": path.parents[1].name,
            "folder": path.parent,
        }
        row |= record["parameters"]
        row |= {"headline": record["headline"]["name"], "score": float(record["headline"]["value"])}
        for kind, values in (("metric", record["metrics"]), *((k, record[k]) for k in ("majority", "chance"))):
            row |= {f"{kind}.{name}": float(value) for name, value in values.items()}
            if {"accuracy", "f1"} <= set(values):  # the original reports MRPC so
                row[f"{kind}.accuracy_f1_mean"] = (values["accuracy"] + values["f1"]) / 2
        row |= {name: float(record[name]) for name in COSTS}
        row |= {f"examples.{split}": n for split, n in record.get("examples", {}).items()}
        row |= {f"version.{name}": version for name, version in record["environment"]["packages"].items()}
        row |= {name: record["environment"][name] for name in ("python", "commit", "date")}
        row["commit"] = row["commit"] or "unknown"  # outside a checkout there is none
        row["processor"] = record["environment"]["device"]
        for name in ("task", "model", "attention", "seed", *SETTINGS):
            _ = row[name]
    except KeyError as error:
        raise ValueError(f"{path} is damaged (no {error.args[0]!r}); {hint}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); {hint}") from error
    return row


def load_history(folder: str | Path) -> pd.DataFrame:
    """history.csv of a run's folder: step, epoch, train_loss, eval_loss, ... with NaN where a row has none."""
    path = Path(folder) / "history.csv"
    try:
        history = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    missing = {"step", "epoch", "train_loss", "eval_loss"} - set(history)
    if missing:
        raise ValueError(f"{path} is damaged: it has no column {', '.join(sorted(missing))}")
    return history


def score_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Per task, model and arm: mean and standard deviation over seeds, baselines, means of all metrics and costs.

    `sd` is the sample standard deviation, NaN with one seed. Settings and commits that differ between the seeds of an
    arm are listed side by side.
    """
    return pd.DataFrame([_score_row(arm) for _, arm in runs.groupby(ARM, sort=False)])


def _score_row(arm: pd.DataFrame) -> dict[str, Any]:
    first = arm.iloc[0]
    headline = first["headline"]
    row = {name: first[name] for name in [*ARM, "attention", "headline"]}
    row |= {"score": arm["score"].mean(), "sd": arm["score"].std(ddof=1), "seeds": len(arm)}
    row |= {kind: _mean(arm, f"{kind}.{headline}") for kind in ("majority", "chance")}
    row |= {name: arm[name].mean() for name in COSTS}
    row |= {name: "; ".join(dict.fromkeys(map(str, arm[name]))) for name in [*SETTINGS, "commit"]}
    row |= {str(name): value for name, value in first.items() if str(name).startswith("examples.")}
    row["processor"] = first["processor"]
    for metric in _metrics(arm):
        row |= {metric: arm[f"metric.{metric}"].mean(), f"sd.{metric}": arm[f"metric.{metric}"].std(ddof=1)}
        row |= {f"{kind}.{metric}": _mean(arm, f"{kind}.{metric}") for kind in ("majority", "chance")}
    return row


def _mean(runs: pd.DataFrame, column: str) -> float:
    """The mean of a column, NaN without it."""
    return runs[column].mean() if column in runs else float("nan")


def _metrics(runs: pd.DataFrame) -> Iterator[str]:
    """The metrics that these runs have."""
    for column in runs:
        if str(column).startswith("metric.") and runs[column].notna().any():
            yield str(column).removeprefix("metric.")


def scale_of(task: str) -> tuple[int, int]:
    """The best score of a task, and how many decimals of its scores mean something."""
    return (100, 1) if task in TASKS and TASKS[task].is_squad else (1, 3)


def pivot(scores: pd.DataFrame) -> pd.DataFrame:
    """A score table for reading: arms down, tasks across, "mean ± sd (seeds)", and the two baselines below.

    Where an arm has several models there is a row for each arm and model.
    """
    table: dict[str, dict[str, str]] = {}
    several = (scores.groupby("arm")["model"].nunique() > 1).any()
    for row in scores.to_dict("records"):
        task, arm = row["task"], row["arm"]
        digits = scale_of(task)[1]
        number = {k: rounded(row[k], digits) for k in ("score", "sd", "majority", "chance") if pd.notna(row[k])}
        column = table.setdefault(f"{task} ({row['headline']})", {})
        sd = f" ± {number['sd']}" if "sd" in number else ""
        column[f"{arm}, {row['model']}" if several else arm] = f"{number['score']}{sd} ({row['seeds']})"
        column |= {"majority class": number.get("majority", ""), "chance": number.get("chance", "")}
    read = pd.DataFrame(table)
    baselines = ["majority class", "chance"]
    return read.loc[[*(arm for arm in read.index if arm not in baselines), *baselines]].fillna("")


def changes(runs: pd.DataFrame) -> pd.DataFrame:
    """What lies between neighbouring arms, per task, model and metric, paired by seed.

    Only seeds that both arms have count; `standard_error` is that of the mean difference, NaN with one such seed.
    The attended shares say whether anything was hashed at all.
    """
    rows = []
    for (task, model), group in runs.groupby(["task", "model"], sort=False):
        arms = {arm: rows_of.set_index("seed") for arm, rows_of in group.groupby("arm")}
        for before, after, what in (c for c in CHANGES if c[0] in arms and c[1] in arms):
            for metric in _metrics(group):
                a, b = (arms[arm][f"metric.{metric}"] for arm in (before, after))
                difference = (b - a).dropna()
                row = {"task": task, "model": model, "change": what, "from": before, "to": after, "metric": metric}
                row |= {"headline": metric == group["headline"].iloc[0], "difference": difference.mean()}
                row |= {"standard_error": difference.sem(ddof=1), "seeds": len(difference)}
                shares = [arms[arm].loc[difference.index, "attended_share"].mean() for arm in (before, after)]
                rows.append(row | dict(zip(("attended_from", "attended_to"), shares, strict=True)))
    table = pd.DataFrame(rows)
    return table[table["seeds"] > 0].reset_index(drop=True) if rows else table


def beside_published(runs: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Ours beside the published scores of the same task, arm and metric; empty where there is none.

    The published model may be another one: both are named.
    """
    long = [
        {**dict(zip(ARM, key, strict=True)), "metric": metric, "ours": arm[f"metric.{metric}"].mean()}
        | {"sd": arm[f"metric.{metric}"].std(ddof=1), "seeds": len(arm)}
        | {kind: _mean(arm, f"{kind}.{metric}") for kind in ("majority", "chance")}
        for key, arm in runs.groupby(ARM, sort=False)
        for metric in _metrics(arm)
    ]
    theirs = published.rename(columns={"value": "published", "model": "published_model"})
    return pd.DataFrame(long).merge(theirs, on=["task", "arm", "metric"], how="inner")


def load_published(path: str | Path | None = None) -> pd.DataFrame:
    """studies/published.csv; ValueError naming it if a column is missing or a value is no number."""
    path = Path(path) if path else repository_root() / "studies" / "published.csv"
    table = pd.read_csv(path, keep_default_na=False, dtype={name: str for name in PUBLISHED})
    if list(table) != PUBLISHED:
        raise ValueError(f"{path} must have the columns {', '.join(PUBLISHED)}; it has {', '.join(map(str, table))}")
    try:
        return table.assign(value=table["value"].astype(float))
    except ValueError as error:
        raise ValueError(f"{path}: a value is no number ({error})") from error


def settings_table() -> pd.DataFrame:
    """What `attention.settings_for` gives, by attention, length and share; empty where a budget is too small.

    Shares of the length: keys that all see, keys of chosen clusters, mean keys attended to; and mean keys compared with
    to choose (one for each block of queries), which no budget counts.
    """
    rows: list[dict[str, Any]] = []
    for label, fixed in (("lsh", {"far_field": False}), ("lsh, far field", {"far_field": True})):
        for length in (2**k for k in range(5, 15)):
            for share in (0.5, 0.25, 0.125, 0.0625):
                row = {"attention": label, "length": length, "share": share}
                try:
                    settings = attention.settings_for("lsh", length, share, **fixed)
                except ValueError:
                    rows.append(row)
                    continue
                everybodys, size, chosen = (settings[k] for k in ("global_tokens", "cluster_size", "n_hashes"))
                clusters, block = -(-(length - everybodys) // size), settings.get("block_size", 1)
                row |= {"global_tokens": everybodys, "cluster_size": size, "n_hashes": chosen, "block_size": block}
                row |= {"of_all": everybodys / length, "of_clusters": chosen * size / length}
                row |= {
                    "mean_keys": (clusters - chosen) / length if fixed["far_field"] else 0.0,
                    "compared": clusters / length / block,
                }
                rows.append(row)
    whole = ("global_tokens", "cluster_size", "n_hashes", "block_size")
    return pd.DataFrame(rows).astype({name: "Int64" for name in whole})


def write_tables(study: str, root: str | Path | None = None) -> list[Path]:
    """Write results/tables/<study>-{runs,scores,changes,published,switched,variants,predictors,held-out,reading}.csv
    and results/tables/{settings,pretraining,pretraining-gaps}.csv; returns the paths written.

    Tables without a row (no neighbouring arms, nothing published) are not written, and removed if they were. Runs that
    are not made yet are told of in a warning.

    Raises:
        ValueError: some of the models that were switched, or of the texts read, have no table; nothing is written.
    """
    root = Path(root) if root else repository_root()
    written = []
    for name, table in {**{f"{study}-{k}": v for k, v in study_tables(study, root).items()}, **common(root)}.items():
        path = root / "results" / "tables" / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)
            continue
        write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
        written.append(path)
    return written


def study_tables(study: str, root: Path) -> dict[str, pd.DataFrame]:
    """A study's own tables, by name."""
    runs, plan = load_runs(root / "results" / "runs", study), planned(study, root)
    if missing := [run.result for run in plan if not (root / run.result).exists()]:
        made = f"{len(plan) - len(missing)} of the {len(plan)} runs"
        warnings.warn(f"{study}: {made} of the study are made; missing: {', '.join(missing)}", stacklevel=3)
    tables = {
        "runs": runs.drop(columns=["folder", "study"]),
        "scores": score_table(runs),
        "changes": changes(runs),
        "published": beside_published(runs, load_published(root / "studies" / "published.csv")),
    }
    tables["variants"] = switched = load_switched(study, root)
    tables["switched"] = switched if switched.empty else switched_table(switched)
    tables["predictors"] = switched if switched.empty else predictors(tables["switched"])
    held_out = load_switched(study, root, "held-out")
    tables["held-out"] = held_out if held_out.empty else switched_table(held_out)
    folder = root / "results" / "runs" / study / "reading"
    readings = sorted(path for path in folder.glob("*.csv") if path.stem.isdigit())  # not what is half done
    if readings and plan:
        check_complete(f"{study}, reading", [root / path for path in load_readings(study, root)])
    tables["reading"] = pd.concat(map(pd.read_csv, readings)) if readings else pd.DataFrame()
    return tables


def common(root: Path) -> dict[str, pd.DataFrame]:
    """Tables that belong to no study, by name."""
    tables = {"settings": settings_table()}
    if not (pretraining := load_pretraining(root / "results" / "pretraining")).empty:
        tables |= {"pretraining": pretraining.drop(columns=["folder"]), "pretraining-gaps": gaps(pretraining)}
    return tables
