"""The tasks: those of GLUE, SQuAD 1.1 and 2.0, Korean tasks, small embedded ones of the same schemas, and one's own.

A row of `TASKS` says where a task's data is, which columns the model reads, and how it is scored. For a file, a folder
or another data set of the Hub `find_task` makes such a row of its columns.

`data` loads and encodes a task's data; `metrics` and `squad` score what a model answers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from albert_lsh import mini, sources
from albert_lsh.sources import TaskError

SAVED_TASK = "albert_lsh_task"  # where a saved model's config says what it was fine-tuned on; see `train.keep_model`


@dataclass(frozen=True)
class Task:
    """One row of the table of tasks, or one's own."""

    name: str
    dataset: str  # repository on the Hub, or a file or folder; "mini" for the embedded ones
    config: str | None
    columns: tuple[str, ...]  # what the model reads: one or two texts
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()  # names of the classes, 0 first; none where a number or a span is predicted
    no_answer: bool = False  # questions may have no answer (SQuAD 2.0)
    evaluation: tuple[str, ...] = ("validation",)  # splits; those after the first are scored where present
    training_articles: int | None = None  # of the evaluation split, where the data have no training split
    label: str = "label"  # the column of the answers; that of classes or numbers is "label" from `load_data` on
    revision: str | None = None  # of the repository on the Hub, None: the newest; of a file or folder, its digest

    @property
    def place(self) -> str:
        """What errors about its data begin with."""
        return f"task={self.name!r}"

    @property
    def headline(self) -> str:
        """The metric that stands for the task in tables."""
        return "f1" if "f1" in self.metrics else self.metrics[0]

    @property
    def is_squad(self) -> bool:
        return "exact" in self.metrics

    @property
    def is_own(self) -> bool:
        """Whether it is not in the table."""
        return self.name not in TASKS

    @property
    def kept_together(self) -> tuple[str, ...]:
        """Columns whose texts are never both trained and evaluated on; those of the table have such splits, or none."""
        return () if not self.is_own else self.columns[1:] if self.is_squad else self.columns

    @property
    def repository(self) -> str | None:
        """The data set on the Hub; None for the embedded tasks, and for files of one's own."""
        is_file = (self.revision or "").startswith(sources.LOCAL)
        return None if is_file or self.dataset == "mini" else "/".join(self.dataset.split("/")[:2])

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
_SQUAD: dict[str, Any] = {"columns": sources.SPAN, "label": sources.SPAN_ANSWERS, "metrics": ("exact", "f1")}

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


def find_task(
    name: str,
    text_columns: list[str] | None = None,
    label_column: str | None = None,
    labels: list[str] | None = None,
    revision: str | None = None,
) -> Task:
    """The task of that name, or of one's own data.

    Args:
        name: in the table; or of a file, a folder, or a data set on the Hub, owner/name or owner/name/configuration.
        text_columns, label_column, labels: of one's own data; what is None is inferred from them, see
            `sources.describe`. labels are the names of the classes, [] if a number is predicted.
        revision: of the data set on the Hub.
    Raises:
        TaskError: no such task, file, folder or data set; a column that is not there, or that has to be named.
    """
    name = str(name)
    place, source = f"task={name!r:.300}", os.path.expanduser(name)
    if name in TASKS:
        for option, value in (("text_columns", text_columns), ("label_column", label_column), ("labels", labels)):
            if value is not None:
                raise TaskError(f"{option}={value!r} is for data of your own; task {name!r} has its columns")
        if revision and TASKS[name].dataset == "mini":
            raise TaskError(f"data_revision={revision!r}: the data of task {name!r} come with this package")
        return replace(TASKS[name], revision=revision)
    by_name = os.path.splitext(source)[1].lower() in sources.FORMATS or sources.ON_HUB.fullmatch(source)
    if sources.is_local(source) and os.path.basename(os.path.normpath(source)) in TASKS:  # as a record names it
        raise TaskError(f"{place} is called like a task of the table; give it another name")
    if revision is None and sources.is_local(source):
        revision = sources.fingerprint(source, place)
    elif not by_name and not (revision or "").startswith(sources.LOCAL):  # in a record it is seen from its root
        raise TaskError(f"{place} is not one of: {', '.join(TASKS)}; nor a file, a folder, or owner/name on the Hub")
    if text_columns is None or label_column is None or labels is None:
        data = sources.read(source, place, revision)
        columns, label, classes = sources.describe(data, place, text_columns, label_column, labels)
    else:
        columns, label, classes = tuple(text_columns), label_column, tuple(labels)
    if label == "idx" or "idx" in columns:
        raise TaskError(f"{place}: give the column 'idx' another name")
    if len(classes) == 1:
        raise TaskError(f"{place}: labels={[*classes]!r} must name two classes or more")
    scores = ("accuracy", "matthews") if classes else ("pearson", "spearman")
    of_columns: dict[str, Any] = {"columns": columns, "label": label, "metrics": scores, "labels": classes}
    is_squad = (columns, label) == (sources.SPAN, sources.SPAN_ANSWERS)
    more: dict[str, Any] = {"evaluation": ("validation", "test"), "revision": revision}
    return Task(name, source, None, **(_SQUAD if is_squad else of_columns), **more)


def task_of(parameters: Mapping[str, Any]) -> Task:
    """The task of a run's parameters, which may be those of a record: a file that has left is no error."""
    names = ("text_columns", "label_column", "labels", "data_revision")
    return find_task(parameters["task"], *(parameters.get(name) for name in names))
