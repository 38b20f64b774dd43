"""The data of a task: loaded, checked row by row, cut into the parts of a run, and encoded.

data = load_data("mrpc")
encoded = encode(data, task, tokenizer, max_length)    what the model reads: texts, or windows of paragraphs
"""

import math
import os
import reprlib
from collections.abc import Mapping
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Value, concatenate_datasets

from albert_lsh import mini, sources, squad
from albert_lsh.parts import cut_by_article, cut_by_fold, cut_by_text, held_out, subset, with_shuffled_words
from albert_lsh.sources import TaskError, download
from albert_lsh.tasks import TASKS, Task, find_task


def load_data(
    name: str | Task,
    folder: str | os.PathLike | None = None,
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
        name: of the task, or the task.
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
    task = name if isinstance(name, Task) else find_task(name)
    place = f"task={task.name!r}"
    sizes = {"train_examples": train_examples, "eval_examples": eval_examples, "held_out_examples": held_out_examples}
    for size_name, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise TaskError(f"{place}: {size_name}={reprlib.repr(size)} must be a whole number, 1 or more")
    if fold is not None and held_out_examples is not None:
        raise TaskError(f"{place}: fold={fold!r} and held_out_examples={held_out_examples}: take one of them")
    if shuffle_words is not None and task.is_squad:
        raise TaskError(f"{place}: shuffle_words={shuffle_words!r}, but its answers are places in the text")
    data = source_data(task, folder)
    if fold is not None:
        data = cut_by_fold(concatenate_datasets([*data.values()][:2]), fold, place, task.kept_together)
    elif len(data) == 1:
        (rows,) = data.values()
        data = cut_by_text(rows, task.kept_together, place)
        if held_out_examples is None:
            part = f"{len(data['validation'])} of {len(rows)} examples, drawn with a fixed seed, are held out"
            print(f"{os.path.basename(task.name)}: {part} and evaluated")
    train, *evaluated = data
    parts = {split: subset(data[split], eval_examples) for split in evaluated}
    if held_out_examples is not None:
        parts = {"held-out": held_out(data[train], train_examples, held_out_examples, task.kept_together)}
    if shuffle_words is not None:
        parts["shuffled"] = with_shuffled_words(next(iter(parts.values())), task.columns, shuffle_words)
    return DatasetDict({train: subset(data[train], train_examples), **parts})


def source_data(task: Task, folder: str | os.PathLike | None) -> DatasetDict:
    """Every example of "train" and of the evaluation splits, checked; "train" comes first."""
    place = f"task={task.name!r}"
    if folder and (task.is_own or task.revision):
        other = "of your own" if task.is_own else f"of data_revision={task.revision!r}"
        raise TaskError(f"data_dir={os.fspath(folder)!r} stands in the place of the Hub, and {place} is {other}")
    if task.is_own:
        data = own_data(task)
        return data if task.label == "label" else data.rename_column(task.label, "label")
    if task.dataset == "mini":
        data = mini.build(task.name)
    else:
        source = os.path.expanduser(folder or task.dataset)
        if folder and not os.path.isdir(source):
            raise TaskError(f"data_dir={source!r} is not a folder (task {task.name!r})")
        alike = "mini-squad" if task.is_squad else "mini-mrpc"
        embedded = f"mini-{task.name}" if f"mini-{task.name}" in TASKS else alike
        instead = f'; without a network set task="{embedded}", model="mini"'
        data = download(source, task.config, place, instead, task.revision)
    if task.training_articles:
        (whole,) = task.evaluation
        check_rows(data.get(whole), task, whole)
        data = cut_by_article(data[whole], task.training_articles, place)
    first, *others = task.evaluation
    data = DatasetDict({split: data.get(split) for split in ("train", first, *(s for s in others if s in data))})
    for split, rows in data.items():
        check_rows(rows, task, split)
    return data if task.label == "label" else data.rename_column(task.label, "label")


def own_data(task: Task) -> DatasetDict:
    """One's own data: "train" and the splits that are evaluated, checked.

    Evaluated are "validation" and "test" where they have answers (of SQuAD's schema the first of them). `idx` numbers
    the rows of a split as it was read.

    Raises:
        TaskError: no split "train"; a row that is no example of the task.
    """
    place, data = f"task={task.name!r}", sources.read(task.dataset, f"task={task.name!r}", task.revision)
    if "train" not in data:
        raise TaskError(f"{place}: there is no split 'train'; there are: {', '.join(data)}")
    unanswered = without_answers(task, data)
    others = [split for split in task.evaluation if split in data and split not in unanswered]
    splits = {split: data[split] for split in ("train", *(others[:1] if task.is_squad else others))}
    numbers = class_numbers(splits, task)
    return DatasetDict({split: with_answers(rows, task, split, numbers) for split, rows in splits.items()})


def without_answers(task: Task, data: DatasetDict | None = None) -> dict[str, Dataset]:
    """The texts of the splits of one's own data whose answers are open, checked. data: of `sources.read`, or None."""
    data, texts = data or sources.read(task.dataset, f"task={task.name!r}", task.revision), {}
    for split in [split for split in task.evaluation if split in data]:
        if not sources.has_answers(data[split], sources.SPAN_ANSWERS if task.is_squad else task.label):
            check_rows(data[split], task, split, labelled=False)
            texts[split] = data[split].select_columns([*task.columns])
    return texts


def with_answers(rows: Dataset, task: Task, split: str, numbers: Mapping[str, int]) -> Dataset:
    """The columns of a split of one's own that its task has, checked; classes are numbers, other answers float32."""
    if task.is_squad:
        check_rows(rows, task, split)
        return rows.select_columns(["id", *task.columns, sources.SPAN_ANSWERS])
    kind: Any = Value("float32")
    if task.labels and task.label in rows.column_names:
        values, kind = rows[task.label][:], ClassLabel(names=[*task.labels])
        for number, value in enumerate(values):
            if str(value) not in numbers:
                wanted = f"must be one of: {', '.join(task.labels)}"
                raise TaskError(f"task={task.name!r}: split {split!r}, row {number}: {task.label}={value!r} {wanted}")
        rows = rows.remove_columns(task.label).add_column(task.label, [numbers[str(value)] for value in values])
    check_rows(rows, task, split)
    rows = rows.select_columns([*task.columns, task.label]).cast_column(task.label, kind)
    return rows.add_column("idx", list(range(len(rows))))


def class_numbers(splits: Mapping[str, Dataset], task: Task) -> dict[str, int]:
    """The number of the class that a label, as text, stands for: in all splits it is a name, or in all a number."""
    numbers = {name: number for number, name in enumerate(task.labels)}
    labelled = [rows for rows in splits.values() if task.labels and task.label in rows.column_names]
    feature = next((rows.features[task.label] for rows in labelled), None)
    if isinstance(feature, ClassLabel) and {*feature.names} == {*numbers}:
        return {str(number): numbers[name] for number, name in enumerate(feature.names)}
    values = [value for rows in labelled for value in rows[task.label][:]]
    in_range = all(type(value) is int and value in range(task.num_labels) for value in values)
    if isinstance(feature, ClassLabel) or (in_range and any(str(value) not in numbers for value in values)):
        return {str(number): number for number in range(task.num_labels)}
    return numbers


def check_rows(rows: Dataset | None, task: Task, split: str, *, labelled: bool = True) -> None:
    """Raise TaskError for a missing split or column, no rows, a text that is no string, or an unknown label.

    Texts of one's own may not be empty either.
    """
    place, answers = f"task={task.name!r}: split {split!r}", ["answers", "id"] if task.is_squad else [task.label]
    answers = answers if labelled else []
    if rows is None:
        raise TaskError(f"task={task.name!r}: there is no split {split!r}")
    if missing := {*task.columns, *answers} - set(rows.column_names):
        there = f"; its columns are: {', '.join(rows.column_names)}" if task.is_own else ""
        raise TaskError(f"{place} has no {', '.join(sorted(missing))}{there}")
    if not len(rows):
        raise TaskError(f"{place} has no rows")
    for column in task.columns:
        for number, text in enumerate(rows[column][:]):
            if not isinstance(text, str) or (task.is_own and not text.strip()):
                wanted = "text, and not empty" if task.is_own else "text"
                raise TaskError(f"{place}, row {number}: {column}={text!r} must be {wanted}")
    if not labelled:
        return
    if task.is_squad:
        if fault := squad.fault_of(rows):
            raise TaskError(f"{place}, {fault}")
        return
    wanted = f"0 to {task.num_labels - 1} ({', '.join(task.labels)})" if task.labels else "a finite number"
    for number, label in enumerate(rows[task.label][:]):
        is_number = isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)
        if not is_number or (task.labels and label not in range(task.num_labels)):
            raise TaskError(f"{place}, row {number}: {task.label}={label!r} must be {wanted}")


