"""What needs no model, or no training of one: what counting words scores, what one constant answer does, and which
details models part on.

    python -m albert_study.experiments.words study=albert task=kor-qpair 'arms=["new", "lsh"]'       details

The first is a linear model without attention. Where a published score is that of a constant answer, the model behind it
has learnt nothing. Details: the original held that similar meaning survives hashing and detail is lost, so examples are
grouped by what asks for detail. In each group the share of answers that differ between an arm and softmax stands beside
that between two softmax models with other seeds; what is above that is the arm's. An answer that differs need not be
worse; how much worse answers are is counted for itself. The texts are read from the Hub, the answers from the runs.
"""

import re
import sys
from itertools import combinations, product, starmap
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict
from pydantic import Field, field_validator, model_validator
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion

from albert_lsh import metrics
from albert_lsh.data import load_data
from albert_lsh.files import write_atomically
from albert_lsh.record import provenance
from albert_lsh.run import Count, NameOrPath, Names
from albert_lsh.sources import TaskError
from albert_lsh.squad import score
from albert_lsh.tasks import TASKS, Task, find_task
from albert_study.candidates import TableSettings
from albert_study.records import load, published
from albert_study.scores import answers_of, runs_of

REGULARISATION = (0.1, 1.0, 10.0)  # to choose from
ORIGINAL = {"source": "the original study (2020)", "arm": "reformer"}
NEGATION = re.compile(r"\b(not|no|never|none|nor|without|cannot)\b|n't\b|(?<!\w)(안|못)\s|않|없|아니", re.IGNORECASE)


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
        if spans := [task.name for task in self.about if task.is_squad]:
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
    model = RidgeCV(REGULARISATION) if task.is_regression else classes
    model.fit(features(task, train, counted), np.asarray(train["label"]))
    return metrics.scores(task.metrics, np.asarray(examples["label"]), model.predict(features(task, examples, counted)))


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
            if find_task(name).is_regression:
                raise ValueError(f"tasks: {name!r} predicts a number; a constant has no correlation with anything")
        return tasks


def constant_answers(task: Task, split: str, examples: Dataset) -> pd.DataFrame:
    """The scores of each constant answer on a split: task, split, answer, right (how many), examples, and the metrics.

    In question answering the only constant is no answer. Scores of SQuAD are in percent, all others from 0 to 1.
    """
    about = {"task": task.name, "split": split, "examples": len(examples)}
    if task.is_squad:
        scores = score(examples, dict.fromkeys(examples["id"], ""))
        right = sum(not answers["text"] for answers in examples["answers"])
        return pd.DataFrame([about | {"answer": "no answer", "right": right, **{k: scores[k] for k in task.metrics}}])
    labels, rows = np.asarray(examples["label"]), []
    for number, name in enumerate(task.labels):
        scores = metrics.scores(task.metrics, labels, np.full_like(labels, number))
        rows.append(about | {"answer": name, "right": int((labels == number).sum()), **scores})
    return pd.DataFrame(rows)


def beside_the_original(constants: pd.DataFrame) -> pd.DataFrame:
    """Every constant answer's score beside the original's LSH score, a row for each metric that it published.

    `same` says whether the two agree to the digits that were published; `between` how many examples lie between them.
    """
    scores = published()
    scores = scores[(scores[[*ORIGINAL]] == pd.Series(ORIGINAL)).all(axis=1)][["task", "metric", "value"]]
    if {"accuracy", "f1"} <= set(constants):
        constants = constants.assign(accuracy_f1_mean=(constants["accuracy"] + constants["f1"]) / 2)
    names = [name for name in ("accuracy", "f1", "accuracy_f1_mean", "exact") if name in constants]
    long = constants.melt(["task", "split", "answer", "right", "examples"], names, "metric", "constant").dropna()
    both = long.merge(scores.rename(columns={"value": "original"}), on=["task", "metric"])
    whole = np.where(both["original"] > 1, 100, 1)
    unit = np.where(both["original"] > 1, 0.01, 0.001)  # of the last digit that was published
    both["same"] = (both["constant"] - both["original"]).abs() <= unit / 2 + 1e-9
    both["between"] = ((both["original"] - both["constant"]) / whole * both["examples"]).round().astype(int)
    order = list(dict.fromkeys(constants["task"]))
    return both.sort_values(["task", "metric", "constant"], key=lambda c: c.map(order.index) if c.name == "task" else c)


