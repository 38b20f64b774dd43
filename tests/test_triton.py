"""The Triton kernels against the naive references: in Triton's interpreter, or compiled where there is a GPU.

`conftest` turns the interpreter on; the kernels are short of nothing there but time, hence the small shapes.
"""

import os
import subprocess
import sys
import warnings
from importlib import import_module
from unittest.mock import create_autospec

import pytest
import torch

from albert_lsh import attention
from albert_lsh.attention import compute
from albert_lsh.attention.compute.gathered import Gathered
from albert_lsh.attention.keys import Keys
from albert_lsh.attention.rows import MASKED
from attention_cases import check_half_precision, check_reference, error, label, padding, run, tensors

pytest.importorskip("triton")
pytestmark = pytest.mark.triton
kernels = import_module("albert_lsh.attention.compute.triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CASES = {
    "rounds, each key once": ("lsh", {"n_hashes": 3, "cluster_size": 7}),
    "rounds and a mean key": ("random", {"n_hashes": 2, "cluster_size": 9, "global_tokens": 1, "mean_key": True}),
    "single queries, a share of the pairs": ("key-clusters", {"share": 0.3}),
    "chunks": ("shared-qk-lsh", {"bucket_size": 6, "n_hashes": 2}),
    "chunks and a mean key": ("shared-qk-lsh", {"bucket_size": 6, "n_hashes": 2, "mean_key": True}),
    "one chunk, its keys twice": ("shared-qk-lsh", {"bucket_size": 64, "n_hashes": 2}),
}
each_case = pytest.mark.parametrize(("name", "settings"), CASES.values(), ids=CASES)


@pytest.fixture
def attend(monkeypatch):
    """`attention.attend` for tensors on the CPU by way of the kernels, which are sure to have been called."""
    monkeypatch.setattr(compute, "KERNELS_ON_CPU", True)
    launch = create_autospec(kernels.Kernels.launch, side_effect=kernels.Kernels.launch)
    monkeypatch.setattr(kernels.Kernels, "launch", launch)

    def attend(name, *inputs, **keywords):
        before = launch.call_count
        out = attention.attend(name, *(None if x is None else x.to(DEVICE) for x in inputs), **keywords)
        assert launch.call_count > before
        return out.cpu()

    return attend


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((2, 2, 21, 12), "padded"), ((2, 1, 37, 33), "scattered"), ((2, 2, 5, 5), "padded")],
    ids=label,
)
@each_case
def test_output_and_gradients_are_the_references(attend, name, settings, shape, kind):
    check_reference(name, settings, shape, kind, attend=attend)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@each_case
def test_half_precision_rounds_no_worse_than_softmax(attend, name, settings, dtype):
    check_half_precision(name, settings, (2, 1, 23, 16), dtype, attend)


@each_case
def test_no_tokens_at_all_give_zeros_and_finite_gradients(attend, name, settings):
    mask = torch.tensor([[True] * 9, [False] * 9])
    out, *grads = run(lambda *t: attend(name, *t, mask, **settings), tensors((2, 1, 9, 4)), torch.ones(2, 1, 9, 4))
    assert not out[1].any()
    assert all(g.isfinite().all() and not g[1].any() for g in grads)


def test_trying_tiles_leaves_the_sums_alone(attend, monkeypatch):
    """What tuning does on a GPU: every choice that fits runs on the same tensors, then one of them once more."""
    tried = []
    for kernel in (kernels.forward, kernels.backward):
        tiles = (16, 16), (32, 16), (16, 32), (64, 64)
        choices = [type(kernel.configs[0])({"TILE_Q": q, "TILE_K": k}) for q, k in tiles]
        monkeypatch.setattr(kernel, "configs", choices)
        monkeypatch.setitem(vars(kernel), "do_bench", lambda call, quantiles: tried.append(call()) or [-len(tried)])
    check_reference(*CASES["rounds, each key once"], (1, 1, 40, 8), "full", attend=attend)
    assert tried


