"""LSG attention (Condevaux and Harispe 2023), by their package lsg-converter: a peer that keeps pretrained weights.

A query sees the first token, its block of keys, the two blocks beside it, and one key of SPARSITY in the next SPARSITY
blocks on either side: those with the largest norm. The first token sees all. With blocks of one size the time grows as
the text does.
"""

from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

BLOCK, SPARSITY = 128, 8  # the module's defaults
STEP = 2 * SPARSITY  # blocks of other sizes than multiples of this fail, or leave the farther keys out


@cache
def package() -> ModuleType:
    """The package's file with the attention: the package itself fails to import with Transformers 5."""
    folder = find_spec("lsg_converter").submodule_search_locations[0]
    spec = spec_from_file_location("lsg_self_attention", Path(folder) / "attention_layers" / "lsg_self_attention.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def block_for(keys: float) -> int:
    """The block with which a query sees about so many keys: five blocks of them and the first.

    Near the ends of a text it sees fewer, and of a text of fewer than nineteen blocks everywhere.
    """
    return max(STEP, round(keys / 5 / STEP) * STEP)


def lsg(query: Tensor, key: Tensor, value: Tensor, block: int = BLOCK) -> Tensor:
    """In evaluation, without padding; queries, keys, values and output are (batch, heads, length, head_dim)."""
    attention = package().LSGSelfAttention(block_size=block, sparsity_factor=SPARSITY, sparsity_type="norm")
    return attention.eval()(query, key, value)


def for_transformers(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: Any) -> Any:
    """What AttentionInterface takes; output (batch, length, heads, head_dim)."""
    return lsg(query, key, value).transpose(1, 2), None
