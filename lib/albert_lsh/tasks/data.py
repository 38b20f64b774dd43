"""The data of a task: loaded, checked row by row, cut into the parts of a run, and turned into token ids."""

import math
import os
import random
import reprlib
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, DownloadMode, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetsError

from albert_lsh import hub
from albert_lsh.tasks import mini
from albert_lsh.tasks.long_texts import readable
from albert_lsh.tasks.squad_rows import fault_of
from albert_lsh.tasks.table import TASKS, Task, TaskError, find_task

SUBSET_SEED = 0  # of subsets; not a run's seed, so that all runs see the same examples


def load_data(
    name: str,
    folder: str | Path | None = None,
    *,
    train_examples: int | None = None,
    eval_examples: int | None = None,
    held_out_examples: int | None = None,
    fold: tuple[int, int] | None = None,
    shuffle_words: int | None = None,
) -> DatasetDict:
    """The data of a task: "train" and its evaluation splits, in the schema of its Hub repository.

    But for the classes or numbers to be predicted: their column is always called "label".

    Args:
        name: of the task.
        folder: a local folder laid out like the Hub repository, to read instead of the Hub.
        train_examples, eval_examples: draw a subset of that many, the same for every run; None takes all.
        held_out_examples: of "train", in the place of the evaluation splits; those drawn for training are none of
            them. To choose by, where the evaluation splits are what is reported.
        fold: (i, n) cuts all examples, of "train" and the first evaluation split, in n parts; part i is evaluated, as
            "fold", the others are "train". `idx` numbers the examples of all parts.
        shuffle_words: a seed; the first evaluated split again, as "shuffled", with the words of every text in random
            order (see `with_shuffled_words`). None: not.
    Raises:
        TaskError: unknown task; data that cannot be loaded from the Hub or the folder; a missing split or column; a
            row that is no example of the task; no training example left to hold out.
    """
    task = find_task(name)
    asked = {"train_examples": train_examples, "eval_examples": eval_examples, "held_out_examples": held_out_examples}
    check_sizes(asked, fold, f"task={name!r}")
    if task.dataset == "mini":
        found = mini.build(name)
    else:
        source = os.path.expanduser(folder or task.dataset)
        if folder and not os.path.isdir(source):
            raise TaskError(f"data_dir={source!r} is not a folder (task {name!r})")
        found = download(source, task.config, f"task={name!r}", offline_instead(task))
    if task.training_articles:
        whole = task.evaluation[0]
        check_rows(found[whole] if whole in found else Dataset.from_dict({}), task, whole)
        found = cut_by_article(found[whole], task.training_articles, f"task={name!r}")
    splits = ["train", *(s for i, s in enumerate(task.evaluation) if i == 0 or s in found)]
    for split in splits:
        check_rows(found[split] if split in found else Dataset.from_dict({}), task, split)
        if task.label != "label":
            found[split] = found[split].rename_column(task.label, "label")
    if fold is not None:
        found = cut_by_fold(concatenate_datasets([found[split] for split in splits[:2]]), *fold)
        splits = [*found]
    sizes = {"train": train_examples}
    data = DatasetDict({split: subset(found[split], sizes.get(split, eval_examples)) for split in splits})
    if held_out_examples is not None:
        rest = held_out(found["train"], train_examples, held_out_examples)
        data = DatasetDict({"train": data["train"], "held-out": rest})
    if shuffle_words is not None:
        evaluated = next(rows for split, rows in data.items() if split != "train")
        data["shuffled"] = with_shuffled_words(evaluated, task, shuffle_words)
    return data


