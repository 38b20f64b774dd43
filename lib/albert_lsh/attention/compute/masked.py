"""Attention of short sequences: all scores in one product, most of them masked, which beats gathering rows.

Sequences and heads are computed a few at a time, so that their scores stay in the cache, and once more in the backward
pass, so that none are stored.
"""

from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.keys import MASKED, Keys, product, refuse_second_derivative, slices


class PieceSoftmax:
    """Softmax attention of a piece, queries and keys (..., places, dim), in plain torch; and its gradients.

    Given the output and the log-sum-exp of a softmax over several pieces, the gradients of the pieces add up (as in
    ring attention, Liu et al. 2023). bias: float32, added to the scores; MASKED for keys that are not seen.
    """

    def __init__(self, scaling: float, dropout: float, device: torch.device):
        self.scaling, self.dropout = scaling, dropout
        self.seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
        self.generator = torch.Generator(device) if dropout else None

    def from_start(self) -> "PieceSoftmax":
        """The same, for pieces in the same order: the backward pass drops the weights that the forward pass dropped."""
        if self.generator is not None:
            self.generator.manual_seed(self.seed)
        return self

    def factors(self, weights: Tensor) -> Tensor | None:
        """0 with the probability `dropout`, else 1 / (1 - dropout); None where nothing is dropped."""
        if not self.dropout:
            return None
        kept = torch.rand(weights.shape, generator=self.generator, device=weights.device) >= self.dropout
        return kept / max(1 - self.dropout, 1e-9)

    def weigh(self, q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (..., queries, keys) and the log-sum-exp of the scores (..., queries), float32."""
        scores = torch.add(bias, product(q, k.transpose(-1, -2)).float(), alpha=self.scaling)
        weights = scores.softmax(-1)
        return weights, scores.amax(-1) - weights.amax(-1).log()  # the largest weight is exp(its score - log-sum-exp)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        weights, log_sum = self.weigh(q, k, bias)
        factors = self.factors(weights)
        return product(weights if factors is None else weights * factors, v), log_sum

    def backward(self, q, k, v, up, total, delta, bias) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v.

        total: log-sum-exp over all pieces. delta: upstream gradient times output, less the gradient of total.
        """
        weights, log_sum = self.weigh(q, k, bias)
        weights *= (log_sum - total).exp().unsqueeze(-1)
        of_weights, dropped = product(up, v.transpose(-1, -2)).float(), weights
        if (factors := self.factors(weights)) is not None:
            of_weights, dropped = of_weights * factors, weights * factors
        of_scores = of_weights.sub_(delta.unsqueeze(-1)).mul_(weights).mul_(self.scaling)
        return product(of_scores, k), product(of_scores.transpose(-1, -2), q), product(dropped.transpose(-1, -2), up)


def delta_of(out: Tensor, up: Tensor, of_total: Tensor | None) -> Tensor:
    """See `PieceSoftmax.backward`: (heads, length), float32."""
    delta = (up.float() * out.float()).sum(-1)
    return delta if of_total is None else delta - of_total


def bias_of(keys: Keys, rows: slice, length: int) -> Tensor:
    """0 for all pairs that are seen, MASKED for others; batch and heads are one: (rows, length, length), float32."""
    queries, listed = keys.queries[rows].unsqueeze(-1), keys.keys[rows].unsqueeze(-2)
    bias = torch.full((len(listed), (length + 1) ** 2), MASKED, device=listed.device, dtype=torch.float32)
    bias.scatter_(1, (queries * (length + 1) + listed).flatten(1), 0.0)
    bias = bias.view(-1, length + 1, length + 1)[:, :length, :length]  # without "no query" and "no key"
    if keys.others_only:
        bias.diagonal(dim1=-2, dim2=-1).fill_(MASKED)
    return bias


class MaskedAttention(torch.autograd.Function):
    """Softmax over the keys that each query sees, each of which weighs once; batch and heads are one here."""

    @staticmethod
    def forward(ctx: Any, keys: Keys, softmax: PieceSoftmax, query: Tensor, key: Tensor, value: Tensor):
        out, total = torch.empty_like(value), query.new_empty(query.shape[:2], dtype=torch.float32)
        length, softmax = query.shape[1], softmax.from_start()
        for rows in slices(len(query), length**2, query.device):
            bias = bias_of(keys, rows, length)
            out[rows], total[rows] = softmax.forward(query[rows], key[rows], value[rows], bias)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.keys, ctx.softmax = keys, softmax
        ctx.set_materialize_grads(False)
        return out, total

    @staticmethod
    def backward(ctx: Any, up: Tensor, of_total: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, out, total = ctx.saved_tensors
        grads, delta = [torch.empty_like(x) for x in (query, key, value)], delta_of(out, up, of_total)
        length, softmax = query.shape[1], ctx.softmax.from_start()
        for rows in slices(len(query), length**2, query.device):
            tensors = (x[rows] for x in (query, key, value, up, total, delta))
            parts = softmax.backward(*tensors, bias_of(ctx.keys, rows, length))
            for grad, part in zip(grads, parts, strict=True):
                grad[rows] = part
        return None, None, *grads
