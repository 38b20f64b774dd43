"""Computes attention over the keys that are seen, by the fastest way that device and settings allow."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute import cpu, dense, gpu, plain
from albert_lsh.attention.rows import sums_of
from albert_lsh.attention.seen import Seen

# On a CPU, computing all scores and masking most of them is faster than gathering keys in sequences of up to
# DENSE_LENGTH tokens, and where each block is one query that sees more than 1 / DENSE_PART of the keys. Where weights
# are dropped it is faster up to SHARED_LENGTH tokens, and up to DENSE_LENGTH where each query has keys of its own; that
# way takes much less memory, too, and serves all devices (its time on a GPU was not measured).
# It also serves where torch's fused backward is slow (`cpu.is_slow`).
DENSE_LENGTH = 512
DENSE_PART = 8
SHARED_LENGTH = 256


def attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, *, scaling: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees.

    Args:
        query: (batch, heads, length, head_dim).
        key, value: (batch, heads, n_keys, head_dim), for `shared-qk-lsh` a mean key behind the others.
        seen: which keys each query sees.
        scaling: factor of the scores. dropout: probability with which an attention weight is dropped.
    Returns:
        (batch, heads, length, head_dim) in query's dtype, and the log-sum-exp (batch, heads, length) of the scores,
        float32. Both have gradients. Rows of padding are undefined.
    """
    if gpu.is_available(query, key, value, dropout):
        return gpu.attend(query, key, value, seen, scaling)
    alone = seen.queries.shape[-1] == 1
    short = seen.each_once and query.shape[2] <= (DENSE_LENGTH if alone else SHARED_LENGTH)
    if short and (dropout or cpu.is_slow(query)):
        return dense.step_by_step(query, key, value, seen, scaling, dropout)
    if cpu.is_available(query, dropout):
        many = alone and seen.keys.shape[-1] * DENSE_PART > key.shape[2]
        if seen.each_once and (many or query.shape[2] <= DENSE_LENGTH):
            return dense.attend(query, key, value, seen, scaling)
        return cpu.attend(query, key, value, seen, scaling)
    return plain.attend(query, key, value, seen, scaling=scaling, dropout=dropout)


def attend_with_rest(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, mask: Tensor, *, scaling: float, dropout: float = 0.0
) -> Tensor:
    """`attend`, and one key more for each query: the mean of all keys that it does not see.

    It has the mean of their values, and the logarithm of their number is added to its score.

    Args:
        key, value: (batch, heads, n_keys, head_dim), zeros in padding.
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
    if seen.chosen is not None and seen.means is not None:
        size = (seen.means < length).sum(-1, keepdim=True).to(key.dtype)
        keys, values, count = (unchosen_sums(rows, seen.chosen) for rows in (*sums_of(seen.means, key, value), size))
        return keys / count.clamp(min=1), values / count.clamp(min=1), count.squeeze(-1)
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


def unchosen_sums(rows: Tensor, chosen: Tensor) -> Tensor:
    """The sum of all rows (batch, heads, clusters, dim) but those that a query chose: (batch, heads, length, dim).

    chosen: (batch, heads, length, n) numbers of clusters; the number of clusters stands for none.
    """
    batch, heads, count, dim = rows.shape
    flat = F.pad(rows, (0, 0, 0, 1)).reshape(-1, dim)
    first = torch.arange(batch * heads, device=rows.device).view(batch, heads, 1, 1) * (count + 1)
    seen = F.embedding_bag((chosen + first).flatten(0, 2), flat, mode="sum")
    return rows.sum(2, keepdim=True) - seen.view(*chosen.shape[:3], dim)
