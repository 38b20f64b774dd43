"""An ordinary Transformers encoder with the attention of your choice.

`load_model` keeps every pretrained weight that the attention can use. The attention's name and settings are kept in
the model's config, so `save_pretrained` and `load_model(path)` bring them back.
"""

import copy
import logging
import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from albert_lsh import attention as attentions
from albert_lsh import pretrained
from albert_lsh.encoders import ModelError, check_encoder, max_positions, transformers_model
from albert_lsh.files import reading
from albert_lsh.interface import INTERFACE, ModelAttention
from albert_lsh.model.classes import changing
from albert_lsh.model.padding import start_padding
from albert_lsh.model.projections import convolve_values, drop_residual, transplant

logger = logging.getLogger(__name__)

OFFLINE = 'task="mini-mrpc", model="mini" need none'
Module = TypeVar("Module", bound=nn.Module)
HEADS = {
    "base": transformers.AutoModel,
    "classification": transformers.AutoModelForSequenceClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "pretraining": transformers.AutoModelForPreTraining,
}


@contextmanager
def without_bars() -> Iterator[None]:
    """Within, Transformers shows no bar for each file that it writes or reads; Trainer's own bar stays."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


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
    check_encoder(config, name_or_path)
    if getattr(config, "hidden_act", None) == "gelu_new":  # DistilBERT calls it otherwise
        config.hidden_act = "gelu_pytorch_tanh"
    return config


@changing
def with_own_weights(model_class: Any) -> dict[str, Any]:
    """A model's class that makes the weights of its attention, so that `from_pretrained` expects them."""

    def __init__(self, config, *args, **kwargs):
        model_class.__init__(self, config, *args, **kwargs)
        kept = config.albert_lsh
        if kept["attention"] == "reformer":
            transplant(self, kept["settings"])
        else:
            convolve_values(self, kept["settings"]["conv_kernel_size"])

    return {"__init__": __init__}


def read_weights(
    model_class: type[PreTrainedModel], name: str, config: PreTrainedConfig, complete: bool, revision: str | None
) -> PreTrainedModel:
    """A model with the weights of a folder or of the Hub; see `load_model`."""
    folder = pretrained.folder_of(name)
    files = ", ".join(sorted(path.name for path in Path(folder).glob("*.safetensors")))
    what = f"model={name!r}: its weights{f' ({files})' * bool(files)} cannot be read"
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # no table of new and unused weights; those that matter follow
    try:
        with reading(ModelError, what), without_bars():
            loaded: Any = model_class.from_pretrained(
                folder,
                config=config,
                revision=revision or "main",
                attn_implementation=INTERFACE,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # an error below
                use_safetensors=True if complete else None,
            )
    finally:
        transformers_logging.set_verbosity(verbosity)
    model, report = loaded
    body, other_shapes = f"{model.base_model_prefix}.", {key for key, *_ in report["mismatched_keys"]}
    for key, saved, expected in sorted(report["mismatched_keys"]):
        if complete or model is model.base_model or key.startswith(body):  # a head of another task is new
            raise ModelError(f"model={name!r}: {key} is {tuple(saved)} in its file, not {tuple(expected)}")
    if new := sorted({*report["missing_keys"], *other_shapes}):
        lacking = [key for key in new if not key.startswith("pooler.")]  # nothing here reads a pooler
        if complete and lacking:
            raise ModelError(f"model={name!r} lacks weights: {shorten(', '.join(lacking), 200)}")
        where = "in its file in this shape" if other_shapes else "in its file"
        logger.warning("model=%r: new weights, not %s: %s", name, where, shorten(", ".join(new), 200))
    for key in new:
        if key.endswith(".convolution.weight"):
            nn.init.zeros_(model.get_parameter(key))  # Transformers does not initialise them
    return model


def check_length(model: nn.Module, args: tuple, kwargs: dict) -> None:
    """Forward pre-hook of a base model: refuse a sequence longer than its positions."""
    named = [kwargs[n] for n in ("input_ids", "inputs_embeds") if kwargs.get(n) is not None]
    tokens = next(iter([*named, *args]), None)  # without any, the model itself says what is wrong
    if tokens is not None and tokens.shape[1] > (limit := max_positions(model.config)):
        raise ValueError(
            f"a sequence of {tokens.shape[1]} tokens is longer than the {limit} positions of this model; "
            "shorten it (max_length), give the model more (extend_positions) or take one that has more"
        )


