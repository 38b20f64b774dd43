"""Answers in whole articles (studies/long-squad.yaml): F1 by arm, by article and by the answer's place; seconds.

    python benchmarks/long_squad.py scores                      writes results/runs/long-squad/scores.csv
    OMP_NUM_THREADS=1 python benchmarks/long_squad.py times     writes results/runs/long-squad/times.csv; machine idle

Scores are of the study's records. An arm is what was trained and what answered: "softmax" alone, or "softmax, then
window". Its difference from softmax of the same seed has a 95 % interval that draws articles, 20 questions each. Where
seeds are two, a third line has their mean.

Times are of a forward pass over the same questions, one of every third article, in evaluation, float32, batches as in
the study; arms take turns in one process. They do not hang on the weights, so that all but windows have one model.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset, load_dataset
from transformers import DataCollatorWithPadding, PreTrainedModel

from albert_lsh import load_data, load_model, load_tokenizer, switch_attention
from albert_lsh.data import encode
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance, read_predictions
from albert_lsh.run import Run
from albert_lsh.tasks import TASKS
from albert_study.experiments.efficiency import Workload, seconds_of
from albert_study.intervals import DRAWS, draws_of_examples
from albert_study.probe.variants import variants_of
from albert_study.records import variant_file
from albert_study.study import load_jobs

TASK, STUDY, SPLIT, WINDOWS, SEED = "squad-articles", "long-squad", "validation", "windows-384", 70
RUNS = f"results/runs/{STUDY}/{TASK}/model"
EIGHTHS, REPEATS = 8, 2


def answered(root: Path) -> dict[tuple[str, int], pd.DataFrame]:
    """Predictions by arm and seed, of all runs that are made, and of the attentions switched into softmax's models."""
    tables = {}
    for path in sorted((root / RUNS).glob("*/seed-*/predictions.parquet")):
        arm, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed-"))
        tables[arm, seed] = read_predictions(path)
    for path in sorted((root / RUNS).glob(f"softmax/seed-*/fidelity-{SPLIT}-predictions/*.parquet")):
        if path.stem != "softmax":
            tables[f"softmax, then {path.stem}", int(path.parts[-3].removeprefix("seed-"))] = read_predictions(path)
    return tables


def questions() -> pd.DataFrame:
    """Of each question, by id: its article, and in which eighth of its context the first answer begins."""
    rows = load_data(TASK)[SPLIT]
    titles = load_dataset(TASKS[TASK].dataset)[SPLIT]
    article = dict(zip(titles["id"], titles["title"], strict=True))
    starts = zip(rows["id"], rows["answers"], rows["context"], strict=True)
    places = {key: EIGHTHS * answers["answer_start"][0] // len(context) for key, answers, context in starts}
    return pd.DataFrame({"article": {key: article[key] for key in places}, "eighth": places})


def by_article(change: pd.Series, article: pd.Series) -> tuple[float, float]:
    """The 95 % interval of a mean over questions, articles drawn with replacement."""
    each = change.groupby(article).agg(["sum", "size"])
    drawn = draws_of_examples(len(each), DRAWS)
    means = drawn @ each["sum"].to_numpy() / (drawn @ each["size"].to_numpy())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def scores() -> pd.DataFrame:
    about, tables = questions(), answered(repository_root())
    f1 = {name: 100 * table.set_index("id")["f1"].astype(float) for name, table in tables.items()}
    seeds_of: dict[str, list[int]] = {}
    for arm, seed in f1:
        seeds_of.setdefault(arm, []).append(seed)
    rows = []
    for arm, seeds in seeds_of.items():
        for group in [[seed] for seed in seeds] + ([seeds] if len(seeds) > 1 else []):
            mean = pd.concat([f1[arm, seed] for seed in group], axis=1).mean(axis=1)
            softmax = pd.concat([f1["softmax", seed] for seed in group], axis=1).mean(axis=1)
            change, of = mean - softmax, about.loc[mean.index]
            low, high = by_article(change, of["article"])
            row = {"arm": arm, "seeds": " ".join(map(str, group)), "questions": len(mean), "f1": mean.mean()}
            row |= {"difference": change.mean(), "low": low, "high": high}
            row |= {f"f1_eighth_{n + 1}": mean[of["eighth"] == n].mean() for n in range(EIGHTHS)}
            rows.append(row)
    return pd.DataFrame(rows)


def batches_of(run: Run, rows: Dataset) -> list[dict[str, torch.Tensor]]:
    """What a run's model reads of some questions, as the run cuts and batches them."""
    tokenizer = load_tokenizer(run.model)
    encoded = encode({SPLIT: rows}, run.about, tokenizer, run.max_length)[SPLIT]
    read = encoded.select_columns([n for n in tokenizer.model_input_names if n in encoded.column_names]).to_list()
    collate, starts = DataCollatorWithPadding(tokenizer), range(0, len(read), run.batch_size)
    return [dict(collate(read[start : start + run.batch_size])) for start in starts]


def workload(model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]) -> Workload:
    @torch.no_grad()
    def forward() -> None:
        for batch in batches:
            model(**batch)

    return forward


def times() -> pd.DataFrame:
    jobs, data = load_jobs(STUDY), load_data(TASK)[SPLIT]
    firsts = questions().groupby("article", sort=False).head(1).index[::3]
    rows = data.select([data["id"].index(key) for key in firsts])
    runs_of_arms: list[Any] = [jobs[f"{TASK}/model/{arm}/seed-{SEED}"].run for arm in (WINDOWS, "softmax")]
    cut, whole = runs_of_arms
    switched = jobs[f"{TASK}/model/softmax/seed-{SEED}/fidelity-{SPLIT}"].parameters["variants"]
    head, trained, batches = whole.about.head, str(whole.folder / "model"), batches_of(whole, rows)
    runs = {WINDOWS: workload(load_model(cut.model, head=head), batches_of(cut, rows))}
    runs["softmax"] = workload(load_model(trained, head=head), batches)
    for variant in variants_of(switched):
        model = switch_attention(load_model(trained, head=head), variant.attention, variant.settings)
        name = variant_file(variant.label, variant.settings.get("share"))
        runs[f"softmax, then {name}"] = workload(model, batches)
    lines = []
    for arm, seconds in seconds_of(runs, REPEATS).items():
        line = {"arm": arm, "questions": len(rows), "seconds": np.median(seconds), "repeats": len(seconds)}
        lines.append(line | {"least": min(seconds), "most": max(seconds), "threads": torch.get_num_threads()})
    return pd.DataFrame(lines).assign(**provenance("cpu"))


if __name__ == "__main__":
    tables = {"scores": scores, "times": times}
    table = tables[sys.argv[1]]()
    print(table.to_string())
    path = repository_root() / "results" / "runs" / STUDY / f"{sys.argv[1]}.csv"
    write_atomically(path, table.to_csv(index=False))
