"""Report, poster and summary: `python -m albert_study.report` compiles report/*.typ into report/*.pdf.

With the path of a PDF, <study>.pdf, it writes that study's own pages there: scores, curves, differences. The .typ files
are text. Their numbers come from report/numbers.json, as numbers: `shared.typ` writes them. With that file in place any
Typst compiler does (`typst compile --root . report/report.typ`).
"""

import hashlib
import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh.files import repository_root, write_atomically
from albert_study import experiment_tables, tables
from albert_study.carried import carried
from albert_study.records import list_studies, load, load_history, read, studies_of
from albert_study.scores import ARMS, headlines
from albert_study.show import Parts, Table

DOCUMENTS = ("report", "poster", "summary")


def document_tables(root: Path, study: str | None = None) -> dict[str, Table]:
    """Every table for which there are results, by name; studies in the order of `studies_of`.

    study: whose tables alone are made.
    """
    rows, studies = load(root, study), [study] if study else studies_of(root)
    makers: list[Any] = [partial(make, study=name) for name in studies for make in tables.OF_STUDIES]
    makers += [] if study else [*tables.COMMON, *experiment_tables.COMMON]
    named = (made for make in makers for made in make(root, rows))
    return {name: made for name, made in named if made.rows and len(made.titles) > 1}


def figures_of(root: Path, study: str | None = None) -> list[Path]:
    """The figures of `studies_of` and those that studies share; or of one study."""
    paths = sorted(root.glob("figures/*.svg"))
    if study:
        return [path for path in paths if path.stem.startswith(f"{study}-")]
    others = tuple(f"{name}-" for name in list_studies(root).query("listed == 0").index)
    return [path for path in paths if not path.stem.startswith(others)]


def numbers(root: Path, study: str | None = None) -> dict[str, Any]:
    """What the documents show: tables, names of figures, and lines of numbers that the text quotes."""
    studies = [study] if study else studies_of(root)
    made = {name: table._asdict() for name, table in document_tables(root, study).items()}
    for table in made.values():
        table["rows"] = [[row[0][0], *map(spelled, row[1:])] for row in table["rows"]]
        table["note"] = re.sub(r"(^|[^\w-])-(\d)", "\\1−\\2", table["note"])
    lines: dict[str, pd.DataFrame] = {}
    for name in ("scores", "differences", "switched", "shuffled"):
        of_studies = (read(root, f"tables/{each}-{name}").assign(study=each) for each in studies)
        lines[name] = pd.concat([of_study for of_study in of_studies if len(of_study)] or [pd.DataFrame()])
    if len(scores := lines["scores"]):
        runs = [[float(run) for run in of_arm.split("; ") if run] for of_arm in scores["runs"].fillna("")]
        lines["scores"] = scores.assign(runs=pd.Series(runs, scores.index))[scores["is_headline"]]
    lines["equivalence"] = read(root, "tables/equivalence")
    lines["second models"] = read(root, "tables/no-training-second")
    content = {name: json.loads(each.to_json(orient="records")) for name, each in lines.items()}
    content |= {"tables": made, "figures": [path.stem for path in figures_of(root, study)]}
    content |= {"studies": studies, "arms": ARMS}
    return content if study else content | text_numbers(root)


def spelled(cell: Parts) -> list[Any]:
    """A cell for Typst: each number with its decimals, and what else `form` does to it."""
    return [part if isinstance(part, str) else [part[0], *spell(part[1])] for part in cell]


def spell(how: str) -> tuple[int, str]:
    """The decimals and the kind that `form`'s `how` names: "%1" is (1, "%")."""
    kind = how[0] if how[0] in "+%p,P" else ""
    return (3 if kind == "P" else int(how.removeprefix(kind) or 0)), kind


def text_numbers(root: Path) -> dict[str, Any]:
    """Numbers of the text that are in no table."""
    rows = load(root)
    runs = headlines(rows, root)
    hours = rows.loc[(rows["kind"] == "fine-tuned") & (rows["measure"] == "train_seconds"), "value"].sum() / 3600
    longer = runs[runs["study"] == "more-training"].groupby(["task", "arm"], sort=False)
    masked = rows[(rows["study"] == "masked-words") & (rows["measure"] == "softmax_loss")].groupby("length")["value"]
    return {
        "trained": {"runs": len(runs), "hours": hours},
        "more training": [longer_training(of_arm, root) for _, of_arm in longer],
        "masked words": {f"{length:.0f}": loss for length, loss in masked.first().items()},
    }


def longer_training(runs: pd.DataFrame, root: Path) -> dict[str, Any]:
    """An arm trained for many epochs: means over its runs, of its score, and of its losses at the first evaluation and
    at the last."""
    losses = []
    for record in runs["record"]:
        evaluated = load_history((root / record).parent).dropna(subset=["eval_loss"])
        first, last = evaluated.iloc[0], evaluated.iloc[-1]
        losses.append({"first train": first["train_loss"], "first eval": first["eval_loss"]})
        losses[-1] |= {"last train": last["train_loss"], "last eval": last["eval_loss"]}
    task, arm, epochs = runs[["task", "arm", "epochs"]].iloc[0]
    about = {"arm": arm, "task": task, "epochs": int(epochs), "runs": len(runs), "score": runs["value"].mean()}
    return about | {str(name): loss for name, loss in pd.DataFrame(losses).mean().items()}


def write_numbers(root: Path, study: str | None = None) -> str:
    """Write report/numbers.json; returns the fingerprint of all that the report is made of, a keyword of the PDFs: its
    text, its numbers and its figures."""
    how: dict[str, Any] = {"ensure_ascii": False, "indent": 1, "allow_nan": False, "default": lambda n: n.item()}
    write_atomically(root / "report" / "numbers.json", content := json.dumps(numbers(root, study), **how))
    files = [*sorted(root.glob("report/*.typ")), root / "report" / "references.bib", *figures_of(root)]
    texts = [path.read_text(encoding="utf-8") for path in files]
    return hashlib.sha256("\0".join([*texts, content]).encode()).hexdigest()


def build(root: str | Path | None = None, output: str | None = None) -> list[Path]:
    """Compile report, poster and summary; returns where they are.

    output: <study>.pdf, below the root: the pages of that study alone, from its tables and figures.
    """
    import typst  # only here: the library does without the "study" extra

    root = Path(root or repository_root())
    for name in (*(f"report/{name}.typ" for name in ("shared", "study", *DOCUMENTS)), "report/references.bib"):
        if not (root / name).exists():
            write_atomically(root / name, carried(name).read_text(encoding="utf-8"))
    made_of = {"fingerprint": write_numbers(root, Path(output).stem if output else None)}
    wanted = {root / output: "study"} if output else {root / f"report/{name}.pdf": name for name in DOCUMENTS}
    for path, name in wanted.items():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".partial.pdf")
        typst.compile(str(root / f"report/{name}.typ"), output=str(partial), root=str(root), sys_inputs=made_of)
        os.replace(partial, path)
    return list(wanted)


if __name__ == "__main__":
    print(*build(None, *sys.argv[1:2]), sep="\n")
