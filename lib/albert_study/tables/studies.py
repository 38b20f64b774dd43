"""The tables of studies, made of results/tables/<study>-*.csv (see `compare`) and of the tidy rows."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from albert_lsh import attention
from albert_lsh.tasks import TASKS
from albert_study.compare import CORRELATIONS, PLANNED_RUNS, TESTED, answers_of_run, are_apart, runs_of, words_of
from albert_study.intervals import CLEAR_FROM
from albert_study.names import ARMS, BESIDE, METRICS, RUNGS, TITLES, base_of, names_of, scale_of
from albert_study.records import read, wide
from albert_study.show import Cells, Line, Table, columns, fill, form, table

Named = Iterator[tuple[str, Table]]
FRONT_TASKS = {"sst2": "SST-2, MiniLM", "kor-sts": "KorSTS, ALBERT", "squad": "SQuAD 1.1, MiniLM"}
FRONT = {  # by row, which study and arm it shows of these tasks; none where it was not run
    "block of 2020": ("ladder 2020-block", "ladder 2020-block", ""),
    "residual, LayerNorm and mask back": ("transplants reformer", "albert reformer", "transplants reformer"),
    "projections kept, keys tied": ("transplants shared-qk", "albert shared-qk", "transplants shared-qk"),
    "softmax": ("transplants softmax", "albert softmax", "minilm softmax"),
    "LSH, half (SQuAD: a quarter)": ("", "albert lsh", "minilm lsh"),
    "key clusters, half": ("more-examples key-clusters-67349", "albert key-clusters", "minilm key-clusters-half"),
}
FRONT_NOTE = """Means over {runs} runs, or lowest to highest (first row: three rates). {floors}. \
Cost: multiply-adds against softmax's (685%: the package's hashing, SQuAD). Studies: ladder (first row), transplants, \
more-examples, albert, minilm."""
KEPT = "{asked}={kept:%} ({kept_low:p} to {kept_high:p}); {asked}, cost={cost:%}; {asked}, changed={changed:%}"
LATER = "†: with runs that were added after scores of the task had been seen. "
INDEPENDENT = " Questions count as independent: of whole articles intervals are wider."
ALONE = "‡: of one run, over examples alone: other runs may differ by more. "


def between(counts: pd.Series) -> str:
    """ "3", or "1 to 3" where they differ."""
    few, most = int(counts.min()), int(counts.max())
    return str(most) if few == most else f"{few} to {most}"


def commits(lines: pd.DataFrame) -> str:
    """The commits at which lines were measured, shortened; of more than two how many, and how many had changes."""
    names = dict.fromkeys(commit for several in lines["commit"].dropna() for commit in str(several).split("; "))
    if len(names) > 2:
        changed = sum(commit.endswith("-dirty") for commit in names)
        return f"{len(names)} commits (named in results/{f'; {changed} with changes' if changed else ''})"
    return f"commit {', '.join(c[:10] + (' with changes' if c.endswith('-dirty') else '') for c in names)}"


def shown(name: str, lines: pd.DataFrame, label: str, cells: Cells | str, note: str = "", **more: Any) -> Named:
    """A table of lines, where there are any.

    Args:
        cells: as `table` takes them, or text for `columns`.
        note: a template of the first line, of `commits` and `devices`, and of `about`: models and commits.
    """
    if lines.empty:
        return
    if more.get("across") == "length":
        more["order"] = sorted(set(lines["case"]))
        lines = lines.sort_values("length", kind="stable")
    of_lines = {"commits": commits(lines) if "commit" in lines else ""}
    of_lines["devices"] = "; ".join(lines["device"].dropna().unique()) if "device" in lines else ""
    models = f": {', '.join(lines['model'].dropna().unique())}" if "model" in lines else ""
    of_lines |= {"about": f"{models}, {of_lines['commits']}.", "Commits": of_lines["commits"].capitalize()}
    cells = columns(cells) if isinstance(cells, str) else cells
    yield name, table(lines, label, cells, note=fill(note, lines.iloc[0].to_dict() | of_lines), **more)


def marked(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines with a `mark` where runs came later, and with `alone` where an interval is of one run."""
    lines = lines.assign(mark=["†" if later else "" for later in lines["later"]])
    return lines.assign(alone=["‡" if seeds == 1 else "" for seeds in lines["seeds"]])


