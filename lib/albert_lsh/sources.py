"""Data by name: a data set of the Hub, a folder, or a file of one's own; and what the columns of one's own are.

    data = download("nyu-mll/glue", "sst2", place)          every split, as the Hub, a folder or a file has them
    data = read("reviews.csv", place)                       one's own: the articles of SQuAD's JSON as a row a question
    columns, label, labels = describe(data, place, ...)     what is read of it, and what is answered

`place` begins every error.
"""

import difflib
import glob
import hashlib
import math
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, DownloadMode, load_dataset, load_dataset_builder
from datasets.data_files import SPLIT_KEYWORDS
from datasets.exceptions import DataFilesNotFoundError, DatasetGenerationError
from huggingface_hub import hf_hub_download
from huggingface_hub.constants import REPOCARD_NAME
from yaml import YAMLError

from albert_lsh.files import OneLineError, commit_of, reading

FORMATS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")  # owner/name, or owner/name/configuration
ARTICLES = re.compile(rb'\s*\{[^\[{]*"data"\s*:\s*\[')  # how SQuAD's JSON begins
LOCAL = "sha256:"  # begins the revision of a file or folder
SPLITS = {word: str(split) for split, words in SPLIT_KEYWORDS.items() for word in words}  # "dev" is "validation"
SPAN = ("question", "context")  # the texts of a data set in SQuAD's schema; its answers are in SPAN_ANSWERS
SPAN_ANSWERS = "answers"
DAMAGE = (DatasetGenerationError, YAMLError, ValueError, TypeError, OSError)  # what damaged data and cards come to
NO_DAMAGE = (ConnectionError, FileNotFoundError, PermissionError)
MOST_NUMBERS = 20  # different whole numbers that are classes; more are numbers to be predicted
MOST_CLASSES = 200
KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}  # of labels


class TaskError(OneLineError):
    """A task that is not in the table, or whose data cannot be loaded."""


def download(
    source: str, config: str | None, place: str, instead: str = "", revision: str | None = None
) -> DatasetDict:
    """A data set from the Hub, or a folder laid out like it; a damaged file in the cache is fetched again, once.

    Raises:
        TaskError: it cannot be loaded; the message begins with `place` and ends with `instead`.
    """
    with explained(source, place, instead):
        data = load(source, config, revision=revision)
        files = [Path(file["filename"]) for rows in data.values() for file in rows.cache_files]
        # For a revision that it cannot reach datasets takes another one, from its cache.
        if revision and not all(commit_of(source, "dataset", revision) in path.parts for path in files):
            raise FileNotFoundError(f"revision {revision!r} is neither on the Hub nor in the cache")
    return data


def load(name: str, config: str | None = None, **options: Any) -> Any:
    """`load_dataset`, which makes anew what it finds damaged in its cache."""
    try:
        return load_dataset(name, config, **options)
    except DAMAGE as error:
        if isinstance(error, NO_DAMAGE) and not isinstance(error, DataFilesNotFoundError):
            raise
        if "/" in name and not os.path.isdir(name):  # its card says what there is; datasets would not fetch it again
            with suppress(OSError, ValueError):
                revision = options.get("revision")
                hf_hub_download(name, REPOCARD_NAME, repo_type="dataset", revision=revision, force_download=True)
        return load_dataset(name, config, download_mode=DownloadMode.FORCE_REDOWNLOAD, **options)


def explained(source: str, place: str, instead: str = "") -> AbstractContextManager[None]:
    """Within, errors of loading a source become a TaskError."""
    why = "no network, no such repository or folder, or a damaged file?"
    return reading(TaskError, f"{place}: the data could not be loaded from {source!r} ({why})", instead)


# One's own -------------------------------------------------------------------------------------------------------


def is_local(source: str) -> bool:
    return os.path.isfile(source) or os.path.isdir(source)


def check_place(source: str, place: str) -> None:
    """Raise TaskError for a file that is not there, or that cannot be read."""
    path, kinds = Path(source), ", ".join(FORMATS)
    if os.path.isfile(source) and path.suffix.lower() not in FORMATS:
        raise TaskError(f"{place}: a file must be one of: {kinds}")
    if path.suffix.lower() in FORMATS and not is_local(source):
        beside = [file.name for file in path.parent.glob("*") if file.suffix.lower() in FORMATS]
        near = ", ".join(difflib.get_close_matches(path.name, beside, 3, cutoff=0))
        others = f"there are: {near}" if near else f"nor any other of: {kinds}"
        raise TaskError(f"{place}: there is no such file in {path.parent.resolve()}; {others}")


