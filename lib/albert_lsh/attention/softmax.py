"""Softmax attention (Vaswani et al. 2017, section 3.2.1), the baseline.

    out_i = sum over j of softmax_j(scaling q_i . k_j) v_j

`softmax` takes torch's fused kernels; `softmax-eager` stores the L x L matrix, as implementations of 2020 did.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.core import Attention
from albert_lsh.attention.rows import MASKED, product

# Tokens up to which torch's fused backward takes longer than plain products in bfloat16. With 12 heads of 64 and 32
# sequences of 30 tokens forward and backward take five times as long, with 16 of 200 tokens 1.8 times (one core of an
# AMD EPYC with AVX512-BF16). In float32 the fused ones are the faster.
SLOW_LENGTH = 256


class SoftmaxEager(Attention):
    name = "softmax-eager"
    description = "the same, storing the L x L matrix"

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """Step by step, as ALBERT's first implementations had it: the matrix of weights is kept for backward."""
        scores = product(query, key.transpose(-1, -2)).float() * scaling  # (batch, heads, length, length)
        if padding_mask is not None:
            scores = scores.masked_fill(~padding_mask[:, None, None, :], MASKED)
        return F.dropout(scores.softmax(-1).to(query.dtype), dropout) @ value


class Softmax(SoftmaxEager):
    name = "softmax"
    description = "every token sees every token"

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator=None) -> Tensor:
        """`torch.nn.functional.scaled_dot_product_attention`; step by step where that is faster."""
        trains = torch.is_grad_enabled() and query.requires_grad
        if trains and query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.shape[2] <= SLOW_LENGTH:
            options = {"scaling": scaling, "dropout": dropout, "generator": generator}
            return super().compute(query, key, value, padding_mask, **options)
        mask = None if padding_mask is None else padding_mask[:, None, None, :]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
