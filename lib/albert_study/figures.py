"""The figures of documents: `write_figures("minilm")` draws figures/minilm-*, and those that studies share.

python -m albert_study.figures          all of them
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator, PercentFormatter

from albert_lsh.files import repository_root
from albert_study.articles import plot_articles
from albert_study.compare import headlines, runs_of
from albert_study.experiments.collapse import plot_collapse
from albert_study.experiments.efficiency import crossing_bounds, slopes
from albert_study.intervals import CLEAR_FROM, MARGIN
from albert_study.ladder import earlier_rungs, plot_ladder
from albert_study.names import BESIDE, METRICS, RUNGS, TITLES, TRAINED, base_of, in_order, look_of, names_of, scale_of
from albert_study.records import listed, load, load_history, read, read_measured, studies_of, wide
from albert_study.shares import has_shares, plot_shares
from albert_study.show import GREY, LOOK, add_legend, curves, dots, level, new_figure, plain, save
from albert_study.tables.studies import between

CURVES = ("softmax", "new", "shared-qk", "reformer", "lsh", "key-clusters")  # by curves, at most six
SWITCHED = {"key-clusters": "key clusters", "top-k": "best keys", "lsh": "LSH (random hashing)",
            "random": "random keys", "truncation": "a shorter text"}  # fmt: skip
GROWING = ("softmax", "reformer-pytorch", "lsh", "key-clusters", "window", "nystrom")  # six of more cases
MASKED = {"key-clusters": "key clusters", "key-clusters, no rest": "key clusters, no mean key", "top-k": "best keys",
          "random": "random keys", "top-k, rest": "best keys, mean key",
          "random, rest": "random keys, mean key"}  # fmt: skip


def histories(runs: pd.DataFrame, root: Path) -> pd.DataFrame:
    """The training curves of runs below each other, of at most six arms: `look` the arm, `name` what a legend calls it:
    "new-10-epochs" is "new projections, 10 epochs"."""
    rungs = RUNGS if "2020-block" in {*runs["arm"]} else ()
    arms = sorted(runs["arm"].unique(), key=lambda arm: [*rungs, *CURVES, base_of(arm)].index(base_of(arm)))[:6]
    tables, names = [], names_of(runs["arm"])
    for run in runs[runs["arm"].isin(arms)].to_dict("records"):
        arm, base = run["arm"], base_of(run["arm"])
        name = ", ".join(filter(None, (names.get(base, base), arm[len(base) + 1 :].replace("-", " "))))
        history = load_history((root / run["record"]).parent)
        tables.append(history.assign(name=name, look=arm, attention=run["attention"]))
    return pd.concat(tables).round({"epoch": 4})


def drawn_variants(lines: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """The lines of these variants, or of all where there are none of them, as `curves` takes them."""
    chosen = lines[lines["variant"].isin(names)]
    lines = chosen if len(chosen) else lines
    return lines.assign(name=lines["variant"].replace(names), look=lines["variant"])


def plot_training(runs: pd.DataFrame, root: Path, x: str) -> Figure:
    """One task's losses in training and evaluation against the optimiser step; or, of arms trained for more epochs,
    against the epoch, with the score beside the majority class's."""
    task, metric = runs[["task", "measure"]].iloc[0]
    counts, lines = runs.groupby("arm")["seed"].nunique(), histories(runs, root)
    arms = f"; {lines['look'].nunique()} of {len(counts)} arms" if lines["look"].nunique() < len(counts) else ""
    seeds = f"({between(counts)} seed{'s' if counts.max() > 1 else ''}{arms})"
    loss = "loss (squared error)" if metric == "pearson" else "loss (nats)"
    if x == "step":
        panels, titles = {"train_loss": loss, "eval_loss": ""}, (f"{task}, training", f"evaluation {seeds}")
        figure = curves(lines, x, panels, titles=titles)
        for axis in figure.axes:
            highest = max(axis.get_ylim()[1] for axis in figure.axes)
            axis.set(xlabel="optimiser step", xlim=(0, None), ylim=(0, highest))
        return figure
    floor = level("majority class", lines, x, **{metric: runs["majority class"].mean()}).assign(look="majority class")
    panels = {"train_loss": loss, "eval_loss": loss, metric: metric}
    figure = curves(pd.concat([lines, floor]), x, panels,
                    titles=(f"{task}, training loss", "evaluation loss", f"score {seeds}"))  # fmt: skip
    for axis in figure.axes[:2]:
        axis.set_ylim(0, None)
    for axis in figure.axes:
        axis.set_xlim(0, None)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def plot_differences(runs: pd.DataFrame, lines: pd.DataFrame) -> Figure:
    """Every run against softmax's of the same seed, a dot each, and the 95 % interval of their mean; one panel a model
    and task. Where no mean stands for the runs there is no interval, where they are constant nothing.

    runs: of `headlines`. lines: of `compare.differences`. Full dots: clear after Holm's correction. The grey band is
    MARGIN wide on either side.
    """
    lines = lines[lines["from"] == "softmax"]
    panels = {f"{plain(task)}\n{plain(str(model).split('/')[-1])}": (str(task), pairs)
              for (model, task), pairs in lines.groupby(["model", "task"], sort=False)}  # fmt: skip
    each = {title: run_by_run(runs, *panel) for title, panel in panels.items()}
    names, called = in_order(lines["to"]), names_of(lines["to"])
    figure = dots(each, {arm: called.get(arm, arm) for arm in names}, height=max(0.17, 1 / len(names)), step=0)
    for axis, of_runs, (task, pairs) in zip(figure.axes, each.values(), panels.values(), strict=True):
        metric, over = pairs[["metric", "over"]].iloc[0]
        top, digits = scale_of(task, metric)
        axis.axvspan(-MARGIN * top / 100, MARGIN * top / 100, color="#dddddd", zorder=0)
        axis.axvline(0, color="black", linewidth=0.6)
        drawn = pairs[pairs["has_mean"]]
        whole = drawn[drawn["seeds"] >= CLEAR_FROM]  # intervals of two runs may be far wider than scores go: cut
        lowest = min(of_runs["value"].min(), -0.02 * top, *whole["low"])
        highest = max(of_runs["value"].max(), 0.02 * top, *whole["high"])
        room = 0.08 * (highest - lowest)
        axis.set_xlim(left := lowest - room, right := highest + room)
        for end, mark, is_cut in ((left, "<", drawn["low"] < left), (right, ">", drawn["high"] > right)):
            for arm in drawn.loc[is_cut, "to"]:
                axis.plot(end, names.index(arm), mark, color=GREY, markersize=3, clip_on=False)
        for arm, count in pairs.loc[pairs["constant_to"] > 0, ["to", "constant_to"]].to_numpy():
            axis.text(0, names.index(arm), f"{count} constant ", ha="right", va="center", color=GREY, fontsize=7)
        score = pairs.sort_values("seeds")["score_from"].iloc[-1]  # softmax's, over the most seeds
        axis.set_xlabel(f"{METRICS[metric]} − softmax's\n{score:.{digits}f}; {over}: {between(pairs['seeds'])}")
    note = "a dot a run; full: clear after Holm's correction; grey: ± 1 point\n"
    note += "lines: 95 % intervals of the mean, none where runs are far apart and not clear; arrows: they go on"
    figure.supxlabel(note, fontsize=8)
    return figure


