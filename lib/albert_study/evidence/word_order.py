"""Does a model see the order of words? Its scores on texts as they are, and on the same texts with shuffled words.

A run with `shuffle_words` keeps its answers to both (see `albert_lsh.tasks.with_shuffled_words`). What sees no
order, such as a bag of words, answers both alike.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from albert_lsh.tasks import find_task
from albert_study.evidence.bootstrap import crossed, difference
from albert_study.evidence.differences import ARMS, TRAINED, in_order, predictions_of
from albert_study.evidence.formats import METRICS, Named, Table, about, commits, form, listing
from albert_study.evidence.looks import add_legend, look_of, new_figure, style_of

TITLES = {"sst2": "SST-2", "cola": "CoLA", "mnli": "MNLI", "stsb": "STS-B", "mrpc": "MRPC"}


def word_order(runs: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """A row a task and arm of the runs that answered shuffled texts too; empty where there are none.

    Columns: task, model, arm, metric, train_examples, examples, seeds, score, shuffled (means over seeds), difference,
    low, high (95 %, over seeds and examples), changed (share of answers that are another class when words are
    shuffled; NaN where a number is predicted), changed_low, changed_high, bag_of_words, majority, commit.

    Args:
        words: of `load_words`.
    """
    rows = []
    for (name, model, arm), of_arm in runs.groupby(["task", "model", "arm"], sort=False):
        before, after = predictions_of(of_arm), predictions_of(of_arm, "shuffled")
        if not after:
            continue
        metric, size = of_arm["headline"].iloc[0], int(of_arm["examples.train"].iloc[0])
        both = of_arm[of_arm["seed"].isin(list(after))]
        change = difference(before, after, metric)
        row = {"task": name, "model": model, "arm": arm, "metric": metric, "train_examples": size}
        row |= {"examples": change.examples, "seeds": change.seeds, "score": both["score"].mean()}
        row |= {"shuffled": both[f"metric.{metric}_shuffled"].mean()}
        row |= {"difference": change.mean, "low": change.low, "high": change.high}
        if not find_task(str(name)).is_regression:
            row |= changed(before, after)
        alike = words[(words["task"] == name) & (words["train"] == size)]
        row["bag_of_words"] = alike["headline"].iloc[0] if len(alike) else np.nan
        row |= {"majority": both[f"majority.{metric}"].mean(), "commit": "; ".join(dict.fromkeys(both["commit"]))}
        rows.append(row)
    order = ["softmax", *in_order({base_of(row["arm"]) for row in rows} - {"softmax"})]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    rows.sort(key=lambda row: (tasks.index(row["task"]), row["train_examples"], order.index(base_of(row["arm"]))))
    return pd.DataFrame(rows)


def changed(before: dict[int, pd.DataFrame], after: dict[int, pd.DataFrame]) -> dict[str, float]:
    """The share of answers that are another class after than before, with its interval over seeds and examples."""
    other = np.array([(before[seed]["answer"] != after[seed]["answer"]).to_numpy(float) for seed in sorted(after)])
    half, _ = crossed(other.mean(1), other.mean(0).var(ddof=1) / other.shape[1])
    mean = float(other.mean())
    return {"changed": mean, "changed_low": max(mean - float(half), 0.0), "changed_high": min(mean + float(half), 1.0)}


def load_words(root: Path, study: str) -> pd.DataFrame:
    """What a bag of words scores, by task and number of training examples: words*.csv of the study, and the study
    bag-of-words."""
    runs = root / "results" / "runs"
    paths = [*sorted((runs / study).glob("words*.csv")), *sorted((runs / "bag-of-words").glob("*.csv"))]
    tables = [pd.read_csv(path) for path in paths]
    return pd.concat(tables) if tables else pd.DataFrame(columns=["task", "train", "headline"])


def base_of(arm: object) -> str:
    """The arm without how it was trained: "softmax-8000" is softmax."""
    return TRAINED.sub("", str(arm))


def word_order_tables(study: str, load: Callable) -> Named:
    """The table as people read it, and the bag of words of each task as its last row."""
    rows = load(f"{study}-shuffled")
    if rows.empty:
        return
    shown = []
    for (task, size), of_task in rows.groupby(["task", "train_examples"], sort=False):
        place = f"{TITLES.get(str(task), task)} ({METRICS.get(of_task['metric'].iloc[0], '')}), {size:,} examples"
        for row in of_task.to_dict("records"):
            interval = f"{form(row['difference'], '+3')} ({form(row['low'], '+3')} to {form(row['high'], '+3')})"
            ends = f"{form(row['changed_low'], '%1').rstrip('%')} to {form(row['changed_high'], '%1')}"
            share = "" if pd.isna(row["changed"]) else f"{form(row['changed'], '%1')} ({ends})"
            arm = base_of(row["arm"])
            shown.append(row | {"place": place, "shown": ARMS.get(arm, arm), "change": interval, "share": share})
        first = of_task.iloc[0]
        if pd.notna(first["bag_of_words"]):
            same = {"score": first["bag_of_words"], "shuffled": first["bag_of_words"]}
            shown.append({"place": place, "shown": "a bag of words", **same})
        floor = {"score": first["majority"], "shuffled": first["majority"]}
        shown.append({"place": place, "shown": "always the same answer", **floor})
    columns = {"attention": ("shown", ""), "as it is": ("score", "3"), "shuffled": ("shuffled", "3")}
    columns |= {"difference (95 % interval)": ("change", ""), "answers that change": ("share", "")}
    columns |= {"runs": ("seeds", "0")}
    note = f"Means over runs, intervals over runs and examples. {about(study, rows)}"
    yield f"{study}-shuffled", Table(listing(pd.DataFrame(shown), "place", columns), note)


def twins_table(load: Callable) -> Named:
    """Who tells a text's twin from another text, run by run (see `probe.twins`)."""
    rows = load("twins", "runs/word-order/stsb")
    if rows.empty:
        return
    by_arm = rows.sort_values("seed").groupby("arm", sort=False)
    arms = ["softmax", *in_order(set(rows["arm"]) - {"softmax"})]
    shown = {
        ARMS.get(arm, arm): {
            "texts whose twin is valued higher": ", ".join(form(x, "%") for x in by_arm.get_group(arm)["told_apart"]),
            "attention of a token to its copy": ", ".join(
                f"{form(x, '1')} ×" for x in by_arm.get_group(arm)["weight_of_copies"]
            ),
        }
        for arm in arms
    }
    note = f"{rows['pairs'].iloc[0]} texts of STS-B, run by run; a coin has 50%. Attention: of the head and layer that "
    note += f"gives most, against an equal share. {commits(rows)}."
    yield "twins", Table(pd.DataFrame.from_dict(shown, orient="index"), note)


