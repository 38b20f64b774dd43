"""The config of a model: where it comes from, and what it keeps of the attention (`albert_lsh`)."""

import copy
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AlbertConfig, AutoConfig, PreTrainedConfig

from albert_lsh import attention as attentions
from albert_lsh import pretrained
from albert_lsh.tasks import mini


class ModelError(ValueError):
    """A model that is not there, or that this study cannot use."""


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Within, whatever a file or the Hub's client raises becomes a ModelError that begins with `what`."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error


def load_config(name_or_path: str | PreTrainedConfig, **overrides):
    """The model's config; ModelError if there is no such model, it cannot be reached, or it has no such option."""
    if name_or_path == "mini":
        small: dict[str, Any] = {**mini.CONFIG, "vocab_size": len(mini.vocabulary())}
        known = AlbertConfig(**small)
        config: PreTrainedConfig = AlbertConfig(**{**small, **overrides})
        unknown = {name: value for name, value in overrides.items() if not hasattr(known, name)}
    elif isinstance(name_or_path, PreTrainedConfig):
        config = copy.deepcopy(name_or_path)
        unknown = {name: value for name, value in overrides.items() if not hasattr(config, name)}
        config.update(overrides)
        name_or_path = config.model_type  # as messages name it
    else:
        nowhere = "no such folder, and the Hub gave no model of that name (a typing error, or no network?)"
        what = "its config.json cannot be read" if Path(name_or_path).is_dir() else nowhere
        with loading(f"model={name_or_path!r}: {what}"):
            path = pretrained.folder_of(name_or_path)
            config, unknown = AutoConfig.from_pretrained(path, return_unused_kwargs=True, **overrides)
    if unknown:
        raise ModelError(f"model={name_or_path!r} has no option {', '.join(map(repr, unknown))}")
    return config


def saved_choice(config: PreTrainedConfig, name: str | PreTrainedConfig) -> dict[str, Any]:
    """What a model was saved with of its attention, or softmax; ModelError if its config says what cannot be."""
    kinds = {"attention": str, "settings": dict, "seed": int, "passes": list, "evaluation_settings": dict}
    found = getattr(config, "albert_lsh", None) or {}
    entries = found.items() if isinstance(found, dict) else [("albert_lsh", found)]
    for key, value in entries:
        if value is not None and not isinstance(value, kinds.get(key, ())):
            raise ModelError(f"model={name!r}: its config.json is damaged: {key}={reprlib.repr(value)} of albert_lsh")
    return {"attention": "softmax", "settings": {}, "seed": 0} | {k: v for k, v in found.items() if v is not None}


def max_positions(config) -> int:
    """The longest sequence, in tokens, that a model of this config has positions for."""
    reserved = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return config.max_position_embeddings - reserved


def check_passes(passes: list[int] | None, config, name: str) -> list[int] | None:
    """The numbers of passes, if the model has them; ValueError naming what is wrong otherwise."""
    if passes is None:
        return None
    if name == "reformer":
        raise ValueError(f"passes={passes!r}: 'reformer' replaces the projections of all passes")
    if wrong := [n for n in passes if not isinstance(n, int) or not 0 <= n < config.num_hidden_layers]:
        raise ValueError(f"passes: {wrong[0]!r} is not one of the model's passes, 0 to {config.num_hidden_layers - 1}")
    return list(passes)


def check_landmarks(settings: dict[str, Any], config) -> None:
    """Raise ValueError for more landmarks than the model has positions: every sequence would have softmax attention."""
    if settings.get("num_landmarks", 0) > (limit := max_positions(config)):
        raise ValueError(
            f"num_landmarks={settings['num_landmarks']} is above the {limit} positions of this model; with no more "
            "tokens than landmarks nystrom is softmax attention"
        )


def choice(
    config,
    attention: str,
    settings: dict[str, Any] | None,
    seed: int,
    passes: list[int] | None,
    evaluation_settings: dict[str, Any] | None,
) -> dict[str, Any]:
    """What a model's config keeps of its attention; ValueError if this is not for a model of this config."""
    settings = attentions.check(attention, settings)
    for full in (settings, attentions.check_evaluation(attention, settings, evaluation_settings)):
        check_landmarks(full, config)
    return {
        "attention": attention,
        "settings": settings,
        "seed": seed,
        "passes": check_passes(passes, config, attention),
        "evaluation_settings": evaluation_settings or {},
    }
