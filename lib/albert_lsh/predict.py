"""Ask a fine-tuned model: one line of JSON for each text.

    albert-lsh predict --model results/runs/.../seed-0/model --task mrpc pairs.txt

reads lines of text from a file or standard input, the two texts of a pair separated by a tab (for SQuAD question, tab,
paragraph), or JSON objects with the task's own columns: *.json or *.jsonl, a list of them or one a line. It prints

    classification    {"label": "equivalent", "score": 0.9, "scores": {"not_equivalent": 0.1, "equivalent": 0.9}}
    regression        {"value": 3.2}
    SQuAD             {"answer": "in 1943", "score": 0.8, "start": 19, "end": 26}

Scores are probabilities, 0 to 1; start and end count the paragraph's characters. Texts are cut as in training (the run
keeps its max_length with the tokenizer), and paragraphs are read in the same windows; an answer may be "" if the task
has questions without one. Numbers are float32 and hashes those of evaluation, so the same call prints the same again.
"""

import argparse
import json
import math
import os
import reprlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextClassificationPipeline

from albert_lsh import __version__, push
from albert_lsh.model.load import load_config, load_model, load_tokenizer, longest_input
from albert_lsh.model.memory import explain_out_of_memory
from albert_lsh.pipelines import QuestionAnsweringPipeline
from albert_lsh.tasks import Task, find_task, readable


def read_rows(file: str, task: Task) -> list[dict[str, str]]:
    """The task's columns of every example in a file or on standard input ("-").

    Raises:
        ValueError: naming the line, or the entry of a JSON list, and what is wrong with it.
    """
    name = "standard input" if file == "-" else file
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error}") from error
    if text.split() in ([], ["[]"], ["[", "]"]):
        raise ValueError(f"{name} is empty; it must hold one example a line, or JSON")
    lines = {f"{name}, line {n}": line for n, line in enumerate(text.removesuffix("\n").split("\n"), 1)}
    if Path(file).suffix.lower() not in (".json", ".jsonl"):
        found = {place: from_line(place, line, task) for place, line in lines.items()}
    elif text.lstrip().startswith("["):
        found = {f"{name}, entry {n}": row for n, row in enumerate(from_json(name, text), 1)}
    else:
        found = {place: from_json(place, line) for place, line in lines.items()}
    return [checked(place, row, task) for place, row in found.items()]


def from_line(place: str, line: str, task: Task) -> dict[str, str]:
    """The texts of a line, by column."""
    tabs = line.count("\t")
    if tabs != len(task.columns) - 1:
        wanted = ", tab, ".join(task.columns)
        raise ValueError(f"{place} has {tabs or 'no'} tab{'s' * (tabs != 1)}; task {task.name!r} reads {wanted}")
    return dict(zip(task.columns, line.split("\t"), strict=True))


def from_json(place: str, text: str) -> Any:
    """A JSON text, read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{place} is not JSON ({error}); a file has a list of objects, or one object a line"
        ) from error


def checked(place: str, row: Any, task: Task) -> dict[str, str]:
    """The task's columns of a row; each must be there and hold text."""
    if not isinstance(row, dict):
        raise ValueError(f"{place} is {reprlib.repr(row)}; it must be an object with {', '.join(task.columns)}")
    for column in task.columns:
        if column not in row:
            raise ValueError(
                f"{place} has no column {column!r}, which task {task.name!r} reads; it has: {', '.join(row)}"
            )
        text = row[column]
        # JSON can spell lone surrogates, which are no characters.
        if not isinstance(text, str) or not text.strip() or any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError(f"{place}: {column}={reprlib.repr(text)} must be text, and not empty")
    return {column: row[column] for column in task.columns}


