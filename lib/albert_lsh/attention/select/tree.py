"""Clusters of equal size by a balanced tree of median splits, as in a k-d tree.

Each node is split along the principal direction of its own members, found by power iteration from a random start. The
tree has log2(clusters) levels, and each takes time linear in the length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.rows import most_at_once, places, slices
from albert_lsh.attention.select.hashing import draw_directions

POWER_STEPS = 2  # of the iteration; each takes two products per token
TREE_PRODUCTS = 2 * POWER_STEPS + 1  # of head_dim numbers per token and level


def centred(rows: Tensor, mask: Tensor) -> Tensor:
    """Rows (batch, heads, length, dim) less the mean of those in mask (batch, heads, length); zero outside of it."""
    kept = mask.unsqueeze(-1)
    mean = (rows * kept).sum(2, keepdim=True) / kept.sum(2, keepdim=True).clamp(min=1)
    return (rows - mean) * kept


def tree(rows: Tensor, mask: Tensor, size: int | Tensor, generator: torch.Generator | None) -> Tensor:
    """Clusters of at most `size` tokens, ceil(n / size) of them for n tokens, whose sizes differ by one at most.

    Args:
        rows: (batch, heads, length, dim) float32.
        mask: (batch, heads, length) bool, as many True in each head of a sequence; only those are dealt out.
        size: one for all sequences, or (batch,).
    Returns:
        (batch, heads, clusters, members) positions; `length` in places without a token.
    """
    n = mask[:, 0].sum(-1)
    leaves = (-(-n // size)).clamp(min=1)
    depth = torch.ceil(torch.log2(leaves.double())).long()
    deepest = int(depth.max())
    start = draw_directions(rows.shape[1], rows.shape[3], 1, generator).to(rows.device)[:, 0].repeat(len(rows), 1)
    padded = F.pad(centred(rows, mask), (0, 0, 0, 1)).flatten(0, 1)
    nodes = places(mask, mask.shape[-1]).unsqueeze(2)
    for level in range(deepest):
        children = deal(level, n, leaves, depth)
        ordered = sort_members(nodes.flatten(0, 1), padded, start).view_as(nodes)
        nodes = take_children(ordered, *children, nothing=rows.shape[2])
    leaf = torch.arange(int(leaves.max()), device=rows.device)
    slot = (leaf << (deepest - depth)[:, None]).clamp(max=nodes.shape[2] - 1)  # behind a sequence's leaves: empty
    return nodes.gather(2, slot[:, None, :, None].expand(-1, nodes.shape[1], -1, nodes.shape[3]))


def sort_members(nodes: Tensor, rows: Tensor, start: Tensor) -> Tensor:
    """The members of each node along its leading direction, empty places last.

    Args:
        nodes: (heads, nodes, places), batch and heads being one; the last row stands in empty places.
        rows: (heads, length + 1, dim), the last one zero. start: (heads, dim), where the power iteration begins.

    The members' mean is taken off in the products, not in the rows; on a CPU a few heads at a time stay in the cache.
    """
    _, count, places = nodes.shape
    found, dim = torch.empty_like(nodes), rows.shape[-1]
    for some in slices(len(nodes), most_at_once(nodes.device) // (count * places * dim)):
        here, there = nodes[some], nodes[some] < rows.shape[1] - 1
        first = torch.arange(len(here), device=nodes.device)[:, None, None] * rows.shape[1]
        inside = rows[some].flatten(0, 1).index_select(0, (here + first).flatten()).view(-1, places, dim)
        mean = inside.sum(1, keepdim=True) / there.sum(-1).clamp(min=1).view(-1, 1, 1)
        direction = start[some, None].expand(-1, count, -1).reshape(-1, dim, 1)
        for _ in range(POWER_STEPS):
            along = inside @ direction  # (nodes, places, 1)
            pulled = along.transpose(1, 2) @ inside - along.sum(1, keepdim=True) * mean
            direction = F.normalize(pulled, dim=-1).transpose(1, 2)
        along = (inside @ direction).view(here.shape).masked_fill(~there, torch.inf)
        found[some] = here.gather(-1, along.argsort(dim=-1, stable=True))
    return found


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
