"""YOSO (Zeng et al. 2021, "You Only Sample (Almost) Once"): attention as a sum of hash collisions.

Queries and keys become unit vectors. A code of `hash_code_len` signs of random projections is the same for both with
probability (1 - angle / pi) ** hash_code_len, which takes the place of exp(q.k); the weighted sum of the values is
scaled to unit length instead of being divided by the sum of the weights.

    yoso-e     the expectation: the probabilities themselves; quadratic
    yoso       n_hashes samples: every key adds its value to the table entry of its code, every query reads its own
               entry; linear in the length, and its error falls with 1 / sqrt(n_hashes)

Gradients are the paper's lower bound (its equation 4): that of the weight with respect to q.k is taken to be
hash_code_len / 2 times the weight. `yoso` takes the sampled weights for it, or with `n2_backward` their expectation,
which takes the square of the length. Weights are never dropped out: tables do not form them one by one, and `yoso-e`
agrees with them. With `conv_kernel_size` a depth-wise convolution of the values is added at the end (`convolution`).

This is the first version of the authors' two (mlpen/YOSO, yoso_v1), with Gaussian projections; what differs is in
docs/attentions.md.
"""

import math
from typing import Annotated, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from albert_lsh.attention.choose.hashing import draw_directions, generators_of_rounds
from albert_lsh.attention.core import Budgeted, Count, OddCount
from albert_lsh.attention.published.convolution import Convolved
from albert_lsh.attention.rows import largest, per_sequence, refuse_second_derivative, slices, token_mask

CodeLength = Annotated[int, Field(ge=1, le=20)]  # tables have 2 ** hash_code_len rows
SMALLEST = 1e-12  # length of a row that has a direction
DENSE_SHARE = 0.1  # of the pairs: where more collide, the backward pass computes all, which is quicker (on a CPU)
PAIRS_AT_ONCE = 2**22  # in the backward pass


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1, in float32; a row of zeros stays zero, and has no gradient."""
    rows = rows.float()
    norm = rows.norm(dim=-1, keepdim=True)
    return (rows / norm.clamp(min=SMALLEST)).where(norm > SMALLEST, 0)


# Weights of all pairs ----------------------------------------------------------------------------------------------


@torch.no_grad()
def expectation(query: Tensor, key: Tensor, hash_code_len: int | Tensor) -> Tensor:
    """The probability with which unit vectors collide: (batch, heads, length, length)."""
    angle = torch.acos((query @ key.transpose(-1, -2)).clamp(-1, 1))
    return (1 - angle / math.pi) ** per_sequence(hash_code_len, 4)


def gradients(up: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    """Of query, key and value, from that of the weighted sum; a weight's slope by q.k is taken to be the weight.

    Those of query and key lack the factor hash_code_len / 2, which the callers apply.
    """
    grad_scores = up @ value.transpose(-1, -2) * weights
    return grad_scores @ key, grad_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ up


class Expected(torch.autograd.Function):
    """Sum of values with the expected weights, and the lower bound's gradient. All (batch, heads, length, dim)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, hash_code_len: int | Tensor) -> Tensor:
        weights = expectation(query, key, hash_code_len)
        ctx.save_for_backward(query, key, value, weights)
        ctx.slope = per_sequence(hash_code_len, 4) / 2
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        grad_query, grad_key, grad_value = gradients(upstream[0], *ctx.saved_tensors)
        return grad_query * ctx.slope, grad_key * ctx.slope, grad_value, None


