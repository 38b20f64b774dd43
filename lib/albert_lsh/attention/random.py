"""A control for `lsh`: clusters drawn at random, as many and of the same size."""

import torch
from torch import Tensor

from albert_lsh.attention.clusters import (
    Blocks,
    Part,
    attend_part,
    count_pairs,
    count_tokens,
    cut,
    merge,
    sort_tokens,
    token_mask,
)
from albert_lsh.attention.global_tokens import seen_by_all, wanted_by_all
from albert_lsh.attention.lsh import hidden_in, once_bias


@torch.no_grad()
def random_parts(
    query, key, padding_mask, *, n_hashes, cluster_size, global_tokens, duplicates, generator
) -> list[Part]:
    """Clusters of queries and keys drawn at random, the same for all sequences of a batch, and the global tokens."""
    batch, heads, length, _ = query.shape
    # Position first: a longer batch draws more numbers and changes none, so padding does not change a result.
    draws = torch.rand(length, 2, heads, n_hashes, generator=generator).to(query.device)
    hashes = draws.permute(1, 2, 3, 0)[:, None].expand(2, batch, -1, -1, -1)
    n_tokens, mask = count_tokens(query, padding_mask), token_mask(query, padding_mask)
    blocks = Blocks(*(cut(sort_tokens(x, padding_mask), n_tokens, cluster_size) for x in hashes))
    everybodys = wanted_by_all(query.float(), key.float(), mask, global_tokens)
    parts = [Part(blocks, once_bias(blocks, duplicates, n_hashes, length, hidden_in(blocks, everybodys, None)))]
    return [*parts, seen_by_all(mask, everybodys, min(global_tokens, length))] if global_tokens else parts


def random_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, **settings) -> Tensor:
    """Softmax over the keys that share a cluster with the query in some round, and the global tokens."""
    parts = random_parts(query, key, padding_mask, **settings)
    found = [attend_part(query, key, value, part, scaling=scaling, dropout=dropout) for part in parts]
    return merge(found, query.dtype, padding_mask)


def random_pairs(query, key, padding_mask=None, **settings) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int."""
    return count_pairs(random_parts(query, key, padding_mask, **settings), query.shape[2])
