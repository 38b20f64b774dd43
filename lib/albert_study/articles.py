"""Answers in whole articles, drawn: F1 against seconds, and by the answer's place (studies/long-squad.yaml)."""

import pandas as pd
from matplotlib.figure import Figure

from albert_study.names import look_of
from albert_study.show import add_legend, new_figure

WITHIN = 2  # points of F1 around softmax's that the study takes for as good
ARMS = {  # by arm: its name, and the attention whose look it has; switched ones are hollow
    "windows-384": ("softmax, windows of 384", "truncated"),
    "softmax": ("softmax", "softmax"),
    "key-clusters-quarter": ("key clusters ¼, trained", "key-clusters"),
    "softmax, then key-clusters 0.25": ("key clusters ¼, switched", "key-clusters"),
    "softmax, then key-clusters 0.125": ("key clusters ⅛, switched", "key-clusters-half"),
    "softmax, then lsh, mean key 0.25": ("LSH ¼, mean key, switched", "lsh"),
    "softmax, then window 0.25": ("window ¼, switched", "window"),
    "softmax, then random, mean key 0.25": ("random keys ¼, mean key, switched", "random"),
    "softmax, then nystrom": ("Nyström, switched", "nystrom"),
}
PLACES = ("windows-384", "softmax", "key-clusters-quarter", "softmax, then key-clusters 0.25")  # drawn by place


def plot_articles(scores: pd.DataFrame, times: pd.DataFrame) -> Figure:
    """F1 against seconds a question, a point an arm and seed; and F1 by the eighth of the context that has the answer.

    Args:
        scores, times: as benchmarks/long_squad.py writes them. An arm that was trained takes as long as one switched.
    """
    seconds = (times["seconds"] / times["questions"]).groupby(times["arm"]).first()
    seconds["key-clusters-quarter"] = seconds["softmax, then key-clusters 0.25"]
    runs = scores[~scores["seeds"].astype(str).str.contains(" ")]  # without means over seeds
    figure, axes = new_figure(6.6, 3.4, ncols=2)
    left, right = axes[0]
    softmax = runs.loc[runs["arm"] == "softmax", "f1"].mean()
    left.axhspan(softmax - WITHIN, softmax + WITHIN, color="#dddddd", zorder=0)
    for arm, (name, attention) in ARMS.items():
        if (of_arm := runs[runs["arm"] == arm]).empty:
            continue
        look = look_of(attention) | ({"markerfacecolor": "white"} if "then" in arm else {})
        left.plot([seconds[arm]] * len(of_arm), of_arm["f1"], label=name, **look | {"linestyle": ""})
        if arm in PLACES:
            places = of_arm.filter(like="f1_eighth_").mean()
            right.plot(range(1, len(places) + 1), places, **look)
    left.set(xlabel="seconds a question", ylabel="F1", xlim=(0, None))
    right.set(xlabel="eighth of the context that has the answer", ylabel="F1")
    add_legend(figure, left, columns=3)
    return figure
