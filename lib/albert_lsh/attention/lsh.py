"""LSH attention that keeps a pretrained encoder's projections and stands in for its softmax.

A query sees, in float32 softmax and each key once,

    the keys of a few clusters       by hash collision in several rounds (Kitaev et al. 2020; Daras et al. 2020), or
                                     the clusters whose mean key it scores highest (Vyas et al. 2020; Roy et al. 2021)
    `global_tokens` keys             those that the mean query scores highest, the same for all queries of a head
    `window` nearest positions

and, with `far_field`, every other cluster through its mean key, mean value and the logarithm of its size. Clusters
are of equal size and come from hashing (see `hashing`), so they never overflow, and a sequence of at most
`cluster_size` tokens has one cluster, which is softmax attention.

    choose="collision"   n_hashes rounds; in each a query sees the cluster with its own number
    choose="mean-key"    one clustering; the n_hashes best clusters, chosen by each query, or by `block_size` queries
                         hashed alike together, who add up their softmax over the mean keys
    choose="mean-query"  the same, but a block chooses by its mean query: block_size times fewer products

With block_size=None every query of a sequence of less than 2 * `BLOCKS` tokens chooses for itself; of a longer one,
between `BLOCKS` and twice as many blocks choose, by their mean query whatever `choose` says. With block_size=1 every
query of a long sequence is compared with every mean key, which takes time quadratic in the length, but no such memory.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from albert_lsh.attention.compute import dense
from albert_lsh.attention.compute.blocks import (
    MASKED,
    Blocks,
    cluster_tables,
    cut,
    hide_keys,
    places,
    slices,
    sort_tokens,
    take,
    token_mask,
)
from albert_lsh.attention.compute.dispatch import attend_parts
from albert_lsh.attention.compute.parts import Bias, Part, count_pairs
from albert_lsh.attention.select.global_tokens import seen_by_all, wanted_by_all
from albert_lsh.attention.select.hashing import PROJECTIONS
from albert_lsh.attention.select.nearest import Window, find_window
from albert_lsh.attention.select.tree import tree

# Up to this length gathering rows takes longer than computing all scores and masking most of them.
DENSE_LENGTH = 512
BLOCKS = 1024  # that choose clusters where no block_size is given: so many, and less than twice as many
SCORES_AT_ONCE = 2**20  # of queries and mean keys, while clusters are chosen


class Seen(NamedTuple):
    """Whom the queries see."""

    parts: list[Part]
    clusters: Tensor | None = None  # (batch, heads, clusters, size): positions of their keys, `length` for none
    far: Part | None = None  # the clusters as keys, for those who see no more of them
    chosen: dense.Chosen | None = None
    asking: Tensor | None = None  # (batch, heads): how many, queries or blocks, were compared with each mean key


def collide(
    query, key, mask, everybodys, window, *, n_hashes, cluster_size, hashing, duplicates, generator, **_
) -> Part:
    """Rounds of clusters of queries and keys with similar hashes."""
    hashes = PROJECTIONS[hashing](query, key, mask, n_hashes, generator)
    n_tokens = mask[:, 0].sum(-1)
    blocks = Blocks(*(cut(sort_tokens(x, mask), n_tokens, cluster_size) for x in hashes))
    once = cluster_tables(blocks, query.shape[2]) if duplicates == "once" and n_hashes > 1 else None
    bias = None if once is None and window is None else Bias(clusters=once, window=window)
    return Part(hide_keys(blocks, everybodys), bias, distinct=True)


def select(
    query,
    key,
    mask,
    everybodys,
    window,
    choose,
    *,
    n_hashes,
    cluster_size,
    hashing,
    block_size,
    global_tokens,
    far_field,
    scaling,
    generator,
    **_,
) -> Seen:
    """One clustering; the keys of everybody and of the clusters that each block of queries chooses, without the window.

    Nothing of the window is hidden in the window's own part, so that keys of everybody that are near are seen there.
    """
    clusters = cluster(key, mask & ~everybodys, cluster_size, hashing, generator)
    if block_size is None:
        block_size, choose = growing(mask), "mean-query"
    blocks = cluster(query, mask, block_size, hashing, generator)
    members = blocks < query.shape[2]
    chosen = choose_clusters(query, key, blocks, clusters, n_hashes=n_hashes, choose=choose, scaling=scaling)
    index = chosen.flatten(2).unsqueeze(-1).expand(-1, -1, -1, clusters.shape[3])
    keys = clusters.gather(2, index).view(*chosen.shape[:3], -1)
    shared = places(everybodys, min(global_tokens, query.shape[2]))[:, :, None]
    keys = torch.cat([shared.expand(*keys.shape[:3], -1), keys], dim=-1)
    part = Part(Blocks(blocks.unsqueeze(2), keys.unsqueeze(2)), None if window is None else Bias(window=window))
    far = far_part(blocks, clusters, chosen, mask, window) if far_field else None
    asking = (members.any(-1) if choose == "mean-query" else members.flatten(2)).sum(-1)
    return Seen([part], clusters, far, dense.Chosen(part.blocks, clusters, chosen, shared[:, :, 0]), asking)


def growing(mask: Tensor) -> int | Tensor:
    """The block_size where none is given: 1 below 2 * BLOCKS tokens, else one for each sequence, (batch,)."""
    return 1 if mask.shape[-1] < 2 * BLOCKS else (mask[:, 0].sum(-1) // BLOCKS).clamp(min=1)


def cluster(rows: Tensor, mask: Tensor, size: int | Tensor, hashing: str, generator) -> Tensor:
    """Clusters of at most `size` tokens that are hashed alike: (batch, heads, clusters, places) positions."""
    single = isinstance(size, int) and size == 1
    if not single and hashing == "tree":
        return tree(rows, mask, size, generator)
    values = torch.zeros_like(rows[..., 0])
    if not single:
        values = PROJECTIONS[hashing](rows, rows, mask, 1, generator)[1][:, :, 0]
    return cut(sort_tokens(values, mask).unsqueeze(2), mask[:, 0].sum(-1), size)[:, :, 0]


def choose_clusters(query, key, blocks, clusters, *, n_hashes, choose, scaling) -> Tensor:
    """The clusters that each block of queries attends to: (batch, heads, blocks, n_hashes), numbers of clusters."""
    mean_key, size = (x.flatten(0, 1) for x in mean_of(key, clusters))
    members = blocks < query.shape[2]
    if choose == "mean-query":
        asking, weight = mean_of(query, blocks)[0].unsqueeze(3), members.any(-1, keepdim=True)
    else:
        asking, weight = take(query, blocks), members
    asking, weight = asking.flatten(0, 1), weight.flatten(0, 1)  # (rows, blocks, members, dim), batch and heads in one
    (n_rows, n_blocks, n_members, _), n_clusters = asking.shape, mean_key.shape[1]
    chosen = size.new_empty(n_rows, n_blocks, min(n_hashes, n_clusters))
    for rows in slices(n_rows, SCORES_AT_ONCE // (n_blocks * n_members * n_clusters)):
        empty, log_size = (size[rows] == 0)[:, None], size[rows].clamp(min=1).log()[:, None, None]
        for some in slices(n_blocks, SCORES_AT_ONCE // ((rows.stop - rows.start) * n_members * n_clusters)):
            score = torch.einsum("rnqd,rcd->rnqc", asking[rows, some], mean_key[rows]) * scaling + log_size
            score = score.masked_fill(empty.unsqueeze(2), MASKED)
            votes = (score.softmax(-1) * weight[rows, some].unsqueeze(-1)).sum(2).masked_fill(empty, -1.0)
            chosen[rows, some] = votes.topk(chosen.shape[-1], dim=-1, sorted=False).indices
    return chosen.unflatten(0, query.shape[:2])


def mean_of(rows: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (batch, heads, clusters, dim) and number (batch, heads, clusters) of the members of each cluster."""
    size = (clusters < rows.shape[2]).sum(-1)
    return take(rows, clusters).sum(3) / size.clamp(min=1).unsqueeze(-1), size