def footnote(lines: pd.DataFrame, intervals: bool = False) -> str:
    """What marks in a table mean; intervals: whether it has any."""
    later = LATER if lines["later"].any() else ""
    return later + (ALONE if intervals and (lines["seeds"] == 1).any() else "")


def digits_of(scores: pd.DataFrame) -> list[int]:
    return [scale_of(*line)[1] for line in scores[["task", "measure"]].itertuples(index=False)]


def scored(line: Line) -> str:
    """A score over seeds: mean ± deviation (how many), or every run where these are far apart, or some without a
    correlation, since they are constant. What is no arm has no seeds."""
    constant = line["constant"]
    if pd.isna(constant):
        return "{score:s}"
    without = constant if line["measure"] in CORRELATIONS else 0
    if without and without == line["seeds"]:
        return "constant ({seeds:0}){mark}"
    if without or line["apart"] is True:
        each = one_by_one(map(float, line["runs"].split("; ")), f"{line['digits']:.0f}")
        return (f"{without:.0f} constant, " if without else "") + each + line["mark"]
    return "{score:s} ± {sd:s} ({seeds:0}" + (", {constant:0} constant" if constant else "") + "){mark}"


def score_table(scores: pd.DataFrame, *, metrics: bool = False, note: str = "") -> Table:
    """Lines of `scores.scores`: arms down, tasks across; below, what can be had without attention.

    Where a task's arm has several models it is named with its model; where tasks have different ones, tasks are.
    Baselines are those of the arm with most runs: each fold has others, and an arm may lack folds.

    metrics: all of a task's; else its headline, with the pairs attended and the cost.
    """
    scores = scores[scores["measure"] != "accuracy_f1_mean"] if metrics else scores[scores["is_headline"]]
    several = (scores.groupby(["task", "arm"])["model"].nunique() > 1).any()
    lines = marked(scores).assign(label=scores["arm"] + (", " + scores["model"] if several else ""))
    lines["digits"] = digits_of(lines)
    if not several and (scores.groupby("arm")["model"].nunique() > 1).any():
        lines["task"] += ", " + scores["model"].map(lambda name: Path(name).name)
    most = lines.loc[lines.groupby(["task", "measure"], sort=False)["seeds"].idxmax()]
    names = {"bag_of_words": "bag of words", "majority": "always the same answer", "chance": "chance"}
    sizes = lines.groupby(["task", "measure"])["bag_of_words"].transform("nunique")
    most = most.assign(bag_of_words=most["bag_of_words"].where(sizes == 1))  # else arms differ in training examples
    below = [most[["task", "measure", "digits"]].assign(label=name, score=most[key]) for key, name in names.items()]
    cells = {"{task} ({measure})": scored}
    cells |= {} if metrics else columns("{task}: pairs seen={pairs:%}; {task}: cost={cost:%}")
    lines = pd.concat([lines, *(part.dropna() for part in below)]).fillna({"mark": ""})
    return table(lines, "{label}", cells, ["task", "measure"], note=note)


def score_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """Scores; how varied answers are; settings."""
    if (scores := read(root, f"tables/{study}-scores")).empty:
        return
    arms = scores[scores["is_headline"]]
    note = f"Study {study}: {', '.join(scores['model'].unique())}, {commits(scores)}."
    where = "held-out training examples" if (scores["split"] == "held-out").all() else "development sets"
    mean = f"Mean ± standard deviation (number of seeds), {where}. {footnote(arms)}"
    yield f"{study}-scores", score_table(scores, note=mean + note)
    meaning = "How varied the answers are: 0% says the same to everything, 100% varies as the gold answers do. "
    if 1 in digits_of(arms):  # SQuAD's
        meaning += "Of SQuAD: how many answers stand elsewhere than that to the question before. "
    varied, meaning = marked(arms[arms["variety"].notna()]), meaning + footnote(arms)
    yield from shown(f"{study}-variety", varied, "{arm}", "{task}={variety:%1}{mark}", meaning + note, across="task")
    same = ["task", "length", "batch_size", "learning_rate", "epochs", "train_examples", "examples"]
    recipes = arms.groupby([*same, "precision", "seeds"], sort=False, dropna=False)["arm"].agg(", ".join).reset_index()
    spec = "attentions={arm}; length={length}; batch={batch_size}; learning rate={learning_rate}; epochs={epochs:1}; "
    spec += "examples={train_examples:0} / {examples:0}; precision={precision}; seeds={seeds}"
    yield from shown(f"{study}-settings", recipes, "{task}", spec, note)


