"""The rows of the page to explore, read from results/: one point each, with all that its reader can choose by.

`arm` is the line to which a point belongs and `look` whose colour it has; `share`, `tokens` or `step` is where it lies,
`value` how high, `low` and `high` the ends of its bar; `record` is the file that says so, `commit` what made it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from albert_study.evidence.looks import look_of
from albert_study.evidence.masked_words import load_masked_words
from albert_study.evidence.records import list_studies, load_history, load_measurements, load_reading, load_tables
from albert_study.evidence.study_figures import loss_name
from albert_study.evidence.tables import score_table, with_bag_of_words, with_most_runs

WIDEST = 80  # points of a curve
KEPT = "score kept"
SEEN = {"full_cost": "full cost", "attended_share": "pairs attended"}
QUANTITIES = {"time": ("seconds", "pass"), "memory": ("MiB", "kind"), "step": ("seconds", None)}  # by kind of table
TIMED_AS = {"reformer-pytorch": "reformer", "plain lsh": "plain-lsh"}  # attentions whose cases are called otherwise
Row = Mapping[Any, Any]
Rows = Iterator[dict[str, Any]]


def model_name(model: str) -> str:
    return str(model).split("/")[-1]


def fine_tuned(run: Row, root: Path) -> dict[str, Any]:
    """What every row of a fine-tuning run says of it."""
    return {
        "study": run["study"], "task": run["task"], "model": model_name(run["model"]), "arm": run["arm"],
        "look": look_of(run["arm"], run["attention"]), "length": run["max_length"],
        "asked": run["attention_settings"].get("share"), "hardware": run["processor"], "seed": run["seed"],
        "record": (run["folder"] / "result.json").relative_to(root).as_posix(), "commit": run["commit"][:10],
    }  # fmt: skip


def score_rows(runs: pd.DataFrame, root: Path) -> Rows:
    """Every run's score by cost and by pairs, the arms' intervals, and what can be had without any attention."""
    for run in runs.to_dict("records"):
        for column, across in SEEN.items():
            if pd.notna(run.get(column)):
                scored = {"metric": run["headline"], "value": run["score"], "share": run[column], "across": across}
                yield fine_tuned(run, root) | scored | {"kind": "run"}
    for study, of_study in runs.groupby("study", sort=False):
        scores = with_bag_of_words(score_table(of_study), root)
        scores["study"], scores["model"] = study, scores["model"].map(model_name)
        table = load_measurements(f"{study}-differences", "tables", root)
        apart = {(model_name(row["model"]), row["task"], row["to"]): row
                 for row in table.to_dict("records") if row["from"] == "softmax"}  # fmt: skip
        for row in scores.to_dict("records"):
            if found := apart.get((row["model"], row["task"], row["arm"])):
                interval = {name: row[name] for name in ("study", "task", "model", "arm")} | {"kind": "interval"}
                interval |= {"look": look_of(row["arm"], row["attention"]), "value": row["score"]}
                interval |= {end: row["score"] + found[end] - found["difference"] for end in ("low", "high")}
                yield from (interval | {"share": row.get(column), "across": name} for column, name in SEEN.items())
        for _, rows in scores.groupby(["task", "model"], sort=False):
            yield from baseline_rows(with_most_runs(rows))


def baseline_rows(scores: pd.Series) -> Rows:
    """A rule for each score that needs no attention; those with the same score have one."""
    names: dict[float, list[str]] = {}
    for column in ("bag_of_words", "majority", "chance"):
        if pd.notna(scores.get(column)):
            names.setdefault(scores[column], []).append(column.replace("_", " "))
    for value, of_value in names.items():
        about = {name: scores[name] for name in ("study", "task", "model")}
        yield about | {"value": value, "rule": ", ".join(of_value), "kind": "rule"}


def loss_rows(runs: pd.DataFrame, root: Path) -> Rows:
    """The loss of every run in training and evaluation; long curves are thinned evenly."""
    for run in runs.to_dict("records"):
        about = fine_tuned(run, root) | {"measure": f"loss ({loss_name(run['task'])})"}
        history = load_history(run["folder"])
        for column, curve in (("train_loss", "training"), ("eval_loss", "evaluation")):
            points = history[["step", column]].dropna()
            every = max(1, -(-len(points) // WIDEST))
            for step, value in zip(points["step"][::every], points[column][::every], strict=True):
                yield about | {"curve": curve, "step": step, "value": value}


def probed(row: Row, record: str) -> dict[str, Any]:
    """What every row of a switched attention says of it."""
    return {
        "task": row["task"], "model": model_name(row["model"]), "arm": row["variant"], "look": row["attention"],
        "length": row.get("length"), "asked": row["share_asked"], "hardware": row["device"], "seed": row.get("seed"),
        "record": record, "commit": row["commit"][:10],
    }  # fmt: skip


def switched_rows(root: Path) -> Rows:
    """Attention switched after training: what is kept of the score, and the error of the attention's output."""
    for study in list_studies(root).index:
        tables = load_tables("validation", study, root, "*/*/*/seed-*/fidelity-validation.csv")
        found = [(probed(row | {"model": path.parents[2].name}, path.relative_to(root).as_posix()), row)
                 for path, table in tables.items() for row in table.to_dict("records")]  # fmt: skip
        found += [(probed(row, f"results/runs/{study}/reading/{row['length']}.csv"), row)
                  for row in load_reading(study, root).to_dict("records")]  # fmt: skip
        for about, row in found:
            for column, measure in (("kept", KEPT), ("error", "error of the attention's output")):
                if pd.notna(row.get(column)):
                    yield about | {"measure": measure, "value": row[column], "share": row["share"]}


