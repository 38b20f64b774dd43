"""Small models trained on long sequences, one after the other, and what they reach beside what is published.

For `listops` and `text` an ordinary BERT of two layers, 64 wide, two heads, a feed-forward part of 128, and a small
network that reads the mean of its last hidden states. What differs from Nyströmformer's authors: BERT normalises the
embeddings, and after each part instead of before it; the mean is of tokens, without padding; batches are of similar
length; gradients are clipped at a norm of 1, as Trainer does; and the score is that after the last step, not that of
the checkpoint that did best (for `text` on the test set: it has no other). For `duplication` see there.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    EvalPrediction,
    PreTrainedModel,
    Trainer,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput

from albert_lsh.attention import Coverage
from albert_lsh.model.interface import mean_attended
from albert_lsh.model.load import load_model, switch_attention
from albert_lsh.tasks.metrics import chance, majority, scores
from albert_lsh.training.checkpoints import Seal, last_checkpoint
from albert_lsh.training.files import write_atomically
from albert_lsh.training.recipe import (
    CURVE_POINTS,
    Clock,
    Fit,
    StudyTrainer,
    Watch,
    cost_of,
    explain_out_of_memory,
    history_of,
    training_arguments,
)
from albert_lsh.training.record import close_run, environment, open_run, read_result, write_result
from albert_study.evidence.rounding import percent
from albert_study.long_range import duplication
from albert_study.long_range.recipes import TASKS, LongRange, Run
from albert_study.probe.candidates import candidates_of

LOOKS = 4  # examples in which it is counted what an attention attends to
ACCURACY = ("accuracy",)
# Accuracy in Long Range Arena: of its authors, and of Nyströmformer's (Reformer stands beside shared-qk-lsh).
PUBLISHED = {
    "listops": {"softmax": (0.3637, 0.3710), "shared-qk-lsh": (0.3727, 0.1905), "nystrom": (None, 0.3715)},
    "text": {"softmax": (0.6427, 0.6502), "shared-qk-lsh": (0.5610, 0.6488), "nystrom": (None, 0.6552)},
}


def batches(run: Run) -> Callable[[list[Any]], dict[str, Tensor]]:
    """A function that puts examples into a batch, padded with zeros to the longest.

    It gives input_ids and attention_mask, (batch, length), and labels, all long.
    """
    encode = TASKS[run.task].encode
    if encode is None:
        return default_data_collator

    def collate(rows: list[Any]) -> dict[str, Tensor]:
        ids = [torch.tensor(encode(row["text"])[: run.max_length]) for row in rows]
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
        labels = torch.tensor([row["label"] for row in rows])
        return {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": labels}

    return collate


class Classifier(nn.Module):
    """An encoder of `load_model`, and a network of one hidden layer that reads the mean of its last hidden states."""

    def __init__(self, encoder: PreTrainedModel, classes: int):
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.hidden = nn.Linear(self.config.hidden_size, self.config.intermediate_size)
        self.out = nn.Linear(self.config.intermediate_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """logits (batch, classes), and the cross-entropy as `loss` where labels (batch,) are given.

        input_ids, attention_mask: (batch, length), the latter 1 where there is a token.
        """
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1) / attention_mask.sum(1).clamp(min=1)[:, None, None]
        logits = self.out(self.hidden((states * weights).sum(1)).relu())
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def build(run: Run) -> nn.Module:
    """The run's model, with all random numbers seeded."""
    set_seed(run.seed)
    chosen: dict[str, Any] = {"attention": run.attention, "settings": run.attention_settings, "seed": run.seed}
    chosen |= {"attention_probs_dropout_prob": run.attention_dropout}
    if run.task == "duplication":
        model = load_model(duplication.config(run.max_length), head="masked-lm", **chosen)
        duplication.begin_as_copies(model)
        return model
    task = TASKS[run.task]
    config = BertConfig(
        vocab_size=task.vocabulary, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=run.max_length, type_vocab_size=1, pad_token_id=0, hidden_dropout_prob=0.1,
    )  # fmt: skip
    return Classifier(load_model(config, head="base", **chosen), task.classes)


