"""The three kinds of task: one or two texts are of a class, or have a number; a question has a piece of a paragraph.

A kind checks a task's rows, encodes them for the model, scores what a model answers, and answers new texts. What kinds
share stands in `Task`.
"""

import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from datasets import ClassLabel, Dataset, DatasetDict, Value
from transformers import PreTrainedModel

from albert_lsh import metrics, squad
from albert_lsh.files import OneLineError
from albert_lsh.model.load import longest_input

SAVED_TASK = "albert_lsh_task"  # where a saved model's config says what it was fine-tuned on; see `train.keep_model`
LOCAL = "sha256:"  # begins the revision of a file or folder
SPAN, ANSWERS = ("question", "context"), "answers"  # SQuAD's columns: what is read, and what is answered


class TaskError(OneLineError):
    """A task that is not in the table, or data that cannot be loaded or are none of its kind."""


def check_each(
    rows: Mapping[str, Any] | Dataset, place: str, column: str, wanted: str, is_right: Callable[[Any], Any]
) -> None:
    """Raise TaskError for the first value of a column that is not right; `place` says which split it is."""
    for number, value in enumerate(rows[column][:]):
        if not is_right(value):
            raise TaskError(f"{place}, row {number}: {column}={reprlib.repr(value)} must be {wanted}")


