"""Attentions by name.

    names()                                          the attentions there are
    attend(name, query, key, value, ...)             one of them, on bare tensors
    pairs(name, query, key, ...)                     how often each query meets each key
    coverage(name, query, key, ...)                  what share of the pairs, and of softmax's mass, that is
    settings_for(name, length, share)                settings that spend a given share of the pairs

In a model they are chosen with `albert_lsh.load_model(..., attention=name)`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention import hashing, lsh, nystrom, random, reformer, shared_qk, softmax, top_k, window, yoso
from albert_lsh.attention.budget import settings_for
from albert_lsh.attention.clusters import MASKED

__all__ = [
    "ATTENTIONS",
    "Coverage",
    "attend",
    "check",
    "check_evaluation",
    "check_tensors",
    "coverage",
    "names",
    "pairs",
    "settings_for",
]


class Attention(NamedTuple):
    """An attention: what it computes, whom it lets meet, its settings with their defaults, and what it is."""

    attend: Callable[..., Tensor]
    pairs: Callable[..., Tensor]
    settings: dict[str, Any]
    about: str
    mean_keys: Callable[..., tuple[Tensor, Tensor]] | None = None  # attended, and compared with: for each query


_REFORMER = {"bucket_size": 64, "n_hashes": 8}
_KEYS = {"n_hashes": 4, "cluster_size": 32}
_LSH = {
    **_KEYS,
    "hashing": "tree",
    "choose": "mean-key",
    "block_size": 1,
    "global_tokens": 2,
    "window": 0,
    "far_field": False,
    "duplicates": "once",
}
_CONVOLUTION = {"conv_kernel_size": None}  # of the values; None: there is none

ATTENTIONS = {
    "softmax": Attention(softmax.softmax_attention, softmax.all_pairs, {}, "every token sees every token"),
    "softmax-eager": Attention(softmax.eager_attention, softmax.all_pairs, {}, "the same, storing the L x L matrix"),
    "reformer": Attention(
        reformer.reformer_attention,
        reformer.reformer_pairs,
        {**_REFORMER, "full_attn_thres": None},
        "the original study: projections replaced by reformer-pytorch's, with new weights",
    ),
    "shared-qk": Attention(
        shared_qk.shared_qk_attention, shared_qk.others, {}, "pretrained projections, keys tied to queries, no hashing"
    ),
    "shared-qk-lsh": Attention(
        shared_qk.shared_qk_lsh_attention, shared_qk.shared_qk_lsh_pairs, _REFORMER, "the same with Reformer's hashing"
    ),
    "lsh": Attention(
        lsh.lsh_attention, lsh.lsh_pairs, _LSH, "pretrained projections, keys in hashed clusters", lsh.lsh_mean_keys
    ),
    "window": Attention(
        window.window_attention,
        window.window_pairs,
        {**_KEYS, "global_tokens": 0},
        "as many keys as lsh: the nearest ones",
    ),
    "random": Attention(
        random.random_attention,
        random.random_pairs,
        {**_KEYS, "global_tokens": 0, "duplicates": "once"},
        "as many keys as lsh: random clusters",
    ),
    "top-k": Attention(
        top_k.top_k_attention, top_k.top_k_pairs, _KEYS, "as many keys as lsh: the best ones, all scores being known"
    ),
    "nystrom": Attention(
        nystrom.nystrom_attention,
        softmax.all_pairs,
        {"num_landmarks": 64, "pinv_iterations": 6, **_CONVOLUTION},
        "Nyströmformer: all keys, by way of a few landmarks",
    ),
    "yoso": Attention(
        yoso.yoso_attention,
        yoso.yoso_pairs,
        {"n_hashes": 32, "hash_code_len": 9, **_CONVOLUTION},
        "YOSO: sums of hash collisions",
    ),
    "yoso-e": Attention(
        yoso.yoso_e_attention, softmax.all_pairs, {"hash_code_len": 9, **_CONVOLUTION}, "the expectation of yoso"
    ),
}

CHOICES = {
    "duplicates": ("once", "each"),
    "hashing": ("tree", *hashing.PROJECTIONS),
    "choose": ("mean-key", "mean-query", "collision"),
    "far_field": (False, True),
}
LOWEST = {"cluster_size": 1, "bucket_size": 2, "full_attn_thres": 0, "global_tokens": 0, "window": 0}
ODD = ("conv_kernel_size",)


def names() -> list[str]:
    """The attentions there are."""
    return list(ATTENTIONS)


def check(name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The full settings of an attention: its defaults, with `settings` laid over them.

    Raises:
        ValueError: no attention of that name, a setting that it does not have, or a value that it cannot take.
    """
    if name not in ATTENTIONS:
        raise ValueError(f"attention={name!r} is not one of: {', '.join(ATTENTIONS)}")
    defaults = ATTENTIONS[name].settings
    for setting, value in (settings or {}).items():
        if setting not in defaults:
            raise ValueError(f"attention {name!r} has no setting {setting!r}; it has: {', '.join(defaults) or 'none'}")
        if setting in CHOICES:
            if value not in CHOICES[setting]:
                raise ValueError(f"{name}: {setting}={value!r} is not one of: {', '.join(map(str, CHOICES[setting]))}")
            continue
        lowest = LOWEST.get(setting, 1)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= lowest
        if setting in ODD:
            fits = fits and value % 2 == 1
        if not fits and not (value is None and defaults[setting] is None):
            kind = "an odd" if setting in ODD else "a"
            raise ValueError(f"{name}: {setting}={value!r} must be {kind} whole number, {lowest} or more")
    full = {**defaults, **(settings or {})}
    if full.get("choose") == "collision":
        if full["hashing"] == "tree":
            raise ValueError(f"{name}: hashing='tree' sorts queries and keys apart; they collide under the others")
        if full["cluster_size"] < 2:
            raise ValueError(f"{name}: cluster_size={full['cluster_size']} must be 2 or more with choose='collision'")
        if full["far_field"]:
            raise ValueError(f"{name}: far_field=True needs one clustering, so choose='mean-key' or 'mean-query'")
    return full


