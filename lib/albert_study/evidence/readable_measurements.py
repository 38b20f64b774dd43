"""Time and memory, pretraining and long sequences: their tables as people read them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from albert_lsh.tasks import TASKS
from albert_study.evidence.formats import Named, Table, about, commits, form, listing, rounded, spread, wide
from albert_study.evidence.growth import crossing_bounds
from albert_study.evidence.records import load_details

OBJECTIVES = {"mlm_loss": "loss, nats a masked token", "mlm_accuracy": "accuracy, masked tokens"}
OBJECTIVES |= {"sop_accuracy": "accuracy, order"}
FASTER = {  # who is compared in speed: ours, theirs
    ("plain lsh", "reformer-pytorch"),  # as it was: a key counts in each round in which it is met
    ("plain-lsh", "reformer-pytorch"),
    ("plain-lsh, one round", "reformer-pytorch, one round"),
    ("plain-lsh, one round", "reformer-pytorch"),
    ("lsh", "reformer-pytorch"),
    ("lsh, window, far field", "reformer-pytorch"),
}
TRAINED = ["max_length", "label", "seed", "steps", "seconds", "shorter"]  # what a row of `duplication` is


def by_length(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    return rows.pivot(index="case", columns="length", values=value).rename_axis(index=None)


def numbers(table: pd.DataFrame, how: str) -> pd.DataFrame:
    return table.rename(columns="{:,}".format).map(lambda value: form(value, how))


def faster_from(times: pd.DataFrame) -> pd.DataFrame:
    """The length from which each case is faster than softmax attention, or those between which it lies."""
    rows = {}
    for case, (above, up_to) in crossing_bounds(times).dropna().sort_values(["up_to", "above"]).iterrows():
        first, last = (f"{int(rounded(x)):,}" for x in (above, up_to))
        rows[case] = first if first == last else f"{last} or less" if above == 0 else f"between {first} and {last}"
    return pd.DataFrame({"tokens": pd.Series(rows, dtype=str)})


def constant_tables(load: Callable) -> Named:
    """The constant answers that score highest, beside the original's LSH scores; bold where both are the same."""
    if (rows := load("constant-answers", "runs/constant-answers")).empty:
        return
    rows = rows.loc[rows.groupby(["task", "metric"], sort=False)["constant"].idxmax()]
    how = rows["original"].map(lambda value: "2" if value > 1 else "3")
    for name in ("constant", "original"):
        rows[name] = [form(value, digits) for value, digits in zip(rows[name], how, strict=True)]
    rows.loc[rows["same"], "original"] = "**" + rows["original"] + "**"
    rows["name"] = rows["task"] + ", " + rows["metric"].str.replace("_", " ")
    rows["right"] = [f"{right:,} of {n:,}" for right, n in zip(rows["right"], rows["examples"], strict=True)]
    rows["between"] = rows["between"].where(rows["metric"].isin(["accuracy", "exact"]))
    columns = {"always": ("answer", ""), "right": ("right", ""), "its score": ("constant", "")}
    columns |= {"the original's LSH": ("original", ""), "LSH's lead, examples": ("between", "0")}
    yield "constant-answers", Table(listing(rows, "name", columns), f"{commits(rows).capitalize()}.")


def calibration_tables(load: Callable) -> Named:
    """By number of seeds how often simulated intervals hold the truth, and how often small p-values come by chance."""
    if (rows := load("calibration")).empty:
        return
    of_seeds = rows.groupby("seeds")
    columns = {"95 % intervals that hold the truth": ("covered", "%")}
    columns |= {f"p < {rows['small'].iloc[0]:g} by chance": ("found", "%2")}
    shown = {}
    for title, (name, how) in columns.items():
        ends = zip(of_seeds[name].min(), of_seeds[name].max(), strict=True)
        shown[title] = [f"{form(low, how).removesuffix('%')} to {form(high, how)}" for low, high in ends]
    ratios = " to ".join(f"{end:g}" for end in (rows["ratio"].min(), rows["ratio"].max()))
    note = f"Simulated, nothing differs; of the mean's variance seeds give {ratios} times what examples give."
    yield "calibration", Table(pd.DataFrame(shown, [f"{seeds} seeds" for seeds in of_seeds.groups]), note)


