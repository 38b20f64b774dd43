"""A control for `lsh`: clusters drawn at random, as many and of the same size."""

import torch
from torch import Tensor

from albert_lsh.attention.compute.blocks import (
    Blocks,
    cluster_tables,
    count_tokens,
    cut,
    hide_keys,
    sort_tokens,
    token_mask,
)
from albert_lsh.attention.compute.dispatch import attend_parts
from albert_lsh.attention.compute.parts import Bias, Part, count_pairs
from albert_lsh.attention.select.global_tokens import seen_by_all, wanted_by_all


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
    once = Bias(clusters=cluster_tables(blocks, length)) if duplicates == "once" and n_hashes > 1 else None
    parts = [Part(hide_keys(blocks, everybodys), once, distinct=True)]
    return [*parts, seen_by_all(mask, everybodys, min(global_tokens, length))] if global_tokens else parts


def random_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, **settings) -> Tensor:
    """Softmax over the keys that share a cluster with the query in some round, and the global tokens."""
    parts = random_parts(query, key, padding_mask, **settings)
    shown = [(part, 0) for part in parts]
    return attend_parts(query, [(key, value)], shown, scaling=scaling, dropout=dropout)[0]


def random_pairs(query, key, padding_mask=None, **settings) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int."""
    return count_pairs(random_parts(query, key, padding_mask, **settings), query.shape[2])