def check_sizes(asked: dict[str, Any], fold: Any, place: str) -> None:
    """Raise TaskError for a number of examples that is none, or a fold that is no (i, n) with 0 <= i < n."""
    for name, size in asked.items():
        if size is not None and (type(size) is not int or size < 1):
            raise TaskError(f"{place}: {name}={reprlib.repr(size)} must be a whole number, 1 or more")
    if fold is not None and asked["held_out_examples"] is not None:
        held_out_examples = asked["held_out_examples"]
        raise TaskError(f"{place}: fold={fold!r} and held_out_examples={held_out_examples}: take one of them")
    if fold is not None:
        pair = fold if isinstance(fold, tuple | list) and [type(n) for n in fold] == [int, int] else (0, 0)
        if not 0 <= pair[0] < pair[1] or pair[1] < 2:
            raise TaskError(f"{place}: fold={reprlib.repr(fold)} must be (i, n), part i of n, from 0, and n 2 or more")


def offline_instead(task: Task) -> str:
    """What to set where there is no network: an embedded task for the same notebook."""
    name, usual = f"mini-{task.name}", "mini-squad" if task.is_squad else "mini-mrpc"
    return f'; without a network set task="{name if name in TASKS else usual}", model="mini"'


def download(source: str, config: str | None, place: str, instead: str = "") -> DatasetDict:
    """A data set from the Hub or a folder; a damaged file in the cache is fetched again, once.

    Raises:
        TaskError: it cannot be loaded; the message begins with `place` and ends with `instead`.
    """
    try:
        with hub.at_once():
            return fetch(source, config)
    except Exception as error:  # of datasets, pyarrow, huggingface_hub, or whatever client these have
        raise TaskError(
            f"{place}: the data could not be loaded from {source!r} (no network, no such repository or folder, or a "
            f"damaged file?): {cause_of(error)}{instead}"
        ) from error


def fetch(source: str, config: str | None) -> DatasetDict:
    """`load_dataset`, again without its cache where that is damaged."""
    try:
        return load_dataset(source, config)
    except (DatasetGenerationError, ValueError, TypeError, OSError) as error:  # what damage comes to
        if isinstance(error, ConnectionError | FileNotFoundError | PermissionError):
            raise
        return load_dataset(source, config, download_mode=DownloadMode.FORCE_REDOWNLOAD)


def cause_of(error: BaseException) -> str:
    """The first line of what an error, or the error behind it, says."""
    while isinstance(error, DatasetsError) and error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0]