def write_constants(settings: ConstantAnswers) -> pd.DataFrame:
    """The table of `beside_the_original` for the evaluation splits of all tasks."""
    splits = [(find_task(name), *split) for name in settings.tasks for split in data_of(name)[1].items()]
    return settings.write(beside_the_original(pd.concat(starmap(constant_answers, splits), ignore_index=True)))


class Details(Words):
    """What the command is asked: of which study and task, which arms beside softmax."""

    notebook: ClassVar[str] = "details"
    usual: ClassVar[str] = "results/runs/details/{study}-{task}.csv"
    study: str
    task: str
    arms: Annotated[list[str], Field(min_length=1)]

    @field_validator("task")
    @classmethod
    def of_pairs(cls, task: str) -> str:
        if len(find_task(task).columns) != 2:
            raise ValueError(f"task={task!r} must be one of pairs of texts")
        return task


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", text))


def common_pieces(one: str, other: str) -> float:
    """How much two texts have in common: the share of their pairs of letters that both have (Jaccard)."""
    texts = [text.replace(" ", "") for text in (one, other)]
    pieces = [{text[i : i + 2] for i in range(len(text) - 1)} for text in texts]
    either = pieces[0] | pieces[1]
    return len(pieces[0] & pieces[1]) / len(either) if either else 0.0


def distance(question: str, paragraph: str, begins: int) -> float:
    """Letters between an answer's first and the nearest place of a question's word, a mean over its words of four
    letters and more that the paragraph has; the whole paragraph, if it has none."""
    text, nearest = paragraph.lower(), []
    for word in set(re.findall(r"\w{4,}", question.lower())):
        if places := [match.start() for match in re.finditer(rf"\b{word}\b", text)]:
            nearest.append(min(abs(place - begins) for place in places))
    return float(np.mean(nearest)) if nearest else float(len(text))


def groups_of(task: Task, rows: Dataset) -> dict[tuple[str, str], np.ndarray]:
    """By feature and group, which examples are in it: (examples,) bool. What is measured is cut into thirds.

    Of SQuAD the first of a question's gold answers counts; a question without one has an empty one.
    """
    first, second = (rows[column][:] for column in task.columns)
    if task.is_squad:
        texts = [(gold["text"] or [""])[0] for gold in rows["answers"]]
        begins = [(gold["answer_start"] or [0])[0] for gold in rows["answers"]]
        tests = {
            "a number in the answer": [bool(numbers_in(text)) for text in texts],
            "question is negated": [bool(NEGATION.search(question)) for question in first],
        }
        measures: dict[str, list[float]] = {
            "letters of the answer": [len(text) for text in texts],
            "answer begins at letter": begins,
            "from the question's words": [distance(*each) for each in zip(first, second, begins, strict=True)],
        }
    else:
        pairs = list(zip(first, second, strict=True))
        tests = {
            "numbers differ": [numbers_in(one) != numbers_in(other) for one, other in pairs],
            "one is negated": [bool(NEGATION.search(one)) != bool(NEGATION.search(other)) for one, other in pairs],
        }
        measures = {"in common": [common_pieces(*pair) for pair in pairs], "letters": [len("".join(p)) for p in pairs]}
    groups: dict[tuple[str, str], np.ndarray] = {("all", ""): np.ones(len(rows), bool)}
    for name, test in tests.items():
        groups |= {(name, "yes"): np.array(test), (name, "no"): ~np.array(test)}
    for name, values in measures.items():
        third = pd.qcut(pd.Series(values).rank(method="first"), 3, labels=False).to_numpy()
        groups |= {(name, group): third == number for number, group in enumerate(("least", "middle", "most"))}
    return groups


