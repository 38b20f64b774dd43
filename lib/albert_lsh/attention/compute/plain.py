"""Attention over the keys that are seen, in plain torch: serves every device, dtype and dropout."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.rows import MASKED, products, take
from albert_lsh.attention.seen import Seen


def bias_of(seen: Seen, number: slice, n_keys: int) -> Tensor:
    """The bias of some rounds: (batch, heads, rounds, blocks, queries or 1, keys), float32."""
    query, key = seen.queries[:, :, number].unsqueeze(-1), seen.keys[:, :, number].unsqueeze(-2)
    bias = torch.zeros(key.shape, device=key.device, dtype=torch.float32)
    if seen.bias is not None:
        bias = bias + seen.bias[:, :, number].unsqueeze(-2)
    if seen.clusters is not None:
        bias = bias - times_met(seen.clusters, query, key).clamp(min=1).float().log()
    if seen.others_only:
        bias = bias.masked_fill(query == key, MASKED)
    return bias.masked_fill(key == n_keys, MASKED)


def times_met(clusters: tuple[Tensor, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """In how many rounds each query shares a cluster with each key: (..., queries, keys), int."""
    met = torch.zeros((), dtype=torch.int, device=query.device)
    of_query, of_key = clusters
    for mine, other in zip(of_query.unbind(-2), of_key.unbind(-2), strict=True):
        first, second = (
            table.gather(-1, index.flatten(mine.dim() - 1)).view_as(index)
            for table, index in ((mine, query), (other, key))
        )
        met = met + (first == second)
    return met


def attend(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, *, scaling: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query sees; see `dispatch.attend`. Scores and softmax are float32."""
    length, n_keys = query.shape[2], key.shape[2]
    q, k, v = take(query, seen.queries), take(key, seen.keys), take(value, seen.keys)
    scores = products(q, k) * scaling  # (batch, heads, rounds, blocks, queries, keys)
    scores = (scores + bias_of(seen, slice(None), n_keys)).clamp(min=MASKED)
    log_sum, weights = scores.logsumexp(-1), F.dropout(scores.softmax(-1), dropout)
    out = (weights.to(v.dtype) @ v).flatten(3, 4)  # (batch, heads, rounds, blocks * queries, head_dim)
    index = seen.queries.flatten(3)
    place = torch.arange(index.shape[-1], device=index.device).expand_as(index)
    slot = index.new_zeros(*index.shape[:3], length + 1).scatter(-1, index, place)[..., :length]
    out = take(out.flatten(0, 1), slot.flatten(0, 1)).view(*slot.shape, -1).float()
    log_sum = log_sum.flatten(3).gather(-1, slot)
    share = log_sum.softmax(dim=2).unsqueeze(-1)  # (batch, heads, rounds, length, 1)
    return (out * share).sum(2).to(query.dtype), log_sum.logsumexp(2)