def ladder_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """Every run of the ladder: score, loss, share of its most frequent answer; and what needs no attention."""
    rows = rows[(rows["study"] == study) | (rows["kind"] == "bag of words")]
    if "2020-block" not in {*rows["arm"]}:
        return
    runs = runs_of(rows, root)
    runs = runs[runs["is_headline"] & (runs["split"] != "shuffled")]
    losses = rows[rows["measure"] == "eval_loss"].set_index("record")["value"]
    answers = (answers_of_run(root, record) for record in runs["record"])
    shares = [table["answer"].value_counts(normalize=True).max() if "answer" in table else np.nan for table in answers]
    runs = runs.assign(
        loss=runs["record"].map(losses),
        most=np.array(shares, float),
        words=words_of(rows, runs),
        title=runs["task"].replace(TITLES) + ", " + runs["measure"].map(METRICS),
        name=[(ARMS | RUNGS).get(arm, arm) for arm in runs["arm"]],
        digits=[scale_of(*line)[1] for line in runs[["task", "measure"]].itertuples(index=False)],
    )
    order = [*RUNGS, *BESIDE, *runs["task"], *runs["arm"]]
    runs = runs.sort_values(["task", "arm"], key=lambda names: names.map(order.index), kind="stable")
    cells = columns("arm={name}; seed={seed:0}; score={value:s}; loss={loss:4}; most frequent answer={most:%1}; "
                    "always the same answer={majority class:s}; a bag of words={words:s}")  # fmt: skip
    note = "Every run; MRPC's are of one part of five. Rungs 0 to 4 hash nothing, but 2020-block-hashed. "
    yield from shown(study, runs, "{title}", cells, note + f"Study {study}{{about}}")


def difference_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """By task the difference of every arm from softmax with its interval, in asterisks where Holm leaves it; and a
    table of the other neighbours."""
    lines = read(root, f"tables/{study}-differences")
    for task, pairs in lines.groupby("task", sort=False) if len(lines) else ():
        over, models = pairs["over"].iloc[0], ", ".join(pairs["model"].unique())
        counts = pairs["examples"]
        examples = f"{between(counts)} examples" if counts.any() else "intervals over seeds alone"
        note = f"{task}: {METRICS[pairs['metric'].iloc[0]]}, {examples}. Study {study}: {models}."
        note += INDEPENDENT if "squad" in str(task) else ""
        few = (pairs["seeds"] < CLEAR_FROM).any()
        note += f" With fewer than {CLEAR_FROM} {over} nothing is tested." if few else ""
        pairs.loc[~pairs["has_mean"], ["difference", "low", "high"]] = None
        pairs = marked(pairs).assign(digits=scale_of(task, pairs["metric"].iloc[0])[1])
        from_softmax = pairs["from"].map(base_of) == "softmax"
        from_softmax |= not from_softmax.any()  # what is compared with something else alone
        name = f"{study}-differences-{task}"
        cells: dict[str, Any] = {
            "score": both_scores,
            "difference (95 % interval)": difference,
            "pairs seen": "{pairs_to:%}",
        }
        cells |= {"cost": "{cost_to:%}", over: "{seeds:0}{mark}"}
        for chosen, label, ending, more in (
            (from_softmax, "{change} ({to})", "", {}),
            (~from_softmax, "{change} ({from} → {to})", "-neighbours", {"pairs seen": pairs_seen}),
        ):
            noted = f"{note} {footnote(pairs[chosen], intervals=True)}".strip()
            yield from shown(name + ending, pairs[chosen], label, cells | more, noted)


