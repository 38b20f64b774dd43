"""Files: where results go, how they are written, locked and read, and how errors of reading become one line."""

import csv
import difflib
import io
import json
import os
import re
import reprlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic_core import ErrorDetails

DRIVE = Path("/content/drive")  # where Colab mounts it
WAIT = 30.0  # seconds; a notebook's kernel outlives the process that started it by some
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")  # how files of data end
csv.field_size_limit(2**31 - 1)  # of a cell; else 131,072


# Errors ----------------------------------------------------------------------------------------------------------


class OneLineError(ValueError):
    """An error whose message says all; in a notebook it is shown without the traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for it
        return [f"{type(self).__name__}: {self}"]


class FolderInUseError(OneLineError):
    """Another process works in a folder; the message names it."""


def is_out_of_memory(error: Exception) -> bool:
    # On the CPU torch raises a plain RuntimeError.
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


@contextmanager
def explain_out_of_memory(less: str) -> Iterator[None]:
    """Turn a failed allocation into an error that says what takes `less`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OneLineError(f"out of memory; {less} takes less") from error


@contextmanager
def reading(kind: type[ValueError], what: str, instead: str = "") -> Iterator[None]:
    """Within, whatever a file, datasets or the Hub's client raises becomes one error of a kind; out of memory stays.

    Args:
        what, instead: what the message begins and ends with.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, OneLineError):
            raise
        cause: BaseException = error
        while cause.__cause__ is not None and type(cause).__module__.startswith("datasets"):
            cause = cause.__cause__  # datasets wraps what went wrong in "an error occurred"
        raise kind(f"{what}: {shorten(f'{type(cause).__name__}: {cause}', 300)}{instead}") from error


# Places ----------------------------------------------------------------------------------------------------------


def repository_root() -> Path:
    """The folder that holds `results/`: the checkout of this library, or the working directory without one."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def home(value: str, name: str) -> Path:
    """The path, ~ being the home folder; ValueError for that of a user who has none here, and for what is no path."""
    if re.search("[\0\ud800-\udfff]", value):  # surrogates are in no name of a file
        raise ValueError(f"{name}={reprlib.repr(value)} is no path")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{name}={value!r}: there is no such home folder") from error


def root_of(results_root: str | None = None) -> Path:
    """Where results, figures and relative paths are: `results_root`, or `repository_root()` if that is None.

    Raises:
        ValueError: it is on Google Drive, which is not mounted: what is written there would be lost.
    """
    root = (repository_root() / home(results_root or "", "results_root")).resolve()
    if root.is_relative_to(DRIVE) and not DRIVE.is_mount():
        raise ValueError(f"results_root={results_root!r}: Drive is not mounted; the notebook's set-up cell does it")
    return root


def set_up(variables: Mapping[str, Any], keep_on_drive: bool = False) -> set[str]:
    """What a notebook calls first: the names of its variables, `globals()`, before its parameters.

    In Colab it says what becomes of results, and mounts Drive where they are to be kept.
    """
    if keep_on_drive:
        from google.colab import drive  # Colab alone has it

        drive.mount(str(DRIVE))
    if "COLAB_RELEASE_TAG" in os.environ:
        print("Colab deletes this machine and the results on it. To keep them, set keep_on_drive=True here, and below:")
        print(f'results_root = "{DRIVE / "MyDrive" / "albert-lsh"}"')
    return set(variables)


def run_folder(study: str, task: str, model: str, arm: str, seed: int, results_root: str | None = None) -> Path:
    """results/runs/<study>/<task>/<model>/<arm>/seed-<n>; of a path or name on the Hub its last part."""
    folder = root_of(results_root) / "results" / "runs" / study / Path(task).name
    return folder / Path(model).name / arm / f"seed-{seed}"


def relative_to_root(path: Path) -> str:
    """The path as seen from the checkout, so that records name no folder of a machine."""
    path = path.resolve()
    return str(path.relative_to(repository_root()) if path.is_relative_to(repository_root()) else path)


