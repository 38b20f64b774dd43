"""What a pretrained model loses when its attention is replaced, nothing trained: its own loss on masked words.

A sequence is a paragraph, cut at `max_length` tokens, without padding; shorter paragraphs are left out. MASKED_SHARE of
its tokens are hidden and predicted, the same under every attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh import attention
from albert_lsh.model.load import load_model, load_tokenizer, switch_attention
from albert_lsh.record import provenance
from albert_lsh.run import Count, Seed
from albert_lsh.tasks import load_data
from albert_lsh.training.parameters import errors_named, from_given, placed, recorded
from albert_study.probe.candidates import Candidate, Measured, candidates_of, fill, told

MASKED_SHARE = 0.15  # of the tokens, as in pretraining
AT_ONCE = 2048  # tokens of a batch


@dataclass(frozen=True)
class MaskedWords:
    """The parameters of masked_words.ipynb; `variants` as `candidates_of` takes them."""

    variants: dict[str, Any]
    model: str = "kykim/albert-kor-base"
    task: str = "korquad"
    split: Literal["train", "validation"] = "train"
    max_length: Count = 128
    paragraphs: Count = 100
    seed: Seed = 0
    output: str | None = None
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "MaskedWords":
        """From a notebook's variables (pass `globals()`); ParameterError says what is wrong with them."""
        with errors_named("masked_words.ipynb"):
            asked = from_given(cls, given, "masked_words.ipynb")
            candidates_of(asked.variants, by_pass=True)
            usual = f"results/runs/notebook/masked-words-{asked.split}-{asked.max_length}.csv"
            return placed(replace(asked, output=asked.output or usual), ["output"], ["model"])


def sequences(asked: MaskedWords, tokenizer: Any) -> Tensor:
    """The first paragraphs that are long enough: (paragraphs, max_length) token ids.

    Raises:
        ValueError: there are too few.
    """
    texts = list(dict.fromkeys(load_data(asked.task)[asked.split]["context"]))
    rows = tokenizer(texts, truncation=True, max_length=asked.max_length)["input_ids"]
    chosen = [row for row in rows if len(row) == asked.max_length][: asked.paragraphs]
    if len(chosen) < asked.paragraphs:
        found = f"only {len(chosen)} of {asked.task!r} ({asked.split}) are that long"
        raise ValueError(f"paragraphs={asked.paragraphs} of max_length={asked.max_length}: {found}")
    return torch.tensor(chosen)


def hide(tokens: Tensor, seed: int) -> Tensor:
    """Which tokens are hidden; never the first and the last one, which are special."""
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < MASKED_SHARE
    hidden[:, 0] = hidden[:, -1] = False
    return hidden


@torch.no_grad()
def losses(model: Any, tokens: Tensor, hidden: Tensor, mask_id: int) -> Tensor:
    """Cross-entropy of each hidden token, in nats, in the order of the text."""
    found, rows = [], max(1, AT_ONCE // tokens.shape[1])
    for some, where in zip(tokens.split(rows), hidden.split(rows), strict=True):
        logits = model(some.masked_fill(where, mask_id)).logits[where]
        found.append(F.cross_entropy(logits.float(), some[where], reduction="none"))
    return torch.cat(found)


def by_paragraph(words: Tensor, hidden: Tensor) -> tuple[float, float]:
    """Mean over words, and its standard error with paragraphs as units: words of one are not independent."""
    counts = hidden.sum(1)
    sums = torch.stack([part.sum() for part in words.split(counts.tolist())])
    mean = sums.sum() / counts.sum()
    residual = sums - mean * counts
    n = len(counts)
    return mean.item(), (residual.square().sum() * n / (n - 1)).sqrt().item() / int(counts.sum())


def measure_all(asked: MaskedWords) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The loss under softmax, then under every candidate that the table at asked.output lacks (see `candidates.fill`).

    Returns:
        The table, a row for each candidate: loss, softmax_loss, their difference with its standard error, change (the
        mean absolute difference of a word's loss) likewise, and the full cost at this length; and the sums of both
        losses by paragraph.
    """

    def measure(missing: list[Candidate]) -> Iterator[Measured]:
        tokenizer = load_tokenizer(asked.model)
        model = load_model(asked.model, head="masked-lm", attention="softmax", complete=True)
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        depth = model.config.num_hidden_layers
        tokens = sequences(asked, tokenizer)
        hidden, mask_id, about = hide(tokens, asked.seed), tokenizer.mask_token_id, provenance("cpu")
        softmax = losses(model, tokens, hidden, mask_id)
        for candidate in told(missing):
            switch_attention(model, candidate.attention, candidate.settings, asked.seed, candidate.passes)
            found = losses(model, tokens, hidden, mask_id)
            row = {"loss": found.mean().item(), "softmax_loss": softmax.mean().item(), "words": len(found)}
            row["difference"], row["standard_error"] = by_paragraph(found - softmax, hidden)
            row["change"], row["change_error"] = by_paragraph((found - softmax).abs(), hidden)
            cost = attention.cost(candidate.attention, asked.max_length, head_dim, **candidate.settings)
            row["cost"] = 1 + (cost - 1) * (1 if candidate.passes is None else len(candidate.passes) / depth)
            counts = hidden.sum(1).tolist()
            sums = {n: [part.sum().item() for part in x.split(counts)] for n, x in (("s", softmax), ("f", found))}
            looks = pd.DataFrame({"words": counts, "softmax_loss": sums["s"], "loss": sums["f"]})
            yield {**candidate.columns, **row, **about}, looks.rename_axis("paragraph").reset_index()

    same = {"model": recorded(asked)["model"], "task": asked.task, "split": asked.split, "length": asked.max_length}
    same |= {"paragraphs": asked.paragraphs, "seed": asked.seed}
    return fill(Path(asked.output or ""), "paragraphs", candidates_of(asked.variants, by_pass=True), same, measure)
