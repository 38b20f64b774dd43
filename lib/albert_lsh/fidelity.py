"""How well does an attention stand in for softmax when nothing is trained?

A model fine-tuned with softmax answers a task's questions again under other attentions, all weights as they are. For
each `Variant`, `measure` says

    what the model answers       score, share of answers that change, drift of the last hidden state
    what the attention does      share of pairs, softmax's mass on them, recall of the best keys, error of the output

The first are measured with the attention switched in all layers, on all examples; the second on the queries, keys and
values of the softmax model, layer by layer, so that a layer's error is its own, on some examples; only the share of
pairs, the budget, is that of the switched model.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from datasets import Dataset, DatasetDict
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from albert_lsh import attention as attentions
from albert_lsh import metrics, squad
from albert_lsh.model import Pass, load_model, load_tokenizer, record_passes, switch_attention
from albert_lsh.runs import ParameterError, Parameters, environment, from_given, read_result, write_atomically
from albert_lsh.tasks import encode, find_task, held_out, load_data
from albert_lsh.training import StudyTrainer, attended, sample, training_arguments


class Variant(NamedTuple):
    """An attention with its settings, under a name of its own."""

    label: str
    attention: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """The parameters of fidelity.ipynb.

    variants: {label: {"attention": name, settings ...}}; "share" and "length" among the settings stand for those that
    `attention.settings_for` gives.
    """

    trained: str
    variants: dict[str, Any]
    split: str = "held-out"
    examples: int | None = None
    looked_into: int = 64
    seed: int = 0
    output: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Asked":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        asked = from_given(cls, given, "fidelity.ipynb")
        if not asked.list():
            raise ParameterError("variants={} must name at least one (fidelity.ipynb)")
        return replace(asked, output=asked.output or str(Path(asked.trained) / f"fidelity-{asked.split}.csv"))

    def list(self) -> "list[Variant]":
        """The variants, their settings complete."""
        found = []
        for label, value in self.variants.items():
            settings = dict(value) if isinstance(value, dict) else {}
            name = settings.pop("attention", None)
            try:
                if "share" in settings:
                    settings = attentions.settings_for(name, **settings)
                found.append(Variant(label, name, attentions.check(name, settings)))
            except (ValueError, TypeError) as error:
                raise ParameterError(f"variants: {label!r}: {error} (fidelity.ipynb)") from error
        return found

    @property
    def run(self) -> Parameters:
        """The parameters of the run that trained the model."""
        given = read_result(Path(self.trained) / "result.json")["parameters"]
        return replace(Parameters(**given), output_dir=self.trained)


class Subject(NamedTuple):
    """A fine-tuned model and the examples that it is asked about, shortest first."""

    parameters: Parameters
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    examples: Dataset
    encoded: Dataset
    score_name: str
    majority: float  # score of the most frequent class; in SQuAD of never answering
    trainer: StudyTrainer


def prepare(parameters: Parameters, split: str = "validation", examples: int | None = None) -> Subject:
    """Load the model that a run has kept (`save_model`), and the examples.

    Args:
        parameters: of the run that trained the model with softmax; its model is in `output_dir`.
        split: "held-out" are training examples that the run did not see; else a split's name.
        examples: how many, the same for every run; None takes all.
    Raises:
        ValueError: the run kept no model, or held no example out.
    """
    folder = Path(parameters.output_dir or ".") / "model"
    if not folder.is_dir():
        raise ValueError(f"{folder} is not there (models are not kept in the repository); make the run again")
    task = find_task(parameters.task)
    data = load_data(parameters.task, parameters.data_dir, eval_examples=examples)
    rows = held_out(data["train"], parameters.train_examples, examples) if split == "held-out" else data[split]
    tokenizer = load_tokenizer(str(folder))
    model = load_model(str(folder), head="question-answering" if task.is_squad else "classification")
    if task.is_squad:
        encoded = squad.windows(rows, tokenizer, max_length=parameters.max_length)
    else:
        encoded = encode(DatasetDict({split: rows}), task, tokenizer, parameters.max_length)[split]
    name, majority = task.headline, 0.0
    if "accuracy" in task.metrics:
        name, labels = "accuracy", np.asarray(rows["label"])
        majority = metrics.majority((name,), np.asarray(data["train"]["label"]), labels)[name]
    encoded = encoded.sort("length")
    arguments = training_arguments(parameters)
    arguments.output_dir = str(folder)  # Trainer wants one, though nothing is trained
    trainer = StudyTrainer(
        model=model,
        args=arguments,
        eval_dataset=encoded,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    return Subject(parameters, model, tokenizer, rows, encoded, name, majority, trainer)


def answer(subject: Subject) -> tuple[float, np.ndarray]:
    """The score under the model's present attention, and its answers in the order of the examples."""
    task, found = find_task(subject.parameters.task), subject.trainer.predict(subject.encoded)
    if not task.is_squad:
        answers = metrics.answers_of(np.asarray(found.predictions), task.num_labels)
        return metrics.scores((subject.score_name,), np.asarray(found.label_ids), answers)[subject.score_name], answers
    start, end = (np.asarray(logits) for logits in found.predictions[:2])
    no_answer = squad.has_unanswerable(subject.examples)
    best = squad.best_answers(subject.examples, subject.encoded, start, end, no_answer=no_answer)
    texts = {key: best[key].text for key in subject.examples["id"]}
    return squad.score(subject.examples, texts)[subject.score_name], np.asarray(list(texts.values()), dtype=object)


