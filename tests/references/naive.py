"""References: short, slow, obviously right. The tests hold every attention, its output and gradients, against these.

Each takes the arguments of the attention of its name, draws the same random numbers, goes through sequences, heads,
rounds and tokens one by one, and ends in a plain softmax over the keys that a query may see. A budget is resolved for
each sequence alone; what it resolves to is tested in test_budget.py. (nystrom and yoso, which estimate instead, are in
`naive_estimators.py`; what `lsh` and `key-clusters` see, stands beside them in the library.)
"""

import math

import torch
from torch import Tensor

from albert_lsh.attention import make
from albert_lsh.attention.choose.hashing import draw_directions, generators_of_rounds
from albert_lsh.attention.controls import draw_order
from albert_lsh.attention.key_clusters import naive as naive_key_clusters
from albert_lsh.attention.lsh import naive as naive_lsh
from albert_lsh.attention.shared_qk import MOST_BUCKETS, draw_rotations
from albert_lsh.attention.shared_qk import naive as one_shared_qk


def attend_counted(query, key, value, counts: Tensor, scaling: float) -> Tensor:
    """Softmax attention of one sequence and head in which key j stands counts[i, j] times before query i.

    query: (n, head_dim); key, value: (m, head_dim); counts: (n, m). A query with no key at all gives zeros.
    """
    scores = query.double() @ key.double().T * scaling + counts.double().log()
    return torch.nan_to_num(scores.softmax(-1)) @ value.double()


def each_sequence(query, key, value, padding_mask, attend_one) -> Tensor:
    """Call attend_one(tokens, head, q, k, v) for each sequence and head, padding taken out; put the rows back.

    tokens: (n,) positions of what is not padding; q, k, v: (n, head_dim).
    """
    out = torch.zeros_like(value, dtype=torch.float64)
    for b in range(query.shape[0]):
        tokens = torch.arange(query.shape[2]) if padding_mask is None else padding_mask[b].nonzero()[:, 0]
        for h in range(query.shape[1]):
            if len(tokens):
                rows = attend_one(tokens, h, query[b, h, tokens], key[b, h, tokens], value[b, h, tokens])
                out = out.index_put((torch.tensor(b), torch.tensor(h), tokens), rows)
    return out


