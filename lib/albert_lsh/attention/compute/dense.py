"""Attention of short sequences: all scores in one fused product, most of them masked, which beats gathering rows.

The mask is the only matrix of length x length numbers, of at most 512 tokens (`lsh.DENSE_LENGTH`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.compute.blocks import MASKED, Blocks, slot_of_query, take
from albert_lsh.attention.compute.cpu import attend_masked, is_available
from albert_lsh.attention.compute.parts import Part, count_pairs


def attend_to_parts(query, key, value, parts: list[Part], far, *, once: bool, scaling: float, dropout: float) -> Tensor:
    """What the parts show, each key once or as often as they show it.

    far: mean keys and mean values (batch, heads, clusters, head_dim) and their part, or None.
    Rows of queries that see nothing are anything.
    """
    length, n_means = query.shape[2], 0 if far is None else far[0].shape[2]
    # The last row and the last column are those of no token.
    bias = torch.full((*query.shape[:2], length + 1, n_means + length + 1), MASKED, device=query.device)
    if once:
        for part in parts:
            show(bias, part, n_means)
    else:
        times = count_pairs(parts, length)
        bias[:, :, :length, n_means:-1] = times.clamp(min=1).log().masked_fill_(times == 0, MASKED)
    if far is not None:
        mean_key, mean_value, part = far
        bias[:, :, :length, :n_means] = of_each_query(part, length)
        key, value = torch.cat([mean_key, key], dim=2), torch.cat([mean_value, value], dim=2)
    return with_mask(query, key, value, bias[:, :, :length, :-1], scaling, dropout)


def show(bias: Tensor, part: Part, before: int) -> None:
    """Set the bias to zero where a query and a key meet; the keys stand behind `before` columns."""
    columns = bias.shape[-1]
    index, query = part.blocks.key_index.unsqueeze(-2) + before, part.blocks.query_index.unsqueeze(-1)
    if (of_pairs := part.full_bias()) is not None:
        index = torch.where(of_pairs > MASKED / 2, index, columns - 1)
    bias.flatten(2).scatter_(-1, (query * columns + index).flatten(2), 0.0)


class Chosen(NamedTuple):
    """Which clusters of keys each block of queries sees."""

    blocks: Blocks  # of queries, one round
    clusters: Tensor  # (batch, heads, clusters, size): positions of their keys, `length` for none
    numbers: Tensor  # (batch, heads, blocks, n_hashes): of the clusters that a block sees
    shared: Tensor  # (batch, heads, n): positions of the keys of everybody, which are in no cluster


def attend_to_clusters(query, key, value, seen: Chosen, *, far_field: bool, scaling: float, dropout: float) -> Tensor:
    """Keys of chosen clusters, those of everybody and, on request, the other clusters' means.

    With keys in the order of clusters a row of the mask is one number a cluster, repeated.
    """
    blocks, clusters, numbers, shared = seen
    length, (n_clusters, size) = query.shape[2], clusters.shape[2:]
    members = (clusters < length).sum(-1)

    def by_cluster(rows: Tensor) -> Tensor:
        found = take(rows, clusters)
        mean = (found.float().sum(3) / members.clamp(min=1).unsqueeze(-1)).to(rows.dtype)
        return torch.cat([found.flatten(2, 3), take(rows, shared), *([mean] if far_field else [])], dim=2)

    keys, values = by_cluster(key), by_cluster(value)
    block = slot_of_query(blocks, length)[:, :, 0] // blocks.query_index.shape[-1]
    chosen = numbers.gather(2, block.unsqueeze(-1).expand(-1, -1, -1, numbers.shape[-1])).flatten(0, 1)
    of_clusters = torch.full((*chosen.shape[:2], n_clusters), MASKED, device=key.device).scatter_(-1, chosen, 0.0)
    of_the_rest = MASKED - of_clusters
    of_places, of_shared = (hide(index == length).flatten(0, 1).unsqueeze(1) for index in (clusters, shared))
    of_means = (members.clamp(min=1).log() + hide(members == 0)).flatten(0, 1).unsqueeze(1)

    n_keys = keys.shape[2]  # the tensor itself would be kept with the function, until the backward pass is over

    def bias_of(rows: slice) -> Tensor:
        bias = of_clusters.new_empty(*of_clusters[rows].shape[:2], n_keys)
        own, everybodys, means = bias.tensor_split([n_clusters * size, n_clusters * size + shared.shape[-1]], dim=-1)
        torch.add(of_clusters[rows].unsqueeze(-1), of_places[rows], out=own.unflatten(-1, (n_clusters, size)))
        everybodys.copy_(of_shared[rows])
        if far_field:
            torch.add(of_the_rest[rows], of_means[rows], out=means)
        return bias

    if is_available(query, dropout):
        return attend_masked(query, keys, values, bias_of, scaling)
    bias = bias_of(slice(None)).unflatten(0, query.shape[:2])
    return with_mask(query, keys, values, bias, scaling, dropout)


def hide(absent: Tensor) -> Tensor:
    """The bias of what is absent."""
    return torch.zeros(absent.shape, device=absent.device).masked_fill_(absent, MASKED)


def with_mask(query, key, value, bias: Tensor, scaling: float, dropout: float) -> Tensor:
    if bias.is_cuda:  # whose kernels want a mask like the query; a CPU's take float32
        bias = bias.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=scaling)


def of_each_query(part: Part, length: int) -> Tensor:
    """The bias of a part of one round in the order of the queries: (batch, heads, length, keys)."""
    index = part.blocks.query_index.flatten(2)  # (batch, heads, places)
    bias = part.full_bias()
    bias = torch.zeros(1) if bias is None else bias
    bias = bias.expand(*part.blocks.query_index.shape, -1).flatten(2, 4)
    rows = bias.new_zeros(*index.shape[:2], length + 1, bias.shape[-1])
    return rows.scatter(2, index.unsqueeze(-1).expand_as(bias), bias)[:, :, :length]
