"""The old code and the new one side by side: what an attention computes must not change while its code does.

    python tests/golden.py attentions OLD_CHECKOUT

computes everything twice, in two processes, with OLD_CHECKOUT/lib and with the lib beside this file, and prints the
largest differences. It ends with status 1 where one is above what rounding explains. pytest does not collect this file.
Values have names; what stands before " | " is the group.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
# The largest difference allowed, as a share of the largest number in a tensor. float32 keeps 6e-8 of a number and
# bfloat16 4e-3; sums in another order add up to a few of them. Keys chosen, costs and settings are equal exactly.
ROUNDING = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
LEFT = {"far_field", "window", "block_size"}  # settings of `lsh` that there are no more
SETTINGS = {  # beside the defaults, and a quarter of the pairs
    "lsh": [{"n_hashes": 3, "cluster_size": 5}, {"share": 0.25, "rest": False}, {"keys": 9, "global_tokens": 0}],
    "plain-lsh": [{"n_hashes": 3, "cluster_size": 7, "rest": True}],
    "random": [{"n_hashes": 2, "cluster_size": 9, "global_tokens": 2, "rest": True}],
    "shared-qk-lsh": [{"bucket_size": 3, "n_hashes": 2, "rest": True}, {"bucket_size": 64, "n_hashes": 3}],
    "window": [{"keys": 20, "global_tokens": 3, "rest": True}],
    "top-k": [{"keys": 6, "rest": True}],
    "improved-clustered": [{"share": 0.5, "top_keys": 3}],
    "nystrom": [{"num_landmarks": 7, "conv_kernel_size": 5}],
    "yoso": [{"n_hashes": 5, "hash_code_len": 3, "conv_kernel_size": 5}],
    "reformer": [{"bucket_size": 4, "n_hashes": 2}],
}
FIXED = [{}, {"rest": True}, {"rest": False}, {"n_hashes": 1}, {"n_hashes": 9}, {"cluster_size": 6}, {"bucket_size": 5}]
FIXED += [{"global_tokens": 0}, {"global_tokens": 9, "rest": True}, {"top_keys": 3}, {"num_clusters": 40}]
BUDGETS = [{"share": 0.02}, {"share": 0.25}, {"share": 0.6}, {"share": 1.0}, {"keys": 5}, {"keys": 40}]


def attentions():
    """Output, gradients, pairs, coverage, cost and settings of every attention."""
    from albert_lsh import attention

    for name in attention.names():
        known = attention.check(name)
        has_share = [{"share": 0.25}] if "share" in known else []
        for length in (23, 128, 600):
            for settings in [{}, *has_share, *SETTINGS.get(name, [])]:
                yield f"{name} | cost {length} {settings}", attention.cost(name, length, 16, **settings)
                yield from computed(attention, name, length, settings)
        for fixed in FIXED if has_share or name == "reformer" else ():
            if fixed.keys() <= known.keys():
                yield from fitted(attention, name, fixed)


def computed(attention, name, length, settings):
    """Three sequences without padding; and one full, one with holes and padding behind, one padded on the left."""
    position, generator = torch.arange(length), torch.Generator().manual_seed(length)
    holes = (position % 7 != 3) & (position < 0.7 * length)
    *inputs, upstream = (torch.randn((3, 2, length, 16), generator=generator) for _ in range(4))
    weight = {"conv_weight": torch.linspace(-1, 1, 10).view(2, 5)} if "conv_kernel_size" in settings else {}
    for mask in (None, torch.stack([position >= 0, holes, position >= length // 3])):
        case = f"{length} {'no ' if mask is None else ''}padding {settings}"
        for what in (attention.pairs, attention.coverage):
            seen = what(name, *inputs[:2], mask, seed=3, **settings)
            yield f"{name} | {what.__name__} {case}", seen if isinstance(seen, torch.Tensor) else tuple(seen)
        for dtype in (torch.float32, torch.bfloat16):
            rows = [x.to(dtype).requires_grad_() for x in inputs]
            for trains in (False, True):  # evaluation may be computed another way
                with torch.set_grad_enabled(trains):
                    out = attention.attend(name, *rows, mask, seed=3, **settings, **weight)
                yield f"{name} | output {case} {dtype} {trains}", out
            grads = torch.autograd.grad(out, rows, upstream.to(dtype), allow_unused=True, materialize_grads=True)
            yield from zip((f"{name} | gradient of {x} {case} {dtype}" for x in "qkv"), grads, strict=True)


def fitted(attention, name, fixed):
    """What a budget comes to by itself (or that it is refused), and in a sequence, where nothing is refused."""
    for length in (1, 2, 3, 5, 9, 23, 57, 128, 600, 4096):
        for budget in BUDGETS:
            case, settings = f"{name} | budget {length} {budget} {fixed}", {}  # refused
            with contextlib.suppress(ValueError):
                settings = attention.settings_for(name, length, **budget, **fixed)
            yield case, {k: v for k, v in settings.items() if k not in LEFT}
            if name != "reformer":
                yield f"{case} cost", attention.cost(name, length, 16, **budget, **fixed)


def difference(old, new):
    """How far apart two values are, and how far they may be."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return float(old != new), 0.0
    if (old.shape, old.dtype) != (new.shape, new.dtype) or not old.is_floating_point():
        return float(not torch.equal(old, new)), 0.0
    return ((old.double() - new.double()).abs().max() / old.abs().max().clamp(min=1e-12)).item(), ROUNDING[old.dtype]


def main(old_checkout):
    values, largest, failed = [], defaultdict(float), []
    with tempfile.TemporaryDirectory() as folder:
        for number, checkout in enumerate((Path(old_checkout), ROOT)):
            path = Path(folder) / f"{number}.pt"
            environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "lib")}
            subprocess.run([sys.executable, __file__, "--save", str(path)], env=environment, check=True)
            values.append(torch.load(path, weights_only=False))
    old, new = values
    for name in old.keys() | new.keys():
        apart, allowed = difference(old.get(name), new.get(name))
        group = name.partition(" | ")[0], str(getattr(old.get(name), "dtype", "number")).removeprefix("torch.")
        largest[group] = max(largest[group], apart)
        if not apart <= allowed:
            failed.append(f"{name}: {apart:.2g} apart, {allowed:.2g} allowed")
    print(*(f"{apart:8.1g}  {' '.join(group)}" for group, apart in sorted(largest.items())), sep="\n")
    print(f"{len(old)} values compared, {len(failed)} differ", *sorted(failed)[:40], sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--save":
        warnings.simplefilter("ignore")
        torch.save({k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in attentions()}, sys.argv[2])
    else:
        sys.exit(main(sys.argv[2]))
