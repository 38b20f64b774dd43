"""The data of a task: loaded, checked row by row, cut into the parts of a run, and encoded.

data = load_data("mrpc")
encoded = encode(data, task, tokenizer, max_length)    what the model reads: texts, or windows of paragraphs
"""

import math
import os
import reprlib
from collections import Counter
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Value, concatenate_datasets

from albert_lsh import mini, sources, squad
from albert_lsh.parts import cut_by_article, cut_by_fold, cut_by_text, held_out, subset, with_shuffled_words
from albert_lsh.sources import TaskError, check_each, download
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
    sizes = {"train_examples": train_examples, "eval_examples": eval_examples, "held_out_examples": held_out_examples}
    check_parts(task, fold=fold, shuffle_words=shuffle_words, **sizes)
    data = source_data(task, folder)
    if fold is not None:
        data = cut_by_fold(concatenate_datasets([*data.values()][:2]), fold, task.place, task.kept_together)
    elif len(data) == 1:
        (rows,) = data.values()
        data = cut_by_text(rows, task.kept_together, task.place)
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


def check_parts(task: Task, *, fold: tuple[int, int] | None, shuffle_words: int | None, **sizes: int | None) -> None:
    """Raise TaskError for parts of a task's data that cannot be; the arguments are those of `load_data`."""
    for name, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise TaskError(f"{task.place}: {name}={reprlib.repr(size)} must be a whole number, 1 or more")
    if fold is not None and sizes["held_out_examples"] is not None:
        others = f"held_out_examples={sizes['held_out_examples']}"
        raise TaskError(f"{task.place}: fold={fold!r} and {others}: take one of them")
    if shuffle_words is not None and task.is_squad:
        raise TaskError(f"{task.place}: shuffle_words={shuffle_words!r}, but its answers are places in the text")


def source_data(task: Task, folder: str | os.PathLike | None) -> DatasetDict:
    """Every example of "train" and of the evaluation splits, checked; "train" comes first."""
    if folder and (task.is_own or task.revision):
        other = "of your own" if task.is_own else f"of data_revision={task.revision!r}"
        raise TaskError(f"data_dir={os.fspath(folder)!r} stands in the place of the Hub, and {task.place} is {other}")
    data = own_data(task) if task.is_own else data_of_table(task, folder)
    return data if task.is_squad or task.label == "label" else data.rename_column(task.label, "label")


def data_of_table(task: Task, folder: str | os.PathLike | None) -> DatasetDict:
    """Of a task of the table; see `source_data`."""
    if task.dataset == "mini":
        data = mini.build(task.name)
    else:
        source = os.path.expanduser(folder or task.dataset)
        if folder and not os.path.isdir(source):
            raise TaskError(f"data_dir={source!r} is not a folder (task {task.name!r})")
        alike = "mini-squad" if task.is_squad else "mini-mrpc"
        embedded = f"mini-{task.name}" if f"mini-{task.name}" in TASKS else alike
        instead = f'; without a network set task="{embedded}", model="mini"'
        data = download(source, task.config, task.place, instead, task.revision)
    if task.training_articles:
        (whole,) = task.evaluation
        check_rows(data.get(whole), task, whole)
        data = cut_by_article(data[whole], task.training_articles, task.place)
    first, *others = task.evaluation
    data = DatasetDict({split: data.get(split) for split in ("train", first, *(s for s in others if s in data))})
    for split, rows in data.items():
        check_rows(rows, task, split)
    return data