def masked_rows(root: Path) -> Rows:
    """A pretrained model on masked words under every attention, nothing trained; the longest texts first."""
    measures = {"loss above softmax's, nats": ("difference", "standard_error")}
    measures |= {"change of a word's loss either way, nats": ("change", "change_error")}
    for row in sorted(load_masked_words(root).to_dict("records"), key=lambda row: -row["length"]):
        about = probed(row, f"results/runs/masked-words/{row['length']}.csv") | {"share": row["cost"]}
        for measure, (column, error) in measures.items():
            ends = {"low": row[column] - 2 * row[error], "high": row[column] + 2 * row[error]}
            yield about | ends | {"measure": measure, "value": row[column]}


def efficiency_rows(root: Path) -> Rows:
    """Time and memory against the length, as a multiple of softmax's and as measured; training and fp32 first."""
    for kind, (unit, column) in QUANTITIES.items():
        found = (root / "results" / "efficiency").glob(f"{kind}-*-*.csv")
        for name in sorted((path.stem for path in found), key=lambda name: (not name.endswith("fp32"), name)):
            rows = load_measurements(name, "efficiency", root)
            rows["quantity"] = unit + ", " + (rows[column] if column else "training step")
            rows["measured"] = rows["bytes"] / 2**20 if unit == "MiB" else rows["seconds"]
            where = ["quantity", "length", "device"]
            softmax = rows.loc[rows["case"] == "softmax", [*where, "measured"]]
            rows = rows.merge(softmax, "left", where, suffixes=("", " by softmax"))
            rows["multiple"] = rows["measured"] / rows["measured by softmax"]
            for row in sorted(rows.to_dict("records"), key=lambda row: "backward" not in row["quantity"]):
                timed = row["case"].split(",")[0]
                about = {"arm": row["case"], "look": look_of(row["case"], TIMED_AS.get(timed, timed))}
                about |= {"quantity": row["quantity"], "precision": name.split("-", 2)[2], "tokens": row["length"]}
                about |= {"hardware": row["device"], "commit": row["commit"][:10]}
                about |= {"record": f"results/efficiency/{name}.csv"}
                for shown, value in (("multiple of softmax's", "multiple"), ("as measured", "measured")):
                    if pd.notna(row[value]):
                        yield about | {"shown": shown, "value": row[value]}