def detail_tables(root: Path) -> Named:
    """By group of examples how many more answers an arm changes than another softmax model does; and how much its
    answers gain or lose."""
    for name, rows in load_details(root).items():
        task = TASKS[rows["task"].iloc[0]]
        end = f" 95 % intervals over examples. Study {rows['study'].iloc[0]}, {task.name}, {commits(rows)}."
        differ = "Answers that differ from those of another softmax model, and how many more do under each arm, with"
        worth = f"Softmax's {'F1' if task.is_squad else 'accuracy'}, and how much higher it is under each arm, with"
        if task.is_regression:
            differ = (
                "How far answers lie from those of another softmax model, and how much farther under each arm, with"
            )
            worth = "How far softmax's answers lie from the gold ones (minus), and how much nearer under each arm, with"
        of_changes, of_worth = ("2", "2") if task.is_regression else ("%1", "1") if task.is_squad else ("%", "%")
        cells = cells_of(rows, of_changes, {"two softmax models": "null"}, ["above", "low", "high"])
        yield f"details-{name}", Table(cells, differ + end)
        gained = ["gained", "gained_low", "gained_high"]
        if task.is_squad:  # whose scores are shown from 0 to 100
            rows[["worth", *gained]] *= 100
        cells = cells_of(rows, of_worth, {"softmax": "worth"}, gained)
        yield f"details-{name}-worth", Table(cells, worth + end)


def cells_of(rows: pd.DataFrame, unit: str, beside: dict[str, str], of_arm: Sequence[str]) -> pd.DataFrame:
    """A row a group of examples, a column an arm: a value of each arm with its interval, beside one of softmax."""
    value, low, high = of_arm
    cells: dict[str, dict[str, str]] = {"examples": {}, **{title: {} for title in beside}}
    for row in rows.to_dict("records"):
        name = f"{row['feature']}: {row['group']}" if row["group"] else row["feature"]
        cells["examples"][name] = form(row["examples"], "0")
        for title, column in beside.items():
            cells[title][name] = form(row[column], unit)
        interval = " to ".join(form(row[end], unit).removesuffix("%") for end in (low, high))
        known = row[low] < row[high]  # where all examples are alike there is none
        cells.setdefault(row["arm"], {})[name] = form(row[value], unit) + (f" ({interval})" if known else "")
    return pd.DataFrame(cells)


def time_tables(load: Callable) -> Named:
    """Time of a forward and backward pass as a multiple of softmax's, by length; who is faster, and from where."""
    for kind in ("fp32", "bf16", "bf16-amx"):
        if (rows := load(f"time-cpu-{kind}", "efficiency")).empty:
            continue
        rows = rows[rows["pass"] == "forward+backward"]
        seconds = by_length(rows, "seconds")
        note = f"{'; '.join(rows['device'].unique())}; {commits(rows)}."
        yield f"efficiency-time-{kind}", Table(numbers(seconds / seconds.loc["softmax"], "2"), note)
        if kind == "fp32":
            yield "efficiency-faster-from", Table(faster_from(rows), note)
            speed = {f"{a} against {b}": seconds.loc[b] / seconds.loc[a] for a, b in FASTER if a in seconds.index}
            yield "efficiency-speed", Table(numbers(pd.DataFrame(speed).T.sort_index(), "1"), note)


