"""results/** as one tidy table, a row a number; every table, figure and page starts from it.

    load(root, "minilm")      the rows of a study; without a study all that the paper stands on
    wide(rows)                a line for each thing measured, a column for each measure
    read_run(path)            the rows of one result.json
    read(root, name)          a table of numbers that an experiment has written

Columns; empty where they do not apply:

    study, kind         "fine-tuned", "pretrained", "long sequences" (of a result.json, see KINDS), or one of PROBES
    task, model, arm    BASELINES are arms too: what can be had without attention, on the same examples
    attention, variant  the attention trained with; what was put in its place (pretraining: the model begun with)
    seed, split         split: of the data that were evaluated
    share               of the pairs of tokens that an attention was asked for
    length              tokens, at most
    learning_rate, batch_size, epochs, precision
    examples            how many were evaluated
    measure, value      a metric (GLUE from 0 to 1, SQuAD from 0 to 100), seconds, bytes, a number among the parameters
    is_headline         whether the measure stands for the task of a fine-tuned run
    low, high           the ends of an interval of the value, where the file has one
    pairs, cost         pairs attended, and multiply-adds of everything, as shares of softmax attention's
    device, commit      what measured it
    record              the file that says so, below the root
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pandas as pd

from albert_lsh import attention
from albert_lsh.files import OneLineError, repository_root
from albert_lsh.record import RETIRED, SCHEMA, read_result, renamed, todays_method
from albert_lsh.run import Settings
from albert_lsh.tasks import TASKS
from albert_study.names import name_of_size
from albert_study.study import StudyFile, find_file, load_jobs

COLUMNS = [
    "study", "kind", "task", "model", "arm", "attention", "variant", "seed", "split", "share", "length",
    "learning_rate", "batch_size", "epochs", "precision", "examples", "measure", "value", "is_headline", "low", "high",
    "pairs", "cost", "device", "commit", "record",
]  # fmt: skip
VALUES = ["measure", "value", "is_headline", "low", "high"]
LIST = "results/records.txt"  # what tables, figures and documents stand on: folders of runs, and measured tables
COSTS = "results/costs.csv"  # full costs that were counted again (benchmarks/costs.py)
FIRST = ("albert", "minilm", "original", "original-readme")  # studies: the questions asked first
KINDS = {"runs": "fine-tuned", "pretraining": "pretrained", "long_range": "long sequences"}  # by folder of results/
BASELINES = {"majority": "majority class", "chance": "chance", "counting": "counting, or a coin"}
NUMBERS = (
    "eval_loss", "attention_mass", "train_seconds", "examples_per_second", "tokens_per_second", "peak_memory_bytes",
)  # fmt: skip
PARAMETERS = ("folds", "eval_examples", "held_out_examples", "steps", "masked_share")
LABELS = ("variant", "case", "what")  # columns that say what a row of a measured table is of
MADE_AGAIN = ("tables/", "long_range/")  # tables that are made of records, and so have today's names
ASKED = {"share_asked": "share", "share": "pairs"}
MEASURED = {"case": "variant", "pass": "split", "kind": "split"}
PROBES: tuple[tuple[str, str, dict[str, str]], ...] = (
    # other tables: their kind, the files below results/, and how their columns are called here
    ("switched", "runs/*/*/*/*/seed-*/fidelity-*.csv", ASKED),
    ("switched", "no-training-second/*.csv", ASKED),
    ("reading", "runs/*/reading/*[0-9].csv", ASKED | {"hash_seed": "seed", "paragraphs": "examples"}),
    ("masked words", "runs/*/[0-9]*[0-9].csv", ASKED),
    ("bag of words", "runs/bag-of-words/*.csv", {}),
    ("bag of words", "runs/*/words*.csv", {}),
    ("efficiency", "efficiency/*-cpu-*.csv", MEASURED),
)
PUBLISHED = ["source", "model", "task", "arm", "metric", "value", "note"]
Row = dict[str, Any]


class Shown(Settings):
    """The parameters of results.ipynb."""

    notebook: ClassVar[str] = "results.ipynb"
    study: str


def load(root: str | Path | None = None, study: str | None = None) -> pd.DataFrame:
    """The tidy table of what lies below `root` (the checkout): of one study, or of all that is on LIST.

    Runs come in the order of tasks, models and attentions, plain arms first.

    Raises:
        ValueError: a record that is damaged or incomplete (the message names it), or a study without any.
    """
    root = Path(root or repository_root())
    paths = record_paths(root, study)
    if study and not paths:
        studies = ", ".join(sorted({path.parts[-6] for path in (root / "results/runs").glob("*/*/*/*/*/result.json")}))
        raise OneLineError(
            f"no result.json below {root / 'results/runs' / study}; studies that have runs here: {studies or 'none'}; "
            f"`make study STUDY={study}` makes all of a study's, glue.ipynb one run of study 'notebook'"
        )
    runs = [rows_of(path, root) for path in paths]
    rank = {name: f"{number:04}" for number, name in enumerate([*TASKS, *attention.names()])}

    def place(run: list[Row]) -> tuple[str, ...]:
        first = run[0]
        task, attention, arm = (rank.get(first[name], "9999") + first[name] for name in ("task", "attention", "arm"))
        return first["study"], task, first["model"], attention, arm, f"{first['seed']:12}"

    rows = [row for run in sorted(runs, key=place) for row in run]
    is_own = bool(paths) and not listed(root, paths)
    probes = [table for probe in PROBES for table in read_probes(root, *probe, is_own, study)]
    return pd.concat([pd.DataFrame(rows, columns=COLUMNS), *probes], ignore_index=True)


def record_paths(root: Path, study: str | None = None) -> list[Path]:
    """Every result.json below results/ that LIST names; all of them where it names none.

    What is committed stands on the list, whatever else lies in results/: a reader's own runs do not enter it, and are
    shown where nothing else is asked for. A line says how many were left out.
    """
    patterns = [f"runs/{study or '*'}/*/*/*/seed-*", *([] if study else ["pretraining/**", "long_range/*/*/seed-*"])]
    paths = [path for pattern in patterns for path in sorted((root / "results").glob(f"{pattern}/result.json"))]
    chosen = listed(root, paths)
    if chosen and (more := len(paths) - len(chosen)):
        print(f"{more} run{'s' if more > 1 else ''} not named in {LIST}: left out")
    return chosen or paths


def listed(root: Path, paths: list[Path]) -> list[Path]:
    """Those of these files, or of whose folders, LIST names; all where there is no list."""
    if not (root / LIST).exists():
        return paths
    names = {root / name for name in (root / LIST).read_text(encoding="utf-8").split()}
    return [path for path in paths if names & {path, path.parent}]


def list_studies(root: Path) -> pd.DataFrame:
    """The studies that have complete runs below `root`: how many, of which tasks and models, and how many on LIST.

    A study of none on LIST is a reader's own, as all are where LIST names none.
    """
    paths, shown = (root / "results").glob("runs/*/*/*/*/seed-*/result.json"), set(record_paths(root))
    runs = [(*path.parts[-6:-1], path in shown) for path in sorted(paths)]
    table = pd.DataFrame(runs, columns=["study", "task", "model", "arm", "seed", "listed"])
    names = {f"{name}s": (name, lambda values: ", ".join(values.unique())) for name in ("task", "model")}
    return table.groupby("study").agg(runs=("seed", "size"), listed=("listed", "sum"), **names)


def studies_of(root: Path) -> list[str]:
    """The studies on LIST: the questions asked first, then the others, the embedded one last."""
    studies = list_studies(root).query("listed > 0").index
    return sorted(studies, key=lambda study: (FIRST.index(study) if study in FIRST else len(FIRST), study == "mini"))


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged record into one that names its file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OneLineError(f"{path} is damaged ({error!r}); look at it; moved away, its run is made again") from error


def read_run(path: str | Path, root: str | Path | None = None) -> pd.DataFrame:
    """The rows of one result.json; ValueError names the file and what is wrong with it."""
    return pd.DataFrame(rows_of(Path(path), Path(root or repository_root())), columns=COLUMNS)


def rows_of(path: Path, root: Path) -> list[Row]:
    """The rows of one result.json."""
    place = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    kind = next((kind for folder, kind in KINDS.items() if place.startswith(f"results/{folder}/")), "fine-tuned")
    with damage_named(path):
        run, where = (result := read_result(path))["parameters"], result["environment"]
        if kind == "pretrained":
            counts = {"held-out": result["sequences"]["held_out"]}
            size = name_of_size(run.get("kind", "albert"), run["size"])
            names = ("pretraining", "masked tokens", size, "/".join(path.relative_to(root).parts[2:-1]))
        elif kind == "long sequences":
            counts, names = result["examples"], ("long_range", path.parents[2].name, "small, new", run["label"])
        else:
            study = path.parents[4].name if len(path.parents) > 4 else ""
            counts, names = result["examples"], (study, run["task"], run["model"], path.parents[1].name)
        split, settings = next(name for name in counts if name != "train"), run["attention_settings"]
        about: Row = {**dict(zip(("study", "task", "model", "arm"), names, strict=True)), "kind": kind}
        about |= {name: run[name] for name in ("seed", "learning_rate")}
        about["batch_size"] = run["batch_size"] * run.get("accumulation", 1)  # of a step
        about["attention"] = run["attention"]
        about |= {name: run.get(name) for name in ("epochs", "precision")}
        about |= {"variant": run.get("start"), "length": run["max_length"], "share": settings.get("share")}
        about |= {"split": split, "examples": counts[split], "device": where["device"], "record": place}
        cost = counted_again(root).get((place, "", ""), result.get("full_cost"))
        about |= {"pairs": result["attended_share"], "cost": cost}
        about |= {"commit": where["commit"] or "unknown"}  # outside a checkout there is no commit
        return [about | measure for measure in measures(result, path)]


def measures(result: Row, path: Path) -> Iterator[Row]:
    """What a record measures, and what differs for a row from the rest of its run."""
    intervals = result.get("intervals", {})
    headline = result["headline"]["name"] if "task" in result["parameters"] else ""
    baselines = {name: result[key] for key, name in BASELINES.items() if key in result}
    if "counting" in baselines or "tokens" in result:
        first = pd.read_csv(path.with_name("history.csv")).iloc[0]
        yield from ({"measure": name, "value": first[name], "split": "first weights"} for name in result["metrics"])
    for arm, scores in {"": result["metrics"], **baselines}.items():
        other = {"arm": arm, "attention": "", "pairs": None, "cost": None} if arm else {}
        if {"accuracy", "f1"} <= set(scores):  # the original reports MRPC so
            scores = scores | {"accuracy_f1_mean": (scores["accuracy"] + scores["f1"]) / 2}
        for name, value in scores.items():
            low, high = (None, None) if arm else intervals.get(name, (None, None))
            split = {"split": "shuffled"} if name.endswith("_shuffled") else {}
            name = name.removesuffix("_shuffled")
            number = {"measure": name, "value": float(value), "is_headline": name == headline}
            yield other | split | number | {"low": low, "high": high}
    numbers: Row = {name: result.get(name) for name in NUMBERS}
    numbers |= {name: result["parameters"].get(name) for name in PARAMETERS}
    numbers["train_examples"] = result.get("examples", {}).get("train")
    numbers["tokens"] = result.get("tokens", {}).get("trained")
    yield from ({"measure": name, "value": float(value)} for name, value in numbers.items() if value is not None)


def read_probes(
    root: Path, kind: str, pattern: str, names: dict[str, str], is_own: bool, only: str | None
) -> Iterator[pd.DataFrame]:
    """The tables of one of PROBES, those on LIST unless one's own are asked for: every column of numbers that is none
    of COLUMNS is a measure.

    only: one study's, beside the bags of words; None: all.
    """
    paths = sorted((root / "results").glob(pattern))
    for path in paths if is_own else listed(root, paths):
        if path.stem.endswith("-heads"):  # of the fidelity of single heads
            continue
        place = path.relative_to(root).parts
        of_run = place[1] == "runs"
        study = place[2] if of_run else place[1] if kind == "switched" else path.stem
        if only not in (None, study) and kind != "bag of words":
            continue
        table = read_measured(path, root).drop(columns="schema", errors="ignore").rename(columns=names)
        if table.empty:  # all of it was RETIRED's
            continue
        about: Row = {"kind": kind, "study": study, "record": "/".join(place)}
        if kind == "switched":
            table = table.rename(columns={"score": table["score_name"].iloc[0]})
            if of_run:
                about |= {"model": place[4], "arm": place[5], "split": path.stem.removeprefix("fidelity-")}
        elif kind == "bag of words":
            about |= {"arm": kind}
        elif kind == "efficiency":
            about |= {"attention": table["variant"].str.split(",").str[0]}
        table = table.assign(**about)
        numbers = [name for name in table.select_dtypes("number") if name not in (*COLUMNS, "threads", "repeats")]
        rows = table.melt([name for name in COLUMNS if name in table], numbers, "measure", "value")
        yield rows.dropna(subset="value").reindex(columns=COLUMNS)


def variant_file(label: str, share: float | None) -> str:
    """The name, without an ending, of the file with a switched model's answers."""
    return quote(label if share is None else f"{label} {share!r}", safe=" ,:()")


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each thing measured, a column for each measure; in the order of the rows."""
    names = [name for name in COLUMNS if name not in VALUES]
    line = rows.groupby(names, sort=False, dropna=False).ngroup()
    values = rows.assign(line=line).pivot(index="line", columns="measure", values="value")
    return rows[names].groupby(line).head(1).reset_index(drop=True).join(values.rename_axis(columns=None))


def load_history(folder: str | Path) -> pd.DataFrame:
    """history.csv of a run's folder: step, epoch, train_loss, eval_loss, ... with NaN where a row has none."""
    path = Path(folder) / "history.csv"
    with damage_named(path):
        history = pd.read_csv(path)
        _ = history[["step", "epoch", "train_loss", "eval_loss"]]
        return history


