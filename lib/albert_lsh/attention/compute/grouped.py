"""Attention over clusters of keys on a CPU: one head and one cluster at a time, with the queries that chose it.

Sorted by cluster, keys and their gradients are slices. Queries stand there once for each cluster that they chose: in a
"slot". There is no empty place and no mask; products are of whole clusters with all their queries, as experts of a
mixture serve their tokens (Shazeer et al. 2017). A query's output is put together from its slots by their highest
scores and sums of weights; in the backward pass the slots' gradients add up.

A head is computed in float32: casts of small products take longer than bfloat16 saves where no matrix units are.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.clusters import Clusters
from albert_lsh.attention.compute.masked import Pieces
from albert_lsh.attention.compute.means import Means
from albert_lsh.attention.keys import LOG2_E, MASKED


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

    def __init__(self, clusters: Clusters, scaling: float, dropout: float, with_mean: bool = False):
        super().__init__(scaling, dropout, clusters.mask.device)
        self.clusters, self.with_mean = [x.flatten(0, 1) for x in clusters], with_mean

    def groups(self, head: int) -> Groups:
        mask, tokens, members, chosen = (x[head] for x in self.clusters)
        length, count = len(mask), len(members) + 1
        # The global tokens are cluster 0, which all queries see; `count` is for nothing: in padding, and where a query
        # chose fewer clusters. Its slots come last, and are cut off.
        chosen = F.pad(chosen.mT + 1, (0, 0, 1, 0)).masked_fill_(~mask, count)
        tokens, filled = tokens[tokens < length], members < length
        sees = chosen.new_zeros(count + 1, length, dtype=torch.bool).scatter_(0, chosen, True)
        number = sees.flatten().cumsum(0, dtype=torch.int32).view_as(sees)  # of a slot, from 1: by cluster, then query
        last = [0, *number[:-1, -1].tolist()]
        slots = (number.gather(0, chosen) - 1).clamp_(max=last[-1])
        query = torch.arange(length, device=chosen.device).expand_as(slots)
        at_query = chosen.new_empty(last[-1] + 1).scatter_(0, slots.flatten().long(), query.flatten())[:-1]
        keys_of, queries_of = [len(tokens), *filled.sum(-1).tolist()], [b - a for a, b in pairwise(last)]
        at_key = torch.cat([tokens, members[filled]])
        return Groups(at_key, keys_of, at_query, queries_of, slots.mT.contiguous(), sees[:-1])

    def means(self, groups: Groups, query: Tensor, key: Tensor, value: Tensor) -> tuple[Means, Tensor]:
        """The mean keys, and the cluster of each key. query: (length, dim). key, value: (keys, dim), by cluster."""
        sizes = groups.at_key.new_tensor(groups.keys_of)
        owner = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        tables = (x.new_zeros(len(sizes), x.shape[-1], dtype=torch.float32) for x in (key, value))
        of_keys, of_values = (t.index_add_(0, owner, x.float()) for t, x in zip(tables, (key, value), strict=True))
        return Means((~groups.sees).float(), sizes, of_keys, of_values, query, self.scaling), owner

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Times LOG2_E, (keys, queries) float32: over keys they are reduced quickly."""
        return (key @ query.mT).mul_(self.scaling * LOG2_E)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, total = query.new_empty(value.shape), query.new_empty(query.shape[:2], dtype=torch.float32)
        self.restart()
        for head, rows in enumerate(zip(query, key, value, strict=True)):
            out[head], total[head] = self.attend_head(self.groups(head), *(x.float() for x in rows))
        return out, total

    def attend_head(self, groups: Groups, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Output, and the log-sum-exp over all that is attended to, of one head: (length, dim) and (length,)."""
        k, v, n = key.index_select(0, groups.at_key), value.index_select(0, groups.at_key), len(groups.at_query)
        outs = empty(value, n + 1)
        highest, sums = outs.new_full((n + 1,), MASKED), outs.new_ones(n + 1)
        slots = (x.split(groups.queries_of) for x in (groups.at_query, outs[:n], highest[:n], sums[:n]))
        keys = (x.split(groups.keys_of) for x in (k, v))
        for at, out, top, weight, kk, vv in zip(*slots, *keys, strict=True):
            if len(at) and len(kk):
                scores = self.scores(query.index_select(0, at), kk)
                torch.amax(scores, 0, out=top)
                weights = scores.sub_(top).exp2_()
                torch.sum(weights, 0, out=weight)
                torch.mm(self.drop(weights)[0].mT, vv, out=out)
            else:
                out.zero_()
        highest, sums = highest[groups.slots], sums[groups.slots]
        top = highest.amax(-1)
        if self.with_mean:
            means, _ = self.means(groups, query, k, v)
            top = torch.maximum(top, means.scores * LOG2_E)
        factors = highest.sub_(top.unsqueeze(-1)).exp2_()
        sum_of_weights = (factors * sums).sum(-1)
        if self.with_mean:
            of_mean = (means.scores * LOG2_E - top).exp2_()
            sum_of_weights += of_mean
        factors /= sum_of_weights.unsqueeze(-1)
        out = F.embedding_bag(groups.slots, outs, per_sample_weights=factors, mode="sum")
        if self.with_mean:
            out += means.parts(of_mean / sum_of_weights).mT @ means.values
        return out, (top + sum_of_weights.log2()) / LOG2_E

    def backward(self, *tensors: Tensor) -> list[Tensor]:
        grads = [torch.zeros_like(x) for x in tensors[:3]]
        self.restart()
        for head, rows in enumerate(zip(*tensors, strict=True)):
            groups = self.groups(head)
            of_query, of_key, of_value = self.gradients_of_head(groups, *(x.float() for x in rows))
            grads[0][head] = of_query
            for grad, of_rows in zip(grads[1:], (of_key, of_value), strict=True):
                grad[head].index_copy_(0, groups.at_key, of_rows.to(grad.dtype))
        return grads

    def gradients_of_head(self, groups, query, key, value, up, total, delta) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, sorted keys and sorted values. total: see `attend_head`. delta: see `ChosenAttention`."""
        k, v, n = key.index_select(0, groups.at_key), value.index_select(0, groups.at_key), len(groups.at_query)
        of_slots, of_k, of_v = empty(query, n + 1), *(torch.empty_like(x, dtype=torch.float32) for x in (k, v))
        slots = (x.split(groups.queries_of) for x in (groups.at_query, of_slots[:n]))
        keys = (x.split(groups.keys_of) for x in (k, v, of_k, of_v))
        totals = total * LOG2_E
        for at, of_q, kk, vv, of_kk, of_vv in zip(*slots, *keys, strict=True):
            if len(at) and len(kk):
                q, of_out = query.index_select(0, at), up.index_select(0, at)
                weights = self.scores(q, kk).sub_(totals[at]).exp2_()
                dropped, of_weights = self.drop(weights, vv @ of_out.mT)
                of_scores = of_weights.sub_(delta[at]).mul_(weights)
                torch.mm(dropped, of_out, out=of_vv)
                torch.mm(of_scores, q, out=of_kk)
                torch.mm(of_scores.mT, kk, out=of_q)
            else:
                for nothing in (of_q, of_kk, of_vv):
                    nothing.zero_()
        of_query = F.embedding_bag(groups.slots, of_slots, mode="sum")
        if self.with_mean:
            means, owner = self.means(groups, query, k, v)
            of_q, of_keys, of_values = means.gradients(total, up, delta)
            of_query, of_k, of_v = of_query + of_q, of_k + of_keys[owner], of_v + of_values[owner]
        return of_query.mul_(self.scaling), of_k.mul_(self.scaling), of_v


def empty(like: Tensor, rows: int) -> Tensor:
    """(rows, dim) float32, dim as in `like`; only the last row is set, to zeros, for slots that do not exist."""
    table = like.new_empty(rows, like.shape[-1], dtype=torch.float32)
    table[-1:] = 0
    return table