def plot_word_order(runs: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Scores as it is and shuffled, a line a run; one panel a task, of the most training examples.

    Args:
        runs: of `load_runs`. table: of `word_order`.
    """
    most = table[table["train_examples"] == table.groupby("task")["train_examples"].transform("max")]
    tasks = list(most["task"].unique())
    arms = in_order({base_of(arm) for arm in most["arm"]} - {"softmax"})
    arms = ["softmax", *arms]
    figure, axes = new_figure(6.6, 0.3 * len(arms) + 1.0, ncols=len(tasks), sharey=True)
    for axis, task in zip(axes[0], tasks, strict=True):
        rows = most[most["task"] == task]
        metric = rows["metric"].iloc[0]
        for arm in rows["arm"]:
            style = style_of(look_of(str(arm), "softmax"))
            own = runs[(runs["task"] == task) & (runs["arm"] == arm)].sort_values("seed")
            places = arms.index(base_of(arm)) + (np.arange(len(own)) - (len(own) - 1) / 2) * 0.22
            ends = own["score"].to_numpy(), own[f"metric.{metric}_shuffled"].to_numpy()
            axis.hlines(places, *ends, color=style.colour, linewidth=0.8)
            axis.plot(ends[0], places, "o", color=style.colour, markersize=3)
            axis.plot(ends[1], places, "o", color=style.colour, markerfacecolor="none", markersize=6)
        if pd.notna(rows["bag_of_words"].iloc[0]):
            axis.axvline(rows["bag_of_words"].iloc[0], color="#444444", linestyle=":", linewidth=0.9)
        axis.axvline(rows["majority"].iloc[0], color="#444444", linewidth=0.9)
        count = f"{rows['seeds'].iloc[0]} run{'s' if rows['seeds'].iloc[0] > 1 else ''}"
        axis.set_title(f"{TITLES.get(str(task), task)}, {count}", loc="left")
        axis.set_xlabel(METRICS.get(metric, metric))
        axis.margins(x=0.08)
    axes[0, 0].set_yticks(range(len(arms)), [ARMS.get(arm, arm) for arm in arms])
    axes[0, 0].set_ylim(len(arms) - 0.5, -0.5)
    handles: dict[str, Any] = {
        "texts as they are": {"marker": "o", "color": "black", "linestyle": ""},
        "words of every text shuffled": {"marker": "o", "color": "black", "markerfacecolor": "white", "linestyle": ""},
        "a bag of words": {"color": "#444444", "linestyle": ":"},
        "always the same answer": {"color": "#444444"},
    }
    for label, look in handles.items():
        axes[0, 0].plot([], [], label=label, **look)
    add_legend(figure, axes[0, 0], columns=4)
    return figure
