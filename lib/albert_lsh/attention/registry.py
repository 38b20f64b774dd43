"""The attentions by name, and the checks of names and settings. A new attention is a line here and a file beside it."""

import reprlib
from typing import Any

from albert_lsh.attention.clustered import CLUSTERED
from albert_lsh.attention.definition import Attention, check_whole
from albert_lsh.attention.linear import LINEAR
from albert_lsh.attention.lsh import LSH
from albert_lsh.attention.nystrom import NYSTROM
from albert_lsh.attention.plain_lsh import PLAIN_LSH
from albert_lsh.attention.random import RANDOM
from albert_lsh.attention.reformer import REFORMER
from albert_lsh.attention.reformer import spend as REFORMER_SPEND
from albert_lsh.attention.shared_qk import SHARED_QK
from albert_lsh.attention.shared_qk_lsh import SHARED_QK_LSH
from albert_lsh.attention.smyrf import SMYRF
from albert_lsh.attention.softmax import SOFTMAX, SOFTMAX_EAGER
from albert_lsh.attention.top_k import TOP_K
from albert_lsh.attention.window import WINDOW
from albert_lsh.attention.yoso import YOSO, YOSO_E

ATTENTIONS: dict[str, Attention] = {
    "softmax": SOFTMAX,
    "softmax-eager": SOFTMAX_EAGER,
    "reformer": REFORMER,
    "shared-qk": SHARED_QK,
    "shared-qk-lsh": SHARED_QK_LSH,
    "lsh": LSH,
    "plain-lsh": PLAIN_LSH,
    "window": WINDOW,
    "random": RANDOM,
    "top-k": TOP_K,
    "smyrf": SMYRF,
    "improved-clustered": CLUSTERED,
    "nystrom": NYSTROM,
    "linear": LINEAR,
    "yoso": YOSO,
    "yoso-e": YOSO_E,
}


def names() -> list[str]:
    """The attentions there are."""
    return list(ATTENTIONS)


def setting_names() -> set[str]:
    """The names of all attentions' settings."""
    return {name for one in ATTENTIONS.values() for name in one.defaults}


def find(name: str) -> Attention:
    """The attention of a name; ValueError if there is none."""
    if not isinstance(name, str) or name not in ATTENTIONS:
        raise ValueError(f"attention={reprlib.repr(name)} is not one of: {', '.join(ATTENTIONS)}")
    return ATTENTIONS[name]


def by_name(what: str, given: Any) -> dict[str, Any]:
    """Settings as they were given, {} for None; ValueError for anything else that is no dictionary."""
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"{what}={reprlib.repr(given)} must be a dictionary of settings")
    return given or {}


def check(name: str, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """The full settings of an attention: its defaults, with `settings` over them.

    Settings that follow from `share` or `keys` are None.

    Raises:
        ValueError: no attention of that name, a setting that it does not have, or a value that it cannot take.
    """
    return find(name).check(name, by_name(f"attention {name!r}: settings", settings))


def recorded(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a record as `check` completes them; as they stand there if today's code cannot have them."""
    try:
        return check(name, settings)
    except ValueError:
        return settings


def check_evaluation(name: str, settings: dict[str, Any], given: dict[str, Any] | None) -> dict[str, Any]:
    """The full settings of an attention in evaluation: `given` over those that it is trained with.

    A budget that is given takes the place of the settings that follow from it, and they of a budget.

    Raises:
        ValueError: as `check` does; a convolution, whose weights only training gives; reformer, which is made with its
            settings.
    """
    asked = by_name("evaluation_settings", given)
    if name == "reformer" and asked:
        raise ValueError(f"evaluation_settings={asked!r}: 'reformer' has in evaluation the settings it was made with")
    if "conv_kernel_size" in asked:
        raise ValueError("evaluation_settings: conv_kernel_size has weights, which have to be trained with it")
    before, spent = dict(settings), find(name).spent
    if asked.keys() & {"share", "keys"}:
        sizes = {s for s in ("share", "keys", *spent) if s in before and not isinstance(before[s], bool)}
        before |= dict.fromkeys(sizes)
    elif asked.keys() & set(spent[:2]):
        before |= {setting: None for setting in ("share", "keys") if setting in before}
    try:
        return check(name, {**before, **asked})
    except ValueError as error:
        raise ValueError(f"evaluation_settings: {error}") from error


def settings_for(name: str, length: int = 256, share: float | None = None, *, keys: int | None = None, **fixed):
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
        ValueError: an attention without a budget, a share or length out of range, a budget too small; a fixed setting
            that the attention does not have, that it cannot take, or that does not fit the budget.
    """
    attention = find(name)
    spend = REFORMER_SPEND if name == "reformer" else attention.spend
    if spend is None:
        able = ", ".join([n for n, a in ATTENTIONS.items() if a.spend] + ["reformer"])
        raise ValueError(f"attention={name!r} has no budget; one has: {able}")
    check_whole("length", length, 1)
    share = 0.25 if share is None and keys is None else share
    LSH.check(name, {"share": share, "keys": keys})
    attention.check(name, fixed)
    return spend(attention.budget(name, length, share, keys), fixed)
