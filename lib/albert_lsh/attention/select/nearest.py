"""The nearest positions; padding is not counted."""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.rows import cut, look_up, per_sequence, places


def neighbours(mask: Tensor, size: int | Tensor) -> Tensor:
    """Blocks of at most `size` neighbouring tokens: (batch, heads, blocks, places) positions, `length` for none.

    mask: (batch, heads, length) bool, True where there is a token. size: one number, or (batch,).
    """
    order = places(mask, mask.shape[-1]).unsqueeze(2)
    return cut(order, mask[:, 0].sum(-1), size).squeeze(2)


def nearest(mask: Tensor, blocks: Tensor, span: int | Tensor) -> Tensor:
    """The `span` tokens around each block of `neighbours`, the block among them.

    At the ends of a sequence the range moves inwards, so that it keeps its length.

    Args:
        mask: (batch, heads, length) bool. blocks: (batch, heads, blocks, places).
        span: at least as many as a block has; one number, or (batch,).
    Returns:
        (batch, heads, blocks, largest span) positions, `length` for none.
    """
    length, n = mask.shape[-1], mask.sum(-1)[..., None]  # (batch, heads, 1)
    number = F.pad((mask.cumsum(-1) - 1).masked_fill(~mask, 0), (0, 1))
    order = F.pad(places(mask, length), (0, 1), value=length)
    size = (blocks < length).sum(-1)  # (batch, heads, blocks)
    span = torch.as_tensor(per_sequence(span, 3), device=mask.device).minimum(n)
    start = (look_up(number, blocks[..., 0]) - (span - size + 1) // 2).clamp(min=0).minimum(n - span)
    step = torch.arange(max(1, int(span.max())), device=mask.device)
    absent = (step >= span.unsqueeze(-1)) | (size == 0).unsqueeze(-1)
    return look_up(order, (start.unsqueeze(-1) + step).clamp(max=length).masked_fill(absent, length))
