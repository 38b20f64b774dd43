"""Changes to the layers of a model: new projections, a convolution of the values, less memory in training."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.models.albert.modeling_albert import AlbertAttention

from albert_lsh.attention.convolution import Convolution
from albert_lsh.attention.reformer import ReformerSelfAttention
from albert_lsh.model.config import ModelError, check_residual, keep_choice
from albert_lsh.model.interface import Call, attend, begin_pass


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that hold the query, key and value projections, or replace them, in the order of the layers."""
    named = ("query", "key", "value"), ("q_lin", "k_lin", "v_lin")  # the latter in DistilBERT
    return [
        module
        for module in model.modules()
        if isinstance(module, ReformerSelfAttention) or any(all(hasattr(module, n) for n in names) for names in named)
    ]


def convolve_values(model: PreTrainedModel, size: int) -> None:
    """Give every attention a convolution of the values that begins at zero; one of the same size stays as it is."""
    for module in attention_modules(model):
        present = getattr(module, "convolution", None)
        if present is None or present.weight.shape[1] != size:
            new = Convolution(model.config.num_attention_heads, size)
            like = next(module.parameters(), None)  # of a quantised module there are none
            module.convolution = new if like is None else new.to(like)  # its device and dtype


class ReformerAttention(ReformerSelfAttention):
    """reformer-pytorch's attention, called as Transformers calls a model's own."""

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **kwargs) -> tuple[Tensor, None]:
        current_pass, mask = begin_pass(self, attention_mask, hidden_states.device, **kwargs)
        return super().forward(hidden_states, mask, current_pass=current_pass)


class AlbertReformerAttention(nn.Module):
    """AlbertAttention with its projections replaced; residual, dropout and LayerNorm as they are."""

    def __init__(self, config, **settings):
        super().__init__()
        self.reformer = ReformerAttention(config, **settings)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **kwargs) -> tuple[Tensor, None]:
        out, _ = self.reformer(hidden_states, attention_mask, **kwargs)
        return self.LayerNorm(hidden_states + self.output_dropout(out)), None


class AttentionAlone(nn.Module):
    """In the place of the output part of BERT's attention: neither dense layer, dropout, residual nor LayerNorm."""

    def forward(self, attention_output: Tensor, block_input: Tensor) -> Tensor:
        return attention_output


def refuse_distilbert(model: PreTrainedModel, what: str) -> None:
    """DistilBERT's projections have names of their own, which nothing here replaces."""
    if model.config.model_type == "distilbert":
        raise ModelError(f"{what} needs new projections, which a DistilBERT cannot be given here; take a BERT")


