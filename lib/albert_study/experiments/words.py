"""What needs no model: what counting words scores, and what a constant answer scores and loses.

The first is a linear model without attention. Where a published score is that of a constant answer, and the loss too,
the model behind it has learnt nothing that depends on the text.
"""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from pydantic import Field, field_validator, model_validator
from scipy.sparse import csr_matrix, hstack
from scipy.special import xlogy
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion

from albert_lsh import metrics
from albert_lsh.data import load_data
from albert_lsh.files import write_atomically
from albert_lsh.kinds import QuestionAnswering, Regression, Task, TaskError
from albert_lsh.record import provenance
from albert_lsh.run import Count, NameOrPath, Names
from albert_lsh.sources import find_task
from albert_lsh.squad import score
from albert_lsh.tasks import TASKS
from albert_study.probe.variants import TableSettings
from albert_study.records import COLUMNS, published

REGULARISATION = (0.1, 1.0, 10.0)  # to choose from
ORIGINAL = "the original study"  # how sources of its numbers begin
LOSSES = {"eval_loss": "entropy", "train_loss": "train_entropy"}  # a model's, and a constant's lowest


class Words(TableSettings):
    """What these notebooks have in common."""

    def write(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table, with where it was made; written to `output`."""
        table = table.assign(**provenance("cpu"))
        write_atomically(Path(str(self.output)), table.to_csv(index=False, float_format="%.6g"))
        return table


def data_of(name: str | Task, **sizes: Any) -> tuple[Dataset, DatasetDict]:
    """Of `load_data`: "train", and the evaluated splits. Without a network the error says which `tasks` would do."""
    try:
        data = load_data(name, **sizes)
    except TaskError as error:
        raise TaskError(re.sub(r'set task=("[\w-]+"), model="mini"', r"set tasks=[\1]", str(error))) from error
    return data.pop("train"), data


class BagOfWords(Words):
    """The parameters of bag_of_words.ipynb."""

    notebook: ClassVar[str] = "bag_of_words.ipynb"
    usual: ClassVar[str] = "results/runs/notebook/bag-of-words.csv"
    tasks: Annotated[list[NameOrPath], Field(min_length=1)]
    text_columns: Names | None = None  # of one's own data, as in a run's parameters
    label_column: str | None = None
    labels: Names | None = None
    folds: Annotated[int, Field(ge=2, le=100)] | None = None  # cross-validation, as in a run's parameters
    train_examples: Count | None = None
    eval_examples: Count | None = None

    @model_validator(mode="after")
    def without_spans(self) -> Self:
        if spans := [task.name for task in self.about if isinstance(task, QuestionAnswering)]:
            raise ValueError(f"tasks: {spans[0]!r} asks for a span; a bag of words has none")
        return self

    @property
    def about(self) -> list[Task]:
        """The tasks."""
        columns = (self.text_columns, self.label_column, self.labels)
        return [find_task(name) if name in TASKS else find_task(name, *columns) for name in self.tasks]


def features(task: Task, rows: Dataset, counted: FeatureUnion) -> csr_matrix:
    """(examples, features): of a text its counts; of a pair where they agree, where they differ, and their cosine."""
    one, *others = [counted.transform(rows[column][:]) for column in task.columns]
    if not others:
        return one
    both = one.multiply(others[0])
    length = np.sqrt(np.asarray(one.multiply(one).sum(1)) * np.asarray(others[0].multiply(others[0]).sum(1)))
    cosine = np.divide(np.asarray(both.sum(1)), length, out=np.zeros_like(length), where=length > 0)
    return hstack([both, abs(one - others[0]), csr_matrix(cosine)]).tocsr()


def scores_of(task: Task, train: Dataset, examples: Dataset) -> dict[str, float]:
    """The task's metrics of logistic or ridge regression, its regularisation chosen by cross-validation.

    What is counted are character n-grams (two to four, inside words) and words, weighted by term frequency and inverse
    document frequency.
    """
    pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=2, sublinear_tf=True)
    counted = FeatureUnion([("pieces", pieces), ("words", TfidfVectorizer(min_df=2, sublinear_tf=True))])
    counted.fit([text for column in task.columns for text in train[column][:]])
    classes = GridSearchCV(LogisticRegression(max_iter=1000), {"C": REGULARISATION}, cv=3)
    model = RidgeCV(REGULARISATION) if isinstance(task, Regression) else classes
    model.fit(features(task, train, counted), np.asarray(train["label"]))
    return metrics.scores(task.metrics, np.asarray(examples["label"]), model.predict(features(task, examples, counted)))


def bag_of_words(name: str, task: Task, data: DatasetDict) -> pd.DataFrame:
    """The rows of what counting words scores on a task, as `records.load` has them of a study."""
    train, examples, *_ = data.values()
    values = scores_of(task, train, examples)
    values |= {"headline": values[task.headline], "train": len(train)}
    row = {"study": "bag-of-words", "kind": "bag of words", "task": name, "arm": "bag of words", "attention": ""}
    rows = [row | {"measure": measure, "value": value} for measure, value in values.items()]
    return pd.DataFrame(rows, columns=COLUMNS)


def write_scores(settings: BagOfWords) -> pd.DataFrame:
    """A row a task: the metrics, mean over folds where there are several, and the sizes."""
    rows = []
    for name, task in zip(settings.recorded()["tasks"], settings.about, strict=True):
        scores, folds = [], settings.folds
        sizes = {"train_examples": settings.train_examples, "eval_examples": settings.eval_examples}
        for fold in [(part, folds) for part in range(folds)] if folds else [None]:
            train, evaluated = data_of(task, **sizes, fold=fold)
            scores.append(scores_of(task, train, next(iter(evaluated.values()))) | {"train": len(train)})
        means = pd.DataFrame(scores).mean().to_dict()
        rows.append({"task": name, "folds": folds or 1, "headline": means[task.headline], **means})
        print(f"{name}: {task.headline} {means[task.headline]:.3f}", flush=True)
    return settings.write(pd.DataFrame(rows))


class ConstantAnswers(Words):
    """The parameters of constant_answers.ipynb."""

    notebook: ClassVar[str] = "constant_answers.ipynb"
    usual: ClassVar[str] = "results/runs/notebook/constant-answers.csv"
    tasks: Annotated[list[str], Field(min_length=1)]

    @field_validator("tasks")
    @classmethod
    def without_numbers(cls, tasks: list[str]) -> list[str]:
        for name in tasks:
            if isinstance(find_task(name), Regression):
                raise ValueError(f"tasks: {name!r} predicts a number; a constant has no correlation with anything")
        return tasks


def cross_entropy(shares: np.ndarray, answered: np.ndarray) -> float:
    """In nats, of classes that come in `shares` (classes,) and are always given the probabilities `answered`."""
    return float(-xlogy(shares, answered).sum())


def constant_answer(task: Task, split: str, train: Dataset, examples: Dataset) -> dict[str, Any]:
    """What the most frequent answer of a split scores there, and what constant probabilities lose.

    In question answering the only constant is no answer, and there are no losses. Scores of SQuAD are in percent, all
    others from 0 to 1.

    Returns:
        task, split, answer, right (how many), examples, train_examples, the task's metrics, and in nats:
        entropy: of always answering the shares of the split's own labels, less than any other constant
        train_shares: on the split, of always answering the shares of the training labels
        train_entropy: of the same answer on the training examples
    """
    about = {"task": task.name, "split": split, "examples": len(examples), "train_examples": len(train)}
    if isinstance(task, QuestionAnswering):
        scores = score(examples, dict.fromkeys(examples["id"], ""))
        right = sum(not answers["text"] for answers in examples["answers"])
        return about | {"answer": "no answer", "right": right, **{k: scores[k] for k in task.metrics}}
    labels = np.asarray(examples["label"])
    counts, train_counts = (np.bincount(rows["label"][:], minlength=len(task.labels)) for rows in (examples, train))
    shares, train_shares = counts / counts.sum(), train_counts / train_counts.sum()
    most = int(counts.argmax())
    about |= {"answer": task.labels[most], "right": int(counts[most])}
    about |= metrics.scores(task.metrics, labels, np.full_like(labels, most))
    about |= {"entropy": cross_entropy(shares, shares), "train_shares": cross_entropy(shares, train_shares)}
    return about | {"train_entropy": cross_entropy(train_shares, train_shares)}


def write_constants(settings: ConstantAnswers) -> pd.DataFrame:
    """The table of `constant_answer`, a row for each evaluation split of all tasks."""
    rows = []
    for name in settings.tasks:
        train, splits = data_of(name)
        rows += [constant_answer(find_task(name), split, train, examples) for split, examples in splits.items()]
    return settings.write(pd.DataFrame(rows))


def beside_the_original(constants: pd.DataFrame, root: Path | None = None) -> pd.DataFrame:
    """Each number that the original study gives for a model with LSH, beside a constant's: a row a number and split.

    source, model, task, arm, metric, original, note, and of the constant split, answer, examples, constant; `same` says
    whether the two agree to the digits that are published (losses: to four), `between` how many examples lie between
    them.
    """
    theirs = published(root).rename(columns={"value": "original"})
    theirs = theirs[theirs["source"].str.startswith(ORIGINAL) & (~theirs["arm"].str.startswith("softmax"))]
    if {"accuracy", "f1"} <= set(constants):
        constants = constants.assign(accuracy_f1_mean=(constants["accuracy"] + constants["f1"]) / 2)
    names = ["accuracy", "f1", "accuracy_f1_mean", "exact", *LOSSES.values()]
    about = ["task", "split", "answer", "examples"]
    each = constants.melt(about, [name for name in names if name in constants], "metric", "constant").dropna()
    each["metric"] = each["metric"].replace({name: loss for loss, name in LOSSES.items()})
    both = theirs.merge(each, on=["task", "metric"])
    whole = np.where(both["task"].str.startswith("squad"), 100, 1)
    decimals = both["original"].astype(str).str.split(".").str[1].str.len()
    decimals = decimals.mask(both["metric"].isin(list(LOSSES)), 4)
    both["same"] = (both["constant"] - both["original"]).abs() <= 10.0**-decimals / 2 + 1e-9
    both["between"] = ((both["original"] - both["constant"]) / whole * both["examples"]).round()
    both["between"] = both["between"].where(both["metric"].isin(["accuracy", "exact"]))
    return both
