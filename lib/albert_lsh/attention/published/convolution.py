"""A depth-wise convolution of the values over the sequence, added to what an attention gives out.

    out_i + sum over |d| <= size // 2 of weight[head, d + size // 2] * value_(i + d)

Nyströmformer (Xiong et al. 2021) and YOSO (Zeng et al. 2021) have one, a filter a head and no bias; in YOSO it is added
behind the scaling to unit length. Padding counts as zeros. The originals draw the weights; here they begin at zero, so
that a pretrained model that is given such an attention computes at first what it would without.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_lsh.attention.core import Attention
from albert_lsh.attention.rows import clear_padding


class Convolution(nn.Module):
    """The weights as a part of a model: (heads, size), zeros."""

    def __init__(self, heads: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, size))


class Convolved(Attention):
    """An attention with the setting conv_kernel_size: a convolution of the values is added, unless it is None."""

    def attend(self, query, key, value, padding_mask, *, conv_weight: Tensor | None = None, **options) -> Tensor:
        """conv_weight: (heads, conv_kernel_size)."""
        out = super().attend(query, key, value, padding_mask, **options)
        size: int | None = self.conv_kernel_size  # type: ignore[attr-defined]
        return clear_padding(add_convolution(out, clear_padding(value, padding_mask), size, conv_weight), padding_mask)


def add_convolution(out: Tensor, value: Tensor, size: int | None, weight: Tensor | None) -> Tensor:
    """What an attention gives out and the convolution of the values; size None: nothing is added.

    Args:
        out, value: (batch, heads, length, head_dim); values of padding are zeros.
        size: of the kernel, an odd number of positions.
        weight: (heads, size), of any floating dtype.
    Returns:
        Shape and dtype of out.
    Raises:
        ValueError: weight has another shape, is missing, or is there without a size.
    """
    expected = None if size is None else (value.shape[1], size)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else weight
    if shape != expected:
        raise ValueError(
            f"conv_kernel_size={size} needs conv_weight of shape (heads, conv_kernel_size) = {expected}; got {shape}"
        )
    if size is None or weight is None:
        return out
    filters = weight.to(value.dtype)[:, None, :, None]  # (heads, 1, size, 1)
    mixed = F.conv2d(value, filters, padding=(size // 2, 0), groups=len(filters))
    return out + mixed.to(out.dtype)
