"""Nyström attention (Xiong et al. 2021, "Nyströmformer", equations 12 to 16): all keys, through a few landmarks.

    softmax(Q K~^T) pinv(softmax(Q~ K~^T)) softmax(Q~ K^T) V

Q~ and K~ are the means of `num_landmarks` segments of the sequence. The pseudo-inverse is found by iteration. Cost and
memory are linear in the length. Padding is in no segment. With `conv_kernel_size` a depth-wise convolution of the
values is added (`convolution`).

A sequence of at most `num_landmarks` tokens has softmax attention itself, as in the original.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.convolution import add_convolution
from albert_lsh.attention.definition import Attention, Budget
from albert_lsh.attention.rows import MASKED, count_tokens, largest, per_sequence, token_mask
from albert_lsh.attention.softmax import all_pairs, softmax_attention


def segment_means(rows: Tensor, segment: Tensor, count: int) -> Tensor:
    """Means of the rows (batch, heads, length, dim) of each segment: (batch, heads, count, dim), float32.

    segment: (batch, length), the segment of each token; `count` for padding.
    """
    batch, heads, _, dim = rows.shape
    sums = rows.new_zeros(batch, heads, count + 1, dim, dtype=torch.float32)
    index = segment[:, None, :, None].expand(batch, heads, -1, dim)
    size = rows.new_zeros(batch, count + 1, dtype=torch.float32)
    size = size.scatter_add(1, segment, torch.ones_like(segment).float())
    return sums.scatter_add(2, index, rows.float())[:, :, :count] / size[:, None, :count, None].clamp(min=1)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Moore-Penrose inverse of (..., n, n) by a third-order iteration (equation 11 of the paper).

    Begins with A^T / (|A|_1 |A|_inf) as for a matrix whose rows add up to one.
    """
    identity = torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
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
    n_tokens, most = count_tokens(query, padding_mask), largest(num_landmarks)
    few = (n_tokens <= num_landmarks)[:, None, None, None]
    if few.all():
        exact = softmax_attention(query, key, value, padding_mask, scaling=scaling, dropout=dropout)
        return add_convolution(exact, value, conv_kernel_size, conv_weight)
    mask = token_mask(query, padding_mask)[:, 0]
    rank, number = mask.cumsum(-1) - 1, per_sequence(num_landmarks, 2)
    segment = (rank * number // n_tokens[:, None].clamp(min=1)).clamp(max=most).masked_fill(~mask, most)
    mean_query, mean_key = (segment_means(rows, segment, most) for rows in (query, key))
    unused = (torch.arange(most, device=query.device) >= number)[..., None, None, :]  # (batch or 1, 1, 1, landmarks)
    with torch.autocast(query.device.type, enabled=False):
        to_landmarks = mean_key.transpose(-1, -2) * scaling
        first = (query.float() @ to_landmarks).masked_fill(unused, MASKED).softmax(-1)
        middle = (mean_query @ to_landmarks).masked_fill(unused, MASKED).softmax(-1)
        # Unused landmarks are zero rows. Few tokens leave empty segments, whose matrix has no inverse.
        middle = middle.masked_fill(unused.transpose(-1, -2) | few, 0)
        seen = None if padding_mask is None else padding_mask[:, None, None]
        last = F.scaled_dot_product_attention(mean_query, key.float(), value.float(), attn_mask=seen, scale=scaling)
        out = (F.dropout(first, dropout) @ (pseudo_inverse(middle, pinv_iterations) @ last)).to(query.dtype)
    if few.any():
        exact = softmax_attention(query, key, value, padding_mask, scaling=scaling, dropout=dropout)
        out = torch.where(few, exact, out)
    return add_convolution(out, value, conv_kernel_size, conv_weight)


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """Two keys for a landmark: a query meets it, and it meets a key."""
    left = budget.left(2)
    budget.refuse("num_landmarks", fixed.get("num_landmarks", 1), left // 2)
    return {"num_landmarks": left // 2} | fixed


def cost(length: int, head_dim: int, *, num_landmarks, pinv_iterations, conv_kernel_size=None) -> float:
    """Multiply-adds of one head: three products, the pseudo-inverse and the convolution."""
    if length <= num_landmarks:
        return 2 * length**2 * head_dim
    products = 4 * length * num_landmarks * head_dim + 2 * num_landmarks**2 * head_dim
    return products + 4 * pinv_iterations * num_landmarks**3 + length * head_dim * (conv_kernel_size or 0)


NYSTROM = Attention(
    "Nyströmformer: all keys, through a few landmarks",
    nystrom_attention,
    all_pairs,
    cost,
    settings={"num_landmarks": 64, "pinv_iterations": 6, "conv_kernel_size": None},
    spend=spend,
    spent=("num_landmarks",),
)
