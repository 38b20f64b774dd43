"""The parameters of long_range.ipynb, and of each model that it trains."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch.utils.data import Dataset

from albert_lsh.files import root_of
from albert_lsh.run import HIGHEST, Count, Device, Positive, Precision, Run, Seed, Share, on_this_machine
from albert_lsh.training.parameters import (
    errors_named,
    from_given,
    hash_of_changes,
    of_parameters_cell,
    placed,
    recorded,
)
from albert_study.long_range.tasks import LONG_TASKS, own_variants
from albert_study.probe.candidates import candidates_of

LONG_RANGE_NOTEBOOK = "long_range.ipynb"
EVALUATIONS = 10  # of a run, where eval_steps is not given


@dataclass(frozen=True, kw_only=True)
class LongRecipe:
    """What all models of a notebook share."""

    task: str
    max_length: Annotated[int, Field(ge=16, le=HIGHEST)]
    steps: Count
    learning_rate: Positive
    batch_size: Count
    attention_dropout: Share
    warmup: Annotated[int, Field(ge=0, le=HIGHEST)] | None = None
    eval_steps: Count | None = None
    train_examples: Count | None = None
    eval_examples: Count | None = None
    evaluate: dict[str, Any] = field(default_factory=dict)
    seed: Seed = 0
    precision: Precision = "auto"
    device: Device = "auto"
    data_dir: str | None = None
    resume: bool = True
    output_dir: str = ""
    results_root: str | None = None


@dataclass(frozen=True, kw_only=True)
class LongRun(LongRecipe):
    """The parameters of one model's training."""

    label: str
    attention: str
    attention_settings: dict[str, Any]

    def recorded(self) -> dict[str, Any]:
        return recorded(self)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}

    def identity(self) -> dict[str, Any]:
        """All that decides the result."""
        return {name: value for name, value in recorded(self).items() if name not in Run.where}


@dataclass(frozen=True, kw_only=True)
class LongRange(LongRecipe):
    """The parameters of long_range.ipynb."""

    variants: dict[str, Any] = field(default_factory=dict)
    only: list[Any] = field(default_factory=list)
    share: float = 0.25

    @classmethod
    def check(cls, given: dict[str, Any]) -> "LongRange":
        """From a notebook's variables (pass `globals()`). None, {} and [] stand for the task's own values.

        Raises:
            ParameterError: a name that is no parameter, a value of the wrong type or out of range, an unknown task,
                variant, attention or setting, a device that is not there.
        """
        given = {name: value for name, value in of_parameters_cell(cls, given).items() if value is not None}
        with errors_named(LONG_RANGE_NOTEBOOK):
            name = given.setdefault("task", "duplication")
            if not isinstance(name, str) or name not in LONG_TASKS:
                raise ValueError(f"task={name!r} is not one of: {', '.join(LONG_TASKS)}")
            task = LONG_TASKS[name]
            asked = placed(from_given(cls, task.recipe | given, LONG_RANGE_NOTEBOOK), ["output_dir", "data_dir"])
            warmup = round(task.warmup / task.recipe["steps"] * asked.steps) if asked.warmup is None else asked.warmup
            eval_steps = asked.eval_steps or math.ceil(asked.steps / EVALUATIONS)
            if name == "duplication" and asked.max_length % 2:
                raise ValueError(f"max_length={asked.max_length} must be even: duplication has two halves")
            own, evaluate = own_variants(name, asked.max_length, asked.share)
            asked = dataclasses.replace(
                asked,
                warmup=warmup,
                eval_steps=eval_steps,
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
        if asked.output_dir:
            return asked
        what = {name: value for name, value in recorded(asked).items() if name not in (*Run.where, "only")}
        own_folder = f"notebook{hash_of_changes(what, dict.fromkeys(what))}"  # another for every change
        folder = root_of(asked.results_root) / "results" / "long_range" / own_folder
        return dataclasses.replace(asked, output_dir=str(folder))

    def runs(self) -> list[LongRun]:
        """One for each variant that is to be trained."""
        folder = Path(self.output_dir) / f"{self.task}-{self.max_length}"
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(LongRecipe) if f.name != "output_dir"}
        return [
            LongRun(
                **shared,
                label=variant.label,
                attention=variant.attention,
                attention_settings=variant.settings,
                output_dir=str(folder / variant.label / f"seed-{self.seed}"),
            )
            for variant in candidates_of(self.variants)
            if variant.label in (self.only or self.variants)
        ]

    def load_data(self) -> dict[str, Dataset]:
        """The task's splits: train, validation and test."""
        return LONG_TASKS[self.task].load(self)
