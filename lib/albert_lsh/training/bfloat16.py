"""bfloat16 on a CPU that cannot multiply it: products in float32, of the same rounded numbers.

Without AVX-512 torch multiplies bfloat16 number by number: a training step of MiniLM with 32 x 53 tokens took 29.9 s,
in float32 2.6, and in this way 2.7 (one core of an AMD EPYC with AVX2).

The arithmetic is that of a processor with such products: a product of two bfloat16 numbers is exact in float32, sums
are kept in float32, and the result is rounded once. Only the order of the sums is another. (torch's fused attention
also rounds its weights before they meet the values; here it does not.)
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainingArguments

# torch's operators of its fused attention on a CPU, which are private
FORWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm, FORWARD, BACKWARD)


def has_products() -> bool:
    """Whether torch multiplies bfloat16 on this CPU by a library (oneDNN), and not number by number."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def products(args: TrainingArguments) -> AbstractContextManager:
    """A context in which a trainer's bfloat16 products are computed in float32, where its device lacks them."""
    lacks = args.bf16 and args.device.type == "cpu" and not has_products()
    return ProductsInFloat32() if lacks else nullcontext()


def widened(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype == torch.bfloat16 else x


class ProductsInFloat32(TorchDispatchMode):
    """Computes products of bfloat16 matrices, and torch's fused attention of them, in float32; rounds their results."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        of_matrices = func.overloadpacket in PRODUCTS and func._overloadname == "default"  # not into a tensor given
        if not of_matrices or args[0].dtype != torch.bfloat16:
            return func(*args, **kwargs)
        found = func(*(widened(x) for x in args), **{name: widened(x) for name, x in kwargs.items()})
        if isinstance(found, Tensor):
            return found.bfloat16()
        if func.overloadpacket is FORWARD:
            out, log_sum = found  # float32 in either case
            return out.bfloat16(), log_sum
        return tuple(x.bfloat16() for x in found)
