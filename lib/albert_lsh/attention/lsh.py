"""LSH attention that keeps a pretrained encoder's projections and stands in for its softmax.

Keys are put into clusters of equal size by a tree of median splits along principal directions (`select.tree`). A query
sees, in one float32 softmax and each key once,

    the keys of `n_hashes` clusters   those whose mean key it scores highest (Vyas et al. 2020; Roy et al. 2021)
    `global_tokens` keys              those that the mean query scores highest, the same for all queries of a head
    `window` nearest positions        its own among them

and, with `far_field`, every other cluster through its mean key and mean value; the logarithm of the number of its keys
is added to its score. With `rest` there is one mean over all unseen keys, added in the same way. A sequence of at most
`cluster_size` tokens has one cluster: that is softmax attention.

Each query chooses its own clusters. Above `SINGLE` tokens those that chose the same one are computed together, cluster
by cluster, as experts of a mixture serve their tokens (Shazeer et al. 2017). With a `block_size` they choose in blocks,
by their mean query, which is faster and misses more. Blocks are clusters of queries, or runs of neighbouring positions
where there is a window. With a window or a far field above `SINGLE` tokens the default is blocks of 2 sqrt(length).
"""

import math
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.definition import Budget, rounds_and_size
from albert_lsh.attention.rows import MASKED, largest, look_up, means_of, most_at_once, owners, per_sequence, slices
from albert_lsh.attention.seen import Seen, seen_by_all
from albert_lsh.attention.select.global_tokens import global_tokens as find_global_tokens
from albert_lsh.attention.select.nearest import nearest, neighbours
from albert_lsh.attention.select.tree import TREE_PRODUCTS, tree
from albert_lsh.attention.sparse import rest_products, sparse

SINGLE = 512  # tokens, up to which nothing is computed cluster by cluster
SMALLEST = 16  # queries in a block that is gathered by cluster, if it is full
SCORES_AT_ONCE = 2**20  # of queries and mean keys, while clusters are chosen on a CPU
GLOBAL_TOKENS = 2


def see(
    query: Tensor,
    key: Tensor,
    mask: Tensor,
    *,
    n_hashes: int | Tensor,
    cluster_size: int | Tensor,
    block_size: int | None,
    global_tokens: int | Tensor,
    window: int,
    far_field: bool | Tensor,
    scaling: float,
    generator: torch.Generator | None,
) -> Seen:
    """Which keys each block of queries sees. Numbers are for all sequences, or (batch,)."""
    length = query.shape[2]
    everybodys, is_global = find_global_tokens(query, key, mask, global_tokens)
    clusters = tree(key, mask & ~is_global, cluster_size, generator)
    far = torch.as_tensor(far_field, device=query.device)
    blocks = blocks_of(query, mask, block_size, window, far, generator)
    chosen = choose_clusters(query, key, blocks, clusters, n_hashes, scaling)
    count, shape = clusters.shape[2], chosen.shape[:3]
    padded = torch.cat([clusters, torch.full_like(clusters[:, :, :1], length)], dim=2)
    if blocks.shape[3] == 1 and length > SINGLE and not window and not far.any():
        queries, owner = by_cluster(blocks, chosen, count, max(SMALLEST, clusters.shape[3]))
        keys = padded.gather(2, owner.flatten(2).unsqueeze(-1).expand(-1, -1, -1, clusters.shape[3]))
        seen = Seen(queries, keys.view(*owner.shape, -1), means=clusters, blocks=blocks, chosen=chosen)
        return seen_by_all(seen, everybodys, length)
    index = chosen.flatten(2).unsqueeze(-1).expand(-1, -1, -1, clusters.shape[3])
    lists = [everybodys[:, :, None].expand(*shape, -1), padded.gather(2, index).view(*shape, -1)]
    cluster = None
    if window:
        size = (blocks[:, 0] < length).sum(-1).amax(-1)  # of a sequence's largest block
        near = nearest(mask, blocks, size + window - 1)
        near, cluster = unseen_neighbours(near, owners(clusters, length, nobody=count), chosen, count)
        lists.append(near)
    if not far.any():
        keys = torch.cat(lists, dim=-1).unsqueeze(2)
        return Seen(blocks.unsqueeze(2), keys, means=clusters, blocks=blocks, chosen=None if window else chosen)
    left = (padded < length).sum(-1)[:, :, None].expand(*shape, -1).scatter(-1, chosen, 0)  # keys of each, not seen
    if cluster is not None:
        left = left - torch.zeros_like(left).scatter_add(-1, cluster, torch.ones_like(cluster))
    left = left[..., :-1] * per_sequence(far, 4)  # type: ignore[operator]
    means = torch.arange(length, length + count, device=left.device).expand_as(left)
    keys = torch.cat([*lists, means], dim=-1)
    keys[..., :-count].masked_fill_(keys[..., :-count] == length, length + count)
    bias = torch.zeros(keys.shape, device=keys.device, dtype=torch.float32)
    bias[..., -count:] = left.clamp(min=1).float().log().masked_fill(left <= 0, MASKED)
    return Seen(blocks.unsqueeze(2), keys.unsqueeze(2), bias.unsqueeze(2), means=clusters)