def own_data(task: Task) -> DatasetDict:
    """One's own data: "train" and the splits that are evaluated, checked; classes are numbers, other answers float32.

    Evaluated are "validation" and "test" where they have answers (of SQuAD's schema the first of them). `idx` numbers
    the rows of a split as it was read.

    Raises:
        TaskError: no split "train"; a row that is no example of the task.
    """
    data = sources.read(task.dataset, task.place, task.revision)
    if "train" not in data:
        raise TaskError(f"{task.place}: there is no split 'train'; there are: {', '.join(data)}")
    others = [split for split in task.evaluation if split in data and sources.has_answers(data[split], task.label)]
    splits = DatasetDict({split: data[split] for split in ("train", *(others[:1] if task.is_squad else others))})
    for split, rows in splits.items():
        check_rows(rows, task, split)
    if task.is_squad:
        return splits.select_columns(["id", *task.columns, task.label])
    numbers, wanted = class_numbers(splits, task), f"one of: {', '.join(task.labels)}"
    for split, rows in splits.items():
        rows = rows.select_columns([*task.columns, task.label]).add_column("idx", list(range(len(rows))))
        if task.labels:
            place = f"{task.place}: split {split!r}"
            check_each(rows, place, task.label, wanted, lambda value: str(value) in numbers)
            classes = [numbers[str(value)] for value in rows[task.label][:]]
            rows = rows.remove_columns(task.label).add_column(task.label, classes)
        splits[split] = rows
    return splits.cast_column(task.label, ClassLabel(names=[*task.labels]) if task.labels else Value("float32"))


def without_answers(task: Task) -> dict[str, Dataset]:
    """The texts of the splits of one's own data whose answers are open, checked."""
    data = sources.read(task.dataset, task.place, task.revision)
    opened = [s for s in task.evaluation if s in data and not sources.has_answers(data[s], task.label)]
    for split in opened:
        check_rows(data[split], task, split, labelled=False)
    return {split: data[split].select_columns([*task.columns]) for split in opened}


def class_numbers(splits: DatasetDict, task: Task) -> dict[str, int]:
    """The number of the class that a label, as text, stands for: in all splits it is a name, or in all a number."""
    numbers, feature = {name: number for number, name in enumerate(task.labels)}, splits["train"].features[task.label]
    if isinstance(feature, ClassLabel):
        is_order = {*feature.names} == {*numbers}  # else the classes are renamed
        names = feature.names[: task.num_labels]
        return {str(n): numbers[name] if is_order else n for n, name in enumerate(names)}
    values = [value for rows in splits.values() for value in rows[task.label][:]]
    in_range = all(type(value) is int and value in range(task.num_labels) for value in values)
    if in_range and any(str(value) not in numbers for value in values):
        return {str(number): number for number in range(task.num_labels)}
    return numbers


def check_rows(rows: Dataset | None, task: Task, split: str, *, labelled: bool = True) -> None:
    """Raise TaskError for a missing split or column, no rows, a text that is no string, or an unknown label.

    Texts of one's own may not be empty either; their labels become numbers in `own_data`, and are checked there.
    """
    if rows is None:
        raise TaskError(f"{task.place}: there is no split {split!r}")
    place, answers = f"{task.place}: split {split!r}", ["id", task.label] if task.is_squad else [task.label]
    if missing := {*task.columns, *(answers if labelled else [])} - {*rows.column_names}:
        raise TaskError(f"{place} has no {', '.join(sorted(missing))}; its columns are: {', '.join(rows.column_names)}")
    if not len(rows):
        raise TaskError(f"{place} has no rows")
    for column in task.columns:
        check_each(rows, place, column, "text", lambda text: isinstance(text, str))
        if task.is_own:
            check_each(rows, place, column, "text, and not empty", str.strip)
    if not labelled:
        return
    if task.is_squad:
        ids = Counter(map(str, rows["id"][:]))
        check_each(rows, place, "id", "text, and of no other row", lambda key: isinstance(key, str) and ids[key] == 1)
        wanted = "{'text': [...], 'answer_start': [...]}, texts and as many whole numbers"
        check_each(rows, place, task.label, wanted, squad.are_answers)
    elif task.is_regression:
        check_each(rows, place, task.label, "a finite number", is_finite)
    elif not task.is_own:
        wanted = f"0 to {task.num_labels - 1} ({', '.join(task.labels)})"
        check_each(rows, place, task.label, wanted, lambda label: type(label) is int and 0 <= label < task.num_labels)


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
