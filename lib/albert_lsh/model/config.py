"""The config of a model: where it comes from, and the attention that it keeps as `config.albert_lsh`."""

import copy
import os
import reprlib
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from albert_lsh import attention as attentions
from albert_lsh import pretrained
from albert_lsh.files import OneLineError, reading

INTERFACE = "albert_lsh"  # the name under which Transformers knows our attentions
# The types of encoder that can have our attentions, as `config.model_type` names them.
SUPPORTED = (
    "albert", "bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "data2vec-text", "distilbert",
)  # fmt: skip
UNSUPPORTED = {
    "megatron-bert": "in Transformers it computes softmax itself and asks for no other attention",
    "mpnet": "it adds a bias of relative positions to the scores, and asks for no other attention",
    "modernbert": "two of three layers see a window alone, which our attentions would replace",
}
BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert", "data2vec-text")  # where their positions begin
OFFLINE = 'task="mini-mrpc", model="mini" need none'


class ModelError(OneLineError):
    """A model that does not exist, cannot be read, or is of a type that we do not support."""


def load_config(name_or_path: str | PreTrainedConfig, *, revision: str | None = None, **overrides):
    """The config of a model that `load_model` knows.

    ALBERT's activation, gelu_new, becomes gelu_pytorch_tanh: the same function as one operation, in place of eight.

    revision: a branch, tag or commit of its repository on the Hub; None: the newest.

    Raises:
        ModelError: no such model, or one that cannot be reached; an override that is no option of its config; a
            revision of what is not on the Hub.
    """
    is_config = isinstance(name_or_path, PreTrainedConfig)
    if revision is not None and (is_config or os.path.isdir(pretrained.folder_of(str(name_or_path)))):
        raise ModelError(f"revision={revision!r} is of a repository on the Hub, and model={name_or_path!r} is none")
    if isinstance(name_or_path, PreTrainedConfig):
        config = copy.deepcopy(name_or_path)
        unknown = {name: value for name, value in overrides.items() if not hasattr(config, name)}
        config.update(overrides)
        name_or_path = config.model_type  # in messages
    elif isinstance(name_or_path, str | os.PathLike):
        path = pretrained.folder_of(name_or_path)
        what = f"no such folder, and the Hub gave no model of that name (a typing error, or no network? {OFFLINE})"
        if os.path.isdir(path):
            what = "its config.json cannot be read"
        if os.path.isfile(os.path.join(inner := os.path.join(path, "model"), "config.json")):
            what += f" (a run's folder? its model is {inner!r})"
        with reading(ModelError, f"model={name_or_path!r}: {what}"):
            at = revision or "main"
            config, unknown = AutoConfig.from_pretrained(path, revision=at, return_unused_kwargs=True, **overrides)
    else:
        raise ModelError(f"model={reprlib.repr(name_or_path)} must be a name on the Hub, a folder or a config")
    if unknown:
        hint = "; an attention's settings go into settings={...}" if unknown.keys() & attentions.setting_names() else ""
        raise ModelError(f"model={name_or_path!r} has no option {', '.join(map(repr, unknown))}{hint}")
    check_type(config, name_or_path)
    if getattr(config, "hidden_act", None) == "gelu_new":  # DistilBERT calls it otherwise
        config.hidden_act = "gelu_pytorch_tanh"
    return config


def check_type(config: PreTrainedConfig, name: str | PreTrainedConfig) -> None:
    """Raise ModelError for a model that cannot have our attentions."""
    if (kind := config.model_type) not in SUPPORTED:
        why = f" ({UNSUPPORTED[kind]})" if kind in UNSUPPORTED else ""
        raise ModelError(f"model={name!r} ({kind}) is not of a supported type{why}: {', '.join(SUPPORTED)}")
    for option in ("is_decoder", "add_cross_attention"):
        if getattr(config, option, False):
            raise ModelError(f"model={name!r} has {option}=True: no decoder can have these attentions")


def max_positions(config) -> int:
    """The longest sequence, in tokens, that a model of this config has positions for."""
    reserved = config.pad_token_id + 1 if config.model_type in BEHIND_PADDING else 0
    return config.max_position_embeddings - reserved


def choice(
    config,
    attention: str,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    passes: list[int] | None = None,
    evaluation_settings: dict[str, Any] | None = None,
    version: int | None = None,
    residual: bool = True,
) -> dict[str, Any]:
    """What a model's config keeps of its attention, checked once; the arguments are those of `switch_attention`.

    residual: False: the residual connection around attention is dropped (`layers.drop_residual`).

    Raises:
        ValueError: unknown attention, setting or pass; a seed that is none; a version that the code does not have; no
            residual with reformer, where this is a setting.
    """
    check_residual(attention, residual)
    if version is not None:
        attentions.check_version(attention, version)
    settings = attentions.check(attention, settings)
    attentions.check_evaluation(attention, settings, evaluation_settings)
    attentions.check_whole("seed", seed, 0, 2**32 - 1)
    if passes is not None and not (isinstance(passes, list | tuple | range) and passes):
        raise ValueError(f"passes={reprlib.repr(passes)} must be a list with one or more of the model's passes")
    for number in passes or []:
        attentions.check_whole("passes", number, 0, config.num_hidden_layers - 1)
    return {
        "attention": attention,
        "settings": settings,
        "seed": seed,
        "passes": passes if passes is None else list(passes),
        "evaluation_settings": evaluation_settings or {},
        "version": attentions.ATTENTIONS[attention].version,
        "residual": residual,
    }


def check_residual(attention: str, residual: bool) -> None:
    """Raise ValueError for a residual connection that is dropped beside `reformer`, of which that is a setting."""
    if attention == "reformer" and not residual:
        raise ValueError("residual=False: of 'reformer' it is a setting, attention_settings={\"residual\": False}")


def saved_choice(config: PreTrainedConfig, name: str | PreTrainedConfig) -> dict[str, Any]:
    """The attention that a model was saved with, else softmax; one without a version is of version 1.

    Raises:
        ModelError: its config.json is damaged, or names what the code does not have.
    """
    saved = getattr(config, INTERFACE, None) or {"attention": "softmax"}
    try:
        return choice(config, **{"version": 1, **saved})
    except (TypeError, ValueError) as error:
        raise ModelError(f"model={name!r}: {INTERFACE} in its config.json cannot be read: {error}") from error


def keep_choice(config: PreTrainedConfig, chosen: dict[str, Any]) -> None:
    """Let a config have our attention, and its config.json ask for it.

    Where `albert_lsh` is not imported, Transformers then refuses the model. Softmax would be no other model there, but
    for a residual connection that was dropped.
    """
    config.albert_lsh, config._attn_implementation = chosen, INTERFACE
    config.attn_implementation = INTERFACE
    if chosen["attention"] == "softmax" and chosen["residual"]:
        del config.attn_implementation
