"""What an attention is: its computation, its settings, its cost, and how it spends a budget of keys.

Each attention has a file of its own that ends in an `Attention`; `registry` lists them. A budget is a setting: `share`
of the pairs, or a number of `keys` for each query. The attention resolves it for each sequence's own length.
"""

import math
import reprlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention.rows import clear_padding, count_tokens

LAST_WITH_ALL = "commit e85e234 (tag small-house-base), which still has it"
HIGHEST_SETTING = 2**31 - 1  # of a whole number, where `Attention.highest` has no other


def check_whole(what: str, value: Any, lowest: int, highest: int = HIGHEST_SETTING, odd: bool = False) -> None:
    """Raise ValueError unless the value is a whole number in that range, and odd if it must be."""
    if type(value) is not int or not lowest <= value <= highest or (odd and value % 2 == 0):
        kind = "an odd" if odd else "a"
        raise ValueError(f"{what}={reprlib.repr(value)} must be {kind} whole number, {lowest} to {highest}")


class Budget(NamedTuple):
    """How many keys a query may see in a sequence of `length` tokens. A mean key counts as one."""

    name: str  # of the attention
    length: int
    keys: int
    asked: str  # as messages say it

    def refuse(self, setting: str, value: int, most: int, beside: str = "") -> None:
        """Raise ValueError for a value above the most that fits. A budget of all keys refuses nothing."""
        if value > most and self.keys < self.length:
            what = f"{most} or less fits" if most > 0 else "nothing fits"
            raise ValueError(f"{self.name}: {setting}={value}{beside} does not fit {self.asked}; {what}")

    def left(self, least: int, **spent: int) -> int:
        """The keys that are left after `spent`; ValueError if they are fewer than `least`."""
        left = self.keys - sum(min(value, self.length) for value in spent.values())
        if left < least:
            beside = "".join(f" beside {name}={value}" for name, value in spent.items() if value)
            raise ValueError(f"{self.asked} leaves {left} keys to choose{beside}; {self.name} needs {least} or more")
        return left


