"""One task under several attentions: fine-tuned one after the other, each run as glue.ipynb makes it."""

import dataclasses
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import DatasetDict

from albert_lsh.model.load import load_tokenizer
from albert_lsh.tasks.data import encode
from albert_lsh.tasks.table import find_task
from albert_lsh.training.cores import seconds_of_others
from albert_lsh.training.files import placed
from albert_lsh.training.fine_tuning import fine_tune
from albert_lsh.training.parameters import (
    Count,
    ParameterError,
    Parameters,
    Positive,
    Seed,
    errors_named,
    from_given,
)
from albert_lsh.training.recipe import hardly_trained
from albert_study.compare import scores
from albert_study.expected import say_how_long
from albert_study.probe.candidates import candidates_of
from albert_study.records import BASELINES, load_history, read_run, wide
from albert_study.show import form
from albert_study.tables import score_table

NOTEBOOK = "compare.ipynb"
BUSY = 0.3  # of a core
HALF_AN_HOUR = 1800  # seconds


@dataclass(frozen=True)
class Comparison:
    """The parameters of compare.ipynb; those that it shares with `Parameters` mean the same."""

    task: str
    model: str
    variants: dict[str, Any]
    seed: Seed = 0
    max_length: Count | None = None
    batch_size: Count | None = None
    learning_rate: Positive | None = None
    epochs: Positive | None = None
    train_examples: Count | None = None
    eval_examples: Count | None = None
    precision: str = "auto"
    device: str = "auto"
    data_dir: str | None = None
    resume: bool = True
    take_hours: bool = False
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Comparison":
        """From a notebook's variables (pass `globals()`).

        Raises:
            ParameterError: one that is none of the notebook's, or of the wrong type.
        """
        return placed(from_given(cls, given, NOTEBOOK), ["data_dir"], ["model"])

    def runs(self) -> dict[str, Parameters]:
        """The run of each variant, by its label.

        Raises:
            ParameterError: one that cannot be made; see `Parameters.check`.
        """
        own_names = ("variants", "take_hours")
        shared = {name: value for name, value in dataclasses.asdict(self).items() if name not in own_names}
        found: dict[str, Parameters] = {}
        with errors_named(NOTEBOOK):
            for variant in candidates_of(self.variants):
                if variant.label in found:
                    raise ValueError(f"variants: {variant.label!r} is named twice; give each share a label of its own")
                own = {"attention": variant.attention, "attention_settings": variant.settings}
                found[variant.label] = Parameters.check(shared | own, NOTEBOOK)
        return found


def check_time(asked: Comparison, runs: dict[str, Parameters]) -> None:
    """Say how long the runs that are not made yet will take without a GPU.

    Raises:
        ParameterError: more than half an hour, and `take_hours` is not set; it names parameters that take minutes.
    """
    missing = [run for run in runs.values() if not (Path(run.output_dir or ".") / "result.json").exists()]
    if say_how_long(missing) > HALF_AN_HOUR and not asked.take_hours:
        raise ParameterError(
            'nothing was started: set task="mini-mrpc", model="mini" for a comparison of minutes, train_examples for a '
            "part of the task, or take_hours=True to go on (compare.ipynb)"
        )


def compare(runs: dict[str, Parameters], data: DatasetDict) -> pd.DataFrame:
    """Fine-tune every run that is not made yet; the rows of `read_run` of each, with its label as `arm`.

    Args:
        runs: by label; they differ in the attention alone. data: of `load_data`.
    """
    shared = next(iter(runs.values()))
    tokenizer = load_tokenizer(shared.model)
    encoded = encode(data, find_task(shared.task), tokenizer, shared.max_length)
    rows, logger, printed = [], logging.getLogger("albert_lsh"), logging.StreamHandler(sys.stdout)
    logger.addHandler(printed)  # that an attention sees all pairs is a finding here, and no fault to be shown in red
    try:
        for number, (label, run) in enumerate(runs.items(), 1):
            path = Path(run.output_dir or ".") / "result.json"
            print(f"{number} of {len(runs)}: {label}" + (": made before" if path.exists() else ""), flush=True)
            began, used = time.monotonic(), seconds_of_others()
            made = read_run(fine_tune(run, tokenizer, encoded))
            made.loc[~made["arm"].isin(list(BASELINES.values())), "arm"] = label
            score = made[made["measure"] == find_task(run.task).headline].set_index("arm")["value"]
            if remark := hardly_trained(load_history(path.parent), score[label], score["majority class"]):
                print(f"{label}: {remark}", flush=True)
            others = (seconds_of_others() - used) / (time.monotonic() - began)
            rows.append(made.assign(cores_of_others=others))
    finally:
        logger.removeHandler(printed)
    return pd.concat(rows, ignore_index=True)


def score_and_cost(rows: pd.DataFrame) -> pd.DataFrame:
    """The scores of `compare` beside the majority class and chance; pairs and cost as shares of full attention's."""
    table = score_table(scores(rows, Path()), metrics=True).frame()
    by_label = wide(rows[rows["attention"] != ""]).set_index("arm")
    for title, column in (("pairs", "pairs"), ("cost", "cost")):
        table[title] = by_label[column].map(lambda share: form(share, "%")).reindex(table.index)
    times = by_label["train_seconds"].map(lambda seconds: f"{seconds:.0f} s").reindex(table.index)
    if (rows["cores_of_others"] > BUSY).any():
        print("training times are left out: other programs kept the machine busy, so that they cannot be compared")
    else:
        table["training"] = times
    return table.fillna("")
