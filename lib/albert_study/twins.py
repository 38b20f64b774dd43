"""Can a model that was fine-tuned on pairs of texts compare them? Every first text is paired with its twin, and with
another text.

    python -m albert_study.twins results/runs/word-order/stsb          models that were kept (save_model=True)

A model that compares the two texts values a text and its twin higher than the same text and another example's; one that
adds up words cannot. And a token that finds its like gives its copy in the twin more than its share of attention.
Written to twins.csv in that folder, a row a run.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from albert_lsh import attention
from albert_lsh.errors import OneLineError
from albert_lsh.files import write_atomically
from albert_lsh.model.load import load_model, load_tokenizer
from albert_lsh.model.passes import Pass, record_passes
from albert_lsh.record import provenance, read_result
from albert_lsh.tasks import find_task, load_data

EXAMPLES = 500  # of the evaluation split
LOOKED_INTO = 64  # whose attention weights are computed


@torch.no_grad()
def values(model: Any, tokenizer: Any, first: list[str], second: list[str], max_length: int) -> np.ndarray:
    """What the model predicts of each pair: (pairs,)."""
    parts, options = [], {"truncation": True, "max_length": max_length, "padding": True, "return_tensors": "pt"}
    for start in range(0, len(first), 32):
        batch = tokenizer(first[start : start + 32], second[start : start + 32], **options)
        parts.append(model(**batch).logits[:, 0].numpy())
    return np.concatenate(parts)


def weights_of(one: Pass) -> Tensor:
    """The attention weights of a pass, (batch, heads, length, length): its output where values are unit vectors."""
    batch, heads, length, head_dim = one.query.shape
    units = torch.eye(length, -(-length // head_dim) * head_dim).expand(batch, heads, -1, -1)
    chosen: dict[str, Any] = {"padding_mask": one.padding_mask, "seed": one.seed, **one.settings}
    parts = [attention.attend(one.attention, one.query, one.key, part, **chosen) for part in units.split(head_dim, -1)]
    return torch.cat(parts, -1)[..., :length]


@torch.no_grad()
def weight_of_copies(model: Any, tokenizer: Any, texts: list[str], max_length: int) -> float:
    """The weight that a token of a text gives to its copy in the twin, as a multiple of 1 / length: mean over tokens,
    of the head and pass that gives it most."""
    per_text = []
    for text in texts:
        batch = tokenizer(text, text, return_tensors="pt")
        if (length := batch["input_ids"].shape[1]) <= max_length:
            with record_passes(model) as passes:
                model(**batch)
            size = (length - 3) // 2  # [CLS] text [SEP] text [SEP]
            tokens = torch.arange(1, 1 + size)
            of_passes = [weights_of(one)[0, :, tokens, tokens + size + 1].mean(-1) * length for one in passes]
            per_text.append(torch.cat(of_passes))
    return float(torch.stack(per_text).mean(0).max())


def measure(folder: Path) -> dict[str, Any]:
    """The row of a run whose model is kept in folder/model.

    Columns: task, arm, seed, pairs, told_apart (share of texts whose twin is valued higher than another text, ties one
    half: 0.5 by chance), low, high (95 % over texts), weight_of_copies.
    """
    record = read_result(folder / "result.json")
    task, model_folder = find_task(record["parameters"]["task"]), folder / "model"
    if not task.is_regression or len(task.columns) != 2:
        raise OneLineError(f"{folder}: task={task.name!r} does not predict a number of two texts")
    if not model_folder.is_dir():
        raise OneLineError(f"{model_folder} is not there; save_model=True keeps a run's model")
    model = load_model(str(model_folder), head="classification", complete=True).eval()
    tokenizer, max_length = load_tokenizer(str(model_folder)), record["parameters"]["max_length"]
    rows = load_data(task.name, record["parameters"]["data_dir"], eval_examples=EXAMPLES)[task.evaluation[0]]
    texts, others = list(rows[task.columns[0]]), list(rows[task.columns[1]])
    others = others[1:] + others[:1]  # of the next example; they are in random order
    twins, strangers = (values(model, tokenizer, texts, second, max_length) for second in (texts, others))
    right = np.where(twins == strangers, 0.5, twins > strangers)
    half = 1.96 * right.std(ddof=1) / len(right) ** 0.5
    row = {"task": task.name, "arm": folder.parent.name, "seed": record["parameters"]["seed"], "pairs": len(right)}
    row |= {"told_apart": right.mean(), "low": right.mean() - half, "high": min(right.mean() + half, 1.0)}
    row["weight_of_copies"] = weight_of_copies(model, tokenizer, texts[:LOOKED_INTO], max_length)
    return row | {"trained_at": record["environment"]["commit"], **provenance("cpu")}


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    runs = sorted(path.parent for path in Path(arguments[0]).glob("**/seed-*/result.json"))
    if not runs:
        raise SystemExit(f"error: no run below {arguments[0]}")
    try:
        table = pd.DataFrame([measure(run) for run in runs])
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    write_atomically(Path(arguments[0], "twins.csv"), table.to_csv(index=False, float_format="%.6g"))
    print(table.drop(columns=["packages"]).to_string())


if __name__ == "__main__":
    main(sys.argv[1:])
