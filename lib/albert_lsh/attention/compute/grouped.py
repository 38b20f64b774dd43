"""Clusters of keys on a CPU, in long sequences: one head and one cluster at a time, with the queries that chose it.

Sorted by cluster, keys and their gradients are slices. Queries stand there once for each cluster that they chose: in a
"slot". There is no empty place and no mask; products are of whole clusters with all their queries, as experts of a
mixture serve their tokens (Shazeer et al. 2017). A query's output is put together from its slots by their highest
scores and sums of weights; in the backward pass the slots' gradients add up.

A head is computed in float32: casts of small products take longer than bfloat16 saves where no matrix units are.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.cluster_means import ClusterMeans
from albert_lsh.attention.compute.masked import Pieces
from albert_lsh.attention.keys import ClusterKeys
from albert_lsh.attention.rows import LOG2_E, MASKED


class Groups(NamedTuple):
    """One head's queries, by the clusters that they see; the global tokens are the first."""

    at_key: Tensor  # (keys,) positions, by cluster; each key once
    keys_of: list[int]  # how many each cluster has
    at_query: Tensor  # (slots,) positions, by cluster
    queries_of: list[int]  # how many see each cluster
    slots: Tensor  # (length, n) of each query, int32; where it sees fewer clusters the number of slots, an empty one
    sees: Tensor  # (clusters, length) bool