def load_model(
    name_or_path: str | PreTrainedConfig,
    *,
    head: str = "classification",
    attention: str | None = None,
    settings: dict[str, Any] | None = None,
    seed: int | None = None,
    complete: bool = False,
    revision: str | None = None,
    **config,
) -> PreTrainedModel:
    """A Transformers model with one of our attentions.

    `switch_attention` also gives it to some of the passes alone; `recompute_activations` trains it in less memory.

    Args:
        name_or_path: an encoder on the Hub or a folder; a model of the package ("nano", "nano-key-clusters"); "mini",
            a small ALBERT with random weights for the embedded tasks; or a config, for a model of that shape with
            random weights.
        head: "base", "classification", "question-answering", "masked-lm" or "pretraining".
        attention: a name of `albert_lsh.attention.names()`; None takes what was saved with the model, else softmax.
        settings: of that attention; None takes what was saved with the model for it, else the defaults.
        seed: of the hashes drawn in evaluation (in training they come from torch's global generator); None takes
            what was saved with the model, else 0.
        complete: refuse a model whose file lacks weights, or is not in safetensors.
        revision: a branch, tag or commit of the model's repository on the Hub; None: the newest.
        config: options of the model's config, for instance num_labels.
    Returns:
        The model, in evaluation mode. Weights that its file lacks, and a head that has another shape there, are drawn
        from torch's global generator and named in a warning; a convolution of the values (setting conv_kernel_size)
        begins at zero, where it changes nothing.
    Raises:
        ValueError: unknown head, attention or setting. ModelError (a ValueError): no such model, or one that cannot
            have our attentions (see `encoders`); weights that cannot be read, or have other shapes; an attention of a
            version that this release does not have.
    """
    if not isinstance(head, str) or head not in HEADS:
        raise ValueError(f"head={head!r} is not one of: {', '.join(HEADS)}")
    if head == "question-answering":
        config.setdefault("num_labels", 2)  # start and end, whatever the model told apart before
    options = load_config(name_or_path, revision=revision, **config)
    saved = dict(ModelAttention.of(options, name_or_path))
    if attention not in (None, saved["attention"]):
        saved = {"attention": attention, "seed": saved["seed"], "residual": saved["residual"]}
    passed = {"settings": settings, "seed": seed}
    kept = ModelAttention.make(options, **saved | {name: value for name, value in passed.items() if value is not None})
    kept.keep(options)
    try:
        model_class = HEADS[head]._model_mapping[type(options)]  # type: ignore[index]
    except KeyError as error:
        raise ModelError(f"model={name_or_path!r} ({options.model_type}) has no {head!r} head") from error
    if kept["attention"] == "reformer" or kept["settings"].get("conv_kernel_size"):
        model_class = with_own_weights(model_class)
    is_new = name_or_path == "mini" or isinstance(name_or_path, PreTrainedConfig)
    model = (
        model_class(options) if is_new else read_weights(model_class, str(name_or_path), options, complete, revision)
    )
    model.base_model.register_forward_pre_hook(check_length, with_kwargs=True)
    if getattr(model.config, "padded_length", None) is not None:
        start_padding(model)
    if not kept["residual"]:
        drop_residual(model)
    return model.eval()


def switch_attention(
    model: Module,
    attention: str,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    passes: list[int] | None = None,
) -> Module:
    """Give a model of Transformers one of our attentions, or other settings, in place; no weight changes.

    A new convolution of the values (setting conv_kernel_size) begins at zero. One that the new attention does not use
    stays in the model; one of another size is replaced.

    Args:
        model: of `load_model`, of AutoModel or another class of Transformers; or what holds one: a SentenceTransformer.
        attention, settings, seed: as in `load_model`; what is not given takes its default.
        passes: numbers of the passes through the layers, from 0, that have this attention, the others having softmax;
            for instance list(range(4, 12)) for the last eight of ALBERT-base's twelve. None: all.
    Returns:
        The model.
    Raises:
        ValueError: unknown attention, setting or pass; "reformer", to or from, which has projections of its own.
        ModelError (a ValueError): no encoder that can have it.
    """
    inner = transformers_model(model)
    check_encoder(inner.config, type(inner).__name__, type(inner))
    before = ModelAttention.of(inner.config, type(inner).__name__)
    if "reformer" in (attention, before["attention"]):
        raise ValueError(f"{before['attention']!r} cannot become {attention!r}: reformer has projections of its own")
    kept = ModelAttention.make(inner.config, attention, settings, seed, passes, residual=before["residual"])
    if size := kept["settings"].get("conv_kernel_size"):
        convolve_values(inner, size)
    kept.keep(inner.config)
    return model


