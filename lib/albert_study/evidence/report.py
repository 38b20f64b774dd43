"""Report, poster and summary: `python -m albert_study.evidence.report` compiles report/*.typ into report/*.pdf.

With the path of a PDF, <study>.pdf, it writes that study's own two pages there: scores, curves, differences. The .typ
files are text. What they show comes ready from here: tables as report/tables/<name>.csv (those of `readable`), and in
report/numbers.json the names of studies and figures, notes on the tables, and the numbers of the text that are in no
table. With these in place any Typst compiler does (`typst compile --root . report/report.typ`).
"""

import hashlib
import json
import os
import re
import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh.files import repository_root, write_atomically
from albert_study.carried import carried
from albert_study.evidence.differences import ARMS
from albert_study.evidence.formats import between, commits, form, scale_of
from albert_study.evidence.masked_words import load_masked_words
from albert_study.evidence.readable import figures_of, readable_tables, studies_of
from albert_study.evidence.records import load_details, load_measurements
from albert_study.evidence.tables import with_most_runs

DOCUMENTS = ("report", "poster", "summary")


def typographic(text: str) -> str:
    """The text with a minus in place of a hyphen before a number."""
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)


def inputs(root: Path, own: str | None = None) -> dict[str, str]:
    """The text of report/tables/*.csv and report/numbers.json, from what there is in results/ and figures/.

    own: a study whose tables and figures alone are shown.
    """
    tables, studies = readable_tables(root, own), [own] if own else studies_of(root)
    found = {
        f"report/tables/{name}.csv": typographic(table.rows.to_csv(index_label=str(table.rows.index.name or "")))
        for name, table in tables.items()
    }
    numbers = {
        "tables": {name: typographic(table.note) for name, table in tables.items()},
        "figures": [path.stem for path in figures_of(root, own)],
        "studies": [study_numbers(study, root) for study in studies],
        "compared": {study: compared(study, root) for study in studies},
        **({} if own else text_numbers(root)),
    }
    return found | {"report/numbers.json": typographic(json.dumps(numbers, ensure_ascii=False, indent=1))}


def fingerprint(root: Path, made: dict[str, str]) -> str:
    """Of all that the report is made of: its text, `inputs`, and the figures. The PDF has it among its keywords."""
    files = [
        *sorted(root.glob("report/*.typ")),
        root / "report" / "references.bib",
        *figures_of(root),
    ]
    return hashed([*(path.read_text(encoding="utf-8") for path in files), json.dumps(made, sort_keys=True)])