def far_part(blocks: Tensor, clusters: Tensor, chosen: Tensor, mask: Tensor, window: Window | None) -> Part:
    """Every cluster as one key, with the logarithm of how many of its members a query does not see otherwise."""
    length, count = mask.shape[-1], clusters.shape[2]
    size = (clusters < length).sum(-1)  # (batch, heads, clusters)
    left = size[:, :, None].expand(*blocks.shape[:3], -1).scatter(-1, chosen, 0).flatten(0, 1)
    numbers = torch.arange(count, device=clusters.device)
    number_in = None
    if window is not None:  # a member of a chosen cluster leaves nothing to count off
        owner = numbers[:, None].expand_as(clusters).flatten(2).flatten(0, 1)
        table = owner.new_full((len(owner), length + 1), count).scatter(1, clusters.flatten(2).flatten(0, 1), owner)
        table[:, length] = count
        number_in = window.numbered(table, mask, count)
    index = numbers.expand(*blocks.shape[:3], -1)
    return Part(Blocks(blocks.unsqueeze(2), index.unsqueeze(2)), Bias(left=left, window=window, number_in=number_in))


@torch.no_grad()
def look(query, key, padding_mask, *, global_tokens, window, choose, scaling, generator, **settings) -> Seen:
    """Whom each query sees; the arguments are those of the attention."""
    with torch.autocast(query.device.type, enabled=False):
        query, key = query.float(), key.float()
        mask = token_mask(query, padding_mask)
        everybodys = wanted_by_all(query, key, mask, global_tokens)
        nearest = find_window(query, padding_mask, window) if window else None
        near = [] if nearest is None else [Part(nearest.blocks(mask), Bias(window=nearest, beyond=True))]
        settings |= {"global_tokens": global_tokens, "generator": generator}
        if choose == "collision":
            near = [part._replace(blocks=hide_keys(part.blocks, everybodys)) for part in near]
            if global_tokens:
                near.append(seen_by_all(mask, everybodys, min(global_tokens, query.shape[2])))
            return Seen([collide(query, key, mask, everybodys, nearest, **settings), *near])
        found = select(query, key, mask, everybodys, nearest, choose, scaling=scaling, **settings)
        return found._replace(parts=[*found.parts, *near])


