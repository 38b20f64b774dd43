"""The long tasks with their published recipes: where the data come from, and what a model is trained with.

Reformer's duplication (`duplication`), and two tasks of Long Range Arena (Tay et al. 2021): ListOps (`listops`) and the
bytes of IMDb's reviews (`text`). These two have the recipe of Nyströmformer's authors' re-run of the arena (Xiong et
al. 2021; mlpen/Nystromformer, LRA/code/lra_config.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import datasets
from torch.utils.data import Dataset

from albert_lsh.tasks.table import Task, check_rows, download, subset
from albert_study.long_range import duplication, listops

IMDB = Task("text", "stanfordnlp/imdb", None, ("text",), ("accuracy",), ("negative", "positive"))


@dataclass(frozen=True)
class LongTask:
    """A task and its published recipe."""

    load: Callable[[Any], dict[str, Dataset]]  # the splits train, validation and test, for a LongRun
    encode: Callable[[str], list[int]] | None  # a text's token numbers, 0 being padding; None: examples are encoded
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


def load_listops(run: Any) -> dict[str, Dataset]:
    """Examples of `listops.generate`, the same for every seed; they have at least max_length / 4 tokens."""
    limits = {"train": run.train_examples, "validation": run.eval_examples, "test": run.eval_examples}
    sizes = {split: min(size, limits[split] or size) for split, size in listops.SIZES.items()}
    return dict(listops.generate(0, sizes, min_length=run.max_length // 4, max_length=run.max_length))


def load_reviews(run: Any) -> dict[str, Dataset]:
    """IMDb's reviews (Maas et al. 2011). As in Long Range Arena the test set is also the validation set.

    Raises:
        TaskError: the data cannot be had, or a split or column is missing.
    """
    found = download(run.data_dir or IMDB.dataset, IMDB.config, f"task={IMDB.name!r}")
    splits = {}
    for split, limit in (("train", run.train_examples), ("test", run.eval_examples)):
        rows = found[split] if split in found else datasets.Dataset.from_dict({})
        check_rows(rows, IMDB, split)
        lengths = [min(len(text.encode()), run.max_length) for text in rows["text"]]
        splits[split] = subset(rows.select_columns(["text", "label"]).add_column("length", lengths), limit)
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
        encode=None,
        vocabulary=duplication.MASK + 1,
        classes=duplication.SYMBOLS,
        recipe={"max_length": 1024, "steps": 150_000, "learning_rate": 1e-3, "batch_size": 8, "attention_dropout": 0.0},
        warmup=15_000,
        train_examples=None,
        unpublished=("learning_rate", "batch_size"),
    ),
    "listops": LongTask(
        load_listops,
        encode=listops.encode_tree,
        vocabulary=1 + len(listops.TOKENS),
        classes=10,
        recipe={"max_length": 2000, "steps": 5_000, "learning_rate": 1e-4, "batch_size": 32, "attention_dropout": 0.1},
        warmup=1_000,
        train_examples=96_000,
    ),
    "text": LongTask(
        load_reviews,
        encode=encode_bytes,
        vocabulary=257,
        classes=2,
        recipe={"max_length": 4096, "steps": 20_000, "learning_rate": 1e-4, "batch_size": 32, "attention_dropout": 0.1},
        warmup=8_000,
        train_examples=25_000,
    ),
}
