"""Keys that every query of a head sees, found from the data: for `lsh` and for its controls.

A score is mean(q).k + (q - mean(q)).k. The first part is the same for all queries, and in a pretrained encoder it is
large for a few keys, mostly the special tokens; those that it ranks highest are wanted by all.
"""

import torch
from torch import Tensor

from albert_lsh.attention.compute.blocks import Blocks, highest, places
from albert_lsh.attention.compute.parts import Part


def wanted_by_all(query: Tensor, key: Tensor, mask: Tensor, count: int) -> Tensor:
    """The `count` keys that the mean query scores highest: (batch, heads, length) bool.

    query, key: (batch, heads, length, head_dim) float32; mask: (batch, heads, length) bool, True for tokens.
    """
    mean = (query * mask.unsqueeze(-1)).sum(2)  # times the number of tokens, which changes no order
    score = torch.einsum("bhd,bhld->bhl", mean, key)
    return highest(score, mask, count)


def seen_by_all(mask: Tensor, everybodys: Tensor, count: int) -> Part:
    """All queries, as one block, see the keys that are everybody's."""
    queries = places(mask, mask.shape[-1])
    return Part(Blocks(queries[:, :, None, None], places(everybodys, count)[:, :, None, None]))
