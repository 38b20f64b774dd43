"""The nearest positions of a query, padding not counted."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import Blocks, count_tokens, look_up, places

BLOCK = 64  # queries, at least, that look for their windows together


class Window(NamedTuple):
    """For every query a range of tokens around it, padding not counted.

    At the ends of the sequence the range is moved inwards, so that every query has all `width` of them.
    """

    position: Tensor  # (rows, length + 1): number of each token; behind all ranges for padding and "no token"
    start: Tensor  # (rows, length + 1): number of the first token in a query's range
    width: Tensor  # (rows, 1)

    def covers(self, rows: slice, query_index: Tensor, key_index: Tensor) -> Tensor:
        """Whether the range of a query holds a key, for positions (rows, ...) that broadcast."""
        distance = look_up(self.position[rows], key_index) - look_up(self.start[rows], query_index)
        width = self.width[rows].view(-1, *[1] * (distance.dim() - 1))
        return (distance >= 0) & (distance < width)

    def keys(self, rows: slice, query_index: Tensor, number_in: Tensor, nothing: int) -> Tensor:
        """The key to which each token of a query's range belongs, for queries (rows, ...): (rows, ..., width).

        number_in: (rows, length + width), the key to which the token of a number belongs; nothing: stands for none.
        """
        step = torch.arange(number_in.shape[1] - self.start.shape[1] + 1, device=query_index.device)
        key = look_up(number_in[rows], look_up(self.start[rows], query_index).unsqueeze(-1) + step)
        return key.masked_fill(step >= self.width[rows].view(-1, *[1] * query_index.dim()), nothing)

    def blocks(self, mask: Tensor) -> Blocks:
        """Neighbouring queries with the keys of all their ranges; mask (batch, heads, length), True where a token is.

        A range begins at most one token after that of the query before, so that `size` queries have together at most
        size + width - 1 keys.
        """
        batch, heads, length = mask.shape
        widest = int(self.width.max())
        size = min(length, max(BLOCK, widest))
        n = mask.sum(-1)
        order = F.pad(places(mask, length).flatten(0, 1), (0, 1), value=length)  # position of each number
        queries = torch.arange(-(-length // size) * size, device=mask.device).view(-1, size)
        first = look_up(order, queries[:, 0].clamp(max=length).expand(batch * heads, -1))
        keys = look_up(self.start, first).unsqueeze(-1) + torch.arange(size + widest - 1, device=mask.device)
        keys = keys.masked_fill(keys >= n.view(-1, 1, 1), length)
        queries = queries.clamp(max=length).expand(batch * heads, -1, -1)
        found = (look_up(order, index).view(batch, heads, 1, *index.shape[1:]) for index in (queries, keys))
        return Blocks(*found)

    def numbered(self, table: Tensor, mask: Tensor, nothing: int) -> Tensor:
        """A table of (rows, length + 1) in the order of the tokens' numbers: (rows, length + width)."""
        order = places(mask, mask.shape[-1]).flatten(0, 1)
        return F.pad(look_up(table, order), (0, int(self.width.max())), value=nothing)


def find_window(query: Tensor, padding_mask: Tensor | None, width: Tensor | int) -> Window:
    """The `width` (a number, or (batch, 1)) tokens around each query; a row for each sequence and head."""
    batch, heads, length, _ = query.shape
    n = count_tokens(query, padding_mask)[:, None]
    width = torch.minimum(torch.as_tensor(width, device=query.device).expand_as(n), n)
    mask = query.new_ones(batch, length, dtype=torch.bool) if padding_mask is None else padding_mask
    number = mask.cumsum(-1) - 1
    start = torch.minimum((number - width // 2).clamp(min=0), n - width)
    number = F.pad(number.masked_fill(~mask, 4 * length), (0, 1), value=4 * length)
    return Window(*(table.repeat_interleave(heads, 0) for table in (number, F.pad(start, (0, 1)), width)))
