"""The table of the front page: what each change does to three scores, and what its attention costs."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from albert_study.evidence.differences import ARMS
from albert_study.evidence.formats import METRICS, Named, Table, form, scale_of, spread

# By title the task and, for each row, the study and arm that it shows. Rows without one were not run.
COLUMNS = {
    "SST-2, MiniLM": ("sst2", {
        "softmax": ("word-order", "softmax-67349"),
        "new": ("word-order", "new-67349"),
        "shared-qk": ("word-order", "shared-qk-67349"),
        "reformer": ("word-order", "reformer-67349"),
        "lsh": ("more-examples", "lsh-67349"),
    }),
    "SQuAD 1.1, MiniLM": ("squad", {
        "softmax": ("minilm", "softmax"),
        "new": ("minilm", "new"),
        "plain-lsh": ("minilm", "plain-lsh"),
        "lsh": ("minilm", "lsh-half"),
    }),
    "KorSTS, ALBERT": ("kor-sts", {
        arm: ("albert", arm) for arm in ("softmax", "new", "shared-qk", "reformer", "plain-lsh", "lsh")
    }),
}  # fmt: skip
ROWS = {
    "softmax": "softmax, unchanged",
    **{arm: ARMS[arm] for arm in ("new", "shared-qk", "reformer")},
    "plain-lsh": "random hashing (plain-lsh)",
    "lsh": "**lsh**",
}
NOTE = """Mean ± standard deviation (number of runs), or every run where they are far apart; empty: not run. lsh and \
random hashing are asked for half of the pairs (random hashing on SQuAD for a quarter). Full cost: all multiply-adds \
of the attention, choosing keys included, against softmax's. """
APART = 0.1  # of the scale: runs that differ by more are shown one by one, since their mean stands for none of them


def front_table(load: Callable) -> Named:
    """Scores of the changes on the front page's tasks, and what their attentions cost; empty cells were not run.

    load: the table of results/tables that has a name.
    """
    cells = pd.DataFrame("", index=list(ROWS), columns=list(COLUMNS))
    costs: dict[str, list[float]] = {arm: [] for arm in ROWS}
    titles, floors = {}, []
    for title, (task, arms) in COLUMNS.items():
        for row, (study, arm) in arms.items():
            runs = load(f"{study}-runs")
            own = runs[(runs["task"] == task) & (runs["arm"] == arm)] if len(runs) else runs
            if len(own):
                cells.loc[row, title] = shown(own, task)
                costs[row] += own.get("full_cost", pd.Series(dtype=float)).dropna().tolist()
                titles[title] = f"{title} ({METRICS[own['headline'].iloc[0]]})"
        if title in titles:
            floors.append(f"{title.split(',')[0]} {floor(load, task, arms['softmax'][0])}")
    cells["full cost"] = [span(costs[arm]) for arm in ROWS]
    if titles:
        table = cells[[*titles, "full cost"]].rename(columns=titles)
        made = table[(table != "").any(axis="columns")].rename(index=ROWS)
        yield "front", Table(made, NOTE + "Without reading: " + "; ".join(floors) + ".")


def floor(load: Callable, task: str, study: str) -> str:
    """What always the same answer, and a bag of words, score on a task."""
    scores = load(f"{study}-scores")
    row = scores[scores["task"] == task].iloc[0]
    digits = str(scale_of(task)[1])
    words = row.get("bag_of_words")
    counted = f", a bag of words {form(words, digits)}" if pd.notna(words) else ""
    return f"always the same answer {form(row['majority'], digits)}{counted}"


def shown(runs: pd.DataFrame, task: str) -> str:
    """Mean ± standard deviation and number of the runs, or each of them where they are far apart."""
    top, digits = scale_of(task)
    scores = runs.sort_values("seed")["score"]
    if scores.max() - scores.min() > APART * top:
        return ", ".join(form(score, str(digits)) for score in scores)
    return f"{spread(scores.mean(), scores.std(), str(digits))} ({len(scores)})"


def span(shares: list[float]) -> str:
    """ "57% to 65%"; "100%" where all are alike, nothing where there are none."""
    low, high = (form(float(end), "%") for end in (np.min(shares), np.max(shares))) if shares else ("", "")
    return low if low == high else f"{low} to {high}"
