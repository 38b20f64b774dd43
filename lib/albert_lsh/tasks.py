"""The tasks: those of GLUE, SQuAD 1.1 and 2.0, Korean tasks, and small embedded ones of the same schemas.

A row of `TASKS` says where a task's data is, which columns the model reads, and how it is scored.

    data = load_data("mrpc")                               checked row by row, cut into the parts of a run
    encoded = encode(data, task, tokenizer, max_length)    what the model reads: texts, or windows of paragraphs

`metrics` and `squad` score what it answers.
"""

import hashlib
import math
import os
import random
import reprlib
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, DownloadMode, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetsError

from albert_lsh import hub, mini, squad
from albert_lsh.errors import OneLineError

SUBSET_SEED = 0  # of subsets; not a run's seed, so that all runs see the same examples


class TaskError(OneLineError):
    """A task that is not in the table, or whose data cannot be loaded."""


@dataclass(frozen=True)
class Task:
    """One row of the table of tasks."""

    name: str
    dataset: str  # repository on the Hub, or "mini" for the embedded ones
    config: str | None
    columns: tuple[str, ...]  # what the model reads: one or two texts
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()  # names of the classes, 0 first; none where a number or a span is predicted
    no_answer: bool = False  # questions may have no answer (SQuAD 2.0)
    evaluation: tuple[str, ...] = ("validation",)  # splits; those after the first are scored where present
    training_articles: int | None = None  # of the evaluation split, where the data have no training split
    label: str = "label"  # the column of the classes or numbers, called "label" from `load_data` on

    @property
    def headline(self) -> str:
        """The metric that stands for the task in tables."""
        return "f1" if "f1" in self.metrics else self.metrics[0]

    @property
    def is_squad(self) -> bool:
        return "context" in self.columns

    @property
    def is_regression(self) -> bool:
        return not self.labels and not self.is_squad

    @property
    def num_labels(self) -> int:
        return len(self.labels) or 1

    @property
    def head(self) -> str:
        """Of its models, as `load_model` calls it."""
        return "question-answering" if self.is_squad else "classification"

    @property
    def model_options(self) -> dict[str, Any]:
        """Options of the config of a model of this task: its classes by name, or that it predicts a number."""
        if self.labels:
            return {"id2label": dict(enumerate(self.labels)), "label2id": {n: i for i, n in enumerate(self.labels)}}
        return {"num_labels": 1, "problem_type": "regression"} if self.is_regression else {}


def _glue(name: str, columns: str, labels: str, metrics: str = "accuracy", **more: Any) -> Task:
    texts = tuple(columns.split())
    return Task(name, "nyu-mll/glue", name, texts, tuple(metrics.split()), tuple(labels.split()), **more)


_BOTH = ("validation_matched", "validation_mismatched")
_PAIR, _QUESTIONS, _NLI = ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis")
_ACCURACY = ("accuracy",)
_SQUAD: dict[str, Any] = {"columns": ("question", "context"), "metrics": ("exact", "f1")}

_ALL = [
    _glue("mrpc", "sentence1 sentence2", "not_equivalent equivalent", "accuracy f1"),
    _glue("mnli", "premise hypothesis", "entailment neutral contradiction", evaluation=_BOTH),
    _glue("sst2", "sentence", "negative positive"),
    _glue("qnli", "question sentence", "entailment not_entailment"),
    _glue("qqp", "question1 question2", "not_duplicate duplicate", "accuracy f1"),
    _glue("rte", "sentence1 sentence2", "entailment not_entailment"),
    _glue("cola", "sentence", "unacceptable acceptable", "matthews"),
    _glue("stsb", "sentence1 sentence2", "", "pearson spearman"),
    Task("squad", "rajpurkar/squad", None, **_SQUAD),
    Task("squad-v2", "rajpurkar/squad_v2", None, **_SQUAD, no_answer=True),
    Task("kor-sts", "kakaobrain/kor_nlu", "sts", _PAIR, ("pearson", "spearman"), label="score"),
    # Its label is_duplicate is 0 where the two questions mean the same.
    Task("kor-qpair", "songys/kor_qpair", None, _QUESTIONS, _ACCURACY, ("same", "different"), label="is_duplicate"),
    Task("nsmc", "e9t/nsmc", None, ("document",), _ACCURACY, ("negative", "positive"), evaluation=("test",)),
    # Its development set alone is public here; articles of it are for training.
    Task("korquad", "KorQuAD/squad_kor_v1", None, **_SQUAD, training_articles=113),
    Task("klue-nli", "klue/klue", "nli", _NLI, _ACCURACY, ("entailment", "neutral", "contradiction")),
]
TASKS = {task.name: task for task in _ALL}
# The embedded tasks are their namesakes with other data.
TASKS |= {
    name: replace(TASKS[name.removeprefix("mini-")], name=name, dataset="mini", config=name) for name in mini.MINI
}


