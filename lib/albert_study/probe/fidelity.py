"""How well does an attention stand in for softmax when nothing is trained?

A model fine-tuned with softmax answers a task's questions again under other attentions, all weights as they are. For
each `Candidate`, `measure_all` says

    what the model answers       score, loss, area under the ROC curve, share of answers that change: on all examples
    what the attention does      drift of the last hidden state, share of pairs, softmax's mass on them, recall of the
                                 best keys, error of the output: on some examples (see `diagnostics`)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from datasets import Dataset, DatasetDict
from scipy.special import softmax
from sklearn.metrics import log_loss, roc_auc_score
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from albert_lsh import metrics, squad
from albert_lsh.files import run_folder
from albert_lsh.metrics import sample
from albert_lsh.model.load import load_model, load_tokenizer, switch_attention
from albert_lsh.record import provenance, read_result, write_predictions
from albert_lsh.run import Count, ParameterError, Run, Seed
from albert_lsh.tasks import Task, encode, find_task, held_out, load_data
from albert_lsh.train import StudyTrainer, fit, training_arguments
from albert_lsh.training.parameters import errors_named, from_given, placed
from albert_study.probe import truncation
from albert_study.probe.candidates import Candidate, Measured, candidates_of, fill, told
from albert_study.probe.diagnostics import by_head_and_length, diagnose, look

# The model that is trained where none is given; it learns its task.
SMALL: dict[str, Any] = {"task": "mini-mrpc", "model": "mini", "max_length": 48, "learning_rate": 1e-3}
SMALL |= {"train_examples": 8000, "precision": "fp32", "save_model": True}


@dataclass(frozen=True)
class Asked:
    """The parameters of fidelity.ipynb; `variants` as `candidates_of` takes them."""

    variants: dict[str, Any]
    trained: str | None = None  # None: by `train_small_model`
    split: str = "held-out"
    examples: Count | None = None
    looked_into: Count = 64
    seed: Seed = 0
    output: str | None = None
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Asked":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        with errors_named("fidelity.ipynb"):
            asked = from_given(cls, given, "fidelity.ipynb")
            candidates_of(asked.variants, by_pass=True)
            asked = placed(asked, ["trained", "output"])
        trained = asked.trained or own_folder(asked.results_root)
        return replace(asked, trained=trained, output=asked.output or f"{trained}/fidelity-{asked.split}.csv")

    @property
    def run(self) -> Run:
        """The parameters of the run that trained the model; on a machine without CUDA, for the CPU."""
        result = Path(self.trained or "") / "result.json"
        if not result.exists():
            made = 'glue.ipynb or squad.ipynb with attention="softmax" and save_model=True makes one'
            raise ParameterError(f"trained={self.trained!r} has no result.json; {made} (fidelity.ipynb)")
        given = read_result(result)["parameters"] | {"output_dir": self.trained, "results_root": self.results_root}
        if given["device"] == "cuda" and not torch.cuda.is_available():
            given |= {"device": "auto", "precision": "auto"}
        return Run.parse(given)


def own_folder(results_root: str | None) -> str:
    """Where the small model is."""
    return str(run_folder("notebook", SMALL["task"], SMALL["model"], "softmax-kept", 0, results_root))


def train_small_model(asked: Asked) -> None:
    """Train the small model with softmax, if no other is asked for; one that is there is left as it is."""
    if asked.trained == own_folder(asked.results_root):
        where = {"output_dir": asked.trained, "results_root": asked.results_root}
        fit(Run.parse(SMALL | where))


class Subject(NamedTuple):
    """A fine-tuned model and the examples that it is asked about, shortest first."""

    parameters: Run
    split: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    examples: Dataset
    encoded: Dataset
    score_name: str
    majority: float  # score of the most frequent class; in SQuAD of never answering
    trainer: StudyTrainer


def prepare(parameters: Run, split: str = "validation", examples: int | None = None) -> Subject:
    """Load the model that a run has kept (`save_model`), and the examples.

    Args:
        parameters: of the run that trained the model with softmax; its model is in `output_dir`.
        split: "held-out" for training examples that the run did not see; else a split's name.
        examples: how many, the same for every run; None takes all.
    Raises:
        ParameterError: the run kept no model. ValueError: it held no example out.
    """
    folder = Path(parameters.output_dir or ".") / "model"
    if not folder.is_dir():
        remove = f"to make the run again with save_model=True, remove {folder.parent} first"
        raise ParameterError(f"{folder} is not there (models are not kept in the repository); {remove}")
    task = find_task(parameters.task)
    data = load_data(parameters.task, parameters.data_dir, eval_examples=examples)
    rows = held_out(data["train"], parameters.train_examples, examples) if split == "held-out" else data[split]
    tokenizer = load_tokenizer(str(folder))
    model = load_model(str(folder), head="question-answering" if task.is_squad else "classification", complete=True)
    if task.is_squad:
        encoded = squad.windows(rows, tokenizer, max_length=parameters.max_length)
    else:
        encoded = encode(DatasetDict({split: rows}), task, tokenizer, parameters.max_length)[split]
    name, majority = task.headline, 0.0
    if "accuracy" in task.metrics:
        name, labels = "accuracy", np.asarray(rows["label"])
        majority = metrics.majority((name,), np.asarray(data["train"]["label"]), labels)[name]
    encoded = encoded.select(np.argsort(encoded["length"], kind="stable"))  # Dataset.sort warns
    trainer = StudyTrainer(
        model=model,
        args=training_arguments(parameters, folder, disable_tqdm=True),  # a bar for every variant
        eval_dataset=encoded,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    return Subject(parameters, split, model, tokenizer, rows, encoded, name, majority, trainer)


class Answers(NamedTuple):
    """What a model says of the examples."""

    score: float
    given: list[Any]  # in the same order every time: class numbers, values, or texts
    table: pd.DataFrame  # as `tasks.predictions` keeps them


def answer(subject: Subject, encoded: Dataset | None = None) -> Answers:
    """What the model says under its present attention, of the examples as they are encoded, or in another way."""
    encoded = encoded or subject.encoded
    task, logits = find_task(subject.parameters.task), subject.trainer.predict(encoded).predictions
    if task.is_squad:
        table = squad.predictions(subject.examples, encoded, logits)
        scores, texts = squad.scores_of(subject.examples, table), squad.texts_of(subject.examples, table)
        return Answers(scores[subject.score_name], list(texts.values()), table)
    table = metrics.predictions(task, subject.split, np.asarray(logits), encoded)
    given = table["logit_0" if task.is_regression else "answer"].tolist()
    return Answers(metrics.scores_of(task, table)[subject.score_name], given, table)


def answer_shorter(subject: Subject, share: float) -> tuple[Answers, dict[str, float], pd.DataFrame]:
    """What the model says of shorter texts, the share of the pairs that is left, and no layer's diagnostics."""
    is_squad = find_task(subject.parameters.task).is_squad
    shorter = truncation.truncated(subject.encoded, subject.tokenizer, share, is_squad=is_squad)
    left = truncation.share_left(subject.encoded, shorter)
    return answer(subject, shorter), {"share": left, "cost": left}, pd.DataFrame()


