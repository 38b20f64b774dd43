"""Which encoders can have our attentions: those whose layers call what is registered, as a trial call shows.

Some types of Transformers take the name of an attention and never call it: such a model would say that it has ours and
compute softmax. So a model without numbers (on torch's device "meta") is made of the same config and called with four
tokens. In the place of mask and attention it finds functions that compute nothing, and note how they were called.
"""

import copy
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, PreTrainedConfig, PreTrainedModel

from albert_lsh.files import OneLineError

TRIAL = "albert_lsh_trial"  # the name under which Transformers knows the two functions
TOKENS, FAR = 4, 1024  # of a trial call; positions of which a mask is looked at
# What a layer may hand to an attention besides its tensors. In a trial anything else is refused: it may change what is
# computed, and ours would leave it out. Callers hand on what they like: of theirs, CHANGING alone is refused.
OPTIONS = {
    "attention_mask", "dropout", "scaling", "sliding_window", "position_ids", "deterministic", "use_cache",
    "output_attentions", "output_hidden_states", "return_dict",
}  # fmt: skip
CHANGING = "is_causal", "softcap", "position_bias", "s_aux"
# Types whose positions begin behind that of padding.
BEHIND_PADDING = "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text"


class ModelError(OneLineError):
    """A model that does not exist, cannot be read, or cannot have our attentions."""


def max_positions(config: Any) -> int:
    """The longest sequence, in tokens, that a model of this config has positions for."""
    reserved = config.pad_token_id + 1 if config.model_type in BEHIND_PADDING else 0
    return config.max_position_embeddings - reserved


def transformers_model(model: nn.Module) -> PreTrainedModel:
    """A model of Transformers, or the one inside of a SentenceTransformer or another wrapper; else ModelError."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ModelError(f"{type(model).__name__} holds no model of Transformers")


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The modules of a model that call an attention, or have taken the place of these, in the order of the layers."""
    return [model.base_model.get_submodule(name) for name in try_encoder(model.config, type(model))]


def check_encoder(
    config: PreTrainedConfig, name: str | PreTrainedConfig, model_class: type[PreTrainedModel] | None = None
) -> None:
    """Raise ModelError for a model that cannot have our attentions; model_class as in `try_encoder`."""
    try:
        try_encoder(config, model_class)
    except ModelError as error:
        raise ModelError(f"model={name!r} ({config.model_type}) cannot have these attentions: {error}") from error


# The trial --------------------------------------------------------------------------------------------------------


class Mask:
    """What a call for the mask came to.

    use_vmap: Transformers' word for a mask to which the model, or its caller, has added a rule.
    """

    def __init__(self, mask_function: Any, local_size: int | None, use_vmap: bool, config: PreTrainedConfig):
        self.window = local_size  # positions to each side; None: all
        self.is_plain = not use_vmap and sees_both_sides(mask_function, local_size)
        self.config = config


class Call:
    """One call of an attention."""

    def __init__(self, module: nn.Module, heads: tuple[int, int], options: dict[str, Any]):
        self.module, self.heads = module, heads  # heads of queries, and of keys
        self.mask, self.scaling = options["attention_mask"], options.get("scaling")
        self.unknown = {name for name, value in options.items() if value is not None and value is not False} - OPTIONS


class Trial:
    """What was asked for in a trial."""

    def __init__(self) -> None:
        self.masks, self.calls = 0, list[Call]()


RUNNING: ContextVar[Trial] = ContextVar("running")
TRIED: dict[tuple[type[PreTrainedModel], str], tuple[str, ...]] = {}  # what came of a trial, by class and config


