"""What a row of SQuAD's schema must hold."""

import reprlib
from typing import Any

from datasets import Dataset


def fault_of(rows: Dataset) -> str | None:
    """What is wrong with the first row that is no example of SQuAD; None if all are examples."""
    seen: set[str] = set()
    for number, (key, answers) in enumerate(zip(rows["id"], rows["answers"], strict=True)):
        if not isinstance(key, str) or key in seen:
            return f"row {number}: id={key!r} must be text, and of no other row"
        seen.add(key)
        if not are_answers(answers):
            wanted = "{'text': [...], 'answer_start': [...]}, texts and as many whole numbers"
            return f"row {number}: answers={reprlib.repr(answers)} must be {wanted}"
    return None


def are_answers(answers: Any) -> bool:
    """Whether these are lists of texts and of the places where they begin, as long as one another."""
    if not isinstance(answers, dict):
        return False
    texts, starts = answers.get("text"), answers.get("answer_start")
    return (
        isinstance(texts, list)
        and isinstance(starts, list)
        and len(texts) == len(starts)
        and all(isinstance(text, str) for text in texts)
        and all(type(start) is int for start in starts)
    )
