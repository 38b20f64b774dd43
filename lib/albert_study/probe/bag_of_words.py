"""What counting words and pieces of words reaches: a linear model without attention, beside majority and chance.

A text is its character n-grams (two to four, inside words) and its words, weighted by term frequency and inverse
document frequency. A pair is where its two texts agree, where they differ, and their cosine. scikit-learn's logistic or
ridge regression; how strongly it is regularised is chosen by cross-validation on the training examples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from datasets import Dataset
from pydantic import Field
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion

from albert_lsh import metrics
from albert_lsh.files import write_atomically
from albert_lsh.record import provenance
from albert_lsh.run import Count
from albert_lsh.tasks import Task, find_task, load_data
from albert_lsh.training.parameters import errors_named, from_given, placed

CHOICES = (0.1, 1.0, 10.0)  # of the regularisation


@dataclass(frozen=True)
class BagOfWords:
    """The parameters of bag_of_words.ipynb."""

    tasks: Annotated[list[str], Field(min_length=1)]
    folds: Annotated[int, Field(ge=2, le=100)] | None = None  # cross-validation, as in a run's parameters
    train_examples: Count | None = None
    eval_examples: Count | None = None
    output: str = "results/runs/notebook/bag-of-words.csv"
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "BagOfWords":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        with errors_named("bag_of_words.ipynb"):
            asked = from_given(cls, given, "bag_of_words.ipynb")
            for name in asked.tasks:
                if find_task(name).is_squad:
                    raise ValueError(f"tasks: {name!r} asks for a span; a bag of words has none")
            return placed(asked, ["output"])


def features(task: Task, rows: Dataset, counted: FeatureUnion) -> csr_matrix:
    """(examples, features) of the texts, or pairs of texts, of a task."""
    texts = [counted.transform(rows[column][:]) for column in task.columns]
    if len(texts) == 1:
        return texts[0]
    one, other = texts
    both = one.multiply(other)
    length = np.sqrt(np.asarray(one.multiply(one).sum(1)) * np.asarray(other.multiply(other).sum(1)))
    cosine = np.divide(np.asarray(both.sum(1)), length, out=np.zeros_like(length), where=length > 0)
    return hstack([both, abs(one - other), csr_matrix(cosine)]).tocsr()


def scores_of(task: Task, train: Dataset, examples: Dataset) -> dict[str, float]:
    """The task's metrics on `examples`, after training on `train`."""
    counted = FeatureUnion(
        [
            ("pieces", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=2, sublinear_tf=True)),
            ("words", TfidfVectorizer(min_df=2, sublinear_tf=True)),
        ]
    )
    counted.fit([text for column in task.columns for text in train[column][:]])
    inputs, labels = features(task, train, counted), np.asarray(train["label"])
    classes = GridSearchCV(LogisticRegression(max_iter=1000), {"C": CHOICES}, cv=3)
    model = RidgeCV(CHOICES) if task.is_regression else classes
    model.fit(inputs, labels)
    answers = model.predict(features(task, examples, counted))
    return metrics.scores(task.metrics, np.asarray(examples["label"]), answers)


def write_scores(asked: BagOfWords) -> pd.DataFrame:
    """A row a task: the metrics, mean over folds where there are several, and the sizes; written to asked.output."""
    rows = []
    for name in asked.tasks:
        task, found = find_task(name), []
        for fold in [(part, asked.folds) for part in range(asked.folds)] if asked.folds else [None]:
            data = load_data(name, train_examples=asked.train_examples, eval_examples=asked.eval_examples, fold=fold)
            split = next(split for split in data if split != "train")
            found.append(scores_of(task, data["train"], data[split]) | {"train": len(data["train"])})
        means = pd.DataFrame(found).mean().to_dict()
        rows.append({"task": name, "folds": asked.folds or 1, "headline": means[task.headline], **means})
        print(f"{name}: {task.headline} {means[task.headline]:.3f}", flush=True)
    table = pd.DataFrame(rows).assign(**provenance("cpu"))
    write_atomically(Path(asked.output), table.to_csv(index=False, float_format="%.6g"))
    return table
