"""Every table that documents and pages show, by name: `document_tables(root)`.

They are made of results/tables/*.csv (see `compare`) and of the tables that experiments have written.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from albert_lsh import attention
from albert_lsh.tasks.table import TASKS, find_task
from albert_study.compare import ARMS, METRICS, base_of, crossing_bounds, in_order, runs_of, scale_of
from albert_study.intervals import CLEAR_FROM
from albert_study.records import LIST, load, read_table, wide
from albert_study.show import Line, Parts, Table, columns, form, parts, table, text

Named = Iterator[tuple[str, Table]]
FIRST = ("albert", "minilm", "original", "original-readme")  # studies: the questions asked first
TITLES = {"sst2": "SST-2", "cola": "CoLA", "mnli": "MNLI", "stsb": "STS-B", "mrpc": "MRPC"}
FRONT_TASKS = {"sst2": "SST-2, MiniLM", "squad": "SQuAD 1.1, MiniLM", "kor-sts": "KorSTS, ALBERT"}
FRONT = {  # by row, which study and arm it shows of these tasks; none where it was not run
    "softmax, unchanged": ("word-order softmax-67349", "minilm softmax", "albert softmax"),
    "new projections": ("word-order new-67349", "minilm new", "albert new"),
    "tied keys": ("word-order shared-qk-67349", "", "albert shared-qk"),
    "the 2020 attention": ("word-order reformer-67349", "", "albert reformer"),
    "random hashing (plain-lsh)": ("", "minilm plain-lsh", "albert plain-lsh"),
    "**lsh**": ("more-examples lsh-67349", "minilm lsh-half", "albert lsh"),
}
FRONT_NOTE = """Mean ± standard deviation (number of runs), or every run where they are far apart; empty: not run. lsh \
and random hashing are asked for half of the pairs (random hashing on SQuAD for a quarter). Full cost: all \
multiply-adds of the attention, choosing keys included, against softmax's. Without reading: """
APART = 0.1  # of the scale: runs that differ by more are shown one by one, since their mean stands for none of them
OBJECTIVES = {
    "mlm_loss": "loss, nats a masked token",
    "mlm_accuracy": "accuracy, masked tokens",
    "sop_accuracy": "accuracy, order",
}
LSH, PLAIN, REFORMER, ONE = "lsh", "plain-lsh", "reformer-pytorch", ", one round"
FASTER = ((LSH, REFORMER), (f"{LSH}, window, far field", REFORMER), (PLAIN, REFORMER), (PLAIN + ONE, REFORMER))
FASTER += ((PLAIN + ONE, REFORMER + ONE),)  # who is compared in speed: ours, theirs
H100 = ("softmax", "lsh", "lsh, all heads at once", "plain-lsh, 4 rounds", "plain-lsh, 1 round", "reformer-pytorch")
VERSIONS = ("python", "torch", "transformers", "datasets", "huggingface-hub", "numpy", "pandas", "ipykernel")


def document_tables(root: Path, study: str | None = None) -> dict[str, Table]:
    """Every table for which there are results, by name; studies in the order of `studies_of`.

    study: whose tables alone are made.
    """
    of_study = (score_tables, difference_tables, switched_tables, reading_tables, shuffled_tables)
    common = (front_tables, library_tables, constant_tables, time_tables, efficiency_tables, pretraining_tables)
    common += (long_tables, masked_tables, detail_tables, reliability_tables)
    rows = load(root, study)
    named = [
        made
        for name in ([study] if study else studies_of(root))
        for make in of_study
        for made in make(root, rows, name)
    ]
    named += [made for make in common for made in make(root, rows)] if not study else []
    return {name: made for name, made in named if made.rows and len(made.titles) > 1}


def studies_of(root: Path) -> list[str]:
    """The studies that have tables: the questions asked first, then the others, the embedded one last.

    A reader's own are left out where there is a list of records.
    """
    studies = sorted(path.name.removesuffix("-scores.csv") for path in (root / "results/tables").glob("*-scores.csv"))
    if (root / LIST).exists():
        listed = {Path(line).parts[2] for line in (root / LIST).read_text(encoding="utf-8").split()}
        studies = [study for study in studies if study in listed]
    return sorted(studies, key=lambda study: (FIRST.index(study) if study in FIRST else len(FIRST), study == "mini"))


def read(root: Path, name: str, folder: str = "tables") -> pd.DataFrame:
    """results/<folder>/<name>.csv; empty if it is not there."""
    return read_table(root / "results" / folder / f"{name}.csv")


def between(counts: pd.Series) -> str:
    """ "3", or "1 to 3" where they differ."""
    few, most = int(counts.min()), int(counts.max())
    return str(most) if few == most else f"{few} to {most}"


