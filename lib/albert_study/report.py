"""Report, poster and summary: `python -m albert_study.report` compiles report/*.typ into report/*.pdf.

With the path of a PDF, <study>.pdf, it writes that study's own pages there: scores, curves, differences. The .typ files
are text. Their tables and numbers come from report/texts.json, as texts: they are formatted here and nowhere else. With
that file in place any Typst compiler does (`typst compile --root . report/report.typ`).
"""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh.files import repository_root, write_atomically
from albert_study.compare import TESTED, headlines
from albert_study.names import ARMS, scale_of
from albert_study.records import list_studies, load, load_history, read, studies_of, wide
from albert_study.show import Line, fill, form, is_missing
from albert_study.study import find_file
from albert_study.tables import all_tables
from albert_study.tables.studies import one_by_one

DOCUMENTS = ("report", "poster", "summary")
MINUS = re.compile(r"(^|[^\w-])-(?=\d)")  # of a number


def figures_of(root: Path, study: str | None = None) -> list[Path]:
    """The figures of `studies_of` and those that studies share; or of one study."""
    paths = sorted(root.glob("figures/*.svg"))
    if study:
        return [path for path in paths if path.stem.startswith(f"{study}-")]
    others = tuple(f"{name}-" for name in list_studies(root).query("listed == 0").index)
    return [path for path in paths if not path.stem.startswith(others)]


def texts(root: Path, study: str | None = None) -> dict[str, Any]:
    """What the documents show: tables, names of figures, and texts about the lines of tables, each by its place, such
    as "minilm/squad/new" (study, task and arm). `dots` are numbers: they are drawn."""
    studies = [study] if study else studies_of(root)
    tables = {name: table._asdict() for name, table in all_tables(root, study).items()}
    for table in tables.values():
        table |= {"rows": [[row[0], *printed(row[1:])] for row in table["rows"]], "note": printed(table["note"])}
    content: dict[str, Any] = {"studies": studies, "figures": [path.stem for path in figures_of(root, study)]}
    for kind, names, told in (
        ("scores", ["study", "task", "arm"], of_score),
        ("differences", ["study", "task", "from", "to"], of_difference),
        ("shuffled", ["study", "task", "arm"], of_shuffled),
        ("switched", ["task", "variant", "share"], of_switched),
    ):
        each = [read(root, f"tables/{name}-{kind}").assign(study=name) for name in studies]
        content[kind] = by_place(pd.concat(each), names, told)
    for name, file in (("equivalence", "equivalence"), ("planned", f"{TESTED}-equivalence")):
        content[name] = by_place(read(root, f"tables/{file}"), ["weights", "share"], over_tasks)
    content["second models"] = by_place(
        read(root, "tables/no-training-second"), ["task", "variant", "share"], of_switched
    )
    return printed(content | ({} if study else of_text(root))) | {"tables": tables}


def by_place(lines: pd.DataFrame, names: list[str], told: Callable[[Line], dict[str, Any]]) -> dict[str, Any]:
    """What is told of each line, without what is empty, by the line's values of these columns; the first of a place."""
    content: dict[str, Any] = {}
    for line in lines.to_dict("records"):
        if any(is_missing(line[name]) for name in names):
            continue
        place = "/".join(f"{line[name]:g}" if name == "share" else str(line[name]) for name in names)
        content.setdefault(place, {name: value for name, value in told(line).items() if value != ""})
    return content


def printed(content: Any) -> Any:
    """A text, or all texts of a list or dictionary, with the minus of a typesetter."""
    if isinstance(content, dict):
        return {name: printed(part) for name, part in content.items()}
    if isinstance(content, list):
        return [printed(part) for part in content]
    return MINUS.sub("\\1−", content) if isinstance(content, str) else content


def runs_told(count: float) -> str:
    return "one run" if count == 1 else f"{count:.0f} runs"


def mark(line: Line) -> str:
    """Of runs that came after scores of their task had been seen."""
    return "†" if line["later"] else ""


def of_score(line: Line) -> dict[str, Any]:
    """Of an arm its score, its runs, and what can be had without attention; only of the metric that stands for its
    task."""
    if not line["is_headline"]:
        return {}
    digits, score, majority = str(scale_of(line["task"], line["measure"])[1]), line["score"], line["majority"]
    dots = [float(run) for run in str(line["runs"]).split("; ") if run] if not is_missing(line["runs"]) else []
    ends = " to ".join(dict.fromkeys(form(line[end], "2") for end in ("low", "high")))
    told = {"task": line["task"], "arm": line["arm"], "dots": dots, "runs": one_by_one(dots, "2")}
    told |= {} if is_missing(line["bag_of_words"]) else {"floor": line["bag_of_words"]}
    told |= {"range": ends + mark(line), "at_floor": is_missing(score) or score <= majority}
    numbers = {"score": score, "majority": majority, "words": line["bag_of_words"]}
    return told | {name: form(number, digits) for name, number in numbers.items()}


def of_difference(line: Line) -> dict[str, Any]:
    """Of two arms, over the seeds that both have: their difference with its interval and the number of runs; where no
    mean stands for the runs, these."""
    told = "{difference:+s} ({low:+s} to {high:+s}; "
    told += f"{line['seeds']:.0f} folds)" if line["over"] == "folds" else f"{runs_told(line['seeds'])})"
    if is_missing(line["difference"]):
        told = "constant ({constant_to:0} of {seeds:0} runs)"
    elif not line["has_mean"]:
        told = f"{{lowest_to:s}} to {{highest_to:s}} ({runs_told(line['seeds'])})"
    told = fill(told, {**line, "digits": scale_of(line["task"], line["metric"])[1]}) + mark(line)
    shares = {"cost": form(line["cost_to"], "%"), "seen": form(line["pairs_to"], "%")}
    return {"told": told, "clear": line["clear"] is True} | shares


