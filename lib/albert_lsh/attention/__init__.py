"""Attentions by name.

    names()                                          the attentions there are
    attend(name, query, key, value, ...)             one of them, on bare tensors
    pairs(name, query, key, ...)                     how often each query meets each key
    coverage(name, query, key, ...)                  what share of the pairs, and of softmax's mass, that is
    cost(name, length, head_dim, ...)                its multiply-adds, as a ratio to softmax attention's
    settings_for(name, length, share)                the sizes that a share of the pairs comes to
    register(kind)                                   one of your own: a subclass of `Attention` or `SparseAttention`

In a model they are chosen with `albert_lsh.load_model(..., attention=name)`.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention.controls import Random, TopK, Window
from albert_lsh.attention.core import Attention, Budgeted, SparseAttention, check_whole
from albert_lsh.attention.key_clusters import KeyClusters
from albert_lsh.attention.keys import Keys
from albert_lsh.attention.lsh import LSH
from albert_lsh.attention.published.improved_clustered import ImprovedClustered
from albert_lsh.attention.published.nystrom import Nystrom
from albert_lsh.attention.published.reformer import Reformer
from albert_lsh.attention.published.smyrf import Smyrf
from albert_lsh.attention.published.yoso import Yoso, YosoE
from albert_lsh.attention.rows import MASKED, clear_padding, count_tokens, token_mask
from albert_lsh.attention.shared_qk import SharedQK, SharedQKLSH
from albert_lsh.attention.softmax import Softmax, SoftmaxEager

__all__ = [
    "ATTENTIONS",
    "GROUPS",
    "Attention",
    "Coverage",
    "Keys",
    "SparseAttention",
    "attend",
    "check",
    "check_tensors",
    "check_version",
    "check_whole",
    "cost",
    "coverage",
    "make",
    "names",
    "pairs",
    "recorded",
    "register",
    "setting_names",
    "settings_for",
]

GROUPS: dict[str, tuple[type[Attention], ...]] = {
    "softmax": (Softmax, SoftmaxEager),
    "the original's": (Reformer, SharedQK, SharedQKLSH),
    "ours": (KeyClusters, LSH),
    "controls": (Window, Random, TopK),
    "published": (Smyrf, ImprovedClustered, Nystrom, Yoso, YosoE),
}
ATTENTIONS: dict[str, type[Attention]] = {kind.name: kind for kinds in GROUPS.values() for kind in kinds}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HIGHEST_SEED = 2**63 - 1
# Arguments of the functions below, beside which settings stand.
ARGUMENTS = {"name", "query", "key", "value", "padding_mask", "seed", "dropout", "conv_weight", "length", "head_dim"}


def names() -> list[str]:
    """The attentions there are."""
    return list(ATTENTIONS)


def register(kind: type[Attention]) -> type[Attention]:
    """Make an attention of your own known by its `name`, to `attend`, to models and to runs; a decorator of its class.

    Raises:
        ValueError: no subclass of `Attention` with a name, a name that another one has or that is none of a folder, a
        setting that is called as an argument of `attend` or `cost`.
    """
    if not (isinstance(kind, type) and issubclass(kind, Attention) and isinstance(getattr(kind, "name", None), str)):
        raise ValueError(f"{reprlib.repr(kind)} is no subclass of albert_lsh.attention.Attention with a name")
    if kind.name in ATTENTIONS:
        raise ValueError(f"attention {kind.name!r} is there already")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", kind.name):
        raise ValueError(f"name={kind.name!r} must be letters, digits, dots, underscores and hyphens: it names folders")
    if taken := ARGUMENTS & kind.defaults.keys():
        raise ValueError(f"attention {kind.name!r}: a setting cannot be called {min(taken)!r}, an argument of attend")
    ATTENTIONS[kind.name] = kind
    return kind


def setting_names() -> set[str]:
    """The names of all attentions' settings."""
    return {setting for kind in ATTENTIONS.values() for setting in kind.defaults}


def kind_of(name: str) -> type[Attention]:
    """The class of an attention; ValueError if there is none of that name."""
    if not isinstance(name, str) or name not in ATTENTIONS:
        raise ValueError(f"attention={reprlib.repr(name)} is not one of: {', '.join(ATTENTIONS)}")
    return ATTENTIONS[name]


def chooses_keys(name: str) -> bool:
    """Whether an attention may leave out pairs by choosing keys."""
    return name == "reformer" or issubclass(kind_of(name), SparseAttention)


def make(name: str, settings: dict[str, Any] | None = None) -> Attention:
    """The attention of a name with its settings; ValueError if there is none, or it cannot have them."""
    kind = kind_of(name)
    if not isinstance(settings, dict | None):
        raise ValueError(f"attention {name!r}: settings={reprlib.repr(settings)} must be a dictionary of settings")
    return kind.make(settings or {})


