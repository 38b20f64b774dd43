"""Gathered keys: on every device, in every dtype, and with dropout of weights.

Every round gathers the rows of its blocks, a few blocks at a time, so that they stay in the cache and no scores are
stored. From each block's output and log-sum-exp the rounds are merged. In the backward pass the same blocks are
computed with the merged output and log-sum-exp; then their gradients simply add up, and merging needs no gradient.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.masked import Listed
from albert_lsh.attention.rows import MASKED, slices


class Gathered(Listed):
    """A piece is some blocks of a round."""

    def blocks(self, rows: slice, length: int, dim: int) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """The blocks of all rounds for some rows (batch and heads are one), a few keys of `dim` numbers at a time.

        Yields:
            The number of the round; queries and keys (blocks, places), rows of flat tensors, whose last one stands in
            empty places; and the bias (blocks, queries or 1, keys). A pair counts in the first round in which it meets.
        """
        keys = self.keys
        n = rows.stop - rows.start
        offset = torch.arange(n, device=keys.keys.device)[:, None, None] * length
        tables = [narrow(table[rows], keys.keys.shape[2]) for table in keys.clusters or ()]
        for number in range(keys.keys.shape[1]):
            for blocks in slices(keys.keys.shape[2], n * keys.keys.shape[3] * dim, offset.device):
                queries, listed = keys.queries[rows, number, blocks], keys.keys[rows, number, blocks]
                hidden = (listed == length).unsqueeze(-2).to(torch.int8)
                if keys.others_only:
                    hidden = hidden | equal(narrow(queries, length), narrow(listed, length))
                if keys.earlier_only:
                    hidden = hidden | (listed.unsqueeze(-2) > queries.unsqueeze(-1))
                for query_table, key_table in zip(*(table[:, :number].unbind(1) for table in tables), strict=True):
                    hidden = hidden | equal(cluster_of(queries, query_table), cluster_of(listed, key_table))
                bias = hidden.float().mul_(MASKED)
                flat = [(x + offset).masked_fill(x == length, n * length).flatten(0, 1) for x in (queries, listed)]
                yield number, flat[0], flat[1], bias.flatten(0, 1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        (heads, length, dim), width = query.shape, value.shape[2]
        out, total = torch.empty_like(value), query.new_empty(heads, length, dtype=torch.float32)
        self.restart()
        for rows in slices(heads, length * dim, query.device):
            queries, sources = side_by_side(query[rows]), side_by_side(key[rows], value[rows])
            log_sums = query.new_full((self.keys.keys.shape[1], len(queries)), MASKED, dtype=torch.float32)
            outs = query.new_zeros(*log_sums.shape, width, dtype=torch.float32)
            for number, at_query, at_key, bias in self.blocks(rows, length, dim + width):
                (q,), (k, v) = gather(queries, at_query, dim), gather(sources, at_key, dim, width)
                part, log_sum = self.attend(bias, q, k, v)
                outs[number].index_copy_(0, at_query.flatten(), part.flatten(0, 1).float())
                log_sums[number].index_copy_(0, at_query.flatten(), log_sum.flatten())
            merged = log_sums.logsumexp(0)
            outs.mul_((log_sums - merged).exp_().unsqueeze(-1))
            out[rows] = outs.sum(0)[:-1].view(-1, length, width)
            total[rows] = merged[:-1].view(-1, length)
        return out, total

    def backward(self, query, key, value, up, total, delta) -> list[Tensor]:
        (heads, length, dim), width = query.shape, value.shape[2]
        grads = [torch.empty_like(x) for x in (query, key, value)]
        self.restart()
        for rows in slices(heads, length * dim, query.device):
            queries, sources = side_by_side(query[rows], up[rows]), side_by_side(key[rows], value[rows])
            totals = F.pad(total[rows].flatten(), (0, 1), value=-MASKED)  # an empty place gives no weight
            deltas = F.pad(delta[rows].flatten(), (0, 1))
            sums = [torch.zeros(len(queries), n, device=up.device, dtype=torch.float32) for n in (dim, dim, width)]
            for _, at_query, at_key, bias in self.blocks(rows, length, dim + width):
                q, grad_out = gather(queries, at_query, dim, width)
                k, v = gather(sources, at_key, dim, width)
                parts = self.gradients(bias, q, k, v, grad_out, totals[at_query], deltas[at_query])
                for place, index, part in zip(sums, (at_query, at_key, at_key), parts, strict=True):
                    place.index_add_(0, index.flatten(), part.flatten(0, 1).float())
            for grad, place in zip(grads, sums, strict=True):
                grad[rows] = place[:-1].view(-1, length, place.shape[1])
        return grads


def side_by_side(*tensors: Tensor) -> Tensor:
    """(rows, places, dim) each as one flat tensor, dims side by side, and a row of zeros at the end.

    One long row is gathered faster than several short ones.
    """
    flat = tensors[0].new_zeros(tensors[0].shape[0] * tensors[0].shape[1] + 1, sum(x.shape[-1] for x in tensors))
    torch.cat([x.flatten(0, 1) for x in tensors], dim=-1, out=flat[:-1])
    return flat


def gather(flat: Tensor, index: Tensor, *widths: int) -> tuple[Tensor, ...]:
    """Rows of a flat tensor at (blocks, places), apart again: (blocks, places, width) each."""
    return flat.index_select(0, index.flatten()).view(*index.shape, -1).split(widths, dim=-1)


def cluster_of(positions: Tensor, table: Tensor) -> Tensor:
    """The entry of each position (n, ...) in a table (n, length + 1)."""
    return table.gather(1, positions.flatten(1)).view_as(positions)


def narrow(numbers: Tensor, most: int) -> Tensor:
    """Whole numbers from -2 to `most`, in as few bytes as hold them: so they are compared quickly."""
    return numbers.to(next(dtype for dtype in (torch.int8, torch.int16, torch.int32) if most <= torch.iinfo(dtype).max))


def equal(a: Tensor, b: Tensor) -> Tensor:
    """1 where a number of a (..., n) is equal to one of b (..., m), else 0: (..., n, m), in their dtype.

    `==` of a number and a row takes ten times as long on a CPU (measured: 0.14 ms for 16 x 128 x 128 bytes).
    """
    return (a.unsqueeze(-1) ^ b.unsqueeze(-2)).eq_(0)
