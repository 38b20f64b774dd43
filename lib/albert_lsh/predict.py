"""Ask a fine-tuned model: one line of JSON for each text.

    albert-lsh predict --model results/runs/.../seed-0/model pairs.txt

reads lines of text from a file or standard input, the two texts of a pair separated by a tab (for SQuAD question, tab,
paragraph), JSON objects with the task's own columns: *.json or *.jsonl, a list of them or one a line, or a table with
these columns: *.csv, *.tsv or *.parquet. It prints

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
import math
import os
import reprlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from scipy.special import softmax
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForQuestionAnswering,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TextClassificationPipeline,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline

from albert_lsh import squad
from albert_lsh.data import readable
from albert_lsh.files import explain_out_of_memory
from albert_lsh.model.load import load_config, load_model, load_tokenizer, longest_input
from albert_lsh.sources import FORMATS, read
from albert_lsh.tasks import SAVED_TASK, Task, find_task, task_of

QUESTION_ANSWERING = "extractive-question-answering"
Base: Any = ChunkPipeline  # its type annotations forbid what Transformers' own chunk pipelines do


class QuestionAnsweringPipeline(Base):
    """Answers a question with a piece of a context, or not at all; see `squad.best_answers`.

    Transformers no longer has such a pipeline, and refuses its name, "question-answering"; ours has another:

        model, tokenizer = load_model(path, head="question-answering"), load_tokenizer(path)
        answer = transformers.pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)
        answer(question="Who wrote there?", context="Simone wrote there in 1943.")

    Call it with question and context, each a text or both lists of them, with {"question": ..., "context": ...}, or
    with a list or generator of these. Its options, when it is made or called, are

        max_length     the most tokens of a window; the default is `longest_input`
        no_answer      whether "" may be the answer, as in SQuAD 2.0; False by default
        batch_size     windows that go through the model at a time; 1 by default

    and returns, for each question,

        answer         a piece of the context, or ""
        start, end     [start, end) of it in the context's characters; both 0 for ""
        score          0 to 1: its share among the 20 best answers, by the softmax of their logits, which BERT's
                       run_squad.py calls probability; 0 if the context has no token

    Raises:
        ValueError: a question or context that is missing or no text, lists of different lengths, another option, such
            as Transformers' former pipeline had; a max_length above the model's positions, or too short for any
            context; logits that are not finite.
    """

    _load_tokenizer = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.check_model_type(MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES)

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **kwargs) -> Any:
        if inputs is None and isinstance(question, list | tuple) and isinstance(context, list | tuple):
            if len(question) != len(context):
                raise ValueError(f"question has {len(question)} texts, context {len(context)}; they must be as many")
            inputs = [{"question": q, "context": c} for q, c in zip(question, context, strict=True)]
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__({"question": question, "context": context} if inputs is None else inputs, **kwargs)

    def _sanitize_parameters(self, **options):
        if unknown := ", ".join(options.keys() - {"max_length", "no_answer"}):
            known = "max_length, no_answer, batch_size"
            raise ValueError(f"{unknown}: no option of {QUESTION_ANSWERING!r}; there are: {known}")
        longest, length = longest_input(self.model, self.tokenizer), options.get("max_length")
        if length is not None and (type(length) is not int or not 8 <= length <= longest):
            raise ValueError(f"max_length={length!r} must be a whole number, 8 to {longest}")
        if not isinstance(no_answer := options.get("no_answer"), bool | None):
            raise ValueError(f"no_answer={no_answer!r} must be True or False")
        reading, choosing = ({name: options[name]} if name in options else {} for name in ("max_length", "no_answer"))
        return reading, {}, choosing

    def preprocess(self, inputs: dict[str, str], max_length: int | None = None) -> Iterator[dict[str, Any]]:
        """The windows of one question, each with the examples and windows that `postprocess` needs."""
        for name in ("question", "context"):
            if not isinstance(inputs, dict) or not isinstance(inputs.get(name), str):
                raise ValueError(f"input={reprlib.repr(inputs)} must have question and context, both texts")
        longest = max_length or longest_input(self.model, self.tokenizer)
        examples, windows = squad.windows_of(inputs["question"], inputs["context"], self.tokenizer, max_length=longest)
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in windows.column_names]
        for number, window in enumerate(windows):
            tensors = {name: torch.tensor(window[name])[None] for name in names}
            yield {**tensors, "read": (examples, windows), "is_last": number == len(windows) - 1}

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        carried = {name: model_inputs.pop(name) for name in ("read", "is_last")}
        out = self.model(**model_inputs)
        return {"start": out.start_logits, "end": out.end_logits, **carried}

    def postprocess(self, model_outputs: list[dict[str, Any]], no_answer: bool = False) -> dict[str, Any]:
        sides = [[out[side][0].float() for out in model_outputs] for side in ("start", "end")]
        logits = [pad_sequence(rows, batch_first=True).numpy() for rows in sides]  # (windows, length) each
        (best,) = squad.best_answers(*model_outputs[0]["read"], *logits, no_answer=no_answer).values()
        texts, values = [text for text, _ in best.n_best], [value for _, value in best.n_best]
        score = float(softmax(values)[texts.index(best.text)]) if texts else 0.0
        return {"answer": best.text, "score": score, "start": best.start, "end": best.end}


PIPELINE_REGISTRY.register_pipeline(
    QUESTION_ANSWERING, QuestionAnsweringPipeline, pt_model=AutoModelForQuestionAnswering
)


def read_rows(file: str, task: Task) -> list[dict[str, str]]:
    """The task's columns of every example in a file or on standard input ("-").

    Raises:
        ValueError: naming the line, row or entry of a JSON list, and what is wrong with it.
    """
    name, file = "standard input" if file == "-" else file, os.path.expanduser(file)
    kind = FORMATS.get(Path(file).suffix.lower())
    if kind in ("csv", "parquet"):
        rows = {f"{name}, row {n}": row for n, row in enumerate(read(file, name)["train"])}
    else:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        try:
            text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not UTF-8: {error}") from error
        lines = {f"{name}, line {n}": line for n, line in enumerate(text.split("\n"), 1)} if text.strip() else {}
        if kind == "json" and text.lstrip().startswith("["):
            rows = {f"{name}, entry {n}": row for n, row in enumerate(from_json(name, text), 1)}
        else:
            rows = {n: from_json(n, line) if kind == "json" else from_line(n, line, task) for n, line in lines.items()}
    if not rows:
        raise ValueError(f"{name} is empty; it must hold one example a line, or JSON")
    for place, row in rows.items():
        if not isinstance(row, dict):
            raise ValueError(f"{place} is {reprlib.repr(row)}; it must be an object with {', '.join(task.columns)}")
        if missing := [column for column in task.columns if column not in row]:
            reads = f"which task {task.name!r} reads; it has: {', '.join(row)}"
            raise ValueError(f"{place} has no column {missing[0]!r}, {reads}")
        for column in task.columns:
            text = row[column]
            # JSON can spell lone surrogates, which are no characters.
            if not isinstance(text, str) or not text.strip() or any("\ud800" <= char <= "\udfff" for char in text):
                raise ValueError(f"{place}: {column}={reprlib.repr(text)} must be text, and not empty")
    return [{column: row[column] for column in task.columns} for row in rows.values()]


def from_line(place: str, line: str, task: Task) -> dict[str, str]:
    """The texts of a line, by column."""
    texts = line.split("\t")
    if (tabs := len(texts) - 1) != len(task.columns) - 1:
        wanted = ", tab, ".join(task.columns)
        raise ValueError(f"{place} has {tabs or 'no'} tab{'s' * (tabs != 1)}; task {task.name!r} reads {wanted}")
    return dict(zip(task.columns, texts, strict=True))


def from_json(place: str, text: str) -> Any:
    """A JSON text, read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        wanted = "a file has a list of objects, or one object a line"
        raise ValueError(f"{place} is not JSON ({error}); {wanted}") from error