def find_task(name: str) -> Task:
    """The task of that name; TaskError names those there are."""
    if not isinstance(name, str) or name not in TASKS:
        raise TaskError(f"task={reprlib.repr(name)} is not one of: {', '.join(TASKS)}")
    return TASKS[name]


# Data ------------------------------------------------------------------------------------------------------------


def load_data(
    name: str,
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
    task, place = find_task(name), f"task={name!r}"
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
        data = cut_by_fold(concatenate_datasets([*data.values()][:2]), fold, place)
    train, *evaluated = data
    parts = {split: subset(data[split], eval_examples) for split in evaluated}
    if held_out_examples is not None:
        parts = {"held-out": held_out(data[train], train_examples, held_out_examples)}
    if shuffle_words is not None:
        parts["shuffled"] = with_shuffled_words(next(iter(parts.values())), task, shuffle_words)
    return DatasetDict({train: subset(data[train], train_examples), **parts})


def source_data(task: Task, folder: str | os.PathLike | None) -> DatasetDict:
    """Every example of "train" and of the evaluation splits, checked; "train" comes first."""
    place = f"task={task.name!r}"
    if task.dataset == "mini":
        data = mini.build(task.name)
    else:
        source = os.path.expanduser(folder or task.dataset)
        if folder and not os.path.isdir(source):
            raise TaskError(f"data_dir={source!r} is not a folder (task {task.name!r})")
        alike = "mini-squad" if task.is_squad else "mini-mrpc"
        embedded = f"mini-{task.name}" if f"mini-{task.name}" in TASKS else alike
        data = download(source, task.config, place, f'; without a network set task="{embedded}", model="mini"')
    if task.training_articles:
        (whole,) = task.evaluation
        check_rows(data.get(whole), task, whole)
        data = cut_by_article(data[whole], task.training_articles, place)
    first, *others = task.evaluation
    data = DatasetDict({split: data.get(split) for split in ("train", first, *(s for s in others if s in data))})
    for split, rows in data.items():
        check_rows(rows, task, split)
    return data if task.label == "label" else data.rename_column(task.label, "label")


def download(source: str, config: str | None, place: str, instead: str = "") -> DatasetDict:
    """A data set from the Hub or a folder; a damaged file in the cache is fetched again, once.

    Raises:
        TaskError: it cannot be loaded; the message begins with `place` and ends with `instead`.
    """
    try:
        with hub.at_once(source):
            try:
                return load_dataset(source, config)
            except (DatasetGenerationError, ValueError, TypeError, OSError) as error:  # what damage comes to
                if isinstance(error, ConnectionError | FileNotFoundError | PermissionError):
                    raise
                return load_dataset(source, config, download_mode=DownloadMode.FORCE_REDOWNLOAD)
    except Exception as error:  # of datasets, pyarrow, huggingface_hub, or whatever client these have
        cause: BaseException = error
        while isinstance(cause, DatasetsError) and cause.__cause__ is not None:
            cause = cause.__cause__
        said = f"{type(cause).__name__}: {cause}".splitlines()[0]
        why = "no network, no such repository or folder, or a damaged file?"
        raise TaskError(f"{place}: the data could not be loaded from {source!r} ({why}): {said}{instead}") from error


def check_rows(rows: Dataset | None, task: Task, split: str) -> None:
    """Raise TaskError for a missing split or column, no rows, a text that is no string, or an unknown label."""
    place, answers = f"task={task.name!r}: split {split!r}", ["answers", "id"] if task.is_squad else [task.label]
    if rows is None:
        raise TaskError(f"task={task.name!r}: there is no split {split!r}")
    if missing := {*task.columns, *answers} - set(rows.column_names):
        raise TaskError(f"{place} has no {', '.join(sorted(missing))}")
    if not len(rows):
        raise TaskError(f"{place} has no rows")
    for column in task.columns:
        for number, text in enumerate(rows[column][:]):
            if not isinstance(text, str):
                raise TaskError(f"{place}, row {number}: {column}={text!r} must be text")
    if task.is_squad:
        if fault := squad.fault_of(rows):
            raise TaskError(f"{place}, {fault}")
        return
    wanted = f"0 to {task.num_labels - 1} ({', '.join(task.labels)})" if task.labels else "a finite number"
    for number, label in enumerate(rows[task.label][:]):
        is_number = isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)
        if not is_number or (task.labels and label not in range(task.num_labels)):
            raise TaskError(f"{place}, row {number}: {task.label}={label!r} must be {wanted}")


