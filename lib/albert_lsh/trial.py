"""Which models can have our attentions: those whose layers call what is registered, as a trial call shows.

Some types of Transformers take the name of an attention and never call it: such a model would say that it has ours and
compute softmax. So a model without numbers (on torch's device "meta") is made of the same config and called with four
tokens. In the place of mask and attention it finds functions that compute nothing, and note how they were called.
"""

import copy
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, PreTrainedConfig, PreTrainedModel

from albert_lsh.files import OneLineError

TRIAL = "albert_lsh_trial"  # the name under which Transformers knows the two functions
TOKENS = 4
# What Transformers may hand to an attention besides its tensors. Anything else would change what it computes, such as a
# bias of positions or sinks, and ours would leave it out.
OPTIONS = {
    "attention_mask", "dropout", "scaling", "sliding_window", "position_ids", "deterministic", "use_cache",
    "output_attentions", "output_hidden_states", "return_dict",
}  # fmt: skip


class ModelError(OneLineError):
    """A model that does not exist, cannot be read, or cannot have our attentions."""


class Mask:
    """What a call for the mask came to."""

    def __init__(self, mask_function: Any, local_size: int | None):
        self.window = local_size  # positions to each side; None: all
        self.by_position_alone = mask_function is None or sees_both_sides(mask_function, local_size)


class Call:
    """One call of an attention."""

    def __init__(self, module: nn.Module, heads: tuple[int, int], options: dict[str, Any]):
        self.module, self.heads = module, heads  # heads of queries, and of keys
        self.mask = options["attention_mask"]
        self.unknown = {name for name, value in options.items() if value is not None and value is not False} - OPTIONS


CALLS: ContextVar[list[Call] | None] = ContextVar("calls", default=None)


def sees_both_sides(mask_function: Any, window: int | None) -> bool:
    """Whether a mask of Transformers lets a token see every other, or every other at most `window` positions away."""
    far = TOKENS if window is None else window + 2
    first, key = torch.tensor([0, far], device="cpu")[:, None], torch.arange(far + 1, device="cpu")
    distance = (first - key).abs()
    zero = torch.zeros((), dtype=torch.long, device="cpu")
    seen = mask_function(zero, zero, first, key).expand_as(distance)
    return bool((seen == (distance <= (far if window is None else window))).all())


def note_mask(mask_function: Any = None, local_size: int | None = None, **options: Any) -> Mask:
    return Mask(mask_function, local_size)


def note_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any):
    calls = CALLS.get()
    assert calls is not None
    calls.append(Call(module, (query.shape[1], key.shape[1]), options | {"attention_mask": attention_mask}))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


AttentionInterface.register(TRIAL, note_attention)
AttentionMaskInterface.register(TRIAL, note_mask)


def attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """The modules of a model that call an attention, or have taken the place of these, in the order of the layers."""
    return [model.base_model.get_submodule(name) for name in try_encoder(model.config, type(model))]


def try_encoder(config: PreTrainedConfig, model_class: type[PreTrainedModel] | None = None) -> tuple[str, ...]:
    """The names, within its base model, of the modules of a model that call an attention.

    model_class: of the model, where AutoModel does not know the config's.

    Raises:
        ModelError: why a model of this config cannot have our attentions.
    """
    for option in ("is_decoder", "add_cross_attention"):
        if getattr(config, option, False):
            raise ModelError(f"{option}=True: no decoder can have these attentions")
    known: Any = AutoModel._model_mapping  # type: ignore[attr-defined]
    base = known.get(type(config), model_class)
    if not (isinstance(base, type) and getattr(base, "main_input_name", None) == "input_ids"):
        raise ModelError("no encoder of texts")
    plain = copy.deepcopy(config)
    for name in ("albert_lsh", "attn_implementation"):
        vars(plain).pop(name, None)
    plain._attn_implementation = TRIAL
    return call_once(Compared(plain), base)


class Compared:
    """A config that is equal to another if all of its options are."""

    def __init__(self, config: PreTrainedConfig):
        self.config, self.text = config, config.to_json_string(use_diff=False)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: Any) -> bool:
        return self.text == other.text


@lru_cache(maxsize=64)
def call_once(compared: Compared, base: type[PreTrainedModel]) -> tuple[str, ...]:
    """See `try_encoder`; the same config is tried once."""
    calls: list[Call] = []
    failed: Exception | None = None
    token = CALLS.set(calls)
    try:
        with torch.device("meta"), torch.no_grad():
            model = base(compared.config).eval().base_model
            ids = torch.ones(1, TOKENS, dtype=torch.long)
            model(input_ids=ids, attention_mask=ids)
            model(input_ids=ids)
    except Exception as error:  # whatever its code raises without numbers, or over a mask that is none
        failed = error
    finally:
        CALLS.reset(token)
    if why := reason_against(calls, 2 * getattr(compared.config, "num_hidden_layers", 0)):
        raise ModelError(why) from failed
    if failed is not None:
        raise ModelError(f"a trial call failed: {type(failed).__name__}: {failed}") from failed
    names = {module: name for name, module in model.named_modules()}
    return tuple(dict.fromkeys(names[call.module] for call in calls))


def reason_against(calls: list[Call], expected: int) -> str | None:
    """Why a model that called attentions in this way cannot have ours."""
    if not calls:
        return "it computes its attention itself, and asks for no other"
    for call in calls:
        if not isinstance(call.mask, Mask):
            return "it makes the mask of its attention itself"
        if not call.mask.by_position_alone:
            return "its tokens do not see all others: a decoder, or a mask of its own"
        if call.unknown:
            return f"its attention has {', '.join(sorted(call.unknown))}, which ours have not"
        if call.heads[0] % call.heads[1]:
            return "its heads of keys do not divide those of queries"
    if len(calls) != expected:
        return f"{len(calls)} attentions were called in two calls of {expected // 2} layers"
    if all(call.mask.window is not None for call in calls):
        return "all of its layers see a window alone"
    return None
