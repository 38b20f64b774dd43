"""Every attention's formula of its cost against the multiply-adds that torch counts while it computes; and how many
operations and waits a forward pass takes as a GPU would run it, where time goes there, not to arithmetic.

The length is one at which all clusters, chunks and blocks are full, and at which keys are gathered. The counter sees
matrix products and convolutions; sums, and products number by number, it does not.
"""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from albert_lsh import attention
from albert_lsh.attention import compute, rows
from attention_cases import BUDGETED, label, tensors

LENGTH = 1024
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def products_of_fused(query, key, value, *args, out_shape=None, **kwargs):
    """Of torch's fused attention on a CPU, which the counter does not know: two for each multiply-add, as it has it."""
    batch, heads, length, dim = query
    return 2 * batch * heads * length * key[2] * (dim + value[3])


def counted(name, head_dim, **settings):
    """The multiply-adds of two heads, as a share of softmax attention's."""
    if "conv_kernel_size" in settings:
        settings["conv_weight"] = torch.ones(2, settings["conv_kernel_size"])
    with FlopCounterMode(display=False, custom_mapping={FUSED: products_of_fused}) as counter:
        attention.attend(name, *tensors((1, 2, LENGTH, head_dim)), **settings)
    return counter.get_total_flops() / 2 / (2 * 2 * LENGTH**2 * head_dim)


ROUNDS = {"n_hashes": 4, "cluster_size": 32}
CHUNKS = {"n_hashes": 2, "bucket_size": 32}
CASES = [
    ("shared-qk-lsh", CHUNKS),
    ("shared-qk-lsh", {**CHUNKS, "bucket_size": 4}),  # 256 buckets, which are two choices
    ("shared-qk-lsh", {**CHUNKS, "mean_key": True}),
    ("random", ROUNDS),
    ("random", {**ROUNDS, "n_hashes": 1, "global_tokens": 32}),
    ("window", {"keys": 64}),
    ("window", {"keys": 96, "global_tokens": 32}),
    ("top-k", {"keys": 64}),
    ("key-clusters", ROUNDS),
    ("key-clusters", {**ROUNDS, "axes": 3}),
    ("nystrom", {"num_landmarks": 32}),
    ("nystrom", {"num_landmarks": 64, "pinv_iterations": 2, "conv_kernel_size": 5}),
    ("nystrom", {"num_landmarks": LENGTH}),
]
BITS = math.ceil(math.log2(LENGTH))  # of yoso's codes
# What is counted and not in the formula, multiply-adds of a query: so many times head_dim, and so many more.
OTHERWISE = [
    # Keys seen by all are listed in the first round; their empty places in the other three are computed too.
    ("random", {**ROUNDS, "global_tokens": 32}, 3 * 2 * 32, 0),
    # On a CPU a mean key takes products with the sums of all 33 clusters; the formula adds up the sums of 1 + 4.
    ("key-clusters", {**ROUNDS, "mean_key": True}, 2 * 33 - 2 * (1 + 4), 33),
    # Hashes are products number by number, of queries and keys, with two numbers more than head_dim.
    ("lsh", ROUNDS, -4 * 2, -4 * 2 * 2),
    # A mean key adds up the keys and the values seen: attention whose scores are products of one number, not counted.
    ("lsh", {**ROUNDS, "mean_key": True}, -4 * 2, -4 * 2 * 2 + 2 * 4 * 32),
    ("random", {**ROUNDS, "mean_key": True}, 0, 2 * 4 * 32),
    ("window", {"keys": 64, "mean_key": True}, 0, 2 * 63),
    ("top-k", {"keys": 65, "mean_key": True}, 0, 2 * 64),
    ("smyrf", ROUNDS, -4 * 2, -4 * 2 * 2),
    # A row is added to a table and one is read: these are sums, which the formula has as products of one number. The
    # digits of a code, of query and key, are put together by a product.
    ("yoso", {"n_hashes": 8}, -2 * 8, 2 * 8 * BITS),
    ("yoso", {"n_hashes": 8, "conv_kernel_size": 5}, -2 * 8, 2 * 8 * BITS),
]
# `reformer` is another package's, which multiplies in ways of its own.
LISTED = {"reformer", *(name for name, *_ in (*CASES, *OTHERWISE))}
CASES += [(name, {}) for name in attention.names() if name not in LISTED]
EACH = [*((*case, 0, 0) for case in CASES), *OTHERWISE]


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize(("name", "settings", "times", "more"), EACH, ids=label)
def test_the_formula_is_what_is_counted(name, settings, times, more, head_dim):
    """To a hundredth: the counter does not see the mean key's score and value, 2 of a query's products."""
    said = attention.cost(name, LENGTH, head_dim, **settings) + (times + more / head_dim) / (2 * LENGTH)
    expected = pytest.approx(counted(name, head_dim, **settings), rel=0.01)
    assert said == expected, f"{name}: mend its cost, or say in CASES or OTHERWISE, tests/test_cost.py, what differs"


