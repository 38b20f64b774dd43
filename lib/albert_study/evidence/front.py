"""The table of the front page: what each change does to a score, in plain words, one column a task."""

from collections.abc import Callable

import pandas as pd

from albert_study.evidence.formats import Named, Table, form
from albert_study.evidence.readable_studies import pivot

CHANGES = {
    "softmax": "softmax, as pretrained",
    "new": "new projections",
    "shared-qk": "keys tied to queries",
    "reformer": "both, as in 2020",
    "plain-lsh": "random hashing alone, ½ of the pairs",
    "lsh": "**lsh**, ½ of the pairs",
    "truncated": "softmax on half of the text",
    "random": "random keys, ½ of the pairs",
    "bag of words": "no encoder: a bag of words",
    "majority class": "always the same answer",
}
TASKS = {
    ("albert", "kor-sts"): "KorSTS, ALBERT (Pearson)",
    ("albert", "kor-qpair"): "question pairs, ALBERT (accuracy)",
    ("minilm", "stsb"): "STS-B, MiniLM (Pearson)",
}


def front_table(load: Callable) -> Named:
    """Scores of the changes on the front page's tasks, and what the attention costs there.

    load: the table of results/tables that has a name.
    """
    columns, costs = {}, []
    for (study, task), title in TASKS.items():
        scores = load(f"{study}-scores")
        if scores.empty or (rows := scores[scores["task"] == task]).empty:
            continue
        columns[title] = pivot(rows).iloc[:, 0]
        costs.append(rows.set_index("arm")["full_cost"])
    if not columns:
        return
    table = pd.DataFrame(columns).reindex(list(CHANGES)).fillna("")
    low, high = (pd.concat(costs, axis="columns").agg(end, axis="columns").reindex(CHANGES) for end in ("min", "max"))
    cost = [form(a, "%") if form(a, "%") == form(b, "%") else f"{form(a, '%')} to {form(b, '%')}"
            for a, b in zip(low, high, strict=True)]  # fmt: skip
    table["cost"] = cost
    table.index = pd.Index(CHANGES.values())
    note = "Mean ± standard deviation (number of seeds). Cost: multiply-adds of the attention, choosing keys included, "
    note += "against softmax's, by task. Pairs seen, intervals and commits: docs/results.md."
    yield "front", Table(table[(table.drop(columns="cost") != "").any(axis="columns")], note)