def run_by_run(runs: pd.DataFrame, task: str, pairs: pd.DataFrame) -> pd.DataFrame:
    """For `dots`: the difference of every run from softmax's of its seed, and at the first of an arm the interval."""
    runs = runs[(runs["task"] == task) & (runs["model"] == pairs["model"].iloc[0])]
    values = runs.pivot(index="seed", columns="arm", values="value")
    tables = []
    for pair in pairs.to_dict("records"):
        each = (values[pair["to"]] - values["softmax"]).dropna().to_numpy()
        table = pd.DataFrame({"name": pair["to"], "value": each, "full": pair["clear"], "low": np.nan, "high": np.nan})
        if pair["has_mean"]:
            table.loc[0, ["low", "high"]] = pair["low"], pair["high"]
        tables.append(table)
    return pd.concat(tables)


def plot_word_order(rows: pd.DataFrame, lines: pd.DataFrame, root: Path) -> Figure:
    """Scores on texts as they are and on shuffled ones, a line a run; one panel a task, of the most training examples.

    lines: of `compare.shuffled`.
    """
    most = lines[lines["train_examples"] == lines.groupby("task")["train_examples"].transform("max")]
    runs, panels = runs_of(rows, root).query("is_headline and split == 'shuffled'"), {}
    other = runs.set_index("record")["value"].rename("other")
    runs = headlines(rows, root).join(other, on="record").sort_values("seed")
    runs = runs.merge(most[["task", "arm", "majority", "bag_of_words"]], on=["task", "arm"])
    ends = runs[["value", "other"]]
    runs = runs.assign(name=runs["arm"].map(base_of), full=True, low=ends.min(axis=1), high=ends.max(axis=1))
    most_runs = runs.groupby(["task", "arm"]).size().max()
    for task in most["task"].unique():
        of_task = runs[runs["task"] == task]
        counts = of_task.groupby("arm").size()
        panels[f"{TITLES.get(task, task)}, {between(counts)} run{'s' if counts.max() > 1 else ''}"] = of_task
    called = names_of(runs["name"])
    figure = dots(panels, {arm: called.get(arm, arm) for arm in in_order(runs["name"])}, max(0.3, 0.1 * most_runs))
    for axis, of_task in zip(figure.axes, panels.values(), strict=True):
        axis.axvline(of_task["bag_of_words"].iloc[0], color=GREY, linestyle=":", linewidth=0.9)
        axis.axvline(of_task["majority"].iloc[0], color=GREY, linewidth=0.9)
        axis.set_xlabel(METRICS[of_task["measure"].iloc[0]])
        axis.margins(x=0.08)
    point: dict[str, Any] = {"marker": "o", "color": "black", "linestyle": "", "markersize": 4}
    handles = {"texts as they are": point, "words of every text shuffled": point | {"markerfacecolor": "white"}}
    handles |= {"a bag of words": {"color": GREY, "linestyle": ":"}, "always the same answer": {"color": GREY}}
    for label, look in handles.items():
        figure.axes[0].plot([], [], label=label, **look)
    add_legend(figure, figure.axes[0], columns=4)
    return figure


