"""Settings that follow the length: how to spend a given share of the pairs.

What the caller has fixed is never changed: a setting that does not fit the budget raises.
"""

import math
from typing import Any, NamedTuple

from albert_lsh.attention.registry import check

GLOBAL_TOKENS = 2
ROUNDS = 4  # of hashing with collisions, where the budget allows so many
FAR_FIELD_FROM = 0.5  # share of the pairs; less leaves short sequences too few clusters (studies/fidelity.yaml)
LONG = 512  # tokens above which settings_for has blocks of queries choose (lsh without settings: see its growing)
LEAST = {  # the fewest keys that each attention needs
    "lsh": 1, "window": 1, "random": 1, "top-k": 1, "shared-qk-lsh": 4, "reformer": 4, "nystrom": 2, "yoso": 2,
}  # fmt: skip


def settings_for(name: str, length: int = 256, share: float = 0.25, **fixed) -> dict[str, Any]:
    """Settings with which a query of a sequence of `length` tokens attends to at most `share` of the keys.

    `lsh` spends the budget on `GLOBAL_TOKENS` keys for all and on as many clusters as fit, of about sqrt(length) / 3
    keys: the comparison with their mean keys, which is not part of the budget, then takes 3 / sqrt(length) of the
    products of softmax attention. From half of the pairs on, about half of the budget goes into a far field, if that
    fits and `fixed` does not say otherwise. In a sequence of more than `LONG` tokens 2 sqrt(length) queries choose
    together, by their mean, which keeps time and memory from growing with the square of the length; block_size=1,
    choose="mean-key" is slower and finds more. A longer sequence under the same settings attends to a smaller share.

    Args:
        name: an attention with a budget: lsh, window, random, top-k, shared-qk-lsh, reformer, nystrom, yoso.
        length: tokens of a sequence. share: of the pairs, above 0, at most 1; a mean key attended to is one key.
        fixed: settings that are decided already, for instance global_tokens=0; the rest is chosen to fit.
    Returns:
        Settings for `attend` or `load_model`, those fixed among them.
    Raises:
        ValueError: an attention without a budget, a share out of range, a budget too small for it; a fixed setting
            that the attention does not have, that it cannot take (see `check`), or that does not fit the budget.
    """
    if not is_number(share) or not 0 < share <= 1 or not isinstance(length, int) or length < 1:
        raise ValueError(f"share={share!r} must be above 0 and at most 1, and length={length!r} a whole number from 1")
    if name not in LEAST:
        raise ValueError(f"attention={name!r} has no budget; one has: {', '.join(LEAST)}")
    check(name, fixed)
    budget = Budget(name, length, share)
    if name == "lsh":
        fixed = with_defaults_of_lsh(fixed, budget)
    left = budget.keys - fixed.get("global_tokens", 0) - fixed.get("window", 0)
    collide = fixed.get("choose") == "collision"
    least = 2 if collide else LEAST[name]  # a cluster in which queries and keys collide has two of each at least
    if left < least:
        others = ", ".join(f"{k}={fixed[k]}" for k in ("global_tokens", "window") if fixed.get(k))
        beside = f" beside {others}" if others else ""
        raise ValueError(f"{budget} leaves {left} keys to choose{beside}; {name} needs {least} or more")
    if name == "lsh" and not collide:
        return fixed | clusters_to_choose(fixed, budget, left)
    if name in ("nystrom", "yoso"):  # two products each: query and key with a landmark; a row written and one read
        setting = "num_landmarks" if name == "nystrom" else "n_hashes"
        budget.refuse(setting, fixed.get(setting, 1), left // 2)
        return {setting: left // 2} | fixed
    if name in ("window", "top-k"):
        return fixed | rounds_and_size(fixed, budget, left, size=1)
    if name == "reformer":
        budget.refuse("full_attn_thres", fixed.get("full_attn_thres") or 0, length - 1)  # up to it all is attended to
    if name in ("shared-qk-lsh", "reformer"):  # a chunk of at least two tokens sees itself and the one before
        return fixed | rounds_and_size(fixed, budget, left // 2, size_name="bucket_size", least=2)
    return fixed | rounds_and_size(fixed, budget, left, least=least)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Budget(NamedTuple):
    """How many keys a query may see."""

    name: str
    length: int
    share: float

    @property
    def keys(self) -> int:
        return math.floor(self.share * self.length + 1e-9)  # 0.29 * 100 is a little below 29

    def refuse(self, setting: str, value: int, most: int, beside: str = "") -> None:
        """Raise ValueError for more than fits; with a share of 1 nothing is refused."""
        if value > most and self.keys < self.length:
            what = f"{most} or less fits" if most else "nothing fits"
            raise ValueError(f"{self.name}: {setting}={value}{beside} does not fit {self}; {what}")

    def __str__(self) -> str:
        return f"share={self.share} of length={self.length}"


def with_defaults_of_lsh(fixed: dict[str, Any], budget: Budget) -> dict[str, Any]:
    """The keys that all see, and who chooses clusters together, where that is not fixed."""
    blocks: dict[str, Any] = {"block_size": 1}
    if budget.length > LONG and not fixed.keys() & {"block_size", "choose"}:
        blocks = {"block_size": round(2 * math.sqrt(budget.length)), "choose": "mean-query"}
    return {"global_tokens": min(GLOBAL_TOKENS, max(0, budget.keys - 1)), **blocks, **fixed}


def rounds_and_size(
    fixed: dict[str, Any],
    budget: Budget,
    room: int,
    *,
    size_name: str = "cluster_size",
    least: int = 1,
    size: int | None = None,
) -> dict[str, Any]:
    """n_hashes and the size of a cluster, with a product of at most `room`.

    least: of sizes. size: what it is unless it is fixed, or n_hashes is; None: what `ROUNDS` rounds leave.
    """
    rounds, fixed_size = fixed.get("n_hashes"), fixed.get(size_name)
    if fixed_size is not None:
        budget.refuse(size_name, fixed_size, room)
        if rounds is not None:
            budget.refuse("n_hashes", rounds, room // fixed_size, f" with {size_name}={fixed_size}")
        return {"n_hashes": rounds or max(1, room // fixed_size), size_name: fixed_size}
    if rounds is not None:
        budget.refuse("n_hashes", rounds, room // least)
    elif size is not None:
        return {"n_hashes": room // size, size_name: size}
    rounds = rounds or min(ROUNDS, room // least)
    return {"n_hashes": rounds, size_name: max(least, room // rounds)}


def clusters_to_choose(fixed: dict[str, Any], budget: Budget, left: int) -> dict[str, Any]:
    """How many clusters of which size `lsh` chooses, and whether there is a far field."""
    size = max(2, round(math.sqrt(budget.length) / 3))
    if fixed.get("far_field", FAR_FIELD_FROM <= budget.share < 1):
        if found := beside_a_far_field(fixed, budget.length, left, size):
            return {"far_field": True, **found}
        if "far_field" in fixed:
            given = "".join(f" with {k}={fixed[k]}" for k in ("n_hashes", "cluster_size") if k in fixed)
            raise ValueError(f"{budget} leaves {left} keys to choose, too few for a far field{given}")
    return rounds_and_size(fixed, budget, left, size=min(size, left))


def beside_a_far_field(fixed: dict[str, Any], length: int, left: int, size: int) -> dict[str, Any] | None:
    """n_hashes and cluster_size that leave room for the other clusters' mean keys; None where nothing does."""

    def most_rounds(size: int) -> int:
        return (left - -(-length // size)) // max(1, size - 1)  # a cluster attended exactly costs no mean key

    rounds = fixed.get("n_hashes", 1)
    if "cluster_size" in fixed:
        size = fixed["cluster_size"]
    elif "n_hashes" in fixed:
        size = max((s for s in range(2, left + 1) if most_rounds(s) >= rounds), default=1)
    else:
        size = max(size, -(-2 * length // left))  # half of what is left
    if most_rounds(size) < rounds:
        return None
    return {"n_hashes": fixed.get("n_hashes", most_rounds(size)), "cluster_size": size}