def commits(lines: pd.DataFrame) -> str:
    """The commits at which lines were measured, shortened; of more than two how many, and how many had changes."""
    names = dict.fromkeys(commit for several in lines["commit"] for commit in str(several).split("; "))
    if len(names) > 2:
        changed = sum(commit.endswith("-dirty") for commit in names)
        return f"{len(names)} commits (named in results/{f'; {changed} with changes' if changed else ''})"
    return f"commit {', '.join(c[:10] + (' with changes' if c.endswith('-dirty') else '') for c in names)}"


def about(study: str, lines: pd.DataFrame) -> str:
    """Which study, models and commits a table comes from."""
    models = f": {', '.join(lines['model'].unique())}" if "model" in lines else ""
    return f"Study {study}{models}, {commits(lines)}."


# ---- studies --------------------------------------------------------------------------------------------------------
def scored(line: Line) -> str:
    """A score over seeds. A correlation with one answer is none."""
    constant = line["constant"] if line["measure"] in ("pearson", "spearman") else 0
    if constant and constant == line["seeds"]:
        return "constant ({seeds:0})"
    return "{score:s} ± {sd:s} ({seeds:0}" + (", {constant:0} constant)" if constant > 0 else ")")


def score_table(scores: pd.DataFrame, *, metrics: bool = False, note: str = "") -> Table:
    """Lines of `compare.scores`: arms down, tasks across; below, what can be had without attention.

    An arm is named with its model where it has several. Baselines are those of the arm with most runs: each fold has
    others, and an arm may lack folds.

    metrics: all of a task's; else its headline, with the pairs attended and the cost.
    """
    scores = scores[scores["measure"] != "accuracy_f1_mean"] if metrics else scores[scores["is_headline"]]
    lines = scores.assign(label=labels(scores), digits=[scale_of(task)[1] for task in scores["task"]])
    lines["metric"] = lines["measure"].map(METRICS)
    most = lines.loc[lines.groupby(["task", "measure"], sort=False)["seeds"].idxmax()]
    same = ["task", "measure", "metric", "digits"]
    names = {"bag_of_words": "bag of words", "majority": "majority class", "chance": "chance"}
    below = [most[same].assign(label=name, score=most[column]) for column, name in names.items()]
    lines = pd.concat([lines, *(part.dropna() for part in below)])
    cells = {"{task} ({metric})": scored} if metrics else {"{task} ({measure})": scored}
    cells |= {} if metrics else columns("{task}: pairs seen={pairs:%}; {task}: cost={cost:%}")
    return table(lines, "{label}", cells, ["task", "measure"], note=note)


def labels(scores: pd.DataFrame) -> pd.Series:
    several = (scores.groupby("arm")["model"].nunique() > 1).any()
    return scores["arm"] + (", " + scores["model"] if several else "")


def score_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """Scores; scores of all metrics; how varied answers are; settings."""
    if (scores := read(root, f"{study}-scores")).empty:
        return
    arms = scores[scores["is_headline"]]
    note, held_out = about(study, scores), (scores["split"] == "held-out").all()
    mean = "Mean ± standard deviation (number of seeds), "
    mean += "held-out training examples. " if held_out else "development sets. "
    yield f"{study}-scores", score_table(scores, note=mean + note)
    yield f"{study}-metrics", score_table(scores, metrics=True, note=note)
    told = "How varied the answers are: 0% says the same to everything, 100% varies as the gold answers do. "
    if any(find_task(name).is_squad for name in arms["task"]):
        told += "Of SQuAD: how many answers stand elsewhere than that to the question before. "
    varied = arms[arms["variety"].notna()]
    yield f"{study}-variety", table(varied, "{arm}", columns("{task}={variety:%1}"), "task", note=told + note)
    same = [
        "task",
        "length",
        "batch_size",
        "learning_rate",
        "epochs",
        "train_examples",
        "examples",
        "precision",
        "seeds",
    ]
    recipes = arms.groupby(same, sort=False, dropna=False)["arm"].agg(lambda names: ", ".join(dict.fromkeys(names)))
    cells = columns(
        "attentions={arm}; length={length}; batch={batch_size}; learning rate={learning_rate}; epochs={epochs:1}; "
        "examples={train_examples:0} / {examples:0}; precision={precision}; seeds={seeds}"
    )
    yield f"{study}-settings", table(recipes.reset_index(), "{task}", cells, note=note)