def changed(before: np.ndarray, after: np.ndarray) -> float:
    """Share of the answers that change; numbers (STS-B's 0 to 5) do when they move by more than half a point."""
    if before.dtype.kind == "f":
        return float((np.abs(before - after) > 0.5).mean())
    return float((before != after).mean())


@torch.no_grad()
def look(subject: Subject, examples: int) -> tuple[list[torch.Tensor], list[list[Pass]]]:
    """Last hidden states, padding left out, and attention passes of a sample, in float32."""
    states, seen = [], []
    for batch in sample(subject.model, subject.tokenizer, subject.encoded, examples):
        with record_passes(subject.model) as passes:
            hidden = subject.model.base_model(**batch).last_hidden_state
        states.append(hidden[batch["attention_mask"].bool()])
        seen.append(passes)
    return states, seen


@torch.no_grad()
def compare(seen: Pass, variant: Variant) -> pd.DataFrame:
    """What an attention does with a pass's queries, keys and values, held against softmax.

    Returns:
        One row for each sequence and head: head, length (tokens), pairs (attended), mass and recall (sums over its
        queries), difference and norm (squared, of the attention's output). Recall of a query that sees m keys is the
        share of its m best keys that are among them.
    """
    query, key, value, mask = seen.query, seen.key, seen.value, seen.padding_mask
    if mask is None:
        mask = torch.ones(query.shape[0], query.shape[2], dtype=torch.bool, device=query.device)
    tensors = query, key, value, mask
    out = attentions.attend(variant.attention, *tensors, seed=seen.seed, **variant.settings)
    softmax = attentions.attend("softmax", *tensors)
    met = attentions.pairs(variant.attention, query, key, mask, seed=seen.seed, **variant.settings) > 0
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    mass = (scores.softmax(-1) * met).sum(-1)
    rank = scores.argsort(-1, descending=True).argsort(-1)
    n_met = met.sum(-1, keepdim=True)
    recall = (met & (rank < n_met)).sum(-1) / n_met[..., 0].clamp(min=1)
    batch, heads = query.shape[:2]
    columns = {
        "length": mask.sum(-1)[:, None].expand(-1, heads),
        "pairs": met.sum((-1, -2)),
        "mass": mass.mul(mask[:, None]).sum(-1),
        "recall": recall.mul(mask[:, None]).sum(-1),
        "difference": (out - softmax).square().sum((-1, -2)),
        "norm": softmax.square().sum((-1, -2)),
    }
    frame = pd.DataFrame({name: column.flatten().tolist() for name, column in columns.items()})
    return frame.assign(head=list(range(heads)) * batch)


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Rows of `compare` put together: shares of pairs, of mass, recall, and the error of the output.

    The error is the Frobenius norm of the difference over that of softmax's output, for each layer and batch, and its
    mean over these.
    """
    sums = (
        rows.assign(all_pairs=rows["length"] ** 2).groupby(by)[["length", "all_pairs", "pairs", "mass", "recall"]].sum()
    )
    one = rows.groupby([*by, "layer", "batch"] if "layer" not in by else [*by, "batch"])[["difference", "norm"]].sum()
    return pd.DataFrame(
        {
            "pairs": sums["pairs"] / sums["all_pairs"],
            "mass": sums["mass"] / sums["length"],
            "recall": sums["recall"] / sums["length"],
            "error": (one["difference"] / one["norm"]).pow(0.5).groupby(by).mean(),
        }
    ).reset_index()


def measure(
    subject: Subject, variants: list[Variant], *, seed: int = 0, examples: int = 64
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Answer under softmax, then under one variant after the other.

    Args:
        seed: of the hashes.
        examples: how many to look into the attention on.
    Yields:
        For each variant its row of the table, and its `compare` rows with the layer they belong to.
    """
    switch_attention(subject.model, "softmax")
    base, before = answer(subject)
    states, seen = look(subject, examples)
    span = base - subject.majority
    for variant in variants:
        settings = attentions.check(variant.attention, variant.settings)
        rows = pd.concat(
            compare(one, variant).assign(layer=layer, batch=number)
            for number, passes in enumerate(seen)
            for layer, one in enumerate(passes)
        )
        switch_attention(subject.model, variant.attention, settings, seed)
        score, after = answer(subject)
        moved = look(subject, examples)[0]
        budget = attended(subject.model, subject.tokenizer, subject.encoded, examples)
        switch_attention(subject.model, "softmax")
        gone = torch.cat(moved) - torch.cat(states)
        overall = summary(rows.assign(all=0), ["all"])[["mass", "recall", "error"]].iloc[0]
        row: dict[str, Any] = {
            "variant": variant.label,
            "attention": variant.attention,
            "settings": json.dumps(settings),
            "score_name": subject.score_name,
            "score": score,
            "softmax": base,
            "majority": subject.majority,
            "kept": (score - subject.majority) / span if span else math.nan,  # no share of nothing
            "changed": changed(before, after),
            "drift": (gone.norm() / torch.cat(states).norm()).item(),
            "share": budget.pairs,
            "compared": budget.compared,
        }
        row |= {str(k): v for k, v in overall.items()}
        yield row, rows