def over_tasks(line: Line) -> dict[str, Any]:
    """Of `key-clusters` against softmax over tasks with three runs or more: the difference in points, and the lower end
    of its interval, rounded up."""
    about = f"{line['tasks']:.0f} tasks"
    interval = "" if is_missing(line["low"]) else fill("{low:+2} to {high:+2}; ", line)
    of = f"({interval}{about}, {runs_told(line['seeds'])}){mark(line)}"
    told = {"told": fill("{difference:+2} points ", line) + of}
    if interval:
        bound = form(math.ceil(max(0, -line["low"]) * 10) / 10, "1")
        told["bound"] = f"no loss above {bound} points on average over {about}"
    return told


def of_shuffled(line: Line) -> dict[str, Any]:
    return {"words": form(line["bag_of_words"], "3"), "changed": form(line["changed"], "%")}


def of_switched(line: Line) -> dict[str, Any]:
    """What a variant keeps of a task's score, in a model that was fine-tuned with softmax, and what it costs."""
    return {name: form(line[name], "%") for name in ("kept", "kept_low", "kept_high", "cost", "changed")}


def of_text(root: Path) -> dict[str, Any]:
    """Numbers of the text that are in none of the tables above."""
    rows = load(root)
    runs = headlines(rows, root)
    hours = rows.loc[(rows["kind"] == "fine-tuned") & (rows["measure"] == "train_seconds"), "value"].sum() / 3600
    longer = runs[runs["study"] == "more-training"].groupby(["task", "arm"], sort=False)
    content: dict[str, Any] = {"trained": {"runs": str(len(runs)), "hours": form(hours, "0")}}
    content["more training"] = {f"{task}/{arm}": longer_training(of_arm, root) for (task, arm), of_arm in longer}
    masked = rows[(rows["study"] == "masked-words") & (rows["length"] == 128)]
    if len(masked):
        lines = wide(masked).query("share == 0.5").to_dict("records")
        losses: dict[str, Any] = {"softmax": {"loss": form(lines[0]["softmax_loss"], "1")}}
        changes = {line["variant"]: {"change": form(line["change"], "2"), "dots": [line["change"]]} for line in lines}
        content["masked words"] = losses | changes
    twins = read(root, "runs/word-order/stsb/twins")
    for arm, of_arm in twins.sort_values("seed").groupby("arm") if len(twins) else ():
        copies = of_arm["weight_of_copies"].iloc[0]
        told = {"right": one_by_one(of_arm["told_apart"], "%"), "copies": form(copies, "0" if copies >= 10 else "1")}
        content.setdefault("twins", {})[ARMS.get(str(arm), str(arm))] = told
    return content


def longer_training(runs: pd.DataFrame, root: Path) -> dict[str, str]:
    """An arm trained for many epochs: means over its runs, of its score, and of its losses at the last evaluation."""
    losses = []
    for record in runs["record"]:
        evaluated = load_history((root / record).parent).dropna(subset=["eval_loss"])
        losses.append(evaluated[["train_loss", "eval_loss"]].iloc[-1])
    means = {str(name): form(loss, "2") for name, loss in pd.DataFrame(losses).mean().items()}
    task, metric = runs[["task", "measure"]].iloc[0]
    return means | {"score": form(runs["value"].mean(), str(scale_of(task, metric)[1]))}


def write_texts(root: Path, study: str | None = None) -> str:
    """Write report/texts.json; returns the fingerprint of all that the report is made of, a keyword of the PDFs: its
    text, its numbers and its figures."""
    how: dict[str, Any] = {"ensure_ascii": False, "indent": 1, "allow_nan": False, "default": lambda n: n.item()}
    write_atomically(root / "report" / "texts.json", content := json.dumps(texts(root, study), **how))
    files = [*sorted(root.glob("report/*.typ")), root / "report" / "references.bib", *figures_of(root)]
    parts = [path.read_text(encoding="utf-8") for path in files]
    return hashlib.sha256("\0".join([*parts, content]).encode()).hexdigest()


def build(root: str | Path | None = None, output: str | None = None) -> list[Path]:
    """Compile report, poster and summary; returns where they are.

    output: <study>.pdf, below the root: the pages of that study alone, from its tables and figures.
    """
    import typst  # only here: the library does without the "study" extra

    root = Path(root or repository_root())
    for name in (*(f"report/{name}.typ" for name in ("shared", "study", *DOCUMENTS)), "report/references.bib"):
        if not (root / name).exists():
            write_atomically(root / name, find_file(name).read_text(encoding="utf-8"))
    made_of = {"fingerprint": write_texts(root, Path(output).stem if output else None)}
    wanted = {root / output: "study"} if output else {root / f"report/{name}.pdf": name for name in DOCUMENTS}
    for path, name in wanted.items():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial.pdf")
        typst.compile(str(root / f"report/{name}.typ"), output=str(partial), root=str(root), sys_inputs=made_of)
        os.replace(partial, path)
    return list(wanted)


if __name__ == "__main__":
    print(*build(None, *sys.argv[1:2]), sep="\n")
