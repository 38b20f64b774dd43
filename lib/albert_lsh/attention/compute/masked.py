"""Attention of short sequences: all scores in one product, most of them masked, which beats gathering rows.

Sequences and heads are computed a few at a time, so that their scores stay in the cache, and once more in the backward
pass, so that none are stored.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from albert_lsh.attention.keys import MASKED, Keys, product, slices


class Pieces:
    """Softmax attention by pieces in plain torch: a piece has queries and keys (..., places, dim).

    Given the output and the log-sum-exp of a softmax over several pieces, the gradients of the pieces add up (as in
    ring attention, Liu et al. 2023). bias: float32, added to the scores; MASKED for keys that are not seen.
    """

    def __init__(self, keys: Keys, scaling: float, dropout: float):
        self.keys, self.scaling, self.dropout = keys, scaling, dropout
        self.seed = int(torch.randint(2**62, (), device="cpu")) if dropout else 0
        self.generator = torch.Generator(keys.keys.device)

    def restart(self) -> None:
        """Before all pieces, in the same order: the backward pass drops the weights that the forward pass dropped."""
        self.generator.manual_seed(self.seed)

    def drop(self, weights: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Weights, 0 with the probability `dropout`, else divided by 1 - dropout; and others by the same factors."""
        if not self.dropout:
            return weights, *others
        kept = torch.rand(weights.shape, generator=self.generator, device=weights.device) >= self.dropout
        factors = kept / max(1 - self.dropout, 1e-9)
        return tuple(x * factors for x in (weights, *others))

    def weigh(self, bias: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (..., queries, keys) and the log-sum-exp of the scores (..., queries), float32."""
        scores = torch.add(bias, product(q, k.transpose(-1, -2)).float(), alpha=self.scaling)
        weights = scores.softmax(-1)
        return weights, scores.amax(-1) - weights.amax(-1).log()  # the largest weight is exp(its score - log-sum-exp)

    def attend(self, bias: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp."""
        weights, log_sum = self.weigh(bias, q, k)
        return product(self.drop(weights)[0], v), log_sum

    def gradients(self, bias, q, k, v, up, total, delta) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. total: log-sum-exp over all pieces. delta: see `ChosenAttention`."""
        weights, log_sum = self.weigh(bias, q, k)
        weights *= (log_sum - total).exp().unsqueeze(-1)
        dropped, of_weights = self.drop(weights, product(up, v.transpose(-1, -2)).float())
        of_scores = of_weights.sub_(delta.unsqueeze(-1)).mul_(weights).mul_(self.scaling)
        return product(of_scores, k), product(of_scores.transpose(-1, -2), q), product(dropped.transpose(-1, -2), up)


class Masked(Pieces):
    """A piece is some sequences and heads, with all their scores; each key weighs once."""

    def biases(self, query: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """For some rows (batch and heads are one) 0 where a pair is seen, MASKED for others: (rows, length, length)."""
        length = query.shape[1]
        for rows in slices(len(query), length**2, query.device):
            queries, listed = self.keys.queries[rows].unsqueeze(-1), self.keys.keys[rows].unsqueeze(-2)
            bias = torch.full((len(listed), (length + 1) ** 2), MASKED, device=listed.device, dtype=torch.float32)
            bias.scatter_(1, (queries * (length + 1) + listed).flatten(1), 0.0)
            bias = bias.view(-1, length + 1, length + 1)[:, :length, :length]  # without "no query" and "no key"
            if self.keys.others_only:
                bias.diagonal(dim1=-2, dim2=-1).fill_(MASKED)
            yield rows, bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        out, total = torch.empty_like(value), query.new_empty(query.shape[:2], dtype=torch.float32)
        self.restart()
        for rows, bias in self.biases(query):
            out[rows], total[rows] = self.attend(bias, query[rows], key[rows], value[rows])
        return out, total

    def backward(self, *tensors: Tensor) -> list[Tensor]:
        grads = [torch.empty_like(x) for x in tensors[:3]]
        self.restart()
        for rows, bias in self.biases(tensors[0]):
            parts = self.gradients(bias, *(x[rows] for x in tensors))
            for grad, part in zip(grads, parts, strict=True):
                grad[rows] = part
        return grads
