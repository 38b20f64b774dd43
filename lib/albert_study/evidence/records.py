"""Reads the records of runs and other experiments; every table, figure and page starts from here.

    list_studies()                 the studies that have runs here
    load_runs(study="minilm")      fine-tuning: results/runs/<study>/<task>/<model>/<arm>/seed-<n>/result.json
    load_history(folder)           the curves of one run
    load_switched("fidelity")      models whose attention was switched: fidelity-<split>.csv in the runs' folders
    load_reading("fidelity")       a pretrained model that reads paragraphs: results/runs/<study>/reading/<length>.csv
    load_pretraining()             results/pretraining/**/result.json
    load_measurements("time-cpu-fp32", "efficiency")     results/<folder>/<name>.csv
    load_details(root)             results/runs/details/*.csv
    load_bag_of_words(root)        results/runs/bag-of-words/*.csv
    load_published()               studies/published.csv

Scores are as the records have them: GLUE from 0 to 1, SQuAD from 0 to 100.
"""

import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from albert_lsh import attention
from albert_lsh.errors import OneLineError
from albert_lsh.files import repository_root
from albert_lsh.record import read_result
from albert_lsh.run import Run, Settings
from albert_lsh.tasks import TASKS
from albert_study.carried import carried
from albert_study.study import load_jobs

COSTS = ("attended_share", "attention_mass", "full_cost", "train_seconds", "examples_per_second", "peak_memory_bytes")
SETTINGS = ("max_length", "batch_size", "learning_rate", "epochs", "precision", "attention_settings")
LIST = "results/records.txt"  # folders of the runs that tables, figures and documents stand on
HASHED = re.compile(r"-[0-9a-f]{6}$")  # of a notebook's run: what differs from the plain arm
PUBLISHED = ["source", "model", "task", "arm", "metric", "value", "note"]


class Shown(Settings):
    """The parameters of results.ipynb."""

    notebook: ClassVar[str] = "results.ipynb"
    study: str

    @property
    def root(self) -> Path:
        return Path(self.results_root or "")


def load_runs(folder: str | Path | None = None, study: str | None = None) -> pd.DataFrame:
    """Every complete run below `folder` (results/runs of the checkout), one row each, sorted by task, arm and seed.

    Columns: study, arm, folder, the run's parameters, its headline (name) and score, metric.<name>, majority.<name>,
    chance.<name>, COSTS as far as the records have them, version.<package>, and the rest of the environment.

    Raises:
        ValueError: a result.json that is damaged or incomplete (the message names it), or no run at all.
    """
    folder = Path(folder) if folder else repository_root() / "results" / "runs"
    found = listed_first(sorted(folder.glob(f"{study or '*'}/*/*/*/seed-*/result.json")), folder.parents[1])
    if not found:
        there = ", ".join(sorted({path.parents[4].name for path in folder.glob("*/*/*/*/seed-*/result.json")}))
        raise OneLineError(
            f"no result.json below {folder / (study or '')}; studies that have runs here: {there or 'none'}; "
            f"`make study STUDY={study or 'mini'}` makes all of a study's, glue.ipynb one run of study 'notebook'"
        )
    rank = {name: number for number, name in enumerate([*TASKS, *attention.names()])}
    places: dict[Any, Any] = {"task": rank.get, "attention": rank.get}
    places["arm"] = lambda arm: f"{rank.get(arm, len(rank)):04}{arm}"  # those that are an attention's plain arm first
    return name_arms(pd.DataFrame(map(read_run, found))).sort_values(
        ["study", "task", "model", "attention", "arm", "seed"],
        key=lambda column: column.map(places.get(column.name, lambda value: value)),
        ignore_index=True,
    )


