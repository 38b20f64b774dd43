"""The record of a run: its parameters, its results, and where it ran.

`open_run` begins a run and `close_run` ends it. In between, `write_result` writes result.json, last and in one step:
where that file is, the run is complete. `parameters` are `Parameters`, or another dataclass with `output_dir` and with
`what()`: everything that decides the result, `attention` and `attention_settings` included.
"""

import dataclasses
import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from albert_lsh import attention as attentions
from albert_lsh.checksums import checksum_of
from albert_lsh.tasks.predictions import write_predictions
from albert_lsh.tasks.table import TASKS, find_task
from albert_lsh.training import locks
from albert_lsh.training.card import write_card
from albert_lsh.training.cores import choose_threads
from albert_lsh.training.files import delete, recorded, relative_to_root, repository_root, settle, write_atomically
from albert_lsh.training.parameters import ParameterError, on_this_machine

if TYPE_CHECKING:  # who reads records does without Trainer, which takes seconds to import
    from albert_lsh.training.trainer import Fit

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "reformer-pytorch", "papermill", "numpy", "scikit-learn")
SCHEMA = 3  # of result.json
# The parts of Trainer's arguments and of a model's config that decide a result.
RECIPE = (
    "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type", "learning_rate",
    "warmup_steps", "weight_decay", "per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed",
    "train_sampling_strategy", "bf16", "fp16",
)  # fmt: skip
SHAPE = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip


def read_result(path: Path) -> dict[str, Any]:
    """A result.json of schema 3, as `write_result` writes it.

    Records that were converted from an older schema also have `inferred`: the names of what they did not say.

    Raises:
        ValueError: naming the file, which is damaged, not a complete run's, or of another schema.
        OSError: the file may not be read; nothing is known of what it holds.
    """
    again = "look at it; moved away, its run is made again"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        complete, schema = result["status"] == "complete", result.get("schema")
        whole = "checksum" not in result or result["checksum"] == checksum_of(result)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); {again}") from error
    if not whole:
        raise ValueError(f"{path} is damaged (its checksum is another); {again}")
    if complete and schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema}; this version of albert-lsh reads schema {SCHEMA}")
    if not complete or not {"parameters", "metrics", "headline"} <= set(result):
        raise ValueError(f"{path} is not of a complete run; {again}")
    return result


