"""The attentions by name, their settings, and the checks of both."""

import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from albert_lsh.attention import lsh, nystrom, random, reformer, shared_qk, softmax, top_k, window, yoso
from albert_lsh.attention.compute.blocks import clear_padding
from albert_lsh.attention.select import hashing


class Attention(NamedTuple):
    """An attention: what it computes, whom it lets meet, its settings with their defaults, and what it is."""

    compute: Callable[..., Tensor]  # of rows that are zero in padding; its output in padding is undefined
    pairs: Callable[..., Tensor]
    settings: dict[str, Any]
    about: str
    mean_keys: Callable[..., tuple[Tensor, Tensor]] | None = None  # how many are attended to, and compared with

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None = None, **more) -> Tensor:
        """The attention whatever stands in padding, even NaN; rows of padding, and their gradients, are zero."""
        rows = (clear_padding(x, padding_mask) for x in (query, key, value))
        return clear_padding(self.compute(*rows, padding_mask, **more), padding_mask)


_REFORMER = {"bucket_size": 64, "n_hashes": 8}
_KEYS = {"n_hashes": 4, "cluster_size": 32}
_LSH = {
    **_KEYS,
    "hashing": "tree",
    "choose": "mean-key",
    "block_size": None,  # None: it follows the length
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
HIGHEST_SIZE = 2**31 - 1  # of a setting, where HIGHEST names no other
HIGHEST = {("yoso", "hash_code_len"): 20}  # its tables have 2 ** hash_code_len rows
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
            if not any(type(value) is type(choice) and value == choice for choice in CHOICES[setting]):
                raise ValueError(f"{name}: {setting}={value!r} is not one of: {', '.join(map(str, CHOICES[setting]))}")
            continue
        lowest = LOWEST.get(setting, 1)
        highest = HIGHEST.get((name, setting), HIGHEST_SIZE)
        fits = isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest
        if setting in ODD:
            fits = fits and value % 2 == 1
        if not fits and not (value is None and defaults[setting] is None):
            kind = "an odd" if setting in ODD else "a"
            shown = reprlib.repr(value)
            raise ValueError(f"{name}: {setting}={shown} must be {kind} whole number, {lowest} to {highest}")
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
