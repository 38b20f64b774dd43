"""Tasks by name: those of the table, and one's own files, folders and data sets of the Hub.

    task = find_task("reviews.csv", label_column="mood")    its columns are the usual ones, or named

Of one's own every cell is read as text. A file's split follows from its name; what became of each file and column is
printed, once. `place` begins every error.
"""

import difflib
import hashlib
import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, DatasetDict, concatenate_datasets

from albert_lsh.files import TABLES, read_rows, reading
from albert_lsh.kinds import (
    ANSWERS,
    LOCAL,
    SPAN,
    Classification,
    QuestionAnswering,
    Regression,
    Task,
    TaskError,
    as_number,
    check_each,
    plain,
)
from albert_lsh.tasks import TASKS, download

ON_HUB = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")  # owner/name, or owner/name/configuration
USUAL = (("text",), ("sentence1", "sentence2"), SPAN)  # columns that are read where none are named
MOST_NUMBERS = 20  # different whole numbers that are classes; more are numbers to be predicted
MOST_CLASSES = 200
# What splits are called, in names of files too, whatever is upper case: "Train.csv", "test-set.tsv", "dev-00000.json".
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "validate", "valid", "val", "dev", "development", "eval", "evaluation", "heldout"),
    "test": ("test", "testing"),
}
WORDS = {word: split for split, words in SPLITS.items() for word in words}
WORD = re.compile(rf"({'|'.join(WORDS)})(set|data|split)?")


def find_task(
    name: str,
    text_columns: Sequence[str] | None = None,
    label_column: str | None = None,
    labels: Sequence[str] | None = None,
    revision: str | None = None,
) -> Task:
    """The task of that name, or of one's own data.

    Args:
        name: in the table; or of a file, a folder, or a data set on the Hub, owner/name or owner/name/configuration.
        text_columns: of one's own data, the one or two that are read; None: text, sentence1 and sentence2, or question
            and context.
        label_column: the one that is answered; None: label, or answers of questions.
        labels: the names of its classes, [] if a number is predicted; None: see `classes_of`.
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
    by_name = os.path.splitext(source)[1].lower() in TABLES or ON_HUB.fullmatch(source)
    if is_local(source) and short(source) in TASKS:  # as a record names it
        raise TaskError(f"{place} is called like a task of the table; give it another name")
    if revision is None and is_local(source):
        revision = fingerprint(source, place)
    elif not by_name and not (revision or "").startswith(LOCAL):  # in a record it is seen from its root
        raise TaskError(f"{place} is not one of: {', '.join(TASKS)}; nor a file, a folder, or owner/name on the Hub")
    columns, classes = (None if names is None else tuple(map(str, names)) for names in (text_columns, labels))
    label = None if label_column is None else str(label_column)
    if columns is None or label is None or classes is None:
        columns, label, classes = columns_of(source, place, revision, columns, label, classes)
    if len(columns) not in (1, 2) or label in columns or {"label", "idx"} & {*columns}:
        wanted = f"one or two columns, not {label!r}, and none called 'label' or 'idx'"
        raise TaskError(f"{place}: text_columns={[*columns]!r} must name {wanted}")
    if len(classes) == 1:
        raise TaskError(f"{place}: labels={[*classes]!r} must name two classes or more")
    kind: type[Task] = Classification if classes else Regression
    scores = ("accuracy", "matthews") if classes else ("pearson", "spearman")
    if (columns, label) == (SPAN, ANSWERS):
        kind, scores = QuestionAnswering, ("exact", "f1")
    more: dict[str, Any] = {"label": label, "evaluation": ("validation", "test"), "revision": revision, "is_own": True}
    return kind(name, source, None, columns, scores, classes, **more)


def task_of(parameters: Mapping[str, Any]) -> Task:
    """The task of a run's parameters, which may be those of a record: a file that has left is no error."""
    names = ("text_columns", "label_column", "labels", "data_revision")
    return find_task(parameters["task"], *(parameters.get(name) for name in names))


