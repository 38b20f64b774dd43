"""An ordinary Transformers encoder with the attention of your choice.

`load_model` keeps every pretrained weight that the attention can use. The attention's name and settings are kept in
the model's config, so `save_pretrained` and `load_model(path)` bring them back.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from albert_lsh import attention as attentions
from albert_lsh import memory, mini, pretrained
from albert_lsh.attention.convolution import Convolution
from albert_lsh.attention.reformer import ReformerSelfAttention
from albert_lsh.passes import INTERFACE, Passes, attention_modules

HEADS = {
    "base": transformers.AutoModel,
    "classification": transformers.AutoModelForSequenceClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "pretraining": transformers.AutoModelForPreTraining,
}


class ModelError(ValueError):
    """A model that is not there, or that this study cannot use."""


class AlbertReformerAttention(nn.Module):
    """AlbertAttention with its projections replaced; residual, dropout and LayerNorm as they are."""

    def __init__(self, config, settings: dict[str, Any]):
        super().__init__()
        self.reformer = ReformerSelfAttention(config, **settings)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs) -> tuple[Tensor, None]:
        out, _ = self.reformer(hidden_states, attention_mask)
        return self.LayerNorm(hidden_states + self.output_dropout(out)), None


def transplant(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Replace every attention's projections by reformer-pytorch's, with the model's own way to draw new weights."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            new: nn.Module
            if type(child).__name__ == "AlbertAttention":
                new = AlbertReformerAttention(model.config, settings)
            elif type(child).__name__.endswith("SelfAttention") and hasattr(child, "query"):
                new = ReformerSelfAttention(model.config, **settings)
                parent.get_submodule("output").dense = nn.Identity()  # its place is taken by the package's to_out
            else:
                continue
            setattr(parent, name, new)
            new.apply(model._init_weights)


def convolve_values(model: PreTrainedModel, size: int) -> None:
    """Give every attention the weights of a convolution, zeros at first; weights of this size that are there stay."""
    for module in attention_modules(model):
        there = getattr(module, "convolution", None)
        if there is None or there.weight.shape[1] != size:
            new = Convolution(model.config.num_attention_heads, size)
            module.convolution = new.to(module.get_parameter("value.weight"))  # its device and dtype


def changed(model_class: type[PreTrainedModel], change: Callable[[PreTrainedModel], None]) -> type[PreTrainedModel]:
    """The same class with other weights in its attention, so that `from_pretrained` knows which there are."""

    def __init__(self, config, *args, **kwargs):
        model_class.__init__(self, config, *args, **kwargs)
        change(self)

    return type(model_class.__name__, (model_class,), {"__init__": __init__, "__module__": model_class.__module__})


def load_config(name_or_path: str | PreTrainedConfig, **overrides):
    """The model's config; ModelError if there is no such model, it cannot be reached, or it has no such option."""
    if name_or_path == "mini":
        small: dict[str, Any] = {**mini.CONFIG, "vocab_size": len(mini.tokenizer())}
        known = AlbertConfig(**small)
        config: PreTrainedConfig = AlbertConfig(**{**small, **overrides})
        unknown = {name: value for name, value in overrides.items() if not hasattr(known, name)}
    elif isinstance(name_or_path, PreTrainedConfig):
        config = copy.deepcopy(name_or_path)
        unknown = {name: value for name, value in overrides.items() if not hasattr(config, name)}
        config.update(overrides)
        name_or_path = config.model_type  # as messages name it
    else:
        try:
            path = pretrained.folder_of(name_or_path)
            config, unknown = AutoConfig.from_pretrained(path, return_unused_kwargs=True, **overrides)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"model={name_or_path!r}: no such folder, and the Hub gave no model of that name "
                f"(a typing error, or no network?): {str(error).splitlines()[0]}"
            ) from error
    if unknown:
        raise ModelError(f"model={name_or_path!r} has no option {', '.join(map(repr, unknown))}")
    return config


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


