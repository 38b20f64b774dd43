"""HyperAttention (Han et al. 2023, arXiv 2310.05869, algorithms 1 to 3): sorted hashes, and sampled columns.

Queries and keys are hashed to the signs of their products with the same random vectors. Both are sorted by the place of
their signs in a Gray code, in which neighbours differ in one sign, and cut into blocks: a query sees the keys of its
block. Besides, all queries of a head see a sample of keys; one that is not in the query's block counts n / sample_size
times. The sample is uniform, as in the authors' code, but drawn without replacement. Causal attention is not here.
"""

import torch
from torch import Tensor

from albert_lsh.attention import register
from albert_lsh.attention.choose.hashing import along, beyond, cut, draw_directions, sort_tokens
from albert_lsh.attention.compute import attend
from albert_lsh.attention.core import Budgeted, Count
from albert_lsh.attention.keys import Keys, cluster_tables
from albert_lsh.attention.rows import count_tokens, largest, look_up, per_sequence, token_mask

BITS = 7  # of a hash: the authors' default


def place_in_gray_code(signs: Tensor) -> Tensor:
    """The rank in the Gray code of bool signs (..., bits, length), the first being the highest bit: (..., length)."""
    binary = signs.long().cumsum(-2).remainder(2)
    return (binary << torch.arange(signs.shape[-2] - 1, -1, -1, device=signs.device)[:, None]).sum(-2)


@register
class Hyper(Budgeted):
    name = "hyper"
    description = "HyperAttention: blocks of sorted hashes, and sampled keys that stand for all others"
    usual_share = 0.25
    sizes = ("cluster_size", "sample_size")
    fewest = 2

    cluster_size: Count = 32
    sample_size: Count = 32

    @torch.no_grad()
    def choose_keys(self, query, key, padding_mask, generator) -> tuple[Keys, Keys]:
        """The keys of each query's block, and those of the sample that are not in it."""
        mask, length = token_mask(query, padding_mask), query.shape[2]
        directions = draw_directions(query.shape[1], query.shape[3], BITS, generator).to(query.device)
        drawn = torch.rand(length, query.shape[1], generator=generator, dtype=torch.float32, device="cpu")
        with torch.autocast(query.device.type, enabled=False):
            places = [place_in_gray_code(along(x.float(), directions) >= 0).unsqueeze(2) for x in (query, key)]
        queries, keys = (cut(sort_tokens(place, mask), mask[:, 0].sum(-1), self.cluster_size) for place in places)
        order = sort_tokens(drawn.T[None, :, None].expand(len(query), -1, -1, -1).to(query.device), mask).squeeze(2)
        tokens = mask.sum(-1, keepdim=True)
        order = order.masked_fill(torch.arange(length, device=order.device) >= tokens, length)
        sample = beyond(order[..., : largest(self.sample_size)], self.sample_size, length)
        blocks = look_up(cluster_tables(queries, keys, length)[1].squeeze(2), sample)
        number = torch.arange(keys.shape[3], device=keys.device)[:, None]
        outside = sample.unsqueeze(2).masked_fill(blocks.unsqueeze(2) == number, length)
        return Keys(queries, keys), Keys(queries, outside.unsqueeze(2))

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        n = count_tokens(query, padding_mask).float()
        times = (n / n.minimum(torch.as_tensor(self.sample_size, device=n.device)).clamp(min=1)).clamp(min=1).log()
        block, sample = (
            attend(query, key, value, keys, scaling=scaling, dropout=dropout)
            for keys in self.choose_keys(query, key, padding_mask, generator)
        )
        weight = torch.sigmoid(sample[1] + per_sequence(times, 3) - block[1]).unsqueeze(-1)
        return torch.lerp(block[0].float(), sample[0].float(), weight).to(query.dtype)

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        block, sample = self.choose_keys(query, key, padding_mask, generator)
        return block.count_pairs(query.shape[2]) + sample.count_pairs(query.shape[2])

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        """Half for either."""
        keys = max(self.fewest, keys)
        return {"cluster_size": keys // 2, "sample_size": keys - keys // 2}

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: hashes of queries and keys, and the pairs of blocks and sample."""
        return 2 * length * (BITS + min(self.cluster_size, length) + min(self.sample_size, length)) * head_dim
