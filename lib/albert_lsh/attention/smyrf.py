"""SMYRF attention (Daras et al. 2020): pretrained projections, balanced clusters by asymmetric hashing.

Queries and keys are hashed, sorted and cut as in `plain_lsh`, in `n_hashes` rounds. A query attends inside its cluster
in every round, and the rounds are merged by their log-sum-exp: unlike in `plain-lsh`, a key that is met in several
rounds weighs several times. The paper completes the norms with two largest norms, we with one for both sides.
"""

import torch
from torch import Tensor

from albert_lsh.attention import plain_lsh
from albert_lsh.attention.compute.dispatch import attend
from albert_lsh.attention.definition import Attention
from albert_lsh.attention.rows import token_mask
from albert_lsh.attention.seen import Seen, count_pairs


@torch.no_grad()
def see(query: Tensor, key: Tensor, padding_mask: Tensor | None, *, n_hashes, cluster_size, generator) -> Seen:
    """The keys that share a cluster with the query, in every round."""
    settings = {"n_hashes": n_hashes, "cluster_size": cluster_size, "generator": generator, "scaling": 1.0}
    with torch.autocast(query.device.type, enabled=False):
        seen = plain_lsh.see(query.float(), key.float(), token_mask(query, padding_mask), **settings)
    return seen._replace(clusters=None)


def smyrf_attention(
    query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None, **settings
) -> Tensor:
    """Softmax over all that a query meets in its clusters; the choice of clusters has no gradient."""
    seen = see(query, key, padding_mask, generator=generator, **settings)
    return attend(query, key, value, seen, scaling=scaling, dropout=dropout)[0]


def smyrf_pairs(query, key, padding_mask=None, *, generator=None, **settings) -> Tensor:
    """How often each query meets each key: (batch, heads, length, length), int."""
    return count_pairs(see(query, key, padding_mask, generator=generator, **settings), query.shape[2])


SMYRF = Attention(
    "SMYRF: plain-lsh as published, a key met in several rounds weighing several times",
    smyrf_attention,
    smyrf_pairs,
    plain_lsh.cost,
    settings={"n_hashes": 4, "cluster_size": 32},
    spend=plain_lsh.spend,
    spent=("n_hashes", "cluster_size"),
    share=0.25,
)
