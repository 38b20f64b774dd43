"""Between Transformers and our attentions.

Transformers asks a registered function for the mask, once in a call of a model, and hands it to every attention. Ours
is a `Call`: ALBERT goes through one attention module twelve times and gives it no number, so the call counts the
passes, and each has hashes of its own. The count belongs to the call, not to the model, so calls in other threads or of
copies do not disturb it. Importing this module registers our attentions.
"""

import copy
from functools import wraps
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.model.config import INTERFACE, check_type, choice, keep_choice, saved_choice
from albert_lsh.model.passes import RECORDING, Pass


class Call:
    """One call of a model, or, with a number, one pass of it: its padding, attention and hashes."""

    def __init__(self, config: Any, padding_mask: Tensor | None):
        self.config, self.chosen = config, config.albert_lsh
        self.padding_mask = padding_mask  # (batch, length), True where there is a token; None where nothing is padded
        self.recorded = next((passes for of, passes in reversed(RECORDING.get()) if of is config), None)
        self.number: Any = None  # of the pass
        self.count, self.done = count(), set[int]()  # of all passes of the call
        self.numbers: dict[nn.Module, int] = {}

    def begin(self, module: nn.Module) -> "Call":
        """The pass that begins in a module; one that the backward pass computes again keeps its number."""
        current = copy.copy(self)
        if self.number is None:
            if module not in self.numbers or self.config.model_type == "albert":  # other types use a module once
                self.numbers[module] = next(self.count)
            current.number = self.numbers[module]
        return current

    @property
    def seed(self) -> int:
        """Of the hashes of a pass in evaluation."""
        return self.chosen["seed"] + 1_000_003 * self.number

    def attention(self, training: bool) -> tuple[str, dict[str, Any]]:
        """Name and settings of a pass's attention; softmax if the pass is not chosen."""
        if self.chosen["passes"] is not None and self.number not in self.chosen["passes"]:
            return "softmax", {}
        settings = self.chosen["settings"]
        return self.chosen["attention"], settings if training else settings | self.chosen["evaluation_settings"]

    def generator(self, training: bool) -> torch.Generator | None:
        """Of the hashes of a pass: torch's global one (None) in training; in evaluation it follows from the seed."""
        return None if training else torch.Generator().manual_seed(self.seed)

    def record(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, training: bool) -> None:
        """Append the inputs of a pass to the list of `record_passes`, if there is one, the first time."""
        if self.recorded is not None and self.number not in self.done:
            rows = query.detach(), key.detach(), value.detach()
            self.recorded.append(Pass(*self.attention(training), self.seed, *rows, padding_mask))
            self.done.add(self.number)


def begin_call(attention_mask: Tensor | None = None, *, config: PreTrainedConfig, **kwargs: Any) -> Call:
    """What Transformers calls for the mask; attention_mask: (batch, length)."""
    if getattr(config, INTERFACE, None) is None:  # somebody wrote into the config of a finished model
        raise ValueError("this model was not prepared for our attentions; call albert_lsh.switch_attention(model, ...)")
    attentions.check_recording(config.albert_lsh["attention"])
    is_full = attention_mask is None or (not attentions.is_recorded() and attention_mask.all())
    return Call(config, None if is_full else attention_mask)


def begin_pass(module: nn.Module, call: Any, device: torch.device, **kwargs: Any) -> tuple[Call, Tensor | None]:
    """The pass that begins in a module, and its padding mask; `call` stands where Transformers has a mask."""
    if not isinstance(call, Call):
        raise ValueError("our attentions take a mask (batch, length), and are called by their model, not by a layer")
    if kwargs.get("output_attentions") or call.config.output_attentions:
        instead = "record_passes shows its inputs, set_attn_implementation('eager') makes it softmax with weights"
        name = call.config.albert_lsh["attention"]
        raise ValueError(f"output_attentions=True: attention {name!r} keeps no weights; {instead}")
    mask = call.padding_mask
    return call.begin(module), None if mask is None else mask.to(device, torch.bool)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout=0.0, scaling=None, **kwargs
) -> tuple[Tensor, None]:
    """What Transformers calls in the place of every attention that has its projections.

    query, key, value: (batch, heads, length, head_dim); attention_mask: a `Call`.
    Returns (batch, length, heads, head_dim), and no weights.
    """
    current_pass, mask = begin_pass(module, attention_mask, query.device, **kwargs)
    attentions.check_tensors(query, key, value, mask)
    current_pass.record(query, key, value, mask, module.training)
    name, settings = current_pass.attention(module.training)
    convolves = settings.get("conv_kernel_size") is not None
    if name == "reformer" or (convolves and not hasattr(module, "convolution")):
        raise ValueError(f"attention {name!r} has weights of its own; read the model with albert_lsh.load_model")
    if not current_pass.chosen["residual"] and getattr(module, "has_residual", True):
        raise ValueError("this model has no residual connection around attention; read it with albert_lsh.load_model")
    if convolves:
        settings = {**settings, "conv_weight": module.convolution.weight}
    settings = {**settings, "dropout": dropout, "generator": current_pass.generator(module.training)}
    out = attentions.ATTENTIONS[name].attend(query, key, value, mask, scaling=scaling, **settings)
    return out.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make our attentions known to Transformers.

    Its interfaces know functions, but ask nobody which of them a model may have, and forget on saving which one it had.
    So the method that decides on a model's implementation is told: a config that keeps our attention has it, one with
    another implementation does not claim it, and a type that we do not support is refused.
    """
    AttentionInterface.register(INTERFACE, attend)
    AttentionMaskInterface.register(INTERFACE, begin_call)  # without one Transformers would silently hand on no mask
    model_class: Any = PreTrainedModel
    decide = model_class.get_correct_attn_implementation

    @wraps(decide)
    def decide_by_config(model: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        config, name = model.config, type(model).__name__
        saved = getattr(config, INTERFACE, None)
        if requested_attention is None and saved:
            requested_attention = INTERFACE
        if requested_attention == INTERFACE:
            check_type(config, name)
            keep_choice(config, saved_choice(config, name) if saved else choice(config, "key-clusters"))
        else:
            vars(config).pop(INTERFACE, None)
            vars(config).pop("attn_implementation", None)
        return decide(model, requested_attention, *args, **kwargs)

    model_class.get_correct_attn_implementation = decide_by_config


register()
