"""A pretrained encoder reads paragraphs under softmax, then under other attentions: no task, nothing trained.

Sequences of `max_length` tokens without padding: a paragraph of SQuAD's dev set, one that reaches this length by itself
if there are enough of them, else with the paragraphs that follow it. Where the model has fewer positions, they are
extended.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from albert_lsh.diagnostics import diagnose, look
from albert_lsh.model import extend_positions, load_model, load_tokenizer, max_positions
from albert_lsh.runs import ParameterError, provenance, write_atomically
from albert_lsh.tasks import load_data
from albert_lsh.variants import from_given_with_variants, list_variants

BATCH_TOKENS = 2048  # of a batch


@dataclass(frozen=True)
class Reading:
    """The parameters of reading.ipynb; variants as `variants.list_variants` takes them."""

    variants: dict[str, Any]
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    task: str = "squad"
    max_length: int = 256
    paragraphs: int = 100
    seed: int = 0
    output: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Reading":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        reading = from_given_with_variants(cls, given, "reading.ipynb")
        for name in ("max_length", "paragraphs"):
            if getattr(reading, name) < 1:
                raise ParameterError(f"{name}={getattr(reading, name)} must be 1 or more (reading.ipynb)")
        return replace(reading, output=reading.output or f"results/runs/notebook/reading-{reading.max_length}.csv")


def load_texts(task: str) -> list[str]:
    """The paragraphs of a question-answering task's dev set, each once, in their order."""
    return list(dict.fromkeys(load_data(task)["validation"]["context"]))


def sequences(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int, count: int) -> torch.Tensor:
    """`count` sequences of `max_length` tokens, (count, max_length), special tokens included.

    Raises:
        ValueError: there is not so much text.
    """
    cut: dict[str, Any] = {"truncation": True, "max_length": max_length}
    chosen = [ids for ids in tokenizer(texts, **cut)["input_ids"] if len(ids) == max_length]
    if len(chosen) < count:  # too few paragraphs are so long: put all together, and cut
        chosen = tokenizer(" ".join(texts), return_overflowing_tokens=True, **cut)["input_ids"]
        chosen = [ids for ids in chosen if len(ids) == max_length]
    if len(chosen) < count:
        raise ValueError(f"paragraphs={count} of max_length={max_length}: there is text for {len(chosen)} only")
    return torch.tensor(chosen[:count])


def read_all(reading: Reading) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Every variant held against softmax; the table is written to reading.output when all are done.

    What is measured is kept beside it until then, so that an interrupted reading goes on where it was.

    Returns:
        The table, one row a variant (see `diagnostics.diagnose`), and the looks into every pass.
    """
    about = provenance("cpu")
    model, tokenizer = load_model(reading.model, head="base"), load_tokenizer(reading.model)
    if reading.max_length > max_positions(model.config):
        extend_positions(model, reading.max_length)
    ids = sequences(load_texts(reading.task), tokenizer, reading.max_length, reading.paragraphs)
    at_once = max(1, BATCH_TOKENS // reading.max_length)
    batches = [BatchEncoding({"input_ids": x, "attention_mask": torch.ones_like(x)}) for x in ids.split(at_once)]
    base = look(model, batches)
    about |= {"model": reading.model, "task": reading.task, "split": "validation"}
    alike = {"length": reading.max_length, "paragraphs": reading.paragraphs, "hash_seed": reading.seed}
    path = Path(reading.output or "")
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, kept_looks = (path.with_name(f"{path.stem}{end}.partial.csv") for end in ("", "-looks"))
    table, looks = (pd.read_csv(x) if kept.exists() else pd.DataFrame() for x in (kept, kept_looks))
    for variant in list_variants(reading.variants):
        named = {"variant": variant.label, "attention": variant.attention, "settings": json.dumps(variant.settings)}
        wanted = {**named, **alike, "model": reading.model, "task": reading.task}
        if any(row.items() >= wanted.items() for row in table.to_dict("records")):
            continue
        row, rows = diagnose(model, batches, base, variant, reading.seed)
        table = pd.concat([table, pd.DataFrame([{**named, **row, **alike, **about}])], ignore_index=True)
        looks = pd.concat([looks, rows.assign(variant=variant.label)], ignore_index=True)
        write_atomically(kept_looks, looks.to_csv(index=False))
        write_atomically(kept, table.to_csv(index=False))
    table, looks = (x[x["variant"].isin(reading.variants)].reset_index(drop=True) for x in (table, looks))
    write_atomically(path, table.to_csv(index=False))
    kept.unlink()
    kept_looks.unlink()
    return table, looks