def cut_by_article(rows: Dataset, training: int, place: str) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many articles, drawn with a fixed seed, and all others."""
    if "title" not in rows.column_names:
        raise TaskError(
            f"{place}: split 'validation' has no title, by which it is to be cut into training and evaluation"
        )
    titles = sorted(set(rows["title"]))
    if len(titles) <= training:
        many = "1 article" if len(titles) == 1 else f"{len(titles)} articles"
        raise TaskError(f"{place}: {many}, of which {training} are to be trained on and others evaluated")
    chosen = set(random.Random(SUBSET_SEED).sample(titles, training))
    inside = [title in chosen for title in rows["title"]]
    numbers = {
        "train": [i for i, yes in enumerate(inside) if yes],
        "validation": [i for i, yes in enumerate(inside) if not yes],
    }
    return DatasetDict({split: rows.select(of_split) for split, of_split in numbers.items()})


def cut_by_fold(rows: Dataset, part: int, folds: int) -> DatasetDict:
    """Part `part` of `folds` as "fold", all others as "train", drawn with a fixed seed; `idx` numbers all rows."""
    numbered = rows.remove_columns("idx") if "idx" in rows.column_names else rows
    numbered = numbered.add_column("idx", list(range(len(rows)))).shuffle(seed=SUBSET_SEED, keep_in_memory=True)
    return DatasetDict(
        {
            "train": numbered.select([i for i in range(len(rows)) if i % folds != part]),
            "fold": numbered.select([i for i in range(len(rows)) if i % folds == part]),
        }
    )


def check_rows(rows: Dataset, task: Task, split: str) -> None:
    """Raise TaskError for a missing split or column, no rows, a text that is no string, or an unknown label."""
    place, answer = f"task={task.name!r}: split {split!r}", "answers" if task.is_squad else task.label
    if not rows.column_names:
        raise TaskError(f"task={task.name!r}: there is no split {split!r}")
    if missing := {*task.columns, answer, *["id"] * task.is_squad} - set(rows.column_names):
        raise TaskError(f"{place} has no {', '.join(sorted(missing))}")
    if not len(rows):
        raise TaskError(f"{place} has no rows")
    for column in task.columns:
        for number, text in enumerate(rows[column][:]):
            if not isinstance(text, str):
                raise TaskError(f"{place}, row {number}: {column}={text!r} must be text")
    if task.is_squad and (fault := fault_of(rows)):
        raise TaskError(f"{place}, {fault}")
    wanted = f"0 to {task.num_labels - 1} ({', '.join(task.labels)})" if task.labels else "a finite number"
    for number, label in enumerate([] if task.is_squad else rows[answer][:]):
        is_number = isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)
        if not is_number or (task.labels and label not in range(task.num_labels)):
            raise TaskError(f"{place}, row {number}: {answer}={label!r} must be {wanted}")


def subset(data: Dataset, n: int | None) -> Dataset:
    """`n` examples drawn with a fixed seed, or all of them."""
    if n is None or n >= len(data):
        return data
    return data.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(n))


def held_out(data: Dataset, seen: int | None, n: int | None) -> Dataset:
    """Examples that a run on `subset(data, seen)` has not seen: the next `n` in the same order; None: all the rest.

    Raises:
        TaskError: the run saw all examples.
    """
    if seen is None or seen >= len(data):
        raise TaskError(f"train_examples={seen!r} of {len(data)}: the run saw all training examples")
    last = len(data) if n is None else min(seen + n, len(data))
    return data.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(seen, last))


def with_shuffled_words(rows: Dataset, task: Task, seed: int) -> Dataset:
    """The same rows, the words of every text in random order; of a pair, each text's for itself.

    A word is what stands between white space. Its new place depends on the seed and the text alone.

    Raises:
        TaskError: the task's answers are places in the text.
    """
    if task.is_squad:
        raise TaskError(f"task={task.name!r}: shuffle_words={seed!r}, but its answers are places in the text")

    def shuffled(text: str) -> str:
        words = text.split()
        return " ".join(random.Random(f"{seed} {text}").sample(words, len(words)))

    def one_row(row: dict) -> dict:
        return {column: shuffled(row[column]) for column in task.columns}

    return rows.map(one_row, load_from_cache_file=False)


def lengths_of(texts: list[list[int]]) -> list[int]:
    return [len(text) for text in texts]


def encode(data: DatasetDict, task: Task, tokenizer, max_length: int) -> DatasetDict:
    """Token ids of a classification or regression task, cut at `max_length`, unpadded.

    Args:
        tokenizer: of `model.load.load_tokenizer`, which makes sure that the two texts of a pair are told apart.
    Returns:
        The tokenizer's columns, labels, length in tokens, whole_length before it was cut, and idx: GLUE's, or the
        row's number in its split.
    """

    def one_batch(rows: dict, numbers: list[int]) -> dict:
        texts = [rows[c] for c in task.columns]
        whole = tokenizer(*texts, verbose=False)["input_ids"]
        texts = [readable(column, tokenizer, max_length) for column in texts]
        encoded = dict(tokenizer(*texts, truncation=True, max_length=max_length))
        lengths = {"length": lengths_of(encoded["input_ids"]), "whole_length": lengths_of(whole)}
        return {**encoded, "labels": rows["label"], **lengths, "idx": rows.get("idx", numbers)}

    # datasets does not notice when this code changes, so nothing is taken from its cache.
    options = {"batched": True, "with_indices": True, "load_from_cache_file": False}
    return DatasetDict(
        {split: rows.map(one_batch, remove_columns=rows.column_names, **options) for split, rows in data.items()}
    )
