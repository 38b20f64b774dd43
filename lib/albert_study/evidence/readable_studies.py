"""A study's tables as people read them: scores, differences, attention switched, paragraphs read."""

from collections.abc import Callable

import pandas as pd

from albert_study.evidence.bootstrap import CLEAR_FROM
from albert_study.evidence.formats import (
    METRICS,
    Named,
    Table,
    about,
    asked,
    between,
    form,
    in_parts,
    listing,
    scale_of,
    spread,
    wide,
)
from albert_study.evidence.tables import with_most_runs
from albert_study.evidence.variety import variety_table

SWITCHED = {"": ("shown", ""), ", cost": ("cost", "%"), ", changed": ("changed", "%")}
THIRD = 0.33  # the share at which loss and AUC are shown


def labelled(scores: pd.DataFrame) -> pd.DataFrame:
    """A score table with a column `label`: the arm; with its model where an arm has several."""
    several = (scores.groupby("arm")["model"].nunique() > 1).any()
    return scores.assign(label=scores["arm"] + (", " + scores["model"] if several else ""))


def pivot(scores: pd.DataFrame, metrics: tuple[str, ...] = (), *, counted: bool = True) -> pd.DataFrame:
    """A score table for reading: arms down, tasks and metrics across, and the baselines below.

    metrics: which, where a task has them; else its headline. counted: with the number of seeds in brackets.
    """
    scores, table = labelled(scores), dict[str, dict[str, str]]()
    for task, rows in scores.groupby("task", sort=False):
        how = str(scale_of(str(task))[1])
        for metric in metrics or (rows["headline"].iloc[0],):
            if metric not in rows or rows[metric].isna().all():
                continue
            column = table.setdefault(f"{task} ({METRICS.get(metric, metric) if metrics else metric})", {})
            for row in rows.to_dict("records"):
                column[row["label"]] = spread(row[metric], row[f"sd.{metric}"], how)
                constant = row.get("constant", 0) if metric in ("pearson", "spearman") else 0
                if constant == row["seeds"]:  # a correlation with one answer is none
                    column[row["label"]], constant = "constant", 0
                if counted:
                    column[row["label"]] += f" ({row['seeds']}{f', {constant} constant' if constant else ''})"
            for kind, name in (("majority", "majority class"), ("chance", "chance")):
                column[name] = form(with_most_runs(rows)[f"{kind}.{metric}"], how)
            if metric == rows["headline"].iloc[0] and "bag_of_words" in rows:
                column["bag of words"] = form(rows["bag_of_words"].iloc[0], how)
            column |= {} if counted else {"seeds": between(rows["seeds"])}
    bag = ["bag of words"] if "bag_of_words" in scores else []
    last = [*bag, "majority class", "chance", *([] if counted else ["seeds"])]
    return pd.DataFrame(table).reindex([*scores["label"].unique(), *last]).fillna("")


def score_tables(study: str, load: Callable) -> Named:
    """Scores; scores of all metrics; what was attended; settings."""
    scores = labelled(load(f"{study}-scores"))
    note, short = about(study, scores), pivot(scores)
    for task, rows in scores.groupby("task", sort=False):
        for title, column in (("cost", "full_cost"), ("pairs seen", "attended_share")):
            if column in rows and rows[column].notna().any():
                shown = rows.set_index("label")[column].map(lambda share: form(share, "%"))
                place = next(i for i, name in enumerate(short) if str(name).startswith(f"{task} (")) + 1
                short.insert(place, f"{task}: {title}", shown.reindex(short.index).fillna(""))
    held_out = "examples.held-out" in scores and scores["examples.held-out"].notna().all()
    where = "held-out training examples" if held_out else "development sets"
    mean = f"Mean ± standard deviation (number of seeds), {where}. "
    yield f"{study}-scores", Table(short, mean + note)
    alone = (scores["seeds"] == 1).all()
    every = Table(pivot(scores, tuple(METRICS)[:-1], counted=False), note)
    yield from in_parts(f"{study}-metrics", every, 8 if alone else 6)
    values = {": pairs": ("attended_share", "%"), ": cost": ("full_cost", "%")}
    machines = dict.fromkeys(one for several in scores["processor"] for one in several.split("; "))
    on = f"On {'; '.join(machines)}. "
    yield from in_parts(f"{study}-attended", Table(wide(scores, "label", "task", values), on + note), 8)
    yield from variety_table(study, scores)
    yield f"{study}-settings", Table(settings_of(scores), note)


