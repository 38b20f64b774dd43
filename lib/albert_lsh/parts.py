"""The parts of a data set: cut by article, text or fold; subsets, the same for every run; shuffled words."""

import random
import reprlib
from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict

from albert_lsh.sources import TaskError

SUBSET_SEED = 0  # of subsets; not a run's seed, so that all runs see the same examples


def cut_by_article(rows: Dataset, training: int, place: str) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many articles, drawn with a fixed seed, and all others."""
    if "title" not in rows.column_names:
        raise TaskError(f"{place}: split 'validation' has no title, by which it is cut into training and evaluation")
    if (articles := len({*rows["title"]})) <= training:
        raise TaskError(f"{place}: articles: {articles}, of which {training} are to be trained on, others evaluated")
    return cut_by(rows, rows["title"][:], training)


def cut_by(rows: Dataset, keys: Sequence[Any], training: int) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many different keys, drawn with a fixed seed, and all others.

    keys: a row's key each; what is alike in it goes to the same part.
    """
    chosen = set(random.Random(SUBSET_SEED).sample(sorted({*keys}), training))
    numbers: dict[str, list[int]] = {"train": [], "validation": []}
    for number, key in enumerate(keys):
        numbers["train" if key in chosen else "validation"].append(number)
    return DatasetDict({split: rows.select(of_split) for split, of_split in numbers.items()})


def cut_by_fold(rows: Dataset, fold: tuple[int, int], place: str) -> DatasetDict:
    """Part i of n as "fold", all others as "train", drawn with a fixed seed; `idx` numbers all rows."""
    pair = fold if isinstance(fold, tuple | list) and [type(n) for n in fold] == [int, int] else (0, 0)
    if not 0 <= pair[0] < pair[1] or pair[1] < 2:
        raise TaskError(f"{place}: fold={reprlib.repr(fold)} must be (i, n), part i of n, from 0, and n 2 or more")
    numbered = rows.remove_columns("idx") if "idx" in rows.column_names else rows
    numbered = numbered.add_column("idx", list(range(len(rows)))).shuffle(seed=SUBSET_SEED, keep_in_memory=True)
    others = [number for number in range(len(rows)) if number % pair[1] != pair[0]]
    return DatasetDict({"train": numbered.select(others), "fold": numbered.select(range(pair[0], len(rows), pair[1]))})


def subset(rows: Dataset, n: int | None) -> Dataset:
    """`n` examples drawn with a fixed seed, or all of them."""
    if n is None or n >= len(rows):
        return rows
    return rows.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(n))


def held_out(rows: Dataset, seen: int | None, n: int | None) -> Dataset:
    """Examples that a run on `subset(rows, seen)` has not seen: the next `n` in the same order; None: all the rest.

    Raises:
        TaskError: the run saw all examples.
    """
    if seen is None or seen >= len(rows):
        raise TaskError(f"train_examples={seen!r} of {len(rows)}: the run saw all training examples")
    last = len(rows) if n is None else min(seen + n, len(rows))
    return rows.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(seen, last))


def with_shuffled_words(rows: Dataset, columns: Sequence[str], seed: int) -> Dataset:
    """The same rows, the words of every text in random order; of a pair, each text's for itself.

    A word is what stands between white space. Its new place depends on the seed and the text alone.
    """

    def shuffled(text: str) -> str:
        words = text.split()
        return " ".join(random.Random(f"{seed} {text}").sample(words, len(words)))

    return rows.map(lambda row: {name: shuffled(row[name]) for name in columns}, load_from_cache_file=False)
