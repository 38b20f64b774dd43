"""The tasks: GLUE without WNLI, SQuAD 1.1 and 2.0, Korean tasks, and small embedded ones of the same schemas.

A row of `TASKS` says where a task's data is, which columns the model reads, and how it is scored.
"""

import reprlib
from dataclasses import dataclass, replace
from typing import Any

from albert_lsh.errors import OneLineError
from albert_lsh.tasks.mini import MINI_NAMES


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
    name: replace(TASKS[name.removeprefix("mini-")], name=name, dataset="mini", config=name) for name in MINI_NAMES
}


def find_task(name: str) -> Task:
    """The task of that name; TaskError names those there are."""
    if not isinstance(name, str) or name not in TASKS:
        raise TaskError(f"task={reprlib.repr(name)} is not one of: {', '.join(TASKS)}")
    return TASKS[name]