def as_number(value: Any) -> float | None:
    """The finite number that a value is, or spells; None if there is none."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None


def plain(label: str) -> str:
    """A label as it is, but for a whole number, which is written without a point: "1" for "1.0"."""
    number = as_number(label)
    return str(int(number)) if number is not None and number.is_integer() else label


@dataclass(frozen=True)
class Task:
    """One row of the table of tasks, or one's own; and what tasks about one or two texts have in common."""

    name: str
    dataset: str  # repository on the Hub, or a file or folder; "mini" for the embedded ones
    config: str | None
    columns: tuple[str, ...]  # what the model reads: one or two texts
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()  # names of the classes, 0 first; none where a number or a span is predicted
    no_answer: bool = False  # questions may have no answer (SQuAD 2.0)
    evaluation: tuple[str, ...] = ("validation",)  # splits; those after the first are scored where present
    training_articles: int | None = None  # of the evaluation split, where the data have no training split
    article_words: int | None = None  # a context is so many words of its article, paragraphs around its own
    label: str = "label"  # the column of the answers
    revision: str | None = None  # of the repository on the Hub, None: the newest; of a file or folder, its digest
    is_own: bool = False  # data of one's own, see `sources.find_task`

    notebook: ClassVar[str] = "glue.ipynb"  # that trains on it
    head: ClassVar[str] = "classification"  # of its models, as `load_model` calls it
    architecture: ClassVar[str] = "ForSequenceClassification"  # and how the names of their classes end
    pipeline: ClassVar[str] = "text-classification"  # of Transformers, by which the Hub sorts them
    answer_column: ClassVar[str] = "label"  # as `load_data` calls `label`
    recipe: ClassVar[dict[str, Any]] = {"max_length": 128, "batch_size": 32, "learning_rate": 2e-5, "epochs": 3.0}
    perfect: ClassVar[int] = 1  # the best score
    digits: ClassVar[int] = 3  # of a score that mean something
    embedded: ClassVar[str] = "mini-mrpc"  # a task of the kind that needs no network
    scored: ClassVar[int | None] = None  # how many evaluation splits are scored; None: all
    has_free_words: ClassVar[bool] = True  # whether the words of a text may be shuffled
    number_type: ClassVar[Any] = np.int32  # of labels in `predictions`
    answered: ClassVar[str] = "answer"  # the column of answers there
    all_metrics: ClassVar[tuple[str, ...]]  # that a task of the kind may be scored by
    besides: ClassVar[tuple[str, ...]] = ()  # columns that answers need besides `label`

    def __post_init__(self) -> None:
        """Raise TaskError for a metric that its kind does not have; F1 is of two classes."""
        fitting = [name for name in self.all_metrics if name != "f1" or len(self.labels) < 3]
        if unfit := [name for name in self.metrics if name not in fitting]:
            raise TaskError(f"task={self.name!r}: metrics={unfit[0]!r} must be one of: {', '.join(fitting)}")

    # What it is

    @property
    def place(self) -> str:
        """What errors about its data begin with."""
        return f"task={self.name!r}"

    @property
    def headline(self) -> str:
        """The metric that stands for the task in tables."""
        return "f1" if "f1" in self.metrics else self.metrics[0]

    @property
    def kept_together(self) -> tuple[str, ...]:
        """Columns whose texts are never both trained and evaluated on; those of the table have such splits, or none."""
        return self.columns if self.is_own else ()

    @property
    def repository(self) -> str | None:
        """The data set on the Hub; None for the embedded tasks, and for files of one's own."""
        is_file = (self.revision or "").startswith(LOCAL)
        return None if is_file or self.dataset == "mini" else "/".join(self.dataset.split("/")[:2])

    @property
    def num_labels(self) -> int:
        return len(self.labels) or 1

    @property
    def model_options(self) -> dict[str, Any]:
        """Options of the config of a model of this task."""
        return {}

    @property
    def answer_is(self) -> str:
        """What a model answers, in words."""
        return ", ".join(self.labels) or "a number"

    # Its rows

    def check(self, rows: Dataset | None, split: str, *, labelled: bool = True) -> None:
        """Raise TaskError for a missing split or column, no rows, a text that is no string, or an unknown answer.

        Texts of one's own may not be empty either; their answers are texts, and checked in `numbered`.
        """
        if rows is None:
            raise TaskError(f"{self.place}: there is no split {split!r}")
        place = f"{self.place}: split {split!r}"
        if missing := {*self.columns, *((self.label, *self.besides) if labelled else ())} - {*rows.column_names}:
            columns = ", ".join(rows.column_names)
            raise TaskError(f"{place} has no {', '.join(sorted(missing))}; its columns are: {columns}")
        if not len(rows):
            raise TaskError(f"{place} has no rows")
        for column in self.columns:
            wanted = "text, and not empty" if self.is_own else "text"
            check_each(rows, place, column, wanted, lambda x: isinstance(x, str) and (x.strip() or not self.is_own))
        if labelled and not (self.is_own and self.answer_column == "label"):
            self.check_answers(rows, place)

    def check_answers(self, rows: Dataset, place: str) -> None:
        raise NotImplementedError

    def numbered(self, splits: Mapping[str, Dataset]) -> DatasetDict:
        """Rows of one's own, all of whose cells are text, with numbers as labels; `idx` numbers the rows of a split.

        Raises:
            TaskError: a label that is none of the task's.
        """
        numbers, kind = self.numbers_of([cell for rows in splits.values() for cell in rows[self.label][:]])
        made = {}
        for split, rows in splits.items():
            wanted = f"one of: {', '.join(self.labels)}" if self.labels else "a number"
            check_each(rows, f"{self.place}: split {split!r}", self.label, wanted, numbers.__contains__)
            columns = {name: rows[name][:] for name in self.columns}
            columns |= {"label": [numbers[cell] for cell in rows[self.label][:]], "idx": [*range(len(rows))]}
            made[split] = Dataset.from_dict(columns).cast_column("label", kind)
        return DatasetDict(made)

    def numbers_of(self, cells: list[str]) -> tuple[dict[str, Any], Any]:
        """The number that each text stands for in a column of labels, and the type of the column."""
        raise NotImplementedError

    def encode(self, rows: Dataset, tokenizer: Any, max_length: int) -> Dataset:
        """What the model reads; see `data.encode`."""

        def one_batch(rows: dict, numbers: list[int]) -> dict:
            texts = [rows[c] for c in self.columns]
            whole = tokenizer(*texts, verbose=False)["input_ids"]
            texts = [squad.readable(column, tokenizer, max_length) for column in texts]
            encoded = dict(tokenizer(*texts, truncation=True, max_length=max_length))
            lengths = {"length": list(map(len, encoded["input_ids"])), "whole_length": list(map(len, whole))}
            return {**encoded, "labels": rows["label"], **lengths, "idx": rows.get("idx", numbers)}

        # datasets does not notice when this code changes, so nothing is taken from its cache.
        options = {"batched": True, "with_indices": True, "load_from_cache_file": False}
        return rows.map(one_batch, remove_columns=rows.column_names, **options)

    # Its scores

    def predictions(self, split: str, rows: Dataset, encoded: Dataset, logits: Any) -> pd.DataFrame:
        """A model's answers on a split, as `record.write_predictions` keeps them.

        Args:
            rows, encoded: of `load_data` and `encode`. logits: as Trainer predicts them, in the order of encoded.
        """
        labels, table = np.asarray(encoded["labels"], self.number_type), np.asarray(logits)
        columns = {"split": split, "id": np.asarray(encoded["idx"], np.int32), "label": labels}
        columns |= {"answer": table.argmax(-1).astype(self.number_type)} if self.labels else {}
        return pd.DataFrame(columns | {f"logit_{n}": column.astype(np.float32) for n, column in enumerate(table.T)})

    def answers(self, rows: Dataset, table: pd.DataFrame) -> list[Any]:
        """The answers of a table of `predictions`: class numbers, values or texts."""
        return table[self.answered].tolist()

    def mean_scores(self, table: pd.DataFrame) -> dict[str, float]:
        """The task's metrics of a table of `predictions`, by split (`metrics.by_split`)."""

        def of(rows: pd.DataFrame) -> dict[str, float]:
            return metrics.scores(self.metrics, rows["label"].to_numpy(), rows[self.answered].to_numpy())

        return metrics.by_split(table, of)

    def scores_of(self, rows: Dataset, table: pd.DataFrame) -> dict[str, float]:
        """All scores of a table of `predictions`; rows: of the first evaluated split."""
        return self.mean_scores(table)

    def score_split(self, rows: Dataset, encoded: Dataset, logits: Any) -> dict[str, float]:
        """The scores of one split, during training; arguments as those of `predictions`."""
        return self.mean_scores(self.predictions("", rows, encoded, logits))

    def score(
        self, data: Mapping[str, Dataset], encoded: Mapping[str, Dataset], logits: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, float]], pd.DataFrame]:
        """The scores of a model, beside those of a constant answer and of guessing.

        Args:
            data, encoded: of `load_data` and `encode`, with "train". logits: by evaluated split.
        Returns:
            {"score": {metric: value}, "majority": ..., "chance": ...}; and `predictions` of all splits.
        """
        tables = [self.predictions(split, data[split], encoded[split], part) for split, part in logits.items()]
        table, rows = pd.concat(tables, ignore_index=True), data[next(iter(logits))]
        return {"score": self.scores_of(rows, table), **self.baselines(encoded["train"], rows, table)}, table

    def baselines(self, train: Dataset, rows: Dataset, table: pd.DataFrame) -> dict[str, dict[str, float]]:
        """The scores of always the same answer, "majority", and of random guessing, "chance".

        train: encoded. rows: of the first evaluated split.
        """
        raise NotImplementedError

    # Its models' answers

    def learnt(self, train: Dataset) -> Self:
        """The task that a model has learnt from these rows of "train"."""
        return self

    def check_classes(self, names: list[str], model: str) -> dict[str, Any]:
        """Options that name a model's classes where it does not itself; TaskError if it has others than the task."""
        if names == [f"LABEL_{number}" for number in range(self.num_labels)]:
            return self.model_options
        if {name.lower() for name in names} != {name.lower() for name in self.labels}:
            wanted = ", ".join(self.labels) or "none: it predicts a number"
            raise TaskError(f"model={model!r} has the labels {', '.join(names)}; task {self.name!r} has {wanted}")
        return {}

    def answer(
        self, model: PreTrainedModel, tokenizer: Any, rows: list[dict[str, str]], batch_size: int
    ) -> Iterator[dict[str, Any]]:
        """What a model says about every row, in their order, as `predict` shows it.

        Args:
            rows: the task's columns. batch_size: texts or windows that go through the model at a time.
        Raises:
            ValueError: the model's scores of an example are not finite; the message says which.
        """
        from transformers import TextClassificationPipeline

        made_of: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "batch_size": batch_size}
        function = "softmax" if self.labels else "none"
        classify: Any = TextClassificationPipeline(**made_of, top_k=None, function_to_apply=function)
        longest, by_number = longest_input(model, tokenizer), dict(model.config.id2label or {})
        names = [name for _, name in sorted(by_number.items())]
        texts = (squad.readable([*row.values()], tokenizer, longest) for row in rows)
        inputs = (dict(zip(("text", "text_pair"), pair, strict=False)) for pair in texts)
        for number, classes in enumerate(classify(inputs, truncation=True, max_length=longest), 1):  # likeliest first
            if not all(math.isfinite(entry["score"]) for entry in classes):
                raise OneLineError(f"example {number}: the model's scores are not finite")
            scores = {entry["label"]: entry["score"] for entry in classes}
            of_classes = {**classes[0], "scores": {name: scores[name] for name in names}}
            yield of_classes if self.labels else {"value": classes[0]["score"]}


