"""Answers in whole articles, drawn: F1 against seconds, and by the answer's place (studies/long-squad.yaml)."""

from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from albert_study.names import look_of
from albert_study.show import add_legend, new_figure

WITHIN = 2  # points of F1 around softmax's that the study takes for as good


class Drawn(NamedTuple):
    """How an arm is drawn."""

    name: str
    look: str  # the arm or attention whose look it has
    is_hollow: bool = False  # beside another of the same look


ARMS = {
    "windows-384": Drawn("softmax, windows of 384", "truncated"),
    "softmax": Drawn("softmax, whole context", "softmax"),
    "softmax-high-rate": Drawn("the same at 2e-4", "softmax", is_hollow=True),
    "key-clusters-quarter": Drawn("key clusters ¼, trained", "key-clusters"),
    "softmax, then key-clusters 0.25": Drawn("key clusters ¼, switched", "key-clusters", is_hollow=True),
    "softmax, then key-clusters 0.125": Drawn("key clusters ⅛, switched", "key-clusters-half", is_hollow=True),
    "softmax, then lsh, mean key 0.25": Drawn("LSH ¼, mean key, switched", "lsh"),
    "softmax, then window 0.25": Drawn("window ¼, switched", "window"),
    "softmax, then random, mean key 0.25": Drawn("random ¼, mean key, switched", "random"),
    "softmax, then nystrom 0.25": Drawn("Nyström, switched", "nystrom"),
}
# Arms that were not timed by themselves, with one that takes as long: time does not hang on weights.
TIMED = {"softmax-high-rate": "softmax", "key-clusters-quarter": "softmax, then key-clusters 0.25"}


def plot_articles(scores: pd.DataFrame, times: pd.DataFrame) -> Figure:
    """F1 against seconds a question, a point an arm and seed; and F1 by the eighth of the context that has the answer.

    scores, times: as benchmarks/long_squad.py writes them. Grey: as good as softmax on the whole context.
    """
    seconds = (times["seconds"] / times["questions"]).groupby(times["arm"]).first()
    runs = scores[scores["seeds"].astype(str).str.isdecimal()]  # without means over seeds
    figure, axes = new_figure(6.6, 3.2, ncols=2, sharey="row")
    left, right = axes[0]
    softmax = runs.loc[runs["arm"] == "softmax", "f1"].mean()
    left.axhspan(softmax - WITHIN, softmax + WITHIN, color="#dddddd", zorder=0, label=f"± {WITHIN} points of F1")
    for arm, drawn in ARMS.items():
        if (of_arm := runs[runs["arm"] == arm]).empty:
            continue
        look = look_of(drawn.look) | ({"markerfacecolor": "white"} if drawn.is_hollow else {})
        left.plot(
            [seconds[TIMED.get(arm, arm)]] * len(of_arm), of_arm["f1"], label=drawn.name, **look | {"linestyle": ""}
        )
        places = of_arm.filter(like="f1_eighth_").mean()
        right.plot(range(1, len(places) + 1), places, **look)
    slowest = max(line.get_xdata().max() for line in left.lines)
    left.set(xlabel="seconds a question", ylabel="F1", xlim=(0, 1.08 * slowest), ylim=(0, None))
    right.set(xlabel="eighth of the context that has the answer")
    add_legend(figure, left, columns=3)
    return figure