def settings_of(scores: pd.DataFrame) -> pd.DataFrame:
    """One row a task and recipe: which attentions had it, and how many training and evaluation examples."""
    splits = [name for name in map(str, scores) if name.startswith("examples.") and name != "examples.train"]
    evaluated = scores[splits].bfill(axis="columns").iloc[:, 0]
    examples = [f"{form(a, '0')} / {form(b, '0')}" for a, b in zip(scores["examples.train"], evaluated, strict=True)]
    names = {"task": "task", "max_length": "length", "batch_size": "batch", "learning_rate": "learning rate"}
    names |= {"epochs": "epochs", "examples": "examples", "precision": "precision", "seeds": "seeds"}
    rows = scores.assign(examples=examples).groupby(list(names), sort=False, dropna=False)["arm"]
    table = rows.agg(lambda arms: ", ".join(dict.fromkeys(arms))).reset_index().rename(columns=names)
    table.insert(1, "attentions", table.pop("arm"))
    return table.astype(str).set_index("task").rename_axis(None)


def change_tables(study: str, load: Callable) -> Named:
    """What lies between neighbouring attentions, clear differences in asterisks; and ours beside published scores."""
    note, rows = about(study, load(f"{study}-scores")), load(f"{study}-changes")
    if not rows.empty:
        rows = rows[rows["headline"]].copy()
        how = [f"+{scale_of(task)[1]}" for task in rows["task"]]
        shown = map(spread, rows["difference"], rows["standard_error"], how)
        rows["shown"] = [f"**{text}**" if clear else text for text, clear in zip(shown, rows["clear"], strict=True)]
        rows["step"] = rows["from"] + " → " + rows["to"]
        table = wide(rows, "step", "task", {"": ("shown", "")})
        titles = {t: f"{t} ({METRICS.get(m, m)})" for t, m in zip(rows["task"], rows["metric"], strict=True)}
        table = table.rename(columns=titles)
        table.insert(0, "what changes", rows.drop_duplicates("step").set_index("step")["change"])
        table.loc["seeds"] = ["", *(between(of_task["seeds"]) for _, of_task in rows.groupby("task", sort=False))]
        yield f"{study}-changes", Table(table, note)
    if not (rows := load(f"{study}-published")).empty:
        how = [str(scale_of(task)[1]) for task in rows["task"]]
        for name in ("majority", "chance"):
            rows[name] = list(map(form, rows[name], how))
        rows["ours"] = list(map(spread, rows["ours"], rows["sd"], how))
        rows["ours"] += " (" + rows["seeds"].astype(str) + ")"
        rows["published"] = [
            form(v, "2" if "squad" in t else "3") for t, v in zip(rows["task"], rows["published"], strict=True)
        ]
        rows["row"] = rows["task"] + ", " + rows["metric"].map(lambda name: METRICS.get(name, name))
        rows["source"] += rows["note"].map(lambda text: f" ({text})" if pd.notna(text) else "")
        names = ("arm", "ours", "majority", "chance", "published", "published_model", "source")
        yield f"{study}-published", Table(listing(rows, "row", {n.replace("_", " "): (n, "") for n in names}), note)


def p_value(p: float) -> str:
    return "<.001" if p < 0.001 else form(p, "3")


def difference_tables(study: str, load: Callable) -> Named:
    """Every arm against softmax, and neighbours: difference with its interval, in asterisks where Holm leaves it."""
    rows = load(f"{study}-differences")
    for (model, task), some in rows.groupby(["model", "task"], sort=False) if len(rows) else ():
        how, signed = str(scale_of(task)[1]), f"+{scale_of(task)[1]}"
        some = some.assign(
            step=some["from"] + " → " + some["to"],
            shown=[f"**{form(d, signed)}**" if c else form(d, signed) for d, c in some[["difference", "clear"]].values],
            interval=[f"{form(low, signed)} to {form(high, signed)}" for low, high in some[["low", "high"]].values],
            holm=["" if pd.isna(p) else p_value(p) for p in some["p_holm"]],
            good=["yes" if yes else "" for yes in some["not_inferior"]],
        )
        columns = {"what changes": ("change", ""), "from": ("score_from", how), "to": ("score_to", how)}
        columns |= {"difference": ("shown", ""), "95 % interval": ("interval", ""), "p (Holm)": ("holm", "")}
        columns |= {"1 % loss ruled out": ("good", ""), "cost": ("cost_to", "%"), some["over"].iloc[0]: ("seeds", "0")}
        metric = some["metric"].iloc[0]
        note = f"{METRICS.get(metric, metric)}, {between(some['examples'])} examples. Study {study}: {model}."
        few = (some["seeds"] < CLEAR_FROM).any()
        note += f" With fewer than {CLEAR_FROM} {some['over'].iloc[0]} nothing is tested." if few else ""
        yield f"{study}-differences-{task}", Table(listing(some, "step", columns), note)


