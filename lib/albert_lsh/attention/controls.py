"""Controls for attentions that choose keys: the nearest positions, and the keys with the highest scores."""

from typing import Any

import torch

from albert_lsh.attention.core import ChoosesKeys, CountOrZero
from albert_lsh.attention.keys import Keys, in_place
from albert_lsh.attention.order import best
from albert_lsh.attention.select import find_global_tokens, nearest, neighbours

KEYS_PER_QUERY = 8  # a window of so many keys for each of the neighbouring queries that share it


class Control(ChoosesKeys):
    """A number of `keys`: all that the global tokens and the rest leave of a budget."""

    usual_share = 0.25
    fewest = 1

    @property
    def count(self) -> int:
        """`keys`, which every budget resolves to."""
        return self.keys  # type: ignore[return-value]

    def divide(self, length: int, keys: int, room: int) -> dict[str, Any]:
        return {"keys": room}


class Window(Control):
    """The positions nearest to the query's block (as in Beltagy et al. 2020, "Longformer"), and the global tokens."""

    name = "window"
    about = "a control: the nearest keys"

    global_tokens: CountOrZero = 0
    rest: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        size = torch.as_tensor(self.count, device=query.device).div(KEYS_PER_QUERY, rounding_mode="floor").clamp(min=1)
        blocks = neighbours(mask, size if size.dim() else int(size))
        keys = Keys(blocks.unsqueeze(2), nearest(mask, blocks, self.count).unsqueeze(2))
        return keys.with_global(*find_global_tokens(query, key, mask, self.global_tokens))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the pairs, and finding the global tokens."""
        pairs = length * min(length, self.count + self.global_tokens)
        return (2 * pairs + length * (self.global_tokens > 0) + self.rest_products(length, pairs)) * head_dim


class TopK(Control):
    """The keys that each query scores highest. Takes memory quadratic in the length: it saves nothing."""

    name = "top-k"
    about = "a yardstick: the keys with the highest scores, all scores being known"

    rest: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        highest = best(query @ key.transpose(-1, -2), mask[:, :, None], self.count)
        return Keys(in_place(mask).unsqueeze(2), highest.unsqueeze(2))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: all scores, and the pairs."""
        pairs = length * min(length, self.count)
        return (length**2 + 2 * pairs + self.rest_products(length, pairs)) * head_dim
