"""YOSO (Zeng et al. 2021, "You Only Sample (Almost) Once"): attention as a sum of hash collisions.

Queries and keys become unit vectors. A code of `hash_code_len` signs of random projections is the same for both with
probability (1 - angle / pi) ** hash_code_len, which takes the place of exp(q.k); the weighted sum of the values is
scaled to unit length instead of being divided by the sum of the weights.

    yoso-e     the expectation: the probabilities themselves; quadratic
    yoso       n_hashes samples: every key adds its value to the table entry of its code, every query reads its own
               entry; linear in the length, and its error falls with 1 / sqrt(n_hashes). In short sequences collisions
               are counted pair by pair, which gives the same and is faster

Gradients are the paper's lower bound (its equation 4): that of the weight with respect to q.k is taken to be
hash_code_len / 2 times the weight. Weights are never dropped out: the tables of `yoso` do not form them one by one, and
the other ways of computing agree with them. With `conv_kernel_size` a depth-wise convolution of the values is added at
the end (`convolution`).
"""

import math
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from albert_lsh.attention.choose.hashing import draw_directions
from albert_lsh.attention.core import Budgeted, Count, OddCount
from albert_lsh.attention.published.convolution import Convolved
from albert_lsh.attention.rows import largest, per_sequence, refuse_second_derivative

PAIRWISE_LENGTH = 512  # tokens up to which collisions are counted pair by pair; above, all pairs take too much memory
CodeLength = Annotated[int, Field(ge=1, le=20)]  # tables have 2 ** hash_code_len rows
SMALLEST = 1e-12  # length of a row that has a direction
TABLE_NUMBERS = 2**22  # numbers in a table of the backward pass; more value dimensions at a time take more memory


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1, in float32; a row of zeros stays one, and has no gradient."""
    rows = rows.float()
    norm = rows.norm(dim=-1, keepdim=True)
    return (rows / norm.clamp(min=SMALLEST)).where(norm > SMALLEST, 0)


class WeightedSum(torch.autograd.Function):
    """Sum of values with the weights of all pairs, (..., length, length), and the lower bound's gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weights: Tensor, hash_code_len: int) -> Tensor:
        ctx.save_for_backward(query, key, value, weights)
        ctx.hash_code_len = hash_code_len
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, weights = ctx.saved_tensors
        grad_scores = upstream[0] @ value.transpose(-1, -2) * weights * (ctx.hash_code_len / 2)
        grad_value = weights.transpose(-1, -2) @ upstream[0]
        return grad_scores @ key, grad_scores.transpose(-1, -2) @ query, grad_value, None, None


@torch.no_grad()
def expectation(query: Tensor, key: Tensor, hash_code_len: int) -> Tensor:
    """The probability with which unit vectors collide: (batch, heads, length, length)."""
    angle = torch.acos((query @ key.transpose(-1, -2)).clamp(-1, 1))
    return (1 - angle / math.pi) ** hash_code_len


@torch.no_grad()
def codes(query: Tensor, key: Tensor, n_hashes: int | Tensor, hash_code_len: int, generator) -> tuple[Tensor, Tensor]:
    """Codes of queries and keys: (batch, heads, largest n_hashes, length) long, below 2 ** hash_code_len.

    n_hashes: one number, or (batch,). In hashes that a sequence does not have, two codes more stand for "no collision".
    """
    heads, dim, most = query.shape[1], query.shape[3], largest(n_hashes)
    directions = draw_directions(heads, dim, most * hash_code_len, generator).to(query.device)
    powers = 2 ** torch.arange(hash_code_len, device=query.device)
    unused = torch.arange(most, device=query.device)[:, None] >= per_sequence(n_hashes, 4)

    def code(rows: Tensor, nothing: int) -> Tensor:
        signs = torch.einsum("bhld,hrd->bhrl", rows.float(), directions) > 0
        return (signs.unflatten(2, (most, hash_code_len)) * powers[:, None]).sum(3).masked_fill(unused, nothing)

    return code(query, 2**hash_code_len), code(key, 2**hash_code_len + 1)


def collisions(query_codes: Tensor, key_codes: Tensor) -> Tensor:
    """In how many hashes each query and key collide, from their codes: (batch, heads, length, length), int32."""
    query_codes, key_codes = query_codes.int(), key_codes.int()  # half as wide, faster to compare
    times = query_codes.new_zeros(*query_codes.shape[:2], query_codes.shape[3], key_codes.shape[3])
    for number in range(query_codes.shape[2]):
        times += query_codes[:, :, number, :, None] == key_codes[:, :, number, None, :]
    return times