def both_scores(line: Line) -> str:
    return f"{one_side(line, 'from')} → {one_side(line, 'to')}"


def one_side(line: Line, end: str) -> str:
    """The score of one of two arms; from lowest to highest where runs are far apart; how many are constant."""
    if line[f"constant_{end}"]:
        return f"{{constant_{end}:0}} of {{seeds:0}} constant"
    apart = are_apart(line["task"], line["metric"], line[f"lowest_{end}"], line[f"highest_{end}"])
    return f"{{lowest_{end}:s}} to {{highest_{end}:s}}" if apart else f"{{score_{end}:s}}"


def difference(line: Line) -> str:
    if pd.isna(line["difference"]):
        return ""
    mean = "**{difference:+s}**" if line["clear"] else "{difference:+s}"
    return mean + " ({low:+s} to {high:+s}){alone}"


def pairs_seen(line: Line) -> str:
    """The share of pairs that both arms saw: what lies between a control and `key-clusters` may be the pairs too."""
    alike = form(line["pairs_from"], "%") == form(line["pairs_to"], "%")
    return "{pairs_to:%}" if alike else "{pairs_from:%} → {pairs_to:%}"


def equivalence_tables(root: Path, rows: pd.DataFrame) -> Named:
    """Does `key-clusters` stay within a point of softmax? By task and over tasks; the test that was planned first."""
    for name, least in ((f"{TESTED}-equivalence", PLANNED_RUNS), ("equivalence", CLEAR_FROM)):
        if len(lines := read(root, f"tables/{name}")):
            yield from equivalence_table(name, lines, least)


def equivalence_table(name: str, lines: pd.DataFrame, least: int) -> Named:
    arms, count = lines["study"] + ", " + lines["to"], lines["tasks"].map("{:.0f} tasks".format)
    means = lines["to"] + ": " + ("mean of " + count).where(lines["weights"] == "equal", count + " by precision")
    lines = marked(lines).assign(label=arms.where(lines["tasks"] == 1, means))
    lines["yes"] = lines["within"].map({True: "yes", False: "not shown"}).where(lines["p"].notna(), "")
    spec = "study, arm={label}; task={task}; pairs seen={pairs:%}; cost={cost:%}; difference, points={difference:+2}; "
    spec += "95 % interval={low:+2} to {high:+2}{alone}; p={p:P}; p (Holm)={p_holm:P}; within 1 point={yes}; "
    spec += "runs={seeds:0}{mark}"
    note = "A point is 0.01 of an accuracy, F1 or correlation, and 1 of SQuAD's F1. p: of a difference of a point or "
    note += f"more, either way. From fewer than {least} runs nothing is tested. "
    note = (note + footnote(lines, intervals=True)).strip()
    yield from shown(name, lines, "{share:%}", spec, note, corner="asked for")


def switched_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """What is kept of the score, by task, variant and share asked for; loss and AUC at a third; what predicts it."""
    if (lines := read(root, f"tables/{study}-switched")).empty:
        return
    lines["asked"] = [f"{100 * share:g}%" for share in lines["share"]]
    for (split, task), of_task in lines.groupby(["split", "task"], sort=False):
        digits = scale_of(task, of_task["metric"].iloc[0])[1]
        zero = f"always the same answer ({{majority:{digits}}})" if of_task["majority"].iloc[0] else "a score of zero"
        models = between(of_task["seeds"]) + (" models" if of_task["seeds"].max() > 1 else " model")
        models += ", intervals over examples alone" if of_task["seeds"].min() == 1 else ""
        note = f"{{metric}}, softmax {{softmax:{digits}}}, 0% is {zero}; {{examples:0}} examples, {models}. "
        by_share = of_task.sort_values("share", ascending=False, kind="stable")
        named = {"across": "asked", "order": of_task["variant"].unique()}
        name = f"{study}-{'held-out' if split == 'held-out' else 'switched'}-{task}"
        yield from shown(name, by_share, "{variant}", KEPT, f"{note}Study {study}{{about}}", **named)
    third = lines[lines["asked"] == "33%"]
    softmax = third.drop_duplicates("task").assign(variant="softmax")
    softmax = softmax.assign(loss=softmax.get("softmax_loss"), auc=softmax.get("softmax_auc"))
    known = pd.concat([softmax, third]).dropna(subset="loss").sort_values("task", kind="stable")
    note = "Loss: nats, of numbers their squared error; AUC: area under the ROC curve. "
    note += f"Study {study}, {commits(third)}."
    spec = "{task}: loss={loss:2}; {task}: AUC={auc:3}"
    yield from shown(f"{study}-threshold", known, "{variant}", spec, note, across="task")


