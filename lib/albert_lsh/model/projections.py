"""Changes around the attention of a model: new projections, a convolution of the values, no residual connection."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.albert.modeling_albert import AlbertAttention

from albert_lsh.attention.published.convolution import Convolution
from albert_lsh.attention.published.reformer import ReformerSelfAttention
from albert_lsh.encoders import ModelError, attention_modules
from albert_lsh.interface import ModelAttention, attend, begin_pass, check_residual

PROJECTIONS = ("query", "key", "value", "output")
BLOCKS = "albert", "bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "data2vec-text"


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
        current, mask = begin_pass(self, attention_mask, hidden_states.device, **kwargs)
        return super().forward(hidden_states, mask, current_pass=current)


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


def check_block(model: PreTrainedModel, what: str) -> None:
    """Raise ModelError unless the model's attention block is ALBERT's or BERT's, which is what can be changed here."""
    if (kind := model.config.model_type) not in BLOCKS:
        raise ModelError(f"{what}: not in a model of type {kind}; take one of {', '.join(BLOCKS)}")


def transplant(model: PreTrainedModel, settings: dict[str, Any]) -> None:
    """Replace every attention's projections by reformer-pytorch's, initialised as the model initialises its own.

    settings: of `reformer`. With residual False the package's layer takes the place of the whole attention block: what
    the feed-forward part reads, and adds to its own output, is that layer's output.

    Raises:
        ModelError: a model of another type than ALBERT's, BERT's and RoBERTa's.
    """
    check_block(model, "attention 'reformer'")
    model.config.attention_probs_dropout_prob = 0.0  # of the package's layer; the config, and so a record, says it
    hashing = {name: value for name, value in settings.items() if name != "residual"}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            new: nn.Module
            if type(child).__name__ == "AlbertAttention":
                new = (AlbertReformerAttention if settings["residual"] else ReformerAttention)(model.config, **hashing)
            elif type(child).__name__.endswith("SelfAttention") and hasattr(child, "query"):
                new = ReformerAttention(model.config, **hashing)
                if settings["residual"]:
                    parent.get_submodule("output").dense = nn.Identity()  # replaced by the package's to_out
                else:
                    parent.output = AttentionAlone()
            else:
                continue
            setattr(parent, name, new)
            new.apply(model._init_weights)


def draw_projections(model: PreTrainedModel, names: Sequence[str] = PROJECTIONS) -> PreTrainedModel:
    """Draw these projections of every attention anew, in place; returns the model.

    From torch's global generator, as Transformers initialises them: weights with the standard deviation
    config.initializer_range, biases zero. All other weights stay. `reformer` has new projections anyway.

    Raises:
        ValueError: the model's attention is `reformer`, or its type is none of ALBERT's, BERT's and RoBERTa's.
    """
    if any(isinstance(module, ReformerSelfAttention) for module in model.modules()):
        raise ValueError("projections: 'reformer' has new ones already")
    check_block(model, "projections='new'")
    module: Any
    for module in model.modules():
        inner, outer = (module.self, module.output) if hasattr(module, "self") else (module, module)
        if hasattr(inner, "query") and hasattr(outer, "dense"):
            linears = dict(zip(PROJECTIONS, (inner.query, inner.key, inner.value, outer.dense), strict=True))
            for linear in map(linears.__getitem__, names):
                nn.init.normal_(linear.weight, std=model.config.initializer_range)
                nn.init.zeros_(linear.bias)
    return model


Base: Any = AlbertAttention  # its type annotations forbid a `PassCounter` as mask


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
        ValueError: the model's attention is `reformer`, or its type is none of ALBERT's, BERT's and RoBERTa's.
    """
    config = model.config
    kept = ModelAttention.of(config, type(model).__name__)
    kept = kept.aside or kept
    check_residual(kept["attention"], False)
    check_block(model, "residual=False")
    module: Any
    inner: Any
    for module in list(model.modules()):
        inner = getattr(module, "self", None)
        if type(module).__name__ == "AlbertAttention":
            module.__class__ = AlbertAttentionWithoutResidual
            module.has_residual = False
        elif hasattr(inner, "query") and getattr(inner, "has_residual", True):
            module.output.register_forward_pre_hook(nothing_added)
            inner.has_residual = False
    ModelAttention.make(config, **kept | {"residual": False}).keep(config)
    return model
