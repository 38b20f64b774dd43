"""The page to explore: `python -m albert_study.explore` writes report/results.html, every recorded run a point.

It needs no network: Vega, which draws, is in it. report/page.html is its text.
"""

import hashlib
import json
from pathlib import Path
from string import Template
from typing import Any

import altair as alt
import pandas as pd
import vl_convert
from matplotlib.colors import to_rgb

from albert_lsh.files import repository_root, write_atomically
from albert_study.names import METRICS, STYLES, base_of, look_of
from albert_study.records import BASELINES, KINDS, load
from albert_study.study import find_file
from albert_study.tables.experiments import OBJECTIVES

TOLD = ["name", "attention", "seed", "share", "length", "learning_rate", "pairs", "cost", "value", "low", "high"]
TOLD += ["device", "commit", "record"]
SHAPES = ("circle", "square", "triangle-up", "cross", "diamond", "triangle-down")
NEAR = 0.4  # colours whose red, green and blue, up to 1 each, differ by less in sum are nearly the same
PROBED = {"kept": "score kept", "error": "error of the output", "changed": "answers changed"}
PROBED |= {"difference": "loss above softmax's, nats", "change": "change of a word's loss, nats"}


def shapes_of(colours: list[str]) -> list[str]:
    """A shape for each colour, other ones for those that are nearly the same."""
    shapes: list[str] = []
    for colour in map(to_rgb, colours):
        before = zip(map(to_rgb, colours), shapes, strict=False)
        near = [shape for other, shape in before if sum(abs(a - b) for a, b in zip(colour, other, strict=True)) < NEAR]
        shapes.append(min(SHAPES, key=near.count))
    return shapes


def points(root: Path) -> dict[str, pd.DataFrame]:
    """What each chart shows; its reader chooses a `view`."""
    rows = load(root)
    rows["name"] = rows["variant"].where(rows["kind"] != "pretrained").fillna(rows["arm"])
    rows["commit"] = rows["commit"].astype(str).str[:10]
    base = rows["arm"].fillna("").map(base_of)
    rows["look"] = base.where(base.isin(list(STYLES)) & rows["kind"].isin(KINDS.values()), rows["attention"])
    scored = rows["kind"].isin(KINDS.values()) & rows["measure"].isin([*METRICS, *OBJECTIVES])
    probed = rows["kind"].isin(["switched", "masked words", "reading"]) & rows["measure"].isin(PROBED)
    timed = (rows["kind"] == "efficiency") & rows["measure"].isin(["seconds", "bytes"])
    length = rows["length"].map("{:.0f} tokens".format).where(probed & (rows["kind"] != "switched"))
    model = rows["model"].astype(str).str.split("/").str[-1].where(rows["model"].notna())
    told = rows.assign(model=model, length=length, measure=rows["measure"].replace(PROBED))
    parts = told[["task", "model", "split", "length", "measure"]].astype(object).to_numpy()
    rows["view"] = rows["study"] + ": " + [", ".join(part for part in line if pd.notna(part)) for line in parts]
    is_floor = rows["arm"].isin(BASELINES.values())
    floors = rows[scored & is_floor].groupby(["view", "arm"], sort=False)["value"].mean().reset_index()  # over folds
    return {
        "Trained with it: scores": rows[scored & ~is_floor],
        "Switched without training": rows[probed],
        "Time and memory": rows[timed],
        "floors": floors.groupby(["view", "value"])["arm"].agg(", ".join).reset_index(),
    }


