"""Each pass through a model's attention: which attention and which hashes it has, and what it was given.

`attend_in_model` is the one function that Transformers calls for every attention of ours. `load.load_model` gives a
model the hooks that hand it the pass: a `Call` from encoder to layers, a `CurrentPass` from layer to attention.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import flash_attention_mask

from albert_lsh import attention as attentions
from albert_lsh.attention.reformer import ReformerSelfAttention
from albert_lsh.attention.rows import count_tokens
from albert_lsh.model.config import max_positions
from albert_lsh.model.memory import layers

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
    pairs, mass, cost, all_pairs, tokens = 0.0, 0.0, 0.0, 0, 0
    for seen in passes:
        lengths, found = count_tokens(seen.query, seen.padding_mask), seen.coverage()
        n_pairs, n_tokens = int(lengths.square().sum()), int(lengths.sum())
        pairs, cost, mass = pairs + found.pairs * n_pairs, cost + found.cost * n_pairs, mass + found.mass * n_tokens
        all_pairs, tokens = all_pairs + n_pairs, tokens + n_tokens
    all_pairs, tokens = max(1, all_pairs), max(1, tokens)  # of nothing but padding the shares are 0
    return attentions.Coverage(pairs / all_pairs, mass / tokens, cost / all_pairs)


# The lists that record passes in this thread, each with the config of the model whose passes it records.
RECORDING: ContextVar[tuple[tuple[Any, list[Pass]], ...]] = ContextVar("recording", default=())


class Call:
    """One call of an encoder: its attention, and how many passes it has begun.

    ALBERT goes through one and the same attention module twelve times and tells it no layer number. Counting the
    passes of a call gives each its own hashes. The count is an argument that goes along with the call, not kept in
    the model: so other calls of it, in other threads or of copies, do not disturb it.
    """

    def __init__(self, config: Any):
        self.chosen: dict[str, Any] = config.albert_lsh
        self.recorded = next((passes for of, passes in reversed(RECORDING.get()) if of is config), None)
        self.begun = 0

    def begin_pass(self) -> "CurrentPass":
        self.begun += 1
        return CurrentPass(self.chosen, self.begun - 1, self.recorded)


class CurrentPass:
    """A pass through the attention: its number, and the seed and settings that follow from it.

    While training its hashes are drawn from torch's global generator, in evaluation they follow from the model's
    seed and the number of the pass alone.
    """

    def __init__(self, chosen: dict[str, Any], number: int, recorded: list[Pass] | None):
        self.chosen, self.number, self.recorded = chosen, number, recorded
        self.seed = chosen["seed"] + 1_000_003 * number

    def attention(self, training: bool) -> tuple[str, dict[str, Any]]:
        """Name and settings of its attention; softmax where it is not chosen."""
        only, settings = self.chosen["passes"], self.chosen["settings"]
        if only is not None and self.number not in only:
            return "softmax", {}
        if not training:
            settings = {**settings, **self.chosen["evaluation_settings"]}
        return self.chosen["attention"], settings

    def generator(self, training: bool) -> torch.Generator | None:
        """Of its hashes; None is torch's global one."""
        return None if training else torch.Generator().manual_seed(self.seed)

    def record(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, training: bool) -> None:
        """Keep what it is given, if somebody asked for it (`record_passes`)."""
        if self.recorded is not None:
            name, settings = self.attention(training)
            tensors = (query.detach(), key.detach(), value.detach(), padding_mask)
            self.recorded.append(Pass(name, settings, self.seed, *tensors))
            self.recorded = None  # once; the backward pass may compute it again


def begin_call(encoder: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Forward pre-hook of an encoder: count its passes, and refuse a sequence longer than its positions."""
    named = [kwargs[n] for n in ("input_ids", "inputs_embeds") if kwargs.get(n) is not None]
    tokens = next(iter([*named, *args]), None)  # without any, the model itself says what is wrong
    if tokens is not None and tokens.shape[1] > (limit := max_positions(encoder.config)):
        raise ValueError(
            f"a sequence of {tokens.shape[1]} tokens is longer than the {limit} positions of this model; "
            "shorten it (max_length) or take a model with more positions"
        )
    return args, {**kwargs, "call": Call(encoder.config)}


def begin_pass(layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Forward pre-hook of a layer, which is outside of what is recomputed: a pass done again keeps its number."""
    rest = {name: value for name, value in kwargs.items() if name != "call"}
    return args, {**rest, "current_pass": kwargs["call"].begin_pass()}


def count_passes(model: PreTrainedModel) -> None:
    """Let every call of a model count its passes, and hand them to its attention modules."""
    model.base_model.register_forward_pre_hook(begin_call, with_kwargs=True)
    for layer in layers(model):
        layer.register_forward_pre_hook(begin_pass, with_kwargs=True)


def attend_in_model(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, *, current_pass: CurrentPass, **kwargs
) -> tuple[Tensor, None]:
    """The function behind every attention of ours, as Transformers' AttentionInterface wants it.

    query, key, value: (batch, heads, length, head_dim); attention_mask: (batch, length), or None when nothing is
    padded. Returns (batch, length, heads, head_dim) and no weights.
    """
    mask = None if attention_mask is None else attention_mask.bool()
    attentions.check_tensors(query, key, value, mask)
    current_pass.record(query, key, value, mask, module.training)
    name, settings = current_pass.attention(module.training)
    generator = current_pass.generator(module.training)
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
    """Within, every attention pass of the model appends what it was given to a list, in the order of the layers.

    Calls in other threads are not recorded.
    """
    passes: list[Pass] = []
    token = RECORDING.set((*RECORDING.get(), (attention_modules(model)[0].config, passes)))
    try:
        yield passes
    finally:
        RECORDING.reset(token)


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
