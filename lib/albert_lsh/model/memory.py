"""Training in less memory: the activations of layers are computed again in the backward pass."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from albert_lsh.interface import PassCounter
from albert_lsh.model.classes import changing


@changing
def recomputing(layer_class: Any) -> dict[str, Any]:
    """A layer's class whose `forward` is computed again in the backward pass; dropout draws the same numbers.

    The method belongs to a class, not to the module, so that a deep copy of the module uses its own weights.
    """

    def forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return layer_class.forward(layer, *args, **kwargs)
        # ALBERT's layers have the mask by position; modules of other types know their number.
        args = tuple(arg.begin(layer) if isinstance(arg, PassCounter) else arg for arg in args)
        return checkpoint(partial(layer_class.forward, layer), *args, use_reentrant=False, **kwargs)

    return {"forward": forward}


def recompute_activations(model: PreTrainedModel) -> PreTrainedModel:
    """Let a model of `load_model` train in less memory, with the same results; changes it in place and returns it.

    Only the input of each layer is stored, and its activations are computed again in the backward pass (Chen et al.
    2016; Reformer makes its layers reversible to the same end). Transformers' own does not know ALBERT's layers.
    """
    for module in list(model.modules()):
        if isinstance(module, GradientCheckpointingLayer) or type(module).__name__ == "AlbertLayer":
            module.__class__ = recomputing(type(module))
    return model