@dataclass(frozen=True, eq=False)
class Attention:
    """An attention. Functions take query, key, value as (batch, heads, length, head_dim)."""

    about: str  # one line, for people
    compute: Callable[..., Tensor]  # padding comes in as zeros; `attend` clears what comes out there
    pairs: Callable[..., Tensor]  # (batch, heads, length, length): how often each query meets each key
    cost: Callable[..., float]  # (length, head_dim, **settings): multiply-adds of one head
    settings: dict[str, Any] = field(default_factory=dict)  # with their defaults
    lowest: dict[str, int] = field(default_factory=dict)  # the lowest value of a whole number, where it is not 1
    highest: dict[str, int] = field(default_factory=dict)
    # (budget, fixed settings) -> settings that use it, fixed ones among them; None: there is no `share` or `keys`
    spend: Callable[[Budget, dict[str, Any]], dict[str, Any]] | None = None
    spent: tuple[str, ...] = ()  # settings that `spend` computes unless they are given; rounds and size come first
    share: float | None = None  # the budget where neither a budget nor a setting in `spent` is given
    drops: bool = True  # attention weights, with the probability `dropout`; some attentions never have any weights
    left: dict[str, tuple[Any, ...]] = field(
        default_factory=dict
    )  # settings that left, and values that changed nothing
    mean_keys: Callable[..., Tensor] | None = None  # (batch, heads): how many mean keys the queries see

    @property
    def defaults(self) -> dict[str, Any]:
        """All settings, those of the budget among them."""
        return self.settings if self.spend is None else {"share": None, "keys": None, **self.settings}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding_mask: Tensor | None, **more) -> Tensor:
        """The attention; rows of padding, and their gradients, are zero whatever stands there, even NaN."""
        more = self.resolve(self.without_left("attention", more), count_tokens(query, padding_mask))
        rows = (clear_padding(x, padding_mask) for x in (query, key, value))
        return clear_padding(self.compute(*rows, padding_mask, **more), padding_mask)

    def resolve(self, settings: dict[str, Any], n_tokens: Tensor) -> dict[str, Any]:
        """Settings without `share` and `keys`: each a number, or (batch,) where sequences differ in it.

        settings: as `check` completes them, and arguments that are no settings. n_tokens: (batch,).
        """
        if self.spend is None:
            return settings
        budget = {name: settings.get(name) for name in ("share", "keys")}
        rest = {name: value for name, value in settings.items() if name not in budget}
        if budget == {"share": None, "keys": None}:
            return rest
        fixed = {name: value for name, value in rest.items() if name in self.settings and value is not None}
        counts = n_tokens.tolist()
        found = {n: _fitting(self, n, tuple(budget.items()), tuple(fixed.items())) for n in set(counts)}
        each = [found[n] for n in counts]
        columns = {name: [one[name] for one in each] for name in each[0]}
        return rest | {
            name: values[0] if len(set(values)) == 1 else torch.tensor(values, device=n_tokens.device)
            for name, values in columns.items()
        }

    def budget(self, name: str, length: int, share: float | None, keys: int | None) -> Budget:
        """The keys that a share of the pairs, or a number of keys, comes to."""
        if share is None:
            return Budget(name, length, min(int(keys or 0), length), f"keys={keys} of length={length}")
        return Budget(name, length, math.floor(share * length + 1e-9), f"share={share} of length={length}")

    def check(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """All settings, `given` over the defaults; ValueError for one that is not there or cannot be."""
        given = self.without_left(name, given)
        for setting, value in given.items():
            if setting not in self.defaults:
                there = ", ".join(self.defaults) or "none"
                raise ValueError(f"attention {name!r} has no setting {setting!r}; it has: {there}")
            if not (value is None and self._may_be_none(setting)):
                self._check_value(name, setting, value)
        full = {**self.defaults, **given}
        if self.spend is None:
            return full
        if full["share"] is not None and full["keys"] is not None:
            raise ValueError(f"{name}: share={full['share']} and keys={full['keys']} cannot both be given")
        if full["share"] is None and full["keys"] is None and not given.keys() & set(self.spent):
            full["share"] = self.share
        if full["share"] is not None or full["keys"] is not None:
            full |= {setting: None for setting in self.spent if given.get(setting) is None}
            sizes = [s for s in self.spent[:2] if full[s] is not None]
            if len(sizes) == 2:
                raise ValueError(
                    f"{name}: a budget leaves {sizes[0]} or {sizes[1]} open; give one of them, or no budget"
                )
        else:
            full |= {setting: self.settings[setting] for setting in self.spent if full[setting] is None}
        return full

    def without_left(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of an old record or model as those of today, where that is the same attention.

        Raises:
            ValueError: a setting that left, with a value that there is no computation for any more.
        """
        for setting in self.left.keys() & settings.keys():
            if settings[setting] not in self.left[setting]:
                shown = f"{setting}={reprlib.repr(settings[setting])}"
                raise ValueError(f"{name}: {shown} left the library; its records were made with {LAST_WITH_ALL}")
        return {setting: value for setting, value in settings.items() if setting not in self.left}

    def _may_be_none(self, setting: str) -> bool:
        return self.defaults[setting] is None or setting in self.spent

    def _check_value(self, name: str, setting: str, value: Any) -> None:
        """Raise ValueError for a value that the setting cannot take."""
        shown, default = reprlib.repr(value), self.defaults[setting]
        if setting == "share":
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
                raise ValueError(f"{name}: share={shown} must be a number above 0, at most 1")
        elif isinstance(default, bool):
            if not isinstance(value, bool):
                raise ValueError(f"{name}: {setting}={shown} is not one of: False, True")
        else:
            lowest, highest = self.lowest.get(setting, 1), self.highest.get(setting, HIGHEST_SETTING)
            check_whole(f"{name}: {setting}", value, lowest, highest, odd=setting == "conv_kernel_size")


@lru_cache(maxsize=4096)
def _fitting(attention: Attention, length: int, asked: tuple, fixed: tuple) -> dict[str, Any]:
    """The settings for a sequence of `length` tokens.

    Where the budget is too small for the attention, or for what is fixed, it grows key by key until something fits.
    For a cluster size or a number of rounds that is fixed this is said in a warning.
    """
    assert attention.spend is not None
    budget = attention.budget("", length, **dict(asked))
    more = 4 + sum(value for _, value in fixed if isinstance(value, int))
    for keys in range(budget.keys, length + more + 1):
        try:
            found = attention.spend(budget._replace(keys=keys), dict(fixed))
        except ValueError as error:
            refusal = error
            continue
        sizes = ", ".join(f"{name}={value}" for name, value in fixed if name in attention.spent[:2])
        if keys > budget.keys and sizes:
            warnings.warn(f"{budget.asked} does not hold {sizes}; {min(keys, length)} keys are seen", stacklevel=2)
        return found
    raise refusal


def rounds_and_size(
    budget: Budget, fixed: dict[str, Any], room: int, *, size_name: str = "cluster_size", least: int = 1
) -> dict[str, Any]:
    """n_hashes and the size of a cluster of at least `least`, with a product of at most `room`; four rounds if open."""
    rounds, size = fixed.get("n_hashes"), fixed.get(size_name)
    if size is not None:
        budget.refuse(size_name, size, room)
        if rounds is not None:
            budget.refuse("n_hashes", rounds, room // size, f" with {size_name}={size}")
        return {"n_hashes": rounds or max(1, room // size), size_name: size}
    if rounds is not None:
        budget.refuse("n_hashes", rounds, room // least)
    rounds = rounds or min(4, room // least)
    return {"n_hashes": rounds, size_name: max(least, room // rounds)}
