"""Attentions by name.

    names()                                          the attentions there are
    attend(name, query, key, value, ...)             one of them, on bare tensors
    pairs(name, query, key, ...)                     how often each query meets each key
    coverage(name, query, key, ...)                  what share of the pairs, and of softmax's mass, that is
    cost(name, length, head_dim, ...)                its multiply-adds, as a ratio to softmax attention's
    settings_for(name, length, share)                settings that spend a given share of the pairs

In a model they are chosen with `albert_lsh.load_model(..., attention=name)`.
"""

import reprlib
from typing import NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention.definition import check_whole
from albert_lsh.attention.registry import (
    ATTENTIONS,
    check,
    check_evaluation,
    names,
    recorded,
    setting_names,
    settings_for,
)
from albert_lsh.attention.rows import MASKED, clear_padding, count_tokens

__all__ = [
    "ATTENTIONS",
    "Coverage",
    "attend",
    "check",
    "check_evaluation",
    "check_tensors",
    "check_whole",
    "cost",
    "coverage",
    "names",
    "pairs",
    "recorded",
    "setting_names",
    "settings_for",
]


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HIGHEST_SEED = 2**63 - 1


def check_tensors(query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None) -> None:
    """Raise ValueError unless the tensors are those that `attend` describes, all on one device."""
    given = {"query": query, "key": key, "value": value}
    if other := [f"{name} {type(x).__name__}" for name, x in given.items() if not isinstance(x, Tensor)]:
        raise ValueError(f"query, key and value must be tensors; got {', '.join(other)}")
    if query.dim() != 4 or not query.shape == key.shape == value.shape or not query.numel():
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items())
        raise ValueError(f"query, key and value must all be (batch, heads, length, head_dim), none 0; got {shapes}")
    if query.dtype not in DTYPES or len({(x.dtype, x.device) for x in given.values()}) > 1:
        kinds = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in given.items())
        raise ValueError(f"query, key and value must be of one floating dtype and on one device; got {kinds}")
    if padding_mask is None:
        return
    expected, found = (query.shape[0], query.shape[2]), type(padding_mask).__name__
    if isinstance(padding_mask, Tensor):
        if padding_mask.dtype == torch.bool and (*padding_mask.shape, padding_mask.device) == (*expected, query.device):
            return
        found = f"{padding_mask.dtype} of shape {tuple(padding_mask.shape)} on {padding_mask.device}"
    raise ValueError(
        f"padding_mask must be bool of shape (batch, length) = {expected} on {query.device}, True where there is a "
        f"token; got {found}"
    )


def generator_of(seed: int) -> torch.Generator:
    """The generator that hashes are drawn from; ValueError for a seed that is none."""
    check_whole("seed", seed, 0, HIGHEST_SEED)
    return torch.Generator().manual_seed(seed)