def load_model(
    name_or_path: str | PreTrainedConfig,
    *,
    head: str = "classification",
    attention: str | None = None,
    settings: dict[str, Any] | None = None,
    seed: int | None = None,
    passes: list[int] | None = None,
    evaluation_settings: dict[str, Any] | None = None,
    recompute: bool = False,
    feed_forward_chunk: int | None = None,
    **config,
) -> PreTrainedModel:
    """A Transformers model with one of our attentions.

    Args:
        name_or_path: a model on the Hub or a folder (ALBERT, BERT or RoBERTa type); or "mini": a small ALBERT with
            random weights for the embedded tasks; or a config: a model of that shape with random weights.
        head: "base", "classification", "question-answering", "masked-lm" or "pretraining".
        attention: a name of `albert_lsh.attention.names()`; None takes what was saved with the model, else softmax.
        settings: of that attention; None takes what was saved with the model for it, else the defaults.
        seed: of the hashes drawn in evaluation (while training they come from torch's global generator); None takes
            what was saved with the model, else 0.
        passes: numbers of the passes through the layers, 0 first, that have this attention, the others having softmax;
            for instance list(range(4, 12)) for the last eight of ALBERT-base's twelve. None takes what was saved with
            the model for this attention, else all.
        evaluation_settings: laid over the settings while the model is in evaluation mode, for instance more hashes than
            it is trained with; None takes what was saved with the model, where the settings are those, else none.
        recompute: compute activations inside the layers again in the backward pass instead of storing them.
        feed_forward_chunk: positions that go through the feed-forward parts at a time, recomputed too; None: all.
        config: options of the model's config, for instance num_labels.
    Returns:
        The model, in evaluation mode. Weights that are not pretrained are drawn from torch's global generator; those
        of a convolution of the values (setting conv_kernel_size) begin at zero, where it changes nothing.
    Raises:
        ValueError: unknown head, attention, setting or pass; more landmarks than positions. ModelError (a ValueError):
            no such model, or none that has queries, keys and values where we know to find them.
    """
    if head not in HEADS:
        raise ValueError(f"head={head!r} is not one of: {', '.join(HEADS)}")
    options = load_config(name_or_path, **config)
    saved = {"attention": "softmax", "settings": {}, "seed": 0} | (getattr(options, "albert_lsh", None) or {})
    name = attention or saved["attention"]
    if name == saved["attention"]:
        if settings is None:
            settings = saved["settings"]
            evaluation_settings = (
                saved.get("evaluation_settings") if evaluation_settings is None else evaluation_settings
            )
        passes = saved.get("passes") if passes is None else passes
    seed = saved["seed"] if seed is None else seed
    options.albert_lsh = choice(options, name, settings, seed, passes, evaluation_settings)
    settings = options.albert_lsh["settings"]

    try:
        model_class = HEADS[head]._model_mapping[type(options)]  # type: ignore[index]
    except KeyError as error:
        raise ModelError(f"model={name_or_path!r} ({options.model_type}) has no {head!r} head") from error
    if name == "reformer":
        model_class = changed(model_class, lambda model: transplant(model, settings))
    elif size := settings.get("conv_kernel_size"):
        if (there := saved["settings"].get("conv_kernel_size", size)) not in (None, size):
            raise ValueError(f"conv_kernel_size={size}: the model was saved with {there}; load that, then switch")
        model_class = changed(model_class, lambda model: convolve_values(model, size))
    if name_or_path == "mini" or isinstance(name_or_path, PreTrainedConfig):
        options._attn_implementation = INTERFACE
        model = model_class(options)
    else:
        model, found = model_class.from_pretrained(
            pretrained.folder_of(name_or_path), config=options, attn_implementation=INTERFACE, output_loading_info=True
        )
        for key in found["missing_keys"]:
            if key.endswith(".convolution.weight"):
                nn.init.zeros_(model.get_parameter(key))  # Transformers knows no way to begin them
    if not attention_modules(model):
        raise ModelError(f"model={name_or_path!r} ({options.model_type}) is not an ALBERT, BERT or RoBERTa encoder")
    counter = Passes(options.albert_lsh, max_positions(options))
    for module in attention_modules(model):
        module.__dict__["passes"] = counter  # no part of the module's state
    model.base_model.register_forward_pre_hook(counter.start, with_kwargs=True)
    if feed_forward_chunk is not None:
        memory.chunk_feed_forward(model, feed_forward_chunk)
    if recompute:
        memory.recompute_layers(model)
    return model.eval()


