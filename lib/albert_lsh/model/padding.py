"""A model that pads every text to one length, for attentions whose answers depend on how far a text is padded.

A tokenizer cannot promise it: Transformers overrides the padding that tokenizer.json names by its own arguments. Its
pipelines ask for none, and then pad to the longest text of a batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.encoders import max_positions
from albert_lsh.model.classes import changing


@changing
def padding_class(model_class: Any) -> dict[str, Any]:
    """A base model's class that pads its inputs to config.padded_length; the states of this padding are cut off."""

    def forward(model, input_ids=None, attention_mask=None, token_type_ids=None, **kwargs):
        if input_ids is None or any(kwargs.get(name) is not None for name in ("inputs_embeds", "position_ids")):
            raise ValueError("a model that pads its inputs takes input_ids, and neither embeddings nor positions")
        length, padded = input_ids.shape[1], model.config.padded_length
        if length > padded:
            raise ValueError(f"a sequence of {length} tokens is longer than the {padded} that this model pads to")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        more = (0, padded - length)
        kwargs["input_ids"] = F.pad(input_ids, more, value=model.config.pad_token_id)
        kwargs["attention_mask"] = F.pad(attention_mask, more)
        if token_type_ids is not None:
            kwargs["token_type_ids"] = F.pad(token_type_ids, more)
        out = model_class.forward(model, **kwargs)

        def cut(value: Any) -> Any:
            """States (batch, padded, hidden), or a tuple of them, for the tokens that came in."""
            if isinstance(value, tuple):
                return tuple(map(cut, value))
            return value[:, :length] if isinstance(value, torch.Tensor) and value.dim() == 3 else value

        return cut(out) if isinstance(out, tuple) else type(out)({name: cut(value) for name, value in out.items()})

    return {"forward": forward}


def pad_inputs(model: PreTrainedModel, length: int) -> PreTrainedModel:
    """Let a model of `load_model` pad every text to `length` tokens itself, in place; returns the model.

    Where padding is not masked an answer depends on how far a text is padded. So it is the model that pads, whatever
    tokenizer or pipeline calls it; its config keeps the length. States of the added padding are not returned.

    Raises:
        ValueError: a length that is none, or above the model's positions.
    """
    attentions.check_whole("length", length, 1, max_positions(model.config))
    is_new = getattr(model.config, "padded_length", None) is None
    model.config.padded_length = length
    if is_new:
        start_padding(model)
    return model


def start_padding(model: PreTrainedModel) -> None:
    """Give the base model of a model whose config has padded_length a class that pads."""
    model.base_model.__class__ = padding_class(type(model.base_model))
