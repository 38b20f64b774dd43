"""Softmax attention, the baseline: torch's fused kernels, and the form of 2020 that stores the L x L matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.cpu import is_slow
from albert_lsh.attention.definition import Attention
from albert_lsh.attention.rows import MASKED, products


def softmax_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` over all tokens; step by step where that is faster."""
    if is_slow(query):
        return eager_attention(query, key, value, padding_mask, scaling=scaling, dropout=dropout)
    mask = None if padding_mask is None else padding_mask[:, None, None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)


def eager_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None) -> Tensor:
    """The same, step by step, as ALBERT's first implementations had it: the matrix of weights is kept for backward."""
    scores = products(query, key) * scaling  # (batch, heads, length, length)
    if padding_mask is not None:
        scores = scores.masked_fill(~padding_mask[:, None, None, :], MASKED)
    weights = F.dropout(scores.softmax(-1).to(query.dtype), dropout)
    return weights @ value


def all_pairs(query, key, padding_mask=None, **settings) -> Tensor:
    """Every token sees every token: (batch, heads, length, length) of ones, whatever the settings."""
    return torch.ones(*query.shape[:3], key.shape[2], dtype=torch.long, device=query.device)


def full_cost(length: int, head_dim: int, **settings) -> float:
    """Multiply-adds of one head: two products of head_dim numbers for each pair."""
    return 2 * length**2 * head_dim


SOFTMAX = Attention("every token sees every token", softmax_attention, all_pairs, full_cost)
SOFTMAX_EAGER = Attention("the same, storing the L x L matrix", eager_attention, all_pairs, full_cost)
