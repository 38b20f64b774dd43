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


class CurrentPass:
    """One pass: its attention, and the seed of its hashes, which follow from its number."""

    def __init__(self, chosen: dict[str, Any], number: int, recorded: list[Pass] | None):
        self.chosen, self.number, self.recorded = chosen, number, recorded
        self.seed = chosen["seed"] + 1_000_003 * number

    def attention(self, training: bool) -> tuple[str, dict[str, Any]]:
        """Name and settings of its attention; softmax if this pass is not chosen."""
        chosen = self.chosen
        if chosen["passes"] is not None and self.number not in chosen["passes"]:
            return "softmax", {}
        return chosen["attention"], chosen["settings"] | ({} if training else chosen["evaluation_settings"])

    def generator(self, training: bool) -> torch.Generator | None:
        """Of its hashes: torch's global one (None) in training; in evaluation it follows from seed and number."""
        return None if training else torch.Generator().manual_seed(self.seed)

    def record(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, training: bool) -> None:
        """Append the inputs to the list of `record_passes`, if there is one."""
        if self.recorded is not None:
            name, settings = self.attention(training)
            rows = query.detach(), key.detach(), value.detach()
            self.recorded.append(Pass(name, settings, self.seed, *rows, padding_mask))


class Call:
    """One call of a model: its padding, and the numbers of its passes."""

    def __init__(self, config: Any, padding_mask: Tensor | None):
        self.config = config
        self.padding_mask = padding_mask  # (batch, length), True where there is a token; None where nothing is padded
        self.recorded = next((passes for of, passes in reversed(RECORDING.get()) if of is config), None)
        self.number: int | None = None  # of the only pass that sees this call; None: all see it
        self.numbers: dict[nn.Module, int] = {}  # the last pass through each module
        self.count, self.begun = count(), set[int]()

    def number_of(self, module: nn.Module) -> int:
        """The number of the pass that a module begins; one that the backward pass computes again keeps its own."""
        if module not in self.numbers or self.config.model_type == "albert":  # others use a module once
            self.numbers[module] = next(self.count)
        return self.numbers[module]

    def next_pass(self, layer: nn.Module) -> "Call":
        """The call as the next pass alone sees it, through a layer that will be computed again."""
        call = copy.copy(self)
        call.number = self.number_of(layer)
        return call

    def begin(self, module: nn.Module) -> CurrentPass:
        """The pass that begins in an attention module; it is recorded the first time."""
        number = self.number_of(module) if self.number is None else self.number
        recorded = None if number in self.begun else self.recorded
        self.begun.add(number)
        return CurrentPass(self.config.albert_lsh, number, recorded)


def begin_call(attention_mask: Tensor | None = None, *, config: PreTrainedConfig, **kwargs: Any) -> Call:
    """What Transformers calls for the mask; attention_mask: (batch, length)."""
    if getattr(config, INTERFACE, None) is None:  # somebody wrote into the config of a finished model
        raise ValueError("this model was not prepared for our attentions; call albert_lsh.switch_attention(model, ...)")
    attentions.check_recording(config.albert_lsh["attention"])
    is_full = attention_mask is None or (not attentions.is_recorded() and attention_mask.all())
    return Call(config, None if is_full else attention_mask)


def begin_pass(module: nn.Module, call: Any, device: torch.device, **kwargs: Any) -> tuple[CurrentPass, Tensor | None]:
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
    def decide_by_config(model: Any, requested: str | None, *args: Any, **kwargs: Any) -> str:
        config, name = model.config, type(model).__name__
        saved = getattr(config, INTERFACE, None)
        if requested is None and saved:
            requested = INTERFACE
        if requested == INTERFACE:
            check_type(config, name)
            keep_choice(config, saved_choice(config, name) if saved else choice(config, "lsh"))
        else:
            vars(config).pop(INTERFACE, None)
            vars(config).pop("attn_implementation", None)
        return decide(model, requested, *args, **kwargs)

    model_class.get_correct_attn_implementation = decide_by_config


register()
