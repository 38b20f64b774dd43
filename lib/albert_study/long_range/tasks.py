"""The long tasks with their published recipes: where the data come from, and what a model is trained with.

Reformer's duplication (`duplication`), and two tasks of Long Range Arena (Tay et al. 2021): ListOps (`listops`) and the
bytes of IMDb's reviews (`text`). These two have the recipe of Nyströmformer's authors' re-run of the arena (Xiong et
al. 2021; mlpen/Nystromformer, LRA/code/lra_config.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import default_data_collator

from albert_lsh.tasks import Task, check_rows, download, subset
from albert_study.long_range import duplication, listops

# Accuracy in Long Range Arena: of its authors, and of Nyströmformer's (Reformer stands beside shared-qk-lsh).
ARENA_ACCURACY = {
    "listops": {"softmax": (0.3637, 0.3710), "shared-qk-lsh": (0.3727, 0.1905), "nystrom": (None, 0.3715)},
    "text": {"softmax": (0.6427, 0.6502), "shared-qk-lsh": (0.5610, 0.6488), "nystrom": (None, 0.6552)},
}
IMDB = Task("text", "stanfordnlp/imdb", None, ("text",), ("accuracy",), ("negative", "positive"))


@dataclass(frozen=True)
class LongTask:
    """A task and its published recipe."""

    load: Callable[[Any], dict[str, Dataset]]  # the splits train, validation and test, for a LongRun
    collate: Callable[[list[Any]], dict[str, Tensor]]  # makes a batch of examples
    vocabulary: int  # with padding
    classes: int
    recipe: dict[str, Any]  # parameters of a LongRun
    warmup: int  # steps
    train_examples: int | None  # None: new ones in every step
    unpublished: tuple[str, ...] = ()  # what of the recipe is ours


def load_duplication(run: Any) -> dict[str, Dataset]:
    """New examples in every step, unless train_examples limits them."""
    few = run.eval_examples or 1000
    counts = {"train": run.train_examples or run.steps * run.batch_size, "validation": few, "test": few}
    return {split: duplication.Duplication(split, n, run.max_length, seed=run.seed) for split, n in counts.items()}


def encode(rows: datasets.Dataset, numbers_of: Callable[[str], list[int]], longest: int) -> datasets.Dataset:
    """Rows with the first token numbers of their text as `input_ids`, and how many these are as `length`."""

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        ids = np.array(numbers_of(row["text"])[:longest], dtype=np.uint16)
        return {"input_ids": ids, "length": len(ids)}

    return rows.map(encoded)


def pad(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch of `encode`d rows, padded with zeros: input_ids and attention_mask (batch, length), labels (batch,)."""
    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    labels = torch.tensor([row["label"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def load_listops(run: Any) -> dict[str, Dataset]:
    """Examples of `listops.generate`, the same for every seed; they have at least max_length / 4 tokens."""
    limits = {"train": run.train_examples, "validation": run.eval_examples, "test": run.eval_examples}
    sizes = {split: min(size, limits[split] or size) for split, size in listops.SIZES.items()}
    found = listops.generate(0, sizes, min_length=run.max_length // 4, max_length=run.max_length)
    return {split: encode(rows, listops.encode_tree, run.max_length) for split, rows in found.items()}


def load_reviews(run: Any) -> dict[str, Dataset]:
    """The bytes of IMDb's reviews (Maas et al. 2011). As in Long Range Arena the test set is also the validation set.

    Raises:
        TaskError: the data cannot be had, or a split or column is missing.
    """
    found = download(run.data_dir or IMDB.dataset, IMDB.config, f"task={IMDB.name!r}")
    splits = {}
    for split, limit in (("train", run.train_examples), ("test", run.eval_examples)):
        rows = found[split] if split in found else datasets.Dataset.from_dict({})
        check_rows(rows, IMDB, split)
        splits[split] = encode(subset(rows, limit), encode_bytes, run.max_length)
    return {"train": splits["train"], "validation": splits["test"], "test": splits["test"]}


def encode_bytes(text: str) -> list[int]:
    """The bytes of a text, each plus one as in Long Range Arena: 1 to 256."""
    return [byte + 1 for byte in text.encode()]


def own_variants(task: str, length: int, share: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attentions that a task's models are trained with, and those that each model is also evaluated under.

    Args:
        length: of the longest sequence, in tokens. share: of the pairs, for attentions with a budget.
    """
    if task == "duplication":
        named = duplication.attentions(length)
        return {name: named[name] for name in duplication.PUBLISHED_ACCURACY}, named
    landmarks = {"num_landmarks": min(64, length // 4), "conv_kernel_size": 35}  # nystrom-64 of lra_config.py
    return {
        "softmax": {"attention": "softmax"},
        "shared-qk-lsh": {"attention": "shared-qk-lsh", "share": share},
        "lsh": {"attention": "lsh", "share": share},
        "nystrom": {"attention": "nystrom", **landmarks},
        "yoso": {"attention": "yoso"},
    }, {}


LONG_TASKS = {
    "duplication": LongTask(
        load_duplication,
        default_data_collator,
        vocabulary=duplication.MASK + 1,
        classes=duplication.SYMBOLS,
        recipe={"max_length": 1024, "steps": 150_000, "learning_rate": 1e-3, "batch_size": 8, "attention_dropout": 0.0},
        warmup=15_000,
        train_examples=None,
        unpublished=("learning_rate", "batch_size"),
    ),
    "listops": LongTask(
        load_listops,
        pad,
        vocabulary=1 + len(listops.TOKENS),
        classes=10,
        recipe={"max_length": 2000, "steps": 5_000, "learning_rate": 1e-4, "batch_size": 32, "attention_dropout": 0.1},
        warmup=1_000,
        train_examples=96_000,
    ),
    "text": LongTask(
        load_reviews,
        pad,
        vocabulary=257,
        classes=2,
        recipe={"max_length": 4096, "steps": 20_000, "learning_rate": 1e-4, "batch_size": 32, "attention_dropout": 0.1},
        warmup=8_000,
        train_examples=25_000,
    ),
}


def shorter(result: dict[str, Any]) -> str:
    """Where a run has less than the published recipe, and its learning rate if it differs; "" for nothing."""
    asked, task = result["parameters"], LONG_TASKS[result["parameters"]["task"]]
    given = asked | {"train_examples": result["examples"]["train"]}
    published = task.recipe | {"train_examples": task.train_examples or 0}
    named = {
        "steps": "steps",
        "max_length": "tokens",
        "train_examples": "training examples",
        "batch_size": "examples a step",
        "attention_dropout": "attention dropout",
    }
    less = [
        f"{given[name]:,} of {published[name]:,} {what}"
        for name, what in named.items()
        if name not in task.unpublished and given[name] < published[name]
    ]
    if "learning_rate" not in task.unpublished and asked["learning_rate"] != published["learning_rate"]:
        less.append(f"learning rate {asked['learning_rate']:g} instead of {published['learning_rate']:g}")
    return "; ".join(less)
