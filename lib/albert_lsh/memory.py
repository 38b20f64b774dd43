"""Less memory for training, with the same results: Reformer's remaining ideas where an ALBERT can use them.

`load_model` has a setting for each.

    recompute_layers(model)        activations inside a layer are computed again in the backward pass, not stored
                                   (Chen et al. 2016; Reformer makes its layers reversible to the same end)
    chunk_feed_forward(model, n)   the feed-forward part goes through n positions at a time (Kitaev et al. 2020,
                                   section 3.1), each recomputed, so that its wide activations never stand side by side
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from albert_lsh.passes import Passes

CHUNKED = ("ff_chunk", "feed_forward_chunk")  # the feed-forward part of a layer: ALBERT's, BERT's and RoBERTa's name


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """The encoder's layers; ALBERT has one, which it goes through several times."""
    return [module for module in model.modules() if any(hasattr(module, name) for name in CHUNKED)]


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, its activations computed again in the backward pass; dropout draws the same numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    return call


def recompute_layers(model: PreTrainedModel) -> PreTrainedModel:
    """Store only what goes into each layer, in place; returns the model of `load_model`."""
    passes = next(module.__dict__["passes"] for module in model.modules() if "passes" in module.__dict__)
    for layer in layers(model):
        layer.forward = with_its_pass(layer.forward, passes)
    return model


def with_its_pass(forward: Callable[..., Any], passes: "Passes") -> Callable[..., Any]:
    """A layer's forward, recomputed; done again it counts as the same pass, so that it draws the same hashes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        number = passes.number

        def run(*args: Any, **kwargs: Any) -> Any:
            passes.number = number
            return forward(*args, **kwargs)

        return recomputed(run)(*args, **kwargs)

    return call


def chunk_feed_forward(model: PreTrainedModel, size: int) -> PreTrainedModel:
    """Send `size` positions at a time through the feed-forward parts, in place; returns the model.

    Raises:
        ValueError: size below 1.
    """
    if size < 1:
        raise ValueError(f"size={size} must be 1 or more positions")
    for layer in layers(model):
        name = next(name for name in CHUNKED if hasattr(layer, name))
        forward = recomputed(getattr(layer, name))
        setattr(layer, name, in_chunks(forward, size))
    return model


def in_chunks(forward: Callable[[Tensor], Tensor], size: int) -> Callable[[Tensor], Tensor]:
    """A function of (batch, length, hidden) that treats all positions alike, a few positions at a time."""

    def call(hidden: Tensor) -> Tensor:
        return torch.cat([forward(chunk) for chunk in hidden.split(size, dim=1)], dim=1)

    return call