def difference_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """Every arm against softmax, and neighbours: difference with its interval, in asterisks where Holm leaves it."""
    lines = read(root, f"{study}-differences")
    for (model, task), pairs in lines.groupby(["model", "task"], sort=False) if len(lines) else ():
        over = pairs["over"].iloc[0]
        cells = columns("what changes={change}; from={score_from:s}; to={score_to:s}")
        cells["difference"] = lambda line: "**{difference:+s}**" if line["clear"] else "{difference:+s}"
        cells |= columns("95 % interval={low:+s} to {high:+s}; p (Holm)={p_holm:P}")
        cells["1 % loss ruled out"] = lambda line: "yes" if line["not_inferior"] else ""
        cells |= columns("cost={cost_to:%}") | {over: "{seeds:0}"}
        examples = f"{between(pairs['examples'])} examples" if pairs["examples"].any() else "over seeds alone"
        note = f"{METRICS[pairs['metric'].iloc[0]]}, {examples}. Study {study}: {model}."
        few = (pairs["seeds"] < CLEAR_FROM).any()
        note += f" With fewer than {CLEAR_FROM} {over} nothing is tested." if few else ""
        several = lines.loc[lines["task"] == task, "model"].nunique() > 1
        name = f"{study}-differences-{task}" + (f"-{model.split('/')[-1]}" if several else "")
        yield name, table(pairs.assign(digits=scale_of(task)[1]), "{from} → {to}", cells, note=note)


def switched_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """What is kept of the score, by task, variant and share asked for; loss and AUC at a third; what predicts it."""
    if (lines := read(root, f"{study}-switched")).empty:
        return
    lines["asked"] = [f"{100 * share:g}%" for share in lines["share"]]
    for (split, task), of_task in lines.groupby(["split", "task"], sort=False):
        first, digits = of_task.iloc[0], str(scale_of(task)[1])
        zero = f"the majority class ({form(first['majority'], digits)})" if first["majority"] else "a score of zero"
        models = between(of_task["seeds"]) + (" models" if of_task["seeds"].max() > 1 else " model")
        note = f"{first['metric']}, softmax {form(first['softmax'], digits)}, 0% is {zero}; "
        note += f"{first['examples']:.0f} examples, {models}. {about(study, of_task)}"
        cells = columns(
            "{asked}={kept:%} ({kept_low:p} to {kept_high:p}); {asked}, cost={cost:%}; {asked}, changed={changed:%}"
        )
        by_share = of_task.sort_values("share", ascending=False, kind="stable")
        name = f"{study}-{'held-out' if split == 'held-out' else 'switched'}-{task}"
        yield name, table(by_share, "{variant}", cells, "asked", of_task["variant"].unique(), note)
    third = lines[lines["asked"] == "33%"]
    softmax = third.drop_duplicates("task").assign(variant="softmax")
    softmax = softmax.assign(loss=softmax.get("softmax_loss"), auc=softmax.get("softmax_auc"))
    known = pd.concat([softmax, third]).dropna(subset="loss").sort_values("task", kind="stable")
    note = f"Loss: nats, of numbers their squared error; AUC: area under the ROC curve. {about(study, third)}"
    cells = columns("{task}: loss={loss:2}; {task}: AUC={auc:3}")
    yield f"{study}-threshold", table(known, "{variant}", cells, "task", note=note)
    cells = columns("{task}, all={all:+2}; {task}, at a share={at_a_share:+2}")
    found = read(root, f"{study}-predictors").replace({"diagnostic": {"pairs": "share"}})
    yield f"{study}-predictors", table(found, "{diagnostic}", cells, "task", note=f"Study {study}.")


def reading_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """What attentions do to the output of a pretrained encoder that reads paragraphs, by length."""
    lines = wide(rows[(rows["kind"] == "reading") & (rows["study"] == study)])
    cells = columns("pairs={pairs:%1}; cost={cost:%1}; softmax's mass={mass:2}; recall={recall:2}")
    cells |= columns("error of the output={error:3}; drift of the last hidden state={drift:3}")
    for (length, count), of_length in lines.groupby(["length", "examples"]):
        note = f"{count:.0f} sequence{'s' if count > 1 else ''} of {length:,.0f} tokens. {about(study, of_length)}"
        yield f"{study}-reading-{length:.0f}", table(of_length.sort_values("error"), "{variant}", cells, note=note)


