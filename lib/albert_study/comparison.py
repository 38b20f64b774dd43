"""One task under several attentions: fine-tuned one after the other, each run as glue.ipynb makes it."""

import time
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from datasets import DatasetDict
from pydantic import Field, field_validator

from albert_lsh.data import encode
from albert_lsh.model.load import load_tokenizer
from albert_lsh.record import seconds_of_others
from albert_lsh.run import Count, Device, NameOrPath, OfTask, ParameterError, Place, Positive, Precision, Run, Seed
from albert_lsh.train import fit
from albert_study.candidates import candidates_of
from albert_study.forecast import say_how_long
from albert_study.records import BASELINES, read_run, wide
from albert_study.scores import scores
from albert_study.show import form
from albert_study.tables import score_table

HALF_AN_HOUR = 1800  # seconds
BUSY = 0.3  # of a core


class Comparison(OfTask):
    """The parameters of compare.ipynb; those that it shares with `Run` mean the same."""

    notebook: ClassVar[str] = "compare.ipynb"

    model: NameOrPath
    revision: str | None = None
    variants: dict[str, Any] = Field(min_length=1)
    seed: Seed = 0
    max_length: Count | None = None
    batch_size: Count | None = None
    learning_rate: Positive | None = None
    epochs: Positive | None = None
    train_examples: Count | None = None
    eval_examples: Count | None = None
    precision: Precision = "auto"
    device: Device = "auto"
    data_dir: Place | None = None
    resume: bool = True
    take_hours: bool = False

    @field_validator("variants")
    @classmethod
    def labelled(cls, variants: dict[str, Any]) -> dict[str, Any]:
        labels = [variant.label for variant in candidates_of(variants)]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise ValueError(f"variants: {twice[0]!r} is named twice; give each share a label of its own")
        return variants

    def runs(self) -> dict[str, Run]:
        """The run of each variant, by its label.

        Raises:
            ParameterError: one that cannot be made; see `Run.parse`.
        """
        shared, runs = self.model_dump(exclude={"variants", "take_hours"}), {}
        for variant in candidates_of(self.variants):
            settings = {"attention": variant.attention, "attention_settings": variant.settings}
            runs[variant.label] = Run.parse(shared | settings, self.notebook)
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
    """Fine-tune every run that is not made yet; the rows of `read_run` of each, with its label as `arm`.

    Args:
        runs: by label; they differ in the attention alone. data: of `load_data`.
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
    return pd.concat(rows, ignore_index=True)


def score_and_cost(rows: pd.DataFrame) -> pd.DataFrame:
    """The scores of `compare` beside the majority class and chance; pairs and cost as shares of full attention's."""
    table = score_table(scores(rows, Path()), metrics=True).frame()
    by_label = wide(rows[rows["attention"] != ""]).set_index("arm")
    costs = by_label[["pairs", "cost"]].map(lambda share: form(share, "%"))
    if (rows["cores_of_others"] > BUSY).any():
        print("training times are left out: other programs kept the machine busy, so that they cannot be compared")
    else:
        costs["training"] = by_label["train_seconds"].map("{:.0f} s".format)
    return table.join(costs).fillna("")