def efficiency_tables(load: Callable) -> Named:
    """Who chooses, memory, a training step, and what is kept of softmax's output."""
    if not (rows := load("time-cpu-fp32", "efficiency/choosing")).empty:
        seconds = by_length(rows[rows["pass"] == "forward+backward"], "seconds")
        note = f"{rows['keys'].iloc[0]} keys per query; {'; '.join(rows['device'].unique())}; {commits(rows)}."
        yield "efficiency-choosing", Table(numbers(seconds / seconds.loc["softmax"], "2"), note)
    if not (rows := load("memory-cpu-fp32", "efficiency")).empty:
        rows = rows[rows["kind"] == "attention"]
        yield "efficiency-memory", Table(numbers(by_length(rows, "bytes") / 2**20, "0"), f"MiB; {commits(rows)}.")
    if not (rows := load("step-cpu-fp32", "efficiency")).empty:
        steps = by_length(rows, "seconds")
        base = steps.loc["softmax"].fillna(steps.loc["softmax, recomputed"])
        yield "efficiency-step", Table(numbers(steps / base, "2"), f"{commits(rows).capitalize()}.")
    if not (rows := load("quality-cpu-fp32", "efficiency")).empty:
        columns = {"pairs": ("pairs", "%"), "cost": ("cost", "%"), "softmax's mass": ("mass", "2")}
        columns |= {"error of the output": ("error", "3"), "seconds": ("seconds", "2")}
        if "cost" in rows:
            rows["cost"] /= rows.loc[rows["case"] == "softmax", "cost"].iloc[0]
        first = rows.iloc[0]
        note = f"{first['length']:,} tokens, {first['text_model']}, {first['keys']} keys per query; {commits(rows)}."
        yield "efficiency-quality", Table(listing(rows, "case", columns), note)
    if not (rows := load("long-step", "efficiency")).empty:
        rows[["left", "bytes", "refused"]] /= 1e9
        rows["memory"] = [f"refused {form(more, '1')} GB more" if more > 0 else "fits" for more in rows["refused"]]
        columns = {"batch": ("batch", ""), "tokens": ("length", ""), "left, GB": ("left", "1")}
        columns |= {"memory": ("memory", ""), "peak, GB": ("bytes", "1")}
        yield "efficiency-fits", Table(listing(rows, "attention", columns), f"{commits(rows).capitalize()}.")
    if not (rows := load("duplicates")).empty:
        columns = {"clusters of": ("cluster_size", ""), "pairs seen": ("pairs", "2")}
        columns |= {"error, once": ("error_once", "2"), "error, each time": ("error_each", "2")}
        yield "duplicates", Table(listing(rows, "n_hashes", columns).rename_axis("rounds"), about("duplicates", rows))


def pretraining_tables(load: Callable) -> Named:
    """New models; what hashing costs on the same tokens; and a model gone on with under another attention."""
    if (runs := load("pretraining")).empty:
        return
    gaps, continued = load("pretraining-gaps"), runs[runs["start"].notna()].sort_values("start.mlm_loss")
    new = runs[runs["start"].isna()].assign(tokens=runs["tokens"] / 1e6, none=0.0)
    columns = {"pairs seen": ("attended_share", "%"), "cost": ("full_cost", "%"), "million tokens": ("tokens", "1")}
    speed = {"tokens/s": ("tokens_per_second", "0"), "on": ("device", "")}
    last = listing(new, "run", columns | {OBJECTIVES[m]: (f"metric.{m}", "3") for m in OBJECTIVES} | speed)
    first = listing(new.assign(run=new["run"] + ", before the first step", tokens=0.0), "run",
                    columns | {OBJECTIVES[m]: (f"start.{m}", "3") for m in OBJECTIVES})  # fmt: skip
    counting = {OBJECTIVES[m]: form(new[f"counting.{m}"].mean(), "3") for m in OBJECTIVES}
    counted = pd.DataFrame(counting, index=["counting pieces, or a coin"])
    yield "pretraining", Table(pd.concat([last, first, counted]).fillna(""), f"{commits(new).capitalize()}.")
    gaps["shown"] = [spread(*pair, "+4") for pair in zip(gaps["difference"], gaps["standard_error"], strict=True)]
    gaps["name"], gaps["step"] = gaps["metric"].map(OBJECTIVES), gaps["from"] + " → " + gaps["to"]
    table = wide(gaps[gaps["to"].isin(new["run"])], "step", "name", {"": ("shown", "")})
    errors = f"Standard errors over {gaps['sequences'].max()} held-out sequences, paired."
    yield "pretraining-gaps", Table(table, errors)
    if continued.empty:
        return
    loss = gaps[gaps["metric"] == "mlm_loss"].set_index("to").reindex(continued["run"])
    brackets = [f" ({spread(d, e, '+3')})" if pd.notna(d) else ""
                for d, e in zip(loss["difference"], loss["standard_error"], strict=True)]  # fmt: skip
    continued = continued.assign(trained_on=continued["metric.mlm_loss"].map(lambda v: form(v, "3")) + brackets)
    columns = {"pairs seen": ("attended_share", "%"), "cost": ("full_cost", "%")}
    columns |= {"softmax's mass": ("attention_mass", "2")}
    columns |= {"loss, switched": ("start.mlm_loss", "3"), "loss, trained on": ("trained_on", "")}
    columns |= {"order, switched": ("start.sop_accuracy", "3"), "order, trained on": ("metric.sop_accuracy", "3")}
    from_what, steps, rate = (", ".join(map(str, continued[k].unique())) for k in ("start", "steps", "learning_rate"))
    note = f"From {from_what}, {steps} steps, learning rate {rate}; {commits(continued)}."
    yield "pretraining-continued", Table(listing(continued, "attention", columns), note)


