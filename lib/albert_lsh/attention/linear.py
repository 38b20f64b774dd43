"""Linear attention (Katharopoulos et al. 2020, "Transformers are RNNs", equations 4 to 7): exp(q.k) as phi(q).phi(k).

With phi(x) = elu(x) + 1 the sums over all keys are the same for every query, so that cost and memory are linear in the
length. There are no attention weights, and so none are dropped.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.definition import Attention
from albert_lsh.attention.rows import token_mask
from albert_lsh.attention.softmax import all_pairs


def linear_attention(query, key, value, padding_mask=None, *, scaling, dropout=0.0, generator=None) -> Tensor:
    """Weighted means of all values, in float32. scaling and dropout are not used."""
    with torch.autocast(query.device.type, enabled=False):
        of_query, of_key = F.elu(query.float()) + 1, F.elu(key.float()) + 1
        of_key = of_key * token_mask(key, padding_mask).unsqueeze(-1)
        sums = of_key.transpose(-1, -2) @ value.float()  # (batch, heads, head_dim, head_dim)
        weight = of_query @ of_key.sum(2).unsqueeze(-1)
        return ((of_query @ sums) / weight.clamp(min=1e-12)).to(query.dtype)


def cost(length: int, head_dim: int) -> float:
    """Multiply-adds of one head: the sums over the keys, and one product with them and their weights for each query."""
    return 2 * length * head_dim**2 + length * head_dim


LINEAR = Attention(
    "linear: products of features in the place of exp(q.k)", linear_attention, all_pairs, cost, drops=False
)