def plot_switched(lines: pd.DataFrame) -> Figure:
    """What is left of the score, and the share of answers that change, against full cost; one column a task.

    lines: of `compare.switched`, of which SWITCHED are drawn; what is below -0.3 is drawn there, without its interval.
    """
    lines = drawn_variants(lines, SWITCHED)
    low, high = (lines[name].where(lines["kept"] > -0.3) for name in ("kept_low", "kept_high"))
    title = lines["task"].replace(TITLES).str.replace("Korean ", "") + "\n" + lines["metric"].replace(METRICS)
    lines = lines.assign(kept=lines["kept"].clip(lower=-0.3), kept_low=low, kept_high=high, title=title)
    lines["most"] = lines.groupby("title")["cost"].transform("max")
    figure, upper = against_cost(lines, {"kept": "score kept\n(−0.3: or less)", "changed": "answers changed"})
    for axis in upper:
        axis.axhline(1, color="black", linewidth=0.5)
        axis.axhline(0, color="black", linewidth=0.5, linestyle=":")
        axis.set_ylim(-0.35, 1.15)
    return figure


def plot_masked_words(lines: pd.DataFrame) -> Figure:
    """How the loss of a masked word changes against the full cost, one column a length, or `title`; bars: two standard
    errors.

    lines: of variants, of which MASKED are drawn.
    """
    lines = drawn_variants(lines, MASKED).sort_values("length", kind="stable")
    change, error = lines["difference"], 2 * lines["standard_error"]
    lines = lines.assign(difference_low=change - error, difference_high=change + error, most=lines["cost"].max())
    if "title" not in lines:
        lines["title"] = lines["length"].map("{:.0f} tokens".format)
    figure, upper = against_cost(lines, {"difference": "nats above\nsoftmax's", "change": "change, either way"})
    for axis in upper:
        axis.axhline(0, color="black", linewidth=0.6)
    return figure