def differences(result: dict[str, Any], asked: dict[str, Any], kind: type) -> list[str]:
    """What a result was made with, where it is not what is asked for: "name=value, not value" for each parameter.

    A parameter, or an attention's setting, that the record lacks counts with its default: it came later.

    Args:
        result: as `read_result` gives it. asked: parameters by name, settings completed.
        kind: the dataclass of the parameters.
    """
    usual = {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    there, asked = usual | result["parameters"], json.loads(json.dumps(asked))
    there["attention_settings"] = attentions.recorded(there["attention"], there["attention_settings"])
    return [f"{k}={there.get(k)!r}, not {v!r}" for k, v in asked.items() if there.get(k) != v]


def open_run(parameters: Any) -> None:
    """Begin a run: lock its folder, check that no other run's result is there, and take the cores that are free.

    The lock lasts until `close_run`, or until this process ends.

    Raises:
        ParameterError: output_dir holds another run's result, which would be overwritten. FolderInUseError (a
            ValueError): another process works there.
    """
    folder = Path(parameters.output_dir or ".")
    locks.hold(folder)
    path = folder / "result.json"
    settle(path)
    if not path.exists():
        choose_threads(getattr(parameters, "device", "cpu"))
        return
    result = read_result(path)
    if other := differences(result, parameters.what(), type(parameters)):
        raise ParameterError(
            f"output_dir={parameters.output_dir!r} holds the result of another run, made with {'; '.join(other)}; "
            "choose another output_dir, or move that result away"
        )
    made = result.get("environment", {}).get("date", "before")
    print(f"this run was made already ({made}): {relative_to_root(path)} stays as it is")


def close_run(parameters: Any) -> None:
    """End a run whose result is written: delete its checkpoints, unlock its folder."""
    folder = Path(parameters.output_dir or ".")
    delete(folder / "checkpoints")
    locks.release(folder)


def environment(device: str) -> dict[str, Any]:
    """Where the run ran: versions, device, threads of the CPU, commit (with "-dirty" if the code differs), date.

    Raises:
        ParameterError: device is "cuda", and there is none.
    """
    device = on_this_machine(device, "auto")["device"]
    installed = {distribution.name: distribution.version for distribution in distributions()}
    return {
        "python": platform.python_version(),
        "packages": {name: installed.get(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def provenance(device: str) -> dict[str, str]:
    """`environment` for the rows of a table: every value a text."""
    found = environment(device)
    packages = " ".join(f"{name}=={number}" for name, number in found.pop("packages").items())
    found |= {"threads": str(found["threads"]), "commit": found["commit"] or "unknown"}  # none outside a checkout
    return {**found, "packages": packages}


def revisions(model: str | None, task: str | None) -> dict[str, str]:
    """The commits of the Hub's repositories that a run's model and data came from, as the cache has them."""
    data = TASKS[task].dataset if task in TASKS else None
    found = {}
    for what, name, kind in (("model", model, "model"), ("data", data, "dataset")):
        if not name:
            continue  # trained from nothing, or on data that are drawn here
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
        if (main := folder / "refs" / "main").exists():
            found[what] = main.read_text(encoding="utf-8").strip()
    return found


def processor() -> str:
    """The CPU's name, and the instructions that torch uses on it: bf16 is computed otherwise without AVX512."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"cpu, {next(names, platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"


def commit() -> str | None:
    """The checkout's commit, with "-dirty" when code or studies were changed since; None without one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    if not Path(__file__).is_relative_to(repository_root()):
        return None  # the working directory may be in somebody else's repository
    try:
        changed = git("status", "--porcelain", "--", "lib", "studies")  # notebooks are edited where they are run
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write_result(
    parameters: Any,
    headline: str,
    baselines: dict[str, dict[str, float]],
    coverage: attentions.Coverage,
    fit: "Fit",
    examples: dict[str, int],
    started: dict[str, Any],
    predictions: pd.DataFrame | None = None,
) -> Path:
    """Write history.csv, predictions.parquet and, last and in one step, result.json; returns the latter's path.

    Where the run's model is kept, its card is written too, and the intervals that it shows of its scores.
    A result that is there stays: `open_run` has found that it is this run's, and nothing but a hand removes it.

    Args:
        headline: the metric that stands for the task.
        baselines: {"score": {metric: value}, "majority": {...}, "chance": {...}}.
        coverage: what the attention attends to in evaluation.
        fit: the result of training.
        examples: how many there were of each split.
        started: the `environment` when the run began.
        predictions: what the model says of every evaluated example; see `tasks.predictions`.
    """
    folder = Path(parameters.output_dir or ".")
    if (folder / "result.json").exists():
        return folder / "result.json"
    write_atomically(folder / "history.csv", fit.history.to_csv(index=False))
    if predictions is not None:
        write_predictions(folder / "predictions.parquet", predictions)
    record = {
        "status": "complete",
        "schema": SCHEMA,
        "parameters": recorded(parameters),
        "resolved": resolved(parameters, fit.trainer),
        "metrics": baselines["score"],
        "headline": {"name": headline, "value": baselines["score"][headline]},
        "majority": baselines["majority"],
        "chance": baselines["chance"],
        "attended_share": coverage.pairs,
        "attention_mass": coverage.mass,
        "full_cost": coverage.cost,
        **fit.cost,
        "examples": examples,
        "revisions": revisions(*(recorded(parameters).get(name) for name in ("model", "task"))),
        "environment": started,
    }
    if predictions is not None and (folder / "model" / "config.json").exists():
        from albert_lsh.tasks.metrics import intervals  # and with it Trainer

        record["intervals"] = intervals(find_task(parameters.task), predictions)
        write_card(folder / "model", record)
    record["checksum"] = checksum_of(json.loads(json.dumps(record)))
    write_atomically(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    return folder / "result.json"


def resolved(parameters: Any, trainer: Any) -> dict[str, Any]:
    """What the parameters came to: full settings in training and evaluation, the recipe, the model's shape."""
    asked, config, arguments = parameters.what(), trainer.model.config, trainer.args.to_dict()
    settings = attentions.check(asked["attention"], asked["attention_settings"])
    passes = asked.get("passes")
    return {
        "attention_settings": settings,
        "evaluation_settings": attentions.check_evaluation(
            asked["attention"], settings, asked.get("evaluation_settings")
        ),
        "passes": list(range(config.num_hidden_layers)) if passes is None else passes,
        "steps": trainer.state.max_steps,
        "recipe": {name: arguments[name] for name in RECIPE},
        "model": {name: getattr(config, name, None) for name in SHAPE},
        "parameters_of_model": sum(p.numel() for p in trainer.model.parameters()),
    }
