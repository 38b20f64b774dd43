"""Attentions by name.

    names()                                          the attentions there are
    attend(name, query, key, value, ...)             one of them, on bare tensors
    pairs(name, query, key, ...)                     how often each query meets each key
    coverage(name, query, key, ...)                  what share of the pairs, and of softmax's mass, that is
    cost(name, length, head_dim, ...)                its multiply-adds, as a ratio to softmax attention's
    settings_for(name, length, share)                settings that spend a given share of the pairs

In a model they are chosen with `albert_lsh.load_model(..., attention=name)`. A new attention is a class in a file
beside this one, and its line in ATTENTIONS.
"""

import reprlib
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from albert_lsh.attention.clustered import ImprovedClustered
from albert_lsh.attention.controls import TopK, Window
from albert_lsh.attention.core import Attention, Budgeted, check_whole, keys_of
from albert_lsh.attention.hashed import LSH, Random, Smyrf
from albert_lsh.attention.hyper import Hyper
from albert_lsh.attention.key_clusters import KeyClusters
from albert_lsh.attention.keys import MASKED, clear_padding, count_tokens, token_mask
from albert_lsh.attention.nystrom import Nystrom
from albert_lsh.attention.reformer import Reformer
from albert_lsh.attention.shared_qk import SharedQK, SharedQKLSH
from albert_lsh.attention.softmax import Softmax, SoftmaxEager
from albert_lsh.attention.yoso import Linear, Yoso, YosoE

__all__ = [
    "ATTENTIONS",
    "Coverage",
    "attend",
    "check",
    "check_evaluation",
    "check_tensors",
    "check_version",
    "check_whole",
    "cost",
    "coverage",
    "names",
    "pairs",
    "recorded",
    "setting_names",
    "settings_for",
]

