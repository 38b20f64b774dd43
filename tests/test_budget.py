"""Budgets, `share` and `keys`: each sequence's is spent and never exceeded; what is fixed stays, or is refused."""

import contextlib
from itertools import pairwise

import pytest
import torch

from albert_lsh import attention
from attention_cases import BUDGETED, WITH_REST, each, label, tensors

MORE = {
    "key-clusters": [{"n_hashes": 1}, {"cluster_size": 1}, {"global_tokens": 9}, {"rest": False}],
    "lsh": [{"n_hashes": 4}, {"cluster_size": 6, "rest": True}],
    "window": [{"global_tokens": 3}, {"rest": True}],
    "random": [{"global_tokens": 3}, {"n_hashes": 9}, {"cluster_size": 5, "rest": True}],
    "shared-qk-lsh": [{"n_hashes": 1}, {"bucket_size": 7}, {"rest": True}],
}
EACH = [(name, fixed) for name in BUDGETED for fixed in [{}, *MORE.get(name, [{"rest": True}] * (name in WITH_REST))]]
ESTIMATES = ("nystrom", "yoso", "improved-clustered")  # who see all keys, or whom chance lets collide
COUNTED = [case for case in EACH if case[0] not in ESTIMATES]


def is_possible(name, length, budget, fixed):
    """Whether the attention has settings for this budget; on its own it has, but for the fewest keys."""
    with contextlib.suppress(ValueError):
        return bool(attention.settings_for(name, length, **budget, **fixed))
    assert fixed or budget["share"] * length < 4
    return False


@each(COUNTED)
def test_a_budget_is_spent_and_never_exceeded(name, settings):
    """Two fifths at least: a key that is met in two rounds counts once, and clusters are whole numbers of keys."""
    for length in (600, 130, 57, 24):
        query, key, _ = tensors((1, 1, length, 8))
        budgets = [{"share": share} for share in (1, 0.5, 0.25, 0.125)] + [{"keys": n} for n in (12, 23, 10**6)]
        for budget in (x for x in budgets if is_possible(name, length, x, settings)):
            share = budget.get("share") or min(1, budget["keys"] / length)
            seen = attention.coverage(name, query, key, **budget, **settings).pairs
            assert 0.4 * share < seen <= share + 1e-9, (length, budget)


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
    inputs, keys = (
        tensors((1, 2, length, 8)),
        attention.ATTENTIONS[name].fewest + (name == "key-clusters"),
    )  # which has the rest
    smallest = attention.settings_for(name, 1000, keys=keys)
    out = attention.attend(name, *inputs, share=0.01)
    torch.testing.assert_close(out, attention.attend(name, *inputs, **smallest))


def test_a_size_that_no_budget_holds_is_kept_and_said():
    inputs = tensors((1, 2, 64, 8))
    with pytest.warns(UserWarning, match="share=0.25 of length=64 does not hold cluster_size=32; 32 keys are seen"):
        seen = attention.coverage("lsh", *inputs[:2], share=0.25, cluster_size=32)
    assert seen.pairs == pytest.approx(0.5)
    out = attention.attend("key-clusters", *(x[:, :, :9] for x in inputs), share=0.25, global_tokens=9)
    torch.testing.assert_close(out, attention.attend("softmax", *(x[:, :, :9] for x in inputs)))  # all seen by all


def test_what_is_not_fixed_is_chosen_to_fit():
    chosen, usual = attention.settings_for, {"rest": True, "global_tokens": 2}
    assert chosen("key-clusters", 256, 0.25) == {**usual, "cluster_size": 7, "n_hashes": 8}
    assert chosen("key-clusters", 32, 0.25) == {**usual, "cluster_size": 2, "n_hashes": 2}  # 4 of 5, not 3
    assert chosen("key-clusters", 256, 0.25, n_hashes=10)["cluster_size"] == 6
    assert chosen("window", 100, 0.2, global_tokens=5) == {"global_tokens": 5, "keys": 15}
    assert chosen("shared-qk-lsh", 256, 0.25, bucket_size=8)["n_hashes"] == 4
    assert chosen("reformer", 256, 0.25) == {"n_hashes": 4, "bucket_size": 8}
    assert chosen("nystrom", 57, 0.5)["num_landmarks"] == chosen("yoso", 57, 0.5)["n_hashes"] == 14  # two keys each
    assert chosen("lsh", 64, keys=16, n_hashes=2, cluster_size=3) == {"n_hashes": 2, "cluster_size": 3}


