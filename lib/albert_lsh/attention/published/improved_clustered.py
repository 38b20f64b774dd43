"""Improved clustered attention (Vyas, Katharopoulos, Fleuret 2020, section 3.3): queries in clusters, exact best keys.

Queries are hashed to bits and clustered by k-means under Hamming distance. The mean query of a cluster attends to all
keys. Each query of the cluster keeps these weights, but on the `top_keys` that the mean query weighs most: their
weight altogether stays, and is dealt out among them by the query's own softmax.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.choose.hashing import best, draw_directions
from albert_lsh.attention.core import Budgeted, Count
from albert_lsh.attention.rows import MASKED, largest, means_of_groups, per_sequence, take, token_mask, tokens_first

BITS = 63  # of a query's hash, and ROUNDS of k-means: the authors' defaults
ROUNDS = 10


def count_bits(numbers: Tensor) -> Tensor:
    """How many bits of each number are set; int64, not negative."""
    pairs = numbers - ((numbers >> 1) & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + ((pairs >> 2) & 0x3333333333333333)
    return (((fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F) * 0x0101010101010101) >> 56


@torch.no_grad()
def assign(query: Tensor, mask: Tensor, num_clusters: int | Tensor, generator: torch.Generator | None) -> Tensor:
    """The cluster of each query: (batch, heads, length), long; the largest number of clusters for padding.

    k-means begins with queries evenly spaced over the sequence. A bit of a centre is what most of its members have; a
    centre without members stays where it is. Ties go to the first cluster, and to a set bit.
    """
    most = largest(num_clusters)
    length = mask.shape[-1]
    directions = draw_directions(query.shape[1], query.shape[3], BITS, generator).to(query.device)
    signs = (torch.einsum("bhld,hrd->bhlr", query, directions) >= 0) & mask.unsqueeze(-1)
    power = 2 ** torch.arange(BITS, device=query.device)
    n, number = mask.sum(-1, keepdim=True), per_sequence(num_clusters, 3)
    rank = torch.arange(most, device=query.device) * n // number
    first = tokens_first(mask).gather(-1, rank.clamp(max=length - 1))
    code, centre = (signs * power).sum(-1), (take(signs, first) * power).sum(-1)
    unused = (torch.arange(most, device=query.device) >= number).unsqueeze(-2)

    def nearest_to(centre: Tensor) -> Tensor:
        distance = count_bits(code.unsqueeze(-1) ^ centre.unsqueeze(-2)).masked_fill(unused, BITS + 1)
        return distance.argmin(-1).masked_fill(~mask, most)

    for _ in range(ROUNDS):
        nearest = nearest_to(centre)
        index = nearest.unsqueeze(-1).expand_as(signs)
        votes = index.new_zeros(*index.shape[:2], most + 1, BITS).scatter_add(2, index, signs.long())[:, :, :most]
        members = nearest.new_zeros(*nearest.shape[:2], most + 1).scatter_add(2, nearest, mask.long())[..., :most]
        centre = torch.where(members > 0, ((2 * votes >= members.unsqueeze(-1)) * power).sum(-1), centre)
    return nearest_to(centre)


class ImprovedClustered(Budgeted):
    name = "improved-clustered"
    description = "improved clustered attention: mean queries see all keys, and each query its cluster's best ones"
    usual_share = 0.25
    sizes = ("num_clusters", "top_keys")
    fewest = 2

    num_clusters: Count = 25
    top_keys: Count = 32

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """By way of mean queries, corrected on their best keys; scores and weights in float32.

        dropout: probability with which a weight, of a mean query or of a query, is dropped.
        """
        mask = token_mask(query, padding_mask)
        most = largest(self.num_clusters)
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = query.float(), key.float(), value.float()
            cluster = assign(q, mask, self.num_clusters, generator)
            scores = (means_of_groups(q, cluster, most) @ k.transpose(-1, -2)) * scaling
            weights = scores.masked_fill(~mask.unsqueeze(2), MASKED).softmax(-1)
            chosen = best(weights.detach(), mask.unsqueeze(2), self.top_keys)
            padded = F.pad(weights, (0, 1))
            mass = padded.gather(-1, chosen).sum(-1, keepdim=True)
            others = F.dropout(padded.scatter(-1, chosen, 0.0)[..., :-1], dropout) @ v
            chosen_keys = take(chosen, cluster).masked_fill((cluster == most).unsqueeze(-1), q.shape[2])
            exact = (take(k, chosen_keys) @ q.unsqueeze(-1)).squeeze(-1) * scaling
            exact = F.dropout(exact.masked_fill(chosen_keys == q.shape[2], MASKED).softmax(-1), dropout)
            best_values = (exact.unsqueeze(-2) @ take(v, chosen_keys)).squeeze(-2)
            out = take(mass, cluster) * best_values + take(others, cluster)
        return out.to(query.dtype)

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        """A mean query costs as much as a key of every query; half of the budget for either."""
        keys = max(self.fewest, keys)
        return {"num_clusters": keys // 2, "top_keys": keys - keys // 2}

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: hashes, mean queries with all keys, the best keys. k-means multiplies nothing."""
        return length * (BITS + 2 * (self.num_clusters + min(self.top_keys, length))) * head_dim