ATTENTIONS: dict[str, type[Attention]] = {
    kind.name: kind
    for kind in (
        Softmax, SoftmaxEager, Reformer, SharedQK, SharedQKLSH, KeyClusters, LSH, Window, Random, TopK, Smyrf,
        Hyper, ImprovedClustered, Nystrom, Linear, Yoso, YosoE,
    )
}  # fmt: skip
# Versions of what was once called by an attention's name, and how a model that has them can be had.
EARLIER = {
    ("lsh", 1): "it hashed nothing, and commit 0405aaae of albert-lsh is the last that has it",
    ("lsh", 2): "it hashed nothing, and is 'key-clusters' now: write that name into the model's config.json",
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HIGHEST_SEED = 2**63 - 1


def names() -> list[str]:
    """The attentions there are."""
    return list(ATTENTIONS)


def setting_names() -> set[str]:
    """The names of all attentions' settings."""
    return {setting for kind in ATTENTIONS.values() for setting in kind.defaults}


def kind_of(name: str) -> type[Attention]:
    """The class of an attention; ValueError if there is none of that name."""
    if not isinstance(name, str) or name not in ATTENTIONS:
        raise ValueError(f"attention={reprlib.repr(name)} is not one of: {', '.join(ATTENTIONS)}")
    return ATTENTIONS[name]


def make(name: str, settings: dict[str, Any] | None = None) -> Attention:
    """The attention of a name with its settings; ValueError if there is none, or it cannot have them."""
    kind = kind_of(name)
    if not isinstance(settings, dict | None):
        raise ValueError(f"attention {name!r}: settings={reprlib.repr(settings)} must be a dictionary of settings")
    return kind.make(settings or {})


def check(name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The full settings of an attention: its defaults, with `settings` over them.

    Settings that follow from `share` or `keys` are None. Those of an old record become today's.

    Raises:
        ValueError: no attention of that name, a setting that it does not have, or a value that it cannot take.
    """
    return make(name, settings).full_settings()


def recorded(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a record as `check` completes them; as they stand there if today's code cannot have them."""
    try:
        return check(name, settings)
    except ValueError:
        return settings


def check_version(name: str, version: int) -> None:
    """Raise ValueError unless the code has the method that a record or model was made with."""
    if version != (current := kind_of(name).version):
        how = EARLIER.get((name, version), "install a newer release of albert-lsh")
        raise ValueError(f"attention {name!r} is of version {version}, here it is {current}: {how}")


def check_evaluation(name: str, settings: dict[str, Any], changes: dict[str, Any] | None) -> dict[str, Any]:
    """The full settings of an attention in evaluation: `changes` over those that it is trained with.

    A budget takes the place of the settings that follow from it, and they of a budget.

    Raises:
        ValueError: as `check` does; a convolution, whose weights only training gives; reformer, which is made with its
            settings.
    """
    if not isinstance(changes, dict | None):
        raise ValueError(f"evaluation_settings={reprlib.repr(changes)} must be a dictionary of settings")
    changes, full, budget = changes or {}, check(name, settings), {"share", "keys"}
    if name == "reformer" and changes:
        raise ValueError(f"evaluation_settings={changes!r}: 'reformer' has in evaluation the settings it was made with")
    if "conv_kernel_size" in changes:
        raise ValueError("evaluation_settings: conv_kernel_size has weights, which have to be trained with it")
    following = ATTENTIONS[name].open
    if changes.keys() & budget:
        full = {k: v for k, v in full.items() if k not in {*budget, *following} or isinstance(v, bool)}
    elif changes.keys() & set(following[:2]):
        full = {k: v for k, v in full.items() if k not in budget}
    try:
        return check(name, {**full, **changes})
    except ValueError as error:
        raise ValueError(f"evaluation_settings: {error}") from error


def settings_for(
    name: str, length: int = 256, share: float | None = None, *, keys: int | None = None, **fixed: Any
) -> dict[str, Any]:
    """Settings with which a query of a sequence of `length` tokens attends to at most `share` of the keys.

    They are those that `share` or `keys` as a setting comes to at this length (and reformer's, which has neither as a
    setting). What is fixed is never changed.

    Args:
        name: an attention with a budget. length: tokens of a sequence.
        share: of the pairs, above 0, at most 1; a mean key attended to is one key. keys: of a query, in its place;
            with neither a quarter of the pairs.
        fixed: settings that are decided already, for instance global_tokens=0.
    Returns:
        Settings for `attend` or `load_model`, those fixed among them.
    Raises:
        ValueError: an attention without a budget, a share or length out of range, a budget too small for the attention
            or for what is fixed; a fixed setting that the attention does not have, or that it cannot take.
    """
    made = make(name, fixed)
    if not made.fewest:
        able = ", ".join(known for known, kind in ATTENTIONS.items() if kind.fewest)
        raise ValueError(f"attention={name!r} has no budget; one has: {able}")
    check_whole("length", length, 1)
    share = 0.25 if share is None and keys is None else share
    Budgeted.make({"share": share, "keys": keys})
    budget = keys_of(length, share, keys)
    settings, needed = made.fit_budget(length, budget)
    if needed > budget:
        size = f"keys={keys}" if share is None else f"share={share}"
        held = ", ".join(f"{setting}={value}" for setting, value in fixed.items() if value is not None)
        few = f"{budget} keys, too few{' for ' + held if held else ''}"
        raise ValueError(f"{name}: {size} of length={length} is {few}; {needed} would do")
    return settings


def check_tensors(query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None) -> None:
    """Raise ValueError unless the tensors are those that `attend` describes, all on one device."""
    rows = {"query": query, "key": key, "value": value}
    alike = isinstance(query, Tensor) and form(query) == form(key) == form(value)
    if not alike or query.dim() != 4 or not query.numel() or query.dtype not in DTYPES:
        raise ValueError(
            "query, key and value must be tensors of one shape (batch, heads, length, head_dim), none 0, of one "
            f"floating dtype, on one device; got {', '.join(f'{name} {shown(x)}' for name, x in rows.items())}"
        )
    shape = query.shape[0], query.shape[2]
    if padding_mask is not None and form(padding_mask) != (torch.bool, shape, query.device):
        raise ValueError(
            f"padding_mask must be bool of shape (batch, length) = {shape} on {query.device}, True where there is a "
            f"token; got {shown(padding_mask)}"
        )


def form(x: Any) -> tuple[Any, ...]:
    """The dtype, shape and device of a tensor, or the type of what is none."""
    return (x.dtype, (*x.shape,), x.device) if isinstance(x, Tensor) else (type(x).__name__,)


def shown(x: Any) -> str:
    """A tensor, or what is none, as messages have it."""
    return "{} {} on {}".format(*form(x)) if isinstance(x, Tensor) else type(x).__name__


def generator_of(seed: int) -> torch.Generator:
    """The generator that hashes are drawn from; ValueError for a seed that is none."""
    check_whole("seed", seed, 0, HIGHEST_SEED)
    return torch.Generator().manual_seed(seed)


def is_recorded() -> bool:
    """Whether this call is recorded, to be repeated with other inputs: by torch.export, torch.jit.trace or make_fx."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing() or get_proxy_mode() is not None


def check_recording(name: str) -> None:
    """Raise ValueError where a call is recorded of an attention that chooses keys, landmarks or codes by its input."""
    if is_recorded() and not name.startswith("softmax"):
        why = "computes anew from its input in each call what an exported program would keep"
        how = "torch.jit.trace" if torch.jit.is_tracing() else "torch.export"
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
    **settings: Any,
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
        (batch, heads, length, head_dim), in query's dtype; rows of padding are zero, unless padding is taken for tokens
        (reformer with mask_padding=False).
    Raises:
        ValueError: unknown name or setting, shapes or dtypes that disagree, an empty tensor, a mask that is not bool; a
            call that is recorded by torch.export or torch.jit.trace.
    """
    make(name, settings)
    check_tensors(query, key, value, padding_mask)
    check_recording(name)
    if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout={reprlib.repr(dropout)} must be a number, 0 to 1")
    more = {"scaling": query.shape[-1] ** -0.5, "dropout": dropout, "generator": generator_of(seed)}
    return ATTENTIONS[name].attend(query, key, value, padding_mask, conv_weight=conv_weight, **more, **settings)


@torch.no_grad()
def pairs(
    name: str, query: Tensor, key: Tensor, padding_mask: Tensor | None = None, *, seed: int = 0, **settings: Any
) -> Tensor:
    """How often each query meets each key, for the very hashes that `attend` draws with this seed.

    Returns:
        (batch, heads, length, length), integers: 0 where a query does not see a key; rows and columns of padding are 0,
        unless padding is taken for tokens (reformer with mask_padding=False): what is attended to is counted.
        Takes memory quadratic in the length: for looking, not for training.
    """
    made = make(name, settings)
    check_tensors(query, key, key, padding_mask)
    padding_mask = made.visible(padding_mask)
    made = made.resolve(count_tokens(query, padding_mask))
    query, key = clear_padding(query, padding_mask), clear_padding(key, padding_mask)
    counts = made.pairs(query, key, padding_mask, generator_of(seed))
    if padding_mask is not None:
        counts = counts * padding_mask[:, None, :, None] * padding_mask[:, None, None, :]
    return counts


def cost(name: str, length: int, head_dim: int = 64, **settings: Any) -> float:
    """The multiply-adds of an attention as a ratio to softmax attention's, 2 length^2 head_dim in each head.

    Everything counts: hashing, mean keys that are compared with, mean keys attended, and pairs. Sorting, which
    multiplies nothing, does not. Each attention states a formula for a sequence of `length` tokens.

    Raises:
        ValueError: unknown name or setting, a length or head_dim that is none.
    """
    made = make(name, settings)
    check_whole("length", length, 1)
    check_whole("head_dim", head_dim, 1)
    return made.resolve(torch.tensor([length], device="cpu")).cost(length, head_dim) / (2 * length**2 * head_dim)


class Coverage(NamedTuple):
    """What an attention looks at, as shares of all query-key pairs (or of softmax's mass).

    Padding is left out. Where the attention takes it for tokens, it counts as tokens, in softmax too.
    """

    pairs: float  # keys attended, each once, and mean keys that stand for others
    mass: float  # of softmax's attention, mean over queries, on the keys attended
    cost: float  # multiply-adds of everything, choosing keys included, as a ratio to softmax attention's; see `cost`


@torch.no_grad()
def coverage(
    name: str, query: Tensor, key: Tensor, padding_mask: Tensor | None = None, *, seed: int = 0, **settings: Any
) -> Coverage:
    """What `attend` would look at with this seed.

    Arguments are those of `attend`. Softmax means that of the query and key given, also for attentions that
    tie them. Where there is nothing but padding, all shares are 0.
    """
    met = pairs(name, query, key, padding_mask, seed=seed, **settings) > 0
    padding_mask = make(name, settings).visible(padding_mask)
    query, key = clear_padding(query, padding_mask), clear_padding(key, padding_mask)
    mask, tokens = token_mask(query, padding_mask), count_tokens(query, padding_mask)
    scores = query.float() @ key.float().transpose(-1, -2) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask.unsqueeze(2), MASKED).softmax(-1)
    mass = (weights * met).sum(-1)  # (batch, heads, length); rows of padding are 0
    misses = (met.sum(-1) < tokens[:, None, None]) & mask & make(name, settings).resolve(tokens).has_rest
    all_queries, all_pairs = (max(1, query.shape[1] * int(n.sum())) for n in (tokens, tokens.square()))
    products = sum(n**2 * cost(name, n, query.shape[-1], **settings) for n in tokens.tolist() if n)
    return Coverage(
        pairs=(met.sum() + misses.sum()).item() / all_pairs,
        mass=mass.sum().item() / all_queries,
        cost=products * query.shape[1] / all_pairs,
    )