def nearby(query, key, value, padding_mask, distance, *, scaling) -> Tensor:
    """Of local layers: keys at most `distance` positions away."""

    def one(tokens, h, q, k, v):
        return attend_counted(q, k, v, (tokens[:, None] - tokens).abs() <= distance, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def softmax(query, key, value, padding_mask=None, *, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        return attend_counted(q, k, v, torch.ones(len(q), len(q)), scaling)

    return each_sequence(query, key, value, padding_mask, one)


def unit(x: Tensor) -> Tensor:
    return x.double() / x.double().norm(dim=-1, keepdim=True).clamp(min=1e-12)


def shared_qk_one(q, v, counts, scaling, causal):
    """Shared-QK attention of one sequence: unit-length queries as keys, oneself only where nothing else is seen."""
    counts = counts.clone().fill_diagonal_(0)
    for i in range(len(q)):
        if causal:
            counts[i, i + 1 :] = 0
    alone = counts.sum(-1) == 0
    counts[alone, alone] = 1
    return attend_counted(q, unit(q), v, counts, scaling)


def shared_qk(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    def one(tokens, h, q, k, v):
        return one_shared_qk(q.double(), k.double(), v.double(), scaling, **settings) if len(q) else v

    return each_sequence(query, key, value, padding_mask, one)


def even_cut(order: list[int], size: int) -> list[list[int]]:
    """Cut a list into ceil(n / size) parts of sizes that differ by one at most."""
    n, parts = len(order), math.ceil(len(order) / size)
    return [order[c * n // parts : (c + 1) * n // parts] for c in range(parts)]


def choices(n_buckets: int, most: int) -> list[int]:
    """Even numbers of buckets, none above `most`, whose product is at least n_buckets."""
    return [n_buckets] if n_buckets <= most else [most, *choices(2 * math.ceil(n_buckets / most / 2), most)]


def resolved(name: str, settings: dict, n: int) -> dict:
    """The settings of a sequence of n tokens."""
    return vars(make(name, settings).resolve(torch.tensor([n])))


def most(name: str, setting: str, settings: dict, query, padding_mask) -> int:
    """The largest value that a setting has in a batch."""
    counts = [query.shape[2]] if padding_mask is None else padding_mask.sum(-1).tolist()
    return max(resolved(name, settings, n)[setting] for n in counts)


def shared_qk_lsh(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    def needed(n: int, bucket_size: int) -> list[int]:
        return choices(2 * math.ceil(n / bucket_size / 2), MOST_BUCKETS)

    counts = [query.shape[2]] if padding_mask is None else padding_mask.sum(-1).tolist()
    each = [needed(n, resolved("shared-qk-lsh", settings, n)["bucket_size"]) for n in counts]
    n_hashes = most("shared-qk-lsh", "n_hashes", settings, query, padding_mask)
    widest = [max((e[i] for e in each if i < len(e)), default=0) for i in range(max(map(len, each)))]
    generators = generators_of_rounds(n_hashes, generator)
    rotations = [draw_rotations(query, n_buckets, generators) for n_buckets in widest]

    def one(tokens, h, q, k, v):
        n, chunks, own = len(q), [], resolved("shared-qk-lsh", settings, len(q))
        for r in range(own["n_hashes"]):
            bucket: list[list[int]] = []
            for drawn, n_buckets in zip(rotations, needed(n, own["bucket_size"])):  # noqa: B905 - others choose more
                rotated = q.float() @ drawn[h, r, :, : n_buckets // 2]
                bucket.insert(0, torch.cat([rotated, -rotated], -1).argmax(-1).tolist())
            row = sorted(range(n), key=lambda i: ([choice[i] for choice in bucket], i))
            chunks += even_cut(row, own["bucket_size"])
        counts = torch.zeros(n, n)
        for c, chunk in enumerate(chunks):
            for i in chunk:
                for j in chunk + chunks[c - 1]:
                    counts[i, j] += 1
        if not own["mean_key"]:
            return shared_qk_one(q, v, counts, scaling, own["causal"])
        counts = torch.cat([counts.fill_diagonal_(0), torch.full((n, 1), n)], dim=1)  # and the mean of all
        k, v = (torch.cat([x, x.mean(0, keepdim=True)]) for x in (unit(q), v.double()))
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def best(scores: Tensor, count: int) -> list[int]:
    """The positions of the `count` highest scores."""
    return scores.argsort(descending=True, stable=True)[:count].tolist()


def places_one(x: Tensor, n_axes: int) -> Tensor:
    """Where the rows (n, dim) lie on the principal axes, which a sample of them has, approximately: (n, axes)."""
    n, n_axes = len(x), min(n_axes, max(4, len(x) // 10))
    count = min(n, max(8, min(math.isqrt(16 * n), n // 4)))
    sample = x[[i * n // count for i in range(count)]]
    mean = sample.mean(0)
    sample = sample - mean
    axes = torch.stack([sample[a :: n_axes + 1].sum(0) for a in range(n_axes)], dim=1)
    for _ in range(2):
        axes, factor = torch.linalg.qr((sample.T @ (sample @ axes)).double())
        axes = (axes * factor.diagonal().sign()).float()
    return (x - mean) @ axes


def meetings(rounds, n: int, size: int) -> Tensor:
    """How often query i and key j stand in clusters of the same number: (n, n); rounds of values to sort both by."""
    counts = torch.zeros(n, n)
    for both in rounds:
        clusters = [even_cut(values.argsort(stable=True).tolist(), size) for values in both]
        for queries, keys in zip(*clusters, strict=True):
            for i in queries:
                counts[i, keys] += 1
    return counts


def global_one(q, k, count: int) -> list[int]:
    """The keys that the mean query scores highest."""
    return best(k @ q.mean(0), count)


def with_mean_key(q, k, v, counts: Tensor, scaling: float) -> Tensor:
    """`attend_counted` with one key more for each query, the mean of those not seen, in the place of all of them."""
    q, k, v = q.double(), k.double(), v.double()
    unseen = (counts == 0).double()
    number = unseen.sum(-1, keepdim=True)
    mean_k, mean_v = (unseen @ x / number.clamp(min=1) for x in (k, v))
    of_mean = (q * mean_k).sum(-1, keepdim=True) * scaling + number.log()
    weights = torch.cat([q @ k.T * scaling + counts.double().log(), of_mean], dim=1).softmax(-1)
    return weights[:, :-1] @ v + weights[:, -1:] * mean_v


def over_chosen(name, tensors, settings, scaling, count) -> Tensor:
    """Softmax over the keys that count(tokens, head, q, k, own settings) counts, (n, n), and over global tokens.

    tensors: query, key, value and padding mask. Each key weighs once, but in smyrf.
    """

    def one(tokens, h, q, k, v):
        own = resolved(name, settings, len(q))
        fq, fk = q.detach().float(), k.detach().float()
        counts = count(tokens, h, fq, fk, own)
        if name == "smyrf":
            return attend_counted(q, k, v, counts, scaling)
        counts[:, global_one(fq, fk, own.get("global_tokens", 0))] = 1
        return (with_mean_key if own["mean_key"] else attend_counted)(q, k, v, counts.clamp(max=1), scaling)

    return each_sequence(*tensors, one)


def key_clusters(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    def count(tokens, h, q, k, own):
        sizes = {name: own[name] for name in ("n_hashes", "cluster_size", "global_tokens")}
        n_axes = min(own["axes"], k.shape[-1])
        seen = naive_key_clusters(q, k, lambda keys: places_one(keys, n_axes), **sizes, scaling=scaling)
        return seen.float()

    return over_chosen("key-clusters", (query, key, value, padding_mask), settings, scaling, count)


def lsh(query, key, value, padding_mask=None, *, scaling, generator=None, name="lsh", **settings) -> Tensor:
    n_hashes = most(name, "n_hashes", settings, query, padding_mask)
    draws = draw_directions(query.shape[1], query.shape[3] + 2, n_hashes, generator)

    def count(tokens, h, q, k, own):
        return naive_lsh(q, k, draws[h][: own["n_hashes"]], own["cluster_size"])

    return over_chosen(name, (query, key, value, padding_mask), settings, scaling, count)


def smyrf(query, key, value, padding_mask=None, **settings) -> Tensor:
    return lsh(query, key, value, padding_mask, name="smyrf", **settings)


def random(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    n_hashes = most("random", "n_hashes", settings, query, padding_mask)
    query_order, key_order = draw_order(query.shape[2], query.shape[1], n_hashes, generator)

    def count(tokens, h, q, k, own):
        rounds = [(query_order[h, r, tokens], key_order[h, r, tokens]) for r in range(own["n_hashes"])]
        return meetings(rounds, len(q), own["cluster_size"])

    return over_chosen("random", (query, key, value, padding_mask), settings, scaling, count)


def window(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    def count(tokens, h, q, k, own):
        n, counts, span = len(q), torch.zeros(len(q), len(q)), min(len(q), own["keys"])
        for block in even_cut(list(range(n)), max(1, own["keys"] // 8)):
            first = min(max(block[0] - (span - len(block) + 1) // 2, 0), n - span)
            counts[block, first : first + span] = 1
        return counts

    return over_chosen("window", (query, key, value, padding_mask), settings, scaling, count)


def top_k(query, key, value, padding_mask=None, *, scaling, generator=None, **settings) -> Tensor:
    def count(tokens, h, q, k, own):
        counts = torch.zeros(len(q), len(q))
        for i in range(len(q)):
            counts[i, best(k @ q[i], own["keys"])] = 1
        return counts

    return over_chosen("top-k", (query, key, value, padding_mask), settings, scaling, count)
