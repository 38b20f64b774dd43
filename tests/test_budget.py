"""Budgets, `share` and `keys`: each sequence's is spent and never exceeded; what stands beside them stays."""

from itertools import pairwise

import pytest
import torch

from albert_lsh import attention
from attention_cases import BUDGETED, WITH_MEAN_KEY, each, label, tensors

BESIDE = {
    "key-clusters": [{"global_tokens": 9}, {"mean_key": False}],
    "window": [{"global_tokens": 3}, {"mean_key": True}],
    "random": [{"global_tokens": 3}, {"mean_key": True}],
    **{name: [{"mean_key": True}] for name in ("shared-qk-lsh", "lsh", "top-k")},
}
EACH = [(name, settings) for name in BUDGETED for settings in [{}, *BESIDE.get(name, [])]]
ESTIMATES = ("nystrom", "yoso", "improved-clustered")  # who see all keys, or whom chance lets collide


def test_every_attention_with_a_mean_key_is_tested_with_it():
    assert BESIDE.keys() == set(WITH_MEAN_KEY)


@each([case for case in EACH if case[0] not in ESTIMATES])
def test_a_budget_is_spent_and_never_exceeded(name, settings):
    """Two fifths at least: a key that is met in two rounds counts once, and clusters are whole numbers of keys.

    Where the budget is too small for what stands beside it, a few keys more are seen.
    """
    for length in (600, 130, 57, 24):
        query, key, _ = tensors((1, 1, length, 8))
        for budget in [{"share": share} for share in (1, 0.5, 0.25)] + [{"keys": n} for n in (12, 23, 10**6)]:
            share = budget.get("share") or min(1, budget["keys"] / length)
            fewest = settings.get("global_tokens", 0) + settings.get("mean_key", 0) + 4
            seen = attention.coverage(name, query, key, **budget, **settings).pairs
            assert 0.4 * share < seen <= max(share, fewest / length) + 1e-9, (length, budget)


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("budget", [{"share": 0.3}, {"share": 1}, {"keys": 14}, {}], ids=label)
def test_each_sequence_has_the_settings_of_its_own_length(name, budget):
    """Without a budget, and without settings, those that the default comes to."""
    lengths = torch.tensor([60, 41, 23])
    inputs, mask = tensors((3, 2, 60, 8)), torch.arange(60) < lengths[:, None]
    out = attention.attend(name, *inputs, mask, **budget)
    full = attention.check(name)
    for b, length in enumerate(lengths.tolist()):
        usual = full if full["share"] is None and not budget else attention.settings_for(name, length, **budget)
        alone = attention.attend(name, *(x[b : b + 1, :, :length] for x in inputs), **usual)
        torch.testing.assert_close(out[b : b + 1, :, :length], alone)


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("name", BUDGETED)
def test_too_short_a_sequence_has_the_smallest_budget_that_can_be_spent(name, length):
    inputs, kind = tensors((1, 2, length, 8)), attention.ATTENTIONS[name]
    fewest = kind.fewest + (name == "key-clusters")  # which has the mean key
    smallest = attention.settings_for(name, 1000, keys=fewest)
    torch.testing.assert_close(attention.attend(name, *inputs, share=0.01), attention.attend(name, *inputs, **smallest))


def test_what_a_budget_comes_to():
    sizes, usual = attention.settings_for, {"mean_key": True, "global_tokens": 2}
    assert sizes("key-clusters", 256, 0.25) == {**usual, "cluster_size": 7, "n_hashes": 8}
    assert sizes("key-clusters", 32, 0.25) == {**usual, "cluster_size": 2, "n_hashes": 2}  # 4 of 5, not 3
    assert sizes("key-clusters", 1024, 0.125, mean_key=False, global_tokens=0) == {
        "mean_key": False, "global_tokens": 0, "cluster_size": 21, "n_hashes": 6,
    }  # fmt: skip
    assert sizes("window", 100, 0.2, global_tokens=5) == {"global_tokens": 5, "keys": 15}
    assert sizes("key-clusters", 256) == sizes("key-clusters", 256, 0.5)
    assert attention.check("key-clusters")["share"] == 0.5
    assert sizes("lsh", 256, keys=64) == sizes("lsh", 256) == {"n_hashes": 4, "cluster_size": 16}
    assert sizes("shared-qk-lsh", 256, 0.25) == {"n_hashes": 4, "bucket_size": 8}
    assert sizes("nystrom", 57, 0.5)["num_landmarks"] == sizes("yoso", 57, 0.5)["n_hashes"] == 14  # two keys each


def test_clusters_of_keys_grow_with_the_length_and_nowhere_jump():
    """At 512 tokens another computation begins, which likes larger ones."""
    sizes = [attention.settings_for("key-clusters", n, 0.5)["cluster_size"] for n in range(400, 4096, 16)]
    assert max(abs(b - a) for a, b in pairwise(sizes)) <= 3
    assert sizes[-1] > 5 * sizes[0]
