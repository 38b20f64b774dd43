"""What keys are chosen by: hashes, clusters of keys that lie near to one another, and keys that all queries see.

Hashes are random projections after which a large inner product is a small distance. F(q) = [q; sqrt(M^2 - |q|^2); 0]
and G(k) = [k; 0; sqrt(M^2 - |k|^2)], with M the largest norm, give |F(q) - G(k)|^2 = 2 M^2 - 2 q.k (Shrivastava & Li
2014; Daras et al. 2020, SMYRF).

Clusters of equal size come from a balanced tree of median splits, as in a k-d tree. Each node is split along the
principal direction of its own members, found by power iteration from a random start. The tree has log2(clusters)
levels, and each takes time linear in the length.

Global tokens are found from the data. A score is mean(q).k + (q - mean(q)).k, whose first part is the same for all
queries. In a pretrained encoder it is large for a few keys, mostly the special tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.keys import best, cut, largest, look_up, per_sequence, slices, tokens_first

POWER_STEPS = 2  # of the iteration; each takes two products per token
TREE_PRODUCTS = 2 * POWER_STEPS + 1  # of head_dim numbers per token and level


def normal_numbers(*shape: int, generator: torch.Generator | None) -> Tensor:
    """Normal random numbers, float32, on the CPU so that every device hashes alike.

    A larger first dimension adds numbers and changes none, so a sequence does not depend on the others of its batch.
    """
    count = math.prod(shape)
    whole = -(-count // 16) * 16  # torch draws blocks of 16, and an incomplete one differently
    return torch.randn(whole, generator=generator, dtype=torch.float32, device="cpu")[:count].view(shape)


def draw_directions(heads: int, dim: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Random directions (heads, count, dim)."""
    return normal_numbers(count, heads, dim, generator=generator).transpose(0, 1)


def generators_of_rounds(count: int, generator: torch.Generator | None) -> list[torch.Generator]:
    """A generator for each round, from one number that is drawn from `generator`: more rounds change no earlier one."""
    first = int(torch.randint(2**31, (1,), generator=generator, device="cpu"))
    return [torch.Generator().manual_seed(first + 1_000_003 * number) for number in range(count)]


def asymmetric(query: Tensor, key: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """F(query) and G(key): (batch, heads, length, head_dim + 2), all of norm M within a sequence and head."""
    q2, k2 = (x.square().sum(-1, keepdim=True) * mask.unsqueeze(-1) for x in (query, key))
    m2 = torch.maximum(q2, k2).amax(2, keepdim=True)
    rest_q, rest_k = (m2 - q2).clamp(min=0).sqrt(), (m2 - k2).clamp(min=0).sqrt()
    zero = torch.zeros_like(rest_q)
    return torch.cat([query, rest_q, zero], -1), torch.cat([key, zero, rest_k], -1)


def project(query: Tensor, key: Tensor, mask: Tensor, n_hashes: int, generator) -> tuple[Tensor, Tensor]:
    """F(query) and G(key) projected on random directions: (batch, heads, n_hashes, length) each."""
    directions = draw_directions(query.shape[1], query.shape[3] + 2, n_hashes, generator).to(query.device)
    query, key = asymmetric(query, key, mask)
    return along(query, directions), along(key, directions)


def along(rows: Tensor, directions: Tensor) -> Tensor:
    """Inner products of rows (batch, heads, length, dim) and directions (heads, n, dim): (batch, heads, n, length).

    Row by row: equal tokens have equal hashes, and their order is that of their positions. A matrix product rounds
    them by their place in the batch.
    """
    products = [(rows * direction[:, None]).sum(-1) for direction in directions.unbind(1)]
    return torch.stack(products, 2)


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
    nodes = tokens_first(mask).unsqueeze(2)
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
    ordered, dim = torch.empty_like(nodes), rows.shape[-1]
    for part in slices(len(nodes), count * places * dim, nodes.device):
        members, real = nodes[part], nodes[part] < rows.shape[1] - 1
        first = torch.arange(len(members), device=nodes.device)[:, None, None] * rows.shape[1]
        inside = rows[part].flatten(0, 1).index_select(0, (members + first).flatten()).view(-1, places, dim)
        mean = inside.sum(1, keepdim=True) / real.sum(-1).clamp(min=1).view(-1, 1, 1)
        direction = start[part, None].expand(-1, count, -1).reshape(-1, dim, 1)
        for _ in range(POWER_STEPS):
            along = inside @ direction  # (nodes, places, 1)
            pulled = along.transpose(1, 2) @ inside - along.sum(1, keepdim=True) * mean
            direction = F.normalize(pulled, dim=-1).transpose(1, 2)
        along = (inside @ direction).view(members.shape).masked_fill(~real, torch.inf)
        ordered[part] = members.gather(-1, along.argsort(dim=-1, stable=True))
    return ordered


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


def neighbours(mask: Tensor, size: int | Tensor) -> Tensor:
    """Blocks of at most `size` neighbouring tokens: (batch, heads, blocks, places) positions, `length` for none.

    mask: (batch, heads, length) bool, True where there is a token. size: one number, or (batch,).
    """
    order = tokens_first(mask).unsqueeze(2)
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
    order = F.pad(tokens_first(mask), (0, 1), value=length)
    size = (blocks < length).sum(-1)  # (batch, heads, blocks)
    span = torch.as_tensor(per_sequence(span, 3), device=mask.device).minimum(n)
    start = (look_up(number, blocks[..., 0]) - (span - size + 1) // 2).clamp(min=0).minimum(n - span)
    step = torch.arange(max(1, int(span.max())), device=mask.device)
    absent = (step >= span.unsqueeze(-1)) | (size == 0).unsqueeze(-1)
    return look_up(order, (start.unsqueeze(-1) + step).clamp(max=length).masked_fill(absent, length))


def find_global_tokens(query: Tensor, key: Tensor, mask: Tensor, count: int | Tensor) -> tuple[Tensor, Tensor]:
    """The `count` keys that the mean query scores highest.

    Args:
        query, key: (batch, heads, length, head_dim) float32, zeros in padding. mask: (batch, heads, length) bool, True
            for tokens. count: one number, or (batch,).
    Returns:
        Their positions (batch, heads, largest count), `length` where there are fewer; and (batch, heads, length) bool,
        True for them.
    """
    if not largest(count):
        return torch.zeros_like(mask[..., :0], dtype=torch.long), torch.zeros_like(mask)
    total = query.sum(2)  # the mean times the number of tokens, which has the same order
    positions = best(torch.einsum("bhd,bhld->bhl", total, key), mask, count)
    chosen = torch.zeros(*mask.shape[:2], mask.shape[2] + 1, dtype=torch.bool, device=mask.device)
    return positions, chosen.scatter(2, positions, True)[..., :-1]
