"""One pass through an attention of a model: which attention it has, and its inputs for who wants to look at them.

ALBERT passes twelve times through one attention module, each time with other hashes.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.attention.keys import count_tokens
from albert_lsh.model.config import ModelError

logger = logging.getLogger(__name__)

NEARLY_ALL = 0.95  # of the pairs; reformer never attends to a query's own key


class Pass(NamedTuple):
    """The inputs of one pass through an attention; enough to compute it again (a convolution's weights aside)."""

    attention: str
    settings: dict[str, Any]
    seed: int
    query: Tensor  # (batch, heads, length, head_dim)
    key: Tensor
    value: Tensor
    padding_mask: Tensor | None  # (batch, length) bool

    def coverage(self) -> attentions.Coverage:
        """What this pass attends to; see `attention.coverage`."""
        return attentions.coverage(*self._given, seed=self.seed, **self.settings)

    def pairs(self) -> Tensor:
        """Which query meets which key; see `attention.pairs`."""
        return attentions.pairs(*self._given, seed=self.seed, **self.settings)

    @property
    def _given(self) -> tuple[str, Tensor, Tensor, Tensor | None]:
        return self.attention, self.query, self.key, self.padding_mask


def mean_coverage(passes: list[Pass]) -> attentions.Coverage:
    """The coverage of several passes: means over all their pairs, of the mass over all their queries."""
    tokens = [count_tokens(one.query, one.padding_mask) for one in passes]
    pairs = [int(n.square().sum()) for n in tokens]
    weights = [attentions.Coverage(n, int(own.sum()), n) for n, own in zip(pairs, tokens, strict=True)]
    totals = np.multiply([one.coverage() for one in passes], weights).sum(0)
    return attentions.Coverage(*(totals / np.sum(weights, 0).clip(min=1)).tolist())  # 0 for nothing but padding


# The lists that record passes in this thread, each with the config of the recorded model.
RECORDING: ContextVar[tuple[tuple[Any, list[Pass]], ...]] = ContextVar("recording", default=())


class CurrentPass:
    """One pass: its number, and the attention, settings and seed that follow from it."""

    def __init__(self, chosen: dict[str, Any], number: int, recorded: list[Pass] | None):
        self.chosen, self.number, self.recorded = chosen, number, recorded
        self.seed = chosen["seed"] + 1_000_003 * number

    def attention(self, training: bool) -> tuple[str, dict[str, Any]]:
        """Name and settings of its attention; softmax if this pass is not chosen."""
        only, settings = self.chosen["passes"], self.chosen["settings"]
        if only is not None and self.number not in only:
            return "softmax", {}
        return self.chosen["attention"], settings if training else {**settings, **self.chosen["evaluation_settings"]}

    def generator(self, training: bool) -> torch.Generator | None:
        """Of its hashes: torch's global one (None) in training; in evaluation it follows from seed and number."""
        return None if training else torch.Generator().manual_seed(self.seed)

    def record(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, training: bool) -> None:
        """Append the inputs to the list of `record_passes`, if there is one."""
        if self.recorded is not None:
            chosen = (*self.attention(training), self.seed)
            self.recorded.append(Pass(*chosen, query.detach(), key.detach(), value.detach(), padding_mask))
            self.recorded = None  # once; the backward pass may compute it again


def passes_of(config: Any) -> Iterator[CurrentPass]:
    """The passes of one call of an encoder.

    ALBERT goes through one attention module twelve times and gives it no layer number; counting the passes gives each
    its own hashes. The count is an argument of the call, not kept in the model, so calls in other threads or of copies
    do not disturb it.
    """
    recorded = next((passes for of, passes in reversed(RECORDING.get()) if of is config), None)
    for number in count():
        yield CurrentPass(config.albert_lsh, number, recorded)


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """A model of Transformers, or the one inside of a SentenceTransformer or another wrapper; else ModelError."""
    found = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if found is None:
        raise ModelError(f"{type(model).__name__} holds no model of Transformers")
    return found


@contextmanager
def record_passes(model: nn.Module) -> Iterator[list[Pass]]:
    """Record the inputs of every attention pass of a model, in the order of the layers.

        with record_passes(model) as passes:
            model(**inputs)

    Calls in other threads are not recorded.
    """
    passes: list[Pass] = []
    token = RECORDING.set((*RECORDING.get(), (transformers_model(model).config, passes)))
    try:
        yield passes
    finally:
        RECORDING.reset(token)


@torch.no_grad()
def mean_attended(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> attentions.Coverage:
    """The `mean_coverage` of a model in evaluation, over all passes, heads and batches.

    Warns of a sparse attention that attends to (nearly) all pairs.

    batches: the model's inputs by name, on its device.
    """
    model.eval()
    with record_passes(model) as passes:
        for batch in batches:
            model(**batch)
    coverage = mean_coverage(passes)
    # `rest` stands for unseen keys; cluster_size is smyrf's, full_attn_thres reformer's
    sparse = {p.attention for p in passes if p.settings.keys() & {"rest", "cluster_size", "full_attn_thres"}}
    if sparse and coverage.pairs > NEARLY_ALL:
        name = sparse.pop()
        way = "smaller bucket_size and full_attn_thres" if name == "reformer" else 'a budget such as {"share": 0.25}'
        said = f"attention={name!r} attends to {coverage.pairs:.0%} of the pairs, as softmax does"
        logger.warning("%s; %s in attention_settings would leave pairs out", said, way)
    return coverage