def saved_task(model: str) -> Task:
    """The task that a model was fine-tuned on, as `train` saves it with it; ValueError where it does not say."""
    if not (saved := getattr(load_config(model), SAVED_TASK, None)):
        raise ValueError(f"model={model!r} does not say which task it was fine-tuned on; name it with --task")
    return replace(task_of(saved), no_answer=saved["no_answer"])


def load(model: str, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model that was fine-tuned on the task, with the names of its classes, and its tokenizer.

    Raises:
        ValueError: it was made for something else. ModelError (a ValueError): it cannot be read, or lacks parts.
    """
    config, ending = load_config(model), "ForQuestionAnswering" if task.is_squad else "ForSequenceClassification"
    saved = (config.architectures or ["not fine-tuned"])[0]
    if not saved.endswith(ending):
        raise ValueError(f"model={model!r} is {saved}; task {task.name!r} needs one that was saved as ...{ending}")
    names = list(config.id2label.values())
    unnamed, lower = names == [f"LABEL_{n}" for n in range(task.num_labels)], {name.lower() for name in task.labels}
    if not task.is_squad and not unnamed and {name.lower() for name in names} != lower:
        wanted = ", ".join(task.labels) or "none: it predicts a number"
        raise ValueError(f"model={model!r} has the labels {', '.join(names)}; task {task.name!r} has {wanted}")
    loaded = load_model(model, head=task.head, complete=True, **(task.model_options if unnamed else {}))
    tokenizer, known = load_tokenizer(model), loaded.config.vocab_size
    if len(tokenizer) > known:
        raise ValueError(f"model={model!r}: its tokenizer knows {len(tokenizer)} tokens, its weights only {known}")
    return loaded, tokenizer


def predict(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, rows: list[dict[str, str]], batch_size: int
) -> Iterator[dict[str, Any]]:
    """What the model says about every row, in their order, as the module's first lines show it.

    Args:
        model, tokenizer: of `load`.
        rows: the task's columns.
        batch_size: texts or windows that go through the model at a time.
    Raises:
        ValueError: the model's scores of an example are not finite; the message says which.
    """
    made_of: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "batch_size": batch_size}
    if task.is_squad:
        yield from QuestionAnsweringPipeline(**made_of, no_answer=task.no_answer)(row for row in rows)
        return
    names: Any = model.config.id2label
    function = "softmax" if task.labels else "none"
    classify: Any = TextClassificationPipeline(**made_of, top_k=None, function_to_apply=function)
    longest = longest_input(model, tokenizer)
    texts = (readable([*row.values()], tokenizer, longest) for row in rows)
    inputs = (dict(zip(("text", "text_pair"), pair, strict=False)) for pair in texts)
    for number, classes in enumerate(classify(inputs, truncation=True, max_length=longest), 1):  # the likeliest first
        if not all(math.isfinite(entry["score"]) for entry in classes):
            raise ValueError(f"example {number}: the model's scores are not finite")
        if task.labels:
            scores = {entry["label"]: entry["score"] for entry in classes}
            yield {**classes[0], "scores": {name: scores[name] for _, name in sorted(names.items())}}
        else:
            yield {"value": classes[0]["score"]}


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
    command.add_argument("file", nargs="?", default="-", help="texts or JSON; standard input if it is not given")
    options = parser.parse_args(arguments)
    transformers.logging.disable_progress_bar()
    try:
        task = find_task(options.task) if options.task else saved_task(options.model)
        rows = read_rows(options.file, task)
        with explain_out_of_memory("a smaller --batch-size"):
            for row in predict(*load(options.model, task), task, rows, options.batch_size):
                print(json.dumps(row, ensure_ascii=False), flush=True)
    except BrokenPipeError:  # whoever read the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
