"""The evidence of docs/claims.md: for every claim, which arms of which studies it stands on, beside softmax.

A row is an arm: examples, steps, runs and the difference. What is planned comes from its study's file.
"""

from pathlib import Path

import pandas as pd

from albert_study.carried import carried
from albert_study.records import load_history, read
from albert_study.scores import ARMS, METRICS, base_of
from albert_study.show import Cells, Line, Table, columns, table
from albert_study.study import load_jobs
from albert_study.tables import TITLES, Named, digits_of, footnote, marked, shown

CLAIMS = {  # by name, and by study and task the arms of its rows
    "nothing-hashed": {"word-order mnli": "reformer", "transplants mnli": "reformer", "word-order stsb": "reformer",
                       "albert kor-sts": "reformer", "albert kor-qpair": "reformer", "transplants sst2": "reformer"},
    "projections": {"albert kor-sts": "new", "minilm stsb": "new", "word-order stsb": "new", "minilm squad": "new",
                    "transplants squad": "new", "transplants mnli": "new", "word-order mnli": "new",
                    "albert kor-qpair": "new", "word-order cola": "new", "transplants sst2": "new",
                    "word-order sst2": "new-67349", "minilm mrpc": "new", "more-training stsb": "new-10-epochs",
                    "more-training kor-sts": "new-10-epochs"},
    "tied": {"albert kor-sts": "shared-qk", "minilm stsb": "shared-qk", "word-order stsb": "shared-qk",
             "transplants squad": "shared-qk shared-qk-2e-4", "transplants mnli": "shared-qk",
             "word-order mnli": "shared-qk",
             "albert kor-qpair": "shared-qk", "word-order cola": "shared-qk", "transplants sst2": "shared-qk",
             "word-order sst2": "shared-qk-67349", "minilm mrpc": "shared-qk",
             "more-training stsb": "shared-qk-10-epochs", "more-training kor-sts": "shared-qk-10-epochs"},
    "order": {"transplants sst2": "softmax new shared-qk reformer",
              "transplants mnli": "softmax new shared-qk reformer",
              "word-order sst2": "softmax-67349 new-67349 shared-qk-67349 reformer-67349",
              "word-order cola": "softmax new shared-qk reformer", "word-order mnli": "softmax new shared-qk reformer"},
    "random": {"minilm squad": "lsh", "albert kor-sts": "lsh", "albert kor-qpair": "lsh",
               "minilm stsb": "lsh", "minilm mrpc": "lsh", "more-training stsb": "lsh-10-epochs",
               "more-training kor-sts": "lsh-10-epochs"},
    "key-clusters": {"albert kor-sts": "key-clusters", "albert kor-qpair": "key-clusters",
            "minilm stsb": "key-clusters", "minilm mrpc": "key-clusters",
            "minilm squad": "key-clusters-half", "more-examples sst2": "key-clusters-67349 lsh-tree-8000",
            "more-training stsb": "lsh-tree-10-epochs", "more-training kor-qpair": "lsh-tree-10-epochs"},
    "fall": {"word-order mnli": "reformer", "transplants mnli": "reformer", "transplants sst2": "reformer",
             "word-order sst2": "reformer-67349",
             "more-examples sst2": "reformer-67349 reformer-rate-of-2020", "minilm squad": "new new-shared-qk-lsh",
             "transplants squad": "reformer"},
}  # fmt: skip
PLANNED, RECIPE = "transplants", ["task", "train_examples", "epochs", "max_length", "learning_rate"]
KEYS = ["study", "task", "arm"]