@lru_cache(maxsize=8)
def columns_of(
    source: str,
    place: str,
    revision: str | None,
    columns: tuple[str, ...] | None,
    label: str | None,
    labels: tuple[str, ...] | None,
) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """What `find_task` needs of one's own data where it is not named; prints what each column is taken for.

    Raises:
        TaskError: a column that is not there, or that has to be named; see `classes_of`.
    """
    data = read(source, place, revision)
    known = data.get("train", next(iter(data.values()))).column_names
    listed = f"the columns are: {', '.join(known)}"
    columns = columns or next((names for names in USUAL if {*names} <= {*known}), None)
    if not columns:
        usual = "; ".join(", ".join(names) for names in USUAL)
        raise TaskError(f"{place}: text_columns must be given, as there are none of the usual ones ({usual}); {listed}")
    if label is None and not {"label", ANSWERS} & {*known}:
        raise TaskError(f"{place}: label_column must be given, as no column is called 'label'; {listed}")
    label = label or (ANSWERS if columns == SPAN and ANSWERS in known else "label")
    for parameter, names in (("text_columns", columns), ("label_column", (label,))):
        if missing := [name for name in names if name not in known]:
            raise TaskError(f"{place}: {parameter}: there is no column {missing[0]!r}; {listed}")
    if (columns, label) == (SPAN, ANSWERS):
        labels, answer = (), "a piece of the context"
    else:
        labels = classes_of(data, place, label) if labels is None else labels
        classes = ", ".join(labels[:10]) + ", ..." * (len(labels) > 10)
        answer = f"one of {classes} (labels=[]: a number)" if labels else "a number (labels: names of classes)"
    others = [name for name in known if name not in (*columns, label, "id")]
    unread = f"; not read: {', '.join(others)}" if others else ""
    print(f"{short(source)}: what is read: {' and '.join(columns)}; what is answered: {label}, {answer}{unread}")
    return columns, label, labels


