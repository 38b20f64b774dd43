"""The mean key (`mean_key`) of clusters that are computed one at a time, from sums of clusters: no row for each query.

Its score is the sum of a query's products with the sums of the clusters that it does not see, divided by their number
of keys; the logarithm of that number is added. So there are as many products as clusters. `mean_key` would keep the
mean key and value of every query: three times softmax's memory in place of 1.4 times.
"""

from torch import Tensor

from albert_lsh.attention.rows import LOG2_E, MASKED


class ClusterMeans:
    """Of some heads at once, or of one: tensors begin with the same dimensions. All are float32."""

    def __init__(self, unseen: Tensor, sizes: Tensor, keys: Tensor, values: Tensor, query: Tensor, scaling: float):
        """
        Args:
            unseen: (..., clusters, length), 1 where a query does not see a cluster, else 0. sizes: (..., clusters), of
                their keys. keys, values: (..., clusters, dim), their sums. query: (..., length, dim).
        """
        self.unseen, self.keys, self.values, self.query = unseen, keys, values, query.float()
        self.number = (sizes.float().unsqueeze(-2) @ unseen).squeeze(-2)
        products = (keys @ self.query.mT).mul_(unseen).sum(-2).mul_(scaling)
        self.scores = (products / self.number + self.number.log()).masked_fill_(self.number == 0, MASKED)
        self.number.clamp_(min=1)

    def parts(self, weight: Tensor) -> Tensor:
        """Of the mean key's weight (..., length) what falls to a cluster's sum of values, (..., clusters, length)."""
        return self.unseen * (weight / self.number).unsqueeze(-2)

    def gradients(self, total: Tensor, up: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the query and of the sums of keys, both by their bare products, and of the sums of values.

        total: (..., length), log-sum-exp of the scores of all keys that are seen and of the mean key. up: (..., length,
        dim), of the output. delta: see `compute.Backend`.
        """
        parts, up = self.parts(((self.scores - total) * LOG2_E).exp2_()), up.float()
        grad_mean = (self.values @ up.mT).mul_(self.unseen).sum(-2) / self.number
        grad_scores = parts * (grad_mean - delta).unsqueeze(-2)
        return grad_scores.mT @ self.keys, grad_scores @ self.query, parts @ up
