"""Which details are lost? Where an arm's answers part from softmax's, beside where two softmax models part, and where
they are worse.

The original held that similar meaning survives hashing and detail is lost. Here the examples are grouped by what asks
for detail. Two texts: numbers that only one has, negation in one alone, many words in common, length. SQuAD: how long
the answer is, where it begins, how far it is from the question's words, numbers in it. In each group the share of
answers that differ between an arm and softmax stands beside that between two softmax models with other seeds. What is
above that is the arm's. An answer that differs need not be worse; how much worse answers are is counted for itself. No
model runs; the texts are read from the Hub.

    python -m albert_study.evidence.details study=albert task=kor-qpair 'arms=["new", "lsh"]'
"""

import re
import sys
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from datasets import Dataset
from pydantic import Field

from albert_lsh.tasks.data import load_data
from albert_lsh.tasks.table import Task, find_task
from albert_lsh.training.files import placed, write_atomically
from albert_lsh.training.parameters import errors_named, from_given
from albert_lsh.training.record import provenance
from albert_study.compare import answers_of, runs_of
from albert_study.records import load

NEGATION = re.compile(r"\b(not|no|never|none|nor|without|cannot)\b|n't\b|(?<!\w)(안|못)\s|않|없|아니", re.IGNORECASE)


@dataclass(frozen=True)
class Details:
    """What is asked: of which study and task, which arms beside softmax."""

    study: str
    task: str
    arms: Annotated[list[str], Field(min_length=1)]
    output: str | None = None
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Details":
        """From names and values; ParameterError says what is wrong with them."""
        with errors_named("details"):
            asked = from_given(cls, given, "details")
            if len(find_task(asked.task).columns) != 2:
                raise ValueError(f"task={asked.task!r} must be one of pairs of texts")
            usual = f"results/runs/details/{asked.study}-{asked.task}.csv"
            return placed(cls(**{**vars(asked), "output": asked.output or usual}), ["output"])


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", text))


def common_pieces(one: str, other: str) -> float:
    """How much two texts have in common: the share of their pairs of letters that both have (Jaccard)."""
    pieces = [
        {text[i : i + 2] for i in range(len(text) - 1)} for text in (one.replace(" ", ""), other.replace(" ", ""))
    ]
    either = pieces[0] | pieces[1]
    return len(pieces[0] & pieces[1]) / len(either) if either else 0.0


def distance(question: str, paragraph: str, begins: int) -> float:
    """Letters between an answer's first and the nearest place of a question's word, a mean over its words of four
    letters and more that the paragraph has; the whole paragraph, if it has none."""
    text, found = paragraph.lower(), []
    for word in set(re.findall(r"\w{4,}", question.lower())):
        if places := [match.start() for match in re.finditer(rf"\b{word}\b", text)]:
            found.append(min(abs(place - begins) for place in places))
    return float(np.mean(found)) if found else float(len(text))


def of_pairs(task: Task, rows: Dataset) -> tuple[dict[str, list[bool]], dict[str, list[float]]]:
    """What asks for detail in two texts, by feature: what holds or not, and what is measured."""
    pairs = list(zip(*(rows[column][:] for column in task.columns), strict=True))
    return {
        "numbers differ": [numbers_in(one) != numbers_in(other) for one, other in pairs],
        "one is negated": [bool(NEGATION.search(one)) != bool(NEGATION.search(other)) for one, other in pairs],
    }, {
        "in common": [common_pieces(*pair) for pair in pairs],
        "letters": [len("".join(pair)) for pair in pairs],
    }


def of_answers(rows: Dataset) -> tuple[dict[str, list[bool]], dict[str, list[float]]]:
    """The same for SQuAD, of the first of a question's gold answers; a question without one has an empty one."""
    texts = [(gold["text"] or [""])[0] for gold in rows["answers"]]
    begin = [(gold["answer_start"] or [0])[0] for gold in rows["answers"]]
    asked = list(zip(rows["question"], rows["context"], begin, strict=True))
    return {
        "a number in the answer": [bool(numbers_in(text)) for text in texts],
        "question is negated": [bool(NEGATION.search(question)) for question, _, _ in asked],
    }, {
        "letters of the answer": [len(text) for text in texts],
        "answer begins at letter": begin,
        "from the question's words": [distance(*one) for one in asked],
    }