def measure_all(subject: Subject, asked: Asked) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`measure` every variant that asked.output does not have yet, and write that table after each.

    Beside it, with "-heads" in the name, go the diagnostics of each layer and head, and of short and long sequences.

    Returns:
        The table, one row a variant; and the looks into the attention by variant, layer, head and length.
    """
    path = Path(asked.output or "")
    looks_path = path.with_name(f"{path.stem}-heads.csv")
    variants, started = asked.list(), environment(subject.parameters.device)
    about = {name: started[name] for name in ("commit", "date", "device", "python")}
    about["commit"] = about["commit"] or "unknown"  # outside a checkout there is none
    about |= {"packages": " ".join(f"{name}=={number}" for name, number in started["packages"].items())}
    about |= {"task": subject.parameters.task, "seed": subject.parameters.seed, "hash_seed": asked.seed}
    about |= {"split": asked.split, "examples": len(subject.examples), "looked_into": asked.looked_into}
    wanted = {v.label: json.dumps(v.settings) for v in variants}
    rows: list[dict[str, Any]] = []
    looks: list[pd.DataFrame] = []
    if path.exists():
        rows, looks = pd.read_csv(path).to_dict("records"), [pd.read_csv(looks_path)]  # type: ignore[assignment]
    rows = [row for row in rows if wanted.get(row["variant"]) == row["settings"]]
    there = {row["variant"] for row in rows}
    looks = [look[look["variant"].isin(there)] for look in looks]
    missing = [v for v in variants if v.label not in there]
    for row, look_rows in measure(subject, missing, seed=asked.seed, examples=asked.looked_into):
        rows.append({**row, **about})
        looks.append(by_head_and_length(look_rows).assign(variant=row["variant"]))
        write_atomically(looks_path, pd.concat(looks).to_csv(index=False))
        write_atomically(path, pd.DataFrame(rows).to_csv(index=False))
    return pd.DataFrame(rows), pd.concat(looks)


def by_head_and_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `compare` put together by layer, head and third of the sequences by length."""
    third = pd.qcut(rows["length"], 3, duplicates="drop")
    lengths = rows.groupby(third, observed=True)["length"].agg(["min", "max"]).astype(str).agg(" to ".join, axis=1)
    return summary(rows.assign(lengths=third.map(lengths).astype(str)), ["layer", "head", "lengths"])
