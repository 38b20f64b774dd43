"""Clusters of equal size by a k-d tree (Bentley 1975) in the principal axes of a head's keys.

The axes are found once for a head, from every so manyth of its keys: subspace iteration from sums of these keys. Each
node of the tree is split at the median along the axis in which its own members vary most. So a level of the tree is
some ten operations, for all sequences, heads and nodes at once. Nothing is drawn: a seed changes nothing.

How many tokens every node has follows from the lengths alone: `make_plan` says on the host, for each place of a level,
from which place of the level above it comes, and is kept for the next layer.
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.rows import first_rows, tokens_first

ITERATIONS = 2  # of the subspace; each takes two products for an axis and sampled key
SAMPLE = (8, 4)  # keys sampled: n / 4, at least 8, at most 4 sqrt(n)
FEWEST = 4  # axes used: n / 10, at least FEWEST, at most those that are asked for
RIDGE = 1e-6  # of a column's square; what is left of a direction below that is rounding


class Level(NamedTuple):
    """The nodes of a level, all sequences' in one form: (batch, 1, nodes, places), the last place always empty."""

    empty: Tensor  # bool, places without a token
    members: Tensor  # (batch, 1, nodes, 1) float32, tokens of each node, at least 1
    source: Tensor  # (batch, 1, nodes * places) the place on the level above, after its nodes were sorted


class Plan(NamedTuple):
    """What follows from the numbers of tokens and the sizes of clusters."""

    sample: Tensor  # (batch, 1, keys) ranks among a sequence's tokens; its number of tokens for none
    sampled: Tensor  # (batch, 1, keys, 1) float32: 1 for a key, 0 for none
    number: Tensor  # (batch, 1, 1, 1) float32, keys sampled, at least 1
    groups: Tensor  # (batch, 1, axes, keys) float32: 1 where a key belongs to the sum in which an axis begins
    levels: tuple[Level, ...]  # the first is the root, the last has the clusters
    leaves: Tensor | None  # (batch, 1, clusters, 1) the node of each cluster; None where every node is one


