"""Carry what stands in one place to where it is shown: the repository's address, and tables of results.

    python tools/refresh.py            rewrite notebooks and README (make refresh)

The address is in pyproject.toml alone. Colab opens a notebook without the repository around it, so the notebooks' first
two cells have to say where the library is. The README shows tables of results/tables; nobody types a number into it.
"""

import html
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd

from albert_study.efficiency.growth import crossing_bounds
from albert_study.evidence.rounding import percent, rounded
from albert_study.evidence.tables import pivot, scale_of
from albert_study.long_range.train import shown
from albert_study.runner import load_study

ROOT = Path(__file__).resolve().parents[1]
SETUP = '''# Set-up: does nothing where the library is installed; in Colab it adds what is missing, torch untouched.
import importlib.util

if importlib.util.find_spec("albert_lsh") is None:
    %pip install --quiet "albert-lsh @ git+{address}"'''


def address() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def badge(notebook: str) -> str:
    """Markdown of the picture that opens a notebook in Colab."""
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    path = address().removeprefix("https://github.com/")
    link = f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook}"
    return f"[![Open in Colab]({picture})]({link})"


def escaped(value: Any) -> str:
    """A text of a table as Markdown shows it and does nothing else: no HTML, no end of a cell, no link or picture."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"[|`\[\]\\]", lambda found: f"&#{ord(found[0])};", text)


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown, its index as first column."""
    rows = [["", *table.columns], *([i, *row] for i, row in table.iterrows())]
    head, *body = ("| " + " | ".join(map(escaped, row)) + " |" for row in rows)
    return "\n".join([head, "| --- " * (len(table.columns) + 1) + "|", *body])


def signed(value: float, digits: int) -> str:
    shown = rounded(value, digits)
    return shown if shown.startswith("-") else f"+{shown}"


def findings(study: str) -> str:
    """The scores of a study, with what was attended, and its figure."""
    tables = ROOT / "results" / "tables"
    if not (tables / f"{study}-scores.csv").exists():
        return "*Not measured yet.*"
    scores = pd.read_csv(tables / f"{study}-scores.csv")
    shares = scores.pivot(index="arm", columns="task", values="attended_share").map(
        lambda share: "" if pd.isna(share) else percent(share)
    )
    read = pivot(scores)
    for task in scores["task"].unique():
        column = next(name for name in read if name.startswith(f"{task} ("))
        read.insert(
            read.columns.get_loc(column) + 1, f"{task}: pairs seen", shares[task].reindex(read.index).fillna("")
        )
    models, made, planned = (
        ", ".join(map(escaped, scores["model"].unique())),
        scores["seeds"].sum(),
        len(load_study(study)),
    )
    text = f"Study `{study}`, {models}; mean ± standard deviation (number of seeds); development sets"
    text += ":\n\n" if made == planned else f".\n**{made} of the study's {planned} runs are made so far:**\n\n"
    return text + markdown(read) + f"\n\n![Scores by attention](figures/{study}-scores.svg)"


def duplicates() -> str:
    """What counting a key once or each time does to the output."""
    path = ROOT / "results" / "tables" / "duplicates.csv"
    table = pd.read_csv(path)[["n_hashes", "cluster_size", "pairs", "error_once", "error_each"]]
    named = {"pairs": "pairs seen", "error_once": "error, once", "error_each": "error, each time"}
    table = table.rename(columns=named).set_index("n_hashes").rename_axis("rounds")
    return markdown(table.map(lambda x: rounded(x, 2) if isinstance(x, float) else x)).replace("|  |", "| rounds |", 1)


