"""Tokens in the order of a number, and the highest of many.

On a CPU numpy sorts with vector instructions, on one thread. torch does not, but shares rows among threads.
"""

import torch
from torch import Tensor

from albert_lsh.attention.keys import in_place, is_in_cache, largest, per_sequence

HIGHEST = 2**31 - 1  # of the whole numbers that are sorted
THREADS = 2  # up to which numpy is taken


def numpy_sorts(values: Tensor) -> bool:
    """Whether numpy can, and few threads are there."""
    can = values.dtype in (torch.float32, torch.long) and is_in_cache(values.device)
    return can and torch.get_num_threads() <= THREADS and not torch.compiler.is_compiling()


def argsort(values: Tensor) -> Tensor:
    """Positions of each row's numbers in ascending order, those of equal ones too.

    values: (..., n), no NaN; whole numbers are at most HIGHEST, and at least -HIGHEST.
    """
    if not numpy_sorts(values):
        return values.argsort(dim=-1, stable=True)
    numbers = values.detach()
    if values.is_floating_point():  # read as whole numbers they have the same order, but for the sign
        bits = (numbers + 0.0).view(torch.int32)  # -0.0 is 0.0
        numbers = (bits ^ (bits >> 31 & HIGHEST)).long()
    packed = (numbers << 32 | torch.arange(values.shape[-1], device=values.device)).contiguous()
    packed.numpy().sort(axis=-1)
    return packed & 0xFFFFFFFF


def highest(scores: Tensor, count: int) -> Tensor:
    """Positions of each row's `count` highest scores, at most all, the best first; which of equal ones is arbitrary.

    scores: (..., n) float32; NaN is as high as the highest.
    """
    n = scores.shape[-1]
    if not numpy_sorts(scores):
        return scores.topk(min(count, n), dim=-1).indices
    # A number of float32 leaves 29 bits at the end of a float64; there its position is written. NaN would not keep it.
    numbers = scores.nan_to_num(torch.finfo(torch.float32).max).double()
    packed = numbers.view(torch.long).bitwise_or_(torch.arange(n, device=scores.device))
    numbers.numpy().sort(axis=-1)  # and packed, which is the same memory
    return packed[..., -count:].flip(-1) & 2**29 - 1


def sort_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Positions in ascending order of `values` (batch, heads, rounds, length), those outside of the mask last.

    mask: (batch, heads, length) bool. Ties keep their order.
    """
    last = torch.inf if values.is_floating_point() else HIGHEST
    return argsort(values.masked_fill(~mask.unsqueeze(2), last))


def tokens_first(mask: Tensor) -> Tensor:
    """The positions of tokens in their order, `length` behind the last: (batch, heads, length), as is the mask."""
    return in_place(mask).squeeze(-1).sort(dim=-1).values


def best(scores: Tensor, mask: Tensor, count: Tensor | int) -> Tensor:
    """Positions of the `count` highest scores of each row, best first; `length` where the mask leaves fewer.

    Args:
        scores: (batch, heads, ..., length). mask: bool, broadcasts to it. count: one number, or (batch,).
    Returns:
        (batch, heads, ..., largest count), long.
    """
    length = scores.shape[-1]
    values, positions = scores.masked_fill(~mask, -torch.inf).topk(min(largest(count), length), dim=-1)
    return beyond(positions.masked_fill(values == -torch.inf, length), count, length)


def beyond(chosen: Tensor, count: Tensor | int, nothing: int) -> Tensor:
    """Choices (batch, ..., n), best first, with `nothing` behind the first `count`: one number, or (batch,)."""
    if not isinstance(count, Tensor):
        return chosen[..., :count]
    rank = torch.arange(chosen.shape[-1], device=chosen.device)
    return chosen.masked_fill(rank >= per_sequence(count, chosen.dim()), nothing)