# ---- attention switched ---------------------------------------------------------------------------------------------
def switched_tables(study: str, load: Callable) -> Named:
    """What is kept of the score, by task, variant and share asked for; loss and AUC; held-out examples; predictors."""
    rows = load(f"{study}-switched")
    yield from threshold_tables(study, rows)
    for task, some in rows.groupby("task", sort=False) if len(rows) else ():
        first, how = some.iloc[0], str(scale_of(task)[1])
        kept = [
            f"{form(mean, '%')} ({form(100 * low, '0')} to {form(100 * high, '0')})"
            for mean, low, high in some[["kept", "kept_low", "kept_high"]].values
        ]
        zero = f"the majority class ({form(first['majority'], how)})" if first["majority"] else "a score of zero"
        note = f"{first['score_name']}, softmax {form(first['softmax'], how)}, 0% is {zero}; "
        models = between(some["seeds"]) + (" models" if some["seeds"].max() > 1 else " model")
        note += f"{first['examples']} examples, {models}. "
        table = wide(some.assign(shown=kept).sort_values("share_asked", ascending=False, kind="stable"),
                     "variant", "share_asked", SWITCHED, asked)  # fmt: skip
        yield f"{study}-switched-{task}", Table(table.loc[some["variant"].unique()], note + about(study, some))
    rows = load(f"{study}-held-out")
    if not rows.empty:
        rows = rows[rows["share_asked"] == THIRD].sort_values("variant", kind="stable")
        rows["shown"] = [f"{form(kept, '%')} ({form(cost, '%')})" for kept, cost in rows[["kept", "cost"]].values]
        table = wide(
            rows.sort_values("task", kind="stable"), "variant", "task", {"": ("shown", ""), ", error": ("error", "2")}
        )
        examples = rows.drop_duplicates("task").sort_values("task")
        note = ", ".join(f"{n} examples of {t}" for n, t in zip(examples["examples"], examples["task"], strict=True))
        yield f"{study}-held-out", Table(table.sort_index(), f"{note}. {about(study, rows)}")
    if not (rows := load(f"{study}-predictors")).empty:
        values = {", all": ("all", "+2"), ", at a share": ("at_a_share", "+2")}
        yield f"{study}-predictors", Table(wide(rows, "diagnostic", "task", values), f"Study {study}.")


def threshold_tables(study: str, rows: pd.DataFrame) -> Named:
    """Loss and area under the ROC curve at a third of the pairs, which no threshold moves; softmax's first."""
    rows = rows[rows["share_asked"] == THIRD] if len(rows) else rows
    cells: dict[str, dict[str, str]] = {}
    for task, some in rows.groupby("task", sort=False) if len(rows) else ():
        for name, what, how in (("loss", "loss", "2"), ("auc", "AUC", "3")):
            if name in some and some[name].notna().any():
                column = cells.setdefault(f"{task}: {what}", {"softmax": form(some[f"softmax_{name}"].iloc[0], how)})
                column |= {row["variant"]: form(row[name], how) for row in some.to_dict("records")}
    if cells:
        note = "Loss: nats, of numbers their squared error; AUC: area under the ROC curve. "
        yield f"{study}-threshold", Table(pd.DataFrame(cells).fillna(""), note + about(study, rows))


def reading_tables(study: str, load: Callable) -> Named:
    """What attentions do to the output of a pretrained encoder that reads paragraphs, by length."""
    rows = load(f"{study}-reading")
    columns = {"pairs": ("share", "%1"), "cost": ("cost", "%1"), "mean keys compared": ("compared", "%1")}
    columns |= {"softmax's mass": ("mass", "2"), "recall": ("recall", "2"), "error of the output": ("error", "3")}
    columns |= {"drift of the last hidden state": ("drift", "3")}
    for (length, paragraphs), some in rows.groupby(["length", "paragraphs"]) if len(rows) else ():
        note = f"{paragraphs} sequence{'s' if paragraphs > 1 else ''} of {length:,} tokens. {about(study, some)}"
        yield f"{study}-reading-{length}", Table(listing(some.sort_values("error"), "variant", columns), note)
