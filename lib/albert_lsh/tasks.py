"""The table of tasks: GLUE, SQuAD 1.1 and 2.0, Korean tasks, and small embedded ones of the same schemas.

A row says where a task's data is, which columns the model reads, and how it is scored; its class is its kind (`kinds`).
For data of one's own `sources.find_task` makes such a row.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import DatasetDict, load_dataset

from albert_lsh import mini
from albert_lsh.files import commit_of, reading
from albert_lsh.kinds import ANSWERS, SPAN, Classification, QuestionAnswering, Regression, Task, TaskError


def _glue(name: str, columns: str, labels: str, metrics: str = "accuracy", **more: Any) -> Task:
    texts = tuple(columns.split())
    return Classification(name, "nyu-mll/glue", name, texts, tuple(metrics.split()), tuple(labels.split()), **more)


_BOTH = ("validation_matched", "validation_mismatched")
_PAIR, _QUESTIONS, _NLI = ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis")
_ACCURACY, _CORRELATIONS = ("accuracy",), ("pearson", "spearman")
_SQUAD: dict[str, Any] = {"columns": SPAN, "label": ANSWERS, "metrics": ("exact", "f1")}

_ALL = [
    _glue("mrpc", "sentence1 sentence2", "not_equivalent equivalent", "accuracy f1"),
    _glue("mnli", "premise hypothesis", "entailment neutral contradiction", evaluation=_BOTH),
    _glue("sst2", "sentence", "negative positive"),
    _glue("qnli", "question sentence", "entailment not_entailment"),
    _glue("qqp", "question1 question2", "not_duplicate duplicate", "accuracy f1"),
    _glue("rte", "sentence1 sentence2", "entailment not_entailment"),
    _glue("cola", "sentence", "unacceptable acceptable", "matthews"),
    Regression("stsb", "nyu-mll/glue", "stsb", _PAIR, _CORRELATIONS),
    QuestionAnswering("squad", "rajpurkar/squad", None, **_SQUAD),
    QuestionAnswering("squad-v2", "rajpurkar/squad_v2", None, **_SQUAD, no_answer=True),
    # Long contexts: of some 2,000 and 4,000 tokens.
    QuestionAnswering("squad-articles", "rajpurkar/squad", None, **_SQUAD, article_words=1400),
    QuestionAnswering("squad-long-articles", "rajpurkar/squad", None, **_SQUAD, article_words=2800),
    Regression("kor-sts", "kakaobrain/kor_nlu", "sts", _PAIR, _CORRELATIONS, label="score"),
    # Its label is_duplicate is 0 where the two questions mean the same.
    Classification(
        "kor-qpair", "songys/kor_qpair", None, _QUESTIONS, _ACCURACY, ("same", "different"), label="is_duplicate"
    ),
    Classification("nsmc", "e9t/nsmc", None, ("document",), _ACCURACY, ("negative", "positive"), evaluation=("test",)),
    # Its development set alone is public here; articles of it are for training.
    QuestionAnswering("korquad", "KorQuAD/squad_kor_v1", None, **_SQUAD, training_articles=113),
    Classification("klue-nli", "klue/klue", "nli", _NLI, _ACCURACY, ("entailment", "neutral", "contradiction")),
]
TASKS = {task.name: task for task in _ALL}
# The embedded tasks are their namesakes with other data.
TASKS |= {
    name: replace(TASKS[name.removeprefix("mini-")], name=name, dataset="mini", config=name) for name in mini.MINI
}


def download(
    source: str, config: str | None, place: str, instead: str = "", revision: str | None = None
) -> DatasetDict:
    """A data set from the Hub.

    Raises:
        TaskError: it cannot be loaded; the message begins with `place` and ends with `instead`.
    """
    why = "no network, no such repository, or a damaged file?"
    with reading(TaskError, f"{place}: the data could not be loaded from {source!r} ({why})", instead):
        data = load_dataset(source, config, revision=revision)
        files = [Path(file["filename"]) for rows in data.values() for file in rows.cache_files]
        # For a revision that it cannot reach datasets takes another one, from its cache.
        if revision and not all(commit_of(source, "dataset", revision) in path.parts for path in files):
            raise FileNotFoundError(f"revision {revision!r} is neither on the Hub nor in the cache")
    return data
