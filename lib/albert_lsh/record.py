"""The record of a run: result.json, which is written last and in one step. Where it is, the run is complete.

Beside it are history.csv, the curves, and predictions.parquet: what the model says of every example, so that questions
about examples need no new run. The latter has numbers only, never a text, and a row per evaluated example:

    classification, regression    split; id, GLUE's `idx` or else the row's number in its split; label; answer, the
                                  class; logit_0, logit_1, ... (regression: label and logit_0 are the values)
    SQuAD                         id of the question; start, end: the best span, [start, end) in the paragraph's
                                  characters; score: its start logit plus its end logit; null_score: the same of no
                                  answer; answered: False if no answer was given; is_answerable
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from albert_lsh import attention as attentions
from albert_lsh.files import OneLineError, relative_to_root, write_atomically
from albert_lsh.interface import todays_settings
from albert_lsh.machine import environment, revisions
from albert_lsh.run import ParameterError

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
SCHEMA = 4  # of result.json
RETIRED = "lsh-tree"  # version 1 of `key-clusters`: results/archive/ has its records, and rows of it are not read
OLD_NAMES = 3  # the schema before it, which differs in the names of attentions alone
# Parameters of runs that left, with the values at which they changed nothing; records with other values keep them.
LEFT: dict[str, Any] = {"evaluation_settings": {}, "passes": None, "data_dir": None, "tensorboard": False}
LEFT |= {"eval_steps": None, "warmup_share": 0.1, "weight_decay": 0.01, "feed_forward_chunk": None}
LIMIT = 200_000  # bytes of predictions.parquet


def read_result(path: Path) -> dict[str, Any]:
    """A result.json, as `write_result` writes it; an older one with the names of today (`todays_method`).

    Records that were converted from an older schema also have `inferred`: the names of what they did not say.

    Raises:
        ValueError: naming the file, which is damaged, not a complete run's, or of another schema.
        OSError: the file may not be read; nothing is known of what it holds.
    """
    again = "look at it; moved away, its run is made again"
    try:
        result = json.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows put a mark in front
        complete, schema = result["status"] == "complete", result.get("schema")
        whole = "checksum" not in result or result["checksum"] == checksum_of(result)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OneLineError(f"{path} is damaged ({error}); {again}") from error
    if not whole:
        raise OneLineError(f"{path} is damaged (its checksum is another); {again}")
    if complete and schema not in (OLD_NAMES, SCHEMA):
        raise OneLineError(
            f"{path} has schema {schema}; this version of albert-lsh reads schema {OLD_NAMES} and {SCHEMA}"
        )
    if not complete or not {"parameters", "metrics"} <= set(result):
        raise OneLineError(f"{path} is not of a complete run; {again}")
    if "epochs" in (parameters := result["parameters"]):  # a fine-tuning run's
        result["parameters"] = {k: v for k, v in parameters.items() if k not in LEFT or v != LEFT[k]}
    return with_todays_settings(with_todays_names(result) if schema == OLD_NAMES else result)


def with_todays_settings(result: dict[str, Any]) -> dict[str, Any]:
    """A record with the settings of its attentions as they are called today; the file stays as it is."""
    parameters = dict(result["parameters"])
    if settings := parameters.get("attention_settings"):
        parameters["attention_settings"] = todays_settings(settings)
    if "evaluate" in parameters:
        length = parameters.get("max_length", 0)
        parameters["evaluate"] = {k: with_sizes(todays_settings(v), length) for k, v in parameters["evaluate"].items()}
    return result | {"parameters": parameters}


def with_sizes(settings: dict[str, Any], length: int) -> dict[str, Any]:
    """Settings of `key-clusters` with a share and a cluster_size, which once went together, as the sizes they came to.

    length: of the sequences, all of one length (the task duplication of studies/long-range.yaml).
    """
    if settings["attention"] != "key-clusters" or not {"share", "cluster_size"} <= settings.keys():
        return settings
    others = {name: value for name, value in settings.items() if name != "share"}
    keys = int(settings["share"] * length) - 3  # less two global tokens and a mean key
    n_hashes = keys // settings["cluster_size"]
    return others | {"n_hashes": n_hashes, "global_tokens": 2, "mean_key": True}


def read_run(folder: Path) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame | None]:
    """Result, history and predictions of a run that is made; records may be older than predictions are.

    Raises:
        ValueError: see `read_result` and `read_predictions`.
    """
    path = folder / "predictions.parquet"
    predictions = read_predictions(path) if path.exists() else None
    return read_result(folder / "result.json"), pd.read_csv(folder / "history.csv"), predictions


def todays_method(name: str, settings: Mapping[str, Any], version: int | None = None) -> tuple[str, int]:
    """The name and version that the attention of a record, or of a measured row, has today.

    Until 29 November 2026 what is `lsh` now, random hashing, was called `plain-lsh`, and what is `key-clusters` now was
    called `lsh`; before its clusters came from axes that was another method, RETIRED.

    Args:
        settings: of the attention, as they were recorded. version: of its method; None in records older than versions.
    """
    if name == "plain-lsh":
        return "lsh", attentions.ATTENTIONS["lsh"].version
    if name == "lsh" and version in (None, 1, 2):
        return ("key-clusters", 2) if settings.get("axes") or version == 2 else (RETIRED, 1)
    return name, version or 1


def with_todays_names(result: dict[str, Any]) -> dict[str, Any]:
    """A record of schema 3 whose attentions and model are called as they are today; the file stays as it is."""
    parameters, resolved = dict(result["parameters"]), dict(result.get("resolved", {}))
    if "attention" not in parameters:
        return result
    old, settings = parameters["attention"], parameters.get("attention_settings") or {}
    new, version = todays_method(old, settings, resolved.get("attention_version"))
    parameters["attention"], resolved["attention_version"] = new, version
    if parameters.get("model") == "nano-lsh":  # pretrained with the attention that it is fine-tuned with
        parameters["model"] = "nano-key-clusters"
    if "label" in parameters:
        parameters["label"] = renamed(parameters["label"], old, new)
    labels, evaluate = {}, {}  # of the attentions that a trained model was evaluated under
    for label, settings in parameters.get("evaluate", {}).items():
        name, _ = todays_method(settings["attention"], settings)
        labels[label] = None if name == RETIRED else renamed(label, settings["attention"], name)
        if labels[label]:
            evaluate[labels[label]] = settings | {"attention": name}
    if evaluate:
        parameters["evaluate"] = evaluate
    metrics = {}
    for metric, value in result["metrics"].items():
        what, separator, label = metric.partition(", ")
        if (label := labels.get(label, label)) is not None:
            metrics[f"{what}{separator}{label}"] = value
    return result | {"parameters": parameters, "resolved": resolved, "metrics": metrics}


def renamed(label: str, old: str, new: str) -> str:
    """A label that begins with an attention's name, with the new name in the place of the old one."""
    return re.sub(rf"^{re.escape(old)}(?![\w-])", new, label)


