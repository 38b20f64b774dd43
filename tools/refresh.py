"""Copy the repository's address and the tables of results to where they are shown.

    python tools/refresh.py            rewrite notebooks, README.md, docs/*.md and results/tables/*.md (make refresh)

The address is in pyproject.toml alone. Colab opens a notebook without the repository around it, so the notebooks' first
two cells say where the library is. A page shows a table where it says `<!-- table: NAME -->`; the names and the tables
are those of `albert_study.tables`, and nobody types a number into them. results/tables/ has a page for each study with
all of its tables.
"""

import html
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from albert_lsh import attention
from albert_lsh.run import Run
from albert_lsh.tasks import TASKS
from albert_study.show import Table
from albert_study.tables import all_tables

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUP = """# Set-up: does nothing where the library is installed; elsewhere, as in Colab, it is added, torch untouched.
from importlib.util import find_spec

if find_spec("albert_lsh") is None:
    %pip install --quiet "albert-lsh @ git+ADDRESS"NOTE
from albert_lsh.files import set_up

before = set_up(globals(), keep_on_drive=False)  # True: results outlive Colab's machine, on your Google Drive"""
NOT_YET = "(A placeholder until public.)\n\n"  # in README
NOTE = "  # a placeholder until public"
PICTURE = "https://colab.research.google.com/assets/colab-badge.svg"
BADGE = re.compile(r"(\[!\[Open in Colab\]\[badge\]\])\(\S+/(\w+\.ipynb)\)")
CLONE = re.compile(r"git clone \S+ && cd \S+")
NAMES = re.compile(r"# softmax, (?:.*\n# )*.*\n(?=attention = )")
TASK_NAMES = {name: re.compile(rf'(?:# .*\n)*(?=task = "{name}"\n)') for name in ("mrpc", "squad")}
COMMENT = re.compile(r"^    (?:# (.+)\n    )?(\w+): .*?(?:  # (.+))?$", re.MULTILINE)  # above or behind a parameter
OF_LIBRARY = ("attentions", "tasks")  # tables of what there is, not of results
# The study, or the folder of results/, of a table whose name does not begin with it.
GROUPS = {"duplication": "long-range", "listops": "long-range", "text": "long-range", "twins": "word-order"}
GROUPS |= dict.fromkeys(("whole-model", "whole-model-intel", "whole-model-modernbert"), "efficiency")
GROUPS |= {"second-models": "no-training"}
GROUPS |= {"faults": "reliability", "colab": "reliability"}
TABLES = ROOT / "results" / "tables"
HEAD = """# Tables: {group}

[All tables](README.md). Made by `make refresh` from the CSV files of [results](../), which have every digit."""
INDEX = """# All tables

Every table that the project has, made by `make refresh`; [docs/results.md](../../docs/results.md) says what follows
from them, and [the page to explore](../../report/results.html) shows every single run. A number in a table comes from a
CSV file: of `<study>-scores`, `-variety` and `-settings` that is `<study>-scores.csv` in this folder, of others
`<study>-differences.csv`, `-switched.csv`, `-shuffled.csv` and so on; of experiments those in
[efficiency](../efficiency), [long_range](../long_range), [reliability](../reliability) and [runs](../runs).

*Pairs seen* and *cost* are shares of what softmax attention has on the whole texts: where these are cut to
`max_length`, softmax too has less than 100%."""
PLACE = re.compile(r"<!-- table: (\S+) -->(?:(?:(?!<!-- table: ).)*?<!-- end of table -->)?", re.DOTALL)


def address() -> str:
    return PROJECT["project"]["urls"]["Repository"]


def setup_cell() -> str:
    """The notebooks' set-up cell, with the repository's address; it says so as long as that is a placeholder."""
    note = NOTE if PROJECT["tool"]["albert-lsh"]["address-is-placeholder"] else ""
    return SETUP.replace("ADDRESS", address()).replace("NOTE", note)


def in_colab(notebook: str) -> str:
    """The address at which Colab opens a notebook."""
    path = address().removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook}"