def sample_size(n: int) -> int:
    """How many of n keys the axes are found from."""
    least, most = SAMPLE
    return min(n, max(least, min(math.isqrt(most**2 * n), n // 4)))


def axes_used(n: int, n_axes: int) -> int:
    """How many of `n_axes` axes n keys are split along."""
    return min(n_axes, max(FEWEST, n // 10))


def first_rank(level: int, n: Tensor, leaves: Tensor, depth: Tensor) -> Tensor:
    """Rank of the first member of each node of a level, and n: (batch, 2 ** level + 1).

    A finished leaf stays in its first descendant.
    """
    node = torch.arange(2**level + 1, device=n.device)
    leaf = ((node << depth[:, None]) + 2**level - 1) >> level
    return leaf.minimum(leaves[:, None]) * n[:, None] // leaves[:, None]


def deal(level: int, n: Tensor, leaves: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """Which places of a level's node go to each of its two children.

    Returns:
        The first of the places and how many they are: (batch, 2 ** (level + 1)) each.
    """
    above, below = (first_rank(x, n, leaves, depth) for x in (level, level + 1))
    return below[:, :-1] - above[:, :-1].repeat_interleave(2, dim=1), below.diff()


@lru_cache(maxsize=4)  # a batch is the same in all layers; a plan takes some hundred bytes a token
def make_plan(counts: tuple[int, ...], sizes: tuple[int, ...], n_axes: int, device: torch.device) -> Plan:
    """For sequences of `counts` tokens in clusters of at most `sizes`."""
    n, size = torch.tensor(counts, device="cpu"), torch.tensor(sizes, device="cpu")
    wanted = torch.tensor([sample_size(count) for count in counts], device="cpu")[:, None]
    number = torch.arange(max(1, int(wanted.max())), device="cpu")
    sampled = number < wanted
    sample = torch.where(sampled, number * n[:, None] // wanted.clamp(min=1), n[:, None])
    leaves = (-(-n // size)).clamp(min=1)
    depth = torch.ceil(torch.log2(leaves.double())).long()
    first, members = torch.zeros_like(n)[:, None], n[:, None]
    levels = []
    above = 1
    for level in range(int(depth.max()) + 1):
        if level:
            first, members = deal(level - 1, n, leaves, depth)
        place = torch.arange(int(members.max()) + 1, device="cpu")
        empty = place >= members[..., None]
        parent = torch.arange(members.shape[1], device="cpu")[:, None] // 2 * above
        source = torch.where(empty, parent + above - 1, parent + first[..., None] + place).flatten(1)
        parts = empty[:, None], members[:, None, :, None].clamp(min=1).float(), source[:, None]
        levels.append(Level(*(part.to(device) for part in parts)))
        above = len(place)
    deepest = int(depth.max())
    slot = torch.arange(int(leaves.max()), device="cpu") << (deepest - depth)[:, None]
    slot = slot.clamp(max=2**deepest - 1)  # behind a sequence's leaves: an empty node
    every = torch.equal(slot, torch.arange(2**deepest, device="cpu").expand(len(slot), -1))
    axes = torch.tensor([axes_used(count, n_axes) for count in counts], device="cpu")[:, None, None]
    # An axis begins in the sum of every (axes + 1)th key. The sums of all groups are 0 together: the last has no axis.
    axis = torch.arange(int(axes.max()), device="cpu")[:, None]
    groups = (number % (axes + 1) == axis) & (axis < axes) & sampled[:, None]
    tables = sampled[..., None], wanted[..., None].clamp(min=1), groups
    sampled, wanted, groups = (table[:, None].float().to(device) for table in tables)
    leaf = None if every else slot[:, None, :, None].to(device)
    return Plan(sample[:, None].to(device), sampled, wanted, groups, tuple(levels), leaf)


def principal_axes(rows: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Columns (..., dim, axes) of length 1 at right angles along which rows vary most, approximately; and their mean.

    rows: (..., n, dim) float32, zeros where there is none. A column without a group, or in which nothing is left but
    rounding, is 0, or shorter.
    """
    mean = rows.sum(-2, keepdim=True) / plan.number
    rows = (rows - mean) * plan.sampled
    rows = rows / rows.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    axes = (plan.groups @ rows).mT
    for _ in range(ITERATIONS):
        axes = at_right_angles(rows.mT @ (rows @ axes))
    return axes, mean


def at_right_angles(columns: Tensor) -> Tensor:
    """Columns (..., dim, n) made orthonormal by a Cholesky factor of their products, which a GPU does in batches."""
    products = columns.mT @ columns
    products.diagonal(dim1=-2, dim2=-1).mul_(1 + RIDGE).add_(torch.finfo(products.dtype).tiny)
    factor = torch.linalg.cholesky_ex(products).L
    return torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)


def axes_tree(rows: Tensor, mask: Tensor, size: int | Tensor, n_axes: int) -> Tensor:
    """Clusters of at most `size` tokens, ceil(n / size) of them for n tokens, whose sizes differ by one at most.

    Args:
        rows: (batch, heads, length, dim) float32.
        mask: (batch, heads, length) bool, as many True in each head of a sequence; only those are dealt out.
        size: one for all, or (batch,) one for each sequence.
        n_axes: at most dim are used, and fewer for few tokens (`axes_used`).
    Returns:
        (batch, heads, clusters, members) positions; `length` in places without a token. A sequence that needs fewer
        clusters than another one of the batch has empty ones at the end.
    """
    batch, heads, length, dim = rows.shape
    counts = tuple(mask[:, 0].sum(-1).tolist())
    sizes = size.tolist() if isinstance(size, Tensor) else [size] * batch
    # A decorator would import torch's compiler, which takes two seconds, with the package.
    build = torch.compiler.disable(make_plan) if torch.compiler.is_compiling() else make_plan
    plan = build(counts, tuple(sizes), min(n_axes, dim), rows.device)
    first = first_rows(batch, heads, length, rows.device)
    order = F.pad(tokens_first(mask), (0, 1), value=length) + first.squeeze(-1)
    sample = order.gather(2, plan.sample.expand(-1, heads, -1))
    axes, mean = principal_axes(F.pad(rows, (0, 0, 0, 1)).view(-1, dim)[sample], plan)
    along = (rows - mean) @ axes
    table = F.pad(torch.cat([along, along.square()], dim=-1), (0, 0, 0, 1)).flatten(0, 2)
    nodes = order[:, :, None, : plan.levels[0].empty.shape[-1]]
    for level, below in pairwise(plan.levels):
        # (batch, heads, nodes, places, 2 * axes); selected, since indexing takes eight times as long on a CPU
        inside = table.index_select(0, nodes.flatten()).view(*nodes.shape, -1)
        sums, squares = inside.sum(3).chunk(2, dim=-1)
        axis = squares.addcdiv(sums.square(), level.members, value=-1).argmax(-1)
        values = inside.gather(4, axis[..., None, None].expand(*nodes.shape, 1)).squeeze(4)
        places = values.masked_fill(level.empty, torch.inf).argsort(dim=-1, stable=True)
        ordered = nodes.gather(3, places).flatten(2)
        nodes = ordered.gather(2, below.source.expand(-1, heads, -1)).unflatten(2, below.empty.shape[2:])
    if plan.leaves is not None:
        nodes = nodes.gather(2, plan.leaves.expand(-1, heads, -1, nodes.shape[3]))
    return nodes[..., :-1] - first
