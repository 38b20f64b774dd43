"""The page to explore: `python -m albert_study.evidence.site` writes report/results.html, which needs no network.

report/page.html is its text and its script. Here it is filled: with the charts of `charts`, with a table of all runs,
and with Vega, which draws.
"""

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

import altair as alt
import pandas as pd
import vl_convert
from matplotlib.colors import to_hex, to_rgb

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import read_result
from albert_study.carried import carried
from albert_study.evidence.charts import Shown, charts, drawing
from albert_study.evidence.explored import model_name
from albert_study.evidence.formats import form, scale_of
from albert_study.evidence.looks import style_of
from albert_study.evidence.records import listed_first, load_pretraining, load_runs
from albert_study.evidence.report import hashed

# Markers of `looks` as SVG paths in a square from -1 to 1; the others are circles.
CIRCLE, SQUARE = "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z", "M-0.9,-0.9H0.9V0.9H-0.9Z"
MARKERS = {
    "s": SQUARE,
    "^": "M0,-1L1,0.9H-1Z",
    "v": "M0,1L1,-0.9H-1Z",
    "<": "M-1,0L0.9,-1V1Z",
    ">": "M1,0L-0.9,-1V1Z",
    "D": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z",
    "d": "M0,-1.1L0.7,0L0,1.1L-0.7,0Z",
    "P": "M-0.4,-1H0.4V-0.4H1V0.4H0.4V1H-0.4V0.4H-1V-0.4H-0.4Z",
    "X": "M-1,-0.5L-0.5,-1L0,-0.5L0.5,-1L1,-0.5L0.5,0L1,0.5L0.5,1L0,0.5L-0.5,1L-1,0.5L-0.5,0Z",
    "*": "M0,-1L0.3,-0.35L1,-0.3L0.45,0.15L0.6,0.85L0,0.45L-0.6,0.85L-0.45,0.15L-1,-0.3L-0.3,-0.35Z",
    "p": "M0,-1L0.95,-0.3L0.6,0.8H-0.6L-0.95,-0.3Z",
}
TEXTS = ("study", "task", "model", "arm", "attention", "metric")
NUMBERS = {"seed": "0", "score": "", "full cost": "%"}
TITLES = (*TEXTS, *NUMBERS, "settings", "commit", "record")
SECTION = """<section data-chart="{name}" aria-labelledby="{name}">
<h2 id="{name}">{title}</h2>
<p>{text}</p>
<div class="choose"></div>
<fieldset><legend>Attentions</legend></fieldset>
<div class="drawn"></div>
<details><summary>The numbers of this chart</summary><div class="scroll" tabindex="0" role="region" \
aria-label="Numbers: {title}"></div></details>
</section>"""


def all_runs(root: Path) -> list[dict[Any, Any]]:
    """Every complete run: fine-tuned, pretrained, and trained on long sequences."""
    rows = []
    for run in load_runs(root / "results" / "runs").to_dict("records"):
        about = {"metric": run["headline"], "settings": run["attention_settings"], "folder": run["folder"]}
        rows.append(run | about)
    for run in load_pretraining(root / "results" / "pretraining").to_dict("records"):
        about = {"study": "pretraining", "task": "masked tokens", "model": run["size"], "arm": run["run"]}
        about |= {"settings": json.loads(run["attention_settings"]), "folder": Path(run["folder"])}
        rows.append(run | about | {"metric": "accuracy", "score": run["metric.mlm_accuracy"]})
    for path in listed_first(sorted((root / "results" / "long_range").glob("*/*/seed-*/result.json")), root):
        record = read_result(path)
        asked, headline = record["parameters"], record["headline"]
        about = {"study": "long_range", "task": path.parents[2].name, "model": "small, new", "arm": asked["label"]}
        about |= {"attention": asked["attention"], "settings": asked["attention_settings"], "seed": asked["seed"]}
        about |= {"metric": headline["name"], "score": headline["value"], "full_cost": record.get("full_cost")}
        rows.append(about | {"commit": record["environment"]["commit"], "folder": path.parent})
    return [row | {"record": (row["folder"] / "result.json").relative_to(root).as_posix()} for row in rows]


