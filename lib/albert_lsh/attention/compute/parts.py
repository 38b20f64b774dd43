"""Parts of attention: which keys some queries see, with what bias, and how parts become one softmax.

`attend_part` makes a softmax inside every block of a part, in plain torch, and `merge` puts rounds and parts together
by their log-sum-exp (Kitaev et al. 2020, section 2). `dispatch` chooses faster ways to the same result.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import MASKED, Blocks, look_up, slot_of_query, take
from albert_lsh.attention.select.nearest import Window


class Bias(NamedTuple):
    """What is added to the scores of a part: found anew where it is needed, from tables linear in the length.

    Batch and heads are one in all tables ("rows"); the entry at `length` is that of no token.
    """

    own: bool = False  # hide a query's own key
    # The cluster of each query and of each key in every round, (rows, rounds, length + 1), -1 and -2 for none: with the
    # logarithm of N taken off its scores a key met in N rounds weighs once (Reformer's equation 6)
    clusters: tuple[Tensor, Tensor] | None = None
    window: Window | None = None  # hide the keys in a query's window
    beyond: bool = False  # hide those outside of it instead
    left: Tensor | None = None  # (rows, clusters, keys), for keys that are means: of how many tokens, 0 hides one
    number_in: Tensor | None = None  # (rows, length + width): the mean key to which the token of a number belongs

    def of(self, rows: slice, number: int, clusters: slice, query_index: Tensor, key_index: Tensor) -> Tensor:
        """The bias of some clusters in round `number`: (n, clusters, queries or 1, keys), float32.

        query_index, key_index: (n, clusters, places), those of the blocks for n `rows`.
        """
        query, key = query_index.unsqueeze(-1), key_index.unsqueeze(-2)
        if self.left is not None:
            return self.far(rows, clusters, query_index)
        bias = torch.zeros(1, 1, 1, 1, device=key.device)
        if self.clusters is not None:
            of_query, of_key = (table[rows] for table in self.clusters)
            met = sum(
                (look_up(one, query) == look_up(other, key)).int()
                for one, other in zip(of_query.unbind(1), of_key.unbind(1), strict=True)
            )
            bias = -torch.as_tensor(met).clamp(min=1).log()
        if self.own:
            bias = bias.masked_fill(query == key, MASKED)
        if self.window is not None:
            bias = bias.masked_fill(self.window.covers(rows, query, key) != self.beyond, MASKED)
        return bias

    def far(self, rows: slice, clusters: slice, query_index: Tensor) -> Tensor:
        """`of` for keys that are means: the logarithm of how many tokens they stand for."""
        assert self.left is not None
        left = F.pad(self.left[rows, clusters].unsqueeze(2), (0, 1))  # (n, clusters, 1, keys + 1): nothing in the last
        if self.window is None or self.number_in is None:
            return log_of(left)[..., :-1]
        # Only the keys that have members in a query's window differ from those of its neighbours.
        near = self.window.keys(rows, query_index, self.number_in, nothing=left.shape[-1] - 1)
        many = (near.unsqueeze(-1) == near.unsqueeze(-2)).sum(-1)
        there = left.expand(*near.shape[:-1], -1)
        bias = log_of(left).expand_as(there).clone()
        return bias.scatter_(-1, near, log_of(there.gather(-1, near) - many))[..., :-1]


def log_of(count: Tensor) -> Tensor:
    """The logarithm, float32; MASKED of what is not above 0."""
    return count.clamp(min=1).float().log().masked_fill(count <= 0, MASKED)


class Part(NamedTuple):
    """Some of the keys that the queries see."""

    blocks: Blocks
    bias: Bias | None = None
    distinct: bool = False  # no key stands twice in a round

    def full_bias(self) -> Tensor | None:
        """The bias of all rounds, (batch, heads, rounds, clusters, queries or 1, keys); for short sequences."""
        if self.bias is None:
            return None
        query, key = (index.flatten(0, 1).unbind(1) for index in self.blocks)
        rounds = [self.bias.of(slice(None), r, slice(None), query[r], key[r]) for r in range(len(key))]
        return torch.stack(rounds, 1).unflatten(0, self.blocks.key_index.shape[:2])


def attend_part(
    query: Tensor, key: Tensor, value: Tensor, part: Part, *, scaling: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Softmax attention inside every block.

    Args:
        query: (batch, heads, length, head_dim).
        key, value: (batch, heads, n_keys, head_dim); n_keys is the index that stands for "no key here".
        part: which of them meet.
        scaling: factor of the scores, usually head_dim ** -0.5.
        dropout: probability with which an attention weight is dropped.
    Returns:
        For each round (batch, heads, rounds, length, head_dim) and the log-sum-exp (batch, heads, rounds, length) of
        each query's scores. Scores and softmax are float32 whatever the inputs are.
    """
    blocks, length = part.blocks, query.shape[2]
    q, k, v = take(query, blocks.query_index), take(key, blocks.key_index), take(value, blocks.key_index)
    scores = (q @ k.transpose(-1, -2)).float() * scaling  # (batch, heads, rounds, clusters, queries, keys)
    if (bias := part.full_bias()) is not None:
        scores = scores + bias
    scores = scores.masked_fill((blocks.key_index == key.shape[2]).unsqueeze(-2), MASKED).clamp(min=MASKED)
    log_sum = scores.logsumexp(-1)
    weights = F.dropout(scores.softmax(-1), dropout)
    out = (weights.to(v.dtype) @ v).flatten(3, 4)  # (batch, heads, rounds, clusters * queries, head_dim)
    slot = slot_of_query(blocks, length)
    out = take(out.flatten(0, 1), slot.flatten(0, 1)).view(*slot.shape, -1)  # as `take` wants it
    return out.float(), log_sum.flatten(3).gather(-1, slot)


def merge(parts: list[tuple[Tensor, Tensor]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What `attend_part` gave for several parts and rounds, as one softmax over all their keys.

    Returns:
        (batch, heads, length, head_dim) of that dtype, and the log-sum-exp (batch, heads, length), float32.
    """
    out, log_sum = (torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))
    share = log_sum.softmax(dim=2)  # (batch, heads, rounds, length)
    return (out * share.unsqueeze(-1)).sum(2).to(dtype), log_sum.logsumexp(2)


def count_pairs(parts: list[Part], length: int) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int. Quadratic; for short sequences.

    Keys behind `length`, which stand for several, are left out.
    """
    batch, heads = parts[0].blocks.query_index.shape[:2]
    counts = torch.zeros(batch, heads, (length + 1) ** 2, dtype=torch.int, device=parts[0].blocks.query_index.device)
    for part in parts:
        blocks, bias = part.blocks, part.full_bias()
        key = blocks.key_index.clamp(max=length)
        pair = blocks.query_index.unsqueeze(-1) * (length + 1) + key.unsqueeze(-2)
        met = torch.ones_like(pair, dtype=torch.int) if bias is None else (bias > MASKED / 2).expand_as(pair).int()
        counts.scatter_add_(-1, pair.flatten(2), met.flatten(2))
    return counts.view(batch, heads, length + 1, length + 1)[:, :, :length, :length]