def second_tables(root: Path, rows: pd.DataFrame) -> Named:
    """`key-clusters` of version 2, switched into models of its own."""
    if (lines := read(root, "tables/no-training-second")).empty:
        return
    lines["asked"], lines["title"] = [f"{100 * share:g}%" for share in lines["share"]], lines["task"].replace(TITLES)
    lines = lines.sort_values(["task", "share"], ascending=[True, False], kind="stable")
    scores = [f"{line['title']} {line['softmax']:.{scale_of(line['task'], line['metric'])[1]}f}"
              for line in lines.drop_duplicates("task").to_dict("records")]  # fmt: skip
    note = "One model and all validation examples a task, of SQuAD 1,000 questions: intervals are over examples alone. "
    note += f"Softmax: {', '.join(scores)}. "
    yield from shown("second-models", lines, "{title}, {variant}", KEPT, note + "{Commits}.", across="asked")


def reading_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """What attentions do to the output of a pretrained encoder that reads paragraphs, by length."""
    lines = wide(rows[(rows["kind"] == "reading") & (rows["study"] == study)])
    spec = "pairs={pairs:%1}; cost={cost:%1}; softmax's mass={mass:2}; recall={recall:2}; "
    spec += "error of the output={error:3}; drift of the last hidden state={drift:3}"
    note = f"{{examples:0}} sequences of {{length:,}} tokens. Study {study}{{about}}"
    for length, of_length in lines.groupby("length"):
        yield from shown(f"{study}-reading-{length:.0f}", of_length.sort_values("error"), "{variant}", spec, note)


def shuffled_tables(root: Path, rows: pd.DataFrame, study: str) -> Named:
    """Texts as they are, and with their words in random order; below each task's arms what sees no order."""
    if (lines := read(root, f"tables/{study}-shuffled")).empty:
        return
    lines, notes = marked(lines), footnote(lines, intervals=True)
    lines["name"], lines["title"] = lines["arm"].map(base_of), lines["task"].replace(TITLES)
    lines["name"] = lines["name"].replace(names_of(lines["name"]))
    lines["metric"], groups = lines["metric"].map(METRICS), []
    for _, of_task in lines.groupby(["task", "train_examples"], sort=False):
        same = of_task[["title", "metric", "train_examples"]].head(1)
        below = {"a bag of words": of_task["bag_of_words"], "always the same answer": of_task["majority"]}
        below_it = (same.assign(name=name, score=score, shuffled=score).dropna() for name, score in below.items())
        groups += [of_task, *below_it]
    spec = "attention={name}; as it is={score:3}; shuffled={shuffled:3}; "
    spec += "difference (95 % interval)={difference:+3} ({low:+3} to {high:+3}{alone}); "
    spec += "answers that change={changed:%1} ({changed_low:p1} to {changed_high:%1}{alone}); runs={seeds:0}{mark}"
    note = f"Means over runs, intervals over runs and examples. {notes}Study {study}{{about}}"
    label = "{title} ({metric}), {train_examples:,} examples"
    yield from shown(f"{study}-shuffled", pd.concat(groups), label, spec, note)


def one_by_one(values: Iterable[float], how: str, end: str = "") -> str:
    """A cell of several numbers."""
    return ", ".join(form(value, how) + end for value in values)


