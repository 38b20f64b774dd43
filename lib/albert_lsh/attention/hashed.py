"""Queries and keys are hashed apart, sorted, and cut into clusters: LSH attention, SMYRF, and their control.

Hashes are products with random vectors (`select.project`; Daras et al. 2020, "SMYRF"). In each of `n_hashes` rounds a
query sees the keys of the cluster with its own number.

    lsh         Reformer's attention with keys of their own: a key that is met in several rounds weighs once
    smyrf       as published: it weighs in each, as rounds are merged by their log-sum-exp. (The paper completes the
                norms with two largest norms, we with one for both sides.)
    random      a control for these two and for `key-clusters`: random numbers in the place of hashes
"""

from typing import ClassVar

import torch
from torch import Tensor

from albert_lsh.attention.core import ChoosesKeys, Count, CountOrZero, InRounds
from albert_lsh.attention.keys import Keys, cluster_tables, cut, largest, per_sequence
from albert_lsh.attention.order import sort_tokens
from albert_lsh.attention.select import find_global_tokens, generators_of_rounds, project


class Hashed(InRounds, ChoosesKeys):
    """What the attentions of this file have in common."""

    usual_share: ClassVar[float | None] = 0.25
    open: ClassVar[tuple[str, ...]] = ("n_hashes", "cluster_size")

    n_hashes: Count = 4
    cluster_size: Count = 32

    def clusters(self, of_query: Tensor, of_key: Tensor, mask: Tensor) -> Keys:
        """Rounds of clusters from values to sort by, (batch, heads, rounds, length) each."""
        length, n_tokens = mask.shape[-1], mask[:, 0].sum(-1)
        queries, keys = (cut(sort_tokens(x, mask), n_tokens, self.cluster_size) for x in (of_query, of_key))
        number = torch.arange(keys.shape[2], device=keys.device)[:, None, None]
        keys = keys.masked_fill(number >= per_sequence(self.n_hashes, 5), length)
        return Keys(queries, keys, None if keys.shape[2] == 1 else cluster_tables(queries, keys, length))

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        return self.clusters(*project(query, key, mask, largest(self.n_hashes), generator), mask)

    def pairs_seen(self, length: int) -> int:
        return self.n_hashes * length * -(-length // max(1, -(-length // self.cluster_size)))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: a projection of each query and key in each round, and the pairs in clusters."""
        pairs = self.pairs_seen(length)
        return self.n_hashes * 2 * length * (head_dim + 2) + (2 * pairs + self.rest_products(length, pairs)) * head_dim


class LSH(Hashed):
    name = "lsh"
    version = 3  # 1 and 2 were of clusters of keys, which are `key-clusters` now
    about = "pretrained projections; keys whose random projections fall into the query's cluster"
    smallest = fewest = 2

    rest: bool = False


class Smyrf(Hashed):
    name = "smyrf"
    about = "SMYRF: as lsh, but a key met in several rounds weighs several times, as published"
    smallest = fewest = 2

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        return super().choose_keys(query, key, mask, scaling, generator)._replace(clusters=None)


def draw_values(length: int, heads: int, n_hashes: int, generator: torch.Generator | None) -> Tensor:
    """Random values to sort queries and keys by: (2, heads, n_hashes, length).

    In each round position comes first: a longer sequence draws more numbers and changes none.
    """
    generators = generators_of_rounds(n_hashes, generator)
    rounds = [torch.rand(length, 2, heads, generator=one, dtype=torch.float32, device="cpu") for one in generators]
    return torch.stack(rounds, dim=-1).permute(1, 2, 3, 0)


class Random(Hashed):
    name = "random"
    about = "a control: random clusters"

    global_tokens: CountOrZero = 0
    rest: bool = False

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys:
        """Clusters are the same for all sequences of a batch."""
        batch, heads, length, _ = query.shape
        values = draw_values(length, heads, largest(self.n_hashes), generator).to(query.device)
        of_query, of_key = values.unsqueeze(1).expand(-1, batch, -1, -1, -1)
        keys = self.clusters(of_query, of_key, mask)
        return keys.with_global(*find_global_tokens(query, key, mask, self.global_tokens))

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the pairs in clusters, and the global tokens."""
        pairs = self.pairs_seen(length) + length * self.global_tokens
        return (2 * pairs + length * (self.global_tokens > 0) + self.rest_products(length, pairs)) * head_dim