def record_of(
    run: Any, trainer: Any, headline: str, scores: dict[str, dict[str, float]], coverage: attentions.Coverage,
    cost: dict[str, float], examples: dict[str, int], started: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """What result.json says of a run.

    Its eval_loss is the mean loss of the first evaluated split's examples (cross-entropy, squared error of numbers; of
    SQuAD that of its windows) in the last evaluation.

    Args:
        run: of a subclass of `run.Settings`. trainer: has evaluated. headline: the metric that stands for the task.
        scores: {"score": {metric: value}, "majority": {...}, "chance": {...}}.
        coverage: what the attention attends to in evaluation.
        examples: how many there were of each split. started: the `environment` when the run began.
    """
    parameters = run.recorded()
    return {
        "parameters": parameters,
        "resolved": resolved(run, trainer),
        "metrics": scores["score"],
        "headline": {"name": headline, "value": scores["score"][headline]},
        "majority": scores["majority"],
        "chance": scores["chance"],
        "eval_loss": next(log["eval_loss"] for log in reversed(trainer.state.log_history) if "eval_loss" in log),
        "attended_share": coverage.pairs,
        "attention_mass": coverage.mass,
        "full_cost": coverage.cost,
        **cost,
        "examples": examples,
        "revisions": revisions(*(parameters.get(name) for name in ("model", "task", "revision", "data_revision"))),
        "environment": started,
    }


def resolved(run: Any, trainer: Any) -> dict[str, Any]:
    """What the parameters came to: the attention's full settings, the recipe, the model's shape."""
    config, arguments = trainer.model.config, trainer.args.to_dict()
    return {
        "attention_version": attentions.ATTENTIONS[run.attention].version,
        "attention_settings": run.attention_settings,
        "steps": trainer.state.max_steps,
        "recipe": {name: arguments[name] for name in RECIPE},
        "model": {name: getattr(config, name, None) for name in SHAPE},
        "parameters_of_model": sum(p.numel() for p in trainer.model.parameters()),
    }


def history_of(log: list[dict[str, float]]) -> pd.DataFrame:
    """Trainer's log as a table: one row per step, training loss, evaluation loss and metrics side by side."""
    entries = pd.DataFrame(log).drop(columns="train_loss", errors="ignore")  # of a whole training
    entries = entries.rename(columns={"loss": "train_loss"})
    names = ["step", "epoch", "learning_rate", "train_loss", "eval_loss"]
    names += sorted(str(name) for name in entries if str(name).startswith("eval_") and name != "eval_loss")
    kept = [name for name in names if name in entries and not name.endswith(("_runtime", "_per_second"))]
    table = entries[kept].groupby("step", as_index=False).last()
    return table.rename(columns={name: name.removeprefix("eval_") for name in kept if name != "eval_loss"})


def write_result(
    folder: Path, record: dict[str, Any], history: pd.DataFrame, predictions: pd.DataFrame | None = None
) -> Path:
    """Write history.csv, predictions.parquet and, last, result.json; returns its path. One that is there stays."""
    path = folder / "result.json"
    if not path.exists():
        write_atomically(folder / "history.csv", history.to_csv(index=False))
        if predictions is not None:
            write_predictions(folder / "predictions.parquet", predictions)
        record = {"status": "complete", "schema": SCHEMA, **record}
        record["checksum"] = checksum_of(json.loads(json.dumps(record)))
        write_atomically(path, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return path


def checksum_of(record: dict[str, Any]) -> str:
    """The SHA-256 of what a record says, "checksum" left out: a flipped bit of a score is another, and still JSON."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def differences(result: dict[str, Any], identity: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    """What a result was made with, where it is not this run: "name=value, not value" for each parameter.

    A parameter, or an attention's setting, that the record lacks counts with its default: it came later. So does the
    version of its attention's method, which is 1.

    Args:
        result: of `read_result`. identity, defaults: of the run, see `run.Settings`.
    """
    recorded, identity = defaults | result["parameters"], json.loads(json.dumps(identity))
    recorded["attention_settings"] = attentions.recorded(recorded["attention"], recorded["attention_settings"])
    other = [f"{k}={recorded.get(k)!r}, not {v!r}" for k, v in identity.items() if recorded.get(k) != v]
    left = {k: v for k, v in LEFT.items() if k in result["parameters"] and k not in identity | defaults}
    other += [f"{k}={recorded[k]!r}, which left" for k, v in left.items() if recorded[k] != v]
    if recorded["attention"] == identity["attention"]:
        try:
            attentions.check_version(identity["attention"], result.get("resolved", {}).get("attention_version", 1))
        except ValueError as error:
            other.append(str(error))
    return other


def check_made(run: Any) -> None:
    """Say that a run was made already, in whose folder there is a result.

    Args:
        run: of a subclass of `run.Settings`, with output_dir.
    Raises:
        ParameterError: the result is another run's, which would be overwritten. ValueError: it is damaged.
    """
    path = Path(run.output_dir) / "result.json"
    result = read_result(path)
    if other := differences(result, run.identity(), run.defaults()):
        raise ParameterError(
            f"output_dir={run.output_dir!r} holds the result of another run, made with {'; '.join(other)}; "
            "choose another output_dir, or move that result away"
        )
    made = result.get("environment", {}).get("date", "before")
    print(f"this run was made already ({made}): {relative_to_root(path)} stays as it is")


def write_predictions(path: Path, table: pd.DataFrame) -> None:
    """Write a table of predictions in one step; logits and scores in half precision if it exceeds 200 kB otherwise.

    Never of a regression, whose values are the answers, nor where one is above 65504, the end of half precision.
    Answers, labels and positions are exact either way.

    Raises:
        ValueError: a column of text other than id and split.
    """
    texts = [name for name in table if table[name].dtype == object or pd.api.types.is_string_dtype(table[name])]
    if unknown := [name for name in texts if name not in ("id", "split")]:
        raise OneLineError(f"{path.name}: column {unknown[0]!r} holds text; predictions are numbers")
    # Differences of whole numbers and of ids, bytes of floats side by side.
    kinds = {"i": "DELTA_BINARY_PACKED", "u": "DELTA_BINARY_PACKED", "f": "BYTE_STREAM_SPLIT", "b": "PLAIN"}
    packed = {name: kinds.get(table[name].dtype.kind, "DELTA_BYTE_ARRAY") for name in table if name != "split"}
    options = {"compression": "zstd", "compression_level": 19, "column_encoding": packed}
    options["use_dictionary"] = ["split"] if "split" in table else False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    outputs = [name for name in map(str, table) if name.startswith("logit_") or name in ("score", "null_score")]
    are_values = "label" in table and table["label"].dtype.kind == "f"
    may_round = not are_values and (table[outputs].abs() <= np.finfo(np.float16).max).all(axis=None)
    for precision in (np.float32, np.float16) if may_round else (np.float32,):
        rounded = table.astype(dict.fromkeys(outputs, precision))
        pq.write_table(pa.Table.from_pandas(rounded, preserve_index=False), partial, **options)
        if partial.stat().st_size <= LIMIT:
            break
    os.replace(partial, path)


def read_predictions(path: Path) -> pd.DataFrame:
    """The table that `write_predictions` wrote.

    Raises:
        ValueError: the file is missing or damaged; the message names it.
    """
    try:
        return pq.read_table(path).to_pandas()
    except (OSError, pa.ArrowInvalid) as error:
        raise OneLineError(f"{path} cannot be read: {error}") from error


def provenance(device: str) -> dict[str, str]:
    """`environment` for the rows of a measured table, every value a text, and the schema: that of `result.json`."""
    values = environment(device)
    packages = " ".join(f"{name}=={number}" for name, number in values.pop("packages").items())
    values |= {"threads": str(values["threads"]), "commit": values["commit"] or "unknown"}  # none outside a checkout
    return {**values, "packages": packages, "schema": str(SCHEMA)}