def shuffled_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """Texts as they are, and with their words in random order; below each task's arms what sees no order."""
    if (lines := read(root, f"{study}-shuffled")).empty:
        return
    names = lines["arm"].map(base_of)
    lines = lines.assign(
        label=names.replace(ARMS), title=lines["task"].replace(TITLES), metric=lines["metric"].map(METRICS)
    )
    groups = []
    for _, of_task in lines.groupby(["task", "train_examples"], sort=False):
        groups.append(of_task)
        for label, column in (("a bag of words", "bag_of_words"), ("always the same answer", "majority")):
            same = of_task[["title", "metric", "train_examples"]].head(1)
            groups.append(same.assign(label=label, score=of_task[column], shuffled=of_task[column]).dropna())
    cells = columns("attention={label}; as it is={score:3}; shuffled={shuffled:3}")
    cells |= columns("difference (95 % interval)={difference:+3} ({low:+3} to {high:+3})")
    cells |= columns("answers that change={changed:%1} ({changed_low:p1} to {changed_high:%1}); runs={seeds:0}")
    note = f"Means over runs, intervals over runs and examples. {about(study, lines)}"
    yield (
        f"{study}-shuffled",
        table(pd.concat(groups), "{title} ({metric}), {train_examples:,} examples", cells, note=note),
    )


# ---- common ---------------------------------------------------------------------------------------------------------
def one_by_one(values: pd.Series, how: str, end: str = "") -> Parts:
    """A cell of several numbers."""
    return [part for value in values for part in (", ", (value, how), end)][1:]


def front_tables(root: Path, rows: pd.DataFrame) -> Named:
    """The front page's: what each change does to three scores, and what its attention costs."""
    places = [(row, title, task, *place.split()) for row, arms in FRONT.items()
              for (task, title), place in zip(FRONT_TASKS.items(), arms, strict=True) if place]  # fmt: skip
    runs = runs_of(rows)
    runs = runs[runs["is_headline"] & (runs["split"] != "shuffled")]
    runs = pd.DataFrame(places, columns=["row", "title", "task", "study", "arm"]).merge(
        runs, on=["task", "study", "arm"]
    )
    lines, floors = [], []
    for (row, title), own in runs.groupby(["row", "title"], sort=False):
        (top, digits), values = scale_of(own["task"].iloc[0]), own.sort_values("seed")["value"]
        line = {"row": row, "title": f"{title} ({METRICS[own['measure'].iloc[0]]})", "digits": digits}
        line |= {"score": values.mean(), "sd": values.std(), "runs": len(values)}
        apart = values.max() - values.min() > APART * top
        lines.append(line | {"cell": one_by_one(values, str(digits)) if apart else "{score:s} ± {sd:s} ({runs:0})"})
    for row, costs in runs.groupby("row", sort=False)["cost"]:
        alike = form(costs.min(), "%") == form(costs.max(), "%")
        cost = [(costs.min(), "%"), *([] if alike else [" to ", (costs.max(), "%")])]
        lines.append({"row": row, "title": "full cost", "cell": cost})
    for title, of_task in runs.groupby("title", sort=False):
        study, task = of_task[["study", "task"]].iloc[0]
        line = read(root, f"{study}-scores").query("task == @task and is_headline").iloc[0]
        named = {"always the same answer": line["majority"], "a bag of words": line["bag_of_words"]}
        told = (f"{name} {form(value, str(scale_of(task)[1]))}" for name, value in named.items() if pd.notna(value))
        floors.append(f"{title.split(',')[0]} {', '.join(told)}")
    if lines:
        cells = {"{title}": lambda line: line["cell"]}
        yield "front", table(pd.DataFrame(lines), "{row}", cells, "title", note=FRONT_NOTE + "; ".join(floors) + ".")


def library_tables(root: Path, rows: pd.DataFrame) -> Named:
    """The attentions of the library with their settings, and its tasks, but for the embedded ones."""
    known = [(name, about.about, ", ".join(about.defaults)) for name, about in attention.ATTENTIONS.items()]
    lines = pd.DataFrame(known, columns=["name", "about", "settings"])
    yield "attentions", table(lines, "{name}", columns("what it is={about}; settings={settings}"))
    lines = pd.DataFrame({
        "name": task.name, "data": ", ".join(filter(None, (task.dataset, task.config))), "read": ", ".join(task.columns),
        "answered": "a span" if task.is_squad else ", ".join(task.labels) or "a number",
        "scores": ", ".join(task.metrics), "on": ", ".join(task.evaluation),
    } for task in TASKS.values() if task.dataset != "mini")  # fmt: skip
    cells = columns(
        "data on the Hub={data}; what is read={read}; what is answered={answered}; scores={scores}; scored on={on}"
    )
    yield "tasks", table(lines, "{name}", cells)


