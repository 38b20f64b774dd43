"""Softmax attention (Vaswani et al. 2017, section 3.2.1), the baseline.

    out_i = sum over j of softmax_j(scaling q_i . k_j) v_j

`softmax` takes torch's fused kernels; `softmax-eager` stores the L x L matrix, as implementations of 2020 did.
`attend_nearby` is softmax within a window, for the local layers that some encoders have; no name of ours has it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.core import Attention
from albert_lsh.attention.rows import MASKED, clear_padding, product

# Tokens up to which torch's fused backward takes longer than plain products in bfloat16. With 12 heads of 64 and 32
# sequences of 30 tokens forward and backward take five times as long, with 16 of 200 tokens 1.8 times (one core of an
# AMD EPYC with AVX512-BF16). In float32 the fused ones are the faster.
SLOW_LENGTH = 256


# Queries in a block of `attend_nearby`, at least: of smaller ones there would be too many.
LEAST_BLOCK = 64


def step_by_step(query, key, value, mask: Tensor | None, *, scaling: float, dropout: float) -> Tensor:
    """Softmax, its matrix of weights being kept for backward; mask: bool, broadcast to (batch, heads, length, keys)."""
    scores = product(query, key.transpose(-1, -2)).float() * scaling  # (batch, heads, length, keys)
    if mask is not None:
        scores = scores.masked_fill(~mask, MASKED)
    return F.dropout(scores.softmax(-1).to(query.dtype), dropout) @ value


def fused(query, key, value, mask: Tensor | None, *, scaling: float, dropout: float) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`; step by step where that is faster. mask as there."""
    trains = torch.is_grad_enabled() and query.requires_grad
    if trains and query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.shape[2] <= SLOW_LENGTH:
        return step_by_step(query, key, value, mask, scaling=scaling, dropout=dropout)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)


def attend_nearby(
    query, key, value, padding_mask: Tensor | None, distance: int, *, scaling: float, dropout: float
) -> Tensor:
    """Softmax over the keys at most `distance` positions away, in memory linear in the length.

    Queries are taken in blocks of at least `distance`; a block sees its own keys and those of the blocks beside it.
    Of a sequence of up to three blocks all scores are computed. (The control `window` counts keys, and neighbouring
    queries share them: it is not this.)

    Args:
        query, key, value: (batch, heads, length, head_dim).
        padding_mask: (batch, length) bool, True where there is a token; None where nothing is padded.
    Returns:
        (batch, heads, length, head_dim); rows of padding are zero, whatever stands there.
    """
    query, key, value = (clear_padding(x, padding_mask) for x in (query, key, value))
    batch, _, length, _ = query.shape
    size = max(distance, LEAST_BLOCK)
    tokens = query.new_ones(batch, length, dtype=torch.bool) if padding_mask is None else padding_mask
    position = torch.arange(max(length, 3 * size), device=query.device)
    if length <= 3 * size:
        apart = (position[:length, None] - position[:length]).abs()
        mask = (tokens[:, None, None] & (apart <= distance)) | (apart == 0)  # a row of padding sees itself
        return clear_padding(fused(query, key, value, mask, scaling=scaling, dropout=dropout), padding_mask)
    blocks = -(-length // size)
    rest = blocks * size - length
    apart = (position[:size, None] + size - position[: 3 * size]).abs()  # the keys of a block begin a block earlier
    seen = F.pad(tokens, (size, size + rest)).unfold(1, 3 * size, size)  # (batch, blocks, 3 * size)
    mask = (seen.unsqueeze(2) & (apart <= distance)) | (apart == 0)  # (batch, blocks, size, 3 * size)
    queries = F.pad(query, (0, 0, 0, rest)).unflatten(2, (blocks, size)).transpose(1, 2).flatten(0, 1)
    keys, values = (
        F.pad(x, (0, 0, size, size + rest)).unfold(2, 3 * size, size).permute(0, 2, 1, 4, 3).flatten(0, 1)
        for x in (key, value)
    )  # (batch * blocks, heads, 3 * size, head_dim)
    out = fused(queries, keys, values, mask.flatten(0, 1).unsqueeze(1), scaling=scaling, dropout=dropout)
    return clear_padding(out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length], padding_mask)


def among_tokens(padding_mask: Tensor | None) -> Tensor | None:
    """A mask for all queries: (batch, 1, 1, length)."""
    return None if padding_mask is None else padding_mask[:, None, None, :]


class SoftmaxEager(Attention):
    name = "softmax-eager"
    description = "the same, storing the L x L matrix"

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """Step by step, as ALBERT's first implementations had it."""
        return step_by_step(query, key, value, among_tokens(padding_mask), scaling=scaling, dropout=dropout)


class Softmax(SoftmaxEager):
    name = "softmax"
    description = "every token sees every token"

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator=None) -> Tensor:
        return fused(query, key, value, among_tokens(padding_mask), scaling=scaling, dropout=dropout)