def cut_by_article(rows: Dataset, training: int, place: str) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many articles, drawn with a fixed seed, and all others."""
    if "title" not in rows.column_names:
        raise TaskError(f"{place}: split 'validation' has no title, by which it is cut into training and evaluation")
    titles = sorted(set(rows["title"]))
    if len(titles) <= training:
        raise TaskError(f"{place}: articles: {len(titles)}, of which {training} are to be trained on, others evaluated")
    chosen = set(random.Random(SUBSET_SEED).sample(titles, training))
    numbers: dict[str, list[int]] = {"train": [], "validation": []}
    for number, title in enumerate(rows["title"]):
        numbers["train" if title in chosen else "validation"].append(number)
    return DatasetDict({split: rows.select(of_split) for split, of_split in numbers.items()})


def cut_by_fold(rows: Dataset, fold: tuple[int, int], place: str) -> DatasetDict:
    """Part i of n as "fold", all others as "train", drawn with a fixed seed; `idx` numbers all rows."""
    pair = fold if isinstance(fold, tuple | list) and [type(n) for n in fold] == [int, int] else (0, 0)
    if not 0 <= pair[0] < pair[1] or pair[1] < 2:
        raise TaskError(f"{place}: fold={reprlib.repr(fold)} must be (i, n), part i of n, from 0, and n 2 or more")
    numbered = rows.remove_columns("idx") if "idx" in rows.column_names else rows
    numbered = numbered.add_column("idx", list(range(len(rows)))).shuffle(seed=SUBSET_SEED, keep_in_memory=True)
    others = [number for number in range(len(rows)) if number % pair[1] != pair[0]]
    return DatasetDict({"train": numbered.select(others), "fold": numbered.select(range(pair[0], len(rows), pair[1]))})


def subset(rows: Dataset, n: int | None) -> Dataset:
    """`n` examples drawn with a fixed seed, or all of them."""
    if n is None or n >= len(rows):
        return rows
    return rows.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(n))


def held_out(rows: Dataset, seen: int | None, n: int | None) -> Dataset:
    """Examples that a run on `subset(rows, seen)` has not seen: the next `n` in the same order; None: all the rest.

    Raises:
        TaskError: the run saw all examples.
    """
    if seen is None or seen >= len(rows):
        raise TaskError(f"train_examples={seen!r} of {len(rows)}: the run saw all training examples")
    last = len(rows) if n is None else min(seen + n, len(rows))
    return rows.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(seen, last))


def with_shuffled_words(rows: Dataset, task: Task, seed: int) -> Dataset:
    """The same rows, the words of every text in random order; of a pair, each text's for itself.

    A word is what stands between white space. Its new place depends on the seed and the text alone.
    """

    def shuffled(text: str) -> str:
        words = text.split()
        return " ".join(random.Random(f"{seed} {text}").sample(words, len(words)))

    return rows.map(lambda row: {name: shuffled(row[name]) for name in task.columns}, load_from_cache_file=False)


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


def fingerprint(data: Dataset) -> str:
    """The SHA-256 of all token ids of encoded data."""
    digest = hashlib.sha256()
    for batch in data.select_columns(["input_ids"]).with_format("arrow").iter(10_000):
        digest.update(pc.list_flatten(batch["input_ids"]).to_numpy().tobytes())
    return digest.hexdigest()