def test_empty_places_of_blocks_are_computed_too(monkeypatch):
    """Where `key-clusters` is not computed by cluster; the formula leaves them out. Here half as many as queries."""
    settings = {**ROUNDS, "global_tokens": 0}
    query, key, _ = tensors((1, 2, LENGTH, 16))
    lists = (
        attention.make("key-clusters", settings).keys_for(query, key, None, torch.Generator().manual_seed(0)).lists()
    )
    empty = (lists.queries == LENGTH).sum().item() / 2 * ROUNDS["cluster_size"] / LENGTH**2
    assert 0.02 < empty < 0.1
    monkeypatch.setattr(compute, "MOST_GROUPED", 0)
    assert attention.cost("key-clusters", LENGTH, 16, **settings) + empty == pytest.approx(
        counted("key-clusters", 16, **settings), rel=0.01
    )


def test_cost_is_that_of_what_a_budget_resolves_to():
    for name in ("key-clusters", "lsh", "window", "nystrom"):
        settings = attention.settings_for(name, 300, 0.2)
        assert attention.cost(name, 300, share=0.2) == attention.cost(name, 300, **settings)


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
        patch.setattr(rows, "IN_CACHE", ())  # a GPU's sizes
        patch.setattr(Tensor, "tolist", lambda tensor: lists.append(None) or tolist(tensor))
        attention.attend(name, *inputs, **settings)
        counted.counts.clear(), lists.clear()  # what follows from lengths alone is kept
        attention.attend(name, *inputs, **settings)
    return counted.counts + Counter(tolist=len(lists))


@pytest.mark.parametrize(("length", "heads"), [(128, (3, 4)), (512, (3, 4)), (1500, (2, 3))], ids=str)
@pytest.mark.parametrize("name", [name for name in attention.names() if name != "reformer"])
def test_more_heads_and_sequences_take_no_more_operations(monkeypatch, name, length, heads):
    """A loop over heads, or over pieces that fit a CPU's cache, is what made `key-clusters` slow on a GPU."""
    settings = {"share": 0.25} if name in BUDGETED else {}
    few, many = (operations(name, (*shape, length, 16), settings, monkeypatch) for shape in ((1, 2), heads))
    assert sum(few.values()) >= 1
    assert many == few


@pytest.mark.parametrize("length", [32, 128, 512])
def test_lsh_waits_twice_at_most(monkeypatch, length):
    counts = operations("key-clusters", (1, 2, length, 16), {"share": 0.25}, monkeypatch)
    assert counts["tolist"] + counts["_local_scalar_dense"] <= 2


def test_lsh_needs_no_table_of_all_queries_and_clusters():
    """16,384 queries and 4,096 clusters are 2 ** 26 pairs; no more than 2 ** 20 numbers are there at once."""
    with Operations() as counted:
        attention.attend("key-clusters", *tensors((1, 1, 2**14, 4)), n_hashes=1, cluster_size=4, global_tokens=0)
    assert counted.largest <= 2**20
