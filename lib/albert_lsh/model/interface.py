"""Between Transformers and our attentions: the function that every layer calls, and the hooks that prepare the call.

`attend_in_model` is what Transformers calls for every attention of ours. Forward hooks, set by `count_passes`, hand it
its state, a `CurrentPass`. Importing this module makes every model of Transformers follow its config: one that asks for
our attention, or was saved with it, has it.
"""

from functools import wraps
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.attention.reformer import ReformerSelfAttention
from albert_lsh.model.config import ModelError, check_type, choice, max_positions
from albert_lsh.model.memory import layers
from albert_lsh.model.passes import CurrentPass, passes_of

INTERFACE = "albert_lsh"  # the name under which Transformers knows our attentions


def check_length(model: nn.Module, args: tuple, kwargs: dict) -> None:
    """Forward pre-hook of a base model: refuse a sequence longer than its positions."""
    named = [kwargs[n] for n in ("input_ids", "inputs_embeds") if kwargs.get(n) is not None]
    tokens = next(iter([*named, *args]), None)  # without any, the model itself says what is wrong
    if tokens is not None and tokens.shape[1] > (limit := max_positions(model.config)):
        raise ValueError(
            f"a sequence of {tokens.shape[1]} tokens is longer than the {limit} positions of this model; "
            "shorten it (max_length) or take a model with more positions"
        )


def begin_call(encoder: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Forward pre-hook of an encoder's stack of layers: start to count the passes; refuse what cannot be computed.

    The stack, for a SentenceTransformer calls its model's `forward`, which runs no hook of the model.
    """
    config: Any = encoder.config
    if config._attn_implementation != INTERFACE:
        return args, kwargs
    name = config.albert_lsh["attention"]
    if kwargs.get("output_attentions") or config.output_attentions:
        instead = "record_passes shows its inputs, set_attn_implementation('eager') makes it softmax with weights"
        raise ValueError(f"output_attentions=True: attention {name!r} keeps no weights; {instead}")
    attentions.check_recording(name)
    return args, {**kwargs, "passes": passes_of(config)}


def begin_pass(layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Forward pre-hook of a layer. It runs outside of what is recomputed: a repeated pass keeps its number."""
    return args, {**kwargs, "current_pass": next(kwargs.pop("passes"))} if "passes" in kwargs else kwargs


def count_passes(model: PreTrainedModel) -> None:
    """Set the hooks that give every attention module its `CurrentPass`, once."""
    base: Any = model.base_model
    stack = base.transformer if base.config.model_type == "distilbert" else base.encoder
    if begin_call in stack._forward_pre_hooks.values():
        return
    stack.config = base.config  # DistilBERT's stack keeps none itself
    base.register_forward_pre_hook(check_length, with_kwargs=True)
    stack.register_forward_pre_hook(begin_call, with_kwargs=True)
    for layer in layers(model):
        layer.register_forward_pre_hook(begin_pass, with_kwargs=True)


def attend_in_model(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    *,
    current_pass: CurrentPass | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """The function behind every attention of ours, with the signature of Transformers' AttentionInterface.

    query, key, value: (batch, heads, length, head_dim); attention_mask: (batch, length), or None without padding.
    Returns (batch, length, heads, head_dim), and no weights.
    """
    if current_pass is None:  # somebody wrote into the config of a finished model
        raise ValueError("this model was not prepared for our attentions; call albert_lsh.switch_attention(model, ...)")
    mask = None if attention_mask is None else attention_mask.bool()
    attentions.check_tensors(query, key, value, mask)
    current_pass.record(query, key, value, mask, module.training)
    name, settings = current_pass.attention(module.training)
    convolves = settings.get("conv_kernel_size") is not None
    if name == "reformer" or (convolves and not hasattr(module, "convolution")):  # ReformerSelfAttention calls itself
        raise ValueError(f"attention {name!r} has weights of its own; read the model with albert_lsh.load_model")
    if convolves:
        settings = {**settings, "conv_weight": module.convolution.weight}
    drawn = {"dropout": dropout, "generator": current_pass.generator(module.training)}
    out = attentions.ATTENTIONS[name].attend(query, key, value, mask, scaling=scaling, **drawn, **settings)
    return out.transpose(1, 2).contiguous(), None


def padding(attention_mask: Tensor | None = None, **more: Any) -> Tensor | None:
    """Transformers' mask for our attentions: (batch, length), or None where nothing is padded."""
    if attention_mask is None or (not attentions.is_recorded() and attention_mask.all()):
        return None
    return attention_mask


def follow_config(model: PreTrainedModel) -> None:
    """Let a model have the attention that its config names, and its config claim no other."""
    config = model.config
    if config._attn_implementation == INTERFACE:
        check_type(config, type(model).__name__)
        if getattr(config, "albert_lsh", None) is None:
            config.albert_lsh = choice(config, "lsh")
        count_passes(model)
    elif hasattr(config, "albert_lsh"):
        del config.albert_lsh
    mark(config)


def mark(config: Any) -> None:
    """Let a saved config.json name our interface where softmax would be another model.

    Transformers reads the entry, and refuses a name that it does not know.
    """
    if getattr(config, "albert_lsh", {"attention": "softmax"})["attention"] != "softmax":
        config.attn_implementation = INTERFACE
    elif vars(config).get("attn_implementation") == INTERFACE:
        del config.attn_implementation


def register() -> None:
    """Make our attentions known to Transformers, and let its models follow their configs."""
    # Without a mask function of the same name Transformers would silently pass no mask at all.
    AttentionInterface.register(INTERFACE, attend_in_model)
    AttentionMaskInterface.register(INTERFACE, padding)
    init = PreTrainedModel.__init__

    @wraps(init)
    def init_with_saved(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(config, "albert_lsh", None) and config._attn_implementation is None:
            config._attn_implementation = INTERFACE
        init(model, config, *args, **kwargs)

    def followed(method: Any) -> Any:
        @wraps(method)
        def then_follow(model: Any, *args: Any, **kwargs: Any) -> Any:
            before = model.config._attn_implementation
            out = method(model, *args, **kwargs)
            try:
                follow_config(model)
            except ModelError:
                if before != INTERFACE:
                    model.config._attn_implementation = before
                raise
            return out

        return then_follow

    model_class: Any = PreTrainedModel
    model_class.__init__ = init_with_saved
    model_class.post_init = followed(PreTrainedModel.post_init)
    model_class.set_attn_implementation = followed(PreTrainedModel.set_attn_implementation)


register()


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that hold the query, key and value projections, or replace them, in the order of the layers."""
    named = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))  # the latter in DistilBERT
    return [
        module
        for module in model.modules()
        if isinstance(module, ReformerSelfAttention) or any(all(hasattr(module, n) for n in names) for names in named)
    ]