def read(root: Path, name: str) -> pd.DataFrame:
    """The table of numbers results/<name>.csv; empty if it is not there. `runs` are several: "0.8; 0.9"."""
    path = root / "results" / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame()
    return pd.read_csv(path, dtype={"runs": str}) if name.startswith(MADE_AGAIN) else read_measured(path, root)


def read_measured(path: Path, root: Path) -> pd.DataFrame:
    """A table that was measured, with the names and the costs that attentions have today, without rows of RETIRED."""
    table = pd.read_csv(path, dtype=dict.fromkeys(LABELS, str))
    if not {"attention", *LABELS} & {*table}:
        return table
    rows = [with_todays_name(row) for row in table.to_dict("records")]
    read = [row for row in rows if RETIRED not in {str(row.get(name)).split(",")[0] for name in ("attention", *LABELS)}]
    table = pd.DataFrame(read, columns=list(dict.fromkeys([*table, "schema"])))
    if {"cost", "variant", "share_asked"} <= {*table}:
        place, again = path.relative_to(root).as_posix(), counted_again(root)
        shares = ["" if pd.isna(share) else f"{share:g}" for share in table["share_asked"]]
        costs = zip(table["variant"], shares, table["cost"], strict=True)
        table["cost"] = [again.get((place, variant, share), cost) for variant, share, cost in costs]
    return table