def classes_of(data: DatasetDict, place: str, label: str) -> tuple[str, ...]:
    """The names of the classes in a column of labels, in order; none where it holds numbers to be predicted.

    Classes are those of a ClassLabel, few whole numbers (also written 0.0 and 1.0), or the different texts.

    Raises:
        TaskError: no label, a single class, or too many.
    """
    features = [rows.features[label] for rows in data.values() if has_answers(rows, label)]
    if features and isinstance(features[0], ClassLabel):
        return tuple(features[0].names)
    splits = {split: cells(rows, label) for split, rows in data.items() if has_answers(rows, label)}
    values = [cell for column in splits.values() for cell in column if cell is not None]
    numbers = {value: as_number(value) for value in values}
    if not values:
        raise TaskError(f"{place}: label_column={label!r} is empty")
    if len({*map(plain, numbers)}) == 1:
        raise TaskError(f"{place}: label_column={label!r} has one value, {values[0]!r}; there is nothing to learn")
    if None not in numbers.values():
        different = sorted({number for number in numbers.values() if number is not None})
        are_classes = len(different) <= MOST_NUMBERS and all(number.is_integer() for number in different)
        return tuple(str(int(number)) for number in different) if are_classes else ()
    if len(numbers) > min(MOST_CLASSES, max(2, len(values) // 2)):
        if list(numbers.values()).count(None) < len(numbers) / 2:
            for split, column in splits.items():
                named, wanted = f"{place}: split {split!r}", "a number, as most labels are"
                check_each({label: column}, named, label, wanted, lambda x: x is None or as_number(x) is not None)
        few = ", ".join(map(reprlib.repr, sorted(numbers)[:3]))
        raise TaskError(
            f"{place}: label_column={label!r} has {len(numbers)} different values in {len(values)} rows ({few}, ...), "
            "too many for classes; name another column, or the classes in labels"
        )
    return tuple(sorted(numbers))


# Its rows --------------------------------------------------------------------------------------------------------


def own_data(task: Task) -> DatasetDict:
    """One's own data: "train" and the splits that are evaluated, checked, with numbers as labels.

    Evaluated are "validation" and "test" where they have answers (of questions the first of them).

    Raises:
        TaskError: no split "train"; a row that is no example of the task.
    """
    data = read(task.dataset, task.place, task.revision)
    if "train" not in data:
        raise TaskError(f"{task.place}: there is no split 'train'; there are: {', '.join(data)}")
    others = [split for split in task.evaluation if split in data and has_answers(data[split], task.label)]
    splits = {split: as_text(data[split], task) for split in ("train", *others[: task.scored])}
    for split, rows in splits.items():
        task.check(rows, split)
    return task.numbered(splits)


def without_answers(task: Task) -> dict[str, Dataset]:
    """The texts of the splits of one's own data whose answers are open, checked."""
    data = read(task.dataset, task.place, task.revision)
    opened = [s for s in task.evaluation if s in data and not has_answers(data[s], task.label)]
    splits = {split: as_text(data[split], task).select_columns([*task.columns]) for split in opened}
    for split, rows in splits.items():
        task.check(rows, split, labelled=False)
    return splits


def as_text(rows: Dataset, task: Task) -> Dataset:
    """The columns of a task, all cells as text; but answers to questions as they are."""
    names = [name for name in (*task.columns, task.label, *task.besides) if name in rows.column_names]
    return Dataset.from_dict({name: rows[name][:] if name == ANSWERS else cells(rows, name) for name in names})


def cells(rows: Dataset, column: str) -> list[str | None]:
    """The cells of a column as text; None where there is nothing. Classes of the Hub have their names."""
    feature = rows.features[column]
    names = {n: name for n, name in enumerate(feature.names)} if isinstance(feature, ClassLabel) else None
    values = (names.get(value) if names else value for value in rows[column][:])
    return [as_cell(value) for value in values]


def as_cell(value: Any) -> str | None:
    """A value as text; None where there is nothing, for which pandas has NaN."""
    return None if value is None or value == "" or value != value else str(value)


def has_answers(rows: Dataset, column: str) -> bool:
    """Whether rows are labelled: some value is neither missing nor -1, which stands for that on the Hub."""
    labels = cells(rows, column) if column in rows.column_names else []
    return any(label is not None and as_number(label) != -1 for label in labels)


def read(source: str, place: str, revision: str | None = None) -> DatasetDict:
    """Every split of one's own data, as `SPLITS` calls them; one that is alone, such as a file, is "train".

    Says once what became of each file, or split of the Hub.

    Raises:
        TaskError: a file that is not there or cannot be read, or is in no split; see `fingerprint`.
    """
    check_place(source, place)
    return read_once(source, place, fingerprint(source, place, revision) if is_local(source) else revision)


@lru_cache(maxsize=2)
def read_once(source: str, place: str, revision: str | None) -> DatasetDict:
    if is_local(source):
        splits, others = files_by_split(source, place)
        tables = {file: table_of(Path(source, file), place) for files in splits.values() for file in files}
    else:
        owner, repository, *config = source.split("/")
        tables = {**download(f"{owner}/{repository}", config[0] if config else None, place, revision=revision)}
        splits, others = in_splits({split: WORDS.get(split.lower()) and split.lower() for split in tables}, place)
    data = {split: concatenate_datasets([tables[part] for part in parts]) for split, parts in splits.items()}
    for split, parts in splits.items():
        print(f"{short(source)}: {split} is {', '.join(parts) or 'all of it'}, {len(data[split])} rows")
    if others:
        print(f"{short(source)}: not read: {', '.join(others)}")
    return DatasetDict(data)


def table_of(path: Path, place: str) -> Dataset:
    """The rows of a file, all cells as text; those of Parquet have their types."""
    with reading(TaskError, f"{place}: {path.name} could not be read (a damaged file?)"):
        if path.suffix.lower() == ".parquet":
            return Dataset(pq.read_table(path))
        rows = read_rows(path)
        columns: dict[str, list[Any]] = {name: [] for row in rows for name in row}
        for name, column in columns.items():
            values = (row.get(name) for row in rows)
            column += [x if name == ANSWERS and isinstance(x, dict) else as_cell(x) for x in values]
        lines = path.read_bytes().count(b"\n")
        if path.suffix.lower() == ".csv" and lines > len(rows) + 1:
            print(f"{path.name}: {len(rows)} rows of {lines} lines; is a quotation mark open, or do cells have lines?")
        return Dataset.from_dict(columns)


# Files -----------------------------------------------------------------------------------------------------------


def is_local(source: str) -> bool:
    return os.path.isfile(source) or os.path.isdir(source)


def short(source: str) -> str:
    return os.path.basename(os.path.normpath(source))


def check_place(source: str, place: str) -> None:
    """Raise TaskError for a file that is not there, or that cannot be read."""
    path, kinds = Path(source), ", ".join(TABLES)
    if os.path.isfile(source) and path.suffix.lower() not in TABLES:
        raise TaskError(f"{place}: a file must be one of: {kinds}")
    if path.suffix.lower() in TABLES and not is_local(source):
        beside = [file.name for file in path.parent.glob("*") if file.suffix.lower() in TABLES]
        near = ", ".join(difflib.get_close_matches(path.name, beside, 3, cutoff=0))
        others = f"there are: {near}" if near else f"nor any other of: {kinds}"
        raise TaskError(f"{place}: there is no such file in {path.parent.resolve()}; {others}")


def fingerprint(source: str, place: str, revision: str | None = None) -> str:
    """The revision of a file or folder: a digest of its bytes and, in a folder, of its splits and their files' names.

    Raises:
        TaskError: it is not `revision`, if that is not None; a folder without data.
    """
    digest = hashlib.sha256()
    for split, files in files_by_split(source, place)[0].items():
        for name in files:
            digest.update(f"{split}/{name}\0".encode() if name else b"")
            with (
                reading(TaskError, f"{place}: {name or source} could not be read"),
                open(Path(source, name), "rb") as file,
            ):
                digest.update(hashlib.file_digest(file, "sha256").digest())
    now = LOCAL + digest.hexdigest()[:16]
    if revision not in (None, now):
        raise TaskError(f"data_revision={revision!r}: {source!r} has changed; it is {now!r}")
    return now


def files_by_split(source: str, place: str) -> tuple[dict[str, list[str]], list[str]]:
    """The files of each split of a folder, as seen from there, and those that are no data; a file is "train".

    Raises:
        TaskError: a file that is in no split, or a split in files that are not read; see `in_splits`.
    """
    if os.path.isfile(source):
        return {"train": [""]}, []
    paths = (path.relative_to(source) for path in sorted(Path(source).rglob("*")) if path.is_file())
    words = {str(path): words_of(path) for path in paths if not any(part.startswith(".") for part in path.parts)}
    data = {name: named for name, named in words.items() if Path(name).suffix.lower() in TABLES}
    if not data:
        raise TaskError(f"{place}: the folder has no file that ends in one of: {', '.join(TABLES)}")
    for name, named in data.items():
        if len(data) > 1 and len({WORDS[word] for word in named}) != 1:
            what = f"names {' and '.join(sorted(named))}" if named else "is in no split"
            raise TaskError(f"{place}: {name} {what}; a file is called after one of: {', '.join(WORDS)}")
    splits, _ = in_splits({name: min(named, default=None) for name, named in data.items()}, place)
    others = [name for name in words if name not in data]
    for name in others:
        if unread := {WORDS[word] for word in words[name]} - {WORDS[word] for named in data.values() for word in named}:
            raise TaskError(f"{place}: {name} may be {min(unread)!r}, but a file must be one of: {', '.join(TABLES)}")
    return splits, others


def in_splits(words: Mapping[str, str | None], place: str) -> tuple[dict[str, list[str]], list[str]]:
    """Files, or splits of the Hub, by the split that their word names; one that is alone is "train". And all others.

    Raises:
        TaskError: two words that name the same split.
    """
    splits: dict[str, list[str]] = {}
    for name, word in words.items():
        if word:
            splits.setdefault(WORDS[word], []).append(name)
    for split, names in splits.items():
        if len({words[name] for name in names}) > 1:
            raise TaskError(f"{place}: {', '.join(names)} are all {split!r}; rename those that are not")
    others = [name for name, word in words.items() if not word]
    if len(words) == 1:
        return {"train": [*words]}, []
    return (splits if len(splits) != 1 else {"train": next(iter(splits.values()))}), others


def words_of(path: Path) -> set[str]:
    """The words of `WORDS` in a file's name, or else in that of the folder that it is in."""
    for part in reversed(path.with_suffix("").parts):
        for text in (part, re.sub("([a-z])([A-Z])", r"\1 \2", part)):  # "SemEval-Train", and only then "reviewsTrain"
            words = re.findall("[a-z]+", re.sub(r"held[\W_]?out", "heldout", text.lower()))
            if named := {match[1] for word in words if (match := WORD.fullmatch(word))}:
                return named
    return set()
