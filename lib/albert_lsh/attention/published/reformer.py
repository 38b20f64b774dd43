"""reformer-pytorch's LSH attention, as the package has it; the block of 2020, which was built of it, is a setting.

In a model it replaces the whole block of projections by `reformer_pytorch.LSHSelfAttention` with weights of its own
(`ReformerSelfAttention`); on bare tensors it is that module's core. The ALBERT of 2020 lost more than projections:
with `residual` False the residual connection around attention and its LayerNorm go too, with `mask_padding` False
padding is attended to. At most `full_attn_thres` tokens (by default `bucket_size`) are attended to without any hashing,
but still with shared queries and keys. Unlike our own attentions the package hashes padding like tokens, so padding,
though never attended to, takes up room in buckets.
"""

from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_lsh.attention.core import Attention, Count, CountOrZero, Size
from albert_lsh.attention.keys import Keys
from albert_lsh.attention.shared_qk import only_others


@contextmanager
def torch_seed_from(generator: torch.Generator | None):
    """Let torch's global generators follow `generator` (None: leave them alone); the package knows no other."""
    if generator is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        yield


def pad_to_multiple(rows: Tensor, padding_mask: Tensor | None, multiple: int) -> tuple[Tensor, Tensor | None]:
    """Zeros behind (batch, length, dim), and the mask that hides them (None if nothing is padded)."""
    batch, length, _ = rows.shape
    extra = -length % multiple
    if extra and padding_mask is None:
        padding_mask = rows.new_ones(batch, length, dtype=torch.bool)
    if padding_mask is not None:
        padding_mask = F.pad(padding_mask, (0, extra))
    return F.pad(rows, (0, 0, 0, extra)), padding_mask


class Core(nn.Module):
    """An attention of the package, in float32 where its inputs are float16, under autocast too.

    It divides keys by their length, but at least by 1e-12, which is 0 in float16: rows of zeros, with which buckets are
    filled up, would become NaN, and with them the gradients of all others.
    """

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, qk: Tensor, v: Tensor, **kwargs) -> tuple[Tensor, Tensor, Tensor]:
        if qk.dtype != torch.float16:
            return self.core(qk, v, **kwargs)
        with torch.autocast(qk.device.type, enabled=False):
            out, weights, buckets = self.core(qk.float(), v.float(), **kwargs)
        return out.to(v.dtype), weights, buckets