def parted(task: Task, one: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    """By example, whether two models answer differently (SQuAD: with another span); of numbers, by how much."""
    if task.is_regression:
        return (one["logit_0"] - other["logit_0"]).abs().to_numpy(float)
    columns = ["answered", "start", "end"] if task.is_squad else ["answer"]
    return (one[columns] != other[columns]).any(axis=1).to_numpy(float)


def worth(task: Task, table: pd.DataFrame) -> np.ndarray:
    """By example, what an answer is worth: 1 where it is right, F1 from 0 to 1 (SQuAD), or minus the distance from the
    gold number."""
    if task.is_regression:
        return -(table["logit_0"] - table["label"]).abs().to_numpy(float)
    return table["f1"].to_numpy(float) if task.is_squad else (table["answer"] == table["label"]).to_numpy(float)


def mean_with_interval(values: np.ndarray) -> tuple[float, float, float]:
    """A mean over examples, and its 95 % interval."""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return values.mean(), values.mean() - half, values.mean() + half


def details(task: Task, rows: Dataset, arms: dict[str, dict[int, pd.DataFrame]]) -> pd.DataFrame:
    """A row an arm and group.

    Args:
        rows: the examples, in the order of the predictions.
        arms: predictions by arm and seed; of softmax two seeds or more.
    Returns:
        arm, feature, group, examples; parted, the share of answers (or mean distance) between arm and softmax with
        another seed; null, the same between two softmax models; above, their difference, with a 95 % interval low to
        high; worth, of softmax's answers; gained, what the arm's are worth more with the same seeds (less, if it is
        negative), from gained_low to gained_high.
    Raises:
        ValueError: fewer than two seeds of softmax, an arm without a seed that softmax has, or predictions of other
            examples than `rows`.
    """
    softmax = arms["softmax"]
    if len(softmax) < 2:
        raise ValueError(f"softmax has seeds {sorted(softmax)}: two are needed to say how much two models part")
    for arm, tables in arms.items():
        for seed, table in tables.items():
            if len(table) != len(rows) or not table["id"].equals(softmax[min(softmax)]["id"]):
                said = f"its {len(table)} answers are not those to the {len(rows)} examples"
                raise ValueError(f"{arm}, seed {seed}: {said}")
    groups, lines = groups_of(task, rows), []
    values = {arm: {seed: worth(task, table) for seed, table in tables.items()} for arm, tables in arms.items()}
    null = np.mean([parted(task, softmax[a], softmax[b]) for a, b in combinations(sorted(softmax), 2)], axis=0)
    for arm, tables in arms.items():
        if arm == "softmax":
            continue
        if not (both := sorted(set(softmax) & set(tables))):
            raise ValueError(f"{arm} has seeds {sorted(tables)}, softmax {sorted(softmax)}: none in common")
        gained = np.mean([values[arm][seed] - values["softmax"][seed] for seed in both], axis=0)
        pairs = [(a, b) for a, b in product(sorted(softmax), sorted(tables)) if a != b]
        each = np.mean([parted(task, softmax[a], tables[b]) for a, b in pairs], axis=0)
        for (feature, group), inside in groups.items():
            row = {"task": task.name, "arm": arm, "feature": feature, "group": group, "examples": int(inside.sum())}
            row |= {"parted": each[inside].mean(), "null": null[inside].mean()}
            row["above"], row["low"], row["high"] = mean_with_interval((each - null)[inside])
            row["worth"] = np.mean([of_seed[inside].mean() for of_seed in values["softmax"].values()])
            row["gained"], row["gained_low"], row["gained_high"] = mean_with_interval(gained[inside])
            lines.append(row)
    return pd.DataFrame(lines)


def write_details(settings: Details) -> pd.DataFrame:
    """The table of `details` for a study's arms."""
    root = Path(str(settings.results_root))
    runs = runs_of(load(root, settings.study), root)
    runs = runs[(runs["task"] == settings.task) & runs["is_headline"]]
    arms = ("softmax", *settings.arms)
    if missing := [arm for arm in arms if arm not in set(runs["arm"])]:
        raise ValueError(f"study {settings.study!r} has no run of {settings.task!r} with arm {missing[0]!r}")
    predictions = {arm: answers_of(runs[runs["arm"] == arm], root) for arm in arms}
    rows = next(iter(data_of(settings.task)[1].values()))
    return settings.write(details(find_task(settings.task), rows, predictions).assign(study=settings.study))


if __name__ == "__main__":
    try:
        shown = write_details(Details.parse(dict(argument.split("=", 1) for argument in sys.argv[1:])))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(shown.to_string())
