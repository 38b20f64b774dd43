"""The attentions with settings and shapes to test them on, and how outputs and gradients are taken and compared."""

import pytest
import torch

from albert_lsh import attention
from references import naive, naive_estimators


def reference_of(name: str):
    """The function of that name in `references`; None if there is none."""
    written = name.removesuffix("-eager").replace("-", "_")
    return getattr(naive, written, None) or getattr(naive_estimators, written, None)


REFERENCES = {name: reference_of(name) for name in attention.names() if reference_of(name)}
SETTINGS = {
    "shared-qk": [
        {},
        {"causal": True},
        {"unit_keys": False, "others_only": False},
        {"others_only": False, "causal": True},
        {"tied_keys": False},
    ],
    "shared-qk-lsh": [
        {"bucket_size": 5, "n_hashes": 3},
        {"bucket_size": 64, "n_hashes": 2},
        {"bucket_size": 5, "n_hashes": 2, "causal": True},
        {"bucket_size": 9, "n_hashes": 1, "causal": True},
        {"share": 0.5, "mean_key": True},
    ],
    "key-clusters": [
        {"n_hashes": 3, "cluster_size": 3},
        {"share": 0.3},
        {"keys": 9, "mean_key": True},
        {"n_hashes": 2, "cluster_size": 5, "global_tokens": 0, "mean_key": True, "axes": 4},
    ],
    "lsh": [{"n_hashes": 3, "cluster_size": 7}, {"n_hashes": 1, "cluster_size": 2}, {"share": 0.4, "mean_key": True}],
    "random": [
        {"n_hashes": 3, "cluster_size": 7},
        {"n_hashes": 2, "cluster_size": 4, "global_tokens": 2},
        {"share": 0.4, "mean_key": True, "global_tokens": 1},
    ],
    "window": [{"keys": 7}, {"keys": 20, "global_tokens": 3}, {"share": 0.5, "mean_key": True}],
    "top-k": [{"keys": 6}, {"share": 0.2, "mean_key": True}],
    "reformer": [{"bucket_size": 4, "n_hashes": 2, "full_attn_thres": 8}],
    "smyrf": [{"n_hashes": 3, "cluster_size": 7}, {"n_hashes": 1, "cluster_size": 2}, {"share": 0.4}],
    "improved-clustered": [{"num_clusters": 3, "top_keys": 5}, {"share": 0.4}],
    "nystrom": [{"num_landmarks": 7}, {"share": 0.5}, {"num_landmarks": 7, "conv_kernel_size": 5}],
    "yoso": [
        {"n_hashes": 5, "hash_code_len": 3},
        {"share": 0.5, "hash_code_len": 3, "conv_kernel_size": 5},
        {"share": 0.3, "n2_backward": True},
    ],
    "yoso-e": [{"hash_code_len": 4}, {"conv_kernel_size": 5}],
}
CASES = [(name, settings) for name in REFERENCES for settings in SETTINGS.get(name, [{}])]
ALL = [(name, SETTINGS.get(name, [{}])[0]) for name in attention.names()]
BUDGETED = [name for name in attention.names() if "share" in attention.check(name)]
WITH_MEAN_KEY = [name for name in attention.names() if "mean_key" in attention.check(name)]
QUARTER = [(name, {"share": 0.25} if name in BUDGETED else settings) for name, settings in ALL]
# With all that follow from it, an attention that is new is tested as far as it can be without a list of settings.
HASHED = ["shared-qk-lsh", "key-clusters", "lsh", "random", "smyrf", "improved-clustered", "yoso"]
# (batch, heads, length, head_dim): a lone token, fewer tokens than a cluster, no multiple of anything, a multiple
SHAPES = [(1, 1, 1, 3), (2, 3, 5, 5), (2, 2, 37, 12), (1, 2, 60, 16)]


def label(value):
    """Of a case in a test's name."""
    if isinstance(value, dict):
        return "-".join(f"{k}={v}" for k, v in value.items()) or "default"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def each(cases):
    """Parametrises a test over attentions and settings."""
    return pytest.mark.parametrize(("name", "settings"), cases, ids=label)


def tensors(shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]


def padding(shape, kind):
    """None, padding at the end, or padding anywhere; the first sequence is full, every sequence has a token."""
    batch, _, length, _ = shape
    if kind == "full":
        return None
    mask = torch.arange(length) < torch.linspace(length, 1, batch).long()[:, None]
    if kind == "scattered":
        mask = mask | (torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) < 0.3)
        mask = mask.flip(1)
    return mask


def run(function, inputs, upstream, *args, **kwargs):
    """Output and the gradients of all inputs, as float64."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = function(*leaves, *args, **kwargs)
    out.backward(upstream.to(out.dtype))
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]
    return [t.detach().double() for t in (out, *grads)]


def error(measured, reference):
    """Frobenius norm of the difference over that of the reference, for output and gradients together."""
    difference = sum((m - r).square().sum() for m, r in zip(measured, reference, strict=True))
    size = sum(r.square().sum() for r in reference)
    return (difference / size.clamp(min=1e-30)).sqrt().item()  # where both are zero, the error is


def both(name, settings, shape, kind, dtype=torch.float32, attend=attention.attend, reference=None, **keywords):
    """Output and gradients as measured, and as the reference has them in float64 of the same rounded numbers."""
    slow = reference or REFERENCES[name]
    inputs, mask = tensors(shape, dtype), padding(shape, kind)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    if size := settings.get("conv_kernel_size"):
        inputs.append(tensors((shape[1], size), dtype, seed=4)[0])

    def measured(*t):
        return attend(name, *t[:3], mask, seed=3, **weight(t), **keywords, **settings)

    def expected(*t):
        options = attention.check(name, settings) | {"generator": torch.Generator().manual_seed(3)} | weight(t)
        return slow(*t[:3], mask, scaling=shape[-1] ** -0.5, **options)

    def weight(t):
        return {"conv_weight": t[3]} if size else {}

    exact = inputs if dtype == torch.float32 else [t.double() for t in inputs]
    return run(measured, inputs, upstream), run(expected, exact, upstream)


def check_reference(*case, **keywords):
    assert error(*both(*case, **keywords)) < 2e-6  # float32 keeps 6e-8; largest seen: 4e-7


def check_half_precision(name, settings, shape, dtype, attend=attention.attend):
    """The error allowed is three times what torch's own softmax attention makes of the same rounded inputs."""
    plain = both("softmax", {}, shape, "padded", dtype)
    assert error(*both(name, settings, shape, "padded", dtype, attend)) < 3 * error(*plain)
