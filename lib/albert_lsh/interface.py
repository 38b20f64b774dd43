"""Between Transformers and the attentions: what it calls, what a model's config keeps, and passes that are recorded.

Transformers asks a registered function for the mask, once in a call of a model, and hands it to every attention. Ours
is a `PassCounter`: ALBERT goes through one attention module twelve times and gives it no number, so the passes of a
call are counted, and each has hashes of its own. The count belongs to the call, not to the model, so calls in other
threads or of copies do not disturb it. Importing this module registers our attentions.
"""

import logging
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.attention.softmax import Softmax, attend_nearby
from albert_lsh.encoders import CHANGING, ModelError, check_encoder, transformers_model

logger = logging.getLogger(__name__)

INTERFACE = "albert_lsh"  # the name under which Transformers knows our attentions, and a config keeps them


# What a config keeps ----------------------------------------------------------------------------------------------


class ModelAttention(dict[str, Any]):
    """A model's attention: as `config.albert_lsh` saves it, and `typed`, the attention itself with its settings.

    The settings are checked here, once, when a model is loaded or switched.
    """

    typed: attentions.Attention
    aside: "ModelAttention | None" = None  # what the model has, while Transformers computes softmax (`set_aside`)

    @classmethod
    def make(
        cls, config: PreTrainedConfig, attention: str, settings: dict[str, Any] | None = None, seed: int = 0,
        passes: list[int] | None = None, version: int | None = None, residual: bool = True,
    ) -> "ModelAttention":  # fmt: skip
        """The arguments are those of `switch_attention`; residual: see `projections.drop_residual`.

        Raises:
            ValueError: unknown attention, setting or pass; a seed that is none; a version that the code does not have;
                no residual with reformer, where this is a setting.
        """
        check_residual(attention, residual)
        if version is not None:
            attentions.check_version(attention, version)
        typed = attentions.make(attention, settings)
        attentions.check_whole("seed", seed, 0, 2**32 - 1)
        if passes is not None and not (isinstance(passes, list | tuple | range) and passes):
            raise ValueError(f"passes={reprlib.repr(passes)} must be a list with one or more of the model's passes")
        for number in passes or []:
            attentions.check_whole("passes", number, 0, config.num_hidden_layers - 1)
            kinds = getattr(config, "layer_types", None)
            if kinds and kinds[number] == "sliding_attention":
                raise ValueError(f"passes: {number} is a local layer, which sees a window whatever the attention is")
        passes = passes if passes is None else list(passes)
        made = cls(attention=attention, settings=typed.full_settings(), seed=seed, passes=passes)
        made |= {"version": typed.version, "residual": residual}
        made.typed = typed
        return made

    @classmethod
    def of(cls, config: PreTrainedConfig, name: str | PreTrainedConfig) -> "ModelAttention":
        """The attention that a model has, or was saved with, else softmax; one without a version is of version 1.

        Raises:
            ModelError: its config.json is damaged, or names what the code does not have.
        """
        saved = getattr(config, INTERFACE, None) or {"attention": "softmax"}
        if isinstance(saved, cls):
            return saved
        try:
            return cls.make(config, **{"version": 1, **with_todays_settings(dict(saved))})
        except (TypeError, ValueError) as error:
            raise ModelError(f"model={name!r}: {INTERFACE} in its config.json cannot be read: {error}") from error

    def keep(self, config: PreTrainedConfig) -> None:
        """Let a config have this attention, and its config.json ask for it.

        Where `albert_lsh` is not imported, Transformers then refuses the model. Softmax would be no other model there,
        but for a residual connection that was dropped.
        """
        config.albert_lsh = self
        config._attn_implementation = INTERFACE
        config.attn_implementation = INTERFACE
        if self["attention"] == "softmax" and self["residual"]:
            del config.attn_implementation

    def replaced_by(self, config: PreTrainedConfig, attention: str) -> "ModelAttention":
        """Another attention, with its usual settings in all passes; ModelError to and from reformer."""
        if "reformer" in (attention, self["attention"]):
            refused = f"a model with {self['attention']!r} cannot have {attention!r} by its name"
            raise ModelError(f"{refused}: reformer has projections of its own; see albert_lsh.load_model")
        return ModelAttention.make(config, attention, seed=self["seed"], residual=self["residual"])

    def set_aside(self, config: PreTrainedConfig, implementation: str) -> None:
        """Let a config be that of a model for which Transformers computes softmax; it has and saves no other.

        Asked for ours again (`set_attn_implementation`), this attention comes back. ModelError: it changed the model.
        """
        if self["attention"] == "reformer" or not self["residual"]:
            what = "projections of its own" if self["residual"] else "no residual connection"
            raise ModelError(f"{implementation}: a model with {what} has {self['attention']!r} of {INTERFACE!r} alone")
        config.albert_lsh = ModelAttention.make(config, "softmax")
        config.albert_lsh.aside = self.aside or self
        vars(config).pop("attn_implementation", None)