def constant_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Constant answers that score highest, beside the original's LSH scores (bold where both are the same); who tells
    a text's twin from another; and how far intervals can be trusted."""
    if len(lines := read(root, "constant-answers", "runs/constant-answers")):
        lines = lines.loc[lines.groupby(["task", "metric"], sort=False)["constant"].idxmax()]
        lines["digits"], lines["metric"] = (lines["original"] <= 1) + 2, lines["metric"].str.replace("_", " ")
        lines["between"] = lines["between"].where(lines["metric"].isin(["accuracy", "exact"]))
        cells = columns("always={answer}; right={right:,} of {examples:,}; its score={constant:s}")
        cells["the original's LSH"] = lambda line: "**{original:s}**" if line["same"] else "{original:s}"
        cells["LSH's lead, examples"] = "{between:0}"
        yield "constant-answers", table(lines, "{task}, {metric}", cells, note=f"{commits(lines).capitalize()}.")
    if len(lines := read(root, "twins", "runs/word-order/stsb").sort_values("seed")):
        note = f"{lines['pairs'].iloc[0]} texts of STS-B, run by run; a coin has 50%. Attention: of the head and layer that "
        note += f"gives most, against an equal share. {commits(lines)}."
        arms = ["softmax", *in_order(set(lines["arm"]) - {"softmax"})]
        runs = pd.DataFrame({"name": ARMS.get(arm, arm), "runs": lines[lines["arm"] == arm]} for arm in arms)
        cells = {
            "texts whose twin is valued higher": lambda line: one_by_one(line["runs"]["told_apart"], "%"),
            "attention of a token to its copy": lambda line: one_by_one(line["runs"]["weight_of_copies"], "1", " ×"),
        }
        yield "twins", table(runs, "{name}", cells, note=note)
    if len(lines := read(root, "calibration")):
        ends = lines.groupby("seeds")[["covered", "found"]].agg(["min", "max"]).reset_index()
        ends.columns = ["seeds", "covered", "most_covered", "small", "most_small"]
        cells = columns("95 % intervals that hold the truth={covered:p} to {most_covered:%}")
        cells |= columns("p < 0.0025 by chance={small:p2} to {most_small:%2}")
        ratios = " to ".join(f"{end:g}" for end in (lines["ratio"].min(), lines["ratio"].max()))
        note = f"Simulated, nothing differs; of the mean's variance seeds give {ratios} times what examples give."
        yield "calibration", table(ends, "{seeds} seeds", cells, note=note)


def by_length(lines: pd.DataFrame, value: str, how: str, note: str, base: str = "") -> Table:
    """A row a case, a column a length: a value, or its ratio to that of a case."""
    if base:
        of_base = lines[lines["case"] == base].set_index("length")[value]
        lines = lines.assign(**{value: lines[value] / lines["length"].map(of_base)})
    cells, order = {"{length:,}": f"{{{value}:{how}}}"}, sorted(set(lines["case"]))
    return table(lines.sort_values("length", kind="stable"), "{case}", cells, "length", order, note)


def time_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Time of a forward and backward pass as a multiple of softmax's, by length; who is faster, and from where."""
    for kind in ("fp32", "bf16", "bf16-amx"):
        if (lines := read(root, f"time-cpu-{kind}", "efficiency")).empty:
            continue
        lines = lines[lines["pass"] == "forward+backward"]
        note = f"{'; '.join(lines['device'].unique())}; {commits(lines)}."
        yield f"efficiency-time-{kind}", by_length(lines, "seconds", "2", note, "softmax")
        if kind == "fp32":
            bounds = crossing_bounds(lines).dropna().sort_values(["up_to", "above"]).reset_index(names="case")
            yield "efficiency-faster-from", table(bounds, "{case}", {"tokens": crossing}, note=note)
            seconds = lines.pivot(index="length", columns="case", values="seconds")
            pairs = {
                f"{ours} against {theirs}": seconds[theirs] / seconds[ours]
                for ours, theirs in FASTER
                if ours in seconds
            }
            speed = pd.DataFrame(pairs).rename_axis(columns="case").stack().rename("ratio").reset_index()
            yield "efficiency-speed", by_length(speed, "ratio", "1", note)


def crossing(line: Line) -> str:
    if line["above"] == 0:
        return "{up_to:,} or less"
    return "{up_to:,}" if line["above"] == line["up_to"] else "between {above:,} and {up_to:,}"


