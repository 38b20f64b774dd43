"""The passes of a model through its attentions: what each is computed with, for who wants to look at it."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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
        rows = self.query, self.key, self.padding_mask
        return attentions.coverage(self.attention, *rows, seed=self.seed, **self.settings)

    def pairs(self) -> Tensor:
        """Which query meets which key; see `attention.pairs`."""
        rows = self.query, self.key, self.padding_mask
        return attentions.pairs(self.attention, *rows, seed=self.seed, **self.settings)


# The lists that record passes in this thread, each with the config of the recorded model.
RECORDING: ContextVar[tuple[tuple[Any, list[Pass]], ...]] = ContextVar("recording", default=())


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """A model of Transformers, or the one inside of a SentenceTransformer or another wrapper; else ModelError."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ModelError(f"{type(model).__name__} holds no model of Transformers")


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


def mean_coverage(passes: list[Pass]) -> attentions.Coverage:
    """The coverage of several passes: means over all their pairs, of the mass over all their queries."""
    tokens = [count_tokens(one.query, one.padding_mask) for one in passes]
    pairs = [int(n.square().sum()) for n in tokens]
    weights = [attentions.Coverage(n, int(own.sum()), n) for n, own in zip(pairs, tokens, strict=True)]
    totals = np.multiply([one.coverage() for one in passes], weights).sum(0)
    return attentions.Coverage(*(totals / np.sum(weights, 0).clip(min=1)).tolist())  # 0 for nothing but padding


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
        all_pairs = f"attention={sparse.pop()!r} attends to {coverage.pairs:.0%} of the pairs, as softmax does"
        way = 'such as {"share": 0.25}, or of reformer smaller bucket_size and full_attn_thres'
        logger.warning("%s; attention_settings %s, would leave pairs out", all_pairs, way)
    return coverage
