"""The config of a model: where it comes from, and the choice of attention it keeps as `config.albert_lsh`."""

import copy
import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from albert_lsh import attention as attentions
from albert_lsh import hub, pretrained
from albert_lsh.errors import OneLineError

# The types of encoder that can have our attentions, as `config.model_type` names them.
SUPPORTED = (
    "albert", "bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "data2vec-text", "distilbert",
)  # fmt: skip
# Why encoders that one might expect there are none.
UNSUPPORTED = {
    "megatron-bert": "in Transformers it computes softmax itself and asks for no other attention",
    "mpnet": "it adds a bias of relative positions to the scores, and asks for no other attention",
    "modernbert": "two of three layers see a window alone, which our attentions would replace",
}
BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "data2vec-text")  # where their positions begin


class ModelError(OneLineError):
    """A model that does not exist, cannot be read, or is of a type that we do not support."""


OFFLINE = 'task="mini-mrpc", model="mini" need none'


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn whatever a file or the Hub's client raises into a ModelError that begins with `what`."""
    try:
        with hub.at_once():
            yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error


def load_config(name_or_path: str | PreTrainedConfig, **overrides):
    """The config of a model that `load_model` knows.

    ALBERT's activation, gelu_new, becomes gelu_pytorch_tanh: the same function as one operation, in place of eight.

    Raises:
        ModelError: no such model, or one that cannot be reached; an override that is no option of its config.
    """
    if isinstance(name_or_path, PreTrainedConfig):
        config = copy.deepcopy(name_or_path)
        unknown = {name: value for name, value in overrides.items() if not hasattr(config, name)}
        config.update(overrides)
        name_or_path = config.model_type  # in messages
    else:
        nowhere = f"no such folder, and the Hub gave no model of that name (a typing error, or no network? {OFFLINE})"
        if not isinstance(name_or_path, str | os.PathLike):
            raise ModelError(f"model={reprlib.repr(name_or_path)} must be a name on the Hub, a folder or a config")
        path = pretrained.folder_of(name_or_path)
        what = "its config.json cannot be read" if os.path.isdir(path) else nowhere
        if os.path.isfile(inner := os.path.join(path, "model", "config.json")):
            what += f" (a run's folder? its model is {os.path.dirname(inner)!r})"
        with loading(f"model={name_or_path!r}: {what}"):
            config, unknown = AutoConfig.from_pretrained(path, return_unused_kwargs=True, **overrides)
    if unknown:
        setting = attentions.setting_names() & unknown.keys()
        hint = "; an attention's settings go into settings={...}" if setting else ""
        raise ModelError(f"model={name_or_path!r} has no option {', '.join(map(repr, unknown))}{hint}")
    check_type(config, name_or_path)
    if getattr(config, "hidden_act", None) == "gelu_new":  # DistilBERT calls it otherwise
        config.hidden_act = "gelu_pytorch_tanh"
    return config


def check_type(config: PreTrainedConfig, name: str | PreTrainedConfig) -> None:
    """Raise ModelError for a model that cannot have our attentions."""
    if config.model_type not in SUPPORTED:
        kind = config.model_type
        why = f" ({UNSUPPORTED[kind]})" if kind in UNSUPPORTED else ""
        raise ModelError(f"model={name!r} ({kind}) is not of a supported type{why}: {', '.join(SUPPORTED)}")
    for option in ("is_decoder", "add_cross_attention"):
        if getattr(config, option, False):
            raise ModelError(f"model={name!r} has {option}=True: no decoder can have these attentions")


def max_positions(config) -> int:
    """The longest sequence, in tokens, that a model of this config has positions for."""
    reserved = config.pad_token_id + 1 if config.model_type in BEHIND_PADDING else 0
    return config.max_position_embeddings - reserved


def saved_choice(config: PreTrainedConfig, name: str | PreTrainedConfig) -> dict[str, Any]:
    """The attention that a model was saved with, else softmax.

    Raises:
        ModelError: the entry in its config.json is damaged.
    """
    kinds = {"attention": str, "settings": dict, "seed": int, "passes": list, "evaluation_settings": dict}
    found = getattr(config, "albert_lsh", None) or {}
    entries = found.items() if isinstance(found, dict) else [("albert_lsh", found)]
    for key, value in entries:
        if value is not None and not isinstance(value, kinds.get(key, ())):
            raise ModelError(f"model={name!r}: its config.json is damaged: {key}={reprlib.repr(value)} of albert_lsh")
    return {"attention": "softmax", "settings": {}, "seed": 0} | {k: v for k, v in found.items() if v is not None}


def choice(
    config,
    attention: str,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    passes: list[int] | None = None,
    evaluation_settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What a model's config keeps of its attention; the arguments are those of `switch_attention`.

    Raises:
        ValueError: unknown attention, setting or pass; a seed that is none.
    """
    settings = attentions.check(attention, settings)
    attentions.check_evaluation(attention, settings, evaluation_settings)
    attentions.check_whole("seed", seed, 0, 2**32 - 1)
    last = config.num_hidden_layers - 1
    if passes is not None and not (isinstance(passes, list | tuple | range) and passes):
        raise ValueError(f"passes={reprlib.repr(passes)} must be a list with one or more of 0 to {last}")
    if wrong := [n for n in passes or [] if type(n) is not int or not 0 <= n <= last]:
        raise ValueError(f"passes: {reprlib.repr(wrong[0])} is not one of the model's passes, 0 to {last}")
    return {
        "attention": attention,
        "settings": settings,
        "seed": seed,
        "passes": passes if passes is None else list(passes),
        "evaluation_settings": evaluation_settings or {},
    }


def choice_on_loading(
    config, saved: dict[str, Any], attention: str | None, settings: dict[str, Any] | None, seed: int | None
) -> dict[str, Any]:
    """The `choice` of `load_model`: what is not given is as `saved`, where the attention is that one."""
    name = saved["attention"] if attention is None else attention
    kept = dict(saved) if name == saved["attention"] else {}
    if settings is not None:
        kept |= {"settings": settings, "evaluation_settings": None}
    return choice(config, **{**kept, "attention": name, "seed": saved["seed"] if seed is None else seed})
