"""Long sequences: three tasks, the published recipes for them, and the parameters of long_range.ipynb.

Reformer's duplication (`duplication`), and two tasks of Long Range Arena (Tay et al. 2021): ListOps (`listops`) and the
bytes of IMDb's reviews (`text`). These two have the recipe of Nyströmformer's authors' re-run of the arena (Xiong et
al. 2021; mlpen/Nystromformer, LRA/code/lra_config.py). `train` makes the models and trains them.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import Dataset

from albert_lsh.tasks.table import Task, check_rows, download, subset
from albert_lsh.training.parameters import WHERE, check_ranges, errors_named, from_given, on_this_machine
from albert_study.long_range import duplication, listops
from albert_study.probe.candidates import Candidate, candidates_of

NOTEBOOK = "long_range.ipynb"
IMDB = Task("text", "stanfordnlp/imdb", None, ("text",), ("accuracy",), ("negative", "positive"))
OWN = ("max_length", "steps", "learning_rate", "batch_size", "attention_dropout")  # of a task, where not given
EVALUATIONS = 10  # of a run, where it is not said how many


@dataclass(frozen=True)
class LongTask:
    """A task and its published recipe."""

    load: Callable[["Run"], dict[str, Dataset]]  # train, validation, test
    encode: Callable[[str], list[int]] | None  # a text's token numbers, 0 being padding; None: examples are encoded
    vocabulary: int  # padding among it
    classes: int
    max_length: int
    steps: int
    warmup: int
    learning_rate: float
    train_examples: int | None  # None: without end
    batch_size: int
    attention_dropout: float
    unpublished: tuple[str, ...] = ()  # which of these are ours


@dataclass(frozen=True)
class LongRange:
    """The parameters of long_range.ipynb; None, {} and [] stand for the task's own."""

    task: str = "listops"
    variants: dict[str, Any] = field(default_factory=dict)  # trained; see candidates.candidates_of
    only: list[Any] = field(default_factory=list)  # labels of those that are trained now
    evaluate: dict[str, Any] = field(default_factory=dict)  # each model is evaluated under these too
    share: float = 0.25  # of the pairs, for the task's own variants that have a budget
    max_length: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    warmup: int | None = None  # steps
    attention_dropout: float | None = None  # 0 is faster: fused kernels drop nothing
    eval_steps: int | None = None  # evaluate, and save a checkpoint, every so many steps
    train_examples: int | None = None
    eval_examples: int | None = None  # of the validation and of the test split each
    seed: int = 0
    precision: str = "auto"
    device: str = "auto"
    data_dir: str | None = None
    resume: bool = True
    output_dir: str = "results/long_range"

    @classmethod
    def check(cls, given: dict[str, Any]) -> "LongRange":
        """From a notebook's variables (pass `globals()`), with the task's own in place of what is not given.

        Raises:
            ParameterError: a name that is no parameter, a value of the wrong type or out of range, an unknown task,
                variant, attention or setting, a device that is not there.
        """
        with errors_named(NOTEBOOK):
            asked = from_given(cls, given, NOTEBOOK)
            if asked.task not in TASKS:
                raise ValueError(f"task={asked.task!r} is not one of: {', '.join(TASKS)}")
            asked = completed(asked, TASKS[asked.task])
            asked._check_ranges()
            own, evaluate = own_variants(asked.task, asked.max_length, asked.share)
            asked = dataclasses.replace(
                asked,
                variants=asked.variants or own,
                evaluate=asked.evaluate or evaluate,
                **on_this_machine(asked.device, asked.precision),
            )
            for variants in filter(None, (asked.variants, asked.evaluate)):
                candidates_of(variants)
            if unfit := [label for label in asked.variants if Path(label).name != label]:
                raise ValueError(f"variants: {unfit[0]!r} cannot be the name of a folder")
            if unknown := [label for label in asked.only if label not in asked.variants]:
                raise ValueError(f"only: {unknown[0]!r} is not one of the variants: {', '.join(asked.variants)}")
        return asked

    def _check_ranges(self) -> None:
        lowest = {"max_length": 16, "steps": 1, "batch_size": 1, "warmup": 0, "eval_steps": 1, "seed": 0}
        lowest |= {"train_examples": 1, "eval_examples": 1}
        check_ranges(self, lowest, positive=("learning_rate",), shares=("attention_dropout",))
        if self.task == "duplication" and (self.max_length or 0) % 2:
            raise ValueError(f"max_length={self.max_length} must be even: duplication has two halves")

    def runs(self) -> list["Run"]:
        """One for each variant that is to be trained; for parameters that `check` has completed."""
        names = {f.name for f in dataclasses.fields(Run)} & {f.name for f in dataclasses.fields(self)}
        shared = {name: getattr(self, name) for name in names}
        folder = Path(self.output_dir) / f"{self.task}-{self.max_length}"

        def of(variant: Candidate) -> Run:
            own = {"label": variant.label, "attention": variant.attention, "attention_settings": variant.settings}
            return Run(**{**shared, **own, "output_dir": str(folder / variant.label / f"seed-{self.seed}")})

        return [of(v) for v in candidates_of(self.variants) if v.label in (self.only or self.variants)]