# Samples -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def codes(
    query: Tensor, key: Tensor, mask: Tensor, n_hashes: int | Tensor, hash_code_len: Any, generator
) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys: (batch, heads, largest n_hashes, length) long, below 2 ** largest hash_code_len.

    mask: (batch, heads, length) bool. n_hashes, hash_code_len: one number, or (batch,). In padding, and in hashes that
    a sequence does not have, two codes more stand for "no collision".
    """
    heads, dim, hashes, bits = query.shape[1], query.shape[3], largest(n_hashes), largest(hash_code_len)
    drawn = [draw_directions(heads, dim, bits, one) for one in generators_of_rounds(hashes, generator)]
    directions = torch.cat(drawn, dim=1).to(query.device)  # (heads, hashes * bits, dim)
    number = torch.arange(bits, device=query.device)
    powers = (2**number).float().where(number < per_sequence(hash_code_len, 2), 0).expand(query.shape[0], -1)
    unused = torch.arange(hashes, device=query.device)[:, None] >= per_sequence(n_hashes, 4)

    def code(rows: Tensor, nothing: int) -> Tensor:
        signs = (torch.einsum("bhld,hrd->bhrl", rows, directions) > 0).to(powers.dtype).unflatten(2, (hashes, bits))
        written = torch.einsum("bhnkl,bk->bhnl", signs, powers)  # exact: float32 has 24 binary digits
        return written.long().masked_fill(unused | ~mask.unsqueeze(2), nothing)

    return code(query, 2**bits), code(key, 2**bits + 1)


def collisions(query_codes: Tensor, key_codes: Tensor) -> Tensor:
    """In how many hashes each query and key collide, from their codes (..., hashes, length): (..., length, length)."""
    query_codes, key_codes = query_codes.int(), key_codes.int()  # half as wide, faster to compare
    times = torch.zeros_like(query_codes[..., 0, :, None] + key_codes[..., 0, None, :])
    for one, other in zip(query_codes.unbind(-2), key_codes.unbind(-2), strict=True):
        times += one.unsqueeze(-1) == other.unsqueeze(-2)
    return times


def read_tables(readers: Tensor, writers: Tensor, rows: Tensor) -> Tensor:
    """For each reader the sum of the rows of the writers with its code, over all hashes.

    readers, writers: codes (heads, hashes, length), batch and heads being one. rows: (heads, length, dim).
    """
    heads, hashes, _ = writers.shape
    n_codes = int(torch.maximum(readers.max(), writers.max())) + 1
    first = torch.arange(heads, device=rows.device)[:, None] * n_codes
    out, flat = torch.zeros_like(rows).flatten(0, 1), rows.flatten(0, 1)
    for number in range(hashes):
        table = torch.zeros(heads * n_codes, rows.shape[-1], device=rows.device, dtype=rows.dtype)
        table.index_add_(0, (writers[:, number] + first).flatten(), flat)
        out += table.index_select(0, (readers[:, number] + first).flatten())
    return out.view_as(rows)


class Meetings(NamedTuple):
    """Which writers each reader meets: in each hash those with its code, which stand side by side in their order."""

    order: Tensor  # (heads, hashes, length), of the writers by their codes
    first: Tensor  # (heads, hashes, length), of each reader: where the writers that it meets begin
    end: Tensor  # (heads, hashes, length), and where they end

    @classmethod
    def of(cls, readers: Tensor, writers: Tensor) -> Self:
        """readers, writers: codes (heads, hashes, length)."""
        ordered, order = writers.sort(dim=-1)
        return cls(order, *(torch.searchsorted(ordered, readers, right=right) for right in (False, True)))

    @property
    def share(self) -> float:
        """How many there are, as a share of all pairs of a reader and a writer."""
        heads, _, length = self.order.shape
        return int((self.end - self.first).sum()) / (heads * length**2)

    def weighted_sum(self, left: Tensor, right: Tensor, rows: Tensor) -> Tensor:
        """For each reader i the sum over hashes, and writers j that it meets there, of (left_i . right_j) rows_j.

        left, right, rows: (heads, length, dim); so is what is returned.
        """
        heads, hashes, length = self.order.shape
        hash_start = torch.arange(0, self.order.numel(), length, device=rows.device).view(heads, hashes, 1)
        first, end = ((x + hash_start).transpose(1, 2).flatten() for x in (self.first, self.end))
        count = end - first
        of_reader = count.view(-1, hashes).sum(1)
        reader = torch.arange(heads * length, device=rows.device).repeat_interleave(of_reader)
        start = (first - count.cumsum(0) + count).repeat_interleave(count)
        place = start + torch.arange(len(reader), device=rows.device)
        writer = self.order.flatten()[place] + reader // length * length
        left, right, rows = (x.flatten(0, 1) for x in (left, right, rows))
        weights = rows.new_empty(len(reader))
        for part in slices(len(reader), rows.shape[-1], rows.device):
            weights[part] = (left[reader[part]] * right[writer[part]]).sum(-1)
        sums = F.embedding_bag(writer, rows, of_reader.cumsum(0) - of_reader, mode="sum", per_sample_weights=weights)
        return sums.view(heads, length, -1)


def sampled_gradients(query_codes, key_codes, up, query, key, value) -> tuple[Tensor, ...]:
    """Of query, key and value, where weights are numbers of collisions, and so are their slopes.

    query_codes, key_codes: (heads, hashes, length), batch and heads being one; the others (heads, length, dim).
    """
    met = Meetings.of(query_codes, key_codes)
    if met.share > DENSE_SHARE:
        return gradients(up, query, key, value, collisions(query_codes, key_codes).to(value.dtype))
    return (
        met.weighted_sum(up, value, key),
        Meetings.of(key_codes, query_codes).weighted_sum(value, up, query),
        read_tables(key_codes, query_codes, up),
    )


class Sampled(torch.autograd.Function):
    """Sum of the values of the keys that collide, mean over hashes, with the lower bound's gradient."""

    @staticmethod
    def forward(ctx: Any, query, key, value, query_codes, key_codes, hash_code_len, n_hashes, n2_backward) -> Tensor:
        """query, key, value: (batch, heads, length, dim); query_codes, key_codes: (batch, heads, hashes, length)."""
        ctx.save_for_backward(query, key, value, query_codes, key_codes)
        ctx.hash_code_len, ctx.n_hashes, ctx.n2_backward = hash_code_len, per_sequence(n_hashes, 4), n2_backward
        rows = (x.flatten(0, 1) for x in (query_codes, key_codes, value))
        return read_tables(*rows).view_as(value) / ctx.n_hashes

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, query_codes, key_codes = ctx.saved_tensors
        slope = per_sequence(ctx.hash_code_len, 4) / 2
        if ctx.n2_backward:
            grads = gradients(upstream[0], query, key, value, expectation(query, key, ctx.hash_code_len))
        else:
            rows = [x.flatten(0, 1) for x in (query_codes, key_codes, upstream[0] / ctx.n_hashes, query, key, value)]
            length, dim = value.shape[2:]
            parts = slices(len(rows[0]), length * max(length, dim), value.device, PAIRS_AT_ONCE)
            pieces = [sampled_gradients(*(x[part] for x in rows)) for part in parts]
            grads = tuple(torch.cat(piece).view_as(value) for piece in zip(*pieces, strict=True))
        return grads[0] * slope, grads[1] * slope, grads[2], *[None] * 5