@pytest.mark.parametrize(
    ("name", "length", "share", "fixed", "message"),
    [
        ("softmax", 256, 0.25, {}, "attention='softmax' has no budget; one has: reformer, shared-qk-lsh, key-clusters"),
        ("window", 256, 1.5, {}, "budget: share=1.5 must be less than or equal to 1"),
        ("key-clusters", 256.0, 0.25, {}, "length=256.0 must be a whole number, 1 to"),
        ("top-k", 256, None, {"keys": 0}, "keys=0 must be greater than or equal to 1"),
        ("shared-qk-lsh", 24, 0.125, {}, "shared-qk-lsh: share=0.125 of length=24 is 3 keys, too few; 4 would do"),
        ("key-clusters", 256, 0.25, {"n_hashes": 62}, "is 64 keys, too few for n_hashes=62; 65 would do"),
        (
            "key-clusters",
            9,
            None,
            {"keys": 2, "global_tokens": 9},
            "keys=2 of length=9 is 2 keys, too few for global_tokens=9",
        ),
        ("lsh", 256, 0.25, {"n_hashes": 8, "cluster_size": 9}, "for n_hashes=8, cluster_size=9; 72 would do"),
        ("reformer", 256, 0.25, {"full_attn_thres": 256}, "too few for full_attn_thres=256; 256 would do"),
        ("nystrom", 256, 0.25, {"num_landmarks": 64}, "too few for num_landmarks=64; 128 would do"),
        ("improved-clustered", 64, 0.25, {"top_keys": 20}, "too few for top_keys=20; 21 would do"),
    ],
    ids=label,
)
def test_what_cannot_be_is_refused_by_name(name, length, share, fixed, message):
    with pytest.raises(ValueError, match=message):
        attention.settings_for(name, length, share, **fixed)


def test_evaluation_may_have_a_budget_of_its_own():
    """What is given takes the place of what it contradicts, and of nothing else."""
    trained = {"share": 0.25, "rest": True}
    checked = attention.check_evaluation("key-clusters", trained, {"share": 0.5})
    assert (checked["share"], checked["rest"], checked["n_hashes"]) == (0.5, True, None)
    checked = attention.check_evaluation("key-clusters", trained, {"n_hashes": 2, "cluster_size": 9})
    assert (checked["share"], checked["n_hashes"], checked["cluster_size"]) == (None, 2, 9)
    checked = attention.check_evaluation("key-clusters", {"n_hashes": 2, "cluster_size": 9}, {"keys": 30})
    assert (checked["keys"], checked["n_hashes"], checked["cluster_size"]) == (30, None, None)
    assert attention.check_evaluation("key-clusters", trained, None) == attention.check("key-clusters", trained)
    with pytest.raises(ValueError, match="evaluation_settings: key-clusters: share=2 must be"):
        attention.check_evaluation("key-clusters", trained, {"share": 2})


def test_settings_that_left_are_read_where_they_changed_nothing():
    """As records and saved models have them."""
    old = {"n_hashes": 7, "cluster_size": 4, "block_size": 1, "global_tokens": 2, "window": 0, "far_field": False}
    today = attention.check("key-clusters", {"n_hashes": 7, "cluster_size": 4, "global_tokens": 2})
    assert attention.check("key-clusters", old) == attention.check("key-clusters", {**old, "block_size": None}) == today
    inputs = tensors((1, 2, 30, 8))
    assert torch.equal(
        attention.attend("key-clusters", *inputs, **old), attention.attend("key-clusters", *inputs, **today)
    )
    for setting in ({"far_field": True}, {"window": 3}, {"block_size": 64}):
        with pytest.raises(ValueError, match=r"key-clusters: \w+=\w+ left the library; commit e85e234"):
            attention.check("key-clusters", {**old, **setting})
        assert attention.recorded("key-clusters", {**old, **setting}) == {**old, **setting}


def test_the_clusters_of_lsh_grow_with_the_length_and_nowhere_jump():
    """At 512 tokens another computation begins, which likes larger ones."""
    sizes = [attention.settings_for("key-clusters", n, 0.5)["cluster_size"] for n in range(400, 4096, 16)]
    assert max(abs(b - a) for a, b in pairwise(sizes)) <= 3
    assert sizes[-1] > 5 * sizes[0]