def lsh_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None, **settings) -> Tensor:
    """Softmax over the keys that a query sees, and the far field's mean keys; see the module.

    Args:
        query, key, value: (batch, heads, length, head_dim).
        padding_mask: (batch, length) bool, True where there is a token.
        scaling: factor of the scores; dropout: probability with which an attention weight is dropped.
        settings: n_hashes, cluster_size, hashing, choose, block_size, global_tokens, window, far_field, duplicates.
    Returns:
        (batch, heads, length, head_dim), in query's dtype; rows of padding are anything. Gradients flow to queries,
        keys (mean keys included) and values; which keys are seen has none.
    """
    seen = look(query, key, padding_mask, scaling=scaling, generator=generator, **settings)
    short, more = query.shape[2] <= DENSE_LENGTH, {"scaling": scaling, "dropout": dropout}
    if short and seen.chosen is not None and not settings["window"]:
        return dense.attend_to_clusters(query, key, value, seen.chosen, far_field=seen.far is not None, **more)
    far = None
    if seen.far is not None and seen.clusters is not None:
        mean_key, mean_value = (mean_of(rows.float(), seen.clusters)[0].to(rows.dtype) for rows in (key, value))
        far = mean_key, mean_value, seen.far
    if short:
        once = settings["duplicates"] == "once"
        return dense.attend_to_parts(query, key, value, seen.parts, far, once=once, **more)
    sources, parts = [(key, value)], [(part, 0) for part in seen.parts]
    if far is not None:
        sources, parts = [*sources, far[:2]], [*parts, (far[2], 1)]
    return attend_parts(query, sources, parts, **more)[0]


def lsh_pairs(query, key, padding_mask=None, *, generator=None, **settings) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int; mean keys are not among them."""
    scaling = query.shape[-1] ** -0.5
    seen = look(query, key, padding_mask, scaling=scaling, generator=generator, **settings)
    return count_pairs(seen.parts, query.shape[2])


def lsh_mean_keys(query, key, padding_mask=None, *, generator=None, **settings) -> tuple[Tensor, Tensor]:
    """How many mean keys the queries attend to, and how many are compared to choose: (batch, heads), long."""
    scaling = query.shape[-1] ** -0.5
    seen = look(query, key, padding_mask, scaling=scaling, generator=generator, **settings)
    mask = token_mask(query, padding_mask)
    none = torch.zeros_like(mask[..., 0], dtype=torch.long)
    if seen.clusters is None or seen.asking is None:
        return none, none
    compared = (seen.clusters < query.shape[2]).any(-1).sum(-1) * seen.asking
    if seen.far is None:
        return none, compared
    attended = (dense.of_each_query(seen.far, query.shape[2]) > MASKED / 2).sum(-1)
    return (attended * mask).sum(-1), compared