class Grouped(Pieces):
    """A piece is a cluster with its queries. Dropout drops no weight of a mean key."""

    def __init__(self, keys: ClusterKeys, scaling: float, dropout: float, has_mean_key: bool = False):
        super().__init__(scaling, dropout, keys.mask.device)
        self.has_mean_key = has_mean_key
        self.keys = [x.flatten(0, 1) for x in keys]

    def groups(self, head: int) -> Groups:
        mask, tokens, members, chosen = (x[head] for x in self.keys)
        length, count = len(mask), len(members) + 1
        # The global tokens are cluster 0, which all queries see; `count` is for nothing: in padding, and where a query
        # chose fewer clusters. Its slots come last, and are cut off.
        chosen = F.pad(chosen.mT + 1, (0, 0, 1, 0)).masked_fill_(~mask, count)
        tokens = tokens[tokens < length]
        filled = members < length
        sees = chosen.new_zeros(count + 1, length, dtype=torch.bool).scatter_(0, chosen, True)
        number = sees.flatten().cumsum(0, dtype=torch.int32).view_as(sees)  # of a slot, from 1: by cluster, then query
        last = [0, *number[:-1, -1].tolist()]
        slots = (number.gather(0, chosen) - 1).clamp_(max=last[-1])
        query = torch.arange(length, device=chosen.device).expand_as(slots)
        at_query = chosen.new_empty(last[-1] + 1).scatter_(0, slots.flatten().long(), query.flatten())[:-1]
        keys_of, queries_of = [len(tokens), *filled.sum(-1).tolist()], [b - a for a, b in pairwise(last)]
        at_key = torch.cat([tokens, members[filled]])
        return Groups(at_key, keys_of, at_query, queries_of, slots.mT.contiguous(), sees[:-1])

    def means(self, groups: Groups, query: Tensor, key: Tensor, value: Tensor) -> ClusterMeans:
        """The mean keys. Tensors are (length, dim), queries as `rows_of` gives them."""
        sizes = groups.at_key.new_tensor(groups.keys_of)
        first = sizes.cumsum(0) - sizes
        key_sums, value_sums = (F.embedding_bag(groups.at_key, x, first, mode="sum") for x in (key, value))
        return ClusterMeans((~groups.sees).float(), sizes, key_sums, value_sums, query, 1 / LOG2_E)

    def rows_of(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """The tensors, queries first, of one head after another, in float32; queries times the scaling and LOG2_E.

        So products of queries and keys are scores for powers of 2.
        """
        for query, *rows in zip(*tensors, strict=True):
            yield [query.float() * (self.scaling * LOG2_E), *(x.float() for x in rows)]

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, total = query.new_empty(value.shape), query.new_empty(query.shape[:2], dtype=torch.float32)
        self.restart()
        for head, rows in enumerate(self.rows_of((query, key, value))):
            out[head], total[head] = self.attend_head(self.groups(head), *rows)
        return out, total

    def attend_head(self, groups: Groups, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output, and the log-sum-exp over all that is attended to, of one head: (length, dim) and (length,).

        query: as `rows_of` gives it.
        """
        k = key.index_select(0, groups.at_key)
        v = value.index_select(0, groups.at_key)
        n = len(groups.at_query)
        outs = empty(value, n + 1)
        highest, sums = outs.new_full((n + 1,), MASKED), outs.new_ones(n + 1)
        slots = (x.split(groups.queries_of) for x in (groups.at_query, outs[:n], highest[:n], sums[:n]))
        keys = (x.split(groups.keys_of) for x in (k, v))
        for at, out, top, weight, kk, vv in zip(*slots, *keys, strict=True):
            if len(at) and len(kk):
                scores = kk @ query.index_select(0, at).mT  # (keys, queries): over keys they are reduced quickly
                torch.amax(scores, 0, out=top)
                weights = scores.sub_(top).exp2_()
                torch.sum(weights, 0, out=weight)
                torch.mm(self.drop(weights)[0].mT, vv, out=out)
            else:
                out.zero_()
        highest, sums = (x.index_select(0, groups.slots.flatten()).view_as(groups.slots) for x in (highest, sums))
        top = highest.amax(-1)
        if self.has_mean_key:
            means = self.means(groups, query, key, value)
            mean_weight = means.scores * LOG2_E
            top = torch.maximum(top, mean_weight)
        factors = highest.sub_(top.unsqueeze(-1)).exp2_()
        sum_of_weights = (factors * sums).sum(-1)
        if self.has_mean_key:
            mean_weight = mean_weight.sub_(top).exp2_()
            sum_of_weights += mean_weight
        factors /= sum_of_weights.unsqueeze(-1)
        out = F.embedding_bag(groups.slots, outs, per_sample_weights=factors, mode="sum")
        if self.has_mean_key:
            out += means.parts(mean_weight / sum_of_weights).mT @ means.values
        return out, (top + sum_of_weights.log2()) / LOG2_E

    def backward(self, *tensors: Tensor) -> list[Tensor]:
        grads = [torch.zeros_like(x) for x in tensors[:3]]
        self.restart()
        for head, rows in enumerate(self.rows_of(tensors)):
            groups = self.groups(head)
            grad_query, grad_key, grad_value = self.gradients_of_head(groups, *rows)
            grads[0][head] = grad_query
            for grad, grad_rows in zip(grads[1:], (grad_key, grad_value), strict=True):
                grad[head].index_copy_(0, groups.at_key, grad_rows.to(grad.dtype))
        return grads

    def gradients_of_head(self, groups, query, key, value, up, total, delta) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the query as it was before `rows_of`, of sorted keys and of sorted values.

        total: the log-sum-exp that `attend_head` returned. delta: see `compute.Backend`.
        """
        k = key.index_select(0, groups.at_key)
        v = value.index_select(0, groups.at_key)
        n = len(groups.at_query)
        grad_slots = empty(query, n + 1)
        grad_k, grad_v = (torch.empty_like(x) for x in (k, v))
        totals, deltas = (x.index_select(0, groups.at_query) for x in (total * LOG2_E, delta))
        slots = (x.split(groups.queries_of) for x in (groups.at_query, totals, deltas, grad_slots[:n]))
        keys = (x.split(groups.keys_of) for x in (k, v, grad_k, grad_v))
        for at, log2_sum, shift, grad_q, kk, vv, grad_kk, grad_vv in zip(*slots, *keys, strict=True):
            if len(at) and len(kk):
                q = query.index_select(0, at)
                grad_out = up.index_select(0, at)
                weights = (kk @ q.mT).sub_(log2_sum).exp2_()
                dropped, grad_weights = self.drop(weights, vv @ grad_out.mT)
                grad_scores = grad_weights.sub_(shift).mul_(weights)
                torch.mm(dropped, grad_out, out=grad_vv)
                torch.mm(grad_scores, q, out=grad_kk)
                torch.mm(grad_scores.mT, kk, out=grad_q)
            else:
                for nothing in (grad_q, grad_kk, grad_vv):
                    nothing.zero_()
        grad_query = F.embedding_bag(groups.slots, grad_slots, mode="sum")
        if self.has_mean_key:
            mean_grads = self.means(groups, query, key, value).gradients(total, up, delta)
            owner = torch.repeat_interleave(groups.at_key.new_tensor(groups.keys_of))
            grad_query += mean_grads[0]
            grad_k += mean_grads[1].index_select(0, owner)
            grad_v += mean_grads[2].index_select(0, owner)
        return grad_query.mul_(self.scaling), grad_k.div_(LOG2_E), grad_v  # scores were products of scaled queries


def empty(like: Tensor, rows: int) -> Tensor:
    """(rows, dim) float32, dim as in `like`; only the last row is set, to zeros, for slots that do not exist."""
    table = like.new_empty(rows, like.shape[-1], dtype=torch.float32)
    table[-1:] = 0
    return table
