"""Shared queries and keys (Kitaev, Kaiser, Levskaya 2020, "Reformer", section 2), without hashing.

The pretrained projections stay. The keys are replaced by the queries scaled to unit length, and a token attends to
itself only when there is nothing else.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.definition import Attention
from albert_lsh.attention.rows import MASKED, products
from albert_lsh.attention.softmax import all_pairs, full_cost

# Reformer's score for a token's own key: far below any other, and far above that of padding.
SELF = -5e4


def unit_queries(query: Tensor) -> Tensor:
    """The keys of shared-QK attention: queries of length one, in query's dtype."""
    return F.normalize(query.float(), dim=-1).to(query.dtype)


def shared_qk_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None) -> Tensor:
    """Attention of every token to all others with unit-length queries as keys; `key` is not used."""
    length = query.shape[2]
    own = torch.full((length,), SELF, device=query.device, dtype=torch.float32)
    mask = own.diag()[None, None]  # (1, 1, length, length)
    if padding_mask is not None:
        mask = mask.masked_fill(~padding_mask[:, None, None, :], MASKED)
    scores = products(query, unit_queries(query)) * scaling + mask
    weights = F.dropout(scores.softmax(-1), dropout)
    return weights.to(value.dtype) @ value


def only_others(counts: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Counts (batch, heads, length, length) without the diagonal, which stays only where a token sees nothing else."""
    if padding_mask is not None:
        counts = counts * padding_mask[:, None, None, :]
    own = counts.diagonal(dim1=-2, dim2=-1)
    off_diagonal = counts - own.diag_embed()
    return off_diagonal + (own * (off_diagonal.sum(-1) == 0)).diag_embed()


def others(query, key, padding_mask=None, *, generator=None) -> Tensor:
    """Every token sees every other one: (batch, heads, length, length), ones off the diagonal."""
    return only_others(all_pairs(query, key), padding_mask)


SHARED_QK = Attention(
    "pretrained projections, keys tied to queries, no hashing", shared_qk_attention, others, full_cost
)