def load(model: str, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model that was fine-tuned on the task, with the names of its classes, and its tokenizer.

    Raises:
        ValueError: it was made for something else. ModelError (a ValueError): it cannot be read, or lacks parts.
    """
    config = load_config(model)
    head = "question-answering" if task.is_squad else "classification"
    ending = "ForQuestionAnswering" if task.is_squad else "ForSequenceClassification"
    saved = (config.architectures or ["not fine-tuned"])[0]
    if not saved.endswith(ending):
        raise ValueError(f"model={model!r} is {saved}; task {task.name!r} needs one that was saved as ...{ending}")
    names = list(config.id2label.values())
    unnamed = names == [f"LABEL_{n}" for n in range(task.num_labels)]
    if not task.is_squad and not unnamed and {name.lower() for name in names} != set(task.labels):
        wanted = ", ".join(task.labels) or "none: it predicts a number"
        raise ValueError(f"model={model!r} has the labels {', '.join(names)}; task {task.name!r} has {wanted}")
    loaded = load_model(model, head=head, complete=True, **(task.model_options if unnamed else {}))
    tokenizer, known = load_tokenizer(model), loaded.config.vocab_size
    if len(tokenizer) > known:
        raise ValueError(f"model={model!r}: its tokenizer knows {len(tokenizer)} tokens, its weights only {known}")
    return loaded, tokenizer


def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rows: list[dict[str, str]],
    batch_size: int,
) -> Iterator[dict[str, Any]]:
    """What the model says about every row, in their order, as the module's first lines show it.

    Args:
        model, tokenizer: of `load`.
        rows: the task's columns.
        batch_size: texts or windows that go through the model at a time.
    Raises:
        ValueError: the model's scores of an example are not finite; the message says which.
    """
    given: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "batch_size": batch_size}
    if task.is_squad:
        yield from QuestionAnsweringPipeline(**given, no_answer=task.no_answer)(row for row in rows)
        return
    names: Any = model.config.id2label
    function = "softmax" if task.labels else "none"
    classify: Any = TextClassificationPipeline(**given, top_k=None, function_to_apply=function)
    longest = longest_input(model, tokenizer)
    texts = (readable([*row.values()], tokenizer, longest) for row in rows)
    inputs = (dict(zip(("text", "text_pair"), pair, strict=False)) for pair in texts)
    found = classify(inputs, truncation=True, max_length=longest)
    for number, entries in enumerate(found, 1):  # every class, the likeliest first
        if not all(math.isfinite(entry["score"]) for entry in entries):
            raise ValueError(f"example {number}: the model's scores are not finite")
        if task.labels:
            scores = {entry["label"]: entry["score"] for entry in entries}
            yield {**entries[0], "scores": {name: scores[name] for _, name in sorted(names.items())}}
        else:
            yield {"value": entries[0]["score"]}


def print_predictions(asked: argparse.Namespace) -> None:
    """What `albert-lsh predict` does."""
    task = find_task(asked.task)
    rows = read_rows(asked.file, task)
    with explain_out_of_memory("a smaller --batch-size"):
        for row in predict(*load(asked.model, task), task, rows, asked.batch_size):
            print(json.dumps(row, ensure_ascii=False), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """The command `albert-lsh`; arguments: those behind it, None for the process's own."""
    parser = argparse.ArgumentParser(prog="albert-lsh", description="ALBERT with any attention.")
    parser.add_argument("--version", action="version", version=f"albert-lsh {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    plain = argparse.RawDescriptionHelpFormatter
    command = commands.add_parser("predict", help="ask a fine-tuned model", description=__doc__, formatter_class=plain)
    command.add_argument("--model", required=True, help="its folder (save_model=True keeps a run's), or its Hub name")
    command.add_argument("--task", required=True, help="the task that it was fine-tuned on: mrpc, squad, ...")
    command.add_argument("--batch-size", type=int, default=32)
    command.add_argument("file", nargs="?", default="-", help="texts or JSON; standard input if it is not given")
    command.set_defaults(run=print_predictions)
    about: Any = {"help": "put a fine-tuned model on the Hub", "description": push.__doc__, "formatter_class": plain}
    command = commands.add_parser("push", **about)
    command.add_argument("folder", type=Path, help="of a run that kept its model, or of a model")
    command.add_argument("name", help="owner/name")
    command.set_defaults(run=lambda asked: print(push.push(asked.folder, asked.name)))
    asked = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    try:
        asked.run(asked)
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(["predict", *sys.argv[1:]])
