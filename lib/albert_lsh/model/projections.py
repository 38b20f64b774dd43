"""New projections in the place of pretrained ones: reformer-pytorch's, or the model's own drawn anew."""

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from albert_lsh.attention.reformer import ReformerSelfAttention
from albert_lsh.model.config import ModelError


class AlbertReformerAttention(nn.Module):
    """AlbertAttention with its projections replaced; residual, dropout and LayerNorm as they are."""

    def __init__(self, config, settings: dict[str, Any]):
        super().__init__()
        self.reformer = ReformerSelfAttention(config, **settings)
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs) -> tuple[Tensor, None]:
        out, _ = self.reformer(hidden_states, attention_mask, **kwargs)
        return self.LayerNorm(hidden_states + self.output_dropout(out)), None


def refuse_distilbert(model: PreTrainedModel, what: str) -> None:
    """DistilBERT's projections have names of their own, which nothing here replaces."""
    if model.config.model_type == "distilbert":
        raise ModelError(f"{what} needs new projections, which a DistilBERT cannot be given here; take a BERT")


def transplant(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Replace every attention's projections by reformer-pytorch's, initialised as the model initialises its own.

    Raises:
        ModelError: the model is a DistilBERT.
    """
    refuse_distilbert(model, "attention 'reformer'")
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            new: nn.Module
            if type(child).__name__ == "AlbertAttention":
                new = AlbertReformerAttention(model.config, settings)
            elif type(child).__name__.endswith("SelfAttention") and hasattr(child, "query"):
                new = ReformerSelfAttention(model.config, **settings)
                parent.get_submodule("output").dense = nn.Identity()  # replaced by the package's to_out
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
