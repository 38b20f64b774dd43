"""Each pass through a model's attention: which attention and which hashes it has, and what it was given.

`attend_in_model` is the one function that Transformers calls for every attention of ours; `model.load_model` gives all
attention modules of a model the same `Passes`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask

from albert_lsh import attention as attentions
from albert_lsh.attention.clusters import count_tokens
from albert_lsh.attention.reformer import ReformerSelfAttention

# The name under which Transformers knows our attentions.
INTERFACE = "albert_lsh"


class Pass(NamedTuple):
    """What one pass through an attention was given: enough to ask whom it let meet, or to do it again.

    The weights of a convolution of the values are the model's and not among it.
    """

    attention: str
    settings: dict[str, Any]
    seed: int
    query: Tensor  # (batch, heads, length, head_dim)
    key: Tensor
    value: Tensor
    padding_mask: Tensor | None  # (batch, length) bool

    def coverage(self) -> attentions.Coverage:
        return attentions.coverage(
            self.attention, self.query, self.key, self.padding_mask, seed=self.seed, **self.settings
        )

    def pairs(self) -> Tensor:
        return attentions.pairs(
            self.attention, self.query, self.key, self.padding_mask, seed=self.seed, **self.settings
        )


def mean_coverage(passes: list[Pass]) -> attentions.Coverage:
    """The coverage of several passes together: of all their pairs, and of all their queries."""
    pairs, mass, compared, all_pairs, tokens = 0.0, 0.0, 0.0, 0, 0
    for seen in passes:
        lengths, found = count_tokens(seen.query, seen.padding_mask), seen.coverage()
        n_pairs, n_tokens = int(lengths.square().sum()), int(lengths.sum())
        pairs, compared, mass = (
            pairs + found.pairs * n_pairs,
            compared + found.compared * n_pairs,
            mass + found.mass * n_tokens,
        )
        all_pairs, tokens = all_pairs + n_pairs, tokens + n_tokens
    return attentions.Coverage(pairs / all_pairs, mass / tokens, compared / all_pairs)


class Passes:
    """The attention of one model, and which pass through it comes next.

    ALBERT goes through one and the same attention module twelve times and tells it no layer number. Counting the
    passes of a forward call gives each its own hashes: while training they are drawn from torch's global generator,
    in evaluation they follow from `seed` and the number of the pass alone.
    """

    def __init__(self, chosen: dict[str, Any], max_length: int):
        """chosen: what the model's config keeps of the attention; see `load_model`."""
        self.chosen, self.max_length = chosen, max_length
        self.number = 0
        self.recorded: list[Pass] | None = None

    def start(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Forward pre-hook of the encoder: begin with pass 0, and refuse a sequence longer than its positions."""
        self.number = 0
        named = [kwargs[n] for n in ("input_ids", "inputs_embeds") if kwargs.get(n) is not None]
        tokens = next(iter([*named, *args]))
        if tokens.shape[1] > self.max_length:
            raise ValueError(
                f"a sequence of {tokens.shape[1]} tokens is longer than the {self.max_length} positions of this model; "
                "shorten it (max_length) or take a model with more positions"
            )

    @property
    def next_seed(self) -> int:
        return self.chosen["seed"] + 1_000_003 * self.number

    def next_attention(self, training: bool) -> tuple[str, dict[str, Any]]:
        """Name and settings of the next pass's attention; softmax where it is not chosen."""
        only, settings = self.chosen["passes"], self.chosen["settings"]
        if only is not None and self.number not in only:
            return "softmax", {}
        if not training:
            settings = {**settings, **self.chosen["evaluation_settings"]}
        return self.chosen["attention"], settings

    def record(
        self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, training: bool = False
    ) -> None:
        """Keep what the next pass is given, if somebody asked for it (`record_passes`)."""
        if self.recorded is not None:
            tensors = (query.detach(), key.detach(), value.detach(), padding_mask)
            name, settings = self.next_attention(training)
            self.recorded.append(Pass(name, settings, self.next_seed, *tensors))

    def next(self, training: bool) -> torch.Generator | None:
        """The generator of the next pass: None, torch's global one, while training."""
        generator = None if training else torch.Generator().manual_seed(self.next_seed)
        self.number += 1
        return generator


def attend_in_model(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs
) -> tuple[Tensor, None]:
    """The function behind every attention of ours, as Transformers' AttentionInterface wants it.

    query, key, value: (batch, heads, length, head_dim); attention_mask: (batch, length), or None when nothing is
    padded. Returns (batch, length, heads, head_dim) and no weights.
    """
    passes = module.passes
    mask = None if attention_mask is None else attention_mask.bool()
    attentions.check_tensors(query, key, value, mask)
    passes.record(query, key, value, mask, module.training)
    name, settings = passes.next_attention(module.training)
    generator = passes.next(module.training)
    if settings.get("conv_kernel_size") is not None:
        settings = {**settings, "conv_weight": module.convolution.weight}
    out = attentions.ATTENTIONS[name].attend(
        query, key, value, mask, scaling=scaling, dropout=dropout, generator=generator, **settings
    )
    return out.transpose(1, 2).contiguous(), None


# Without a mask function of the same name Transformers would silently hand over no mask at all.
AttentionInterface.register(INTERFACE, attend_in_model)
AttentionMaskInterface.register(INTERFACE, flash_attention_mask)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that hold query, key and value projections, or stand in their place, in the order of the layers."""
    parts = ("query", "key", "value")
    return [
        m for m in model.modules() if isinstance(m, ReformerSelfAttention) or all(hasattr(m, part) for part in parts)
    ]


@contextmanager
def record_passes(model: nn.Module) -> Iterator[list[Pass]]:
    """Within, every attention pass of the model appends what it was given to a list, in the order of the layers."""
    passes = attention_modules(model)[0].__dict__["passes"]
    passes.recorded = []
    try:
        yield passes.recorded
    finally:
        passes.recorded = None


@torch.no_grad()
def mean_attended(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> attentions.Coverage:
    """The shares of pairs and of softmax's mass that a model attends to in evaluation, over all passes and heads.

    batches: inputs of the model, by name, on its device.
    """
    model.eval()
    seen = []
    for batch in batches:
        with record_passes(model) as passes:
            model(**batch)
        seen += passes
    return mean_coverage(seen)
