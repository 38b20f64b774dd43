"""Training in less memory: activations that are computed again, and feed-forward parts in chunks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from albert_lsh.encoders import ModelError
from albert_lsh.interface import PassCounter
from albert_lsh.model.classes import changing


def recomputed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose activations the backward pass computes again; dropout draws the same numbers."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


# Methods belong to a class, not to the module, so that a deep copy of the module uses its own weights.


@changing
def recomputing(layer_class: Any) -> dict[str, Any]:
    """A layer's class whose `forward` is recomputed."""

    def forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # ALBERT's layers have the mask by position; modules of other types know their number.
        args = tuple(arg.begin(layer) if isinstance(arg, PassCounter) else arg for arg in args)
        return recomputed(partial(layer_class.forward, layer), *args, **kwargs)

    return {"forward": forward}


@changing
def in_chunks(module_class: Any, name: str, size: int) -> dict[str, Any]:
    """A class whose feed-forward method, of that name, takes `size` positions at a time."""
    whole = getattr(module_class, name)

    def chunked(module: nn.Module, hidden: Tensor) -> Tensor:
        chunks = hidden.split(size, dim=1)
        return torch.cat([recomputed(partial(whole, module), chunk) for chunk in chunks], dim=1)

    return {name: chunked}


def save_memory(
    model: PreTrainedModel, *, recompute: bool = False, feed_forward_chunk: int | None = None
) -> PreTrainedModel:
    """Let a model of `load_model` train in less memory, with the same results; changes it in place and returns it.

    Args:
        recompute: store only the input of each layer, and compute its activations again in the backward pass (Chen et
            al. 2016; Reformer makes its layers reversible to the same end).
        feed_forward_chunk: positions that go through the feed-forward parts at a time (Kitaev et al. 2020, section
            3.1), each chunk recomputed, so that its wide activations are never stored together; None: all.
    Raises:
        ModelError: of this type the feed-forward parts cannot be taken in chunks.
    """
    methods = "ff_chunk", "feed_forward_chunk"  # of a layer, or (DistilBERT) of its feed-forward part
    has_chunks = any(hasattr(module, name) for module in model.modules() for name in methods)
    if feed_forward_chunk is not None and not has_chunks:
        raise ModelError(f"feed_forward_chunk={feed_forward_chunk}: not in a model of type {model.config.model_type}")
    for module in list(model.modules()):
        for name in methods:
            if feed_forward_chunk is not None and hasattr(module, name):
                module.__class__ = in_chunks(type(module), name, feed_forward_chunk)
        is_layer = isinstance(module, GradientCheckpointingLayer) or type(module).__name__ == "AlbertLayer"
        if recompute and is_layer:
            module.__class__ = recomputing(type(module))
    return model