# What a model reads ----------------------------------------------------------------------------------------------


def readable(texts: list[str], tokenizer: Any, max_length: int) -> list[str]:
    """Texts that a tokenizer can cut at max_length: where they are very long, without what it would cut off anyway.

    It puts every piece that it cuts off one text of a pair beside every piece of the other, and runs out of memory.
    """
    most = 8 * max_length
    return [squad.shortened([text], tokenizer, most)[0] if len(text) > most else text for text in texts]


def encode(data: dict[str, Dataset], task: Task, tokenizer: Any, max_length: int) -> DatasetDict:
    """Token ids of a task's data, unpadded: texts cut at `max_length`, or `squad.windows` of paragraphs.

    Args:
        tokenizer: of `load_tokenizer`, which makes sure that the two texts of a pair are told apart.
    Returns:
        By split the tokenizer's columns, labels, length in tokens, whole_length before it was cut, and idx: GLUE's, or
        the row's number in its split.
    """
    if task.is_squad:
        return DatasetDict({split: squad.windows(rows, tokenizer, max_length) for split, rows in data.items()})

    def one_batch(rows: dict, numbers: list[int]) -> dict:
        texts = [rows[c] for c in task.columns]
        whole = tokenizer(*texts, verbose=False)["input_ids"]
        texts = [readable(column, tokenizer, max_length) for column in texts]
        encoded = dict(tokenizer(*texts, truncation=True, max_length=max_length))
        lengths = {"length": list(map(len, encoded["input_ids"])), "whole_length": list(map(len, whole))}
        return {**encoded, "labels": rows["label"], **lengths, "idx": rows.get("idx", numbers)}

    # datasets does not notice when this code changes, so nothing is taken from its cache.
    options = {"batched": True, "with_indices": True, "load_from_cache_file": False}
    return DatasetDict(
        {split: rows.map(one_batch, remove_columns=rows.column_names, **options) for split, rows in data.items()}
    )
