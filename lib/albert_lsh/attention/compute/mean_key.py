"""One key more for each query: the mean of the keys that it does not see, with the mean of their values.

The logarithm of their number is added to its score, so that it weighs as all of them would if they were alike. Whatever
attended to the other keys, the mean key is merged with their output by its log-sum-exp:

    score = scaling q . mean(K) + log |K|          out' = out + sigmoid(score - log_sum) (mean(V) - out)
"""

from typing import NamedTuple

import torch
from torch import Tensor


class MeanKey(NamedTuple):
    """Of each query, or one for all: float32."""

    key: Tensor  # (batch, heads, length or 1, head_dim)
    value: Tensor  # (batch, heads, length or 1, head_dim)
    n_keys: Tensor  # (batch, heads, length or 1) keys that it stands for


def mean_of_all(key: Tensor, value: Tensor, mask: Tensor) -> MeanKey:
    """The mean of all tokens, seen or not. mask: (batch, heads, length) bool, True where there is a token."""
    count = mask.sum(2, keepdim=True)  # (batch, heads, 1)
    key_mean, value_mean = (
        (x.float() * mask.unsqueeze(-1)).sum(2, keepdim=True) / count.clamp(min=1).unsqueeze(-1) for x in (key, value)
    )
    return MeanKey(key_mean, value_mean, count)


def with_mean_key(query: Tensor, out: Tensor, log_sum: Tensor, mean: MeanKey, scaling: float) -> Tensor:
    """The output of `compute.attend`, and its log-sum-exp, with the mean key merged into it."""
    score = (query.float() * mean.key).sum(-1) * scaling + mean.n_keys.clamp(min=1).log()  # (batch, heads, length)
    weight = torch.sigmoid(score - log_sum).masked_fill(mean.n_keys == 0, 0.0).unsqueeze(-1)
    return torch.lerp(out.float(), mean.value, weight).to(query.dtype)