def accuracy(seen: EvalPrediction | PredictionOutput) -> dict[str, float]:
    """The share of answers that are right, of those that count (label not -100)."""
    labels, answers = np.asarray(seen.label_ids), np.asarray(seen.predictions)
    return scores(ACCURACY, labels[labels != -100], answers[labels != -100])


def fit(run: Run, model: nn.Module, data: dict[str, Dataset]) -> Fit:
    """Train a model, from the last complete checkpoint of the same run on if there is one.

    Raises:
        ParameterError: checkpoints of a run with other parameters are in its folder.
    """
    decisive = run.what() | {"data_dir": run.data_dir}  # another folder may hold other data
    arguments = training_arguments(
        run,
        Path(run.output_dir),
        max_steps=run.steps,
        warmup_steps=run.warmup,
        weight_decay=0.0,
        train_sampling_strategy="random" if TASKS[run.task].encode is None else "group_by_length",
        length_column_name="length",  # batches are of similar length where examples have one
        remove_unused_columns=False,
        logging_steps=max(1, run.steps // CURVE_POINTS),
        eval_strategy="steps",
        eval_steps=run.eval_steps,
        save_strategy="steps",
        save_steps=run.eval_steps,
    )
    trainer = StudyTrainer(
        model=model,
        args=arguments,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=batches(run),
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        callbacks=[Clock(), Watch(), Seal(decisive)],
    )
    if run.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with explain_out_of_memory():
        trainer.train(resume_from_checkpoint=last_checkpoint(run, decisive))
    cost = cost_of(trainer, "examples", run.steps * run.batch_size, run.device)
    return Fit(trainer, history_of(trainer), cost)


def score(run: Run, trainer: Trainer, test: Dataset) -> dict[str, float]:
    """Accuracy on the test split: `accuracy` as trained, and `accuracy, <label>` under what it is evaluated with."""
    model: Any = trainer.model
    table = accuracy(trainer.predict(test))
    for variant in candidates_of(run.evaluate) if run.evaluate else []:
        switch_attention(model, variant.attention, variant.settings, run.seed)
        table |= {f"accuracy, {variant.label}": accuracy(trainer.predict(test))["accuracy"]}
    return table


def attended(run: Run, model: nn.Module, test: Dataset) -> Coverage:
    """The shares of pairs and of softmax's mass that a model attends to in evaluation, in a few examples."""
    some = (batches(run)([test[number]]) for number in range(min(LOOKS, len(test))))  # type: ignore[arg-type]
    return mean_attended(model, ({name: tensor.to(run.device) for name, tensor in batch.items()} for batch in some))


def labels_of(run: Run, data: Dataset, most: int = 100_000) -> np.ndarray:
    """The answers that are asked for, (n,); of a split without end those of its first examples."""
    if TASKS[run.task].encode is not None:
        return np.asarray(data["label"])
    few = range(min(len(data), most // run.max_length))  # type: ignore[arg-type]
    labels = np.concatenate([data[number]["labels"].numpy() for number in few])
    return labels[labels != -100]


def train(run: Run, data: dict[str, Dataset]) -> Path:
    """Train one model, evaluate it, and write its record; returns the path of result.json.

    Where there is one of the same run nothing is done; an interrupted run goes on at its last checkpoint.

    Raises:
        ParameterError: another run's result, or its checkpoints, are in the folder.
    """
    open_run(run)
    path = Path(run.output_dir) / "result.json"
    if path.exists() and run.resume:
        close_run(run)
        return path
    started, model = environment(run.device), build(run)
    done = fit(run, model, data)
    coverage = attended(run, model, data["test"])
    found = score(run, done.trainer, data["test"])
    labels, classes = labels_of(run, data["test"]), TASKS[run.task].classes
    baselines = {
        "score": found,
        "majority": majority(ACCURACY, labels_of(run, data["train"]), labels),
        "chance": chance(ACCURACY, labels, classes),
    }
    sizes = {split: len(rows) for split, rows in data.items()}  # type: ignore[arg-type]
    write_result(run, "accuracy", baselines, coverage, done, sizes, started)
    close_run(run)
    return path


def train_all(asked: LongRange, data: dict[str, Dataset]) -> pd.DataFrame:
    """Train every variant that has no result yet; returns `table` of the task, written to output_dir/<task>.csv."""
    for run in asked.runs():
        train(run, data)
    found = table(Path(asked.output_dir), asked.task)
    write_atomically(Path(asked.output_dir) / f"{asked.task}.csv", found.to_csv(index=False))
    return found


def table(folder: Path, task: str) -> pd.DataFrame:
    """Every result of a task in a folder, beside chance, majority class and what is published; a row each.

    `shorter` says what a run had less of than is published: steps, length, examples; and its learning rate, if another.
    For duplication there is a row for each attention that a model was evaluated under.
    """
    rows = []
    for path in sorted(folder.glob(f"{task}-*/*/seed-*/result.json")):
        result = read_result(path)
        asked, label = result["parameters"], result["parameters"]["label"]
        row = {
            name: asked[name] for name in ("task", "max_length", "label", "attention", "seed", "steps", "batch_size")
        }
        row |= {"attention_settings": json.dumps(asked["attention_settings"]), "seconds": result["train_seconds"]}
        row |= {"attended": result["attended_share"], "shorter": shorter(result)}
        row |= {"test_examples": result["examples"]["test"]}
        row |= {name: result[name]["accuracy"] for name in ("chance", "majority")}
        if task != "duplication":
            arena, rerun = PUBLISHED[task].get(asked["attention"], (None, None))
            rows.append(row | {"accuracy": result["metrics"]["accuracy"], "arena": arena, "rerun": rerun})
            continue
        for name, value in result["metrics"].items():
            under = name.removeprefix("accuracy, ")
            published = duplication.PUBLISHED.get(label, {}).get(under)
            if under != name:
                rows.append(row | {"evaluated": under, "accuracy": value, "published": published})
    return pd.DataFrame(rows)


def shorter(result: dict[str, Any]) -> str:
    """In what a run falls short of the published recipe, and its learning rate if another; empty if in nothing."""
    asked = result["parameters"]
    task = TASKS[asked["task"]]
    given = asked | {"train_examples": result["examples"]["train"]}
    named = {
        "steps": "steps",
        "max_length": "tokens",
        "train_examples": "training examples",
        "batch_size": "examples a step",
        "attention_dropout": "attention dropout",
    }
    less = [
        f"{given[name]:,} of {published:,} {what}"
        for name, what in named.items()
        if name not in task.unpublished and given[name] < (published := getattr(task, name) or 0)
    ]
    if "learning_rate" not in task.unpublished and asked["learning_rate"] != task.learning_rate:
        less.append(f"learning rate {asked['learning_rate']:g} instead of {task.learning_rate:g}")
    return "; ".join(less)


def shown(found: pd.DataFrame) -> pd.DataFrame:
    """A `table` to be read: percentages; for duplication ours (published), evaluated under in columns."""
    common = ["max_length", "label", "seed", "steps", "seconds", "shorter"]
    whole = found[common].round({"seconds": 0}).astype({"seconds": int})
    if "evaluated" not in found:
        digits = {"accuracy": 1, "chance": 1, "majority": 1, "arena": 2, "rerun": 2, "attended": 1}
        percents = {name: [_percent(share, n) for share in found[name]] for name, n in digits.items()}
        return whole.join(pd.DataFrame(percents, index=found.index))
    both = [
        _percent(ours, 1) + ("" if pd.isna(theirs) else f" ({_percent(theirs, 1)})")
        for ours, theirs in zip(found["accuracy"], found["published"].astype(float), strict=True)
    ]
    wide = whole.assign(both=both, evaluated=found["evaluated"]).pivot(index=common, columns="evaluated", values="both")
    return wide[found["evaluated"].unique()].rename_axis(columns=None).reset_index()


def _percent(share: float, digits: int) -> str:
    """In percent, without its sign; empty where there is none."""
    return "" if pd.isna(share) else percent(share, digits).removesuffix("%")


def histories(asked: LongRange) -> dict[str, pd.DataFrame]:
    """The curves of the variants' finished runs, by label."""
    return {run.label: pd.read_csv(Path(run.output_dir) / "history.csv") for run in asked.runs()}