def name_arms(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs, those of notebooks named by what varies among those of their task, model and attention.

    Their folders end in a hash: lsh-e17e51 and lsh-f62280 are "lsh, learning_rate=2e-5" and "lsh, learning_rate=5e-5".
    """
    names: dict[Any, str] = runs["arm"].to_dict()
    for _, alike in runs[runs["study"] == "notebook"].groupby(["task", "model", "attention"], sort=False):
        given = {number: decisive(run) for number, run in zip(alike.index, alike.to_dict("records"), strict=True)}
        varying = [name for name in next(iter(given.values())) if len({of[name] for of in given.values()}) > 1]
        for number, arm in alike["arm"].items():
            if varying and HASHED.search(str(arm)):
                told = [f"{name}={given[number][name]}" for name in varying]
                names[number] = ", ".join([str(alike["attention"].iloc[0]), *told])
    return runs.assign(arm=pd.Series(names))


def decisive(run: dict[Any, Any]) -> dict[str, str]:
    """The parameters of a run that may differ between arms of an attention, its settings among them, as texts."""
    settings = attention.recorded(run["attention"], run["attention_settings"])
    same = ("task", "model", "attention", "attention_settings", "seed", "device", *Run.where)
    values = {name: run.get(name) for name in Run.model_fields if name not in same} | settings
    return {name: f"{v:g}".replace("e-0", "e-") if isinstance(v, float) else str(v) for name, v in values.items()}


def listed_first(paths: list[Path], root: Path) -> list[Path]:
    """Of these result.json those that LIST names; all of them where it names none.

    What is committed stands on the list, whatever else lies in results/: a reader's own runs do not enter it, and are
    shown where nothing else is asked for. A warning says how many were left out.
    """
    if not (root / LIST).exists():
        return paths
    names = set((root / LIST).read_text(encoding="utf-8").split())
    chosen = [path for path in paths if path.parent.relative_to(root).as_posix() in names]
    if chosen and (more := len(paths) - len(chosen)):
        warnings.warn(f"{more} run{'s' if more > 1 else ''} not named in {LIST}: left out", stacklevel=3)
    return chosen or paths


def list_studies(root: Path) -> pd.DataFrame:
    """The studies that have complete runs below `root`: how many, of which tasks and models."""
    paths = sorted((root / "results" / "runs").glob("*/*/*/*/seed-*/result.json"))
    found = [path.parts[-6:-1] for path in listed_first(paths, root)]
    runs = pd.DataFrame(found, columns=["study", "task", "model", "arm", "seed"])
    listed = {f"{name}s": (name, lambda values: ", ".join(values.unique())) for name in ("task", "model")}
    return runs.groupby("study").agg(runs=("seed", "size"), **listed)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged record into one that names its file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OneLineError(f"{path} is damaged ({error!r}); look at it; moved away, its run is made again") from error


def read_run(path: Path) -> dict[str, Any]:
    """One fine-tuning run's result.json as a flat row; ValueError naming the file and what is wrong with it."""
    record = read_result(path)
    study = path.parents[4].name if len(path.parents) > 4 else ""
    with damage_named(path):
        row = {"study": study, "arm": path.parents[1].name, "folder": path.parent, **record["parameters"]}
        row |= {"headline": record["headline"]["name"], "score": float(record["headline"]["value"])}
        for kind, values in {"metric": record["metrics"], **{k: record[k] for k in ("majority", "chance")}}.items():
            row |= {f"{kind}.{name}": float(value) for name, value in values.items()}
            if {"accuracy", "f1"} <= set(values):  # the original reports MRPC so
                row[f"{kind}.accuracy_f1_mean"] = (values["accuracy"] + values["f1"]) / 2
        row |= {name: float(record[name]) for name in COSTS if name != "full_cost" or record.get(name) is not None}
        row |= {f"examples.{split}": n for split, n in record["examples"].items()}
        row |= {f"version.{name}": version for name, version in record["environment"]["packages"].items()}
        row |= {name: record["environment"][name] for name in ("python", "commit", "date")}
        row["commit"] = row["commit"] or "unknown"  # outside a checkout there is none
        row["processor"] = record["environment"]["device"]
        for name in ("task", "model", "attention", "seed", *SETTINGS):
            _ = row[name]
        return row


def load_history(folder: str | Path) -> pd.DataFrame:
    """history.csv of a run's folder: step, epoch, train_loss, eval_loss, ... with NaN where a row has none."""
    path = Path(folder) / "history.csv"
    with damage_named(path):
        history = pd.read_csv(path)
        _ = history[["step", "epoch", "train_loss", "eval_loss"]]
        return history


def planned(study: str, root: Path, pattern: str) -> tuple[list[str], list[str]]:
    """The files matching a pattern that the study's file asks for, and those of them that are missing.

    Both are empty for a study without a file, such as the runs that notebooks make on their own.
    """
    if not carried(f"studies/{study}.yaml", root).is_file():
        return [], []
    results = (path for job in load_jobs(study, root).values() for path in job.results)
    paths = [path for path in results if Path(path).match(pattern)]
    return paths, [path for path in paths if not (root / path).exists()]


def load_tables(what: str, study: str, root: Path, pattern: str) -> dict[Path, pd.DataFrame]:
    """The tables of a study that match a pattern, by path.

    Raises:
        ValueError: some are there and some that the study asks for are missing: a mean over a part would mislead.
    """
    found = sorted((root / "results" / "runs" / study).glob(pattern))
    paths, missing = planned(study, root, pattern) if found else ([], [])
    if missing:
        there = len(paths) - len(missing)
        raise OneLineError(
            f"{study}, {what}: {there} of {len(paths)} tables are there; missing: {', '.join(missing)}; "
            f"`make study STUDY={study}` makes them"
        )
    return {path: pd.read_csv(path) for path in found}


def load_switched(study: str, root: Path, split: str = "validation") -> pd.DataFrame:
    """A study's models under other attentions: one row a model and variant (see `fidelity.measure_all`).

    `share_asked` is the share of the pairs that a variant was given; `folder` holds the predictions. Empty if nothing
    was switched.
    """
    found = load_tables(split, study, root, f"*/*/*/seed-*/fidelity-{split}.csv")
    rows = [
        table.assign(model=path.parents[2].name, folder=str(path.with_name(f"{path.stem}-predictions")))
        for path, table in found.items()
    ]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()


def load_reading(study: str, root: Path) -> pd.DataFrame:
    """What attentions do to the output of a pretrained model that reads paragraphs: a row a length and variant."""
    found = load_tables("reading", study, root, "reading/*[0-9].csv")  # without <length>-layers.csv
    return pd.concat(found.values()) if found else pd.DataFrame()


def load_pretraining(folder: str | Path | None = None) -> pd.DataFrame:
    """Every finished run below `folder` (results/pretraining of the checkout), one row each; empty if there is none.

    Columns: run, folder, the parameters, metric.<name>, start.<name> (before the first step), counting.<name> (what
    counting pieces reaches), COSTS, tokens trained, tokens_per_second, and the environment.

    Raises:
        ValueError: a result.json that is damaged; the message names it.
    """
    folder = Path(folder) if folder else repository_root() / "results" / "pretraining"
    paths = listed_first(sorted(folder.rglob("result.json")), folder.parents[1])
    return pd.DataFrame([_read_pretraining(path, folder) for path in paths])


def _read_pretraining(path: Path, folder: Path) -> dict[str, Any]:
    with damage_named(path):
        record = json.loads(path.read_text(encoding="utf-8"))
        asked = {"first_weights": "counted"} | record["parameters"]  # older records do not say it
        environment = record["environment"]
        row = {"run": str(path.parent.relative_to(folder)), "folder": str(path.parent)}
        row |= {k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in asked.items()}
        start = pd.read_csv(path.with_name("history.csv")).iloc[0]
        for kind, values in (("metric", record["metrics"]), ("start", start), ("counting", record["counting"])):
            row |= {f"{kind}.{name}": values[name] for name in record["metrics"]}
        same = (*COSTS[:3], "parameters_of_model", "devices", "train_seconds", "tokens_per_second")
        row |= {name: record[name] for name in same if name in record} | {"tokens": record["tokens"]["trained"]}
        packages = " ".join(f"{name}=={number}" for name, number in environment["packages"].items())
        return row | environment | {"packages": packages}


def load_measurements(name: str, folder: str, root: Path) -> pd.DataFrame:
    """results/<folder>/<name>.csv; empty if it is not there."""
    path = root / "results" / folder / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()


def load_details(root: Path) -> dict[str, pd.DataFrame]:
    """By "<study>-<task>" the table of `details`; "all" has no group, a group of one example no interval."""
    found = sorted((root / "results" / "runs" / "details").glob("*.csv"))
    return {path.stem: pd.read_csv(path).fillna({"group": ""}) for path in found}


def load_bag_of_words(root: Path) -> dict[str, float]:
    """By task what counting words scores (`probe.bag_of_words`): the headline, from all tables of that study."""
    found = sorted((root / "results" / "runs" / "bag-of-words").glob("*.csv"))
    return {row["task"]: row["headline"] for path in found for row in pd.read_csv(path).to_dict("records")}


def load_published(path: str | Path | None = None) -> pd.DataFrame:
    """studies/published.csv; ValueError naming it if a column is missing or a value is no number."""
    path = Path(path) if path else carried("studies/published.csv")
    table = pd.read_csv(path, keep_default_na=False, dtype={name: str for name in PUBLISHED})
    if list(table) != PUBLISHED:
        raise ValueError(f"{path} must have the columns {', '.join(PUBLISHED)}; it has {', '.join(map(str, table))}")
    try:
        return table.assign(value=table["value"].astype(float))
    except ValueError as error:
        raise ValueError(f"{path}: a value is no number ({error})") from error
