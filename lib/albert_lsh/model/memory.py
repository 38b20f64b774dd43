"""Training in less memory: activations that are computed again, and feed-forward parts in chunks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

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
    """
    for module in list(model.modules()):
        for name in ("ff_chunk", "feed_forward_chunk"):  # of a layer, or (DistilBERT) of its feed-forward part
            if feed_forward_chunk is not None and hasattr(module, name):
                module.__class__ = in_chunks(type(module), name, feed_forward_chunk)
        if recompute and isinstance(getattr(module, "attention", None), nn.Module):  # a layer; ALBERT has one
            module.__class__ = recomputing(type(module))
    return model