def extend_positions(model: Module, length: int) -> Module:
    """Give a model, or a SentenceTransformer, positions for sequences of `length` tokens, in place; returns the model.

    A SentenceTransformer then cuts texts at `length` tokens.

    Learned position embeddings are tiled, as Longformer does (Beltagy et al. 2020, section 5), so that neighbouring
    positions differ as before. Of a model that computes its positions (rotary ones) the config alone changes.

    Raises:
        ValueError: the model has as many positions already, or scales rotary ones by how many there are.
    """
    inner = transformers_model(model)
    config = inner.config
    if length <= (present := max_positions(config)):
        raise ValueError(f"length={length} must be above the {present} positions that the model has")
    for module in inner.modules():
        kinds = getattr(module, "rope_type", "default")
        if {*(kinds.values() if isinstance(kinds, dict) else [kinds])} != {"default"}:
            raise ValueError(f"rope_type={kinds!r}: load_model(..., max_position_embeddings={length}) scales positions")
    reserved = config.max_position_embeddings - present  # RoBERTa's, up to that of padding
    modules, names = inner.base_model.modules(), ("word_embeddings", "position_embeddings")
    embeddings: Any = next((m for m in modules if any(hasattr(m, name) for name in names)), None)
    if isinstance(table := getattr(embeddings, "position_embeddings", None), nn.Embedding):
        learned = table.weight[reserved:].detach()
        extended = torch.cat([table.weight[:reserved].detach(), learned.repeat(-(-length // present), 1)[:length]])
        is_frozen = not table.weight.requires_grad
        table = nn.Embedding.from_pretrained(extended, freeze=is_frozen, padding_idx=table.padding_idx)
        embeddings.position_embeddings = table
    positions = torch.arange(reserved + length, device=inner.device)[None]
    for name, buffer in {"position_ids": positions, "token_type_ids": torch.zeros_like(positions)}.items():
        if hasattr(embeddings, name):
            embeddings.register_buffer(name, buffer, persistent=False)
    config.max_position_embeddings = reserved + length
    outer: Any = model
    if hasattr(outer, "max_seq_length"):  # of a SentenceTransformer, at which it cuts texts
        outer.max_seq_length = length
    return model


def load_tokenizer(name_or_path: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that `load_model` knows, `matched` to it; revision as there.

    It pads and cuts on the right.

    Raises:
        ModelError: there is no tokenizer, or one of another model.
    """
    source = pretrained.tokenizer_of(name_or_path)
    sides = {"padding_side": "right", "truncation_side": "right"}
    what = f"model={name_or_path!r}: no tokenizer could be loaded (no network? {OFFLINE})"
    with reading(ModelError, what):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or "main", **sides)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what Transformers makes of a config alone
        reads = "a vocabulary of special tokens alone reads no text"
        raise ModelError(f"model={name_or_path!r}: no tokenizer files; {reads}")
    try:
        config = AutoConfig.from_pretrained(pretrained.folder_of(name_or_path), revision=revision or "main")
    except (OSError, ValueError):  # a tokenizer alone
        config = None
    return matched(tokenizer, config if hasattr(config, "vocab_size") else None, name_or_path)


def matched(tokenizer: Any, config: PreTrainedConfig | None, name: str | None) -> Any:
    """A copy that returns token types where it and the model tell the two texts of a pair apart, and only there.

    Transformers 5 makes ALBERT's only on request, and a pipeline does not ask. RoBERTa has one type, which tokenizers
    of BERT's kind do not know; DistilBERT has none.

    It also pads and cuts on the right: an answer is found by its token's place, which padding on the left moves.

    Args:
        config: the model's; None where there is none yet.
    Raises:
        ModelError: the tokenizer knows more tokens than the model has embeddings.
    """
    if config and len(tokenizer) > config.vocab_size:
        known = f"its tokenizer knows {len(tokenizer)} tokens, its weights only {config.vocab_size}"
        raise ModelError(f"model={name!r}: {known}; resize_token_embeddings gives a model more")
    kinds = 1 + max(tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"])
    names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    if 1 < kinds <= (getattr(config, "type_vocab_size", 0) if config else kinds):
        names.append("token_type_ids")
    tokenizer = copy.copy(tokenizer)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if {*names} != {*tokenizer.model_input_names}:
        tokenizer.model_input_names = names
    return tokenizer


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens of an input: the tokenizer's limit, but never more than the model has positions.

    A run keeps its max_length as its tokenizer's limit (`train.fit`).
    """
    return min(tokenizer.model_max_length, max_positions(model.config))
