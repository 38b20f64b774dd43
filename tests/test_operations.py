"""How many operations and waits a forward pass takes as a GPU would run it: its time goes there, not to arithmetic."""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from albert_lsh import attention
from albert_lsh.attention import keys
from attention_cases import BUDGETED, tensors


class Operations(TorchDispatchMode):
    """Counts eager operations by name, without views, which launch nothing, and without the copies that a reshape makes
    of some shapes and not of others. Notes how many numbers the largest tensor has that any of them returns."""

    def __init__(self):
        super().__init__()
        self.counts, self.largest = Counter(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        schema = function._schema
        is_view = any(a.alias_info and not a.alias_info.is_write for a in schema.arguments)
        name = schema.name.removeprefix("aten::")
        if not is_view and name not in ("clone", "_unsafe_view"):
            masks = (i for i in (args[1] if name in ("index", "index_put_") else ()) if isinstance(i, Tensor))
            if any(mask.dtype == torch.bool for mask in masks):
                name = "index.Tensor with a mask"
            self.counts[name] += 1
        out = function(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_contiguous():  # an expanded view takes no memory
            self.largest = max(self.largest, out.numel())
        return out


def operations(name, shape, settings, monkeypatch):
    inputs, lists, tolist = tensors(shape), [], Tensor.tolist
    with monkeypatch.context() as patch, Operations() as counted:
        patch.setattr(keys, "IN_CACHE", ())  # a GPU's sizes
        patch.setattr(Tensor, "tolist", lambda tensor: lists.append(None) or tolist(tensor))
        attention.attend(name, *inputs, **settings)
    return counted.counts + Counter(tolist=len(lists))


@pytest.mark.parametrize(("length", "heads"), [(128, (8, 12)), (512, (8, 12)), (1500, (2, 3))], ids=str)
@pytest.mark.parametrize("name", [name for name in attention.names() if name != "reformer"])
def test_more_heads_and_sequences_take_no_more_operations(monkeypatch, name, length, heads):
    """A loop over heads, or over pieces that fit a CPU's cache, is what made `lsh` slow on a GPU."""
    settings = {"share": 0.25} if name in BUDGETED else {}
    few, many = (operations(name, (*shape, length, 16), settings, monkeypatch) for shape in ((1, 2), heads))
    assert sum(few.values()) >= 1
    assert many == few


def test_lsh_needs_no_table_of_all_queries_and_clusters():
    """16,384 queries and 4,096 clusters are 2 ** 26 pairs; no more than 2 ** 20 numbers are there at once."""
    with Operations() as counted:
        attention.attend("lsh", *tensors((1, 1, 2**14, 4)), n_hashes=1, cluster_size=4, global_tokens=0)
    assert counted.largest <= 2**20