def fingerprint(source: str, place: str, revision: str | None = None) -> str:
    """The revision of a file or folder: a digest of its bytes and, in a folder, of its splits and their files' names.

    Raises:
        TaskError: it is not `revision`, if that is not None; a folder without data.
    """
    digest = hashlib.sha256()
    with explained(source, place):
        for split, files in files_by_split(source).items():
            for path in files:
                digest.update(b"" if os.path.isfile(source) else f"{split}/{os.path.relpath(path, source)}\0".encode())
                with open(path, "rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    now = LOCAL + digest.hexdigest()[:16]
    if revision not in (None, now):
        raise TaskError(f"data_revision={revision!r}: {source!r} has changed; it is {now!r}")
    return now


def read(source: str, place: str, revision: str | None = None) -> DatasetDict:
    """Every split of one's own data; the one that a file is, and any that is alone, is "train".

    Raises:
        TaskError: see `check_place`, `fingerprint` and `download`; a JSON file with paragraphs that are not SQuAD's.
    """
    check_place(source, place)
    if is_local(source):
        return read_local(source, place, fingerprint(source, place, revision))
    owner, name, *config = source.split("/")
    return in_splits(download(f"{owner}/{name}", config[0] if config else None, place, revision=revision), place)


@lru_cache(maxsize=2)
def read_local(source: str, place: str, revision: str) -> DatasetDict:
    with explained(source, place):
        splits = {split: read_files(files, revision) for split, files in files_by_split(source).items()}
    return in_splits(splits, place)


def in_splits(data: Mapping[str, Dataset], place: str) -> DatasetDict:
    """The rows by the usual names of splits: what is "dev" in a README is "validation"."""
    named = {SPLITS.get(split, split): rows for split, rows in data.items()}
    named |= {split: rows for split, rows in data.items() if split in named}
    named = named if len(named) > 1 else {"train": next(iter(named.values()))}
    return DatasetDict({split: unfolded(rows, f"{place}: split {split!r}") for split, rows in named.items()})


def files_by_split(source: str) -> dict[str, list[str]]:
    """The files of each split of a folder, as datasets tells them by their names; a file is "train"."""
    if os.path.isfile(source):
        return {"train": [source]}
    return {str(split): [*files] for split, files in load_dataset_builder(source).config.data_files.items()}


def read_files(files: list[str], revision: str) -> Dataset:
    """The rows of files of one split, which may have other columns than those of another split."""
    suffix = Path(files[0]).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{files[0]} must be one of: {', '.join(FORMATS)}")
    options: dict[str, Any] = {"data_files": [glob.escape(file) for file in files], "split": "train"}
    if FORMATS[suffix] == "csv":  # "NA" and "null" are texts
        options |= {"keep_default_na": False, "na_values": [""], "sep": "\t" if suffix == ".tsv" else ","}
    elif FORMATS[suffix] == "json":
        with open(files[0], "rb") as file:
            options |= {"field": "data"} if ARTICLES.match(file.read(1000)) else {}
    # By path and time alone the cache would take a file for the one that it replaced.
    return load(FORMATS[suffix], revision.removeprefix(LOCAL), **options)


def unfolded(rows: Dataset, place: str) -> Dataset:
    """A row a question, where rows are articles of SQuAD's JSON; else the rows."""
    if "paragraphs" not in rows.column_names:
        return rows
    try:
        return Dataset.from_list([*questions(rows)])
    except (KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{place} has paragraphs, but not as SQuAD's JSON has them ({error!r})") from error


def questions(articles: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Every question of SQuAD's articles in the schema of rajpurkar/squad."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            same = {"title": article.get("title") or "", "context": paragraph["context"]}
            for entry in paragraph["qas"]:
                row = {"id": entry["id"], **same, "question": entry["question"]}
                if (answers := entry.get("answers")) is not None:
                    row["answers"] = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                yield row


def has_answers(rows: Dataset, column: str) -> bool:
    """Whether rows are labelled: some value is neither missing nor -1, which stands for that on the Hub."""
    return column in rows.column_names and any(value not in (None, -1) for value in rows[column][:])


def describe(
    data: DatasetDict, place: str, text_columns: list[str] | None, label_column: str | None, labels: list[str] | None
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Which columns are read, which one is answered, and the names of its classes; what is None is inferred.

    Texts are the one or two columns that hold text beside the label; a label is the column "label". Classes are those
    of a ClassLabel, or the different texts, truth values or few whole numbers; other numbers are predicted. Columns
    question, context and answers are SQuAD's.

    Raises:
        TaskError: a column that is not there, or that has to be named; a label that is one class, or hardly any.
    """
    rows = data.get("train", next(iter(data.values())))
    columns, texts = rows.column_names, tuple(text_columns or ())
    if {*SPAN, SPAN_ANSWERS} <= {*columns} and texts in ((), SPAN) and label_column in (None, SPAN_ANSWERS):
        return SPAN, SPAN_ANSWERS, ()
    label, others = label_column or "label", f"the columns are: {', '.join(columns)}"
    for what, names in ((f"text_columns={text_columns!r}", texts), (f"label_column={label_column!r}", (label_column,))):
        if missing := [name for name in names if name and name not in columns]:
            raise TaskError(f"{place}: {what}: there is no column {missing[0]!r}; {others}")
    if label not in columns:
        raise TaskError(f"{place}: label_column must be given, as no column is called 'label'; {others}")
    holding_text = (name for name in columns if any(isinstance(value, str) for value in rows[:100][name]))
    texts = texts or tuple(name for name in holding_text if name not in (label, "id", "idx"))
    if len(texts) not in (1, 2) or label in texts:
        raise TaskError(f"{place}: text_columns={[*texts]!r} must name one or two columns beside {label!r}; {others}")
    if "label" in texts:
        raise TaskError(f"{place}: text_columns={[*texts]!r}: give the column 'label' another name")
    return texts, label, tuple(classes_of(data, place, label) if labels is None else labels)


def classes_of(data: DatasetDict, place: str, label: str) -> list[str]:
    """The names of the classes in a column of labels, sorted; none where they are numbers to be predicted."""
    splits = {split: rows for split, rows in data.items() if has_answers(rows, label)}
    feature = next((rows.features[label] for rows in splits.values()), None)
    if isinstance(feature, ClassLabel):
        return list(feature.names)

    def check(wanted: str, is_right: Callable[[Any], bool]) -> None:
        for split, rows in splits.items():
            check_each(rows, f"{place}: split {split!r}", label, wanted, lambda value: value is None or is_right(value))

    values = [value for rows in splits.values() for value in rows[label][:] if value is not None]
    if not values:
        raise TaskError(f"{place}: label_column={label!r} is empty")
    kind, kinds = type(values[0]), {type(value) for value in values}
    are_numbers = kinds <= {int, float} and (float in kinds or len({*values}) > MOST_NUMBERS)
    if kind not in KINDS or (len(kinds) > 1 and not are_numbers):
        check(KINDS.get(kind, "text or a number"), lambda value: kind in KINDS and type(value) is kind)
    classes = sorted({*values})
    if len(classes) == 1:
        raise TaskError(f"{place}: label_column={label!r} has one value, {classes[0]!r}; there is nothing to learn")
    if are_numbers:
        return []
    if len(classes) > min(MOST_CLASSES, max(2, len(values) // 2)):
        if sum(map(spells_number, classes)) > len(classes) / 2:
            check("a number, as most labels are", spells_number)
        few = ", ".join(map(reprlib.repr, classes[:3]))
        raise TaskError(
            f"{place}: label_column={label!r} has {len(classes)} different values in {len(values)} rows ({few}, ...), "
            "too many for classes; name another column, or the classes in labels"
        )
    return [str(name) for name in classes]


def spells_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def check_each(rows: Dataset, place: str, column: str, wanted: str, is_right: Callable[[Any], Any]) -> None:
    """Raise TaskError for the first value of a column that is not right; `place` says which split it is."""
    for number, value in enumerate(rows[column][:]):
        if not is_right(value):
            raise TaskError(f"{place}, row {number}: {column}={reprlib.repr(value)} must be {wanted}")