def chart(title: str, rows: pd.DataFrame, axes: dict[str, str], scales: tuple[Any, Any], floors: pd.DataFrame) -> Any:
    """Points of one view, with what their reader chooses by.

    Args:
        axes: by column what may lie across, one of which is chosen. scales: of both axes.
    """
    name = title.split()[0].lower()
    views, columns = list(rows["view"].unique()), [*TOLD, "look", "view"]
    values = [{k: v for k, v in row.items() if pd.notna(v)} for row in rows[columns].to_dict("records")]
    view = alt.param(f"{name}_view", value=views[0], bind=alt.binding_select(options=views, name=f"{title}: "))
    across = alt.binding_radio(options=list(axes), labels=list(axes.values()), name="across: ")
    x = alt.param(f"{name}_x", value=next(iter(axes)), bind=across)
    wanted = alt.param(f"{name}_wanted", value="", bind=alt.binding(input="search", name="names that contain: "))
    chosen = alt.selection_point(f"{name}_chosen", fields=["look"], bind="legend")
    names = sorted(rows["look"].dropna().unique())
    colours = alt.Scale(domain=names, range=[look_of(look)["color"] for look in names])
    shapes = alt.Scale(domain=names, range=shapes_of(colours.range))
    unpinned: dict[str, Any] = {"zero": False} if scales[0] == "linear" else {}
    marks = alt.Chart(alt.Data(values=values)).transform_filter(f"datum.view == {name}_view")
    marks = marks.transform_filter(f"indexof(lower(datum.name), lower({name}_wanted)) >= 0")
    marks = marks.transform_calculate(across=f"datum[{name}_x]", link="'../' + datum.record").transform_filter(
        "isValid(datum.across)"
    )
    marks = marks.mark_point(filled=True, size=60).encode(
        x=alt.X("across:Q", title=", or ".join(axes.values())).scale(
            type=scales[0], padding=12, nice=False, **unpinned
        ),
        y=alt.Y("value:Q", title=None).scale(type=scales[1], padding=12, **unpinned),
        color=alt.Color("look:N", scale=colours, title="attention or arm"),
        shape=alt.Shape("look:N", scale=shapes, title="attention or arm"),
        opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.08)),
        href="link:N",
        tooltip=[alt.Tooltip(field, type="nominal") for field in TOLD],
    )
    zoom = alt.selection_interval(name=f"{name}_zoom", bind="scales")
    rules = alt.Chart(alt.Data(values=floors[["view", "arm", "value"]].to_dict("records")))
    rules = rules.transform_filter(f"datum.view == {name}_view").encode(y="value:Q")
    labels = rules.mark_text(align="left", dx=4, dy=-6, color="#444444").encode(x=alt.value(0), text="arm:N")
    layers = (rules.mark_rule(strokeDash=[4, 3], color="#444444"), labels) if len(floors) else ()
    layered = alt.layer(*layers, marks.add_params(view, x, wanted, chosen, zoom))
    return layered.properties(width=820, height=360, title=alt.TitleParams(alt.ExprRef(f"{name}_view"), anchor="start"))


def page(root: Path) -> tuple[str, dict[str, str]]:
    """The text of report/page.html and what it is filled with, but for Vega; the fingerprint of both included."""
    shown = points(root)
    floors, axes = shown.pop("floors"), {"cost": "full cost", "pairs": "pairs attended"}
    looks: list[Any] = [(axes, ("linear", "linear"), floors), (axes, ("log", "symlog"), floors.head(0))]
    looks += [({"length": "tokens"}, ("log", "log"), floors.head(0))]
    named = zip(shown.items(), looks, strict=True)
    specs = [chart(title, rows, *look).to_dict() for (title, rows), look in named if len(rows)]
    for spec in specs:
        del spec["$schema"]  # an address
    text = find_file("report/page.html", root).read_text(encoding="utf-8")
    filled = json.dumps(specs, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return text, {"charts": filled, "fingerprint": hashlib.sha256(f"{text}\0{filled}".encode()).hexdigest()}


def build(root: str | Path | None = None) -> Path:
    """Write report/results.html from whatever results there are; returns its path."""
    root = Path(root or repository_root())
    text, filled = page(root)
    version = ".".join(alt.VEGALITE_VERSION.split(".")[:2])
    vega = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    write_atomically(path := root / "report" / "results.html", Template(text).substitute(filled, vega=vega))
    return path


if __name__ == "__main__":
    print(build())
