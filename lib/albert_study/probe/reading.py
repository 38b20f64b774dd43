"""A pretrained encoder reads paragraphs under softmax, then under other attentions: no task, nothing trained.

A sequence has `max_length` tokens and no padding. It is a paragraph of SQuAD's dev set if enough of them are that long,
else several that follow one another. Where the model has fewer positions, they are extended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, max_positions
from albert_lsh.record import provenance
from albert_lsh.run import Count, Seed
from albert_lsh.tasks import find_task, load_data
from albert_lsh.training.parameters import errors_named, from_given, placed, recorded
from albert_study.probe.candidates import Candidate, Measured, candidates_of, fill, told
from albert_study.probe.diagnostics import diagnose, look, summary


@dataclass(frozen=True)
class Reading:
    """The parameters of reading.ipynb; `variants` as `candidates_of` takes them."""

    variants: dict[str, Any]
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    task: str = "squad"
    max_length: Count = 256
    paragraphs: Count = 100
    seed: Seed = 0
    output: str | None = None
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Reading":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        with errors_named("reading.ipynb"):
            reading = from_given(cls, given, "reading.ipynb")
            candidates_of(reading.variants)
            if not find_task(reading.task).is_squad:
                raise ValueError(f"task={reading.task!r} has no paragraphs; squad, squad-v2 and mini-squad have")
            usual = f"results/runs/notebook/reading-{reading.max_length}.csv"
            return placed(replace(reading, output=reading.output or usual), ["output"], ["model"])


def load_texts(task: str) -> list[str]:
    """The paragraphs of a question-answering task's dev set, each once, in their order."""
    return list(dict.fromkeys(load_data(task)["validation"]["context"]))


def sequences(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int, count: int) -> torch.Tensor:
    """`count` sequences of `max_length` tokens, (count, max_length), special tokens included.

    Raises:
        ValueError: there is not enough text.
    """
    cut: dict[str, Any] = {"truncation": True, "max_length": max_length}
    chosen = [ids for ids in tokenizer(texts, **cut)["input_ids"] if len(ids) == max_length]
    if len(chosen) < count:  # too few paragraphs are that long: join all, and cut
        chosen = tokenizer(" ".join(texts), return_overflowing_tokens=True, **cut)["input_ids"]
        chosen = [ids for ids in chosen if len(ids) == max_length]
    if len(chosen) < count:
        raise ValueError(f"paragraphs={count} of max_length={max_length}: there is text for only {len(chosen)}")
    return torch.tensor(chosen[:count])


def read_all(reading: Reading, batch_tokens: int = 2048) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read under softmax, then under every candidate that the table at reading.output lacks (see `candidates.fill`).

    Beside it, with "-layers" in the name, goes what each does layer by layer.

    Returns:
        The table, a row for each candidate; and what each does layer by layer.
    """

    def measure(missing: list[Candidate]) -> Iterator[Measured]:
        texts = load_texts(reading.task)
        model, tokenizer = load_model(reading.model, head="base", complete=True), load_tokenizer(reading.model)
        if reading.max_length > max_positions(model.config):
            extend_positions(model, reading.max_length)
        ids = sequences(texts, tokenizer, reading.max_length, reading.paragraphs)
        at_once = max(1, batch_tokens // reading.max_length)
        batches = [BatchEncoding({"input_ids": x, "attention_mask": torch.ones_like(x)}) for x in ids.split(at_once)]
        base, about = look(model, batches), provenance("cpu")
        for candidate in told(missing):
            row, rows = diagnose(model, batches, base, candidate, reading.seed)
            yield {**candidate.columns, **row, **about}, summary(rows, ["layer"])

    same = {"model": recorded(reading)["model"], "task": reading.task, "split": "validation"}
    same |= {"length": reading.max_length, "paragraphs": reading.paragraphs, "hash_seed": reading.seed}
    return fill(Path(reading.output or ""), "layers", candidates_of(reading.variants), same, measure)