def test_log_sum_exp_is_that_of_gathered_keys_and_low_where_a_query_sees_none():
    """Queries 0 and 1 see keys 0 and 1, query 2 an empty place, query 3 stands nowhere. Values are wider than keys."""
    inputs = [torch.randn(1, 4, n, generator=torch.Generator().manual_seed(n)).to(DEVICE) for n in (8, 8, 11)]
    keys = Keys(*(torch.tensor(x, device=DEVICE)[None, None] for x in ([[0, 1], [2, 4]], [[0, 1], [4, 4]])))
    found = []
    for backend in (kernels.Kernels(keys, 0.5), Gathered(keys, 0.5, 0.0)):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, log_sum = compute.SparseSoftmax.apply(backend, *leaves)
        (out[:, :2].square().sum() + log_sum[:, :2].exp().sum()).backward()
        found.append([out[:, :2], log_sum[:, :2], *(leaf.grad for leaf in leaves)])
        assert (log_sum[:, 2] < MASKED / 2).all()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_who_goes_through_the_kernels(monkeypatch):
    """No tensor on a CPU unless a test asks for it, nothing with dropout, of other kinds, or without Triton."""
    query = torch.zeros(1, 1, 4, 8)
    assert not compute.can_use_kernels(query, query, query, 0.0)
    monkeypatch.setattr(compute, "KERNELS_ON_CPU", True)
    assert compute.can_use_kernels(query, query, query, 0.0)
    assert not compute.can_use_kernels(query, query, query, 0.1)
    assert not compute.can_use_kernels(*[query.double()] * 3, 0.0)
    assert not compute.can_use_kernels(query, query, query.half(), 0.0)
    monkeypatch.setattr(compute, "find_spec", lambda name: None)
    assert not compute.has_triton.__wrapped__()


def test_long_rows_have_another_backend_and_say_so_once(monkeypatch):
    monkeypatch.setattr(compute, "KERNELS_ON_CPU", True)
    compute.warn_of.cache_clear()
    inputs, settings = [t.to(DEVICE) for t in tensors((1, 1, 9, 136))], {"bucket_size": 4, "n_hashes": 1}
    with pytest.warns(UserWarning, match="head dimension 136 is above 128"):
        attention.attend("shared-qk-lsh", *inputs, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert attention.attend("shared-qk-lsh", *inputs, **settings).isfinite().all()


COMPILE = """
import torch
from albert_lsh import attention
from albert_lsh.attention import compute
from albert_lsh.attention.compute import triton as kernels
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Driver:  # of a GPU that is not there
    get_current_target = lambda self: GPUTarget("cuda", 80, 32)
    get_current_device = get_current_stream = lambda self, *_: 0

class Compiled:  # in place of a kernel: what would be launched is compiled
    def __init__(self, kernel):
        self.function = kernel.fn

    def __getitem__(self, grid):
        return lambda **given: print(self.function.warmup(**given, TILE_Q=16, TILE_K=16, grid=(1,)).metadata.name)

driver.set_active(Driver())
compute.KERNELS_ON_CPU = True
kernels.forward, kernels.backward = Compiled(kernels.forward), Compiled(kernels.backward)
for name, settings in CASES:
    inputs = [torch.randn(1, 1, 40, 12, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    attention.attend(name, *inputs, **settings).sum().backward()
"""


def test_kernels_compile_for_a_gpu(tmp_path):
    """The interpreter takes programs that the compiler does not. These two have all tables, and hide a query's key."""
    cases = CASES["rounds, each key once"], CASES["chunks"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE.replace("CASES", repr(cases))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"forward", "backward"}


if torch.cuda.is_available():

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("shape", [(2, 3, 700, 64), (1, 2, 1500, 128), (3, 2, 333, 80)], ids=str)
    @each_case
    def test_long_sequences_are_the_gathered_ones(monkeypatch, attend, name, settings, shape, dtype):
        """Against gathered keys in float32: exact in float32, else no worse than they are in the same precision."""
        inputs, mask, upstream = tensors(shape, dtype), padding(shape, "padded"), torch.ones(shape)
        measured = run(lambda *t: attend(name, *t, mask, seed=3, **settings), inputs, upstream)
        monkeypatch.setattr(compute, "can_use_kernels", lambda *_: False)

        def gathered(*t):
            return attention.attend(name, *(x.to(DEVICE) for x in (*t, mask)), seed=3, **settings).cpu()

        reference = run(gathered, [t.float() for t in inputs], upstream)
        assert error(measured, reference) < max(2e-6, 2 * error(run(gathered, inputs, upstream), reference))
