"""A pretrained model reads paragraphs under softmax, then under other attentions: no labels, nothing trained.

    Reading       an encoder: how far its output drifts, and what the attention does layer by layer
    MaskedWords   a masked-language model: its loss on hidden words, the same ones under every attention

A sequence has `max_length` tokens and no padding.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
import torch.nn.functional as F
from pydantic import field_validator
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from albert_lsh import attention
from albert_lsh.data import load_data
from albert_lsh.encoders import max_positions
from albert_lsh.files import OneLineError
from albert_lsh.kinds import QuestionAnswering
from albert_lsh.machine import choose_threads
from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, switch_attention
from albert_lsh.record import provenance
from albert_lsh.run import Count, NameOrPath
from albert_lsh.sources import find_task
from albert_study.intervals import paired_ratio
from albert_study.probe.switched import diagnose, summary, trace
from albert_study.probe.variants import Measured, Probe, Variant, fill, variants_of

MASKED_SHARE = 0.15  # of the tokens, as in pretraining
AT_ONCE = 2048  # tokens of a batch


class Paragraphs(Probe):
    """What both notebooks have in common."""

    model: NameOrPath
    task: str
    split: str
    max_length: Count
    paragraphs: Count = 100

    @field_validator("task")
    @classmethod
    def of_paragraphs(cls, task: str) -> str:
        if not isinstance(find_task(task), QuestionAnswering):
            raise ValueError(f"task={task!r} has no paragraphs; squad, squad-v2 and mini-squad have")
        return task

    @property
    def columns(self) -> dict[str, Any]:
        """What every row of the table says."""
        names = {"model": self.recorded()["model"], "task": self.task, "split": self.split}
        return names | {"length": self.max_length, "paragraphs": self.paragraphs}

    def texts(self) -> list[str]:
        """The paragraphs of the task's split, each once, in their order."""
        return list(dict.fromkeys(load_data(self.task)[self.split]["context"]))


class Reading(Paragraphs):
    """The parameters of reading.ipynb."""

    notebook: ClassVar[str] = "reading.ipynb"
    usual: ClassVar[str] = "results/runs/notebook/reading-{0.named}-{0.max_length}.csv"
    model: NameOrPath = "sentence-transformers/all-MiniLM-L6-v2"
    task: str = "squad"
    split: Literal["validation"] = "validation"
    max_length: Count = 256


class MaskedWords(Paragraphs):
    """The parameters of masked_words.ipynb; the seed is also that of the words that are hidden."""

    notebook: ClassVar[str] = "masked_words.ipynb"
    usual: ClassVar[str] = "results/runs/notebook/masked-words-{0.named}-{0.split}-{0.max_length}.csv"
    model: NameOrPath = "kykim/albert-kor-base"
    task: str = "korquad"
    split: Literal["train", "validation"] = "train"
    max_length: Count = 128


def sequences(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int, count: int, join: bool) -> Tensor:
    """Sequences of `max_length` tokens, (count, max_length), special tokens included: the first texts so long.

    Args:
        join: where too few texts are, cut all of them, one after the other.
    Raises:
        OneLineError: there is not enough text; the message has a max_length of which there is.
    """
    cut: dict[str, Any] = {"truncation": True, "max_length": max_length}
    parts = tokenizer(texts, **cut)["input_ids"]
    if sum(len(ids) == max_length for ids in parts) < count and join:
        parts = tokenizer(" ".join(texts), return_overflowing_tokens=True, **cut)["input_ids"]
    rows = [ids for ids in parts if len(ids) == max_length]
    if len(rows) < count:
        lengths = [0] * count + sorted(map(len, parts))
        shorter = sum(lengths) // count if join else lengths[-count]
        less = f"max_length={shorter} would do" if shorter > 2 else "take fewer"  # two tokens are special
        raise OneLineError(f"paragraphs={count} of max_length={max_length}: only {len(rows)} are that long; {less}")
    return torch.tensor(rows[:count])


