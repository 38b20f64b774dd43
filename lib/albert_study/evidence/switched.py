"""Models whose attention was switched, with nothing trained: what is kept, how sure that is, and what predicts it."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from albert_lsh.record import read_predictions
from albert_study.candidates import Candidate
from albert_study.evidence.bootstrap import difference
from albert_study.evidence.formats import form, listed
from albert_study.evidence.looks import add_legend, hollow, new_figure, plain

DIAGNOSTICS = ["share", "mass", "recall", "error", "drift", "changed"]
DRAWS = 500  # of examples, for an interval


def switched_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Per task, variant and share asked for, the mean over models (seeds), and an interval of what is kept.

    The interval (95 %) is that of the difference from softmax; with one model it covers examples alone.
    """
    groups = rows.groupby(["task", "variant", "share_asked"], sort=False)
    means = ["score", "softmax", "majority", "kept", "changed", "loss", "softmax_loss", "auc", "softmax_auc"]
    means += ["drift", "share", "cost", "compared"]
    table = groups[[name for name in [*means, "mass", "recall", "error"] if name in rows]].mean()
    ends = pd.DataFrame({name: kept_between(group) for name, group in groups}, index=["kept_low", "kept_high"]).T
    table = table.join(ends.rename_axis(table.index.names))
    table["seeds"] = groups["seed"].nunique()
    for name in ("attention", "score_name", "examples", "settings", "commit"):
        table[name] = groups[name].agg(listed)
    table = table.reset_index()
    table["order"] = table.groupby(["task", "variant"])["kept"].transform("mean")  # the best on top
    order = table.sort_values(["task", "order", "share_asked"], ascending=[True, False, False])
    return order.drop(columns="order")


def kept_between(rows: pd.DataFrame) -> tuple[float, float]:
    """The ends of the 95 % interval of the share of the score that a variant keeps: seeds and examples."""
    variant = Candidate(rows["variant"].iloc[0], "", {"share": float(rows["share_asked"].iloc[0])}).file_name
    before, after = (
        {row["seed"]: read_predictions(Path(row["folder"]) / f"{name}.parquet") for row in rows.to_dict("records")}
        for name in ("softmax", variant)
    )
    found = difference(before, after, rows["score_name"].iloc[0], draws=DRAWS)
    softmax, majority = rows["softmax"].mean(), rows["majority"].mean()
    low, high = (1 + end / (softmax - majority) for end in (found.low, found.high))
    return low, high


def predictors(switched: pd.DataFrame) -> pd.DataFrame:
    """Which diagnostic predicts the score? Spearman's rank correlation of each with what is kept, by task.

    `all` is taken over the variants and shares of a `switched_table` together, `at_a_share` over the variants at each
    share, mean over the shares that have four variants or more; `variants` says how many rows there were.
    """
    rows = []
    for task, of_task in switched.groupby("task", sort=False):
        shares = [rows_of for _, rows_of in of_task.groupby("share_asked") if len(rows_of) >= 4]
        together, *each = (some[DIAGNOSTICS].corrwith(some["kept"], method="spearman") for some in (of_task, *shares))
        at_a_share = pd.DataFrame(each, columns=DIAGNOSTICS).mean()
        table = pd.DataFrame({"task": task, "diagnostic": DIAGNOSTICS, "all": together, "at_a_share": at_a_share})
        rows.append(table.assign(variants=len(of_task)))
    return pd.concat(rows, ignore_index=True)


def plot_switched(table: pd.DataFrame) -> Figure:
    """What is left of the score, and the share of answers that change, against full cost; one column a task.

    Variants that were asked for one share alone, which make no line, are left out where there are others.
    """
    several = table.groupby("variant")["share_asked"].transform("nunique") > 1
    table = table[several] if several.any() else table
    tasks = list(table["task"].unique())
    figure, axes = new_figure(6.6, 3.6, nrows=2, ncols=len(tasks), sharey="row")
    looks = hollow(table.drop_duplicates("variant").sort_values("variant").set_index("variant")["attention"])
    for (upper, lower), task in zip(axes.T, tasks, strict=True):
        of_task = table[table["task"] == task]
        for variant, rows in of_task.groupby("variant", sort=False):
            look, rows = looks[str(variant)], rows.sort_values("cost")
            ends = [(rows["kept"] - rows["kept_low"]), (rows["kept_high"] - rows["kept"])]
            errors = [end.where(rows["kept"] > -0.3, 0) for end in ends]  # none where the point is cut
            upper.errorbar(rows["cost"], rows["kept"].clip(lower=-0.3), errors, label=plain(variant), **look)
            lower.plot(rows["cost"], rows["changed"], **look)
        upper.axhline(1, color="black", linewidth=0.5)
        upper.axhline(0, color="black", linewidth=0.5, linestyle=":")
        upper.set(title=f"{plain(task)}\n{of_task['score_name'].iloc[0]}", ylim=(-0.35, 1.15))
        least, most = of_task["cost"].min() * 0.8, of_task["cost"].max() * 1.25
        ticks = [2.0**k for k in range(-4, 2, 2) if least < 2.0**k < most]
        for axis in (upper, lower):
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [form(100 * tick, "0") for tick in ticks])
            axis.set_xlim(least, most)  # the upper one may be empty: a share of nothing is not kept
    axes[1, 0].set_ylim(0, 1.05 * table["changed"].max() or 1)
    axes[0, 0].set_ylabel("score kept")
    axes[1, 0].set_ylabel("answers changed")
    axes[1, len(tasks) // 2].set_xlabel("full cost, % of softmax's")
    with_most = max(axes[0], key=lambda axis: len(axis.get_legend_handles_labels()[1]))
    add_legend(figure, with_most, 4)
    return figure