def commit_of(name: str, kind: str, revision: str | None = None) -> str | None:
    """The commit that a branch, tag or commit (None: the newest) of a repository is in the cache; None: not there.

    kind: "model" or "dataset".
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True)).name
    except (OSError, ValueError):  # it is not there; a path, which is no name of a repository
        return None


# Writing ---------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a reader sees the old file or the new one, never a part of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def delete(folder: Path) -> None:
    """Delete a folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


@contextmanager
def lock(folder: Path, name: str = "run", wait: float = WAIT) -> Iterator[None]:
    """Work in a folder alone: no other process holds its lock of that name meanwhile.

    The operating system frees the lock of a process that ends, in whatever way.

    Args:
        folder: made if it is not there. wait: seconds to wait for another process to end.
    Raises:
        FolderInUseError: another process still works there. ValueError: not a folder, or not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder / f".{name}.lock").acquire(timeout=wait)
    except Timeout as error:
        raise FolderInUseError(f"{folder} is in use by another process (waited {wait:g} s)") from error
    except OSError as error:
        raise OneLineError(f"{folder} cannot be locked: {error}") from error
    with held:
        yield


# Reading ---------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV, TSV or JSON file, by column; ValueError names the line or entry that cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from error
    return separated(text, path.suffix.lower() == ".tsv") if path.suffix.lower() in (".csv", ".tsv") else objects(text)


def separated(text: str, by_tabs: bool) -> list[dict[str, Any]]:
    """Rows of text. Tabs need no quotes: between them a quotation mark is a character as any other.

    A blank line is the empty cell of a single column; of several columns, and at the end, it is nothing.
    """
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if by_tabs else {"strict": True}
    reader = csv.reader(io.StringIO(text.rstrip("\r\n"), newline=""), **options)
    rows, header = [], list[str]()
    try:
        for row in reader:
            header = header or row
            row = row or [""] * (len(header) == 1)
            if row and len(row) != len(header):
                raise ValueError(f"line {reader.line_num} has {len(row)} cells, the first line {len(header)}")
            if row:
                rows.append(dict(zip(header, row, strict=True)))
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}; is a quotation mark open?") from error
    if len({*header}) < len(header):
        raise ValueError(f"two columns have the same name: {', '.join(header)}")
    return rows[1:]


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of JSON lines, of a list, or of a list within "data"; of SQuAD's articles their questions."""
    try:
        whole = json.loads(text)
    except ValueError as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if not lines or not lines[0][1].rstrip().endswith("}"):
            raise ValueError(f"it is not JSON: {error}") from error
        whole = [parsed(number, line) for number, line in lines]
    if isinstance(whole, dict):
        whole = whole["data"] if isinstance(whole.get("data"), list) else [whole]
    for number, row in enumerate(whole if isinstance(whole, list) else [whole]):
        if not isinstance(row, dict):
            raise ValueError(f"entry {number} is {reprlib.repr(row)}; it must be an object")
    return questions(whole) if any("paragraphs" in row for row in whole) else whole


def parsed(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}") from error


def questions(articles: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every question of the articles of SQuAD's own JSON, as a row; ValueError if they are none."""
    rows = []
    try:
        for article in articles:
            for paragraph in article["paragraphs"]:
                same = {"title": article.get("title") or "", "context": paragraph["context"]}
                for entry in paragraph["qas"]:
                    answers = entry.get("answers", [] if entry.get("is_impossible") else None)
                    if answers is not None:
                        answers = {k: [answer[k] for answer in answers] for k in ("text", "answer_start")}
                    rows.append({"id": entry["id"], **same, "question": entry["question"], "answers": answers})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has paragraphs, but not as SQuAD's JSON has them ({error!r})") from error
    return rows


# What is wrong with values --------------------------------------------------------------------------------------


def described(error: ErrorDetails) -> str:
    """What pydantic says of one value: its name, the value, and what it must be.

    A validator's own ValueError says all, or only what the value "must be".
    """
    name = "".join(f"[{step!r}]" if depth else str(step) for depth, step in enumerate(error["loc"]))
    if error["type"] == "missing":
        return f"{name} must be given"
    expected = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error" and not expected.startswith("must"):
        return expected
    expected = re.sub(r"^[A-Z]\w+ should", "must", expected)  # "Input should be"
    return f"{name}={reprlib.repr(error['input'])} {expected}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What somebody may have meant who gave a name that is none of those known."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