def efficiency_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Who chooses, memory, a training step, and what is kept of softmax's output; and on an H100."""
    if len(lines := read(root, "time-cpu-fp32", "efficiency/choosing")):
        lines = lines[lines["pass"] == "forward+backward"]
        note = f"{lines['keys'].iloc[0]} keys per query; {'; '.join(lines['device'].unique())}; {commits(lines)}."
        yield "efficiency-choosing", by_length(lines, "seconds", "2", note, "softmax")
    if len(lines := read(root, "memory-cpu-fp32", "efficiency")):
        lines = lines[lines["kind"] == "attention"].assign(mib=lines["bytes"] / 2**20)
        yield "efficiency-memory", by_length(lines, "mib", "0", f"MiB; {commits(lines)}.")
    if len(lines := read(root, "step-cpu-fp32", "efficiency")):
        softmax = lines[lines["case"].isin(["softmax", "softmax, recomputed"])].sort_values("case").groupby("length")
        lines["ratio"] = lines["seconds"] / lines["length"].map(softmax["seconds"].first())
        yield "efficiency-step", by_length(lines, "ratio", "2", f"{commits(lines).capitalize()}.")
    if len(lines := read(root, "quality-cpu-fp32", "efficiency")):
        cells = columns("pairs={pairs:%}; softmax's mass={mass:2}; error of the output={error:3}; seconds={seconds:2}")
        length, model, keys = lines[["length", "text_model", "keys"]].iloc[0]
        note = f"{length:,} tokens, {model}, {keys} keys per query; {commits(lines)}."
        yield "efficiency-quality", table(lines, "{case}", cells, note=note)
    if len(lines := read(root, "long-step", "efficiency")):
        lines[["left", "bytes", "refused"]] /= 1e9
        cells = columns("batch={batch}; tokens={length}; left, GB={left:1}")
        cells["memory"] = lambda line: "refused {refused:1} GB more" if line["refused"] > 0 else "fits"
        cells |= columns("peak, GB={bytes:1}")
        yield "efficiency-fits", table(lines, "{attention}", cells, note=f"{commits(lines).capitalize()}.")
    if len(lines := read(root, "duplicates")):
        cells = columns("clusters of={cluster_size}; pairs seen={pairs:2}; error, once={error_once:2}")
        cells |= columns("error, each time={error_each:2}")
        yield "duplicates", table(lines, "{n_hashes}", cells, note=about("duplicates", lines), corner="rounds")
    if len(lines := read(root, "h100-time-bf16", "efficiency")):
        is_new = (lines["code"] == "all heads at once") & (lines["case"] == "lsh")
        lines["case"] = lines["case"].mask(is_new, "lsh, all heads at once").replace("plain-lsh", "plain-lsh, 4 rounds")
        lines = lines.sort_values("length", kind="stable").drop_duplicates(["length", "batch", "case"], keep="last")
        by_case = pd.concat([lines[lines["case"] == case] for case in H100])
        order = [f"{length:,} × {batch}" for length, batch in lines[["length", "batch"]].values]
        cells = {"{case}": lambda line: "{both_ms:1}" if line["both_ms"] < 100 else "{both_ms:0}"}
        yield "h100-time", table(by_case, "{length:,} × {batch}", cells, "case", order, corner="tokens × batch")


def pretraining_tables(root: Path, rows: pd.DataFrame) -> Named:
    """New models; what hashing costs on the same tokens; and a model gone on with under another attention."""
    lines, gaps = wide(rows[rows["kind"] == "pretrained"]), read(root, "pretraining-gaps")
    if lines.empty:
        return
    lines["tokens"] /= 1e6
    lines["is_new"], is_first = lines["variant"].isna(), lines["split"] == "first weights"
    last, first = (lines[chosen & (lines["attention"] != "")] for chosen in (~is_first, is_first))
    new, began = last[last["is_new"]], first[first["is_new"]].assign(tokens=0.0, device=None)
    counted = lines.loc[lines["is_new"] & (lines["attention"] == ""), list(OBJECTIVES)].mean().to_frame().T
    shown = [
        new,
        began.assign(arm=began["arm"] + ", before the first step"),
        counted.assign(arm="counting pieces, or a coin"),
    ]
    cells = columns("pairs seen={pairs:%}; million tokens={tokens:1}")
    cells |= {title: f"{{{name}:3}}" for name, title in OBJECTIVES.items()}
    cells |= columns("tokens/s={tokens_per_second:0}; on={device}")
    yield "pretraining", table(pd.concat(shown), "{arm}", cells, note=f"{commits(new).capitalize()}.")
    if gaps.empty:
        return
    of_new = gaps[gaps["to"].isin(new["arm"])].assign(title=gaps["metric"].map(OBJECTIVES))
    note = f"Standard errors over {gaps['sequences'].max()} held-out sequences, paired."
    cells = columns("{title}={difference:+4} ± {standard_error:4}")
    yield "pretraining-gaps", table(of_new, "{from} → {to}", cells, "title", note=note)
    of_loss = gaps[gaps["metric"] == "mlm_loss"].rename(columns={"to": "arm"})
    gone_on = last[~last["is_new"]].join(first.set_index("record")[list(OBJECTIVES)].add_prefix("first_"), on="record")
    gone_on = gone_on.merge(of_loss, "left", "arm").sort_values("first_mlm_loss")
    if len(gone_on):
        cells = columns("pairs seen={pairs:%}; softmax's mass={attention_mass:2}; loss, switched={first_mlm_loss:3}")
        cells |= columns("loss, trained on={mlm_loss:3} ({difference:+3} ± {standard_error:3})")
        cells |= columns("order, switched={first_sop_accuracy:3}; order, trained on={sop_accuracy:3}")
        begun, steps, rate = gone_on[["variant", "steps", "learning_rate"]].iloc[0]
        note = f"From {begun}, {steps:.0f} steps, learning rate {rate}; {commits(gone_on)}."
        yield "pretraining-continued", table(gone_on, "{attention}", cells, note=note)


