"""Small models trained from nothing on long sequences, one attention after the other; `long_recipe` has the tasks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, EvalPrediction, PreTrainedModel, Trainer, set_seed
from transformers.trainer_utils import PredictionOutput

from albert_lsh.files import delete, lock, write_atomically
from albert_lsh.machine import choose_threads, environment
from albert_lsh.metrics import chance, majority, mean_attended, scores
from albert_lsh.model.load import load_model, switch_attention
from albert_lsh.record import check_made, read_result, record_of, write_result
from albert_lsh.train import CURVE_POINTS, StudyTrainer, newest, train_loop, training_arguments
from albert_study.experiments import long_tasks
from albert_study.experiments.long_recipe import TASKS, LongRange, LongRun
from albert_study.probe.variants import variants_of

EXAMINED_EXAMPLES = 4  # examples in which pairs attended are counted
LABELS = 100_000  # of duplication, whose frequencies give the majority baseline
ACCURACY = ("accuracy",)
# Accuracy in Long Range Arena: of its authors, and of Nyströmformer's (Reformer stands beside shared-qk-lsh).
ARENA_ACCURACY = {
    "listops": {"softmax": (0.3637, 0.3710), "shared-qk-lsh": (0.3727, 0.1905), "nystrom": (None, 0.3715)},
    "text": {"softmax": (0.6427, 0.6502), "shared-qk-lsh": (0.5610, 0.6488), "nystrom": (None, 0.6552)},
}


# Training


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


def build_model(run: LongRun) -> nn.Module:
    """The run's model; that of duplication has the paper's size. Seeds all random numbers."""
    set_seed(run.seed)
    task, is_classifier = TASKS[run.task], run.task != "duplication"
    width, layers, heads, feed_forward = (64, 2, 2, 128) if is_classifier else (256, 1, 4, 256)
    config = BertConfig(
        vocab_size=task.vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=feed_forward, max_position_embeddings=run.max_length, type_vocab_size=1,
        pad_token_id=0 if is_classifier else None, hidden_dropout_prob=0.1 if is_classifier else 0.0,
        attention_probs_dropout_prob=run.attention_dropout,
    )  # fmt: skip
    chosen: dict[str, Any] = {"attention": run.attention, "settings": run.attention_settings, "seed": run.seed}
    model = load_model(config, head="base" if is_classifier else "masked-lm", **chosen)
    if is_classifier:
        return Classifier(model, task.classes)
    long_tasks.begin_as_copies(model)
    return model


def accuracy(seen: EvalPrediction | PredictionOutput) -> dict[str, float]:
    """The share of right answers, where there is something to predict."""
    labels, answers = np.asarray(seen.label_ids), np.asarray(seen.predictions)
    scored = labels != long_tasks.UNSCORED
    return scores(ACCURACY, labels[scored], answers[scored])


def train_model(
    run: LongRun, model: nn.Module, data: dict[str, Dataset]
) -> tuple[StudyTrainer, pd.DataFrame, dict[str, float]]:
    """Train a model; resume from the newest complete checkpoint of the same run if there is one.

    Returns:
        Trainer, history and cost; see `train_loop`.
    """
    arguments = training_arguments(
        run, Path(run.output_dir), max_steps=run.steps, warmup_steps=run.warmup, weight_decay=0.0,
        train_sampling_strategy="random" if run.task == "duplication" else "group_by_length",
        length_column_name="length", remove_unused_columns=False, logging_steps=max(1, run.steps // CURVE_POINTS),
        eval_strategy="steps", eval_steps=run.eval_steps, save_strategy="steps", save_steps=run.eval_steps,
    )  # fmt: skip
    trainer = StudyTrainer(
        model=model, args=arguments, train_dataset=data["train"], eval_dataset=data["validation"],
        data_collator=TASKS[run.task].collate, compute_metrics=accuracy,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )  # fmt: skip
    checkpoint = newest(Path(run.output_dir) / "checkpoints", run.identity(), resume=run.resume)
    history, cost = train_loop(trainer, checkpoint)
    return trainer, history, cost | {"examples_per_second": run.steps * run.batch_size / cost["train_seconds"]}


def test_scores(run: LongRun, trainer: Trainer, test: Dataset, batches: list[dict[str, Tensor]]) -> dict[str, float]:
    """Accuracy on the test split: `accuracy` as trained, and `accuracy, <label>` under each attention of `evaluate`.

    batches: on which the `cost, <label>` of each is counted, as a share of softmax attention's.
    """
    model: Any = trainer.model
    results = accuracy(trainer.predict(test))
    for variant in variants_of(run.evaluate) if run.evaluate else []:
        switch_attention(model, variant.attention, variant.settings, run.seed)
        results[f"accuracy, {variant.label}"] = accuracy(trainer.predict(test))["accuracy"]
        results[f"cost, {variant.label}"] = mean_attended(model, batches).cost
    return results


def labels_of(run: LongRun, data: Dataset) -> np.ndarray:
    """The right answers, (n,); of duplication those of its first examples."""
    if run.task != "duplication":
        return np.asarray(data["label"])
    few = range(min(len(data), LABELS // run.max_length))  # type: ignore[arg-type]
    labels = np.concatenate([data[number]["labels"].numpy() for number in few])
    return labels[labels != long_tasks.UNSCORED]


def make_run(run: LongRun, data: dict[str, Dataset]) -> None:
    """Train and evaluate one model, and write its history.csv and, last, result.json; a finished run is kept.

    Raises:
        ParameterError: its folder holds another run's result or checkpoints; out of memory.
        DivergedError: a loss is not finite.
    """
    folder = Path(run.output_dir)
    with lock(folder):
        if (folder / "result.json").exists():
            check_made(run)
            return
        choose_threads(run.device)
        started, task, test = environment(run.device), TASKS[run.task], data["test"]
        model = build_model(run)
        trainer, history, cost = train_model(run, model, data)
        examples = [test[number] for number in range(min(EXAMINED_EXAMPLES, len(test)))]  # type: ignore[arg-type]
        batches = [{k: v.to(run.device) for k, v in task.collate([example]).items()} for example in examples]
        coverage, answers = mean_attended(model, batches), labels_of(run, test)
        baselines = {
            "score": test_scores(run, trainer, test, batches),
            "majority": majority(ACCURACY, labels_of(run, data["train"]), answers),
            "chance": chance(ACCURACY, answers, task.classes),
        }
        sizes = {split: len(rows) for split, rows in data.items()}  # type: ignore[arg-type]
        record = record_of(run, trainer, "accuracy", baselines, coverage, cost, sizes, started)
        write_result(folder, record, history)
        delete(folder / "checkpoints")


def train_all(settings: LongRange, data: dict[str, Dataset]) -> pd.DataFrame:
    """Train every variant that has no result yet.

    Returns:
        `comparison` of the task, which is also written to output_dir/<task>.csv.
    """
    runs = settings.runs()
    for number, run in enumerate(runs, start=1):
        print(f"{run.label} ({number} of {len(runs)}): {run.steps:,} steps")
        make_run(run, data)
    table = comparison(Path(settings.output_dir), settings.task)
    write_atomically(Path(settings.output_dir) / f"{settings.task}.csv", table.to_csv(index=False))
    return table


def comparison(folder: Path, task: str) -> pd.DataFrame:
    """One row for each result of a task below a folder, beside chance, majority class and the published numbers.

    Duplication has a row for each attention that a model was evaluated under.
    """
    rows = []
    for path in sorted(folder.glob(f"{task}-*/*/seed-*/result.json")):
        result = read_result(path)
        run, metrics = result["parameters"], result["metrics"]
        row = {n: run[n] for n in ("task", "max_length", "label", "attention", "seed", "steps", "batch_size")}
        row |= {"attention_settings": json.dumps(run["attention_settings"]), "seconds": result["train_seconds"]}
        row |= {"attended": result["attended_share"], "full_cost": result.get("full_cost"), "shorter": shorter(result)}
        row |= {"test_examples": result["examples"]["test"]}
        row |= {name: result[name]["accuracy"] for name in ("chance", "majority")}
        if task != "duplication":
            arena, rerun = ARENA_ACCURACY.get(task, {}).get(run["attention"], (None, None))
            rows.append(row | {"accuracy": metrics["accuracy"], "arena": arena, "rerun": rerun})
            continue
        published = long_tasks.PUBLISHED_ACCURACY.get(run["label"], {})
        for label in (name.removeprefix("accuracy, ") for name in metrics if name.startswith("accuracy, ")):
            under = {"evaluated": label, "evaluated_cost": metrics.get(f"cost, {label}")}
            rows.append(row | under | {"accuracy": metrics[f"accuracy, {label}"], "published": published.get(label)})
    return pd.DataFrame(rows)


def shorter(result: dict[str, Any]) -> str:
    """Where a run has less than the published recipe, and its learning rate if it differs; "" for nothing."""
    run = result["parameters"] | {"train_examples": result["examples"]["train"]}
    published = TASKS[run["task"]].published
    names = {"steps": "steps", "max_length": "tokens", "train_examples": "training examples"}
    names |= {"batch_size": "examples a step", "attention_dropout": "attention dropout"}
    less = [f"{run[n]:,} of {published[n]:,} {what}" for n, what in names.items() if run[n] < published.get(n, 0)]
    if run["learning_rate"] != published.get("learning_rate", run["learning_rate"]):
        less.append(f"learning rate {run['learning_rate']:g} instead of {published['learning_rate']:g}")
    return "; ".join(less)