def check_evaluation(name: str, settings: dict[str, Any], given: dict[str, Any] | None) -> dict[str, Any]:
    """The full settings of an attention in evaluation: `given` laid over those that it is trained with.

    Raises:
        ValueError: as `check` does; a kernel, whose weights only training gives; reformer, which is made with its
            settings.
    """
    given = given or {}
    if name == "reformer" and given:
        raise ValueError(f"evaluation_settings={given!r}: 'reformer' has in evaluation the settings it was made with")
    if "conv_kernel_size" in given:
        raise ValueError("evaluation_settings: conv_kernel_size has weights, which have to be trained with it")
    try:
        return check(name, {**settings, **given})
    except ValueError as error:
        raise ValueError(f"evaluation_settings: {error}") from error


def check_tensors(query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None) -> None:
    """Raise ValueError unless shapes agree: (batch, heads, length, head_dim) and a bool mask (batch, length)."""
    if query.dim() != 4 or not query.shape == key.shape == value.shape:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in (("query", query), ("key", key), ("value", value)))
        raise ValueError(f"query, key and value must all be (batch, heads, length, head_dim); got {shapes}")
    if padding_mask is None:
        return
    expected = (query.shape[0], query.shape[2])
    if padding_mask.dtype != torch.bool or tuple(padding_mask.shape) != expected:
        raise ValueError(
            f"padding_mask must be bool of shape (batch, length) = {expected}, True where there is a token; "
            f"got {padding_mask.dtype} of shape {tuple(padding_mask.shape)}"
        )


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
        query, key, value: (batch, heads, length, head_dim), float32, bfloat16 or float16, on any device.
        padding_mask: (batch, length) bool, True where there is a token; None when nothing is padded.
        seed: of the random numbers that hashing draws; the same seed gives the same hashes on every device.
        dropout: probability with which an attention weight is dropped (from torch's global generator).
        conv_weight: (heads, conv_kernel_size), of the convolution of the values, where the attention is to have one.
        settings: the attention's own, for instance n_hashes; see `check`.
    Returns:
        (batch, heads, length, head_dim), in query's dtype; rows of padding are zero.
    Raises:
        ValueError: unknown name or setting, shapes that disagree, a mask that is not bool.
    """
    settings = check(name, settings)
    check_tensors(query, key, value, padding_mask)
    if conv_weight is not None:
        if "conv_kernel_size" not in settings:
            raise ValueError(f"attention {name!r} has no convolution of the values, and so no conv_weight")
        settings["conv_weight"] = conv_weight
    generator = torch.Generator().manual_seed(seed)
    return ATTENTIONS[name].attend(
        query,
        key,
        value,
        padding_mask,
        scaling=query.shape[-1] ** -0.5,
        dropout=dropout,
        generator=generator,
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
    generator = torch.Generator().manual_seed(seed)
    counts = ATTENTIONS[name].pairs(query, key, padding_mask, generator=generator, **settings)
    if padding_mask is not None:
        counts = counts * padding_mask[:, None, :, None] * padding_mask[:, None, None, :]
    return counts


class Coverage(NamedTuple):
    """What an attention looks at, as shares of all query-key pairs (or of softmax's mass), padding left out."""

    pairs: float  # keys attended, each once, and mean keys that stand for others
    mass: float  # of softmax's attention, mean over queries, on the keys attended
    compared: float = 0.0  # mean keys that queries were compared with to choose clusters; not in `pairs`


@torch.no_grad()
def coverage(
    name: str, query: Tensor, key: Tensor, padding_mask: Tensor | None = None, *, seed: int = 0, **settings
) -> Coverage:
    """What `attend` would look at with this seed.

    Arguments are those of `attend`. Softmax means that of the query and key given, also for attentions that
    tie them.
    """
    met = pairs(name, query, key, padding_mask, seed=seed, **settings) > 0
    scores = query.float() @ key.float().transpose(-1, -2) * query.shape[-1] ** -0.5
    attended = compared = met.new_zeros(1, dtype=torch.long)
    if (mean_keys := ATTENTIONS[name].mean_keys) is not None:
        generator = torch.Generator().manual_seed(seed)
        attended, compared = mean_keys(query, key, padding_mask, generator=generator, **check(name, settings))
    if padding_mask is None:
        padding_mask = query.new_ones(query.shape[0], query.shape[2], dtype=torch.bool)
    weights = scores.masked_fill(~padding_mask[:, None, None, :], MASKED).softmax(-1)
    tokens = padding_mask.sum(-1)
    mass = (weights * met).sum(-1)  # (batch, heads, length); rows of padding are 0
    heads = query.shape[1]
    all_pairs = heads * tokens.square().sum().item()
    return Coverage(
        pairs=(met.sum() + attended.sum()).item() / all_pairs,
        mass=mass.sum().item() / (heads * tokens.sum().item()),
        compared=compared.sum().item() / all_pairs,
    )