def groups_of(task: Task, rows: Dataset) -> dict[tuple[str, str], np.ndarray]:
    """By feature and group, which examples are in it: (examples,) bool. What is measured is cut into thirds."""
    tests, measures = of_answers(rows) if task.is_squad else of_pairs(task, rows)
    found: dict[tuple[str, str], np.ndarray] = {("all", ""): np.ones(len(rows), bool)}
    for name, test in tests.items():
        is_so = np.array(test)
        found |= {(name, "yes"): is_so, (name, "no"): ~is_so}
    for name, values in measures.items():
        third = pd.qcut(pd.Series(values).rank(method="first"), 3, labels=False).to_numpy()
        found |= {(name, group): third == number for number, group in enumerate(("least", "middle", "most"))}
    return found


def parted(task: Task, one: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    """By example, whether two models answer differently (SQuAD: with another span); of numbers, by how much."""
    if task.is_regression:
        return (one["logit_0"] - other["logit_0"]).abs().to_numpy(float)
    if task.is_squad:
        parts = ["answered", "start", "end"]
        return (one[parts] != other[parts]).any(axis=1).to_numpy(float)
    return (one["answer"] != other["answer"]).to_numpy(float)


def worth(task: Task, table: pd.DataFrame) -> np.ndarray:
    """By example, what an answer is worth: 1 where it is right, F1 from 0 to 1 (SQuAD), or minus the distance from the
    gold number."""
    if task.is_regression:
        return -(table["logit_0"] - table["label"]).abs().to_numpy(float)
    if task.is_squad:
        return table["f1"].to_numpy(float)
    return (table["answer"] == table["label"]).to_numpy(float)


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
    for arm, own in arms.items():
        for seed, table in own.items():
            if len(table) != len(rows) or not table["id"].equals(softmax[min(softmax)]["id"]):
                raise ValueError(
                    f"{arm}, seed {seed}: its {len(table)} answers are not those to the {len(rows)} examples"
                )
    groups = groups_of(task, rows)
    values = {arm: {seed: worth(task, table) for seed, table in own.items()} for arm, own in arms.items()}
    null = np.mean([parted(task, softmax[a], softmax[b]) for a, b in combinations(sorted(softmax), 2)], axis=0)
    found = []
    for arm, own in arms.items():
        if arm == "softmax":
            continue
        if not (both := sorted(set(softmax) & set(own))):
            raise ValueError(f"{arm} has seeds {sorted(own)}, softmax {sorted(softmax)}: none in common")
        gained = np.mean([values[arm][seed] - values["softmax"][seed] for seed in both], axis=0)
        pairs = [(a, b) for a, b in product(sorted(softmax), sorted(own)) if a != b]
        each = np.mean([parted(task, softmax[a], own[b]) for a, b in pairs], axis=0)
        for (feature, group), inside in groups.items():
            row = {"task": task.name, "arm": arm, "feature": feature, "group": group, "examples": int(inside.sum())}
            row |= {"parted": each[inside].mean(), "null": null[inside].mean()}
            row["above"], row["low"], row["high"] = mean_with_interval((each - null)[inside])
            row["worth"] = np.mean([of_seed[inside].mean() for of_seed in values["softmax"].values()])
            row["gained"], row["gained_low"], row["gained_high"] = mean_with_interval(gained[inside])
            found.append(row)
    return pd.DataFrame(found)


def write_details(asked: Details) -> pd.DataFrame:
    """The table of `details` for a study's arms, written to asked.output."""
    task = find_task(asked.task)
    root = Path(asked.results_root or "")
    runs = runs_of(load(root, asked.study))
    runs = runs[(runs["task"] == asked.task) & runs["is_headline"]]
    if missing := [arm for arm in ("softmax", *asked.arms) if arm not in set(runs["arm"])]:
        raise ValueError(f"study {asked.study!r} has no run of {asked.task!r} with arm {missing[0]!r}")
    arms = {arm: answers_of(runs[runs["arm"] == arm], root) for arm in ("softmax", *asked.arms)}
    data = load_data(asked.task)
    rows = data[next(split for split in data if split != "train")]
    table = details(task, rows, arms).assign(study=asked.study, **provenance("cpu"))
    write_atomically(Path(asked.output or ""), table.to_csv(index=False, float_format="%.6g"))
    return table


if __name__ == "__main__":
    try:
        shown = write_details(Details.check(dict(argument.split("=", 1) for argument in sys.argv[1:])))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(shown.to_string())
