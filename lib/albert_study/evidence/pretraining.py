"""Pretraining runs side by side: their scores, and what one attention loses against another on the same tokens."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh.training.files import repository_root

# Two runs that differ in nothing but these saw the same sequences, masks and first weights.
ATTENTION = ("attention", "attention_settings")
FORM = ("recompute", "feed_forward_chunk", "device")  # how it is computed, not what


def load_pretraining(folder: str | Path | None = None) -> pd.DataFrame:
    """Every finished run below `folder` (results/pretraining of the checkout), one row each; empty if there is none.

    Columns: run, folder, the parameters, metric.<name>, start.<name> (before the first step), counting.<name> (what
    counting pieces reaches), attended_share, attention_mass, tokens trained, seconds, tokens_per_second, and the
    environment.

    Raises:
        ValueError: a result.json that is damaged; the message names it.
    """
    folder = Path(folder) if folder else repository_root() / "results" / "pretraining"
    rows = []
    for path in sorted(folder.rglob("result.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            rows.append(row_of(path.parent, folder, record))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}); delete it, and the run will be made again") from error
    return pd.DataFrame(rows)


def row_of(path: Path, root: Path, record: dict[str, Any]) -> dict[str, Any]:
    """A run's record as a flat row."""
    asked = record["parameters"]
    row = {"run": str(path.relative_to(root)), "folder": str(path), **asked}
    row |= {name: json.dumps(value) for name, value in asked.items() if isinstance(value, dict | list)}
    row |= {f"metric.{name}": value for name, value in record["metrics"].items()}
    start = pd.read_csv(path / "history.csv").iloc[0]
    row |= {f"start.{name}": start[name] for name in record["metrics"]}
    row |= {f"counting.{name}": value for name, value in record["counting"].items()}
    same = ("attended_share", "attention_mass", "parameters_of_model", "devices", "train_seconds", "tokens_per_second")
    row |= {name: record[name] for name in same} | {"tokens": record["tokens"]["trained"]}
    environment = {k: v for k, v in record["environment"].items() if k != "packages"}
    packages = " ".join(f"{name}=={number}" for name, number in record["environment"]["packages"].items())
    return row | environment | {"packages": packages}


def gap(one: pd.DataFrame, other: pd.DataFrame, column: str) -> tuple[float, float]:
    """By how much a mean over masked tokens differs (other - one), and its standard error over held-out sequences.

    one, other: held-out.csv of two runs. The sequences and masks are the same, so that the difference is paired; the
    error is that of a ratio of sums (Cochran 1977, chapter 6). It says nothing about other seeds.

    Raises:
        ValueError: the runs were not asked about the same tokens.
    """
    tokens = one["tokens"] if column != "order" else pd.Series(1.0, one.index)
    if not one["tokens"].equals(other["tokens"]):
        raise ValueError("the two runs were evaluated on different masked tokens and cannot be compared in pairs")
    difference = other[column] - one[column]
    mean = difference.sum() / tokens.sum()
    residual = difference - mean * tokens
    return float(mean), float(math.sqrt((residual**2).sum() * len(one) / (len(one) - 1)) / tokens.sum())


def gaps(runs: pd.DataFrame) -> pd.DataFrame:
    """Each run against the softmax run that differs from it in the attention alone: metric, difference, error."""
    rows = []
    names = [
        name for name in runs.columns[: runs.columns.get_loc("metric.mlm_loss")]
        if name not in (*ATTENTION, *FORM, "run", "folder", "output_dir", "cache_dir", "resume")
    ]  # fmt: skip
    for _, of_kind in runs.groupby(names, dropna=False, sort=False):
        softmax = of_kind[of_kind["attention"] == "softmax"]
        for _, other in of_kind[of_kind["attention"] != "softmax"].iterrows():
            for _, one in softmax.iterrows():
                before, after = (pd.read_csv(Path(row["folder"]) / "held-out.csv") for row in (one, other))
                for metric, column in (("mlm_loss", "lost"), ("mlm_accuracy", "found"), ("sop_accuracy", "order")):
                    difference, error = gap(before, after, column)
                    row = {"from": one["run"], "to": other["run"], "metric": metric, "difference": difference}
                    rows.append(row | {"standard_error": error, "sequences": len(before)})
    return pd.DataFrame(rows)
