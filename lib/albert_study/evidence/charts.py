"""The charts of the page to explore: what each shows, how it is drawn, and what its reader chooses by."""

from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from albert_study.evidence.explored import (
    KEPT,
    efficiency_rows,
    loss_rows,
    masked_rows,
    score_rows,
    switched_rows,
)
from albert_study.evidence.growth import NOT_DRAWN
from albert_study.evidence.readable import studies_of
from albert_study.evidence.records import load_runs

TICKS = [-2, -0.5, -0.1, 0, 0.1, 0.5, 2, 10]
AXES: dict[str, Any] = {
    "share": alt.X("share:Q", title="full cost or pairs attended, as a share of softmax's")
    .scale(zero=False, padding=16)
    .axis(format="%", tickCount=8),
    "cost": alt.X("share:Q", title="full cost, as a share of softmax's")
    .scale(type="log", padding=16, nice=False)
    .axis(format="%"),
    "tokens": alt.X("tokens:Q", title="length (tokens)").scale(type="log", base=2).axis(format=",d", grid=False),
    "step": alt.X("step:Q", title="optimiser step"),
    "plain": alt.Y("drawn:Q", title=None).scale(zero=False, padding=16),
    "near zero": alt.Y("drawn:Q", title=None)
    .scale(type="symlog", constant=0.05, padding=16)
    .axis(values=TICKS, format="~g", labelOverlap=False),
    "log": alt.Y("drawn:Q", title=None).scale(type="log", padding=16),
}


class Shown(NamedTuple):
    """A chart: its heading, what to see in it, its rows, and how they are drawn.

    layers: of rules, intervals, bars, lines and curves; told: columns that a point's tooltip adds.
    choices: columns of which one value is shown. filters: columns of which all are, until one is chosen.
    off: the arms that are hidden at first. height: an expression, where a point is drawn.
    """

    title: str
    text: str
    rows: pd.DataFrame
    axes: tuple[str, str]
    layers: tuple[str, ...]
    told: tuple[str, ...]
    choices: tuple[str, ...]
    filters: tuple[str, ...]
    off: tuple[str, ...] = ()
    height: str = "datum.value"


def charts(root: Path) -> dict[str, Shown]:
    """All charts for which there are results, by name; studies in the order of the report."""
    runs = load_runs(root / "results" / "runs")
    order = {study: number for number, study in enumerate(studies_of(root))}
    runs = runs.sort_values("study", key=lambda s: s.map(order).fillna(len(order)), kind="stable", ignore_index=True)
    found = {
        "scores": Shown(
            "Fine-tuned with it: score against cost",
            "A point is a run (a seed) with its own score. Bars are 95% intervals of the difference from softmax, "
            "around the arm's mean, where a study has them; they cover seeds and examples. Dashed lines are what can "
            "be had without attention: a bag of words, always the majority class, chance. Scores compare within one "
            "study, task and model. Studies whose names end in “rates” are trials of learning rates.",
            pd.DataFrame(score_rows(runs, root)),
            axes=("share", "plain"),
            layers=("rules", "intervals"),
            told=("share", "metric", "seed", "length", "budget"),
            choices=("task", "model", "study", "across"),
            filters=("length", "asked", "hardware"),
        ),
        "masked": Shown(
            "Switched without training: masked words",
            "A pretrained model predicts hidden words, its attention replaced, nothing trained. Zero is softmax; bars "
            "are two standard errors over paragraphs. The loss can also fall; by how much a word's loss changes either "
            "way says how far the model has moved.",
            pd.DataFrame(masked_rows(root)),
            axes=("cost", "near zero"),
            layers=("lines", "bars"),
            told=("share", "budget", "length"),
            choices=("measure", "task", "model", "length"),
            filters=("asked", "hardware"),
        ),
        "switched": Shown(
            "Switched without training: a fine-tuned model",
            "A point is a model (a seed) that was fine-tuned with softmax and then given another attention; lines are "
            "means. Score kept is 1 where it scores as with softmax, 0 where it scores as the majority class; what is "
            "below −0.3 is drawn there.",
            pd.DataFrame(switched_rows(root)),
            axes=("share", "plain"),
            layers=("lines",),
            told=("share", "budget"),
            choices=("measure", "task", "model"),
            filters=("length", "asked", "hardware"),
            height=f"datum.measure == '{KEPT}' ? max(datum.value, -0.3) : datum.value",
        ),
        "efficiency": Shown(
            "Time and memory against length",
            "Both axes are logarithmic. Below 1 an attention is faster, or needs less, than softmax. Times are of the "
            "attention alone, but for those of a training step. Where the hardware changes, a line breaks.",
            pd.DataFrame(efficiency_rows(root)),
            axes=("tokens", "log"),
            layers=("lines",),
            told=("tokens", "hardware"),
            choices=("quantity", "shown", "precision"),
            filters=("hardware",),
            off=NOT_DRAWN,
        ),
        "losses": Shown(
            "Loss in training and evaluation",
            "A line is a run (a seed). Full lines: training. Dashed lines with points: evaluation.",
            pd.DataFrame(loss_rows(runs, root)),
            axes=("step", "plain"),
            layers=("curves",),
            told=("step", "curve", "seed"),
            choices=("task", "model", "study"),
            filters=("curve", "seed", "hardware"),
        ),
    }
    return {name: shown for name, shown in found.items() if len(shown.rows)}