class Classification(Task):
    """One or two texts are one of several classes."""

    all_metrics = ("accuracy", "f1", "matthews")

    @property
    def model_options(self) -> dict[str, Any]:
        named = {"id2label": dict(enumerate(self.labels)), "label2id": {n: i for i, n in enumerate(self.labels)}}
        return {"problem_type": "single_label_classification", **named}  # whatever the model learnt before

    def check_answers(self, rows: Dataset, place: str) -> None:
        wanted = f"0 to {self.num_labels - 1} ({', '.join(self.labels)})"
        check_each(rows, place, self.label, wanted, lambda x: type(x) is int and 0 <= x < self.num_labels)

    def numbers_of(self, cells: list[str]) -> tuple[dict[str, Any], Any]:
        """In all splits labels are names, or in all they are the numbers of named classes."""
        numbers = {name: number for number, name in enumerate(self.labels)}
        labels = {cell: plain(cell) for cell in cells if cell is not None}
        by_number = {str(number): number for number in range(self.num_labels)}
        if {*labels.values()} <= by_number.keys() and any(not {*pair} & numbers.keys() for pair in labels.items()):
            numbers = by_number
        known = {cell: numbers.get(cell, numbers.get(label)) for cell, label in labels.items()}
        return {cell: number for cell, number in known.items() if number is not None}, ClassLabel(names=[*self.labels])

    def baselines(self, train: Dataset, rows: Dataset, table: pd.DataFrame) -> dict[str, dict[str, float]]:
        seen = np.asarray(train["labels"])

        def constant(part: pd.DataFrame) -> dict[str, float]:
            return metrics.majority(self.metrics, seen, part["label"].to_numpy())

        def guessed(part: pd.DataFrame) -> dict[str, float]:
            return metrics.chance(self.metrics, part["label"].to_numpy(), self.num_labels)

        return {"majority": metrics.by_split(table, constant), "chance": metrics.by_split(table, guessed)}


