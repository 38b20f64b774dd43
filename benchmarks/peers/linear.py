"""Linear attention: exp(q.k) becomes phi(q).phi(k) (Katharopoulos et al. 2020, "Transformers are RNNs", eq. 4 to 7).

With phi(x) = elu(x) + 1 the sums over all keys are the same for every query, so that cost and memory are linear in the
length. There are no attention weights, and so none are dropped.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention import Attention, register
from albert_lsh.attention.rows import token_mask


@register
class Linear(Attention):
    name = "linear"
    description = "linear: products of features in the place of exp(q.k)"

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """Weighted means of all values, in float32. scaling and dropout are not used."""
        with torch.autocast(query.device.type, enabled=False):
            query_features, key_features = F.elu(query.float()) + 1, F.elu(key.float()) + 1
            key_features = key_features * token_mask(key, padding_mask).unsqueeze(-1)
            sums = key_features.transpose(-1, -2) @ value.float()  # (batch, heads, head_dim, head_dim)
            weight = query_features @ key_features.sum(2).unsqueeze(-1)
            return ((query_features @ sums) / weight.clamp(min=1e-12)).to(query.dtype)

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the sums over the keys, and one product with them for each query."""
        return 2 * length * head_dim**2 + length * head_dim