def without_a_threshold(task: Task, table: pd.DataFrame) -> dict[str, float]:
    """What does not hang on where the line between two classes is: the loss in nats (of numbers, their squared error),
    and of two classes the area under the ROC curve. Nothing for spans.
    """
    if task.is_squad:
        return {}
    if task.is_regression:
        return {"loss": float(((table["logit_0"] - table["label"]) ** 2).mean())}
    logits = table.filter(like="logit_").to_numpy(float)
    found = {"loss": float(log_loss(table["label"], softmax(logits, axis=1), labels=range(task.num_labels)))}
    if task.num_labels == 2 and table["label"].nunique() == 2:
        found["auc"] = float(roc_auc_score(table["label"], logits[:, 1] - logits[:, 0]))
    return found


def share_changed(before: list[Any], after: list[Any]) -> float:
    """Share of the answers that change; a value (STS-B's 0 to 5) changes when it moves by more than half a point."""
    pairs = zip(before, after, strict=True)
    return float(np.mean([abs(x - y) > 0.5 if isinstance(x, float) else x != y for x, y in pairs]))


def measure_all(subject: Subject, asked: Asked) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Answer under softmax, then under every candidate that the table at asked.output lacks (see `candidates.fill`).

    Beside it go, with "-heads" in the name, the diagnostics of each layer and head, and of short and long sequences;
    and in a folder with "-predictions" in its name the predictions under every candidate (`Candidate.file_name`).

    Returns:
        The table, a row for each candidate; and the diagnostics by candidate, layer, head and length.
    """
    same = {"task": subject.parameters.task, "seed": subject.parameters.seed, "hash_seed": asked.seed}
    same |= {"split": asked.split, "examples": len(subject.examples), "looked_into": asked.looked_into}
    task = find_task(subject.parameters.task)
    about, path = provenance(subject.parameters.device), Path(asked.output or "")
    folder, model = path.with_name(f"{path.stem}-predictions"), subject.model

    def measure(missing: list[Candidate]) -> Iterator[Measured]:
        switch_attention(model, "softmax")
        before = answer(subject)
        write_predictions(folder / "softmax.parquet", before.table)
        batches = list(sample(model, subject.tokenizer, subject.encoded, asked.looked_into))
        base = look(model, batches)
        span = before.score - subject.majority
        for candidate in told(missing):
            if candidate.attention == truncation.NAME:
                found, diagnosed, looks = answer_shorter(subject, candidate.settings["share"])
            else:
                diagnosed, rows = diagnose(model, batches, base, candidate, asked.seed)
                looks = by_head_and_length(rows)
                switch_attention(model, candidate.attention, candidate.settings, asked.seed, candidate.passes)
                found = answer(subject)
                switch_attention(model, "softmax")
            row = candidate.columns | {
                "score_name": subject.score_name,
                "score": found.score,
                "softmax": before.score,
                "majority": subject.majority,
                "kept": (found.score - subject.majority) / span if span else math.nan,  # no share of nothing
                "changed": share_changed(before.given, found.given),
            }
            row |= without_a_threshold(task, found.table)
            row |= {f"softmax_{name}": value for name, value in without_a_threshold(task, before.table).items()}
            write_predictions(folder / f"{candidate.file_name}.parquet", found.table)
            yield row | diagnosed | about, looks

    return fill(path, "heads", candidates_of(asked.variants, by_pass=True), same, measure)