@dataclass(frozen=True)
class Run:
    """The parameters of one model's training."""

    task: str
    label: str
    attention: str
    attention_settings: dict[str, Any]
    evaluate: dict[str, Any]
    max_length: int
    steps: int
    batch_size: int
    learning_rate: float
    warmup: int
    attention_dropout: float
    eval_steps: int
    train_examples: int | None
    eval_examples: int | None
    seed: int
    precision: str
    device: str
    data_dir: str | None
    resume: bool
    output_dir: str  # the run's own

    def what(self) -> dict[str, Any]:
        """All that decides the result."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in WHERE}


def completed(asked: Any, task: LongTask) -> Any:
    """The parameters, a LongRange, with the task's own where they are None."""
    own = {name: getattr(task, name) for name in OWN}
    asked = dataclasses.replace(asked, **{name: value for name, value in own.items() if getattr(asked, name) is None})
    if asked.warmup is None:  # as large a part of the steps as published
        asked = dataclasses.replace(asked, warmup=round(task.warmup / task.steps * asked.steps))
    return dataclasses.replace(asked, eval_steps=asked.eval_steps or max(1, math.ceil(asked.steps / EVALUATIONS)))


def own_variants(task: str, length: int, share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a task's models are trained with, and what each of them is evaluated under besides.

    length: tokens of the longest sequence, for which those with a budget spend `share` of the pairs.
    """
    if task == "duplication":
        named = duplication.attentions(length)
        return {name: named[name] for name in duplication.PUBLISHED}, named
    budget = {name: {"attention": name, "share": share, "length": length} for name in ("shared-qk-lsh", "lsh")}
    landmarks = {"num_landmarks": min(64, length // 4), "conv_kernel_size": 35}  # nystrom-64 of lra_config.py
    return {
        "softmax": {"attention": "softmax"},
        **budget,
        "nystrom": {"attention": "nystrom", **landmarks},
        "yoso": {"attention": "yoso"},
    }, {}


def load_duplication(run: Run) -> dict[str, Dataset]:
    """Fresh examples in every step, unless train_examples limits them."""
    few = run.eval_examples or 1000
    counts = {"train": run.train_examples or run.steps * run.batch_size, "validation": few, "test": few}
    return {split: duplication.Duplication(split, n, run.max_length, seed=run.seed) for split, n in counts.items()}


def load_listops(run: Run) -> dict[str, Dataset]:
    """Examples of `listops.generate`, the same for every seed of a run; a quarter of max_length is the least length."""
    limits = {"train": run.train_examples, "validation": run.eval_examples, "test": run.eval_examples}
    sizes = {split: min(size, limits[split] or size) for split, size in listops.SIZES.items()}
    return dict(listops.generate(0, sizes, min_length=run.max_length // 4, max_length=run.max_length))


def load_text(run: Run) -> dict[str, Dataset]:
    """IMDb's reviews (Maas et al. 2011); as in Long Range Arena the test set is also the validation set.

    Raises:
        TaskError: the data cannot be had, or a split or column is missing.
    """
    found = download(run.data_dir or IMDB.dataset, IMDB.config, f"task={IMDB.name!r}")
    for split in ("train", "test"):
        check_rows(found[split] if split in found else datasets.Dataset.from_dict({}), IMDB, split)
    rows = {split: found[split].select_columns(["text", "label"]) for split in ("train", "test")}
    lengths = {split: [min(len(text.encode()), run.max_length) for text in rows[split]["text"]] for split in rows}
    rows = {split: data.add_column("length", lengths[split]) for split, data in rows.items()}
    test = subset(rows["test"], run.eval_examples)
    return {"train": subset(rows["train"], run.train_examples), "validation": test, "test": test}


def encode_bytes(text: str) -> list[int]:
    """The bytes of a text, each one more than its value, as in Long Range Arena: 1 to 256."""
    return [byte + 1 for byte in text.encode()]


TASKS = {
    "duplication": LongTask(
        load_duplication,
        encode=None,
        vocabulary=duplication.MASK + 1,
        classes=duplication.SYMBOLS,
        max_length=1024,
        steps=150_000,
        warmup=15_000,
        learning_rate=1e-3,
        batch_size=8,
        attention_dropout=0.0,
        train_examples=None,
        unpublished=("warmup", "learning_rate", "batch_size"),
    ),
    "listops": LongTask(
        load_listops,
        encode=listops.encode,
        vocabulary=1 + len(listops.TOKENS),
        classes=10,
        max_length=2000,
        steps=5_000,
        warmup=1_000,
        learning_rate=1e-4,
        batch_size=32,
        attention_dropout=0.1,
        train_examples=96_000,
    ),
    "text": LongTask(
        load_text,
        encode=encode_bytes,
        vocabulary=257,
        classes=2,
        max_length=4096,
        steps=20_000,
        warmup=8_000,
        learning_rate=1e-4,
        batch_size=32,
        attention_dropout=0.1,
        train_examples=25_000,
    ),
}


def load_data(asked: LongRange) -> dict[str, Dataset]:
    """The task's splits: train, validation and test, for parameters that `check` has completed."""
    return TASKS[asked.task].load(asked.runs()[0])