def switched(study: str) -> str:
    """What is kept of the score under switched attention, by task, variant and budget, and the figure."""
    path = ROOT / "results" / "tables" / f"{study}-switched.csv"
    if not path.exists():
        return "*Not measured yet.*"
    table = pd.read_csv(path)
    shown = table["kept"].map(percent) + " (" + table["share"].map(percent) + ")"
    blocks = []
    for task, rows in table.assign(shown=shown).groupby("task", sort=False):
        first = rows.iloc[0]
        wide = rows.pivot(index="label", columns="budget", values="shown").loc[rows["label"].unique()].fillna("")
        wide = wide[sorted(wide.columns, reverse=True)].rename(columns="asked for {:g}".format)
        wide.index.name = None
        seeds = f"{first['seeds']} model{'s' if first['seeds'] > 1 else ''}"
        softmax = rounded(first["softmax"], scale_of(task)[1])
        about = f"{escaped(first['score_name'])}, softmax {softmax}, {escaped(first['examples'])} examples, {seeds}"
        blocks.append(f"**{escaped(task)}** ({about})\n\n{markdown(wide)}")
    return "\n\n".join(blocks) + f"\n\n![Attention switched](figures/{study}-switched.svg)"


def reading(study: str) -> str:
    """What attentions do to a pretrained encoder's output, by length."""
    path = ROOT / "results" / "tables" / f"{study}-reading.csv"
    if not path.exists():
        return "*Not measured yet.*"
    blocks = []
    for (length, paragraphs), rows in pd.read_csv(path).groupby(["length", "paragraphs"]):
        shown = rows.sort_values("error").set_index("variant")[["share", "mass", "error", "drift"]]
        digits = {"mass": 2, "error": 3, "drift": 3}
        number = {name: [rounded(x, n) for x in shown[name]] for name, n in digits.items()}
        shown = shown.assign(share=[percent(x, 1) for x in shown["share"]], **number)
        named = {
            "share": "pairs",
            "mass": "softmax's mass",
            "error": "error of the output",
            "drift": "drift of the last hidden state",
        }
        sequences = f"{paragraphs} sequence{'s' if paragraphs > 1 else ''} of {length:,} tokens"
        blocks.append(f"**{sequences}**\n\n{markdown(shown.rename(columns=named))}")
    return "\n\n".join(blocks)


def faster_from(times: pd.DataFrame) -> str:
    """The length from which each case is faster than softmax attention, or those between which it lies."""
    rows = {}
    for case, (above, up_to) in crossing_bounds(times).dropna().sort_values(["up_to", "above"]).iterrows():
        first, last = (f"{int(rounded(x)):,}" for x in (above, up_to))
        rows[case] = first if first == last else f"{last} or less" if above == 0 else f"between {first} and {last}"
    return markdown(pd.DataFrame({"tokens": pd.Series(rows)}))