def transplant(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Replace every attention's projections by reformer-pytorch's, initialised as the model initialises its own.

    settings: of `reformer`. With residual False the package's layer takes the place of the whole attention block: what
    the feed-forward part reads, and adds to its own output, is that layer's output.

    Raises:
        ModelError: the model is a DistilBERT.
    """
    refuse_distilbert(model, "attention 'reformer'")
    model.config.attention_probs_dropout_prob = 0.0  # of the package's layer; the config, and so a record, says it
    own = {name: value for name, value in settings.items() if name != "residual"}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            new: nn.Module
            if type(child).__name__ == "AlbertAttention":
                new = (AlbertReformerAttention if settings["residual"] else ReformerAttention)(model.config, **own)
            elif type(child).__name__.endswith("SelfAttention") and hasattr(child, "query"):
                new = ReformerAttention(model.config, **own)
                if settings["residual"]:
                    parent.get_submodule("output").dense = nn.Identity()  # replaced by the package's to_out
                else:
                    parent.output = AttentionAlone()
            else:
                continue
            setattr(parent, name, new)
            new.apply(model._init_weights)


def draw_projections(model: PreTrainedModel) -> PreTrainedModel:
    """Draw every query, key, value and output projection anew, in place; returns the model.

    From torch's global generator, as Transformers initialises them: weights with the standard deviation
    config.initializer_range, biases zero. All other weights stay. `reformer` has new projections anyway.

    Raises:
        ValueError: the model's attention is `reformer`, or it is a DistilBERT.
    """
    refuse_distilbert(model, "projections='new'")
    if any(isinstance(module, ReformerSelfAttention) for module in model.modules()):
        raise ValueError("projections: 'reformer' has new ones already")
    module: Any
    for module in model.modules():
        inner, outer = (module.self, module.output) if hasattr(module, "self") else (module, module)
        if hasattr(inner, "query") and hasattr(outer, "dense"):
            for linear in (inner.query, inner.key, inner.value, outer.dense):
                nn.init.normal_(linear.weight, std=model.config.initializer_range)
                nn.init.zeros_(linear.bias)
    return model


Base: Any = AlbertAttention  # its type annotations forbid a `Call` as mask


class AlbertAttentionWithoutResidual(Base):
    """AlbertAttention whose LayerNorm has the output projection alone."""

    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **kwargs) -> tuple[Tensor, None]:
        query, key, value = (
            project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        options = {"dropout": self.attention_dropout.p if self.training else 0.0, "scaling": self.scaling}
        context, _ = attend(self, query, key, value, attention_mask, **options, **kwargs)
        return self.LayerNorm(self.output_dropout(self.dense(context.flatten(2)))), None


def nothing_added(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Forward pre-hook of the output part of BERT's attention: what it adds, the block's input, becomes zeros."""
    attention_output, block_input = inputs
    return attention_output, torch.zeros_like(block_input)


def drop_residual(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the residual connection around every attention, in place; returns the model. No weight changes.

    The block's output is LayerNorm(dropout(dense(context))); the residual connection of the feed-forward part stays.
    The model's config keeps it, and `load_model` removes it again.

    Raises:
        ValueError: the model's attention is `reformer`, or it is a DistilBERT.
    """
    config = model.config
    check_residual(config.albert_lsh["attention"], False)
    if config.model_type == "distilbert":
        raise ModelError("residual=False is not there for a DistilBERT; take a BERT")
    module: Any
    inner: Any
    for module in list(model.modules()):
        inner = getattr(module, "self", None)
        if type(module).__name__ == "AlbertAttention":
            module.__class__, module.has_residual = AlbertAttentionWithoutResidual, False
        elif hasattr(inner, "query") and getattr(inner, "has_residual", True):
            module.output.register_forward_pre_hook(nothing_added)
            inner.has_residual = False
    keep_choice(config, {**config.albert_lsh, "residual": False})
    return model


def recomputed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose activations the backward pass computes again; dropout draws the same numbers."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


# Methods belong to a class, not to the module, so that a deep copy of the module uses its own weights.


def recomputing(layer_class: Any) -> Any:
    """A layer's class whose `forward` is recomputed."""

    def forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args = tuple(arg.begin(layer) if isinstance(arg, Call) else arg for arg in args)
        return recomputed(partial(layer_class.forward, layer), *args, **kwargs)

    return type(layer_class.__name__, (layer_class,), {"forward": forward})


def in_chunks(module_class: Any, name: str, size: int) -> Any:
    """A class whose feed-forward method, of that name, takes `size` positions at a time."""
    whole = getattr(module_class, name)

    def chunked(module: nn.Module, hidden: Tensor) -> Tensor:
        chunks = hidden.split(size, dim=1)
        return torch.cat([recomputed(partial(whole, module), chunk) for chunk in chunks], dim=1)

    return type(module_class.__name__, (module_class,), {name: chunked})


def save_memory(
    model: PreTrainedModel, *, recompute: bool = False, feed_forward_chunk: int | None = None
) -> PreTrainedModel:
    """Let a model of `load_model` train in less memory, with the same results; changes it in place and returns it.

    Args:
        recompute: store only the input of each layer, and compute its activations again in the backward pass (Chen et
            al. 2016; Reformer makes its layers reversible to the same end).
        feed_forward_chunk: positions that go through the feed-forward parts at a time (Kitaev et al. 2020, section
            3.1), each chunk recomputed, so that its wide activations are never stored together; None: all.
    """
    for module in list(model.modules()):
        for name in ("ff_chunk", "feed_forward_chunk"):  # of a layer, or (DistilBERT) of its feed-forward part
            if feed_forward_chunk is not None and hasattr(module, name):
                module.__class__ = in_chunks(type(module), name, feed_forward_chunk)
        if recompute and isinstance(getattr(module, "attention", None), nn.Module):  # a layer; ALBERT has one
            module.__class__ = recomputing(type(module))
    return model