class Reformer(Attention):
    """`residual` is about the block of a model; on bare tensors, which have no block, it changes nothing.

    Where `mask_padding` is False a text's output depends on how far it is padded: pad all to one length (`pad_inputs`).
    """

    name = "reformer"
    description = (
        "projections replaced by reformer-pytorch's, new and tied; the block of 2020 with residual and mask off"
    )

    bucket_size: Size = 64
    n_hashes: Count = 8
    full_attn_thres: CountOrZero | None = None
    residual: bool = True
    mask_padding: bool = True

    def visible(self, padding_mask: Tensor | None) -> Tensor | None:
        return padding_mask if self.mask_padding else None

    def is_full(self, length: int) -> bool:
        """Whether everything is attended to."""
        return length <= (self.bucket_size if self.full_attn_thres is None else self.full_attn_thres)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """`LSHAttention` (or `FullQKAttention`) of the package; `key` and `scaling` are not used.

        The package draws hashes and dropout from one generator, so with `generator` given, its dropout follows it too.
        """
        return self.run_package(query, value, padding_mask, dropout, generator)[0]

    def run_package(self, query, value, padding_mask, dropout, generator) -> tuple[Tensor, Tensor | None]:
        """The package's output (batch, heads, length, head_dim), and its buckets, None where it sees everything."""
        from reformer_pytorch.reformer_pytorch import FullQKAttention, LSHAttention

        batch, heads, length, _ = query.shape
        size = min(self.bucket_size, length)  # as one larger: two buckets, and every token in sight
        full = self.is_full(length)
        core = FullQKAttention(dropout=dropout) if full else LSHAttention(dropout, size, self.n_hashes)
        qk, v = query.flatten(0, 1), value.flatten(0, 1)
        mask = None if padding_mask is None else padding_mask.repeat_interleave(heads, 0)
        if not full:
            v, _ = pad_to_multiple(v, mask, 2 * size)
            qk, mask = pad_to_multiple(qk, mask, 2 * size)
        with torch_seed_from(generator):
            out, _, buckets = Core(core)(qk, v, input_mask=mask)
        out = out[:, :length].unflatten(0, (batch, heads)).to(query.dtype)
        return out, None if full else buckets

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        """Read off the package's buckets."""
        batch, heads, length, _ = query.shape
        buckets = self.run_package(query, query, padding_mask, 0.0, generator)[1]
        if buckets is None:
            return only_others(super().pairs(query, key, padding_mask, generator), padding_mask)
        padded = buckets.shape[-1] // self.n_hashes
        position = torch.arange(self.n_hashes * padded, device=query.device) % padded
        order = (padded * buckets + position).argsort(-1).view(batch, heads, -1) % padded  # all rounds in one row
        mask = torch.arange(padded, device=query.device).expand(batch, -1) < length
        if padding_mask is not None:
            mask = F.pad(padding_mask, (0, padded - length))
        hidden = ~mask[:, None].expand(-1, heads, -1).gather(-1, order)
        chunks = order.masked_fill(hidden, length).view(batch, heads, 1, -1, min(self.bucket_size, length))
        counts = Keys(chunks, torch.cat([chunks, chunks.roll(1, 3)], -1)).count_pairs(length)
        return only_others(counts, padding_mask)

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: random directions for half of the buckets, and the pairs in chunks."""
        if self.is_full(length):
            return super().cost(length, head_dim)
        padded = -(-length // (2 * self.bucket_size)) * 2 * self.bucket_size
        return self.n_hashes * (padded * padded / self.bucket_size / 2 + 4 * padded * self.bucket_size) * head_dim


class ReformerSelfAttention(nn.Module):
    """`LSHSelfAttention` in the place of an encoder's query, key, value and output projections.

    Takes hidden states (batch, length, hidden), a mask (batch, length) that is True, or 1, where there is a token, and
    the pass under way (`interface.CurrentPass`); returns (output, None), as Transformers' attention modules do. The
    weights are new; nothing pretrained is used. As in the original no attention weight is dropped.

    mask_padding: False: padding is seen as tokens are; only zeros that fill up the last bucket are hidden.
    """

    drawing = RLock()  # of torch's global generators, from which the package draws

    def __init__(
        self, config, *, bucket_size: int, n_hashes: int, full_attn_thres: int | None, mask_padding: bool = True
    ):
        from reformer_pytorch.reformer_pytorch import LSHSelfAttention

        super().__init__()
        self.config, self.mask_padding = config, mask_padding
        self.lsh = LSHSelfAttention(
            config.hidden_size,
            heads=config.num_attention_heads,
            bucket_size=bucket_size,
            n_hashes=n_hashes,
            full_attn_thres=full_attn_thres,
        )
        self.lsh.lsh_attn, self.lsh.full_attn = map(Core, (self.lsh.lsh_attn, self.lsh.full_attn))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *, current_pass: Any, **kwargs):
        length = hidden_states.shape[1]
        mask = padded_mask = None if attention_mask is None or not self.mask_padding else attention_mask.bool()
        rows = hidden_states
        if length > self.lsh.full_attn_thres:
            rows, padded_mask = pad_to_multiple(hidden_states, mask, 2 * self.lsh.bucket_size)
        if current_pass.recorded is not None:
            qk, value = (
                project(hidden_states).unflatten(-1, (self.lsh.heads, -1)).transpose(1, 2)
                for project in (self.lsh.toqk, self.lsh.tov)
            )
            current_pass.record(qk, qk, value, mask)
        with self.drawing, torch_seed_from(current_pass.generator(self.training)):
            return self.lsh(rows, input_mask=padded_mask)[:, :length], None