def efficiency() -> str:
    """Time of a forward and backward pass as a multiple of fused softmax attention's, speed against reformer-pytorch,
    memory, and time of a training step, by length."""
    folder = ROOT / "results" / "efficiency"

    def by_length(rows: pd.DataFrame, value: str) -> pd.DataFrame:
        return rows.pivot(index="case", columns="length", values=value).rename_axis(index=None)

    def shown(table: pd.DataFrame, digits: int) -> str:
        table = table.rename(columns=lambda name: f"{name:,}" if isinstance(name, int) else name)
        return markdown(table.map(lambda x: "" if pd.isna(x) else rounded(x, digits)))

    time = pd.read_csv(folder / "time-cpu-fp32.csv")
    seconds = by_length(time[time["pass"] == "forward+backward"], "seconds")
    seconds = seconds[[length for length in seconds if length >= 512]]
    in_bf16 = pd.read_csv(folder / "time-cpu-bf16-amx.csv")
    in_bf16 = by_length(in_bf16[in_bf16["pass"] == "forward+backward"], "seconds")
    peaks = pd.read_csv(folder / "memory-cpu-fp32.csv")
    steps = by_length(pd.read_csv(folder / "step-cpu-fp32.csv"), "seconds")
    softmax = steps.loc["softmax"].fillna(steps.loc["softmax, recomputed"])
    faster = {
        f"{ours} against {theirs}": seconds.loc[theirs] / seconds.loc[ours]
        for theirs, ours in (
            ("reformer-pytorch", "plain lsh"),
            ("reformer-pytorch, one round", "plain lsh, one round"),
            ("reformer-pytorch", "plain lsh, one round"),
            ("reformer-pytorch", "lsh"),
            ("reformer-pytorch", "lsh, window, far field"),
        )
    }
    quality = pd.read_csv(folder / "quality-cpu-fp32.csv").set_index("case").rename_axis(index=None)
    columns = {"pairs": "pairs", "mass": "softmax's mass", "error": "error of the output", "seconds": "seconds"}
    kept = quality[list(columns)].rename(columns=columns)
    text = f"On real text of {quality['length'].iloc[0]:,} tokens, all layers of a pretrained encoder"
    blocks = {
        "Faster than fused softmax attention from": faster_from(time[time["pass"] == "forward+backward"]),
        text: shown(kept, 2),
        "Time, as a multiple of fused softmax attention's": shown(seconds / seconds.loc["softmax"], 2),
        "The same in bfloat16, on a processor with matrix units for it": shown(in_bf16 / in_bf16.loc["softmax"], 2),
        "How many times faster": shown(pd.DataFrame(faster).T, 1),
        "Peak memory, MiB": shown(by_length(peaks[peaks["kind"] == "attention"], "bytes") / 2**20, 0),
        "A training step of ALBERT-base's shape, as a multiple of softmax's time (above 4,096 tokens, where only "
        "models that recompute have room, of softmax's that does)": shown(steps / softmax, 2),
    }
    return "\n\n".join(f"**{title}**\n\n{table}" for title, table in blocks.items())


def pretraining() -> str:
    """The pretraining runs: new models, what hashing costs on the same tokens, the figure; and one gone on with."""
    folder = ROOT / "results" / "tables"
    runs, differences = pd.read_csv(folder / "pretraining.csv"), pd.read_csv(folder / "pretraining-gaps.csv")
    new, on = runs[runs["start"].isna()], runs[runs["start"].notna()]
    counting = {name: new[f"counting.{name}"].mean() for name in ("mlm_loss", "mlm_accuracy", "sop_accuracy")}
    rows = {
        f"{row['run']}{when}": [
            percent(row["attended_share"]),
            "none" if when else f"{rounded(row['tokens'] / 1e6, 1)} million",
            *(rounded(row[f"{kind}.{name}"], 3) for name in counting),
        ]
        for kind, when in (("metric", ""), ("start", ", before the first step"))
        for _, row in new.iterrows()
    }
    rows["counting pieces, or a coin"] = ["", "", *(rounded(value, 3) for value in counting.values())]
    columns = ["pairs seen", "tokens", "loss, nats a masked token", "accuracy, masked tokens", "accuracy, order"]
    named = {"mlm_loss": "loss", "mlm_accuracy": "accuracy of masked tokens", "sop_accuracy": "accuracy of the order"}
    blocks = [markdown(pd.DataFrame.from_dict(rows, orient="index", columns=columns))]
    for run, of_run in differences[differences["to"].isin(new["run"])].groupby("to"):
        changes = [
            f"{named[row['metric']]} {signed(row['difference'], 4)} ± {rounded(row['standard_error'], 4)}"
            for _, row in of_run.iterrows()
        ]
        errors = f"(standard errors over {of_run['sequences'].max()} held-out sequences)"
        blocks.append(f"`{escaped(run)}` against `{escaped(of_run['from'].iloc[0])}`: {', '.join(changes)} {errors}.")
    blocks.append("![Pretraining on the same tokens](figures/pretraining.svg)")
    if not on.empty:
        blocks.append(gone_on(on, differences))
    return "\n\n".join(blocks)


