"""A balanced tree of median splits: clusters of equal size whose members are alike in many directions, not in one.

Every node is split along the leading direction of its own members, found by power iteration, so that no
eigen-decomposition is needed. log2(clusters) levels, each linear in the length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.clusters import places, take
from albert_lsh.attention.hashing import draw_directions

POWER_STEPS = 3  # each costs two products a token and level


def tree(rows: Tensor, mask: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    """Clusters of at most `size` tokens, ceil(n / size) of them for n tokens, whose sizes differ by one at most.

    Args:
        rows: (batch, heads, length, dim) float32.
        mask: (batch, heads, length) bool, as many True in each head of a sequence; only those are dealt out.
    Returns:
        (batch, heads, clusters, members) positions; `length` in places without a token.
    """
    n = mask[:, 0].sum(-1)
    leaves = (-(-n // size)).clamp(min=1)
    depth = torch.ceil(torch.log2(leaves.double())).long()
    deepest = int(depth.max())
    start = draw_directions(rows.shape[1], rows.shape[3], 1, generator).to(rows.device)
    nodes = places(mask, mask.shape[-1]).unsqueeze(2)
    for level in range(deepest):
        children = deal(level, n, leaves, depth)
        nodes = take_children(sort_members(nodes, rows, start), *children, nothing=rows.shape[2])
    leaf = torch.arange(int(leaves.max()), device=rows.device)
    slot = (leaf << (deepest - depth)[:, None]).clamp(max=nodes.shape[2] - 1)  # behind a sequence's leaves: empty
    return nodes.gather(2, slot[:, None, :, None].expand(-1, nodes.shape[1], -1, nodes.shape[3]))


def sort_members(nodes: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    """The members (batch, heads, nodes, places) of each node along its leading direction, empty places last."""
    there = (nodes < rows.shape[2]).unsqueeze(-1)
    inside = take(rows, nodes)
    inside = (inside - inside.sum(3, keepdim=True) / there.sum(3, keepdim=True).clamp(min=1)) * there
    # Sums of products: so many matrices of a few rows are slow to multiply one by one.
    along = (inside * start.unsqueeze(1)).sum(-1, keepdim=True)  # (batch, heads, nodes, places, 1)
    for _ in range(POWER_STEPS):
        direction = F.normalize((inside * along).sum(-2, keepdim=True), dim=-1)
        along = (inside * direction).sum(-1, keepdim=True)
    order = along.masked_fill(~there, torch.inf).squeeze(-1).argsort(dim=-1, stable=True)
    return nodes.gather(-1, order)


def first_rank(level: int, n: Tensor, leaves: Tensor, depth: Tensor) -> Tensor:
    """Rank of the first member of each node of a level, and n: (batch, 2 ** level + 1).

    A sequence whose leaves lie on a level above this one has each in the first of the nodes below it.
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


def take_children(nodes: Tensor, first: Tensor, size: Tensor, nothing: int) -> Tensor:
    """Cut every node of (batch, heads, nodes, places) in two; `nothing` stands in places without a token."""
    place = torch.arange(int(size.max()), device=nodes.device)
    parent = torch.arange(size.shape[1], device=nodes.device) // 2
    empty = (place >= size[..., None])[:, None].expand(-1, nodes.shape[1], -1, -1)
    index = (parent * nodes.shape[3] + first)[:, None, :, None] + place
    index = index.expand_as(empty).masked_fill(empty, 0)
    return nodes.flatten(2).gather(-1, index.flatten(2)).view_as(index).masked_fill(empty, nothing)
