"""Less memory in training, with the same results: two ideas of Reformer that an ALBERT can use.

recompute             a layer's activations are computed again in the backward pass, not stored (Chen et al. 2016;
                      Reformer makes its layers reversible to the same end)
feed_forward_chunk    the feed-forward part takes a few positions at a time (Kitaev et al. 2020, section 3.1), each
                      chunk recomputed, so that its wide activations are never stored together
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

CHUNKED = ("ff_chunk", "feed_forward_chunk")  # methods, of a layer or (DistilBERT) of its feed-forward part


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """The encoder's layers; ALBERT has one, which it goes through several times."""
    return [module for module in model.modules() if isinstance(getattr(module, "attention", None), nn.Module)]


def recomputed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose activations the backward pass computes again; dropout draws the same numbers."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    return checkpoint(function, *args, use_reentrant=False, **kwargs)


# Methods belong to a class, not to the module, so that a deep copy of the module uses its own weights.


def recomputing(layer_class: Any) -> Any:
    """A layer's class whose `forward` is recomputed."""

    def forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recomputed(partial(layer_class.forward, layer), *args, **kwargs)

    return type(layer_class.__name__, (layer_class,), {"forward": forward})


def in_chunks(module_class: Any, size: int) -> Any:
    """A class whose feed-forward method takes `size` positions at a time."""
    name = next(name for name in CHUNKED if hasattr(module_class, name))
    whole = getattr(module_class, name)

    def chunked(module: nn.Module, hidden: Tensor) -> Tensor:
        chunks = hidden.split(size, dim=1)
        return torch.cat([recomputed(partial(whole, module), chunk) for chunk in chunks], dim=1)

    return type(module_class.__name__, (module_class,), {name: chunked})


def save_memory(
    model: PreTrainedModel, *, recompute: bool = False, feed_forward_chunk: int | None = None
) -> PreTrainedModel:
    """Let a model of `load_model` train in less memory; changes it in place and returns it.

    Args:
        recompute: store only the input of each layer.
        feed_forward_chunk: positions that go through the feed-forward parts at a time; None: all.
    """
    if feed_forward_chunk is not None:
        for module in [module for module in model.modules() if any(hasattr(module, name) for name in CHUNKED)]:
            module.__class__ = in_chunks(type(module), feed_forward_chunk)
    for layer in layers(model) if recompute else []:
        layer.__class__ = recomputing(type(layer))
    return model


@contextmanager
def explain_out_of_memory(less: str) -> Iterator[None]:
    """Turn a failed allocation into a ValueError that says what takes `less`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # On the CPU torch raises a plain RuntimeError.
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
        if not known:
            raise
        raise ValueError(f"out of memory; {less} takes less") from error