def with_todays_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a config keeps, or kept until 29 November 2026: today without settings in evaluation, if there are none."""
    today = {name: value for name, value in saved.items() if value or name != "evaluation_settings"}
    if isinstance(today.get("settings"), dict):
        today["settings"] = todays_settings(today["settings"])
    return today


def todays_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """An attention's settings by the names that they have today: `mean_key` was `rest` until 29 November 2026."""
    return {"mean_key" if name == "rest" else name: value for name, value in settings.items()}


def check_residual(attention: str, residual: bool) -> None:
    """Raise ValueError for a residual connection that is dropped beside `reformer`, of which that is a setting."""
    if attention == "reformer" and not residual:
        raise ValueError("residual=False: of 'reformer' it is a setting, attention_settings={\"residual\": False}")


# Recorded passes --------------------------------------------------------------------------------------------------


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


# What Transformers calls ------------------------------------------------------------------------------------------


class CurrentPass:
    """One pass through an attention: its number, padding, attention and hashes."""

    def __init__(self, counter: "PassCounter", number: int):
        self.counter, self.number = counter, number
        self.kept = counter.kept

    def begin(self, module: nn.Module) -> "CurrentPass":
        """Itself: a layer that is computed again in the backward pass keeps its number."""
        return self

    @property
    def padding_mask(self) -> Tensor | None:
        return self.counter.padding_mask

    @property
    def window(self) -> int | None:
        """Positions to each side that a local layer sees, whatever attention the model has; None: all."""
        return self.counter.window

    @property
    def recorded(self) -> list[Pass] | None:
        """The list of `record_passes`, if there is one."""
        return self.counter.recorded

    @property
    def attention(self) -> attentions.Attention:
        """The pass's attention; softmax if the pass is not among those that have the model's."""
        passes = self.kept["passes"]
        return Softmax() if passes is not None and self.number not in passes else self.kept.typed

    @property
    def seed(self) -> int:
        """Of the hashes of a pass in evaluation."""
        return self.kept["seed"] + 1_000_003 * self.number

    def generator(self, training: bool) -> torch.Generator | None:
        """Of the hashes of a pass: torch's global one (None) in training; in evaluation it follows from the seed."""
        return None if training else torch.Generator().manual_seed(self.seed)

    def record(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None) -> None:
        """Append the inputs of a pass to the list of `record_passes`, if there is one, the first time."""
        if self.recorded is not None and self.number not in self.counter.done:
            rows = query.detach(), key.detach(), value.detach()
            attention = self.attention
            self.recorded.append(Pass(attention.name, attention.full_settings(), self.seed, *rows, padding_mask))
            self.counter.done.add(self.number)


class PassCounter:
    """One call of a model: it numbers the passes. It stands where Transformers has a mask.

    A model with local layers has two in a call, one with their window.
    """

    def __init__(self, config: Any, padding_mask: Tensor | None, window: int | None = None):
        self.config, self.kept, self.window = config, config.albert_lsh, window
        self.padding_mask = padding_mask  # (batch, length), True where there is a token; None where nothing is padded
        self.recorded = next((passes for of, passes in reversed(RECORDING.get()) if of is config), None)
        self.next_number = count()
        self.numbers: dict[nn.Module, int] = {}  # of the newest pass of each module
        self.done: set[int] = set()  # passes that are recorded

    def begin(self, module: nn.Module) -> CurrentPass:
        """The pass that begins in a module; one that the backward pass computes again keeps its number."""
        if module not in self.numbers or self.config.model_type == "albert":  # other types use a module once
            layer: Any = getattr(module, "layer_idx", None)
            self.numbers[module] = next(self.next_number) if layer is None else layer
        return CurrentPass(self, self.numbers[module])


def begin_call(
    attention_mask: Tensor | None = None, *, config: PreTrainedConfig, local_size: int | None = None,
    use_vmap: bool = False, **kwargs: Any,
) -> PassCounter:  # fmt: skip
    """What Transformers calls for the mask.

    attention_mask: (batch, length). local_size: positions to each side. use_vmap: the caller has a rule of its own.
    """
    if use_vmap:
        raise ValueError("our attentions take a mask of padding alone; here tokens see some others by another rule")
    kept = getattr(config, INTERFACE, None)
    if not isinstance(kept, ModelAttention) or kept.aside:  # somebody wrote into the config of a finished model
        raise ValueError("this model was not prepared for our attentions; call albert_lsh.switch_attention(model, ...)")
    attentions.refuse_tracing(kept["attention"])
    is_full = attention_mask is None or (not attentions.is_traced() and attention_mask.all())
    return PassCounter(config, None if is_full else attention_mask, local_size)