# The attentions ----------------------------------------------------------------------------------------------------


class Hashed(Convolved):
    """Codes as long as the sequence asks for, the logarithm of its length, unless hash_code_len is given."""

    hash_code_len: Count | None = None
    conv_kernel_size: OddCount | None = None

    def settings_for(self, n_tokens: int) -> dict[str, Any]:
        settings = super().settings_for(n_tokens)
        follows = {"hash_code_len": max(1, math.ceil(math.log2(max(1, n_tokens))))}
        return settings if self.hash_code_len else settings | follows


class Yoso(Hashed, Budgeted):
    name = "yoso"
    description = "YOSO: sums of hash collisions"
    sizes = ("n_hashes",)
    fewest = 2  # keys for a hash: a row is written into the table, and one is read

    n_hashes: Count = 32
    hash_code_len: CodeLength | None = None
    n2_backward: bool = False

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        return {"n_hashes": max(1, keys // self.fewest)}

    def codes(self, query: Tensor, key: Tensor, padding_mask: Tensor | None, generator) -> tuple[Tensor, Tensor]:
        mask = token_mask(query, padding_mask)
        return codes(query, key, mask, self.n_hashes, self.hash_code_len, generator)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """scaling and dropout are not used."""
        with torch.autocast(query.device.type, enabled=False):
            query, key, rows = unit(query), unit(key), value.float()
            both = self.codes(query, key, padding_mask, generator)
            out = Sampled.apply(query, key, rows, *both, self.hash_code_len, self.n_hashes, self.n2_backward)
        return unit(out).to(value.dtype)

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        """In how many hashes each query and key collide. A convolution is no pair."""
        return collisions(*self.codes(unit(query), unit(key), padding_mask, generator)).long()

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the codes, a row written and a row read in each hash, and the convolution."""
        return length * (2 * self.n_hashes * ((self.hash_code_len or 0) + 1) + (self.conv_kernel_size or 0)) * head_dim


class YosoE(Hashed):
    name = "yoso-e"
    description = "the expectation of yoso"

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """scaling and dropout are not used."""
        with torch.autocast(query.device.type, enabled=False):
            out = Expected.apply(unit(query), unit(key), value.float(), self.hash_code_len)
        return unit(out).to(query.dtype)