def in_short(line: Line) -> str:
    """A mean alone, or from the lowest to the highest run where a mean would stand for none."""
    if line["measure"] in CORRELATIONS and line["constant"]:
        return "constant" if line["constant"] == line["seeds"] else "constant to {high:s}"
    return "{low:s} to {high:s}" if line["apart"] is True else "{score:s}"


def front_tables(root: Path, rows: pd.DataFrame) -> Named:
    """The front page's: three scores from the block of 2020 to softmax and beyond, and what the attention costs."""
    same, floors = ["task", "study", "arm"], []
    places = [(row, title, task, *place.split()) for row, arms in FRONT.items()
              for (task, title), place in zip(FRONT_TASKS.items(), arms, strict=True) if place]  # fmt: skip
    named = pd.DataFrame(places, columns=["row", "title", *same])
    scores = pd.concat(read(root, f"tables/{study}-scores").assign(study=study) for study in named["study"].unique())
    if scores.empty:
        return
    scores = scores[scores["is_headline"].astype(bool)]
    scores["digits"] = digits_of(scores)
    rung = scores["arm"].map(base_of).where(scores["study"] == "ladder", scores["arm"])
    arms = named.merge(scores.assign(arm=rung), on=same)
    at_rates = arms.groupby(["row", "title"])
    arms["apart"] = arms["apart"].astype(bool) | (at_rates["title"].transform("size") > 1)
    arms["low"], arms["high"] = at_rates["low"].transform("min"), at_rates["high"].transform("max")
    arms = arms.drop_duplicates(["row", "title"])
    arms["title"] += " (" + arms["measure"].map(METRICS) + ")"
    arms["cell"] = [in_short(line) for line in arms.to_dict("records")]
    lines = arms.to_dict("records")
    for row, costs in arms.dropna(subset="cost").groupby("row", sort=False)["cost"]:
        ends = dict.fromkeys(form(end, "%") for end in (costs.min(), costs.max()))
        lines.append({"row": row, "title": "full cost", "cell": " to ".join(ends)})
    of_tasks = arms.drop_duplicates("title").to_dict("records")
    for name, column in (("Always the same answer", "majority"), ("a bag of words", "bag_of_words")):
        values = ("–" if pd.isna(line[column]) else form(line[column], str(line["digits"])) for line in of_tasks)
        floors.append(f"{name}: {', '.join(values)}")
    if len(arms):
        note = FRONT_NOTE.format(runs=between(arms["seeds"]), floors="; ".join(floors))
        cells = {"{title}": lambda line: line["cell"]}
        yield from shown("front", pd.DataFrame(lines), "{row}", cells, note, across="title")


def library_tables(root: Path, rows: pd.DataFrame) -> Named:
    """The attentions of the library with their settings, and its tasks, but for the embedded ones."""
    known = [(name, known.description, settings_of(known)) for name, known in attention.ATTENTIONS.items()]
    lines = pd.DataFrame(known, columns=["name", "about", "settings"])
    yield from shown("attentions", lines, "{name}", "what it is={about}; settings={settings}")
    lines = pd.DataFrame({
        "name": task.name, "data": ", ".join(filter(None, (task.dataset, task.config))),
        "read": ", ".join(task.columns),
        "answer": task.answer_is,
        "scores": ", ".join(task.metrics),
    } for task in TASKS.values() if task.dataset != "mini")  # fmt: skip
    spec = "data on the Hub={data}; what is read={read}; what is answered={answer}; scores={scores}"
    yield from shown("tasks", lines, "{name}", spec)


def settings_of(kind: type[attention.Attention]) -> str:
    """Its settings with their defaults; where `share` has one, what it decides has none."""
    usual: dict[str, Any] = {}
    if issubclass(kind, attention.core.Budgeted) and kind.usual_share:
        usual = {"share": kind.usual_share, **dict.fromkeys((*kind.sizes, *kind.decided))}
    return ", ".join(name if value is None else f"{name}={value}" for name, value in (kind.defaults | usual).items())


OF_STUDIES = (score_tables, ladder_tables, difference_tables, switched_tables, reading_tables, shuffled_tables)
COMMON = (front_tables, equivalence_tables, second_tables, library_tables)
