"""The data of a task, loaded, checked, cut into the parts of a run, and encoded.

data = load_data("mrpc", train_examples=1000)             "train", and what is evaluated
encoded = encode(data, task, tokenizer, max_length)       what the model reads: texts, or windows of paragraphs
"""

import hashlib
import os
import random
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, concatenate_datasets

from albert_lsh import mini
from albert_lsh.kinds import Task, TaskError
from albert_lsh.sources import find_task, own_data
from albert_lsh.tasks import TASKS, download

SUBSET_SEED = 0  # of subsets; not a run's seed, so that all runs see the same examples
OF_AN_ARTICLE = 20  # questions
HELD_OUT = 5, 2000  # where one's own data have one split: a fifth of it is evaluated, and at most so many texts


def load_data(
    name: str | Task,
    *,
    train_examples: int | None = None,
    eval_examples: int | None = None,
    held_out_examples: int | None = None,
    fold: tuple[int, int] | None = None,
    shuffle_words: int | None = None,
) -> DatasetDict:
    """The data of a task: "train" and its evaluation splits, in the schema of its Hub repository.

    But for the classes or numbers to be predicted: their column is always called "label".

    Args:
        name: of the task, or the task.
        train_examples, eval_examples: draw a subset of that many, the same for every run; None takes all.
        held_out_examples: of "train", in the place of the evaluation splits; those drawn for training are none of
            them. To choose by, where the evaluation splits are what is reported.
        fold: (i, n) cuts all examples, of "train" and the first evaluation split, in n parts; part i is evaluated, as
            "fold", the others are "train". `idx` numbers the examples of all parts.
        shuffle_words: a seed; the first evaluated split again, as "shuffled", with the words of every text in random
            order (see `with_shuffled_words`). None: not.
    Raises:
        TaskError: unknown task; data that cannot be loaded; a missing split or column; a row that is no example of the
            task; no training example left to hold out.
    """
    task = name if isinstance(name, Task) else find_task(name)
    sizes = {"train_examples": train_examples, "eval_examples": eval_examples, "held_out_examples": held_out_examples}
    check_parts(task, fold=fold, shuffle_words=shuffle_words, **sizes)
    data = own_data(task) if task.is_own else data_of_table(task)
    if fold is not None:
        joined = [*data][:2]
        rows = concatenate_datasets([data[split] for split in joined])
        if "id" in task.besides:  # each split was checked for itself
            task.check_answers(rows, f"{task.place}: splits {' and '.join(map(repr, joined))}")
        data = cut_by_fold(rows, fold, task.place, task.kept_together)
    elif len(data) == 1:
        (rows,) = data.values()
        data = cut_by_text(rows, task.kept_together, task.place)
        if held_out_examples is None:
            part = f"{len(data['validation'])} of {len(rows)} examples, drawn with a fixed seed, are held out"
            print(f"{os.path.basename(task.name)}: {part} and evaluated")
    train, *evaluated = data
    parts = {split: subset(data[split], eval_examples) for split in evaluated}
    if held_out_examples is not None:
        parts = {"held-out": held_out(data[train], train_examples, held_out_examples, task.kept_together)}
    if shuffle_words is not None:
        parts["shuffled"] = with_shuffled_words(next(iter(parts.values())), task.columns, shuffle_words)
    return DatasetDict({train: subset(data[train], train_examples), **parts})


def check_parts(task: Task, *, fold: tuple[int, int] | None, shuffle_words: int | None, **sizes: int | None) -> None:
    """Raise TaskError for parts of a task's data that cannot be; the arguments are those of `load_data`."""
    for name, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise TaskError(f"{task.place}: {name}={reprlib.repr(size)} must be a whole number, 1 or more")
    if fold is not None and sizes["held_out_examples"] is not None:
        others = f"held_out_examples={sizes['held_out_examples']}"
        raise TaskError(f"{task.place}: fold={fold!r} and {others}: take one of them")
    if shuffle_words is not None and not task.has_free_words:
        raise TaskError(f"{task.place}: shuffle_words={shuffle_words!r}, but its answers are places in the text")