def open_encoder(
    name: str, texts: list[str], max_length: int, count: int
) -> tuple[PreTrainedModel, list[BatchEncoding]]:
    """An encoder, its positions extended where it has fewer, and batches of `sequences` for it."""
    model, tokenizer = load_model(name, head="base", complete=True), load_tokenizer(name)
    if max_length > max_positions(model.config):
        extend_positions(model, max_length)
    parts = sequences(texts, tokenizer, max_length, count, join=True).split(max(1, AT_ONCE // max_length))
    return model, [BatchEncoding({"input_ids": part, "attention_mask": torch.ones_like(part)}) for part in parts]


def measure_reading(settings: Reading) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read under softmax, then under every variant that the table at settings.output lacks (see `fill`).

    Returns:
        The table, a row for each variant; and what each does layer by layer, beside it with "-layers" in its name.
    """

    def measure(missing: list[Variant]) -> Measured:
        choose_threads("cpu")
        model, batches = open_encoder(settings.model, settings.texts(), settings.max_length, settings.paragraphs)
        base, about = trace(model, batches), provenance("cpu")
        for variant in missing:
            row, rows = diagnose(model, batches, base, variant, settings.seed)
            yield row | about, summary(rows, ["layer"])

    same = settings.columns | {"hash_seed": settings.seed}
    return fill(Path(str(settings.output)), "layers", variants_of(settings.variants), same, measure)


def hide(tokens: Tensor, seed: int) -> Tensor:
    """Which tokens are hidden; never the first and the last one, which are special."""
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < MASKED_SHARE
    hidden[:, 0] = hidden[:, -1] = False
    return hidden


@torch.no_grad()
def losses(model: Any, tokens: Tensor, hidden: Tensor, mask_id: int) -> Tensor:
    """Cross-entropy of each hidden token, in nats, in the order of the text."""
    parts, rows = [], max(1, AT_ONCE // tokens.shape[1])
    for ids, where in zip(tokens.split(rows), hidden.split(rows), strict=True):
        logits = model(ids.masked_fill(where, mask_id)).logits[where]
        parts.append(F.cross_entropy(logits.float(), ids[where], reduction="none"))
    return torch.cat(parts)


def measure_masked_words(settings: MaskedWords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The loss under softmax, then under every variant that the table at settings.output lacks (see `fill`).

    Returns:
        The table, a row for each variant: loss, softmax_loss, their difference with its standard error, change (the
        mean absolute difference of a word's loss) likewise, and the full cost at this length; and the sums of both
        losses by paragraph.
    """

    def measure(missing: list[Variant]) -> Measured:
        choose_threads("cpu")
        tokenizer = load_tokenizer(settings.model)
        model = load_model(settings.model, head="masked-lm", attention="softmax", complete=True)
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        tokens = sequences(settings.texts(), tokenizer, settings.max_length, settings.paragraphs, join=False)
        hidden, mask_id, about = hide(tokens, settings.seed), tokenizer.mask_token_id, provenance("cpu")
        words = pd.DataFrame({"paragraph": hidden.nonzero()[:, 0].numpy(), "words": 1})
        words["softmax_loss"] = losses(model, tokens, hidden, mask_id).double().numpy()
        for variant in missing:
            switch_attention(model, variant.attention, variant.settings, settings.seed)
            words["loss"] = losses(model, tokens, hidden, mask_id).double().numpy()
            words["change"] = (words["loss"] - words["softmax_loss"]).abs()
            sums = words.groupby("paragraph").sum()  # the units of errors: words of one are not independent
            row: dict[str, Any] = {**words[["loss", "softmax_loss"]].mean(), "words": len(words)}
            row["difference"], row["standard_error"] = paired_ratio(sums["softmax_loss"], sums["loss"], sums["words"])
            row["change"], row["change_error"] = paired_ratio(sums["change"] * 0, sums["change"], sums["words"])
            row["cost"] = attention.cost(variant.attention, settings.max_length, head_dim, **variant.settings)
            yield row | about, sums[["words", "softmax_loss", "loss"]].reset_index()

    same = settings.columns | {"seed": settings.seed}
    return fill(Path(str(settings.output)), "paragraphs", variants_of(settings.variants), same, measure)
