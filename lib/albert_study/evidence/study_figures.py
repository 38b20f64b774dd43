"""Figures of a study from its run records.

`write_figures("minilm")` draws figures/minilm-*.{svg,pdf} and what all studies share: structure, flow, settings,
masked-words, pretraining.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from albert_lsh.files import repository_root
from albert_lsh.tasks import TASKS
from albert_study.evidence.bootstrap import MARGIN
from albert_study.evidence.differences import ARMS, TRAINED, in_order
from albert_study.evidence.formats import METRICS, between, form, scale_of, spread
from albert_study.evidence.looks import LOOK, STYLES, add_legend, lighter, look_of, new_figure, plain, save, style_of
from albert_study.evidence.masked_words import load_masked_words, plot_masked_words
from albert_study.evidence.records import (
    load_history,
    load_measurements,
    load_pretraining,
    load_runs,
)
from albert_study.evidence.structure_figure import plot_flow, plot_structure
from albert_study.evidence.switched import plot_switched
from albert_study.evidence.tables import score_table, settings_table, with_most_runs
from albert_study.evidence.word_order import plot_word_order


def seeds_of(runs: pd.DataFrame) -> str:
    """How many seeds the arms have: "3 seeds", or "1 to 3 seeds" where they differ."""
    counts = runs.groupby("arm")["seed"].nunique()
    return f"{between(counts)} seed{'s' if counts.max() > 1 else ''}"


def loss_name(task: str) -> str:
    return "squared error" if task in TASKS and TASKS[task].is_regression else "nats"


def draw_curves(axis: Axes, runs: pd.DataFrame, value: str, over: str) -> None:
    """One curve an arm, the mean over its seeds, in a band from the lowest to the highest."""
    for arm, of_arm in runs.groupby("arm", sort=False):
        rows = pd.concat(map(load_history, of_arm["folder"])).reindex(columns=[over, value]).dropna()
        if rows.empty:
            continue
        points = rows.round({over: 4}).groupby(over)[value].agg(["mean", "min", "max"])
        style = style_of(look_of(str(arm), of_arm["attention"].iloc[0]))
        colour = lighter(style.colour) if of_arm["random_weights"].iloc[0] else style.colour
        look: dict[str, Any] = {"color": colour, "linestyle": style.line, "label": plain(arm)}
        if value != "train_loss" or len(points) < 2:
            look |= {"marker": style.marker, "markeredgecolor": "white", "markeredgewidth": 0.4}
        axis.plot(points.index, points["mean"], **look)
        axis.fill_between(points.index, points["min"], points["max"], color=colour, alpha=0.15, linewidth=0)


def plot_loss(runs: pd.DataFrame) -> Figure:
    """Training and evaluation loss of one task against the optimiser step, its arms overlaid."""
    task = runs["task"].iloc[0]
    rows_of_legend = -(-runs["arm"].nunique() // 5)
    figure, axes = new_figure(6.6, 2.0 + 0.17 * rows_of_legend, ncols=2, sharey=True)
    for axis, name, title in zip(axes[0], ("train", "eval"), (f"{task}, training", "evaluation"), strict=True):
        draw_curves(axis, runs, f"{name}_loss", "step")
        seeds = f" ({seeds_of(runs)})" if name == "eval" else ""
        axis.set(xlabel="optimiser step", xlim=(0, None), title=title + seeds)
    axes[0, 0].set(ylabel=f"loss ({loss_name(task)})", ylim=(0, None))
    add_legend(figure, axes[0, 1], columns=5)
    return figure


def plot_convergence(runs: pd.DataFrame) -> Figure:
    """The arms trained for more epochs: losses and score of one task against the epoch."""
    task, headline = runs["task"].iloc[0], runs["headline"].iloc[0]
    figure, axes = new_figure(6.6, 2.0, ncols=3)
    draw_baselines(axes[0, 2], score_table(runs), horizontal=True)
    titles = (f"{task}, training loss", "evaluation loss", f"score ({seeds_of(runs)})")
    for axis, column, title in zip(axes[0], ("train_loss", "eval_loss", headline), titles, strict=True):
        draw_curves(axis, runs, column, "epoch")
        is_loss = "loss" in column
        axis.set(title=title, xlabel="epoch", xlim=(0, None))
        axis.set_ylabel(f"loss ({loss_name(task)})" if is_loss else headline)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_ylim(0 if is_loss else None, None)
    add_legend(figure, axes[0, 2], columns=4)
    return figure


def plot_by_examples(scores: pd.DataFrame) -> Figure:
    """The score of one task against the number of training examples, a line an attention, over score_table's rows."""
    task, headline = scores["task"].iloc[0], scores["headline"].iloc[0]
    figure, axes = new_figure(4.4, 2.4)
    axis = axes[0, 0]
    for arm, rows in scores.groupby(scores["arm"].str.replace(TRAINED, "", regex=True), sort=False):
        points = rows.sort_values("examples.train")
        style = style_of(look_of(str(arm), rows["attention"].iloc[0]))
        look: dict[str, Any] = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
        label = ARMS.get(str(arm), plain(arm))
        axis.errorbar(points["examples.train"], points["score"], points["sd"], capsize=2, label=label, **look)
    draw_baselines(axis, scores, horizontal=True)
    counts = sorted(scores["examples.train"].unique())
    axis.set_xscale("log")
    axis.set_xticks(counts, [form(count, "0") for count in counts])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="training examples", ylabel=headline, title=plain(task))
    add_legend(figure, axis, columns=3)
    return figure