def usual_block(length: int, window: int, far_field: bool) -> int:
    """How many queries choose together where no `block_size` is given."""
    return round(2 * math.sqrt(length)) if length > SINGLE and (window or far_field) else 1


def blocks_of(query: Tensor, mask: Tensor, block_size: int | None, window: int, far: Tensor, generator) -> Tensor:
    """Blocks of queries that choose together: (batch, heads, blocks, places) positions, `length` for none."""
    size: int | Tensor = block_size or 1
    if block_size is None and query.shape[2] > SINGLE:
        n = mask[:, 0].sum(-1)
        each = zip(n.tolist(), far.expand(len(n)).tolist(), strict=True)
        size = torch.tensor([usual_block(length, window, is_far) for length, is_far in each], device=mask.device)
    if window or largest(size) == 1:
        return neighbours(mask, size)
    return tree(query, mask, size, generator)


@torch.no_grad()
def choose_clusters(
    query: Tensor, key: Tensor, blocks: Tensor, clusters: Tensor, n_hashes: int | Tensor, scaling: float
) -> Tensor:
    """The clusters that each block's mean query scores highest: (batch, heads, blocks, largest n_hashes), long.

    A cluster's score is that of its mean key plus the logarithm of its size. The number of clusters stands for none.
    """
    length, count = query.shape[2], clusters.shape[2]
    size = (clusters < length).sum(-1)[:, :, None]
    offset = size.clamp(min=1).float().log().masked_fill(size == 0, MASKED)  # (batch, heads, 1, clusters)
    asking, mean_key = means_of(query, blocks), means_of(key, clusters).transpose(-1, -2)
    found = []
    at_once = most_at_once(query.device, SCORES_AT_ONCE)
    for some in slices(blocks.shape[2], at_once // (count * blocks.shape[0] * blocks.shape[1])):
        score = (asking[:, :, some] @ mean_key) * scaling + offset
        best = score.topk(min(largest(n_hashes), count), dim=-1)
        found.append(best.indices.masked_fill(best.values < MASKED / 2, count))
    chosen = torch.cat(found, dim=2)
    return chosen.masked_fill(torch.arange(chosen.shape[3], device=key.device) >= per_sequence(n_hashes, 4), count)


def by_cluster(blocks: Tensor, chosen: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Queries that chose for themselves, gathered again by what they chose, so that each list of keys serves many.

    In each round a query asks for one of its clusters; those that ask for the same one stand together.

    Args:
        blocks: (batch, heads, length, 1) positions. chosen: (batch, heads, length, n), cluster `count` for none.
        size: the most queries in a block.
    Returns:
        (batch, heads, n, blocks, size) positions, and the cluster of each block (batch, heads, n, blocks).
    """
    length = blocks.shape[2]
    asked = chosen.masked_fill(blocks == length, count)
    # In ascending order a round has few different clusters, and its blocks are full.
    asked, order = asked.sort(dim=-1).values.transpose(2, 3).sort(dim=-1)
    asking = asked.new_zeros(*asked.shape[:3], count + 1).scatter_add(-1, asked, torch.ones_like(asked))
    needed = (asking + size - 1) // size
    first, start = asking.cumsum(-1) - asking, needed.cumsum(-1) - needed
    rank = torch.arange(length, device=asked.device) - first.gather(-1, asked)
    block = start.gather(-1, asked) + rank // size
    total = int(needed.sum(-1).max())
    position = blocks.transpose(2, 3).expand_as(order).gather(-1, order)
    queries = position.new_full((*asked.shape[:3], total * size), length)
    queries = queries.scatter(-1, block * size + rank % size, position)
    owner = position.new_full((*asked.shape[:3], total), count).scatter(-1, block, asked)
    return queries.unflatten(-1, (total, size)), owner


def unseen_neighbours(near: Tensor, owner: Tensor, chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The positions `near` that a block does not see already, and their clusters, `count` for those it sees."""
    cluster = look_up(owner, near)
    flags = torch.zeros(*chosen.shape[:3], count + 1, dtype=torch.bool, device=near.device)
    flags = flags.scatter(-1, chosen, True)
    flags[..., count] = True  # global tokens, which are in no cluster
    seen = flags.gather(-1, cluster)
    return near.masked_fill(seen, owner.shape[-1] - 1), cluster.masked_fill(seen, count)


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """Global tokens, the rest, a window if there is one, and as many clusters of about sqrt(length) / 2 keys as fit.

    Comparing each query with their mean keys costs 1 / sqrt(length) of softmax attention, and is not in the budget.
    What is computed cluster by cluster has clusters twice as large: small ones take long. A far field, if asked for,
    takes the place of the rest, and about half of the budget.
    """
    length, far_field = budget.length, fixed.get("far_field", False)
    fixed = {"rest": not far_field, **fixed, "far_field": far_field}
    rest = int(fixed["rest"] and budget.keys < length)
    fixed = {"global_tokens": min(GLOBAL_TOKENS, max(0, budget.keys - 1 - rest)), **fixed}
    window = fixed.get("window", 0)
    block = fixed.get("block_size") or usual_block(length, window, far_field)
    near = min(length, window + block - 1) if window else 0
    left = budget.left(1, global_tokens=fixed["global_tokens"], window=near, rest=rest)
    size = max(2, round(math.sqrt(length) * (1 if block == 1 and length > SINGLE else 0.5)))
    if far_field and budget.keys < length:
        if found := beside_a_far_field(fixed, length, left, size):
            return fixed | found
        given = "".join(f" with {k}={fixed[k]}" for k in ("n_hashes", "cluster_size") if k in fixed)
        raise ValueError(f"{budget.asked} leaves {left} keys to choose, too few for a far field{given}")
    if not fixed.keys() & {"n_hashes", "cluster_size"}:
        if budget.keys == length:  # all clusters
            return fixed | {"n_hashes": -(-left // size), "cluster_size": size}
        rounds = max(1, round(left / size))
        return fixed | {"n_hashes": rounds, "cluster_size": left // rounds}
    return fixed | rounds_and_size(budget, fixed, left)


def beside_a_far_field(fixed: dict[str, Any], length: int, left: int, size: int) -> dict[str, Any] | None:
    """n_hashes and cluster_size that leave room for the other clusters' mean keys; None where nothing does."""

    def most_rounds(size: int) -> int:
        return (left - -(-length // size)) // max(1, size - 1)  # a cluster attended exactly costs no mean key

    rounds = fixed.get("n_hashes", 1)
    if "cluster_size" in fixed:
        size = fixed["cluster_size"]
    elif "n_hashes" in fixed:
        size = next((s for s in range(left // rounds + 1, 1, -1) if most_rounds(s) >= rounds), 1)
    else:
        size = max(size, -(-2 * length // left))  # half of what is left
    if most_rounds(size) < rounds:
        return None
    return {"n_hashes": fixed.get("n_hashes", most_rounds(size)), "cluster_size": size}


def cost(
    length: int,
    head_dim: int,
    *,
    n_hashes,
    cluster_size,
    block_size=None,
    global_tokens=0,
    window=0,
    far_field=False,
    rest=False,
) -> float:
    """Multiply-adds of one head: the trees, the global tokens, the mean keys compared with, and the keys attended.

    Empty places, where queries stand by cluster, are left out: how many there are depends on the data.
    """
    block = block_size or usual_block(length, window, far_field)
    kept = max(0, length - global_tokens)
    clusters, blocks = max(1, -(-kept // cluster_size)), -(-length // block)
    trees = [clusters] if block == 1 or window else [clusters, blocks]
    levels = sum(math.ceil(math.log2(count)) for count in trees)
    chosen = min(n_hashes, clusters)
    near = min(length, window + block - 1) if window else 0
    seen = min(length, global_tokens) + min(kept, chosen * cluster_size) + near + (clusters if far_field else 0)
    products = levels * TREE_PRODUCTS * length + length * (global_tokens > 0) + blocks * clusters + 2 * length * seen
    if rest:
        products += rest_products(length, length * seen) if window or far_field else 2 * (length + blocks * chosen)
    return products * head_dim


LSH = sparse(
    "pretrained projections; the clusters of keys whose mean key fits best",
    see,
    cost,
    settings={
        "n_hashes": 4, "cluster_size": 32, "global_tokens": GLOBAL_TOKENS, "far_field": False, "window": 0,
        "block_size": None,
    },
    lowest={"global_tokens": 0, "window": 0},
    spend=spend,
    spent=("n_hashes", "cluster_size", "global_tokens", "rest"),
    share=0.25,
)  # fmt: skip
