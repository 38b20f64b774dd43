"""Small models trained from nothing on long sequences, one attention after the other.

Reformer's duplication (`duplication`), and the five tasks of Long Range Arena (Tay et al. 2021): ListOps (`listops`),
the bytes of IMDb's reviews (`text`), pairs of papers (`retrieval`), pictures (`image`), paths (`pathfinder32`). These
have the recipe of the re-runs by Nyströmformer's and YOSO's authors (Xiong et al. 2021; Zeng et al. 2021; mlpen/YOSO,
LRA/models): an encoder of two layers, 64 wide, two heads, a feed-forward part of 128, and a small network that reads
the mean of its last hidden states; of pairs it reads both means, their product and difference. What differs here:

- BERT's encoder: it normalises the embeddings, and after each part instead of before it; no dropout after GELU;
- the mean leaves padding out, and batches are of similar length;
- gradients are clipped at a norm of 1, as Trainer does; Adam's epsilon is 1e-8, theirs 1e-6; the rate begins at 0,
  theirs at a 25th of the highest;
- Nyström and YOSO are ours (docs/attentions.md, "Theirs and ours"); filters of a convolution begin at zero;
- the score is that after the last step, not that of the best checkpoint (for `text` on the test set: it has no other).
"""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, EvalPrediction, PreTrainedModel, Trainer, default_data_collator, set_seed
from transformers.trainer_utils import PredictionOutput

from albert_lsh.files import delete, lock, write_atomically
from albert_lsh.interface import mean_attended
from albert_lsh.machine import choose_threads, environment
from albert_lsh.metrics import chance, majority, scores
from albert_lsh.model.load import load_model, switch_attention
from albert_lsh.record import check_made, read_result, record_of, write_result
from albert_lsh.run import (
    OPEN,
    Count,
    CountOrZero,
    Device,
    NameOrPath,
    Place,
    Positive,
    Precision,
    Seed,
    Settings,
    Share,
    on_this_machine,
)
from albert_lsh.train import CURVE_POINTS, StudyTrainer, newest, train_loop, training_arguments
from albert_study.experiments import long_tasks
from albert_study.probe.variants import variants_of

EVALUATIONS = 10  # of a run, where eval_steps is not given
EXAMINED_EXAMPLES = 4  # examples in which pairs attended are counted
LABELS = 100_000  # of duplication, whose frequencies give the majority baseline
ACCURACY = ("accuracy",)
# Accuracy in Long Range Arena: of its authors, and of Nyströmformer's (Reformer stands beside shared-qk-lsh).
ARENA_ACCURACY = {
    "listops": {"softmax": (0.3637, 0.3710), "shared-qk-lsh": (0.3727, 0.1905), "nystrom": (None, 0.3715)},
    "text": {"softmax": (0.6427, 0.6502), "shared-qk-lsh": (0.5610, 0.6488), "nystrom": (None, 0.6552)},
    "retrieval": {"softmax": (0.5746, 0.7935), "shared-qk-lsh": (0.5340, 0.7864), "nystrom": (None, 0.7956)},
    "image": {"softmax": (0.4244, 0.3820), "shared-qk-lsh": (0.3807, 0.4329), "nystrom": (None, 0.4158)},
    "pathfinder32": {"softmax": (0.7140, 0.7416), "shared-qk-lsh": (0.6850, 0.6936), "nystrom": (None, 0.7094)},
}


# The tasks, their published recipes, and the parameters


class LongTask(NamedTuple):
    """A task and its recipe."""

    load: Callable[["LongRecipe"], dict[str, Dataset]]  # the splits train, validation and test
    collate: Callable[[list[Any]], dict[str, Tensor]]  # makes a batch of examples
    vocabulary: int  # with padding
    classes: int
    warmup: int  # steps
    published: dict[str, Any]
    ours: dict[str, Any]  # what of the recipe is not published