def draw_baselines(axis: Axes, scores: pd.DataFrame, *, horizontal: bool = False) -> None:
    """Lines at the scores of the majority class and of chance."""
    row = with_most_runs(scores)
    draw = axis.axhline if horizontal else axis.axvline
    for kind, label, line in (("majority", "majority class", "-"), ("chance", "chance", ":")):
        if pd.notna(row[kind]):
            draw(row[kind], color="#444444", linestyle=line, linewidth=0.9, zorder=3, label=label)


def plot_scores(scores: pd.DataFrame) -> Figure:
    """Headline scores as bars, mean and standard deviation over seeds; one panel a task (and model, where several)."""
    several = scores["model"].nunique() > 1
    panels = [(f"{task}, {model}" if several else str(task), of_task)
              for (task, model), of_task in scores.groupby(["task", "model"], sort=False)]  # fmt: skip
    columns = 1 if len(panels) <= 3 else 2
    rows = -(-len(panels) // columns)
    bars = [max(len(arms) for _, arms in panels[r * columns : (r + 1) * columns]) for r in range(rows)]
    height = sum(0.17 * n + 0.55 for n in bars) + 0.25
    heights = {"height_ratios": [0.17 * n + 0.3 for n in bars]}
    figure, axes = new_figure(6.6, height, nrows=rows, ncols=columns, gridspec_kw=heights)
    for index, (title, arms) in enumerate(panels):
        draw_bars(axes.flat[index], arms, title, bars[index // columns])
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    add_legend(figure, axes.flat[0], columns=2)
    return figure


def draw_bars(axis: Axes, arms: pd.DataFrame, title: str, slots: int) -> None:
    """One task's bars, with the number at the end of each."""
    top, digits = scale_of(str(arms["task"].iloc[0]))
    for place, row in enumerate(arms.to_dict("records")):
        style = style_of(look_of(row["arm"], row["attention"]))
        error = row["sd"] if pd.notna(row["sd"]) else None
        fill: dict[str, Any] = {"facecolor": lighter(style.colour), "edgecolor": style.colour, "hatch": style.hatch}
        whisker = {"elinewidth": 0.9, "ecolor": "#444444"}
        axis.barh(place, row["score"], 0.72, xerr=error, capsize=2, error_kw=whisker, **fill)
        seeds = f"{row['seeds']} seed{'s' if row['seeds'] > 1 else ''}"
        text = f"{spread(row['score'], row['sd'], str(digits))}, {seeds}"
        axis.text(1.02, place, text, transform=axis.get_yaxis_transform(), va="center", fontsize=8)
    draw_baselines(axis, arms)
    axis.set_yticks(range(len(arms)), [plain(arm) for arm in arms["arm"]])
    axis.set_ylim(slots - 0.4, -0.6)
    axis.set_xlim(min(0.0, 1.1 * arms["score"].min()), top)
    axis.set_title(f"{plain(title)}: {arms['headline'].iloc[0]} (of {top})", loc="left")


TICKS = (-0.5, -0.05, 0.0, 0.05)  # of differences of scores from 0 to 1


def plot_differences(table: pd.DataFrame) -> Figure:
    """A forest plot: every arm's difference from softmax with its 95 % interval; one panel a model and task.

    table: rows of `differences`. A full marker: clear after Holm's correction. Beyond the grey band, a loss or gain of
    1 % of softmax's score, the scale is logarithmic: some arms lose hundredths of it, others nearly all. An interval is
    drawn as far as scores go, from half of softmax's below zero to a perfect one.
    """
    table = table[table["from"] == "softmax"]
    panels = list(table.groupby(["model", "task"], sort=False))
    arms = in_order(table["to"])
    figure, axes = new_figure(6.6, 0.17 * len(arms) + 1.15, ncols=len(panels), sharey=True)
    for axis, ((model, task), rows) in zip(axes[0], panels, strict=True):
        for row in rows.to_dict("records"):
            place, style = arms.index(row["to"]), style_of(row["to"])
            error = [[row["difference"] - row["low"]], [row["high"] - row["difference"]]]
            face = style.colour if row["clear"] else "white"
            look: dict[str, Any] = {"fmt": "o", "color": style.colour, "markerfacecolor": face, "capsize": 2}
            axis.errorbar(row["difference"], place, xerr=error, **look)
        score = rows.sort_values("seeds")["score_from"].iloc[-1]  # softmax's, over the most seeds
        margin = MARGIN * abs(score)
        axis.axvspan(-margin, margin, color="#dddddd", zorder=0)
        axis.set_xscale("symlog", linthresh=margin, linscale=0.4)
        lowest, highest = axis.get_xlim()
        highest = min(highest, scale_of(str(task))[0] - score)
        ticks = [tick * scale_of(str(task))[0] for tick in TICKS if tick * scale_of(str(task))[0] < highest]
        axis.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlim(max(lowest, -1.5 * abs(score)), highest)
        axis.axvline(0, color="black", linewidth=0.6)
        metric, seeds = METRICS.get(rows["metric"].iloc[0], rows["metric"].iloc[0]), between(rows["seeds"])
        softmax = form(score, str(scale_of(str(task))[1]))
        axis.set_title(f"{plain(task)}\n{plain(str(model).split('/')[-1])}", loc="left")
        axis.set_xlabel(f"{metric} − softmax's\n{softmax}; {rows['over'].iloc[0]}: {seeds}")
        axis.set_ylim(len(arms) - 0.5, -0.5)
        axis.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes[0, 0].set_yticks(range(len(arms)), [ARMS.get(arm, plain(arm)) for arm in arms])
    note = (
        "grey: ± 1 % of softmax's score; beyond it the scale is logarithmic; full points: clear after Holm's correction"
    )
    figure.supxlabel(note, fontsize=8)
    return figure


def plot_settings(table: pd.DataFrame) -> Figure:
    """How `lsh` spends a quarter of the pairs, and its cost, against the length."""
    share = 0.25
    kinds = {
        "of_all": ("seen by all", "#444444", ""),
        "of_clusters": ("of chosen clusters", STYLES["lsh"].colour, "---"),
    }
    figure, axes = new_figure(3.2, 2.5)
    axis, rows = axes[0, 0], table[table["share"] == share].dropna().sort_values("length")
    below = 0 * rows["length"]
    for name, (text, shade, hatch) in kinds.items():
        look: dict[str, Any] = {"facecolor": lighter(shade), "edgecolor": shade, "hatch": hatch}
        axis.fill_between(rows["length"], below, below + rows[name], label=text, linewidth=0.5, **look)
        below = below + rows[name]
    axis.plot(rows["length"], rows["cost"], "k:", label="cost of everything")
    axis.axhline(share, color="black", linewidth=0.5)
    axis.set_xscale("log", base=2)
    axis.set(title=f"lsh, a share of {form(share, '%')}", xlabel="length (tokens)")
    axis.set(ylabel="share of the keys, or of full cost", ylim=(0, None))
    add_legend(figure, axis, 3)
    return figure


def plot_pretraining(runs: pd.DataFrame) -> Figure:
    """Held-out loss and accuracies against the step, a curve a run, beside what counting pieces (or a coin) reaches."""
    titles = ("loss, nats a masked token", "accuracy, masked tokens", "accuracy, order of segments")
    figure, axes = new_figure(6.6, 2.7, ncols=3)
    for axis, name, title in zip(axes[0], ("mlm_loss", "mlm_accuracy", "sop_accuracy"), titles, strict=True):
        for _, run in runs.iterrows():
            style, history = style_of(run["attention"]), pd.read_csv(Path(run["folder"]) / "history.csv")
            points = history.dropna(subset=[name])
            axis.plot(points["step"], points[name], linestyle=style.line, color=style.colour, label=plain(run["run"]))
        axis.axhline(runs[f"counting.{name}"].mean(), color="#777777", linestyle=":", label="counting, or a coin")
        axis.set(xlabel="step", title=title)
    add_legend(figure, axes[0, 0], 3)
    return figure


def draw_common_figures(root: Path) -> dict[str, Figure]:
    """The figures that belong to no study, by name."""
    figures = {"structure": plot_structure(), "flow": plot_flow(), "settings": plot_settings(settings_table())}
    if len(masked := load_masked_words(root)):
        figures["masked-words"] = plot_masked_words(masked)
    pretraining = load_pretraining(root / "results" / "pretraining")
    if not pretraining.empty and not (new := pretraining[pretraining["start"].isna()]).empty:
        figures["pretraining"] = plot_pretraining(new)  # those that go on from another's weights begin elsewhere
    return figures


def draw_figures(study: str, root: Path) -> dict[str, Figure]:
    """A study's scores, its losses task by task, scores over more epochs or examples where arms have them, by name."""
    runs = load_runs(root / "results" / "runs", study)
    trained = runs["arm"].str.extract(TRAINED, expand=False).fillna("")
    longer, sized = trained.str.endswith("-epochs"), trained.str.isdigit()  # these have figures of their own
    others = ~longer & ~sized
    figures = {}
    if others.any():
        figures[f"{study}-scores"] = plot_scores(score_table(runs[others]))
    for task, of_task in runs[sized].groupby("task", sort=False):
        figures[f"{study}-examples-{task}"] = plot_by_examples(score_table(of_task))
    for name, plot, chosen in (("loss", plot_loss, others), ("convergence", plot_convergence, longer)):
        for task, of_task in runs[chosen].groupby("task", sort=False):
            figures[f"{study}-{name}-{task}"] = plot(of_task)
    found = load_measurements(f"{study}-differences", "tables", root)
    if len(found) and (found["from"] == "softmax").any():
        figures[f"{study}-differences"] = plot_differences(found)
    if len(found := load_measurements(f"{study}-switched", "tables", root)):
        figures[f"{study}-switched"] = plot_switched(found)
    if len(found := load_measurements(f"{study}-shuffled", "tables", root)):
        figures[f"{study}-shuffled"] = plot_word_order(runs, found)
    return figures


def write_figures(*studies: str, root: str | Path | None = None) -> list[Path]:
    """Draw studies, and once what they have in common; each figure is saved as figures/<name>.svg and .pdf.

    Returns the paths written.
    """
    root = Path(root) if root else repository_root()
    with mpl.rc_context(LOOK):
        figures = draw_common_figures(root)
        for study in studies:
            figures |= draw_figures(study, root)
        return [path for name, figure in figures.items() for path in save(figure, root / "figures" / name)]
