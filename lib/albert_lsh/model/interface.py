"""Between Transformers and our attentions: the function that every layer calls, and the state of one call.

`attend_in_model` is what Transformers calls for every attention of ours. Forward hooks, set by `count_passes`, hand it
its state, a `CurrentPass`. `record_passes` lets a user look at the inputs. Importing this module makes every model of
Transformers follow its config: one that asks for our attention, or was saved with it, has it.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.attention.reformer import ReformerSelfAttention
from albert_lsh.attention.rows import count_tokens
from albert_lsh.model.config import ModelError, check_type, choice, max_positions, transformers_model
from albert_lsh.model.memory import layers

logger = logging.getLogger(__name__)

INTERFACE = "albert_lsh"  # the name under which Transformers knows our attentions
NEARLY_ALL = 0.95  # of the pairs; reformer never attends to a query's own key


class Pass(NamedTuple):
    """The inputs of one pass through an attention; enough to compute it again (a convolution's weights aside)."""

    attention: str
    settings: dict[str, Any]
    seed: int
    query: Tensor  # (batch, heads, length, head_dim)
    key: Tensor
    value: Tensor
    padding_mask: Tensor | None  # (batch, length) bool

    def coverage(self) -> attentions.Coverage:
        """What this pass attends to; see `attention.coverage`."""
        return attentions.coverage(*self._given, seed=self.seed, **self.settings)

    def pairs(self) -> Tensor:
        """Which query meets which key; see `attention.pairs`."""
        return attentions.pairs(*self._given, seed=self.seed, **self.settings)

    @property
    def _given(self) -> tuple[str, Tensor, Tensor, Tensor | None]:
        return self.attention, self.query, self.key, self.padding_mask


def mean_coverage(passes: list[Pass]) -> attentions.Coverage:
    """The coverage of several passes: means over all their pairs, of the mass over all their queries."""
    tokens = [count_tokens(one.query, one.padding_mask) for one in passes]
    pairs = [int(n.square().sum()) for n in tokens]
    weights = [attentions.Coverage(n, int(own.sum()), n) for n, own in zip(pairs, tokens, strict=True)]
    totals = np.multiply([one.coverage() for one in passes], weights).sum(0)
    return attentions.Coverage(*(totals / np.sum(weights, 0).clip(min=1)).tolist())  # 0 for nothing but padding


# The lists that record passes in this thread, each with the config of the recorded model.
RECORDING: ContextVar[tuple[tuple[Any, list[Pass]], ...]] = ContextVar("recording", default=())


class CurrentPass:
    """One pass: its number, and the attention, settings and seed that follow from it."""

    def __init__(self, chosen: dict[str, Any], number: int, recorded: list[Pass] | None):
        self.chosen, self.number, self.recorded = chosen, number, recorded
        self.seed = chosen["seed"] + 1_000_003 * number

    def attention(self, training: bool) -> tuple[str, dict[str, Any]]:
        """Name and settings of its attention; softmax if this pass is not chosen."""
        only, settings = self.chosen["passes"], self.chosen["settings"]
        if only is not None and self.number not in only:
            return "softmax", {}
        return self.chosen["attention"], settings if training else {**settings, **self.chosen["evaluation_settings"]}

    def generator(self, training: bool) -> torch.Generator | None:
        """Of its hashes: torch's global one (None) in training; in evaluation it follows from seed and number."""
        return None if training else torch.Generator().manual_seed(self.seed)

    def record(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, training: bool) -> None:
        """Append the inputs to the list of `record_passes`, if there is one."""
        if self.recorded is not None:
            chosen = (*self.attention(training), self.seed)
            self.recorded.append(Pass(*chosen, query.detach(), key.detach(), value.detach(), padding_mask))
            self.recorded = None  # once; the backward pass may compute it again


def passes_of(config: Any) -> Iterator[CurrentPass]:
    """The passes of one call of an encoder.

    ALBERT goes through one attention module twelve times and gives it no layer number; counting the passes gives each
    its own hashes. The count is an argument of the call, not kept in the model, so calls in other threads or of copies
    do not disturb it.
    """
    recorded = next((passes for of, passes in reversed(RECORDING.get()) if of is config), None)
    for number in count():
        yield CurrentPass(config.albert_lsh, number, recorded)


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
    if torch.compiler.is_exporting() and not name.startswith("softmax"):
        why = "computes anew from its input in each call what an exported program would keep"
        raise ValueError(f"torch.export: attention {name!r} {why}; switch_attention(model, 'softmax') can be exported")
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
    if attention_mask is None or (not torch.compiler.is_exporting() and attention_mask.all()):
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


@contextmanager
def record_passes(model: nn.Module) -> Iterator[list[Pass]]:
    """Record the inputs of every attention pass of a model, in the order of the layers.

        with record_passes(model) as passes:
            model(**inputs)

    Calls in other threads are not recorded.
    """
    passes: list[Pass] = []
    token = RECORDING.set((*RECORDING.get(), (transformers_model(model).config, passes)))
    try:
        yield passes
    finally:
        RECORDING.reset(token)


@torch.no_grad()
def mean_attended(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> attentions.Coverage:
    """The `mean_coverage` of a model in evaluation, over all passes, heads and batches.

    Warns of a sparse attention that attends to (nearly) all pairs.

    batches: the model's inputs by name, on its device.
    """
    model.eval()
    with record_passes(model) as passes:
        for batch in batches:
            model(**batch)
    coverage = mean_coverage(passes)
    # `rest` stands for unseen keys; cluster_size is smyrf's, full_attn_thres reformer's
    sparse = {p.attention for p in passes if p.settings.keys() & {"rest", "cluster_size", "full_attn_thres"}}
    if sparse and coverage.pairs > NEARLY_ALL:
        name = sparse.pop()
        way = "smaller bucket_size and full_attn_thres" if name == "reformer" else 'a budget such as {"share": 0.25}'
        said = f"attention={name!r} attends to {coverage.pairs:.0%} of the pairs, as softmax does"
        logger.warning("%s; %s in attention_settings would leave pairs out", said, way)
    return coverage