ARENA = {"batch_size": 32, "attention_dropout": 0.1, "learning_rate": 1e-4}
TASKS = {
    "duplication": LongTask(
        long_tasks.load_duplication, default_data_collator, long_tasks.MASK + 1, long_tasks.SYMBOLS, 15_000,
        {"max_length": 1024, "steps": 150_000, "attention_dropout": 0.0}, {"learning_rate": 1e-3, "batch_size": 8},
    ),
    "listops": LongTask(
        long_tasks.load_listops, long_tasks.pad, 1 + len(long_tasks.NUMBERS), 10, 1_000,
        {"max_length": 2000, "steps": 5_000, "train_examples": 96_000, **ARENA}, {},
    ),
    "text": LongTask(
        long_tasks.load_reviews, long_tasks.pad, 257, 2, 8_000,
        {"max_length": 4096, "steps": 20_000, "train_examples": 25_000, **ARENA}, {},
    ),
    "retrieval": LongTask(
        long_tasks.load_papers, long_tasks.pad, 257, 2, 800,
        {"max_length": 4096, "steps": 30_000, "train_examples": 147_086, **ARENA}, {},
    ),
    "image": LongTask(
        long_tasks.load_pictures, long_tasks.pad, 257, 10, 175,
        {"max_length": 1024, "steps": 35_000, "train_examples": 45_000, **ARENA, "batch_size": 256}, {},
    ),
    "pathfinder32": LongTask(
        long_tasks.load_paths, long_tasks.pad, 257, 2, 312,
        {"max_length": 1024, "steps": 62_400, "train_examples": 160_000, **ARENA, "batch_size": 256}, {},
    ),
}  # fmt: skip


