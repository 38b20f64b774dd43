"""Softmax attention on shorter texts: the cheap alternative to leaving keys out.

Attention to a text of n tokens that is cut to sqrt(share) n costs that share of attention to the whole text.
"""

import math
import reprlib
from itertools import groupby
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

NAME = "truncation"  # where a variant would name an attention


def check(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a truncation; ValueError if they are none."""
    share = settings.get("share")
    if settings.keys() != {"share"} or not isinstance(share, float | int) or not 0 < share <= 1:
        raise ValueError(f"{NAME} takes a share, over 0 and at most 1, and nothing else; not {reprlib.repr(settings)}")
    return settings


def positions_left(special: list[int], n: int, *, only_last: bool = False) -> list[int]:
    """Which tokens stay when a text, or a pair of texts, is cut to n tokens: special ones, and the texts' beginnings.

    The longer text gives a token, again and again, until n are left; or only the last one does. Every text keeps one.

    Args:
        special: 1 for a special token, 0 for one of a text.
    """
    runs = [(is_special, list(run)) for is_special, run in groupby(range(len(special)), special.__getitem__)]
    texts = [places for is_special, places in runs if not is_special]
    giving = texts[-1:] if only_last else texts
    while sum(len(places) for _, places in runs) > n and len(longest := max(giving, key=len)) > 1:
        longest.pop()
    return [place for _, places in runs for place in places]


def truncated(encoded: Dataset, tokenizer: PreTrainedTokenizerBase, share: float, *, is_squad: bool) -> Dataset:
    """The same examples, each cut so that attention to it costs about a share of attention to the whole.

    Args:
        encoded: of `table.encode` or `squad.windows`; in a window only the paragraph is cut.
    """

    def cut(row: dict[str, Any]) -> dict[str, Any]:
        special = tokenizer.get_special_tokens_mask(row["input_ids"], already_has_special_tokens=True)
        left = positions_left(special, round(math.sqrt(share) * row["length"]), only_last=is_squad)
        each = {k: v for k, v in row.items() if isinstance(v, list) and len(v) == row["length"]}
        return {name: [values[place] for place in left] for name, values in each.items()} | {"length": len(left)}

    return encoded.map(cut, load_from_cache_file=False)


def share_left(whole: Dataset, cut: Dataset) -> float:
    """The share of the pairs that is left, over all examples."""
    return sum(n * n for n in cut["length"]) / sum(n * n for n in whole["length"])
