"""Nyström attention (Xiong et al. 2021, "Nyströmformer", equations 12 to 16): every key, by way of a few landmarks.

    softmax(Q K~^T) pinv(softmax(Q~ K~^T)) softmax(Q~ K^T) V

Q~ and K~ are the means of `num_landmarks` segments of the sequence; the pseudo-inverse is found by iteration. Cost and
memory are linear in the length. Padding is in no segment. With `conv_kernel_size` a depth-wise convolution of the
values is added (`convolution`).

A sequence of at most `num_landmarks` tokens has softmax attention itself, as in the original: batches are padded to
their longest sequence, so a short one, or a batch of short ones, is no mistake. `load_model` and `Parameters.check`
refuse more landmarks than any sequence can have tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import count_tokens, token_mask
from albert_lsh.attention.convolution import add_convolution
from albert_lsh.attention.softmax import softmax_attention


def segment_means(rows: Tensor, segment: Tensor, count: int) -> Tensor:
    """Means of the rows (batch, heads, length, dim) of each segment: (batch, heads, count, dim), float32.

    segment: (batch, length), the segment of each token; `count` for padding.
    """
    batch, heads, _, dim = rows.shape
    sums = rows.new_zeros(batch, heads, count + 1, dim, dtype=torch.float32)
    index = segment[:, None, :, None].expand(batch, heads, -1, dim)
    size = torch.zeros(batch, count + 1, device=rows.device).scatter_add(1, segment, torch.ones_like(segment).float())
    return sums.scatter_add(2, index, rows.float())[:, :, :count] / size[:, None, :count, None].clamp(min=1)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Moore-Penrose inverse of (..., n, n) by a third-order iteration (equation 11 of the paper).

    Begins with A^T / (|A|_1 |A|_inf) as for a matrix whose rows add up to one.
    """
    identity = torch.eye(matrix.shape[-1], device=matrix.device)
    inverse = matrix.transpose(-1, -2) / matrix.sum(-2).amax(-1)[..., None, None].clamp(min=1e-12)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return inverse


def nystrom_attention(
    query,
    key,
    value,
    padding_mask=None,
    *,
    scaling,
    dropout=0.0,
    generator=None,
    num_landmarks,
    pinv_iterations,
    conv_kernel_size=None,
    conv_weight=None,
) -> Tensor:
    """Attention by way of landmarks; shapes as everywhere, landmarks and pseudo-inverse in float32.

    dropout: probability with which the weight that a query gives a landmark is dropped.
    conv_weight: (heads, conv_kernel_size), of the convolution.
    """
    n_tokens = count_tokens(query, padding_mask)
    few = (n_tokens <= num_landmarks)[:, None, None, None]
    mask = token_mask(query, padding_mask)[:, 0]
    rank = mask.cumsum(-1) - 1
    segment = (rank * num_landmarks // n_tokens[:, None].clamp(min=1)).masked_fill(~mask, num_landmarks)
    mean_query, mean_key = (segment_means(rows, segment, num_landmarks) for rows in (query, key))
    with torch.autocast(query.device.type, enabled=False):
        first = (query.float() @ mean_key.transpose(-1, -2) * scaling).softmax(-1)
        middle = (mean_query @ mean_key.transpose(-1, -2) * scaling).softmax(-1)
        middle = middle.masked_fill(few, 0)  # with empty segments it has no inverse, and many iterations overflow
        seen = None if padding_mask is None else padding_mask[:, None, None]
        last = F.scaled_dot_product_attention(mean_query, key.float(), value.float(), attn_mask=seen, scale=scaling)
        out = (F.dropout(first, dropout) @ (pseudo_inverse(middle, pinv_iterations) @ last)).to(query.dtype)
    if few.any():
        exact = softmax_attention(query, key, value, padding_mask, scaling=scaling, dropout=dropout)
        out = torch.where(few, exact, out)
    return add_convolution(out, value, conv_kernel_size, conv_weight)