def own_variants(task: str, length: int, share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attentions that a task's models are trained with, and those that each model is also evaluated under.

    Args:
        length: of the longest sequence, in tokens. share: of the pairs, for attentions with a budget.
    """
    if task == "duplication":
        hashed = {"attention": "shared-qk-lsh", "bucket_size": max(2, length // long_tasks.BUCKETS)}
        named: dict[str, Any] = {"full": {"attention": "shared-qk"}}
        named |= {f"LSH-{rounds}": {**hashed, "n_hashes": rounds} for rounds in (8, 4, 2, 1)}
        return {label: named[label] for label in long_tasks.PUBLISHED_ACCURACY}, named
    landmarks = {"num_landmarks": min(64, length // 4), "conv_kernel_size": 35}  # nystrom-64 of lra_config.py
    return {
        "softmax": {"attention": "softmax"},
        "shared-qk-lsh": {"attention": "shared-qk-lsh", "share": share},
        "key-clusters": {"attention": "key-clusters", "share": share},
        "nystrom": {"attention": "nystrom", **landmarks},
        "yoso": {"attention": "yoso", "hash_code_len": math.ceil(math.log2(length))},  # as in their configurations
        "no-mixing": {"attention": "window", "keys": 1},  # each token sees itself alone
    }, {}


class LongRecipe(Settings):
    """What all models of a notebook share; what is left open is as published."""

    notebook: ClassVar[str] = "long_range.ipynb"
    where: ClassVar[tuple[str, ...]] = (*Settings.where, "only")
    task: Literal["duplication", "listops", "text", "retrieval", "image", "pathfinder32"] = "duplication"
    data_folder: NameOrPath | None = None
    max_length: Annotated[Count, Field(ge=16)]
    steps: Count
    learning_rate: Positive
    batch_size: Count
    attention_dropout: Share
    warmup: CountOrZero | None = None
    eval_steps: Count | None = None
    train_examples: Count | None = None
    eval_examples: Count | None = None
    evaluate: dict[str, Any] = Field(default={})
    seed: Seed = 0
    precision: Precision = "auto"
    device: Device = "auto"
    resume: bool = True
    output_dir: Place = ""

    @model_validator(mode="before")
    @classmethod
    def as_published(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = {name: value for name, value in values.items() if value not in OPEN}
        name = values.get("task", "duplication")
        task = TASKS[name if isinstance(name, str) and name in TASKS else "duplication"]
        return {k: v for k, v in (task.published | task.ours).items() if k != "train_examples"} | values


class LongRun(LongRecipe):
    """The parameters of one model's training."""

    label: str
    attention: str
    attention_settings: dict[str, Any]


class LongRange(LongRecipe):
    """The parameters of long_range.ipynb; {} and [] stand for the task's own values."""

    variants: dict[str, Any] = Field(default={})
    only: list[Any] = Field(default=[])
    share: float = 0.25

    def completed(self, place: str) -> Self:
        if self.task == "duplication" and self.max_length % 2:
            raise ValueError(f"max_length={self.max_length} must be even: duplication has two halves")
        task, (variants, evaluate) = TASKS[self.task], own_variants(self.task, self.max_length, self.share)
        warmup = round(task.warmup / task.published["steps"] * self.steps) if self.warmup is None else self.warmup
        update = {"variants": self.variants or variants, "evaluate": self.evaluate or evaluate, "warmup": warmup}
        update |= {"eval_steps": self.eval_steps or math.ceil(self.steps / EVALUATIONS)}
        settings = self.model_copy(update=update | on_this_machine(self.device, self.precision))
        for named in filter(None, (settings.variants, settings.evaluate)):
            variants_of(named)
        if unfit := [label for label in settings.variants if Path(label).name != label]:
            raise ValueError(f"variants: {unfit[0]!r} cannot be the name of a folder")
        if unknown := [label for label in self.only if label not in settings.variants]:
            raise ValueError(f"only: {unknown[0]!r} is not one of the variants: {', '.join(settings.variants)}")
        if settings.output_dir:
            return settings
        changes = {name: value for name, value in settings.identity().items() if value is not None}
        digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:6]
        folder = f"{self.results_root}/results/long_range/notebook-{digest}"  # another for every change
        return settings.model_copy(update={"output_dir": folder})

    def runs(self) -> list[LongRun]:
        """One for each variant that is to be trained."""
        shared, runs = {name: getattr(self, name) for name in LongRecipe.model_fields}, []
        for label, attention, settings in variants_of(self.variants):
            if label in (self.only or self.variants):
                folder = f"{self.output_dir}/{self.task}-{self.max_length}/{label}/seed-{self.seed}"
                attended = {"label": label, "attention": attention, "attention_settings": settings}
                runs.append(LongRun.model_validate(shared | attended | {"output_dir": folder}))
        return runs

    @property
    def results(self) -> list[str]:
        return [f"{run.output_dir}/result.json" for run in self.runs()]

    def load_data(self) -> dict[str, Dataset]:
        """The task's splits: train, validation and test."""
        return TASKS[self.task].load(self)


# Training


class Classifier(nn.Module):
    """An encoder of `load_model`, and a network of one hidden layer that reads the mean of its last hidden states.

    Of two texts it reads both means, their product and their difference.
    """

    def __init__(self, encoder: PreTrainedModel, classes: int, texts: int):
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.hidden = nn.Linear(self.config.hidden_size * (4 if texts == 2 else 1), self.config.intermediate_size)
        self.out = nn.Linear(self.config.intermediate_size, classes)

    def mean_state(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The mean of the last hidden states of tokens: (batch, width)."""
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1) / attention_mask.sum(1).clamp(min=1)[:, None, None]
        return (states * weights).sum(1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None,
        other_ids: Tensor | None = None, other_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """logits (batch, classes), and the cross-entropy as `loss` where labels (batch,) are given.

        input_ids, attention_mask: (batch, length), the latter 1 where there is a token; other_ids, other_mask: of the
        second text.
        """
        state = self.mean_state(input_ids, attention_mask)
        if other_ids is not None and other_mask is not None:
            other = self.mean_state(other_ids, other_mask)
            state = torch.cat([state, other, state * other, state - other], dim=-1)
        logits = self.out(self.hidden(state).relu())
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
        return Classifier(model, task.classes, 2 if run.task == "retrieval" else 1)
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
        if task in ARENA_ACCURACY:
            arena, rerun = ARENA_ACCURACY[task].get(run["attention"], (None, None))
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
