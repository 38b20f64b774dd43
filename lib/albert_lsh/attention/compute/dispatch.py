"""Which way parts of attention are computed: the fastest that the device and the settings allow."""

from torch import Tensor

from albert_lsh.attention.compute import cpu, gpu
from albert_lsh.attention.compute.parts import Part, attend_part, merge


def attend_parts(
    query: Tensor,
    sources: list[tuple[Tensor, Tensor]],
    parts: list[tuple[Part, int]],
    *,
    scaling: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Softmax over all keys that the parts show to a query.

    Args:
        query: (batch, heads, length, head_dim).
        sources: pairs of key and value, (batch, heads, n_keys, head_dim) each, that parts take from.
        parts: each with the number of its source.
        scaling: factor of the scores. dropout: probability with which an attention weight is dropped.
    Returns:
        (batch, heads, length, head_dim) in query's dtype, and the log-sum-exp (batch, heads, length) of the scores,
        float32, below MASKED / 2 where a query sees no key. Rows of padding are anything.
    """
    if gpu.is_available(query, sources, dropout):
        return gpu.attend(query, sources, parts, scaling)
    if cpu.is_available(query, dropout):
        return cpu.attend(query, sources, parts, scaling)
    found = [attend_part(query, *sources[n], part, scaling=scaling, dropout=dropout) for part, n in parts]
    return merge(found, query.dtype)
