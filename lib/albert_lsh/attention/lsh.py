"""LSH attention that keeps a pretrained encoder's projections and stands in for its softmax.

Keys are put into clusters of equal size by a tree of median splits along principal directions (`select.tree`). A query
sees, in one float32 softmax and each key once,

    the keys of `n_hashes` clusters   those whose mean key it scores highest (Vyas et al. 2020; Roy et al. 2021)
    `global_tokens` keys              those that the mean query scores highest, the same for all queries of a head

and with `rest` one mean over all keys that it does not see; the logarithm of their number is added to its score. A
sequence of at most `cluster_size` tokens has one cluster: that is softmax attention.

Each query chooses its own clusters. Above `SINGLE` tokens those that chose the same one are computed together, cluster
by cluster, as experts of a mixture serve their tokens (Shazeer et al. 2017).
"""

import math
from typing import Any

import torch
from torch import Tensor

from albert_lsh.attention.definition import Budget, rounds_and_size
from albert_lsh.attention.rows import MASKED, in_place, largest, means_of, most_at_once, per_sequence, slices
from albert_lsh.attention.seen import Seen, seen_by_all
from albert_lsh.attention.select.global_tokens import global_tokens as find_global_tokens
from albert_lsh.attention.select.tree import TREE_PRODUCTS, tree
from albert_lsh.attention.sparse import sparse

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
    global_tokens: int | Tensor,
    scaling: float,
    generator: torch.Generator | None,
) -> Seen:
    """Which keys each query sees. Numbers are for all sequences, or (batch,)."""
    length = query.shape[2]
    everybodys, is_global = find_global_tokens(query, key, mask, global_tokens)
    clusters = tree(key, mask & ~is_global, cluster_size, generator)
    chosen = choose_clusters(query, key, clusters, n_hashes, scaling)
    count, size = clusters.shape[2:]
    padded = torch.cat([clusters, torch.full_like(clusters[:, :, :1], length)], dim=2)
    if length > SINGLE:
        queries, owner = by_cluster(mask, chosen, count, max(SMALLEST, size))
        keys = padded.gather(2, owner.flatten(2).unsqueeze(-1).expand(-1, -1, -1, size))
        seen = Seen(queries, keys.view(*owner.shape, -1), means=clusters, chosen=chosen)
        return seen_by_all(seen, everybodys, length)
    keys = padded.gather(2, chosen.flatten(2).unsqueeze(-1).expand(-1, -1, -1, size)).view(*chosen.shape[:3], -1)
    keys = torch.cat([everybodys[:, :, None].expand(-1, -1, length, -1), keys], dim=-1)
    return Seen(in_place(mask).unsqueeze(2), keys.unsqueeze(2), means=clusters, chosen=chosen)