def long_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Models trained on long sequences; in brackets, or in columns of their own, what is published."""
    if len(lines := read(root, "duplication", "long_range")):
        lines["is_papers"] = lines["evaluated"].str.match("full|LSH")
        for (length, is_papers), models in lines.groupby(["max_length", "is_papers"]):
            chance, steps, shorter = models[["chance", "steps", "shorter"]].iloc[0]
            note = f"{length:,} tokens; chance {form(chance, '%1')}"
            if is_papers:
                cells = columns("steps={steps}; seconds={seconds:0}; {evaluated}={accuracy:%1} ({published:%1})")
                note += f". Shorter than published: {shorter}."
                yield f"duplication-{length}", table(models, "{label}", cells, "evaluated", note=note)
            else:
                models = models.sort_values("label", key=lambda label: label != "softmax", kind="stable")
                cells, note = columns("cost={evaluated_cost:%}; {label}={accuracy:%1}"), f"{note}; {steps} steps."
                yield f"duplication-{length}-keys", table(models, "{evaluated}", cells, "label", note=note)
    for task in ("listops", "text"):
        if len(lines := read(root, task, "long_range")):
            cells = columns("pairs={attended:%}; accuracy={accuracy:%1}; arena={arena:%2}; re-run={rerun:%2}")
            first = lines.iloc[0]
            note = f"{first['max_length']:,} tokens; majority class {form(first['majority'], '%1')}, chance "
            note += f"{form(first['chance'], '%1')}; {first['test_examples']:,} test examples. "
            note += f"Shorter than published: {first['shorter']}."
            yield task, table(lines, "{label}", cells | columns("steps={steps}; seconds={seconds:0}"), note=note)


def masked_tables(root: Path, rows: pd.DataFrame) -> Named:
    """By variant and length how the loss of a masked word changes, and the full cost, a table a study and share; and
    with an attention in one pass alone, and in all others."""
    masked = wide(rows[rows["kind"] == "masked words"])
    for study in ("masked-words", "lsh-choice"):
        lines = masked[masked["study"] == study].sort_values("length", kind="stable")
        per = ", ".join(
            f"{loss:.2f} at {n:.0f} tokens" for n, loss in lines.groupby("length")["softmax_loss"].first().items()
        )
        for share in sorted(lines["share"].dropna().unique(), reverse=True):
            own = lines[lines["share"].isna() | (lines["share"] == share)]
            own = own.assign(error=2 * own["standard_error"])
            order = own[own["length"] == own["length"].max()].sort_values("change")["variant"]
            cells = columns("{length:.0f} tokens={difference:+2} ± {error:2}; {length:.0f} either way={change:2}")
            cells |= columns("{length:.0f} cost={cost:%}")
            note = f"Loss of a masked word, in nats above softmax's ({per}), ± two standard errors over "
            note += "paragraphs; how much a word's loss changes either way; full cost. "
            note += f"{form(share, '%')} of the pairs where there is a choice. {own['model'].iloc[0]}, {commits(own)}."
            yield f"{study}-{100 * share:.0f}", table(own, "{variant}", cells, "length", order, note, "variant")
    if len(lines := wide(rows[rows["kind"] == "passes"])):
        lines["error"], lines["pass"] = (
            2 * lines["standard_error"],
            lines["variant"].str.extract(r"(\d+)")[0].astype(float),
        )
        lines["where"] = (
            lines["variant"].str.startswith("all").map({True: "in all others", False: "in this pass alone"})
        )
        whole, single = lines[lines["pass"].isna()].iloc[0], lines.dropna(subset="pass").sort_values("pass")
        note = (
            f"{whole['attention']} in some of a model's {single['pass'].max():.0f} passes, softmax in the others: loss "
        )
        note += f"of a masked word, nothing trained, in nats above softmax's ({form(whole['softmax_loss'], '2')}, "
        note += f"{whole['length']:.0f} tokens), ± two standard errors over paragraphs; how much a word's loss changes "
        note += (
            f"either way. In all passes: {text(parts('{difference:+2} ± {error:2}, either way {change:2}', whole))}. "
        )
        note += f"{form(whole['share'], '%')} of the pairs. {whole['model']}, {commits(lines)}."
        cells = columns("{where}={difference:+2} ± {error:2}; {where}, either way={change:2}")
        yield "masked-words-depths", table(single, "{pass:0}", cells, "where", note=note, corner="pass")


def detail_tables(root: Path, rows: pd.DataFrame) -> Named:
    """By group of examples how many more answers an arm changes than another softmax model does; and how much its
    answers gain or lose."""
    for path in sorted((root / "results/runs/details").glob("*.csv")):
        lines, task = read_table(path), find_task(path.stem.split("-", 1)[1])
        end = f" 95 % intervals over examples. Study {lines['study'].iloc[0]}, {task.name}, {commits(lines)}."
        differ = "Answers that differ from those of another softmax model, and how many more do under each arm, with"
        worth = f"Softmax's {'F1' if task.is_squad else 'accuracy'}, and how much higher it is under each arm, with"
        if task.is_regression:
            differ = (
                "How far answers lie from those of another softmax model, and how much farther under each arm, with"
            )
            worth = "How far softmax's answers lie from the gold ones (minus), and how much nearer under each arm, with"
        hows = ("2", "2") if task.is_regression else ("%1", "p1") if task.is_squad else ("%", "%")
        names = {"": ("above", "low", "high"), "-worth": ("gained", "gained_low", "gained_high")}
        softmax = {"": "two softmax models={null:u}", "-worth": "softmax={worth:u}"}
        for (name, (mean, low, high)), note, how in zip(names.items(), (differ, worth), hows, strict=True):
            known = lines[[low, high]].where(lines[low] < lines[high])  # where all examples are alike there is none
            own = lines.assign(mean=lines[mean], low=known[low], high=known[high])
            spec = f"examples={{examples:0}}; {softmax[name]}; {{arm}}={{mean:u}} ({{low:e}} to {{high:e}})"
            cells = columns(spec.replace(":u", f":{how}").replace(":e", f":{how.replace('%', 'p')}"))
            yield f"details-{path.stem}{name}", table(own, "{feature}: {group}", cells, "arm", note=note + end)


def reliability_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Faults by kind; how each notebook ended in each environment, and what that is; what fine-tuning keeps."""
    if len(lines := read(root, "faults", "reliability")):
        named, resumed = lines["message"].notna(), lines["outcome"].str.startswith("went on after")
        differ, broken = lines["difference"].fillna(0) != 0, lines["outcome"].str.startswith("BROKEN")
        told = {"faults": 1, "failed or warned, and named": named, "resumed at a checkpoint": resumed}
        counts = (
            lines[["kind"]]
            .assign(**told, **{"scores differ": differ, "broken": broken})
            .groupby("kind", sort=False)
            .sum()
        )
        counts.loc["all"] = counts.sum()
        yield "faults", table(counts.reset_index(), "{kind}", {name: f"{{{name}}}" for name in counts}, corner="kind")
    if len(lines := read(root, "colab", "reliability")):
        lines = lines.sort_values(["environment", "notebook"])
        yield "colab", table(lines, "{notebook}", columns("{environment}={outcome}"), "environment", corner="notebook")
        names = [*VERSIONS, "added", "replaced", "commit"]
        tall = (
            lines.assign(commit=lines["commit"].str[:10])
            .melt("environment", names)
            .astype({"value": object})
            .fillna("")
        )
        groups = tall.groupby(["environment", "variable"], sort=False)["value"]
        values = groups.agg(lambda values: ", ".join(dict.fromkeys(values)) or "none").reset_index()
        yield "colab-versions", table(values, "{variable}", columns("{environment}={value}"), "environment", names)
    if len(lines := read(root, "t4", "reliability")):
        keys = ["notebook", "batch_size", "max_length", "attention"]
        sums = lines.pivot_table(index=keys, columns="precision", values="sum_gb", sort=False).reset_index()
        cells = columns("batch={batch_size}; tokens={max_length}; attention={attention}; bf16, GB={bf16:1}")
        yield "t4", table(sums, "{notebook}", cells | columns("float32, GB={fp32:1}"), corner="notebook")
