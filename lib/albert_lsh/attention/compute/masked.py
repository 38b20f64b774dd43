"""Attention of short sequences: all scores in one product, most of them masked, which beats gathering rows.

The mean of all keys that a query does not see is part of that product: its score is the mean of theirs, and each of
them has an equal part of its weight.

Sequences and heads are computed a few at a time, so that their scores stay in the cache, and once more in the backward
pass, so that none are stored.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.keys import AT_ONCE, MASKED, Keys, product, slices

TENSORS = 8  # of the size of a piece's scores, at once; counted on a GPU, where one piece may fill the memory


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
        for rows in slices(len(query), TENSORS * length**2, query.device, TENSORS * AT_ONCE):
            queries, listed = self.keys.queries[rows].unsqueeze(-1), self.keys.keys[rows].unsqueeze(-2)
            bias = torch.full((len(listed), (length + 1) ** 2), MASKED, device=listed.device, dtype=torch.float32)
            bias.scatter_(1, (queries * (length + 1) + listed).flatten(1), 0.0)
            bias = bias.view(-1, length + 1, length + 1)[:, :length, :length]  # without "no query" and "no key"
            if self.keys.others_only:
                bias.diagonal(dim1=-2, dim2=-1).fill_(MASKED)
            yield rows, bias

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.restart()
        out, total = together([self.attend(bias, query[x], key[x], value[x]) for x, bias in self.biases(query)])
        return out.to(value.dtype), total

    def backward(self, *tensors: Tensor) -> list[Tensor]:
        self.restart()
        parts = [self.gradients(bias, *(x[rows] for x in tensors)) for rows, bias in self.biases(tensors[0])]
        return [grad.to(x.dtype) for grad, x in zip(together(parts), tensors, strict=False)]


def together(parts: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """The tensors of all pieces, one after another."""
    return [torch.cat(tensors) if len(tensors) > 1 else tensors[0] for tensors in zip(*parts, strict=True)]


class MaskedWithMean(Masked):
    """The same with one key more for each query: the mean of those not seen, with the logarithm of their number added.

    Dropout drops weights of keys that are seen.
    """

    def __init__(self, keys: Keys, scaling: float, dropout: float, mask: Tensor):
        """mask: (rows, length) bool, True where there is a token."""
        super().__init__(keys, scaling, dropout)
        # a pair's bias divided by this is 1 or 0, see `biases`
        divisor = torch.full(mask.shape, -torch.inf, dtype=torch.float32, device=mask.device)
        self.divisor = divisor.masked_fill_(mask, MASKED).unsqueeze(1)

    def biases(self, query: Tensor) -> Iterator[tuple[slice, Any]]:
        """Besides, for each pair, 1 where it is not seen, 0 where it is or where its key is padding."""
        for rows, bias in super().biases(query):
            yield rows, (bias, bias / self.divisor[rows])

    def weigh_all(self, masks: Any, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        """Weights of the keys seen, (..., queries, keys), and (..., queries, 1) the log-sum-exp of their scores, the
        weight of the mean key, and how many keys it stands for, at least 1. float32.
        """
        bias, unseen = masks
        scores = product(q, k.transpose(-1, -2)).float().mul_(self.scaling)
        number = unseen.sum(-1, keepdim=True)
        of_mean = torch.linalg.vecdot(scores, unseen).unsqueeze(-1) / number + number.log()  # NaN where there is none
        weights = scores.add_(bias).softmax(-1)  # torch.exp of MASKED is slow on a CPU, softmax is not
        log_sum = (scores.amax(-1) - weights.amax(-1).log()).unsqueeze(-1)
        weight_of_mean = torch.sigmoid(of_mean - log_sum).masked_fill_(number == 0, 0.0)
        return weights.mul_(1 - weight_of_mean), log_sum, weight_of_mean, number.clamp_(min=1)

    def attend(self, masks: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Output, and the log-sum-exp over the keys seen."""
        weights, log_sum, weight_of_mean, number = self.weigh_all(masks, q, k)
        weights = self.drop(weights)[0].addcmul_(masks[1], weight_of_mean / number)
        return product(weights, v), log_sum.squeeze(-1)

    def gradients(self, masks, q, k, v, up, total, delta) -> tuple[Tensor, Tensor, Tensor]:
        weights, _, weight_of_mean, number = self.weigh_all(masks, q, k)
        of_weights, delta = product(up, v.transpose(-1, -2)).float(), delta.unsqueeze(-1)
        of_mean = torch.linalg.vecdot(of_weights, masks[1]).unsqueeze(-1) / number  # the mean value times `up`
        part = weight_of_mean / number
        dropped, of_weights = self.drop(weights, of_weights)
        of_scores = of_weights.sub_(delta).mul_(weights).addcmul_(masks[1], (of_mean - delta) * part).mul_(self.scaling)
        dropped = torch.addcmul(dropped, masks[1], part)
        return product(of_scores, k), product(of_scores.transpose(-1, -2), q), product(dropped.transpose(-1, -2), up)