def begin_pass(
    module: nn.Module, counter: Any, device: torch.device, past_key_values: Any = None, **kwargs: Any
) -> tuple[CurrentPass, Tensor | None]:
    """The pass that begins in a module, and its padding mask; `counter` stands where Transformers has a mask."""
    if not isinstance(counter, PassCounter | CurrentPass):
        raise ValueError("our attentions take a mask (batch, length), and are called by their model, not by a layer")
    current = counter.begin(module)
    if kwargs.get("output_attentions") or current.counter.config.output_attentions:
        instead = "record_passes shows its inputs, set_attn_implementation('eager') makes it softmax with weights"
        raise ValueError(f"output_attentions=True: attention {current.kept['attention']!r} keeps no weights; {instead}")
    if changing := [name for name in CHANGING if kwargs.get(name) not in (None, False)]:
        raise ValueError(
            f"attention {current.kept['attention']!r} has no {changing[0]}; set_attn_implementation('sdpa')"
        )
    if past_key_values is not None:
        what = "keys without queries (past_key_values), such as those of PEFT's prefix tuning"
        raise ValueError(
            f"attention {current.kept['attention']!r} takes no {what}; set_attn_implementation('sdpa') does"
        )
    mask = current.padding_mask
    return current, None if mask is None else mask.to(device, torch.bool)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout=0.0, scaling=None, **kwargs
) -> tuple[Tensor, None]:
    """What Transformers calls in the place of every attention that has its projections.

    query, key, value: (batch, heads, length, head_dim), where heads may share keys and values (grouped-query
    attention, Ainslie et al. 2023); attention_mask: a `PassCounter`, or a `CurrentPass`.
    Returns (batch, length, heads, head_dim), and no weights.
    """
    if (shared_by := query.shape[1] // key.shape[1]) > 1:
        key, value = (x.repeat_interleave(shared_by, dim=1) for x in (key, value))
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotary positions are float32, under autocast too
    kwargs["past_key_values"] = key if key.shape[2] > query.shape[2] else None
    current, mask = begin_pass(module, attention_mask, query.device, **kwargs)
    attentions.check_tensors(query, key, value, mask)
    if current.window is not None:  # a local layer stays as it is
        out = attend_nearby(query, key, value, mask, current.window, scaling=scaling, dropout=dropout)
        return out.transpose(1, 2).contiguous(), None
    current.record(query, key, value, mask)
    attention = current.attention
    convolves = getattr(attention, "conv_kernel_size", None) is not None
    if attention.name == "reformer" or (convolves and not hasattr(module, "convolution")):
        name = attention.name
        raise ValueError(f"attention {name!r} has weights of its own; read the model with albert_lsh.load_model")
    if not current.kept["residual"] and getattr(module, "has_residual", True):
        raise ValueError("this model has no residual connection around attention; read it with albert_lsh.load_model")
    options = {"dropout": dropout, "scaling": scaling, "generator": current.generator(module.training)}
    if convolves:
        options["conv_weight"] = module.convolution.weight
    return attention.attend(query, key, value, mask, **options).transpose(1, 2).contiguous(), None


def register() -> None:
    """Make our attentions known to Transformers.

    Its interfaces know functions, but ask nobody which of them a model may have, and forget on saving which one it had.
    So the method that decides on a model's implementation is told: the name of an attention is ours, a config that
    keeps our attention has it, one with another implementation does not claim it but has it again when asked, and what
    cannot be is refused.
    """
    AttentionInterface.register(INTERFACE, attend)
    AttentionMaskInterface.register(INTERFACE, begin_call)  # without one Transformers would silently hand on no mask
    model_class: Any = PreTrainedModel
    decide = model_class.get_correct_attn_implementation

    @wraps(decide)
    def decide_by_config(model: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        config, name = model.config, type(model).__name__
        saved = getattr(config, INTERFACE, None)
        attention = requested_attention if requested_attention in attentions.names() else None
        if attention or (requested_attention is None and saved):
            requested_attention = INTERFACE
        if requested_attention != INTERFACE:
            decided = decide(model, requested_attention, *args, **kwargs)
            if saved:
                ModelAttention.of(config, name).set_aside(config, f"attn_implementation={decided!r}")
            return decided
        check_encoder(config, name, type(model))
        known = saved or attention
        kept = ModelAttention.of(config, name) if known else ModelAttention.make(config, "key-clusters")
        kept = kept.aside or kept
        if attention not in (None, kept["attention"]):
            kept = kept.replaced_by(config, attention)
        kept.keep(config)
        return decide(model, INTERFACE, *args, **kwargs)

    model_class.get_correct_attn_implementation = decide_by_config


register()