def switch_attention(
    model: PreTrainedModel,
    attention: str,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    passes: list[int] | None = None,
    evaluation_settings: dict[str, Any] | None = None,
) -> PreTrainedModel:
    """Give a model of `load_model` another attention, or another budget, in place, all weights as they are.

    A convolution of the values (setting conv_kernel_size) that is new to the model begins at zero. One that is there
    stays, unused, while the attention has none; one of another size takes its place.

    Args:
        attention, settings, seed, passes, evaluation_settings: as in `load_model`; what is not given takes its default.
    Returns:
        The model.
    Raises:
        ValueError: unknown attention, setting or pass; more landmarks than positions; "reformer", to or from, which
            has projections of its own.
    """
    counter = attention_modules(model)[0].__dict__["passes"]
    before = counter.chosen["attention"]
    if "reformer" in (attention, before):
        raise ValueError(f"{before!r} cannot become {attention!r}: reformer has projections of its own")
    chosen = choice(model.config, attention, settings, seed, passes, evaluation_settings)
    if size := chosen["settings"].get("conv_kernel_size"):
        convolve_values(model, size)
    model.config.albert_lsh = counter.chosen = chosen
    return model


def extend_positions(model: PreTrainedModel, length: int) -> PreTrainedModel:
    """Give a model of `load_model` positions for sequences of `length` tokens, in place; returns the model.

    The learned embeddings are repeated one after the other, as Longformer does (Beltagy et al. 2020, section 5), so
    that neighbouring positions differ as they did.

    Raises:
        ValueError: the model has as many positions already, or is RoBERTa, whose positions begin behind padding.
    """
    config, embeddings = model.config, model.base_model.get_submodule("embeddings")
    if length <= (present := max_positions(config)):
        raise ValueError(f"length={length} must be above the {present} positions that the model has")
    if config.max_position_embeddings != present:
        raise ValueError(f"positions of a {config.model_type} model begin behind padding and are not extended here")
    learned = embeddings.get_parameter("position_embeddings.weight")
    embeddings.position_embeddings = nn.Embedding.from_pretrained(
        learned.repeat(-(-length // present), 1)[:length], freeze=False
    )
    embeddings.register_buffer("position_ids", torch.arange(length, device=learned.device)[None], persistent=False)
    kinds = torch.zeros(1, length, dtype=torch.long, device=learned.device)
    embeddings.register_buffer("token_type_ids", kinds, persistent=False)
    config.max_position_embeddings = length
    attention_modules(model)[0].__dict__["passes"].max_length = length
    return model


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that `load_model` knows; ModelError if there is none.

    It makes token types, without being asked for them, if they tell the two texts of a pair apart.
    """
    if name_or_path == "mini":
        return mini.tokenizer()
    try:
        tokenizer = AutoTokenizer.from_pretrained(pretrained.folder_of(name_or_path))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"model={name_or_path!r}: no tokenizer could be loaded: {reason}") from error
    # Transformers 5 makes ALBERT's only when asked for, which a pipeline does not do; RoBERTa's are all 0.
    kinds, names = tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"], tokenizer.model_input_names
    if any(kinds) and "token_type_ids" not in names:
        tokenizer.model_input_names = [*names, "token_type_ids"]
    return tokenizer


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that a model is given at a time.

    A run keeps its max_length with the tokenizer (`training.keep_model`); other models have their tokenizer's limit.
    No model is given more than it has positions for.
    """
    return min(tokenizer.model_max_length, max_positions(model.config))
