"""The parts of a data set: cut by article, text or fold; subsets, the same for every run; shuffled words."""

import random
import reprlib
from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict

from albert_lsh.sources import TaskError

SUBSET_SEED = 0  # of subsets; not a run's seed, so that all runs see the same examples
HELD_OUT = 5, 2000  # where one's own data have one split: a fifth of it is evaluated, and at most so many texts


def cut_by_article(rows: Dataset, training: int, place: str) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many articles, drawn with a fixed seed, and all others."""
    if "title" not in rows.column_names:
        raise TaskError(f"{place}: split 'validation' has no title, by which it is cut into training and evaluation")
    return cut_by(rows, rows["title"][:], training, f"{place}: articles")


def cut_by_text(rows: Dataset, columns: Sequence[str], place: str) -> DatasetDict:
    """A split cut in two: of its different texts a fifth, but at most 2,000, is "validation"."""
    texts = keys_of(rows, columns)
    count = max(1, min(len({*texts}) // HELD_OUT[0], HELD_OUT[1]))
    return cut_by(rows, texts, len({*texts}) - count, f"{place}: texts")


def cut_by(rows: Dataset, keys: Sequence[Any], training: int, what: str) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many different keys, drawn with a fixed seed, and all others.

    keys: a row's key each; what is alike in it goes to the same part. TaskError, with `what` they are: there are too
    few.
    """
    different = sorted({*keys})
    if not 0 < training < len(different):
        few = f"too few to train on {max(1, training)} and evaluate on others"
        raise TaskError(f"{what}: there {'is' if len(different) == 1 else 'are'} {len(different)}, {few}")
    chosen = {*random.Random(SUBSET_SEED).sample(different, training)}
    return divided(rows, ["train" if key in chosen else "validation" for key in keys], "validation")


def divided(rows: Dataset, splits: Sequence[str], evaluated: str) -> DatasetDict:
    """splits: "train" or `evaluated`, for each row."""
    return DatasetDict(
        {name: rows.select([n for n, split in enumerate(splits) if split == name]) for name in ("train", evaluated)}
    )


def keys_of(rows: Dataset, columns: Sequence[str]) -> list[Any]:
    """What stays together: rows with the same texts in these columns; without any, every row is for itself."""
    return list(zip(*(rows[name] for name in columns), strict=True)) if columns else [*range(len(rows))]


def cut_by_fold(rows: Dataset, fold: tuple[int, int], place: str, columns: Sequence[str] = ()) -> DatasetDict:
    """Part i of n as "fold", all others as "train", drawn with a fixed seed; `idx` numbers all rows."""
    pair = fold if isinstance(fold, tuple | list) and [type(n) for n in fold] == [int, int] else (0, 0)
    if not 0 <= pair[0] < pair[1] or pair[1] < 2:
        raise TaskError(f"{place}: fold={reprlib.repr(fold)} must be (i, n), part i of n, from 0, and n 2 or more")
    numbered = rows.remove_columns("idx") if "idx" in rows.column_names else rows
    numbered = numbered.add_column("idx", list(range(len(rows)))).shuffle(seed=SUBSET_SEED, keep_in_memory=True)
    keys = keys_of(numbered, columns)
    part = {key: number % pair[1] for number, key in enumerate(dict.fromkeys(keys))}
    return divided(numbered, ["fold" if part[key] == pair[0] else "train" for key in keys], "fold")


def subset(rows: Dataset, n: int | None) -> Dataset:
    """`n` examples drawn with a fixed seed, or all of them."""
    if n is None or n >= len(rows):
        return rows
    return rows.shuffle(seed=SUBSET_SEED, keep_in_memory=True).select(range(n))


def held_out(rows: Dataset, seen: int | None, n: int | None, columns: Sequence[str] = ()) -> Dataset:
    """Examples that a run on `subset(rows, seen)` has not seen: the next `n` in the same order; None: all the rest.

    columns: no row has the texts there of a row that was seen.

    Raises:
        TaskError: the run saw all examples.
    """
    shuffled = rows.shuffle(seed=SUBSET_SEED, keep_in_memory=True)
    keys = keys_of(shuffled, columns)
    trained = {*keys[:seen]}
    others = [number for number, key in enumerate(keys) if key not in trained]
    if not others:
        raise TaskError(f"train_examples={seen!r} of {len(rows)}: the run saw all training examples")
    return shuffled.select(others[:n])


def with_shuffled_words(rows: Dataset, columns: Sequence[str], seed: int) -> Dataset:
    """The same rows, the words of every text in random order; of a pair, each text's for itself.

    A word is what stands between white space. Its new place depends on the seed and the text alone.
    """

    def shuffled(text: str) -> str:
        words = text.split()
        return " ".join(random.Random(f"{seed} {text}").sample(words, len(words)))

    return rows.map(lambda row: {name: shuffled(row[name]) for name in columns}, load_from_cache_file=False)