def drawing(shown: Shown) -> dict[str, Any]:
    """A chart in Vega-Lite: points in the arms' looks, and below them what `layers` names.

    The page gives the rows of one choice, with their colours, and `unit`, the chart's title.
    """
    x, y = (AXES[name] for name in shown.axes)
    made = {"drawn": shown.height, "budget": "isValid(datum.asked) ? datum.asked : 'none'"}
    rows = alt.Chart(alt.NamedData("rows")).transform_calculate(**made).encode(y=y)
    rule, placed = rows.transform_filter("datum.kind == 'rule'"), rows.encode(x=x)
    interval = placed.transform_filter("datum.kind == 'interval'")
    points = placed.transform_filter("!datum.kind || datum.kind == 'run'")
    training, evaluation = (points.transform_filter(f"datum.curve == '{kind}'") for kind in ("training", "evaluation"))
    line = points.transform_aggregate(
        groupby=["arm", "colour", "edge", "asked", "hardware", "length", "tokens"],
        share="mean(share)",
        drawn="mean(drawn)",
    ).encode(detail=["arm:N", "hardware:N", "length:N"])
    colour, edge, one_run = alt.Color("colour:N", scale=None), alt.Color("edge:N", scale=None), ["arm:N", "seed:N"]
    bar = {"y": "low:Q", "y2": "high:Q", "color": colour}
    below: dict[str, list[alt.Chart]] = {
        "rules": [
            rule.mark_rule(color="#444444", strokeDash=[4, 3]),
            rule.mark_text(align="left", dx=4, dy=-7, color="#444444").encode(x=alt.value(0), text="rule:N"),
        ],
        "intervals": [interval.mark_rule(strokeWidth=2).encode(**bar)],
        "bars": [points.mark_rule(strokeWidth=1.5).encode(**bar)],
        "lines": [line.mark_line(strokeWidth=3).encode(color=edge), line.mark_line(strokeWidth=2).encode(color=colour)],
        "curves": [
            training.mark_line(strokeWidth=1).encode(color=colour, detail=one_run),
            evaluation.mark_line(strokeWidth=1.8, strokeDash=[5, 3]).encode(color=colour, detail=one_run),
        ],
    }
    marks = (evaluation if "curves" in shown.layers else points).mark_point(size=70, strokeWidth=1, opacity=1)
    marks = marks.encode(
        fill=alt.Fill("inside:N", scale=None),
        stroke=alt.Stroke("edge:N", scale=None),
        shape=alt.Shape("marker:N", scale=None),
        tooltip=[alt.Tooltip(name, type="nominal") for name in ("arm", "value", *shown.told, "record", "commit")],
    )
    layered = alt.layer(*(mark for name in shown.layers for mark in below[name]), marks).properties(
        width="container",
        height=380,
        title=alt.TitleParams(alt.ExprRef("unit"), anchor="start", fontSize=13),
        description=f"{shown.title}. {shown.text}",
    )
    config: dict[str, Any] = {"font": "system-ui, sans-serif", "text": {"fontSize": 12}}
    config["axis"] = {"labelFontSize": 12, "titleFontSize": 13}
    spec = layered.add_params(alt.param(name="unit", value="")).to_dict() | {"config": config}
    return {name: value for name, value in spec.items() if name != "$schema"}  # an address, with a version