@cache
def counted_again(root: Path) -> dict[tuple[str, ...], float]:
    """The costs of COSTS by record, variant and share, all as they stand there; a run has neither variant nor share."""
    if not (root / COSTS).exists():
        return {}
    table = pd.read_csv(root / COSTS, dtype=str, keep_default_na=False)
    return {
        tuple(key): float(cost) for *key, cost in table[["record", "variant", "share", "cost"]].itertuples(index=False)
    }


def with_todays_name(row: dict[Any, Any]) -> dict[Any, Any]:
    """A measured row with the name that its attention has today, in its label too.

    A row without `schema` is older than these names. If it also lacks the attention's name its label begins with it.
    """
    if pd.notna(row.get("schema")):
        return row
    named = {name: row[name] for name in ("attention", *LABELS) if isinstance(row.get(name), str)}
    old = named.get("attention") or re.split(r"(?![\w-])", next(iter(named.values()), ""))[0]
    settings = json.loads(row["settings"]) if isinstance(row.get("settings"), str) else {"axes": "attention" not in row}
    new, _ = todays_method(old, settings)
    return row | {name: renamed(label, old, new) for name, label in named.items()} | {"schema": SCHEMA}


def published(root: Path | None = None) -> pd.DataFrame:
    """studies/published.csv; ValueError naming it if a column is missing or a value is no number."""
    path = find_file("studies/published.csv", root)
    kinds: Any = dict.fromkeys(PUBLISHED, str) | {"value": float}
    with damage_named(path):
        return pd.read_csv(path, keep_default_na=False, usecols=PUBLISHED, dtype=kinds)


def added_later(name: str, root: Path | None = None) -> set[tuple[str, str, int]]:
    """Task, arm and seed of the runs of a study that came later; none where it has no file."""
    if not find_file(f"studies/{name}.yaml", root).is_file():
        return set()
    study = StudyFile(name, root).study
    arms = [(task, arm) for task, entry in study.tasks.items() for arm in entry.arms]
    return {(*place, seed) for place in arms for seed, is_later in study.seeds_of(*place).items() if is_later}


def say_missing(study: str, root: Path) -> None:
    """Say which results a study's file asks for that are not there yet. (A study may have no file.)"""
    if find_file(f"studies/{study}.yaml", root).is_file():
        paths = [path for job in load_jobs(study, root).values() for path in job.results]
        if missing := [path for path in paths if not (root / path).exists()]:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            here = f"{len(paths) - len(missing)} of the {len(paths)} results of the study are made"
            print(f"{study}: {here}; missing: {', '.join(missing[:3])}{more}")
