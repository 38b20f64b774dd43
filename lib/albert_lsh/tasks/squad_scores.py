"""SQuAD's official scores: exact match and F1 as evaluate-v1.1.py and evaluate-v2.0.py define them.

One thing differs from both scripts (Rajpurkar et al. 2016, 2018): every question must have an answer. The first script
counts a missing one as wrong, the second drops it from the average.
"""

import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

from datasets import Dataset


def check_ids(name: str, expected: Iterable[str], given: Iterable[str]) -> None:
    """Raise ValueError unless every example is given once, and nothing else."""
    counts, given = Counter(list(expected)), set(given)
    for what, ids in (
        ("twice in the examples", [key for key, count in counts.items() if count > 1]),
        (f"missing from the {name}", [key for key in counts if key not in given]),
        (f"in the {name} but not in the examples", sorted(given - counts.keys())),
    ):
        if ids:
            raise ValueError(f"{len(ids)} of {len(counts)} example ids are {what}, for instance {ids[0]!r}")


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and repeated white space (both official scripts)."""
    text = "".join(char for char in text.lower() if char not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _question_score(golds: list[str], answer: str, is_v2: bool) -> tuple[float, float]:
    """Exact match and F1 over bags of words (0 or 1, and 0 to 1) against the references that suit each best."""
    if is_v2:
        golds = [text for text in golds if normalize(text)] or [""]
    words, references = normalize(answer).split(), [normalize(text).split() for text in golds]
    f1 = [2 * (Counter(gold) & Counter(words)).total() / (len(gold) + len(words) or 1) for gold in references]
    exact = float(words in references)
    # Two texts without a word are equal in both versions, but have an F1 of 0 in version 1.1.
    return exact, max(f1) if words or not is_v2 else exact


def references(examples: Dataset) -> dict[str, list[str]]:
    """The reference answers of each question, by id; none where there is no answer."""
    return {key: refs["text"] for key, refs in zip(examples["id"], examples["answers"], strict=True)}


def question_scores(examples: Dataset, answers: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Exact match (0 or 1) and F1 (0 to 1) of the answer to each question, by id; arguments as those of `score`."""
    golds = references(examples)
    is_v2 = not all(golds.values())
    return {key: _question_score(texts, answers[key], is_v2) for key, texts in golds.items()}


def score(
    examples: Dataset, answers: Mapping[str, str], no_answer_scores: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Exact match and F1 in percent over all examples, as the official script of their version gives them.

    Args:
        examples: scored as version 2.0 if any question has no reference answer, as version 1.1 otherwise.
        answers: by id, the text of every answer, "" for no answer. exact and f1 score them as given, whatever their
            no_answer_scores (evaluate-v2.0.py with its --na-prob-file would first empty those above 1.0).
        no_answer_scores: by id, higher for no answer; used in version 2.0 only.
    Returns:
        exact and f1. In version 2.0 also has_answer_exact, has_answer_f1 (if there are such questions) and
        no_answer_exact, no_answer_f1; with no_answer_scores also best_exact, best_f1, what the best threshold on them
        reaches (a score above it turns the answer into none), and best_exact_threshold, best_f1_threshold. A threshold
        can only take answers away, so give those of best_answers(..., no_answer=False) to see all it can do.
    Raises:
        ValueError: no examples; ids missing, unknown or repeated.
    """
    check_ids("answers", examples["id"], answers)
    golds, scores = references(examples), question_scores(examples, answers)
    if not golds:
        raise ValueError("there are no examples to score")
    is_v2 = not all(golds.values())
    answered = [key for key in golds if golds[key]]
    unanswered = [key for key in golds if not golds[key]]
    groups = {"": [*golds], "has_answer_": answered, "no_answer_": unanswered} if is_v2 else {"": answered}
    result: dict[str, float] = {}
    for column, name in enumerate(("exact", "f1")):
        chosen = {key: pair[column] for key, pair in scores.items()}
        for group, keys in groups.items():
            result |= {group + name: 100.0 * sum(chosen[key] for key in keys) / len(keys)} if keys else {}
        if is_v2 and no_answer_scores is not None:
            check_ids("no_answer_scores", golds, no_answer_scores)
            best = _best_threshold(golds, answers, chosen, no_answer_scores)
            result[f"best_{name}"], result[f"best_{name}_threshold"] = best
    return result


def _best_threshold(golds: Mapping, answers: Mapping, scores: Mapping, null: Mapping) -> tuple[float, float]:
    """The best score in percent and its threshold: from no answer to anything, let answers in one by one."""
    current = best = float(sum(not texts for texts in golds.values()))
    threshold = 0.0
    for key in sorted(null, key=lambda key: null[key]):
        if golds[key]:
            current += scores[key]
        elif answers[key]:
            current -= 1
        if current > best:
            best, threshold = current, null[key]
    return 100.0 * best / len(golds), threshold


def majority_score(examples: Dataset) -> dict[str, float]:
    """The `score` of always giving no answer; in version 1.1 only a reference such as "." lifts it above 0."""
    return score(examples, dict.fromkeys(examples["id"], ""))


def chance_score(examples: Dataset, seed: int = 0) -> dict[str, float]:
    """The `score` of answering every question with a random piece of its paragraph, as long as some other answer."""
    rng = random.Random(seed)
    lengths = [len(answers["text"][0].split()) for answers in examples["answers"] if answers["text"]]
    guesses = {}
    for key, context in zip(examples["id"], examples["context"], strict=True):
        words, n = context.split(), rng.choice(lengths or [1])
        first = rng.randrange(max(1, len(words) - n + 1))
        guesses[key] = " ".join(words[first : first + n])
    return score(examples, guesses)