def check(name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The full settings of an attention: its defaults, with `settings` over them.

    Settings that follow from `share` or `keys` are None.

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
        raise ValueError(f"attention {name!r} is of version {version}, here it is {current}, which computes otherwise")


def settings_for(
    name: str, length: int = 256, share: float | None = None, *, keys: int | None = None, **beside: Any
) -> dict[str, Any]:
    """The sizes that `share` or `keys` comes to in a sequence of `length` tokens, and what is given beside them.

    Args:
        name: an attention with a budget. length: tokens of a sequence.
        share: of the pairs, above 0, at most 1; a mean key attended to is one key. keys: of a query, in its place;
            with neither the attention's usual share, or a quarter.
        beside: settings that may stand beside a budget, for instance global_tokens=0.
    Returns:
        Settings for `attend` or `load_model`. Where the budget is too small they are the fewest keys that can be.
    Raises:
        ValueError: an attention without a budget, a share, keys or length out of range, a setting that is unknown.
    """
    check_whole("length", length, 1)
    if share is None and keys is None and issubclass(kind := kind_of(name), Budgeted):
        share = kind.usual_share or 0.25
    made = make(name, {"share": share, "keys": keys, **beside})
    assert isinstance(made, Budgeted)
    return beside | made.sizes_for(length, made.budget(length))


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


def is_traced() -> bool:
    """Whether this call is kept, to be repeated with other inputs: by torch.export, torch.jit.trace or make_fx."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode  # which takes a while

    return torch.compiler.is_exporting() or torch.jit.is_tracing() or get_proxy_mode() is not None


def refuse_tracing(name: str) -> None:
    """Raise ValueError where a call is traced of an attention that chooses keys, landmarks or codes by its input."""
    if is_traced() and not name.startswith("softmax"):
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
            or keys= (of each query) in the place of its sizes, and resolves it for each sequence's own length.
    Returns:
        (batch, heads, length, head_dim), in query's dtype; rows of padding are zero, unless padding is taken for tokens
        (reformer with mask_padding=False).
    Raises:
        ValueError: unknown name or setting, shapes or dtypes that disagree, an empty tensor, a mask that is not bool; a
            call that is traced by torch.export or torch.jit.trace.
    """
    made = make(name, settings)
    check_tensors(query, key, value, padding_mask)
    refuse_tracing(name)
    if not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"dropout={reprlib.repr(dropout)} must be a number, 0 to 1")
    options: dict[str, Any] = {"dropout": dropout, "generator": generator_of(seed)}
    if "conv_kernel_size" in made.defaults:
        options["conv_weight"] = conv_weight
    elif conv_weight is not None:
        raise ValueError(f"attention {name!r} has no convolution, and no conv_weight")
    return made.attend(query, key, value, padding_mask, scaling=query.shape[-1] ** -0.5, **options)


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
    resolved = made.resolve(count_tokens(query, padding_mask))
    query, key = clear_padding(query, padding_mask), clear_padding(key, padding_mask)
    counts = resolved.pairs(query, key, padding_mask, generator_of(seed))
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


def mean_cost(name: str, lengths: Iterable[int], head_dim: int, **settings: Any) -> float:
    """`cost` for sequences of these lengths together: of all their multiply-adds, a long one has more. 0 for none."""
    times = Counter(length for length in lengths if length)
    products = sum(times[n] * n**2 * cost(name, n, head_dim, **settings) for n in times)
    return products / max(1, sum(times[n] * n**2 for n in times))


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
    made = make(name, settings)
    met = pairs(name, query, key, padding_mask, seed=seed, **settings)
    padding_mask = made.visible(padding_mask)
    query, key = clear_padding(query, padding_mask), clear_padding(key, padding_mask)
    mask, tokens = token_mask(query, padding_mask), count_tokens(query, padding_mask)
    mass, keys_seen = 0.0, torch.empty(query.shape[:3], dtype=torch.double, device=query.device)
    for head in range(query.shape[1]):  # all at once would take three times the memory of `pairs`
        scores = query[:, head].float() @ key[:, head].float().mT * query.shape[-1] ** -0.5
        weights = scores.masked_fill_(~mask[:, head, None], MASKED).softmax(-1)
        seen = (met[:, head] > 0).float()  # rows of padding are 0
        mass += (weights * seen).sum().item()
        keys_seen[:, head] = seen.sum(-1)
    misses = (keys_seen < tokens[:, None, None]) & mask & made.resolve(tokens).has_mean_key
    all_queries, all_pairs = (max(1, query.shape[1] * int(n.sum())) for n in (tokens, tokens.square()))
    return Coverage(
        pairs=(keys_seen.sum() + misses.sum()).item() / all_pairs,
        mass=mass / all_queries,
        cost=mean_cost(name, tokens.tolist(), query.shape[-1], **settings),
    )