@torch.no_grad()
def choose_clusters(query: Tensor, key: Tensor, clusters: Tensor, n_hashes: int | Tensor, scaling: float) -> Tensor:
    """The clusters that each query scores highest: (batch, heads, length, largest n_hashes), long.

    A cluster's score is that of its mean key plus the logarithm of its size. The number of clusters stands for none.
    """
    batch, heads, length, _ = query.shape
    count = clusters.shape[2]
    size = (clusters < length).sum(-1)[:, :, None]
    offset = size.clamp(min=1).float().log().masked_fill(size == 0, MASKED)  # (batch, heads, 1, clusters)
    mean_key, chosen = means_of(key, clusters).transpose(-1, -2), []
    for some in slices(length, most_at_once(query.device, SCORES_AT_ONCE) // (count * batch * heads)):
        best = ((query[:, :, some] @ mean_key) * scaling + offset).topk(min(largest(n_hashes), count), dim=-1)
        chosen.append(best.indices.masked_fill(best.values < MASKED / 2, count))
    numbers = torch.arange(chosen[0].shape[3], device=key.device)
    return torch.cat(chosen, dim=2).masked_fill(numbers >= per_sequence(n_hashes, 4), count)


def by_cluster(mask: Tensor, chosen: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Queries gathered by the clusters that they chose, so that each list of keys serves many.

    In each round a query asks for one of its clusters; those that ask for the same one stand together.

    Args:
        mask: (batch, heads, length) bool. chosen: (batch, heads, length, n), cluster `count` for none.
        size: the most queries in a block.
    Returns:
        (batch, heads, n, blocks, size) positions, and the cluster of each block (batch, heads, n, blocks).
    """
    length = mask.shape[2]
    # In ascending order a round has few different clusters, and its blocks are full.
    asked = chosen.masked_fill(~mask.unsqueeze(-1), count).sort(dim=-1).values.transpose(2, 3)
    asked, order = asked.sort(dim=-1, stable=True)
    asking = asked.new_zeros(*asked.shape[:3], count + 1).scatter_add(-1, asked, torch.ones_like(asked))
    needed = (asking + size - 1) // size
    first, start = asking.cumsum(-1) - asking, needed.cumsum(-1) - needed
    rank = torch.arange(length, device=asked.device) - first.gather(-1, asked)
    place = (start.gather(-1, asked) + rank // size) * size + rank % size
    total = int(needed.sum(-1).max())
    position = in_place(mask).transpose(2, 3).expand_as(order).gather(-1, order)
    queries = position.new_full((*asked.shape[:3], total * size), length).scatter(-1, place, position)
    owner = position.new_full((*asked.shape[:3], total), count).scatter(-1, place // size, asked)
    return queries.unflatten(-1, (total, size)), owner


def spend(budget: Budget, fixed: dict[str, Any]) -> dict[str, Any]:
    """Global tokens, the rest, and as many clusters of about sqrt(length) / 2 keys as fit.

    Comparing each query with their mean keys costs 1 / sqrt(length) of softmax attention, and is not in the budget.
    What is computed cluster by cluster has clusters twice as large: small ones take long.
    """
    length = budget.length
    fixed = {"rest": True, **fixed}
    rest = int(fixed["rest"] and budget.keys < length)
    fixed = {"global_tokens": min(GLOBAL_TOKENS, max(0, budget.keys - 1 - rest)), **fixed}
    left = budget.left(1, global_tokens=fixed["global_tokens"], rest=rest)
    if fixed.keys() & {"n_hashes", "cluster_size"}:
        return fixed | rounds_and_size(budget, fixed, left)
    size = max(2, round(math.sqrt(length) * (1 if length > SINGLE else 0.5)))
    if budget.keys == length:  # all clusters
        return fixed | {"n_hashes": -(-left // size), "cluster_size": size}
    rounds = max(1, round(left / size))
    return fixed | {"n_hashes": rounds, "cluster_size": left // rounds}


def cost(length: int, head_dim: int, *, n_hashes, cluster_size, global_tokens=0, rest=False) -> float:
    """Multiply-adds of one head: the tree, the global tokens, the mean keys compared with, and the keys attended.

    Empty places, where queries stand by cluster, are left out: how many there are depends on the data.
    """
    kept = max(0, length - global_tokens)
    clusters = max(1, -(-kept // cluster_size))
    chosen = min(n_hashes, clusters)
    seen = min(length, global_tokens) + min(kept, chosen * cluster_size)
    choosing = math.ceil(math.log2(clusters)) * TREE_PRODUCTS + (global_tokens > 0) + clusters
    return length * (choosing + 2 * seen + (2 * (1 + chosen) if rest else 0)) * head_dim


LSH = sparse(
    "pretrained projections; the clusters of keys whose mean key fits best",
    see,
    cost,
    settings={"n_hashes": 4, "cluster_size": 32, "global_tokens": GLOBAL_TOKENS},
    lowest={"global_tokens": 0},
    spend=spend,
    spent=("n_hashes", "cluster_size", "global_tokens", "rest"),
    share=0.25,
    left={"far_field": (False,), "window": (0,), "block_size": (None, 1)},
)