def sees_both_sides(mask_function: Any, window: int | None) -> bool:
    """Whether a mask of Transformers lets a token see every other, or every other at most `window` positions away."""
    far = max(FAR, 2 * (window or 0))
    position = torch.arange(far + 1, device="cpu")
    queries, zero = position[[0, 1, far // 2, far]][:, None], torch.zeros((), dtype=torch.long, device="cpu")
    distance = (queries - position).abs()
    seen = mask_function(zero, zero, queries, position).expand_as(distance)
    return bool((seen == (distance <= (far if window is None else window))).all())


def note_mask(
    mask_function: Any, config: PreTrainedConfig, local_size: int | None = None, use_vmap: bool = False, **options: Any
) -> Mask:
    RUNNING.get().masks += 1
    return Mask(mask_function, local_size, use_vmap, config)


def note_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any):
    heads = query.shape[1], key.shape[1]
    RUNNING.get().calls.append(Call(module, heads, options | {"attention_mask": attention_mask}))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(TRIAL, note_attention)
AttentionMaskInterface.register(TRIAL, note_mask)


def try_encoder(config: PreTrainedConfig, model_class: type[PreTrainedModel] | None = None) -> tuple[str, ...]:
    """The names, within its base model, of the modules of a model that call an attention.

    model_class: of the model, where it is none of Transformers' own, or AutoModel does not know the config's.

    Raises:
        ModelError: why a model of this config cannot have our attentions.
    """
    for option in ("is_decoder", "add_cross_attention"):
        if getattr(config, option, False):
            raise ModelError(f"{option}=True: no decoder can have these attentions")
    known: Any = AutoModel._model_mapping  # type: ignore[attr-defined]
    is_theirs = model_class is None or model_class.__module__.startswith("transformers.")
    base = known.get(type(config), model_class) if is_theirs else model_class
    if not (isinstance(base, type) and getattr(base, "main_input_name", None) == "input_ids"):
        raise ModelError("no encoder of texts")
    plain = copy.deepcopy(config)
    for name in ("albert_lsh", "attn_implementation"):
        vars(plain).pop(name, None)
    plain._attn_implementation = TRIAL
    known_as = base, plain.to_json_string(use_diff=False)
    if known_as not in TRIED:
        TRIED[known_as] = call_twice(plain, base)
    return TRIED[known_as]


def call_twice(config: PreTrainedConfig, base: type[PreTrainedModel]) -> tuple[str, ...]:
    """The trial, with a mask and without one; see `try_encoder`."""
    trial = Trial()
    failed: Exception | None = None
    token = RUNNING.set(trial)
    try:
        with torch.device("meta"), torch.no_grad():
            model = base(config).eval().base_model
            ids = torch.ones(1, TOKENS, dtype=torch.long)
            model(input_ids=ids, attention_mask=ids)
            model(input_ids=ids)
    except Exception as error:  # whatever its code raises without numbers, or over a mask that is none
        failed = error
    finally:
        RUNNING.reset(token)
    if why := reason_against(trial, failed, config):
        raise ModelError(why) from failed
    names = {module: name for name, module in model.named_modules()}
    return tuple(dict.fromkeys(names[call.module] for call in trial.calls))


def reason_against(trial: Trial, failed: Exception | None, config: PreTrainedConfig) -> str | None:
    """Why a model of this config, of which a trial came to this, cannot have our attentions."""
    broke = f"{type(failed).__name__}: {failed}"
    if not trial.calls and failed is not None and not trial.masks:
        return f"it called no attention before a trial call failed ({broke})"
    if not trial.calls:  # where it failed after it got the mask, it has tried to compute with that
        return "it computes its attention itself, and asks for no other"
    for call in trial.calls:
        if not isinstance(call.mask, Mask):
            return "it makes the mask of its attention itself"
        if not call.mask.is_plain:
            return "its tokens do not see all others: a decoder, or a mask of its own"
        if call.unknown or call.scaling is None:
            return f"its attention has {', '.join(sorted(call.unknown)) or 'no scaling'}, which ours have not"
        if call.heads[0] % call.heads[1]:
            return "its heads of keys do not divide those of queries"
        if call.mask.config is not config:
            return "its layers have configs of their own"
    if failed is not None:
        return f"a trial call failed ({broke})"
    layers, modules = getattr(config, "num_hidden_layers", None), {call.module for call in trial.calls}
    if type(layers) is not int or len(trial.calls) != 2 * layers:
        return f"num_hidden_layers={layers}, and it calls {len(trial.calls) / 2:g} attentions"
    if len(modules) < layers and config.model_type != "albert":  # whose passes `PassCounter` counts
        return "its layers share an attention, and it is no ALBERT"
    local = {call.module for call in trial.calls if call.mask.window is not None}
    if local == modules:
        return "all of its layers see a window alone"
    if any(getattr(module, "layer_idx", None) is None for module in local):
        return "its local layers have no layer_idx"
    return None