def is_recorded() -> bool:
    """Whether this call is recorded, to be repeated with other inputs: by torch.export, or by torch.jit.trace."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def check_recording(name: str) -> None:
    """Raise ValueError where a call is recorded of an attention that chooses keys, landmarks or codes by its input."""
    if is_recorded() and not name.startswith("softmax"):
        why = "computes anew from its input in each call what an exported program would keep"
        how = "torch.export" if torch.compiler.is_exporting() else "torch.jit.trace"
        raise ValueError(f"{how}: attention {name!r} {why}; switch_attention(model, 'softmax') can be exported")


def attend(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding_mask: Tensor | None = None,
    *,
    seed: int = 0,
    dropout: float = 0.0,
    conv_weight: Tensor | None = None,
    **settings,
) -> Tensor:
    """Attention `name` on bare tensors, the same that a model with this attention computes.

    Args:
        query, key, value: (batch, heads, length, head_dim), of one floating dtype, on any device. float64 is slow.
        padding_mask: (batch, length) bool, True where there is a token; None when nothing is padded.
        seed: of the random numbers that hashing draws, 0 or above; the same seed gives the same hashes on every device.
        dropout: probability with which an attention weight is dropped (from torch's global generator).
        conv_weight: (heads, conv_kernel_size), of the convolution of the values, where the attention is to have one.
        settings: the attention's own, for instance n_hashes; see `check`. One with a budget takes share= (of the pairs)
            or keys= (of each query), and resolves it for each sequence's own length.
    Returns:
        (batch, heads, length, head_dim), in query's dtype; rows of padding are zero.
    Raises:
        ValueError: unknown name or setting, shapes or dtypes that disagree, an empty tensor, a mask that is not bool; a
            call that is recorded by torch.export or torch.jit.trace.
    """
    settings = check(name, settings)
    check_tensors(query, key, value, padding_mask)
    check_recording(name)
    if conv_weight is not None:
        if "conv_kernel_size" not in settings:
            raise ValueError(f"attention {name!r} has no convolution of the values, and so no conv_weight")
        settings["conv_weight"] = conv_weight
    if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout={reprlib.repr(dropout)} must be a number, 0 to 1")
    return ATTENTIONS[name].attend(
        query,
        key,
        value,
        padding_mask,
        scaling=query.shape[-1] ** -0.5,
        dropout=dropout,
        generator=generator_of(seed),
        **settings,
    )


@torch.no_grad()
def pairs(
    name: str, query: Tensor, key: Tensor, padding_mask: Tensor | None = None, *, seed: int = 0, **settings
) -> Tensor:
    """How often each query meets each key, for the very hashes that `attend` draws with this seed.

    Returns:
        (batch, heads, length, length), integers: 0 where a query does not see a key; rows and columns of padding are 0.
        Takes memory quadratic in the length: for looking, not for training.
    """
    settings = check(name, settings)
    check_tensors(query, key, key, padding_mask)
    counts = _ask(name, "pairs", query, key, padding_mask, seed, settings)
    if padding_mask is not None:
        counts = counts * padding_mask[:, None, :, None] * padding_mask[:, None, None, :]
    return counts


def _ask(name: str, what: str, query, key, padding_mask: Tensor | None, seed: int, settings) -> Tensor:
    """A function of the attention, for the hashes of this seed."""
    attention = ATTENTIONS[name]
    settings = attention.resolve(settings, count_tokens(query, padding_mask))
    generator = generator_of(seed)
    query, key = clear_padding(query, padding_mask), clear_padding(key, padding_mask)
    return getattr(attention, what)(query, key, padding_mask, generator=generator, **settings)


def cost(name: str, length: int, head_dim: int = 64, **settings) -> float:
    """The multiply-adds of an attention as a ratio to softmax attention's, 2 length^2 head_dim in each head.

    Everything counts: hashing, mean keys that are compared with, mean keys attended, and pairs. Sorting, which
    multiplies nothing, does not. Each attention states a formula for a sequence of `length` tokens.

    Raises:
        ValueError: unknown name or setting, a length or head_dim that is none.
    """
    full = check(name, settings)
    check_whole("length", length, 1)
    check_whole("head_dim", head_dim, 1)
    resolved = ATTENTIONS[name].resolve(full, torch.tensor([length]))
    return ATTENTIONS[name].cost(length, head_dim, **resolved) / (2 * length**2 * head_dim)


class Coverage(NamedTuple):
    """What an attention looks at, as shares of all query-key pairs (or of softmax's mass), padding left out."""

    pairs: float  # keys attended, each once, and mean keys that stand for others
    mass: float  # of softmax's attention, mean over queries, on the keys attended
    cost: float  # multiply-adds of everything, choosing keys included, as a ratio to softmax attention's; see `cost`


@torch.no_grad()
def coverage(
    name: str, query: Tensor, key: Tensor, padding_mask: Tensor | None = None, *, seed: int = 0, **settings
) -> Coverage:
    """What `attend` would look at with this seed.

    Arguments are those of `attend`. Softmax means that of the query and key given, also for attentions that
    tie them. Where there is nothing but padding, all shares are 0.
    """
    met = pairs(name, query, key, padding_mask, seed=seed, **settings) > 0
    query, key = clear_padding(query, padding_mask), clear_padding(key, padding_mask)
    scores = query.float() @ key.float().transpose(-1, -2) * query.shape[-1] ** -0.5
    means = met.new_zeros(1)
    if ATTENTIONS[name].mean_keys is not None:
        means = _ask(name, "mean_keys", query, key, padding_mask, seed, check(name, settings))
    if padding_mask is None:
        padding_mask = query.new_ones(query.shape[0], query.shape[2], dtype=torch.bool)
    weights = scores.masked_fill(~padding_mask[:, None, None, :], MASKED).softmax(-1)
    tokens = padding_mask.sum(-1)
    mass = (weights * met).sum(-1)  # (batch, heads, length); rows of padding are 0
    all_queries, all_pairs = (max(1, query.shape[1] * int(n.sum())) for n in (tokens, tokens.square()))
    products = sum(n**2 * cost(name, n, query.shape[-1], **settings) for n in tokens.tolist() if n)
    return Coverage(
        pairs=(met.sum() + means.sum()).item() / all_pairs,
        mass=mass.sum().item() / all_queries,
        cost=products * query.shape[1] / all_pairs,
    )