def long_tables(load: Callable) -> Named:
    """Models trained on long sequences; in brackets, or in columns of their own, what is published."""
    if not (rows := load("duplication", "long_range")).empty:
        published = rows["published"].map(lambda share: f" ({form(share, '%1')})" if pd.notna(share) else "")
        rows["shown"] = rows["accuracy"].map(lambda share: form(share, "%1")) + published
        of_paper = rows["published"].notna()
        softmax_first = rows[~of_paper].sort_values("label", key=lambda label: label != "softmax", kind="stable")
        for length, some in softmax_first.groupby("max_length"):
            columns = {"": ("shown", "")}
            cost = listing(some.drop_duplicates("evaluated"), "evaluated", {"cost": ("evaluated_cost", "%")})
            note = f"{length:,} tokens; chance {form(some['chance'].iloc[0], '%1')}; {some['steps'].iloc[0]} steps."
            yield f"duplication-{length}-keys", Table(cost.join(wide(some, "evaluated", "label", columns)), note)
        for length, some in rows[of_paper].groupby("max_length"):
            under = wide(some, "label", "evaluated", {"": ("shown", "")})
            columns = {"steps": ("steps", ""), "seconds": ("seconds", "0"), "shorter than published": ("shorter", "")}
            trained = listing(some.drop_duplicates(TRAINED), "label", columns)
            note = f"{length:,} tokens; chance {form(some['chance'].iloc[0], '%1')}."
            yield f"duplication-{length}", Table(trained.iloc[:, :2].join(under).join(trained.iloc[:, 2:]), note)
    for task in ("listops", "text"):
        if (rows := load(task, "long_range")).empty:
            continue
        columns = {"pairs": ("attended", "%"), "cost": ("full_cost", "%"), "accuracy": ("accuracy", "%1")}
        columns |= {"arena": ("arena", "%2"), "re-run": ("rerun", "%2")}
        columns |= {"steps": ("steps", ""), "seconds": ("seconds", "0")}
        first = rows.iloc[0]
        note = f"{first['max_length']:,} tokens; majority class {form(first['majority'], '%1')}, chance "
        note += f"{form(first['chance'], '%1')}; {first['test_examples']:,} test examples. "
        if rows["shorter"].nunique() > 1:
            columns["shorter than published"] = ("shorter", "")
        else:
            note += f"Shorter than published: {first['shorter']}."
        yield task, Table(listing(rows, "label", columns), note)