def hashed(texts: list[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def write_inputs(root: Path, own: str | None = None) -> str:
    """Write `inputs` where the .typ files read them; returns the fingerprint."""
    shutil.rmtree(root / "report" / "tables", ignore_errors=True)  # a table whose results are gone must not be shown
    made = inputs(root, own)
    for name, text in made.items():
        write_atomically(root / name, text)
    return fingerprint(root, made)


def study_numbers(study: str, root: Path) -> dict[str, Any]:
    """A study's name and tasks, how many seeds its arms have, and where it learnt nothing."""
    scores = load_measurements(f"{study}-scores", "tables", root)
    return {
        "name": study,
        "tasks": list(scores["task"].unique()),
        "baselines": {str(task): baselines(with_most_runs(rows)) for task, rows in scores.groupby("task", sort=False)},
        "seeds": between(scores["seeds"]) + (" seed" if scores["seeds"].max() == 1 else " seeds"),
        "not learnt": [
            f"{row['task']} with {row['arm']} ({study}: {form(row['score'], how)} against {form(row['majority'], how)})"
            for row in scores.to_dict("records")
            if row["score"] <= row["majority"] and (how := str(scale_of(row["task"])[1]))
        ],
    }


def baselines(row: pd.Series) -> dict[str, str]:
    """What a model without attention scores on a task, by name."""
    named = {"a bag of words": "bag_of_words", "always the same answer": "majority", "chance": "chance"}
    how = str(scale_of(row["task"])[1])
    return {name: form(row[column], how) for name, column in named.items() if pd.notna(row.get(column))}


def compared(study: str, root: Path) -> dict[str, dict[str, Any]]:
    """By task and "from → to" what a study's table of differences says, as the text quotes it."""
    found: dict[str, dict[str, Any]] = {}
    for row in load_measurements(f"{study}-differences", "tables", root).to_dict("records"):
        how = str(scale_of(row["task"])[1])
        shown = {name: form(row[name], how) for name in ("score_from", "score_to")}
        shown |= {name: form(row[name], f"+{how}") for name in ("difference", "low", "high")}
        shown |= {name: row[name] for name in ("seeds", "over", "examples")}
        shown |= {"cost": form(row.get("cost_to"), "%")}
        verdicts = {name: bool(row[name]) for name in ("clear", "not_inferior")}
        kept = form(row["score_to"] / row["score_from"], "%") if row["score_from"] > 0 else ""
        found.setdefault(row["task"], {})[f"{row['from']} → {row['to']}"] = shown | verdicts | {"kept": kept}
    return found


def longer(runs: pd.DataFrame, root: Path) -> dict[str, Any]:
    """An arm trained for many epochs as the text quotes it: means over its runs, of its score and of its losses at the
    first evaluation and at the last."""
    losses: dict[str, list[float]] = {}
    for folder in runs["output_dir"]:
        history = pd.read_csv(root / folder / "history.csv").dropna(subset=["eval_loss"])
        for (place, row), name in product({"first": 0, "last": -1}.items(), ("train", "eval")):
            losses.setdefault(f"{place} {name}", []).append(history.iloc[row][f"{name}_loss"])
    one = runs.iloc[0]
    shown = {"arm": one["arm"], "task": one["task"], "epochs": form(one["epochs"], "0"), "runs": len(runs)}
    score = form(runs["score"].mean(), str(scale_of(one["task"])[1]))
    return shown | {"score": score} | {name: form(sum(of) / len(of), "2") for name, of in losses.items()}


def reaching_half(runs: pd.DataFrame) -> dict[str, dict[str, str]]:
    """How many runs of each arm reach half of softmax's mean correlation, task by task: "2 of 3"."""
    found: dict[str, dict[str, str]] = {}
    for task, rows in runs[runs["headline"] == "pearson"].groupby("task", sort=False):
        enough = rows["score"] > rows["score"][rows["arm"] == "softmax"].mean() / 2
        found[str(task)] = {str(arm): f"{of.sum()} of {len(of)}" for arm, of in enough.groupby(rows["arm"], sort=False)}
    return found


def kept(rows: pd.DataFrame) -> dict[str, Any]:
    """What each switched variant keeps, changes and costs at each share, task by task."""
    tasks = list(rows["task"].unique())
    return {
        f"{variant} {share:g}": [
            {name: form(row[name], "%") for name in ("kept", "kept_low", "kept_high", "changed", "cost")}
            | {"models": form(row["seeds"], "0")}
            for row in of.set_index("task").reindex(tasks).to_dict("records")
        ]
        for (variant, share), of in rows.groupby(["variant", "share_asked"], sort=False)
    } | {"tasks": tasks}


ENDS = (("least", "most"), ("no", "yes"))  # groups of examples that are set against each other


def where_answers_change(rows: pd.DataFrame) -> dict[str, Any]:
    """The arms that change no more answers than another softmax model does; those that lose in every group; and by
    feature those that change more answers, beyond what another softmax model changes, or lose more, in one group of
    examples than in its opposite.

    Two groups have no example in common: the half-widths of their intervals, squared, add up to that of the difference.
    """
    everywhere = rows[rows["feature"] == "all"].set_index("arm")
    same = everywhere.index[(everywhere["low"] <= 0) & (everywhere["high"] < 0.02)]
    below = (rows["gained_high"] < 0).groupby(rows["arm"], sort=False).all()
    found: dict[str, Any] = {"as much as two": list(same), "loses everywhere": list(below.index[below])}
    found |= {"more": [], "loses more": []}
    for feature, of_feature in rows.groupby("feature", sort=False):
        groups = {name: group.set_index("arm") for name, group in of_feature.groupby("group")}
        for one, other in (pair for ends in ENDS if set(ends) <= set(groups) for pair in (ends, ends[::-1])):
            for what, name, sign in (("more", "above", 1), ("loses more", "gained", -1)):
                low, high = ("low", "high") if name == "above" else (f"{name}_low", f"{name}_high")
                halves = [(groups[group][high] - groups[group][low]) / 2 for group in (one, other)]
                told = sign * (groups[one][name] - groups[other][name]) > (halves[0] ** 2 + halves[1] ** 2) ** 0.5
                if arms := list(told.index[told]):
                    found[what] += [{"feature": feature, "where": one, "arms": arms}]
    return found


def text_numbers(root: Path) -> dict[str, Any]:
    """The numbers of the text that are in no table of the report."""
    numbers: dict[str, Any] = {"arms": ARMS}
    if len(rows := load_measurements("no-training-switched", "tables", root)):
        numbers["kept"] = kept(rows)
    if len(rows := load_measurements("bound", "efficiency", root)):
        speeds, times = rows[rows["gflops"].notna()], rows[rows["seconds"].notna()]
        names = speeds["what"] + speeds["queries"].map(lambda q: f", {q:.0f} queries" if pd.notna(q) else "")
        numbers["bound"] = dict(zip(names, (form(v, "0") for v in speeds["gflops"]), strict=True))
        names = times["what"] + ", " + times["allocator"]
        numbers["bound"] |= dict(zip(names, (form(v, "2") for v in times["seconds"]), strict=True))
        numbers["bound"]["commit"] = commits(rows)
    if len(rows := load_measurements("more-training-runs", "tables", root)):
        arms = rows.groupby(["task", "arm"], sort=False)
        numbers["more training"] = [longer(runs, root) for _, runs in arms]
    trained = pd.concat([pd.DataFrame(), *(load_measurements(f"{s}-runs", "tables", root) for s in studies_of(root))])
    if len(trained):
        numbers["trained"] = {"runs": len(trained), "hours": form(trained["train_seconds"].sum() / 3600, "0")}
    if len(rows := load_measurements("albert-runs", "tables", root)):
        numbers["reaching half"] = reaching_half(rows)
    if len(rows := load_masked_words(root)):
        losses = rows.groupby("length")["softmax_loss"].first().map(lambda loss: form(loss, "1"))
        numbers["masked words"] = {str(length): loss for length, loss in losses.items()}
    if tables := load_details(root):
        numbers["details"] = {name: where_answers_change(rows) for name, rows in tables.items()}
    if len(rows := load_measurements("time-cpu-fp32", "efficiency", root)):
        lengths = rows.sort_values("length").groupby("device", sort=False)["length"].unique()
        numbers["devices"] = "; ".join(f"{on}: {', '.join(map(str, of))} tokens" for on, of in lengths.items())
    if len(rows := load_measurements("pretraining", "tables", root)):
        new = rows[rows["start"].isna()]
        numbers["pretraining"] = {
            "masked": " or ".join(form(share, "%") for share in new["masked_share"].unique()),
            "tokens": " or ".join(form(tokens / 1e6, "1") for tokens in new["tokens"].unique()),
        }
    return numbers


def build(root: str | Path | None = None, output: str | None = None) -> list[Path]:
    """Compile report, poster and summary; returns where they are.

    output: <study>.pdf, below the root: the pages of that study alone, from its tables and figures.
    """
    import typst  # only here: the library does without the "study" extra

    root = Path(root) if root else repository_root()
    for name in (*(f"report/{name}.typ" for name in ("shared", "study", *DOCUMENTS)), "report/references.bib"):
        if not (root / name).exists():
            write_atomically(root / name, carried(name).read_text(encoding="utf-8"))
    own = Path(output).stem if output else None
    made_of = {"fingerprint": write_inputs(root, own)}
    wanted = {root / output: "study"} if output else {root / f"report/{name}.pdf": name for name in DOCUMENTS}
    for path, name in wanted.items():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial.pdf")
        typst.compile(str(root / f"report/{name}.typ"), output=str(partial), root=str(root), sys_inputs=made_of)
        os.replace(partial, path)
    return list(wanted)


if __name__ == "__main__":
    print(*build(None, *sys.argv[1:2]), sep="\n")
