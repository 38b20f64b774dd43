"""References of the attentions that estimate softmax over all keys, or take its place; see `naive.py`."""

import math

import torch
from torch import Tensor

from albert_lsh.attention.choose.hashing import draw_directions, generators_of_rounds
from albert_lsh.attention.published.improved_clustered import BITS, ROUNDS
from references.naive import attend_counted, each_sequence, most, resolved, unit


def with_convolution(attend_one, size, weight):
    """attend_one, with its rows plus the sum of the values near each token, weighted by how far away they stand."""

    def one(tokens, h, q, k, v):
        apart = tokens[None] - tokens[:, None] + size // 2  # of key from query: the number of the filter's weight
        near = (apart >= 0) & (apart < size)
        weights = torch.where(near, weight[h].double()[apart.clamp(0, size - 1)], 0)
        return attend_one(tokens, h, q, k, v) + weights @ v.double()

    return attend_one if size is None else one


def nystrom(query, key, value, padding_mask=None, *, pinv_iterations, scaling, generator=None, **settings) -> Tensor:
    size, weight = settings["conv_kernel_size"], settings.pop("conv_weight", None)

    def one(tokens, h, q, k, v):
        n, m = len(q), resolved("nystrom", settings, len(q))["num_landmarks"]
        if n <= m:
            return attend_counted(q, k, v, torch.ones(n, n), scaling)
        q, k = q.double(), k.double()
        segments = [[i for i in range(n) if i * m // n == s] for s in range(m)]
        mean_q, mean_k = (torch.stack([x[s].mean(0) for s in segments]) for x in (q, k))
        middle, eye = (mean_q @ mean_k.T * scaling).softmax(-1), torch.eye(m).double()
        inverse = middle.T / middle.sum(0).max()
        for _ in range(pinv_iterations):
            product = middle @ inverse
            inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
        last = (mean_q @ k.T * scaling).softmax(-1) @ v.double()
        return (q @ mean_k.T * scaling).softmax(-1) @ inverse @ last

    return each_sequence(query, key, value, padding_mask, with_convolution(one, size, weight))


def yoso_one(q, k, v, weights, slopes, hash_code_len):
    """Weighted sums of unit length; the gradient of a weight with respect to q.k is hash_code_len / 2 times its slope.

    weights, slopes: (n, n), those of the sum, and those that stand for them in the gradient.
    """
    scores, v = unit(q) @ unit(k).T, v.double()
    change = slopes.detach() * (1 + hash_code_len / 2 * (scores - scores.detach())) @ v
    total = weights.detach() @ v.detach() + (change - change.detach())
    return unit(total).where(total.detach().any(-1, keepdim=True), 0)  # no gradient where nothing collides


def expected(q, k, hash_code_len):
    return (1 - (unit(q) @ unit(k).T).clamp(-1, 1).acos() / math.pi) ** hash_code_len


def code_length(settings, n):
    return settings["hash_code_len"] or max(1, math.ceil(math.log2(n)))


def yoso_e(query, key, value, padding_mask=None, *, conv_kernel_size, conv_weight=None, **settings) -> Tensor:
    def one(tokens, h, q, k, v):
        bits = code_length(settings, len(q))
        weights = expected(q, k, bits)
        return yoso_one(q, k, v, weights, weights, bits)

    return each_sequence(query, key, value, padding_mask, with_convolution(one, conv_kernel_size, conv_weight))


def yoso(query, key, value, padding_mask=None, *, n2_backward, scaling, generator=None, **settings) -> Tensor:
    size, weight = settings["conv_kernel_size"], settings.pop("conv_weight", None)
    rounds = generators_of_rounds(most("yoso", "n_hashes", settings, query, padding_mask), generator)
    draws = [draw_directions(query.shape[1], query.shape[3], 20, one) for one in rounds]

    def one(tokens, h, q, k, v):
        bits, alike = code_length(settings, len(q)), torch.zeros(len(q), len(q)).double()
        own = resolved("yoso", settings, len(q))["n_hashes"]
        for drawn in draws[:own]:
            signs = [x.detach().float() @ drawn[h, :bits].T > 0 for x in (q, k)]
            alike += (signs[0][:, None] == signs[1][None]).all(-1)
        weights = alike / own
        return yoso_one(q, k, v, weights, expected(q, k, bits) if n2_backward else weights, bits)

    return each_sequence(query, key, value, padding_mask, with_convolution(one, size, weight))


def cluster_one(signs: Tensor, count: int) -> list[int]:
    """k-means under Hamming distance of one head; signs: (n, bits) bool. The cluster of each row."""
    rows = signs.tolist()
    centres = [rows[c * len(rows) // count] for c in range(count)]

    def nearest(row):
        apart = [sum(x != y for x, y in zip(row, centre, strict=True)) for centre in centres]
        return apart.index(min(apart))

    for _ in range(ROUNDS):
        found = [nearest(row) for row in rows]
        for c in range(count):
            members = [row for row, own in zip(rows, found, strict=True) if own == c]
            if members:
                centres[c] = [2 * sum(bit) >= len(members) for bit in zip(*members, strict=True)]
    return [nearest(row) for row in rows]


def improved_clustered(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    directions = draw_directions(query.shape[1], query.shape[3], BITS, generator)

    def one(tokens, h, q, k, v):
        n, own = len(q), resolved("improved-clustered", settings, len(q))
        cluster = torch.tensor(cluster_one(q.detach().float() @ directions[h].T >= 0, own["num_clusters"]))
        q, k, v = q.double(), k.double(), v.double()
        rows = []
        for i in range(n):
            weights = (q[cluster == cluster[i]].mean(0) @ k.T * scaling).softmax(-1)
            chosen = weights.detach().topk(min(own["top_keys"], n)).indices
            others = weights.scatter(0, chosen, 0.0)
            exact = (k[chosen] @ q[i] * scaling).softmax(-1) @ v[chosen]
            rows.append(weights[chosen].sum() * exact + others @ v)
        return torch.stack(rows)

    return each_sequence(query, key, value, padding_mask, one)
