"""The record of a run: what it was asked, what it came to, and on what it ran.

`write_result` writes a run's result.json, last and in one step: where it stands, the run is complete. `open_run` and
`close_run` stand around a run.
"""

import dataclasses
import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from albert_lsh import attention as attentions
from albert_lsh.training import locks
from albert_lsh.training.files import delete, relative_to_root, repository_root, write_atomically
from albert_lsh.training.parameters import ParameterError, Parameters, Recorded, on_this_machine
from albert_lsh.training.recipe import Fit

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "reformer-pytorch", "papermill", "numpy", "scikit-learn")
SCHEMA = 2  # of result.json; records without one are of schema 1, and have no `resolved`
# Parameters added later; a record without them has the defaults.
LATER = ("evaluation_settings", "passes", "recompute", "feed_forward_chunk", "extend_positions", "random_weights")
# Settings of an attention added later, with the values that compute what was computed before.
LATER_SETTINGS: dict[str, dict[str, Any]] = {
    "lsh": {
        "hashing": "plain", "choose": "collision", "block_size": 1, "global_tokens": 0, "window": 0, "far_field": False,
    },
    "window": {"global_tokens": 0},
    "random": {"global_tokens": 0},
}  # fmt: skip
# Of Trainer's arguments and a model's config, what decides a result.
RECIPE = (
    "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type", "learning_rate",
    "warmup_steps", "weight_decay", "per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed",
    "train_sampling_strategy", "bf16", "fp16",
)  # fmt: skip
SHAPE = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip


def of_record(parameters: dict[str, Any]) -> dict[str, Any]:
    """A record's parameters, with those added later as they were before (LATER, LATER_SETTINGS).

    Settings whose default is None, and which a record lacks, are None. (Other new settings a study's file must name.)
    """
    defaults, known = dataclasses.asdict(Parameters(task="")), attentions.ATTENTIONS.get(parameters["attention"])
    before = {name: None for name, value in (known.settings.items() if known else ()) if value is None}
    before |= LATER_SETTINGS.get(parameters["attention"], {})
    settings = {**parameters["attention_settings"]}
    settings |= {name: value for name, value in before.items() if name not in settings}
    return {**{name: defaults[name] for name in LATER}, **parameters, "attention_settings": settings}


def read_result(path: Path) -> dict[str, Any]:
    """A result.json, its parameters as `of_record` has them.

    Raises:
        ValueError: naming the file, which is damaged, not a complete run's, or of a later schema.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        complete = result["status"] == "complete" and {"parameters", "metrics", "headline"} <= set(result)
        schema = int(result.get("schema", 1))
        if complete and schema <= SCHEMA:
            result["parameters"] = of_record(result["parameters"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and the run will be made again") from error
    if not complete:
        raise ValueError(f"{path} is not of a complete run; delete it, and the run will be made again")
    if schema > SCHEMA:
        raise ValueError(f"{path} has schema {schema}; this version of albert-lsh reads up to {SCHEMA}: update it")
    return result


def open_run(parameters: Recorded) -> None:
    """Begin a run: lock its folder, and make sure that no other run's result is there.

    The lock lasts until `close_run`, or until this process ends.

    Raises:
        ParameterError: output_dir holds another run's result, which would be overwritten. FolderInUseError (a
            ValueError): another process works there.
    """
    folder = Path(parameters.output_dir or ".")
    locks.hold(folder)
    if not (path := folder / "result.json").exists():
        return
    there = read_result(path)["parameters"]
    here = json.loads(json.dumps(parameters.what()))
    other = [f"{k} is {there.get(k)!r} there, {v!r} here" for k, v in here.items() if there.get(k) != v]
    if other:
        raise ParameterError(
            f"output_dir={parameters.output_dir!r} holds the result of another run ({'; '.join(other)}); choose "
            "another output_dir, or delete that result"
        )


def close_run(parameters: Recorded) -> None:
    """End a run whose result is written: delete its checkpoints, unlock its folder."""
    folder = Path(parameters.output_dir or ".")
    delete(folder / "checkpoints")
    locks.release(folder)


def environment(device: str) -> dict[str, Any]:
    """What the run ran on: versions, device, commit (with "-dirty" if code differs from it), date.

    Raises:
        ParameterError: device is "cuda", and there is none.
    """
    device = on_this_machine(device, "auto")["device"]
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "python": platform.python_version(),
        "packages": packages,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {processor_name()}",
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def provenance(device: str) -> dict[str, str]:
    """`environment` for the rows of a table: every value a text."""
    found = environment(device)
    packages = " ".join(f"{name}=={number}" for name, number in found.pop("packages").items())
    return {**found, "commit": found["commit"] or "unknown", "packages": packages}  # no commit outside a checkout


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str | None:
    """The checkout's commit, with "-dirty" when code or studies were changed since; None without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "lib", "notebooks", "studies")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write_result(
    parameters: Recorded,
    headline: str,
    baselines: dict[str, dict[str, float]],
    coverage: attentions.Coverage,
    fit: Fit,
    examples: dict[str, int],
    started: dict[str, Any],
) -> Path:
    """Write history.csv and then, last and in one step, result.json into output_dir; returns the latter's path.

    Args:
        headline: the metric that stands for the task.
        baselines: {"score": {metric: value}, "majority": {...}, "chance": {...}}.
        coverage: what the attention looked at in evaluation.
        fit: what training left.
        examples: how many there were of each split.
        started: the `environment` when the run began.
    """
    folder = Path(parameters.output_dir or ".")
    write_atomically(folder / "history.csv", fit.history.to_csv(index=False))
    record = {
        "status": "complete",
        "schema": SCHEMA,
        "parameters": {**dataclasses.asdict(parameters), "output_dir": relative_to_root(folder)},
        "resolved": resolved(parameters, fit.trainer),
        "metrics": baselines["score"],
        "headline": {"name": headline, "value": baselines["score"][headline]},
        "majority": baselines["majority"],
        "chance": baselines["chance"],
        "attended_share": coverage.pairs,
        "attention_mass": coverage.mass,
        **fit.cost,
        "examples": examples,
        "environment": started,
    }
    write_atomically(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    return folder / "result.json"


def resolved(parameters: Recorded, trainer: Any) -> dict[str, Any]:
    """What the parameters came to: all settings in training and in evaluation, the recipe, the model's shape."""
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
