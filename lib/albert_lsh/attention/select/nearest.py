"""The nearest positions; padding is not counted."""

import torch
from torch import Tensor

from albert_lsh.attention.rows import cut, largest, look_up, per_sequence, places


def neighbours(mask: Tensor, size: int | Tensor) -> Tensor:
    """Blocks of at most `size` neighbouring tokens: (batch, heads, blocks, places) positions, `length` for none.

    mask: (batch, heads, length) bool, True where there is a token. size: one number, or (batch,).
    """
    order = places(mask, mask.shape[-1]).unsqueeze(2)
    return cut(order, mask[:, 0].sum(-1), size).squeeze(2)


def nearest(mask: Tensor, blocks: Tensor, width: int | Tensor) -> Tensor:
    """The tokens nearest to each block of `neighbours`: `width` around each of its queries.

    A block of s queries sees s + width - 1 tokens. At the ends of a sequence the range moves inwards, so that it keeps
    its length.

    Args:
        mask: (batch, heads, length) bool. blocks: (batch, heads, blocks, places). width: one number, or (batch,).
    Returns:
        (batch, heads, blocks, most tokens of a block) positions, `length` for none.
    """
    length, n = mask.shape[-1], mask.sum(-1)[..., None]  # (batch, heads, 1)
    number = (mask.cumsum(-1) - 1).masked_fill(~mask, 0)
    number = torch.cat([number, number.new_zeros(*number.shape[:2], 1)], dim=-1)
    order = torch.cat([places(mask, length), number.new_full((*number.shape[:2], 1), length)], dim=-1)
    size = (blocks < length).sum(-1)  # (batch, heads, blocks)
    width = per_sequence(width, 3)
    span = (size + width - 1).minimum(n)
    start = (look_up(number, blocks[..., 0]) - width // 2).clamp(min=0).minimum(n - span)
    step = torch.arange(min(blocks.shape[3] + largest(width) - 1, length), device=mask.device)
    absent = (step >= span.unsqueeze(-1)) | (size == 0).unsqueeze(-1)
    return look_up(order, (start.unsqueeze(-1) + step).clamp(max=length).masked_fill(absent, length))