def read_tables(readers: Tensor, writers: Tensor, rows: Tensor, n_codes: int) -> Tensor:
    """For each reader the sum of the rows of the writers with its code, over all hashes.

    Args:
        readers, writers: codes (heads, n_hashes, length), batch and heads being one.
        rows: (heads, length, dim).
    """
    heads, n_hashes, _ = writers.shape
    first = torch.arange(heads, device=rows.device)[:, None] * n_codes
    out = torch.zeros(readers.shape[0] * readers.shape[2], rows.shape[-1], device=rows.device, dtype=rows.dtype)
    flat = rows.flatten(0, 1)
    for number in range(n_hashes):
        table = torch.zeros(heads * n_codes, rows.shape[-1], device=rows.device, dtype=rows.dtype)
        table.index_add_(0, (writers[:, number] + first).flatten(), flat)
        out += table.index_select(0, (readers[:, number] + first).flatten())
    return out.view(heads, -1, rows.shape[-1])


class Samples(torch.autograd.Function):
    """Sum of the values of the keys that collide, mean over hashes, with the lower bound's gradient."""

    @staticmethod
    def forward(ctx: Any, query, key, value, query_codes, key_codes, hash_code_len: int) -> Tensor:
        """query, key, value: (heads, length, dim), batch and heads being one; query_codes, key_codes: their codes."""
        ctx.save_for_backward(query, key, value, query_codes, key_codes)
        ctx.hash_code_len = hash_code_len
        return read_tables(query_codes, key_codes, value, 2**hash_code_len + 2) / query_codes.shape[1]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, query_codes, key_codes = ctx.saved_tensors
        grad = upstream[0]
        n_codes = 2**ctx.hash_code_len + 2
        factor = ctx.hash_code_len / 2 / query_codes.shape[1]
        grad_value = read_tables(key_codes, query_codes, grad, n_codes) / query_codes.shape[1]
        grads = [
            factor * weighted_sum(query_codes, key_codes, grad, value, key, n_codes),
            factor * weighted_sum(key_codes, query_codes, value, grad, query, n_codes),
        ]
        return *grads, grad_value, None, None, None


def weighted_sum(readers, writers, left: Tensor, right: Tensor, rows: Tensor, n_codes: int) -> Tensor:
    """For each reader i the sum over colliding writers j of (left_i . right_j) rows_j, (heads, length, dim).

    The product is a sum over value dimensions; for each of them the writers' rows are added up in tables.
    """
    heads, length, dim = rows.shape
    step = max(1, TABLE_NUMBERS // (heads * max(length, n_codes) * dim))
    out = torch.zeros_like(left[..., :1] * rows[..., :1]).expand(-1, left.shape[1], dim).contiguous()
    for start in range(0, left.shape[-1], step):
        some_left, some_right = left[..., start : start + step], right[..., start : start + step]
        products = (some_right.unsqueeze(-1) * rows.unsqueeze(-2)).flatten(2)  # (heads, length, step * dim)
        sums = read_tables(readers, writers, products, n_codes).unflatten(-1, (-1, dim))
        out += (some_left.unsqueeze(-1) * sums).sum(-2)
    return out


class Yoso(Convolved, Budgeted):
    name = "yoso"
    description = "YOSO: sums of hash collisions"
    sizes = ("n_hashes",)
    fewest = 2  # keys for a hash: a row is written into the table, and one is read

    n_hashes: Count = 32
    hash_code_len: CodeLength = 9
    conv_kernel_size: OddCount | None = None

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        return {"n_hashes": max(1, keys // self.fewest)}

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """scaling and dropout are not used."""
        with torch.autocast(query.device.type, enabled=False):
            rows = [unit(query), unit(key), value.float()]
            both = codes(rows[0], rows[1], self.n_hashes, self.hash_code_len, generator)
            if query.shape[2] <= PAIRWISE_LENGTH:
                out = WeightedSum.apply(*rows, collisions(*both).float() / both[0].shape[2], self.hash_code_len)
            else:
                out = Samples.apply(*(x.flatten(0, 1) for x in (*rows, *both)), self.hash_code_len).view(value.shape)
        return unit(out).to(query.dtype)

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        """In how many hashes each query and key collide. A convolution is no pair."""
        return collisions(*codes(unit(query), unit(key), self.n_hashes, self.hash_code_len, generator)).long()

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: the codes, a row written and a row read in each hash, and the convolution."""
        return length * (2 * self.n_hashes * (self.hash_code_len + 1) + (self.conv_kernel_size or 0)) * head_dim


class YosoE(Convolved):
    name = "yoso-e"
    description = "the expectation of yoso"

    hash_code_len: Count = 9
    conv_kernel_size: OddCount | None = None

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """scaling and dropout are not used."""
        with torch.autocast(query.device.type, enabled=False):
            unit_query, unit_key = unit(query), unit(key)
            weights = expectation(unit_query, unit_key, self.hash_code_len)
            out = WeightedSum.apply(unit_query, unit_key, value.float(), weights, self.hash_code_len)
        return unit(out).to(query.dtype)
