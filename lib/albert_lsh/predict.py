"""Ask a fine-tuned model: one line of JSON for each text.

    albert-lsh predict --model results/runs/.../seed-0/model pairs.txt

reads lines of text from a file or standard input, the two texts of a pair separated by a tab (for SQuAD question, tab,
paragraph), or the task's own columns in *.csv or *.jsonl. It prints

    classification    {"label": "equivalent", "score": 0.9, "scores": {"not_equivalent": 0.1, "equivalent": 0.9}}
    regression        {"value": 3.2}
    SQuAD             {"answer": "in 1943", "score": 0.8, "start": 19, "end": 26}

The task is the one that a run has saved with its model; --task names it for a model from elsewhere. Scores are
probabilities, 0 to 1; start and end count the paragraph's characters. Texts are cut as in training (the run
keeps its max_length with the tokenizer), and paragraphs are read in the same windows; an answer may be "" if the task
has questions without one. Numbers are float32 and hashes those of evaluation, so the same call prints the same again.
"""

import argparse
import json
import os
import reprlib
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from albert_lsh.encoders import ModelError
from albert_lsh.files import TABLES, explain_out_of_memory, read_rows, reading
from albert_lsh.kinds import SAVED_TASK, Task, TaskError
from albert_lsh.model.load import load_config, load_model, load_tokenizer
from albert_lsh.sources import find_task, task_of

READ = (".csv", ".jsonl")  # besides lines of text


def texts_of(file: str, task: Task) -> list[dict[str, str]]:
    """The task's columns of every example in a file or on standard input ("-").

    Raises:
        TaskError: naming the line or row, and what is wrong with it.
    """
    name, path = "standard input" if file == "-" else file, Path(file).expanduser()
    ending = path.suffix.lower()
    if ending in TABLES and ending not in READ:
        raise TaskError(f"{name}: texts are read from {', '.join(READ)}, or lines of any other file")
    with reading(TaskError, f"{name} could not be read"):
        if ending in READ:
            rows = dict(enumerate(read_rows(path)))
            part = "row"
        else:
            text = (sys.stdin.buffer.read() if file == "-" else path.read_bytes()).decode("utf-8-sig")
            lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text.strip() else []
            rows = {number: from_line(f"{name}, line {number}", line, task) for number, line in enumerate(lines, 1)}
            part = "line"
    if not rows:
        raise TaskError(f"{name} is empty; it must hold one example a line")
    for number, row in rows.items():
        if missing := [column for column in task.columns if column not in row]:
            reads = f"which task {task.name!r} reads; it has: {', '.join(row)}"
            raise TaskError(f"{name}, {part} {number} has no column {missing[0]!r}, {reads}")
        for column in task.columns:
            cell = row[column]
            # JSON can spell lone surrogates, which are no characters.
            if not isinstance(cell, str) or not cell.strip() or any("\ud800" <= char <= "\udfff" for char in cell):
                place = f"{name}, {part} {number}"
                raise TaskError(f"{place}: {column}={reprlib.repr(cell)} must be text, and not empty")
    return [{column: row[column] for column in task.columns} for row in rows.values()]


def from_line(place: str, line: str, task: Task) -> dict[str, str]:
    """The texts of a line, by column."""
    texts = line.split("\t")
    if (tabs := len(texts) - 1) != len(task.columns) - 1:
        wanted = ", tab, ".join(task.columns)
        raise TaskError(f"{place} has {tabs or 'no'} tab{'s' * (tabs != 1)}; task {task.name!r} reads {wanted}")
    return dict(zip(task.columns, texts, strict=True))


def config_of(model: str) -> Any:
    """The config of a fine-tuned model; ModelError where there is none."""
    try:
        return load_config(model)
    except ModelError as error:
        if Path(model).expanduser().exists():
            raise
        what = "no such folder here, and no model of that name on the Hub, or no network"
        raise ModelError(
            f"--model {model}: {what}; a run with save_model=True keeps its model in its folder"
        ) from error


def saved_task(model: str) -> Task:
    """The task that a model was fine-tuned on, as `train` saves it with it; TaskError where it does not say."""
    if not (saved := getattr(config_of(model), SAVED_TASK, None)):
        raise TaskError(f"model={model!r} does not say which task it was fine-tuned on; name it with --task")
    return replace(task_of(saved), no_answer=saved["no_answer"])


def load(model: str, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model that was fine-tuned on the task, with the names of its classes, and its tokenizer.

    Raises:
        TaskError: it was made for something else. ModelError: it cannot be read, or lacks parts.
    """
    config = config_of(model)
    saved = (config.architectures or ["not fine-tuned"])[0]
    if not saved.endswith(task.architecture):
        wanted = f"one that was saved as ...{task.architecture}"
        raise TaskError(f"model={model!r} is {saved}; task {task.name!r} needs {wanted}")
    options = task.check_classes([*config.id2label.values()], model)
    return load_model(model, head=task.head, complete=True, **options).float(), load_tokenizer(model)


def main(arguments: list[str] | None = None) -> None:
    """The command `albert-lsh`; arguments: those behind it, None for the process's own."""
    parser = argparse.ArgumentParser(prog="albert-lsh", description="ALBERT with any attention.")
    parser.add_argument("--version", action="version", version=f"albert-lsh {import_module('albert_lsh').__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    plain = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("predict", help="ask a fine-tuned model", description=__doc__, formatter_class=plain)
    command.add_argument("--model", required=True, help="its folder (save_model=True keeps a run's), or its Hub name")
    command.add_argument("--task", help="the task that it was fine-tuned on, where it does not say: mrpc, squad, ...")
    command.add_argument("--batch-size", type=int, default=32)
    command.add_argument("file", nargs="?", default="-", help="texts, CSV or JSON lines; else standard input")
    options = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    try:
        with redirect_stdout(sys.stderr):  # what becomes of one's own data
            task = find_task(options.task) if options.task else saved_task(options.model)
        rows = texts_of(options.file, task)
        with explain_out_of_memory("a smaller --batch-size"):
            for row in task.answer(*load(options.model, task), rows, options.batch_size):
                print(json.dumps(row, ensure_ascii=False), flush=True)
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
