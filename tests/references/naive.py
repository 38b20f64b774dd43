"""References: short, slow, obviously right. The tests hold every attention, its output and gradients, against these.

Each takes the same arguments as the attention of its name and draws the same random numbers, then goes through
sequences, heads, rounds and tokens one by one and ends in a plain softmax over the keys that a query may see. (Those of
nystrom and yoso, which estimate instead, are in `naive_estimators.py`.)
"""

import math

import torch
from torch import Tensor

from albert_lsh.attention import lsh as lsh_module
from albert_lsh.attention import shared_qk as shared_qk_module
from albert_lsh.attention.select.hashing import draw_directions
from albert_lsh.attention.select.tree import POWER_STEPS
from albert_lsh.attention.shared_qk import draw_rotations


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


def softmax(query, key, value, padding_mask=None, *, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        return attend_counted(q, k, v, torch.ones(len(q), len(q)), scaling)

    return each_sequence(query, key, value, padding_mask, one)


def shared_qk_one(q, v, counts, scaling):
    """Shared-QK attention of one sequence: unit-length queries as keys, oneself only where nothing else is seen."""
    k = q.double() / q.double().norm(dim=-1, keepdim=True).clamp(min=1e-12)
    counts = counts.clone().fill_diagonal_(0)
    alone = counts.sum(-1) == 0
    counts[alone, alone] = 1
    return attend_counted(q, k, v, counts, scaling)


def shared_qk(query, key, value, padding_mask=None, *, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        return shared_qk_one(q, v, torch.ones(len(q), len(q)), scaling)

    return each_sequence(query, key, value, padding_mask, one)


def even_cut(order: list[int], size: int) -> list[list[int]]:
    """Cut a list into ceil(n / size) parts of sizes that differ by one at most."""
    n, parts = len(order), math.ceil(len(order) / size)
    return [order[c * n // parts : (c + 1) * n // parts] for c in range(parts)]


def choices(n_buckets: int, most: int) -> list[int]:
    """Even numbers of buckets, none above `most`, whose product is at least n_buckets."""
    return [n_buckets] if n_buckets <= most else [most, *choices(2 * math.ceil(n_buckets / most / 2), most)]


def shared_qk_lsh(query, key, value, padding_mask=None, *, bucket_size, n_hashes, scaling, generator=None) -> Tensor:
    def needed(n: int) -> list[int]:
        return choices(2 * math.ceil(n / bucket_size / 2), shared_qk_module.MOST_BUCKETS)

    most = query.shape[2] if padding_mask is None else int(padding_mask.sum(-1).max())
    rotations = [draw_rotations(query, n_buckets, n_hashes, generator) for n_buckets in needed(most)]

    def one(tokens, h, q, k, v):
        n, chunks = len(q), []
        for r in range(n_hashes):
            bucket: list[list[int]] = []
            for drawn, n_buckets in zip(rotations, needed(n)):  # noqa: B905 - the longest sequence chooses more often
                rotated = q.float() @ drawn[h, r, :, : n_buckets // 2]
                bucket.insert(0, torch.cat([rotated, -rotated], -1).argmax(-1).tolist())
            row = sorted(range(n), key=lambda i: ([choice[i] for choice in bucket], i))
            chunks += even_cut(row, bucket_size)
        counts = torch.zeros(n, n)
        for c, chunk in enumerate(chunks):
            for i in chunk:
                for j in chunk + chunks[c - 1]:
                    counts[i, j] += 1
        return shared_qk_one(q, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def best(scores: Tensor, count: int) -> list[int]:
    """The positions of the `count` highest scores."""
    return scores.argsort(descending=True, stable=True)[:count].tolist()


def middle(x: Tensor) -> Tensor:
    return x - x.mean(0)


def hash_one(hashing, q, k, draws) -> tuple[Tensor, Tensor]:
    """Values to sort queries and keys by, (rounds, n) each; draws (rounds, ...) as `hashing` makes them."""
    if hashing == "plain":
        m2 = max(q.square().sum(-1).max(), k.square().sum(-1).max())
        rest_q, rest_k = ((m2 - x.square().sum(-1)).clamp(min=0).sqrt() for x in (q, k))
        a, b, c = draws[:, :-2], draws[:, -2:-1], draws[:, -1:]
        return a @ q.T + b * rest_q, a @ k.T + c * rest_k
    q, k = middle(q), middle(k)
    if hashing == "keys":
        directions = draws @ k.T @ k
        return directions @ q.T, directions @ k.T
    unit = draws.view(len(draws), -1, q.shape[-1])
    unit = unit / unit.norm(dim=-1, keepdim=True)

    def bucket(x, directions):
        turned = x / x.norm().clamp(min=1e-12) @ directions.T
        turned = torch.cat([turned, -turned])
        return turned.argmax() + (1 - turned.max()) / 4

    q, k = (torch.stack([torch.stack([bucket(x, d) for x in rows]) for d in unit]) for rows in (q, k))
    return q, k


def draw_for(hashing, heads, dim, n_hashes, generator) -> Tensor:
    """The random numbers that a hashing draws: (heads, n_hashes, ...)."""
    if hashing == "cross-polytope":
        return draw_directions(heads, dim, n_hashes * max(1, dim // 2), generator).view(heads, n_hashes, -1)
    return draw_directions(heads, dim + 2 if hashing == "plain" else dim, n_hashes, generator)


def tree_one(x: Tensor, n_leaves: int, start: Tensor) -> list[list[int]]:
    """Split in two along the leading direction, and each half again, until there are n_leaves parts of equal size."""
    bounds = [c * len(x) // n_leaves for c in range(n_leaves + 1)]

    def split(members: Tensor, first: int, width: int) -> list[list[int]]:
        if width == 1:
            return [members.tolist()]
        inside = middle(x[members])
        along = inside @ start
        for _ in range(POWER_STEPS):
            direction = along @ inside
            along = inside @ (direction / direction.norm().clamp(min=1e-12))
        members, half = members[along.argsort(stable=True)], first + width // 2
        if half >= n_leaves:
            return split(members, first, width // 2)
        left = bounds[half] - bounds[first]
        return split(members[:left], first, width // 2) + split(members[left:], half, width // 2)

    return split(torch.arange(len(x)), 0, 2 ** math.ceil(math.log2(n_leaves)))


def clusters_one(x, size, hashing, draws) -> list[list[int]]:
    """Parts of at most `size` rows that are hashed alike."""
    if size == 1:
        return [[i] for i in range(len(x))]
    if hashing == "tree":
        return tree_one(x, max(1, math.ceil(len(x) / size)), draws[0])
    return even_cut(hash_one(hashing, x, x, draws)[1][0].argsort(stable=True).tolist(), size)


def window_one(n: int, width: int) -> Tensor:
    """Which keys are among the `width` nearest of each query: (n, n) bool."""
    near, width = torch.zeros(n, n, dtype=torch.bool), min(n, width)
    for i in range(n):
        first = min(max(i - width // 2, 0), n - width)
        near[i, first : first + width] = True
    return near


def meetings(rounds, n: int, size: int) -> Tensor:
    """How often query i and key j stand in clusters of the same number: (n, n); rounds of values to sort both by."""
    counts = torch.zeros(n, n)
    for both in rounds:
        clusters = [even_cut(values.argsort(stable=True).tolist(), size) for values in both]
        for queries, keys in zip(*clusters, strict=True):
            for i in queries:
                counts[i, keys] += 1
    return counts


def most_keys(n: int, n_hashes: int, cluster_size: int) -> int:
    """The most keys that n_hashes clusters can have."""
    return n_hashes * math.ceil(n / math.ceil(n / cluster_size))


def global_one(q, k, count: int) -> list[int]:
    """The keys that the mean query scores highest."""
    return best(k.detach().float() @ q.detach().float().mean(0), count)


def lsh(
    query,
    key,
    value,
    padding_mask=None,
    *,
    n_hashes,
    cluster_size,
    hashing,
    choose,
    block_size,
    global_tokens,
    window,
    far_field,
    duplicates,
    scaling,
    generator=None,
) -> Tensor:
    _, heads, _, dim = query.shape
    collision = choose == "collision"
    draws = query_draws = torch.zeros(heads, 1, dim)
    if collision or cluster_size > 1:
        draws = draw_for(hashing, heads, dim, n_hashes if collision else 1, generator)
    if not collision and block_size != 1:
        query_draws = draw_for(hashing, heads, dim, 1, generator)

    def one(tokens, h, q, k, v):
        n, fq, fk = len(q), q.detach().float(), k.detach().float()
        elsewhere = window_one(n, window)
        elsewhere[:, global_one(q, k, global_tokens)] = True
        counts = torch.zeros(n, n)
        clusters, left = [], torch.zeros(n, 0)
        if collision:
            counts = meetings(zip(*hash_one(hashing, fq, fk, draws[h]), strict=True), n, cluster_size)
        else:
            everybodys = global_one(q, k, global_tokens)
            rest = [j for j in range(n) if j not in everybodys]
            if rest:
                clusters = [[rest[j] for j in c] for c in clusters_one(fk[rest], cluster_size, hashing, draws[h])]
            left = torch.zeros(n, len(clusters))
            together = max(1, n // lsh_module.BLOCKS) if block_size is None else block_size
            for block in clusters_one(fq, together, hashing, query_draws[h]):
                by_mean = choose == "mean-query" or block_size is None
                asking = fq[block].mean(0, keepdim=True) if by_mean else fq[block]
                scores = [asking @ fk[c].mean(0) * scaling + math.log(len(c)) for c in clusters]
                votes = torch.stack(scores, -1).softmax(-1).sum(0) if clusters else torch.zeros(0)
                chosen = best(votes, n_hashes)
                for i in block:
                    for c, members in enumerate(clusters):
                        if c in chosen:
                            counts[i, members] = 1
                        elif far_field:
                            left[i, c] = sum(not elsewhere[i, j] for j in members)
        if duplicates == "once":
            counts = counts.clamp(max=1)
        counts[elsewhere] = 1
        mean_k = torch.stack([k[c].mean(0) for c in clusters]) if clusters else k[:0]
        mean_v = torch.stack([v[c].mean(0) for c in clusters]) if clusters else v[:0]
        return attend_counted(
            q, torch.cat([k, mean_k]), torch.cat([v, mean_v]), torch.cat([counts, left], dim=1), scaling
        )

    return each_sequence(query, key, value, padding_mask, one)


def random(
    query,
    key,
    value,
    padding_mask=None,
    *,
    n_hashes,
    cluster_size,
    global_tokens,
    duplicates,
    scaling,
    generator=None,
):
    draws = torch.rand(query.shape[2], 2, query.shape[1], n_hashes, generator=generator)

    def one(tokens, h, q, k, v):
        counts = meetings(
            ((draws[tokens, 0, h, r], draws[tokens, 1, h, r]) for r in range(n_hashes)), len(q), cluster_size
        )
        if duplicates == "once":
            counts = counts.clamp(max=1)
        counts[:, global_one(q, k, global_tokens)] = 1
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def window(
    query, key, value, padding_mask=None, *, n_hashes, cluster_size, global_tokens, scaling, generator=None
) -> Tensor:
    def one(tokens, h, q, k, v):
        n = len(q)
        counts = window_one(n, most_keys(n, n_hashes, cluster_size)).float()
        counts[:, global_one(q, k, global_tokens)] = 1
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)


def top_k(query, key, value, padding_mask=None, *, n_hashes, cluster_size, scaling, generator=None) -> Tensor:
    def one(tokens, h, q, k, v):
        n = len(q)
        counts = torch.zeros(n, n)
        for i in range(n):
            counts[i, best(k.detach().float() @ q[i].detach().float(), most_keys(n, n_hashes, cluster_size))] = 1
        return attend_counted(q, k, v, counts, scaling)

    return each_sequence(query, key, value, padding_mask, one)
