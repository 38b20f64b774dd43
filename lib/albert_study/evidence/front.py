"""The table of the front page: what each change does to a score, in plain words, one column a task."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from albert_study.evidence.differences import ARMS
from albert_study.evidence.formats import Named, Table, form
from albert_study.evidence.readable_studies import pivot

ROWS = {
    "softmax": "softmax, unchanged",
    "new": ARMS["new"],
    "shared-qk": ARMS["shared-qk"],
    "reformer": ARMS["reformer"],
    "plain-lsh": f"{ARMS['plain-lsh']}, ½",
    "lsh": f"**{ARMS['lsh']}**, ½",
    "truncated": ARMS["truncated"],
    "random": f"{ARMS['random']}, ½",
    "bag of words": "a bag of words",
    "majority class": "always the same answer",
}
COLUMNS = {
    ("albert", "kor-sts"): "KorSTS, ALBERT (Pearson)",
    ("albert", "kor-qpair"): "question pairs, ALBERT (accuracy)",
    ("minilm", "stsb"): "STS-B, MiniLM (Pearson)",
}
NOTE = """Mean ± standard deviation (number of seeds). ½: of the pairs, asked for. Pairs seen: of those that softmax \
sees. Cost: the attention's multiply-adds, choosing keys included, against softmax's. Both are ranges over the tasks."""


def front_table(load: Callable) -> Named:
    """Scores of the changes on the front page's tasks, the pairs that each attention sees there and what it costs.

    load: the table of results/tables that has a name.
    """
    found: dict[str, pd.DataFrame] = {}
    for (study, task), title in COLUMNS.items():
        scores = load(f"{study}-scores")
        if not scores.empty and (scores["task"] == task).any():
            found[title] = scores[scores["task"] == task]
    if not found:
        return
    arms = list(ROWS)
    table = pd.DataFrame({title: pivot(rows).iloc[:, 0] for title, rows in found.items()}).reindex(arms).fillna("")
    made = (table != "").any(axis="columns")
    for name, column in (("pairs seen", "attended_share"), ("cost", "full_cost")):
        shares = pd.DataFrame({title: rows.set_index("arm")[column] for title, rows in found.items()}).reindex(arms)
        table[name] = [span(of_arm) for of_arm in shares.to_numpy()]
    yield "front", Table(table[made].set_axis([ROWS[arm] for arm in table[made].index]), NOTE)


def span(shares: np.ndarray) -> str:
    """ "57% to 65%"; "100%" where all are alike, nothing where there are none."""
    low, high = (form(float(end), "%") for end in (np.fmin.reduce(shares), np.fmax.reduce(shares)))
    return low if low == high else f"{low} to {high}"
