"""One task under several attentions: fine-tuned one after the other, each run as glue.ipynb makes it."""

import difflib
import time
from typing import Any, ClassVar

import pandas as pd
import torch
from datasets import DatasetDict
from pydantic import Field, field_validator, model_validator

from albert_lsh.data import encode
from albert_lsh.files import repository_root
from albert_lsh.kinds import Task
from albert_lsh.model.load import load_tokenizer
from albert_lsh.record import seconds_of_others
from albert_lsh.run import (
    OPEN,
    Count,
    Device,
    NameOrPath,
    OfTask,
    ParameterError,
    Positive,
    Precision,
    Run,
    Seed,
)
from albert_lsh.train import fit
from albert_study.experiments.words import scores_of
from albert_study.forecast import say_how_long
from albert_study.ladder import LADDER
from albert_study.records import BASELINES, COLUMNS, read_run, wide
from albert_study.scores import RUNGS, scores
from albert_study.show import form
from albert_study.tables import score_table

HALF_AN_HOUR = 1800  # seconds
BUSY = 0.3  # of a core
COUNTED = 50_000  # training examples; a bag of words takes minutes for more
OF_ARM = ("attention", "attention_settings", "projections", "residual", "pad_to_max_length", "learning_rate")
# What is left open together with the task. The original's model and task; batches of 16, as in its report, fit a T4.
ORIGINAL = "albert/albert-base-v2"
ON_GPU = {"task": "sst2", "model": ORIGINAL, "train_examples": 20_000, "batch_size": 16, "epochs": 1}
ON_CPU = {"task": "mini-mrpc", "model": "mini", "max_length": 32}  # as long as its longest texts
USUAL = {"arms": "ladder", "max_length": 64}  # tokens, as in 2020


class Comparison(OfTask):
    """The parameters of compare.ipynb; those that it shares with `Run` mean the same.

    `arms` is "ladder", or by label what a run of each arm has of OF_ARM. What is left open depends on the machine.
    """

    notebook: ClassVar[str] = "compare.ipynb"

    model: NameOrPath
    revision: str | None = None
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    seed: Seed = 0
    max_length: Count | None = None
    batch_size: Count | None = None
    learning_rate: Positive | None = None
    epochs: Positive | None = None
    train_examples: Count | None = None
    eval_examples: Count | None = None
    precision: Precision = "auto"
    device: Device = "auto"
    resume: bool = True
    take_hours: bool = False

    @model_validator(mode="before")
    @classmethod
    def by_machine(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A task that is left open is ON_GPU's or ON_CPU's, and a model the original's or "mini"."""
        values = {name: value for name, value in values.items() if value not in OPEN}
        if "task" not in values:
            device = values.get("device", "auto")
            has_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
            values = (ON_GPU if has_gpu else ON_CPU) | values
        return USUAL | {"model": "mini" if str(values["task"]).startswith("mini-") else ORIGINAL} | values

    @field_validator("arms", mode="before")
    @classmethod
    def of_ladder(cls, arms: Any) -> Any:
        if isinstance(arms, str) and not arms.startswith("{") and arms != "ladder":
            raise ValueError(f'arms={arms!r} is neither "ladder" nor {{label: {{"attention": name}}}}')
        return LADDER if arms == "ladder" else arms

    @field_validator("arms")
    @classmethod
    def of_a_run(cls, arms: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for label, arm in arms.items():
            for name in arm.keys() - {*OF_ARM}:
                near = difflib.get_close_matches(name, OF_ARM, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"an arm has: {', '.join(OF_ARM)}"
                raise ValueError(f"arms: {label!r}: {name!r} is nothing of an arm's; {hint}")
        return arms

    @property
    def names(self) -> dict[str, str]:
        """What each arm is called."""
        return RUNGS if self.arms == LADDER else {label: label for label in self.arms}

    def runs(self) -> dict[str, Run]:
        """The run of each arm, by its label.

        Raises:
            ParameterError: one that cannot be made; see `Run.parse`.
        """
        shared, runs = self.model_dump(exclude={"arms", "take_hours"}), {}
        Run.parse(shared, self.notebook)  # so that an error names an arm where it is the arm's
        for label, arm in self.arms.items():
            try:
                runs[label] = Run.parse(shared | arm, self.notebook)
            except ParameterError as error:
                raise ParameterError(f"arms: {label!r}: {error}") from error
        return runs


def check_time(comparison: Comparison, runs: dict[str, Run]) -> None:
    """Say how long the runs that are not made yet will take, by the times of like runs.

    Raises:
        ParameterError: more than half an hour, and `take_hours` is not set; it names parameters that take minutes.
    """
    if say_how_long(list(runs.values())) > HALF_AN_HOUR and not comparison.take_hours:
        raise ParameterError(
            'nothing was started: set task="mini-mrpc", model="mini" for a comparison of minutes, train_examples for a '
            "part of the task, or take_hours=True to go on (compare.ipynb)"
        )


def compare(runs: dict[str, Run], data: DatasetDict) -> pd.DataFrame:
    """Fine-tune every run that is not made yet; the rows of `read_run` of each, with its label as `arm`; and the score
    of a bag of words on the same examples, of at most COUNTED.

    Args:
        runs: by label; they differ in what an arm has alone. data: of `load_data`.
    """
    shared, rows = next(iter(runs.values())), []
    encoded = encode(data, shared.about, load_tokenizer(shared.model, shared.revision), shared.max_length)
    for number, (label, run) in enumerate(runs.items(), 1):
        print(f"{number} of {len(runs)}: {label}", flush=True)
        began, used = time.monotonic(), seconds_of_others()
        made = read_run(fit(run, data, encoded).folder / "result.json")
        others = (seconds_of_others() - used) / (time.monotonic() - began)
        arms = made["arm"].where(made["arm"].isin(BASELINES.values()), label)
        rows.append(made.assign(arm=arms, cores_of_others=others))
    if len(data["train"]) <= COUNTED:
        print("a bag of words", flush=True)
        rows.append(bag_of_words(shared.about, rows[0]["task"].iloc[0], data))
    return pd.concat(rows, ignore_index=True)


def bag_of_words(task: Task, name: str, data: DatasetDict) -> pd.DataFrame:
    """The rows of what counting words scores on a task, as `records.load` has them of a study."""
    train, examples, *_ = data.values()
    values = scores_of(task, train, examples)
    values["headline"] = values[task.headline]
    row = {"study": "bag-of-words", "kind": "bag of words", "task": name, "arm": "bag of words", "attention": ""}
    rows = [row | {"measure": measure, "value": value} for measure, value in values.items()]
    return pd.DataFrame(rows, columns=COLUMNS)


def score_and_cost(rows: pd.DataFrame) -> pd.DataFrame:
    """The scores of `compare` beside the majority class and chance; pairs and cost as shares of full attention's."""
    table = score_table(scores(rows, repository_root()), metrics=True).frame()
    by_label = wide(rows[rows["attention"] != ""]).set_index("arm")
    costs = by_label[["pairs", "cost"]].map(lambda share: form(share, "%"))
    if (rows["cores_of_others"] > BUSY).any():
        print("training times are left out: other programs kept the machine busy, so that they cannot be compared")
    else:
        costs["training"] = by_label["train_seconds"].map("{:.0f} s".format)
    return table.join(costs).fillna("")