def data_of_table(task: Task) -> DatasetDict:
    """Every example of "train" and of the evaluation splits of a task of the table, checked; "train" comes first."""
    if task.dataset == "mini":
        data = mini.build(task.name)
    else:
        embedded = f"mini-{task.name}" if f"mini-{task.name}" in TASKS else task.embedded
        instead = f'; without a network set task="{embedded}", model="mini"'
        data = download(task.dataset, task.config, task.place, instead, task.revision)
    if task.training_articles:
        (whole,) = task.evaluation
        task.check(data.get(whole), whole)
        data = cut_by_article(data[whole], task.training_articles, task.place)
    if task.article_words:
        data = DatasetDict({split: with_articles(rows, task.article_words, task.place) for split, rows in data.items()})
    first, *others = task.evaluation
    data = DatasetDict({split: data.get(split) for split in ("train", first, *(s for s in others if s in data))})
    for split, rows in data.items():
        task.check(rows, split)
    return data if task.label == task.answer_column else data.rename_column(task.label, task.answer_column)


def encode(data: Mapping[str, Dataset], task: Task, tokenizer: Any, max_length: int) -> DatasetDict:
    """Token ids of a task's data, unpadded: texts cut at `max_length`, or `squad.windows` of paragraphs.

    Args:
        tokenizer: of `load_tokenizer`, which makes sure that the two texts of a pair are told apart.
    Returns:
        By split the tokenizer's columns, labels, length in tokens, whole_length before it was cut, and idx: GLUE's, or
        the row's number in its split.
    """
    return DatasetDict({split: task.encode(rows, tokenizer, max_length) for split, rows in data.items()})


def titles(rows: Dataset, place: str) -> list[str]:
    """The article of each row; TaskError if the data do not say it."""
    if "title" not in rows.column_names:
        raise TaskError(f"{place}: there is no column title, which says which rows are of one article")
    return rows["title"][:]


def with_articles(rows: Dataset, words: int, place: str) -> Dataset:
    """Questions whose contexts are paragraphs of their article in their order, the question's own among them.

    At most so many words, or that paragraph alone. Its place among them is drawn, and so are `OF_AN_ARTICLE` questions
    of each article; both are the same for every run.

    rows: with title, context, answers {text, answer_start}, as SQuAD has them.
    """
    paragraphs: dict[str, dict[str, int]] = {}  # of each article, in their order, with their words
    questions: dict[str, list[int]] = {}
    for number, (title, context) in enumerate(zip(titles(rows, place), rows["context"][:], strict=True)):
        paragraphs.setdefault(title, {})[context] = len(context.split())
        questions.setdefault(title, []).append(number)
    draw = random.Random(SUBSET_SEED)
    chosen = [n for of_one in questions.values() for n in sorted(draw.sample(of_one, min(len(of_one), OF_AN_ARTICLE)))]

    def widened(row: dict[str, Any]) -> dict[str, Any]:
        texts, sizes = zip(*paragraphs[row["title"]].items(), strict=True)
        gold = texts.index(row["context"])
        first, last, taken, room = gold, gold + 1, 0, words - sizes[gold]
        earlier = random.Random(row["id"]).random() * room
        for limit in (earlier, room):  # earlier paragraphs, later ones, and earlier ones again where the article ends
            while first and taken + sizes[first - 1] <= limit:
                first -= 1
                taken += sizes[first]
            while last < len(texts) and taken + sizes[last] <= room:
                taken += sizes[last]
                last += 1
        before = len("".join(text + "\n" for text in texts[first:gold]))
        starts = [start + before for start in row["answers"]["answer_start"]]
        return {"context": "\n".join(texts[first:last]), "answers": row["answers"] | {"answer_start": starts}}

    return rows.select(chosen).map(widened, load_from_cache_file=False)


# Parts -----------------------------------------------------------------------------------------------------------


def cut_by_article(rows: Dataset, training: int, place: str) -> DatasetDict:
    """A split cut in two, "train" and "validation": so many articles, drawn with a fixed seed, and all others."""
    return cut_by(rows, titles(rows, place), training, f"{place}: articles")


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


def token_digest(data: Dataset) -> str:
    """The SHA-256 of all token ids of encoded data."""
    digest = hashlib.sha256()
    for batch in data.select_columns(["input_ids"]).with_format("arrow").iter(10_000):
        digest.update(pc.list_flatten(batch["input_ids"]).to_numpy().tobytes())
    return digest.hexdigest()