def escaped(value: Any) -> str:
    """A text that Markdown shows as it is: without HTML, end of a cell, link or picture. Only ** is kept, for bold."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"[|`\[\]\\]", lambda mark: f"&#{ord(mark[0])};", text)


def markdown(table: Table) -> str:
    """A table in Markdown, its index as first column, and its note above."""
    lines = (table.titles, *table.rows)
    head, *body = ("| " + " | ".join(map(escaped, line)) + " |" for line in lines)
    return "\n".join([escaped(table.note), "", head, "| --- " * len(table.titles) + "|", *body])


def page(text: str, tables: dict[str, Table]) -> str:
    """README or a page of docs/ as it should be: badges and commands name the repository, tables stand in their places.

    Raises:
        KeyError: the page asks for a table that there is not.
    """

    def filled(place: re.Match[str]) -> str:
        return f"<!-- table: {place[1]} -->\n{markdown(tables[place[1]])}\n<!-- end of table -->"

    if not PROJECT["tool"]["albert-lsh"]["address-is-placeholder"]:
        text = text.replace(NOT_YET, "")
    text = CLONE.sub(f"git clone {address()} && cd {address().split('/')[-1]}", text)
    return PLACE.sub(filled, BADGE.sub(lambda badge: f"{badge[1]}({in_colab(badge[2])})", text))


def commented(names: Iterable[str]) -> str:
    indents = {"initial_indent": "# ", "subsequent_indent": "# "}
    return textwrap.fill(", ".join(names), 110, break_on_hyphens=False, **indents) + "\n"


def notebook(name: str, text: str) -> str:
    """A notebook as it should be: badge under its title, set-up cell, names of the tasks and attentions there are."""
    content = json.loads(text)
    title, setup = content["cells"][:2]
    lines = [line for line in "".join(title["source"]).split("\n") if not line.startswith("[![Open in Colab]")]
    head = [lines[0], f"[![Open in Colab]({PICTURE})]({in_colab(name)})", "\n".join(lines[1:]).strip()]
    title["source"] = "\n\n".join(head).splitlines(keepends=True)
    for cell in content["cells"]:  # what there is to choose from, above the parameter
        source = NAMES.sub(commented(attention.names()), "".join(cell["source"]))
        for first, pattern in TASK_NAMES.items():
            alike = [task.name for task in TASKS.values() if task.notebook == TASKS[first].notebook]
            source = pattern.sub(commented(alike), source, count=1)
        cell["source"] = source.splitlines(keepends=True)
    setup["metadata"] = {"cellView": "form", "jupyter": {"source_hidden": True}}  # folded, in Colab and in JupyterLab
    setup["source"] = setup_cell().splitlines(keepends=True)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def run_options() -> Table:
    """The parameters of a run with their defaults, and what the comment at each says in run.py."""
    said: dict[str, str] = {}
    for kind in reversed(Run.__mro__[: Run.__mro__.index(BaseModel)]):
        said |= {name: above or behind for above, name, behind in COMMENT.findall(inspect.getsource(kind))}
    rows = []
    for name, field in Run.model_fields.items():
        default = "must be given" if field.is_required() else json.dumps(field.default)
        rows.append([name, "" if default == "null" else default, said.get(name, "")])
    return Table(["parameter", "default", "meaning"], rows)


def group_of(name: str) -> str:
    """The study that a table is of, whose name it begins with; "several" for tables of more than one."""
    studies = {path.stem: path.stem for path in ROOT.glob("studies/**/*.yaml")} | GROUPS
    starts = [start for start in studies if f"{name}-".startswith(f"{start}-")]
    return studies[max(starts, key=len)] if starts else "several"


def table_pages(tables: dict[str, Table]) -> dict[Path, str]:
    """A page for each study with its tables, and one that lists all of them."""
    groups: dict[str, list[str]] = {}
    for name in tables:
        groups.setdefault(group_of(name), []).append(name)
    texts, index = {}, [INDEX, ""]
    for group, names in sorted(groups.items(), key=lambda of: (of[0] != "several", of[0])):
        parts = [HEAD.format(group=group), *(f"## {name}\n\n{markdown(tables[name])}" for name in names)]
        texts[TABLES / f"{group}.md"] = "\n\n".join(parts) + "\n"
        links = ", ".join(f"[{name.removeprefix(f'{group}-')}]({group}.md#{name})" for name in names)
        index.append(f"- [{group}]({group}.md): {links}")
    return texts | {TABLES / "README.md": "\n".join(index) + "\n"}


def refreshed() -> dict[Path, str]:
    """Every page and notebook as it should be."""
    tables = all_tables(ROOT)
    texts = table_pages({name: table for name, table in tables.items() if name not in OF_LIBRARY})
    tables["run-options"] = run_options()
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")):
        text = path.read_text(encoding="utf-8")
        texts[path] = notebook(path.name, text) if path.suffix == ".ipynb" else page(text, tables)
    return texts


if __name__ == "__main__":
    pages = refreshed()
    for target, content in pages.items():
        target.write_text(content, encoding="utf-8")
    for gone in set(TABLES.glob("*.md")) - pages.keys():  # of a study that has no tables any more
        gone.unlink()
