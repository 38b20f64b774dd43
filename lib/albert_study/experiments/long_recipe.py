"""The long tasks, how each is trained where it was published, and the parameters of long_range.ipynb.

Reformer's duplication (`duplication`), and two tasks of Long Range Arena (Tay et al. 2021): ListOps (`listops`) and the
bytes of IMDb's reviews (`text`). These have the recipe of the re-runs by Nyströmformer's and YOSO's authors (Xiong et
al. 2021; Zeng et al. 2021; mlpen/YOSO, LRA/models): an encoder of two layers, 64 wide, two heads, a feed-forward part
of 128, and a small network that reads the mean of its last hidden states. What differs here:

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

from pydantic import Field, model_validator
from torch import Tensor
from torch.utils.data import Dataset
from transformers import default_data_collator

from albert_lsh.run import (
    OPEN,
    Count,
    CountOrZero,
    Device,
    Place,
    Positive,
    Precision,
    Seed,
    Settings,
    Share,
    on_this_machine,
)
from albert_study.experiments import long_tasks
from albert_study.probe.variants import variants_of

EVALUATIONS = 10  # of a run, where eval_steps is not given


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
    task: Literal["duplication", "listops", "text"] = "duplication"
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
