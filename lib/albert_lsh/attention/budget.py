"""Settings that follow the length: how to spend a given share of the pairs."""

import math
from typing import Any

GLOBAL_TOKENS = 2
ROUNDS = 4  # of hashing with collisions, where the budget allows so many
FAR_FIELD_FROM = 0.5  # share of the pairs; less leaves short sequences too few clusters (studies/fidelity.yaml)
LONG = 512  # tokens above which queries choose clusters in blocks
LEAST = {  # keys of the least budget
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
        ValueError: an attention without a budget, a share out of range, or a budget too small for it.
    """
    if not 0 < share <= 1 or length < 1:
        raise ValueError(f"share={share!r} must be above 0 and at most 1, and length={length!r} at least 1")
    if name not in LEAST:
        raise ValueError(f"attention={name!r} has no budget; one has: {', '.join(LEAST)}")
    keys = int(share * length)
    if name == "lsh" and "global_tokens" not in fixed:
        fixed["global_tokens"] = min(GLOBAL_TOKENS, max(0, keys - 1))
    left = keys - fixed.get("global_tokens", 0) - fixed.get("window", 0)
    collide = fixed.get("choose") == "collision"
    least = 2 if collide else LEAST[name]  # a cluster in which queries and keys collide has two of each at least
    if left < least:
        needs = f"leaves {left} keys to choose; {name} needs {least} or more"
        raise ValueError(f"share={share} of length={length} {needs}")
    if name in ("window", "top-k"):
        return {**fixed, "n_hashes": left, "cluster_size": 1}
    if name in ("shared-qk-lsh", "reformer"):  # a chunk of at least two tokens sees itself and the one before
        rounds = fixed.get("n_hashes", min(ROUNDS, left // 4))
        return {**fixed, "n_hashes": rounds, "bucket_size": max(2, left // (2 * rounds))}
    if name == "nystrom":  # a query looks at every landmark, and a landmark at every key
        return {**fixed, "num_landmarks": left // 2}
    if name == "yoso":  # a hash adds one row and reads one
        return {**fixed, "n_hashes": left // 2}
    if name == "random" or collide:
        rounds = fixed.get("n_hashes", min(ROUNDS, left // least))
        return {**fixed, "n_hashes": rounds, "cluster_size": max(least, left // rounds)}
    if length > LONG and not fixed.keys() & {"block_size", "choose"}:
        fixed |= {"block_size": round(2 * math.sqrt(length)), "choose": "mean-query"}
    size = fixed.get("cluster_size", max(2, round(math.sqrt(length) / 3)))
    if fixed.get("far_field", FAR_FIELD_FROM <= share < 1):
        larger = size if "cluster_size" in fixed else max(size, -(-2 * length // left))  # half of what is left
        n_hashes = (left - -(-length // larger)) // max(1, larger - 1)  # a cluster attended exactly costs no mean key
        if n_hashes >= 1:
            return {**fixed, "far_field": True, "n_hashes": n_hashes, "cluster_size": larger}
        if "far_field" in fixed:
            raise ValueError(f"share={share} of length={length} leaves {left} keys to choose, too few for a far field")
    size = min(size, left)
    return {**fixed, "n_hashes": left // size, "cluster_size": size}
