"""LSG attention (Condevaux and Harispe 2023), by their package lsg-converter: a peer that keeps pretrained weights.

A query sees the first token, its block of keys, the two blocks beside it, and one key of SPARSITY in the next SPARSITY
blocks on either side: those with the largest norm. The first token sees all. With blocks of one size the time grows as
the text does.
"""

from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from torch import Tensor

from albert_lsh.attention import register
from albert_lsh.attention.core import Budgeted, Count

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


@register
class LSG(Budgeted):
    """In evaluation, without padding."""

    name = "lsg"
    description = "LSG: near blocks, and of farther ones the keys with the largest norm"
    sizes = ("block",)

    block: Count = BLOCK

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        return {"block": block_for(keys)}

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        if padding_mask is not None or dropout:
            raise ValueError("lsg takes neither padding nor dropout here")
        attention = package().LSGSelfAttention(block_size=self.block, sparsity_factor=SPARSITY, sparsity_type="norm")
        return attention.eval()(query, key, value)
