"""Keys that every query of a head sees, found from the data.

A score is mean(q).k + (q - mean(q)).k. The first part is the same for all queries. In a pretrained encoder it is large
for a few keys, mostly the special tokens.
"""

import torch
from torch import Tensor

from albert_lsh.attention.rows import best, largest


def global_tokens(query: Tensor, key: Tensor, mask: Tensor, count: int | Tensor) -> tuple[Tensor, Tensor]:
    """The `count` keys that the mean query scores highest.

    Args:
        query, key: (batch, heads, length, head_dim) float32. mask: (batch, heads, length) bool, True for tokens.
        count: one number, or (batch,).
    Returns:
        Their positions (batch, heads, largest count), `length` where there are fewer; and (batch, heads, length) bool,
        True for them.
    """
    if not largest(count):
        return torch.zeros_like(mask[..., :0], dtype=torch.long), torch.zeros_like(mask)
    total = (query * mask.unsqueeze(-1)).sum(2)  # the mean times the number of tokens, which has the same order
    positions = best(torch.einsum("bhd,bhld->bhl", total, key), mask, count)
    chosen = torch.zeros(*mask.shape[:2], mask.shape[2] + 1, dtype=torch.bool, device=mask.device)
    return positions, chosen.scatter(2, positions, True)[..., :-1]