def against_cost(lines: pd.DataFrame, panels: dict[str, str]) -> tuple[Figure, list[Axes]]:
    """Two rows of panels, a column for each `title`, against the full cost, at `most` so high; and the upper row."""
    figure = curves(lines, "cost", panels, "title", size=(6.6, 3.6))
    costs = [*lines.groupby("title", sort=False)["most"].first()]
    for axis, most in zip(figure.axes, costs * 2, strict=True):
        axis.xaxis.set_major_locator(MultipleLocator(0.5 if most < 1.6 else 1))
        axis.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
        axis.set_xlim(0, most * 1.08)  # a panel may be empty: a share of nothing is not kept
        axis.set_xlabel("full cost, %" if axis.get_xlabel() else "")
    figure.axes[-1].set_ylim(0, None)
    return figure, figure.axes[: len(costs)]


def plot_pretraining(rows: pd.DataFrame, root: Path) -> Figure:
    """Held-out loss and accuracies against the step, beside what counting pieces (or a coin) reaches, of new models:
    those of the most steps and, among these, of the kind and size that most have.
    """
    lines = wide(rows)
    longest = lines[lines["steps"] == lines["steps"].max()]
    lines = lines[lines["model"] == longest["model"].mode()[0]]
    runs, counting = lines[lines["attention"] != ""].drop_duplicates("record"), lines[lines["attention"] == ""]
    titles = {"mlm_loss": "loss, nats a masked token", "mlm_accuracy": "accuracy, masked tokens"}
    titles |= {"sop_accuracy": "accuracy, order of segments"}
    titles = {name: title for name, title in titles.items() if name in counting and counting[name].notna().any()}
    about = zip(runs["record"], runs["arm"], runs["attention"], strict=True)
    tables = (pd.read_csv((root / record).with_name("history.csv")).assign(name=arm, attention=attention)
              for record, arm, attention in about)  # fmt: skip
    steps = pd.concat(tables)
    counted = level("counting, or a coin", steps, "step", **counting[list(titles)].mean())
    return curves(pd.concat([steps, counted]), "step", dict.fromkeys(titles, ""), titles=titles.values())


def at_most_six(table: pd.DataFrame) -> pd.DataFrame:
    """The lines that a figure shows; its table has all."""
    drawn = [case for case in GROWING if case in set(table["case"])][:6]
    return table[table["case"].isin(drawn)] if table["case"].nunique() > 6 else table


def case_look(case: str) -> dict[str, Any]:
    """Line and marker of a case: those of its attention, the marker hollow for a second form of it."""
    kind = case.split(",")[0]
    hollow = {"markerfacecolor": "white"} if "," in case else {}
    return look_of("reformer" if kind == "reformer-pytorch" else kind) | hollow


def plot_growth(table: pd.DataFrame, value: str, quantity: str, unit: float = 1.0) -> Figure:
    """A quantity of each case against the length, on log axes.

    The legend has the fitted power of the length and, for times, the length from which a case is faster than softmax.
    """
    figure, axes = new_figure(6.6, 4.4)
    table, axis = at_most_six(table), axes[0, 0]
    powers = slopes(table, value)
    faster = crossing_bounds(table).dropna() if value == "seconds" else pd.DataFrame()
    for case, rows in table.groupby("case", sort=False):
        notes = [f"{powers[case]:.1f}"] if pd.notna(powers.get(case)) else []
        if case in faster.index:
            above, up_to = faster.loc[case]
            notes += [f"from {up_to:,.0f}" if above in (0, up_to) else f"from {above:,.0f} to {up_to:,.0f}"]
        label = f"{case} ({', '.join(notes)})" if notes else str(case)
        axis.plot(rows["length"], rows[value] / unit, label=label, **case_look(str(case)))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(xlabel="length (tokens)", ylabel=quantity)
    add_legend(figure, axis, 2)
    return figure


def plot_efficiency(tables: dict[str, pd.DataFrame]) -> dict[str, Figure]:
    """A figure of each of the tables time and memory (see `experiments.efficiency`), by name."""
    both = tables["time"][tables["time"]["pass"] == "forward+backward"]
    figures = {"efficiency-time": plot_growth(both, "seconds", "seconds, forward and backward")}
    if "memory" in tables:
        peaks = tables["memory"][tables["memory"]["kind"] == "attention"]
        figures["efficiency-memory"] = plot_growth(peaks, "bytes", "peak memory (MiB)", 2**20)
    return figures