class Regression(Task):
    """A number is predicted of one or two texts."""

    number_type, answered, all_metrics = np.float32, "logit_0", ("pearson", "spearman")

    @property
    def model_options(self) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def check_answers(self, rows: Dataset, place: str) -> None:
        check_each(
            rows, place, self.label, "a finite number", lambda x: not isinstance(x, str) and as_number(x) is not None
        )

    def numbers_of(self, cells: list[str]) -> tuple[dict[str, Any], Any]:
        numbers = {cell: as_number(cell) for cell in cells}
        return {cell: number for cell, number in numbers.items() if number is not None}, Value("float32")

    def baselines(self, train: Dataset, rows: Dataset, table: pd.DataFrame) -> dict[str, dict[str, float]]:
        """A constant has no correlation with anything."""
        zeros = metrics.by_split(table, lambda part: dict.fromkeys(self.metrics, 0.0))
        return {"majority": zeros, "chance": dict(zeros)}


class QuestionAnswering(Task):
    """The answer to a question is a piece of a paragraph, or there is none; see `squad`."""

    notebook, head, architecture = "squad.ipynb", "question-answering", "ForQuestionAnswering"
    pipeline, embedded, answer_column = "question-answering", "mini-squad", ANSWERS
    recipe = Task.recipe | {"max_length": 384, "batch_size": 12, "learning_rate": 3e-5, "epochs": 2.0}
    perfect, digits, scored, has_free_words, besides = 100, 1, 1, False, ("id",)
    all_metrics = ("exact", "f1")

    @property
    def kept_together(self) -> tuple[str, ...]:
        return super().kept_together[1:]  # the paragraph

    @property
    def answer_is(self) -> str:
        return "a span"

    def check_answers(self, rows: Dataset, place: str) -> None:
        ids = Counter(map(str, rows["id"][:]))
        check_each(rows, place, "id", "text, and of no other row", lambda key: isinstance(key, str) and ids[key] == 1)
        wanted = "{'text': [...], 'answer_start': [...]}, texts and as many whole numbers"
        check_each(rows, place, self.label, wanted, squad.are_answers)

    def numbered(self, splits: Mapping[str, Dataset]) -> DatasetDict:
        return DatasetDict(dict(splits)).select_columns(["id", *self.columns, self.label])

    def encode(self, rows: Dataset, tokenizer: Any, max_length: int) -> Dataset:
        return squad.windows(rows, tokenizer, max_length)

    def predictions(self, split: str, rows: Dataset, encoded: Dataset, logits: Any) -> pd.DataFrame:
        return squad.predictions(rows, encoded, logits)

    def answers(self, rows: Dataset, table: pd.DataFrame) -> list[Any]:
        return [*squad.texts_of(rows, table).values()]

    def mean_scores(self, table: pd.DataFrame) -> dict[str, float]:
        return {name: 100 * table[name].mean() for name in self.metrics}

    def scores_of(self, rows: Dataset, table: pd.DataFrame) -> dict[str, float]:
        return squad.scores_of(rows, table)

    def score_split(self, rows: Dataset, encoded: Dataset, logits: Any) -> dict[str, float]:
        return squad.score(rows, squad.texts_of(rows, squad.predictions(rows, encoded, logits)))

    def baselines(self, train: Dataset, rows: Dataset, table: pd.DataFrame) -> dict[str, dict[str, float]]:
        return {"majority": squad.majority_score(rows), "chance": squad.chance_score(rows)}

    def learnt(self, train: Dataset) -> Self:
        return replace(self, no_answer=self.no_answer or squad.has_unanswerable(train))

    def check_classes(self, names: list[str], model: str) -> dict[str, Any]:
        return {}

    def answer(
        self, model: PreTrainedModel, tokenizer: Any, rows: list[dict[str, str]], batch_size: int
    ) -> Iterator[dict[str, Any]]:
        from albert_lsh.pipeline import QuestionAnsweringPipeline

        made_of: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "batch_size": batch_size}
        yield from QuestionAnsweringPipeline(**made_of, no_answer=self.no_answer)(row for row in rows)