def gone_on(runs: pd.DataFrame, differences: pd.DataFrame) -> str:
    """Runs that went on from a pretrained model with another attention: what it costs at first, and at last."""
    of_loss = differences[differences["metric"] == "mlm_loss"].set_index("to")
    rows = {}
    for _, run in runs.sort_values("start.mlm_loss").iterrows():
        shares = [percent(run["attended_share"]), rounded(run["attention_mass"], 2)]
        at_last = rounded(run["metric.mlm_loss"], 3)
        if run["run"] in of_loss.index:
            gap = of_loss.loc[run["run"]]
            at_last += f" ({signed(gap['difference'], 3)} ± {rounded(gap['standard_error'], 3)})"
        scores = [rounded(run["start.mlm_loss"], 3), at_last]
        scores += [rounded(run[f"{kind}.sop_accuracy"], 3) for kind in ("start", "metric")]
        rows[run["attention"]] = shares + scores
    columns = [
        "pairs seen",
        "softmax's mass",
        "loss, switched",
        "loss, trained on",
        "order, switched",
        "order, trained on",
    ]
    start, steps = (", ".join(map(escaped, runs[name].unique())) for name in ("start", "steps"))
    title = f"**`{start}` switched to another attention, and {steps} steps with it**"
    return f"{title}\n\n{markdown(pd.DataFrame.from_dict(rows, orient='index', columns=columns))}"


def long_range() -> str:
    """The long tasks that were trained, ours beside what is published; a recipe that all rows share stands above."""
    blocks, recipe = [], ["max_length", "seed", "steps", "shorter", "majority", "chance"]
    for task in ("duplication", "listops", "text"):
        path = ROOT / "results" / "long_range" / f"{task}.csv"
        if path.exists():
            table = shown(pd.read_csv(path, keep_default_na=True).fillna({"shorter": ""}))
            table = table.set_index("label").rename_axis(None)
            same = [name for name in recipe if name in table and table[name].nunique() == 1]
            title = "; ".join([f"**{task}**", *(f"{name}: {escaped(table[name].iloc[0])}" for name in same)])
            blocks.append(f"{title}\n\n{markdown(table.drop(columns=same))}")
    return "\n\n".join(blocks)


def readme(text: str) -> str:
    """The README as it should be: each marked place filled."""
    text = re.sub(r"(\| \[(\w+\.ipynb)\].*?\| )\[!\[Open.*?\)\]\(.*?\)", lambda m: m[1] + badge(m[2]), text)
    for mark, content in (
        ("findings: minilm", findings("minilm")),
        ("duplicates", duplicates()),
        ("switched: fidelity", switched("fidelity")),
        ("reading: fidelity", reading("fidelity")),
        ("efficiency", efficiency()),
        ("pretraining", pretraining()),
        ("findings: pretrained", findings("pretrained")),
        ("long range", long_range()),
        ("findings: long-squad", findings("long-squad")),
    ):
        if "<!--" in content:
            raise ValueError(f"README, {mark}: a comment in what is filled in would end the marked place early")
        filled = f"<!-- {mark} -->\n{content}\n<!-- end of {mark} -->"
        old = rf"<!-- {mark} -->(?:.*?<!-- end of {mark} -->)?"
        text = re.sub(old, lambda _, filled=filled: filled, text, flags=re.DOTALL)
    return text


def refreshed(path: Path) -> str:
    """The text of a notebook, or of the README, as it should be."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return readme(text)
    notebook = json.loads(text)
    title, setup = notebook["cells"][:2]
    lines = [line for line in "".join(title["source"]).split("\n") if not line.startswith("[![Open in Colab]")]
    story = "\n".join(lines[1:]).strip()
    title["source"] = f"{lines[0]}\n\n{badge(path.name)}\n\n{story}".splitlines(keepends=True)
    setup["source"] = SETUP.format(address=address()).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def targets() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.ipynb"))]


if __name__ == "__main__":
    for target in targets():
        target.write_text(refreshed(target), encoding="utf-8")