def runs_table(root: Path) -> str:
    """The table of `all_runs` in HTML; its headings are buttons, by which the page's script sorts."""
    head = "".join(f'<th scope="col"><button type="button">{title}</button></th>' for title in TITLES)
    rows = "\n".join(map(table_row, all_runs(root)))
    return f'<table id="all-runs"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'


def table_row(run: Mapping[str, Any]) -> str:
    texts = [model_name(run[name]) if name == "model" else str(run[name]) for name in TEXTS]
    cells = [f"<td>{escape(text)}</td>" for text in texts]
    for name, how in NUMBERS.items():
        value = run.get(name.replace(" ", "_"))
        sorted_by = f"{value:.6g}" if pd.notna(value) else "-1"
        shown = form(value, how or str(scale_of(run["task"])[1]))
        cells.append(f'<td class="number" data-value="{sorted_by}">{shown}</td>')
    settings = ", ".join(f"{name} {json.dumps(value)}" for name, value in run["settings"].items() if value is not None)
    record = run["record"]
    cells += [f'<td class="settings">{escape(settings)}</td>', f"<td>{escape(str(run['commit'])[:10])}</td>"]
    return f'<tr>{"".join(cells)}<td><a href="../{quote(record)}">{escape(record)}</a></td></tr>'


def packed(rows: pd.DataFrame) -> dict[str, list[list[Any]]]:
    """By column its different values, and for each row which it has (-1: none). Much smaller than the rows."""
    found = {}
    for name, column in rows.items():
        short = column.map(lambda value: float(f"{value:.5g}") if isinstance(value, float) else value)
        places, values = pd.factorize(short)
        found[str(name)] = [values.tolist(), places.tolist()]
    return found


def chart_data(shown: Shown) -> dict[str, Any]:
    """What the page's script needs to know of a chart."""
    chosen = {"choices": shown.choices, "filters": shown.filters, "off": shown.off}
    return {"spec": drawing(shown), "columns": packed(shown.rows)} | chosen


def look(name: str) -> list[str]:
    """Colour, colour of edges, and marker. An edge is seen on white where its colour is not (WCAG: 3 to 1)."""
    style = style_of(name)
    red, green, blue = (0.6 * part for part in to_rgb(style.colour))
    return [style.colour, to_hex((red, green, blue)), MARKERS.get(style.marker, CIRCLE)]


def filling(root: Path) -> dict[str, str]:
    """What report/page.html is filled with, but for Vega and the fingerprint."""
    shown = charts(root)
    looks = sorted({name for chart in shown.values() for name in chart.rows["look"].dropna()})
    data = {"looks": {name: look(name) for name in looks}, "square": SQUARE}
    data["charts"] = {name: chart_data(chart) for name, chart in shown.items()}
    titles = {name: chart.title for name, chart in shown.items()} | {"runs": "All recorded runs"}
    return {
        "contents": "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in titles.items()),
        "sections": "\n".join(SECTION.format(name=n, title=c.title, text=c.text) for n, c in shown.items()),
        "table": runs_table(root),
        "data": json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }


def page(root: Path) -> tuple[str, dict[str, str]]:
    """The text of report/page.html and all that it is filled with but Vega, the fingerprint of both included."""
    text, filled = carried("report/page.html", root).read_text(encoding="utf-8"), filling(root)
    return text, filled | {"fingerprint": hashed([text, *filled.values()])}


def build(root: str | Path | None = None) -> Path:
    """Write report/results.html from whatever results there are; returns its path."""
    root = Path(root) if root else repository_root()
    text, filled = page(root)
    version = ".".join(alt.VEGALITE_VERSION.split(".")[:2])
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    path = root / "report" / "results.html"
    write_atomically(path, Template(text).substitute(filled, vega=vega))
    return path


if __name__ == "__main__":
    print(build())
