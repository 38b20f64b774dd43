"""Long Range Arena's ListOps (Nangia and Bowman 2018; Tay et al. 2021), generated from a seed.

An example is a nested list operation such as `[MAX 2 9 [MIN 4 7 ] 0 ]`; its answer is a digit. Trees are drawn as by
the original's generator (google-research/long-range-arena, lra_benchmarks/data/listops.py): a node above the greatest
depth is an operator with probability 1/4, otherwise a digit; an operator has 2 to `max_args` arguments, all numbers
equally likely. Trees are kept once each, if they have more than `min_length` and fewer than `max_length` tokens
(operators with their bracket, digits, closing brackets). Two things differ. The original writes parentheses around
every pair, which its input pipeline removes again. And it has no seed and sorts examples by a hash; here the same seed
gives the same examples, in the order in which they are drawn.
"""

import random
import statistics
from collections.abc import Callable
from typing import Any

from datasets import Dataset

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),  # rounded down
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
OPERATOR_SHARE = 0.25  # of the nodes above the greatest depth
TOKENS = [*map(str, range(10)), *OPERATORS, END]
NUMBERS = {token: number for number, token in enumerate(TOKENS, start=1)}  # 0 is padding
SIZES = {"test": 2_000, "validation": 2_000, "train": 96_000}  # train last: fewer of it change no other split


def draw(rng: random.Random, longest: int, max_depth: int = 10, max_args: int = 10) -> tuple[list[str], int]:
    """The tokens of a tree, and its answer; most trees are one digit.

    Args:
        longest: tokens; a tree with more is cut short, and its answer means nothing.
        max_depth: of a digit; the root has depth 1. max_args: of an operator, 2 or more.
    """
    tokens: list[str] = []
    operators = list(OPERATORS)

    def grow(depth: int) -> int:
        if depth == max_depth or rng.random() > OPERATOR_SHARE:
            digit = rng.randrange(10)
            tokens.append(str(digit))
            return digit
        if len(tokens) > longest:
            return 0
        operator = rng.choice(operators)
        tokens.append(operator)
        value = OPERATORS[operator]([grow(depth + 1) for _ in range(rng.randint(2, max_args))])
        tokens.append(END)
        return value

    answer = grow(1)
    return tokens, answer


def generate(seed: int, sizes: dict[str, int], *, min_length: int, max_length: int) -> dict[str, Dataset]:
    """Splits of the given sizes, drawn one after the other; no example is in two of them.

    Args:
        sizes: of each split, for instance `SIZES`.
        min_length, max_length: tokens; a tree has more than the one and fewer than the other.
    Returns:
        {split: rows with text and label (0 to 9)}.
    """
    rng, seen = random.Random(f"listops {seed}"), set[str]()
    splits = {}
    for split, size in sizes.items():
        rows: list[dict[str, Any]] = []
        while len(rows) < size:
            tokens, answer = draw(rng, max_length)
            text = " ".join(tokens)
            if min_length < len(tokens) < max_length and text not in seen:
                seen.add(text)
                rows.append({"text": text, "label": answer})
        splits[split] = Dataset.from_list(rows)
    return splits


def encode_tree(text: str) -> list[int]:
    """Token numbers of a tree, 1 to 15."""
    return [NUMBERS[token] for token in text.split()]
