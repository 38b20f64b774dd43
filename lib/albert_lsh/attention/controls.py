"""Controls for attentions that choose keys: nearest positions, random clusters, keys with the highest scores."""

from typing import ClassVar

import torch
from torch import Tensor

from albert_lsh.attention.choose.hashing import (
    best,
    clusters_of,
    find_global_tokens,
    generators_of_rounds,
    nearest,
    neighbours,
)
from albert_lsh.attention.core import CountOrZero, SparseAttention
from albert_lsh.attention.keys import Keys
from albert_lsh.attention.lsh import RoundsOfClusters
from albert_lsh.attention.rows import in_place, largest

KEYS_PER_QUERY = 8  # a window of so many keys for each of the neighbouring queries that share it


class Control(SparseAttention):
    """A number of keys: all that global tokens and the mean key leave of a budget."""

    usual_share: ClassVar[float | None] = 0.25

    @property
    def count(self) -> int:
        """`keys`, which every budget resolves to."""
        return self.keys  # type: ignore[return-value]

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        return {"keys": self.room(n_tokens, keys)}


class Window(Control):
    """The positions nearest to the query's block (as in Beltagy et al. 2020, "Longformer"), and the global tokens."""

    name = "window"
    description = "a control: the keys at the nearest positions"

    global_tokens: CountOrZero = 0
    mean_key: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        size = torch.as_tensor(self.count, device=query.device).div(KEYS_PER_QUERY, rounding_mode="floor").clamp(min=1)
        blocks = neighbours(mask, size if size.dim() else int(size))  # (batch, heads, blocks, places)
        keys = Keys(blocks.unsqueeze(2), nearest(mask, blocks, self.count).unsqueeze(2))
        return keys.with_global(*find_global_tokens(query, key, mask, self.global_tokens))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the pairs, and finding the global tokens."""
        pairs = length * min(length, self.count + self.global_tokens)
        return (2 * pairs + length * (self.global_tokens > 0) + self.mean_key_products(length, pairs)) * head_dim


def draw_order(length: int, heads: int, n_hashes: int, generator: torch.Generator | None) -> Tensor:
    """Random values to sort queries and keys by: (2, heads, n_hashes, length).

    In each round position comes first: a longer sequence draws more numbers and changes none.
    """
    generators = generators_of_rounds(n_hashes, generator)
    rounds = [torch.rand(length, 2, heads, generator=one, dtype=torch.float32, device="cpu") for one in generators]
    return torch.stack(rounds, dim=-1).permute(1, 2, 3, 0)


class Random(RoundsOfClusters):
    """Random numbers in the place of hashes; the control of `lsh` and of `key-clusters`."""

    name = "random"
    description = "a control: random clusters"

    global_tokens: CountOrZero = 0
    mean_key: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        """Clusters are the same for all sequences of a batch."""
        batch, heads, length, _ = query.shape
        order = draw_order(length, heads, largest(self.n_hashes), generator).to(query.device)
        query_order, key_order = order.unsqueeze(1).expand(-1, batch, -1, -1, -1)
        keys = clusters_of(query_order, key_order, mask, self.n_hashes, self.cluster_size)
        return keys.with_global(*find_global_tokens(query, key, mask, self.global_tokens))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the pairs in clusters, and the global tokens."""
        pairs = self.pairs_seen(length) + length * self.global_tokens
        return (2 * pairs + length * (self.global_tokens > 0) + self.mean_key_products(length, pairs)) * head_dim


class TopK(Control):
    """The keys that each query scores highest. Takes memory quadratic in the length: it saves nothing."""

    name = "top-k"
    description = "a yardstick: the keys with the highest scores, all scores being known"

    mean_key: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        scores = query @ key.transpose(-1, -2)  # (batch, heads, length, length)
        return Keys(in_place(mask).unsqueeze(2), best(scores, mask[:, :, None], self.count).unsqueeze(2))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: all scores, and the pairs."""
        pairs = length * min(length, self.count)
        return (length**2 + 2 * pairs + self.mean_key_products(length, pairs)) * head_dim
