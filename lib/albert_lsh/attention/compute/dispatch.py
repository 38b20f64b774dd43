"""Computes attention over the keys that are seen, by the fastest way that device and settings allow."""

import torch
from torch import Tensor

from albert_lsh.attention.compute import cpu, dense, gpu, plain
from albert_lsh.attention.rows import owners, sums_of, take
from albert_lsh.attention.seen import Seen

# Up to this length gathering rows takes longer than computing all scores and masking most of them.
DENSE_LENGTH = 512


def attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, *, scaling: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees.

    Args:
        query: (batch, heads, length, head_dim).
        key, value: (batch, heads, n_keys, head_dim), mean keys behind the others.
        seen: which keys each query sees.
        scaling: factor of the scores. dropout: probability with which an attention weight is dropped.
    Returns:
        (batch, heads, length, head_dim) in query's dtype, and the log-sum-exp (batch, heads, length) of the scores,
        float32. Both have gradients. Rows of padding are undefined.
    """
    if gpu.is_available(query, key, value, dropout):
        return gpu.attend(query, key, value, seen, scaling)
    if cpu.is_available(query, dropout):
        if query.shape[2] <= DENSE_LENGTH and seen.each_once:
            return dense.attend(query, key, value, seen, scaling)
        return cpu.attend(query, key, value, seen, scaling)
    return plain.attend(query, key, value, seen, scaling=scaling, dropout=dropout)


def attend_with_rest(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, mask: Tensor, *, scaling: float, dropout: float = 0.0
) -> Tensor:
    """`attend`, and one key more for each query: the mean of all keys that it does not see.

    It has the mean of their values, and the logarithm of their number is added to its score.

    Args:
        key, value: (batch, heads, n_keys, head_dim), zeros in padding, mean keys behind the others.
        mask: (batch, heads, length) bool, True where there is a token.
    Returns:
        (batch, heads, length, head_dim) in query's dtype.
    """
    out, log_sum = attend(query, key, value, seen, scaling=scaling, dropout=dropout)
    mean_key, mean_value, count = the_rest(key.float(), value.float(), seen, mask)
    score = (query.float() * mean_key).sum(-1) * scaling + count.clamp(min=1).log()
    weight = torch.sigmoid(score - log_sum).masked_fill(count == 0, 0.0).unsqueeze(-1)
    return torch.lerp(out.float(), mean_value, weight).to(query.dtype)


def the_rest(key: Tensor, value: Tensor, seen: Seen, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean key, mean value (batch, heads, length, head_dim) and number (batch, heads, length) of the keys not seen."""
    length = mask.shape[-1]
    if seen.unchosen is not None and seen.means is not None:
        slot = owners(seen.queries[:, :, 0], length, nobody=0)[..., :length]
        (key_sums, size), (value_sums, _) = sums_of(key, seen.means), sums_of(value, seen.means)
        left = seen.unchosen.to(key.dtype)
        count = (left @ size.to(key.dtype).unsqueeze(-1)).clamp(min=0)
        means = (take((left @ sums) / count.clamp(min=1), slot) for sums in (key_sums, value_sums))
        return *means, take(count, slot).squeeze(-1)  # type: ignore[return-value]
    # Attention with queries of zero weighs all keys alike: it gives the mean of what is seen, and how much that is.
    zeros = torch.zeros_like(key[:, :, :length])
    seen_keys, log_count = attend(zeros, key, key, seen, scaling=1.0)
    seen_values, _ = attend(zeros, key, value, seen, scaling=1.0)
    seen_count = log_count.detach().exp().round().unsqueeze(-1)
    count = mask.sum(-1)[..., None, None] - seen_count
    means = (
        (rows[:, :, :length].sum(2, keepdim=True) - found * seen_count) / count.clamp(min=1)
        for rows, found in ((key, seen_keys), (value, seen_values))
    )
    return *means, count.clamp(min=0).squeeze(-1)  # type: ignore[return-value]