def draw_figures(study: str, root: Path) -> dict[str, Figure]:
    """A study's losses task by task, scores over more epochs or examples where arms have them, differences, the ladder,
    attention switched, words shuffled and the spread of states, by name."""
    rows = load(root, study)
    runs = headlines(rows, root)
    trained, figures = runs["arm"].str.extract(TRAINED, expand=False).fillna(""), {}
    is_longer, is_sized = trained.str.endswith("-epochs"), trained.str.isdigit()  # the latter have a table
    for name, x, chosen in (("loss", "step", ~is_longer & ~is_sized), ("convergence", "epoch", is_longer)):
        for task, of_task in runs[chosen].groupby("task", sort=False):
            figures[f"{study}-{name}-{task}"] = plot_training(of_task, root, x)
    names = ("differences", "switched", "second", "shuffled")
    pairs, switched, second, shuffled = (read(root, f"tables/{study}-{name}") for name in names)
    if "2020-block" in {*runs["arm"]}:
        figures[study] = plot_ladder(pd.concat([rows, earlier_rungs(root)]), RUNGS | BESIDE, root)
    if has_shares([*runs["arm"].unique()]):
        figures[f"{study}-shares"] = plot_shares(runs)
    if len(pairs) and (pairs["from"] == "softmax").any():
        figures[f"{study}-differences"] = plot_differences(runs, pairs)
    if len(switched):
        of_version_2 = [second[second["variant"] == "key-clusters"]] if len(second) else []  # in models of its own
        lines = pd.concat([switched[switched["split"] != "held-out"], *of_version_2])
        figures[f"{study}-switched"] = plot_switched(lines)
    if len(shuffled):
        figures[f"{study}-shuffled"] = plot_word_order(rows, shuffled, root)
    of_articles = [read(root, f"runs/{study}/{name}") for name in ("scores", "times")]
    if all(map(len, of_articles)):
        figures[study] = plot_articles(*of_articles)
    if len(spreads := read(root, f"runs/{study}/collapse")):
        figures[f"{study}-collapse"] = plot_collapse(spreads)
    return figures


def write_figures(*studies: str, root: str | Path | None = None) -> list[Path]:
    """Draw studies, and once what they have in common; each figure is saved as figures/<name>.svg, .pdf and .png.

    Returns the paths written.
    """
    root, figures = Path(root or repository_root()), {}
    rows = load(root)
    with mpl.rc_context(LOOK):
        if len(masked := rows[(rows["kind"] == "masked words") & (rows["study"] == "masked-words")]):
            figures["masked-words"] = plot_masked_words(wide(masked))
        models = {"nano": "learned positions (nano)", "rotary": "rotary positions"}
        switched = [read(root, f"runs/rotary/{model}").assign(title=title) for model, title in models.items()]
        if all(map(len, switched)):  # of the best keys, too, all had a mean key
            figures["rotary"] = plot_masked_words(pd.concat(switched).replace({"variant": {"top-k": "top-k, rest"}}))
        if len(new := rows[(rows["kind"] == "pretrained") & rows["variant"].isna()]):
            figures["pretraining"] = plot_pretraining(new, root)  # those that go on from other weights begin elsewhere
        measured = listed(root, sorted((root / "results/runs/collapse").glob("*.csv")))
        if collapsed := [path for path in measured if not path.stem.startswith("trained-")]:
            figures["collapse"] = plot_collapse(pd.concat(read_measured(path, root) for path in collapsed))
        timed = {name: read(root, f"efficiency/{name}-cpu-fp32") for name in ("time", "memory")}
        if tables := {name: table for name, table in timed.items() if len(table)}:
            figures |= plot_efficiency(tables)
        for study in studies:
            figures |= draw_figures(study, root)
        return [path for name, figure in figures.items() for path in save(figure, root / "figures" / name)]


if __name__ == "__main__":
    print(*write_figures(*studies_of(repository_root())), sep="\n")