def claim_tables(root: Path, rows: pd.DataFrame) -> Named:
    """A table for each of CLAIMS, and the plan of the study that is to be made."""
    places = [(claim, *place.split(), arm) for claim, named in CLAIMS.items()
              for place, arms in named.items() for arm in arms.split()]  # fmt: skip
    arms = pd.DataFrame(places, columns=["claim", *KEYS])
    scores, pairs, shuffled = (
        pd.concat(read(root, f"tables/{study}-{name}").assign(study=study) for study in arms["study"].unique())
        for name in ("scores", "differences", "shuffled")
    )
    if min(map(len, (scores, pairs, shuffled))) == 0:
        return
    scores = scores[scores["is_headline"].astype(bool)].rename(columns={"low": "lowest", "high": "highest"})
    pairs = pairs[pairs["from"].map(base_of) == "softmax"].drop(columns="arm", errors="ignore")
    pairs = pairs.rename(columns={"to": "arm"})[[*KEYS, "difference", "low", "high", "clear", "has_mean", "score_from"]]
    shuffled = shuffled.rename(columns={end: f"mixed_{end}" for end in ("difference", "low", "high")})
    shuffled = shuffled[[*KEYS, *shuffled.columns[shuffled.columns.str.startswith(("mixed", "changed"))]]]
    lines = marked(arms.merge(scores, on=KEYS).merge(pairs, "left", on=KEYS).merge(shuffled, "left", on=KEYS))
    records = rows[rows["kind"] == "fine-tuned"].groupby(KEYS)["record"].first()
    lines["steps"] = [load_history((root / records[place]).parent)["step"].max()
                      for place in lines[KEYS].itertuples(index=False, name=None)]  # fmt: skip
    lines["title"] = lines["task"].map(TITLES) + ", " + lines["measure"].map(METRICS)
    lines["model"] = ["Korean ALBERT" if "albert" in model else "MiniLM" for model in lines["model"]]
    lines["change"], lines["digits"] = lines["arm"].map(base_of).replace(ARMS), digits_of(lines)
    recipe = "attention={change}; model={model}; examples={train_examples:,} / {examples:,}; steps={steps:,}; "
    recipe += "runs={seeds:0}{mark}"
    of_order = "answers that change={changed:%1} ({changed_low:p1} to {changed_high:%1}{alone}); "
    of_order += "score, words shuffled={mixed_difference:+3} ({mixed_low:+3} to {mixed_high:+3}{alone})"
    of_scores: Cells = {"softmax": "{score_from:s}", "score": scored, "difference (95 % interval)": differing}
    for claim, of_claim in lines.groupby("claim", sort=False):
        cells = {**columns(recipe), **(columns(of_order) if claim == "order" else of_scores)}
        note = f"Examples: trained on / answered. {footnote(of_claim, intervals=True)}".strip()
        yield from shown(f"claim-{claim}", of_claim, "{title}", cells, note)
    if carried(f"studies/{PLANNED}.yaml", root).is_file():
        yield "planned", planned(root)


def planned(root: Path) -> Table:
    """What PLANNED will run: a row for all arms of a task that are trained alike."""
    runs = pd.DataFrame([
        {"arm": job.name.split("/")[2], "seed": job.run.seed, **job.run.model_dump(include=set(RECIPE))}
        for job in load_jobs(PLANNED, root).values() if job.run
    ])  # fmt: skip
    arms = runs.groupby([*RECIPE, "arm"], sort=False, dropna=False)["seed"].agg(list).reset_index()
    arms["seeds"] = arms["seed"].map(lambda seeds: ", ".join(map(str, seeds)))
    arms["named"] = arms["arm"] + [f" ({rate:g})" for rate in arms["learning_rate"]]
    same = ["task", "train_examples", "epochs", "max_length", "seeds"]
    lines = arms.groupby(same, sort=False, dropna=False)["named"].agg(", ".join).reset_index()
    lines["examples"] = [f"{count:,.0f}" if count > 0 else "all" for count in lines["train_examples"].astype(float)]
    cells = columns("arms (learning rate)={named}; examples={examples}; epochs={epochs:0}; length={max_length:0}")
    return table(lines.replace({"task": TITLES}), "{task}", cells | {"seeds": "{seeds}"})


def scored(line: Line) -> str:
    """A mean, from the lowest to the highest run where these are far apart, or how many are constant."""
    if line["constant"] and pd.isna(line["difference"]):
        return "{constant:0} of {seeds:0} constant"
    return "{lowest:s} to {highest:s}" if line["apart"] is True else "{score:s}"


def differing(line: Line) -> str:
    """The difference with its interval where a mean stands for the runs, in asterisks where Holm leaves it."""
    if line["has_mean"] is not True:
        return ""
    bold = "**" if line["clear"] is True else ""
    return f"{bold}{{difference:+s}}{bold} ({{low:+s}} to {{high:+s}}{{alone}})"
