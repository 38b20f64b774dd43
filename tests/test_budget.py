"""Budgets, `share` and `keys`: each sequence's is spent and never exceeded; what is fixed stays, or is refused."""

import pytest
import torch

from albert_lsh import attention
from attention_cases import BUDGETED, WITH_REST, tensors

MORE = {
    "lsh": [
        {"n_hashes": 1},
        {"cluster_size": 1},
        {"global_tokens": 9},
        {"rest": False},
    ],
    "plain-lsh": [{"n_hashes": 4}, {"cluster_size": 6, "rest": True}],
    "window": [{"global_tokens": 3}, {"rest": True}],
    "top-k": [{"rest": True}],
    "random": [{"global_tokens": 3}, {"n_hashes": 9}, {"cluster_size": 5, "rest": True}],
    "shared-qk-lsh": [{"n_hashes": 1}, {"bucket_size": 7}, {"rest": True}],
    "improved-clustered": [{"top_keys": 3}, {"num_clusters": 2}],
    "nystrom": [{"pinv_iterations": 2}],
    "yoso": [{"hash_code_len": 4}],
}
FIXED = {name: MORE.get(name, [{"rest": True}] if name in WITH_REST else []) for name in BUDGETED}
EACH = [(name, fixed) for name, several in FIXED.items() for fixed in [{}, *several]]
ESTIMATES = ("nystrom", "yoso", "improved-clustered")
COUNTED = [case for case in EACH if case[0] not in ESTIMATES]  # those two estimate; who collides is chance
each_attention = pytest.mark.parametrize("name", FIXED)


def ids(value):
    return value if isinstance(value, str) else "-".join(value)


def possible(name, length, share, fixed):
    """Whether the attention has settings for this budget; on its own it has, but for the fewest keys."""
    try:
        attention.settings_for(name, length, share, **fixed)
    except ValueError:
        assert fixed or share * length < 4
        return False
    return True


@pytest.mark.parametrize(("name", "fixed"), COUNTED, ids=ids)
def test_a_share_is_spent_and_never_exceeded(name, fixed):
    """Two fifths at least: a key that is met in two rounds counts once, and clusters are whole numbers of keys."""
    for length in (600, 130, 57, 24):
        query, key, _ = tensors((1, 1, length, 8))
        for share in (1, 0.5, 0.25, 0.125):
            if possible(name, length, share, fixed):
                seen = attention.coverage(name, query, key, share=share, **fixed).pairs
                assert 0.4 * share < seen <= share + 1e-9, (length, share)


@pytest.mark.parametrize("name", sorted({name for name, _ in COUNTED}))
def test_keys_are_spent_and_never_exceeded(name):
    for length in (130, 24):
        query, key, _ = tensors((1, 1, length, 8))
        for keys in (12, 23, 10**6):
            seen = attention.coverage(name, query, key, keys=keys).pairs * length
            assert 0.4 * min(keys, length) < seen <= min(keys, length) + 1e-6


@pytest.mark.parametrize("share", [0.5, 0.125])
def test_two_keys_pay_for_a_landmark_or_a_hash(share):
    """nystrom sees all keys by way of landmarks: one is met, and meets. yoso adds a row to a table, and reads one."""
    for length in (57, 256):
        for name, setting in (("nystrom", "num_landmarks"), ("yoso", "n_hashes")):
            assert attention.settings_for(name, length, share)[setting] == int(share * length) // 2


@each_attention
@pytest.mark.parametrize("budget", [{"share": 0.3}, {"share": 0.6}, {"share": 1}, {"keys": 14}], ids=str)
def test_each_sequence_has_the_settings_of_its_own_length(name, budget):
    lengths = torch.tensor([60, 41, 23])
    inputs, mask = tensors((3, 2, 60, 8)), torch.arange(60) < lengths[:, None]
    out = attention.attend(name, *inputs, mask, **budget)
    for b, length in enumerate(lengths.tolist()):
        own = attention.settings_for(name, length, **budget)
        alone = attention.attend(name, *(x[b : b + 1, :, :length] for x in inputs), **own)
        torch.testing.assert_close(out[b : b + 1, :, :length], alone)


@each_attention
def test_no_budget_and_no_settings_are_the_default(name):
    """A quarter of the pairs for those that were chosen so; settings that are given stand for themselves."""
    inputs = tensors((1, 2, 48, 8))
    full = attention.check(name, {})
    assert full["share"] == attention.ATTENTIONS[name].share
    explicit = attention.settings_for(name, 48) if full["share"] else full
    assert torch.equal(attention.attend(name, *inputs), attention.attend(name, *inputs, **explicit))


SMALLEST = {
    "lsh": {"n_hashes": 1, "cluster_size": 1, "global_tokens": 0, "rest": True},
    "plain-lsh": {"n_hashes": 1, "cluster_size": 2},
    "window": {"keys": 1},
    "top-k": {"keys": 1},
    "random": {"n_hashes": 1, "cluster_size": 1},
    "shared-qk-lsh": {"n_hashes": 1, "bucket_size": 2},
    "smyrf": {"n_hashes": 1, "cluster_size": 2},
    "improved-clustered": {"num_clusters": 1, "top_keys": 1},
    "nystrom": {"num_landmarks": 1},
    "yoso": {"n_hashes": 1},
}


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("name", SMALLEST)
def test_too_short_a_sequence_has_the_smallest_budget_that_can_be_spent(name, length):
    inputs = tensors((1, 2, length, 8))
    out = attention.attend(name, *inputs, share=0.01)
    torch.testing.assert_close(out, attention.attend(name, *inputs, **SMALLEST[name]))


def test_a_size_that_no_budget_holds_is_kept_and_said():
    inputs = tensors((1, 2, 64, 8))
    with pytest.warns(UserWarning, match="share=0.25 of length=64 does not hold cluster_size=32; 32 keys are seen"):
        seen = attention.coverage("plain-lsh", *inputs[:2], share=0.25, cluster_size=32)
    assert seen.pairs == pytest.approx(0.5)


def test_fixed_settings_that_no_short_sequence_has_room_for_do_not_fail():
    """Refused where a length is asked about, they stand as they are in a sequence that has no choice."""
    inputs, fixed = tensors((1, 2, 9, 8)), {"global_tokens": 9}
    out = attention.attend("lsh", *inputs, share=0.25, **fixed)
    torch.testing.assert_close(out, attention.attend("softmax", *inputs))  # nine tokens, all seen by all
    with pytest.raises(ValueError, match="share=0.25 of length=9 leaves -8 keys to choose"):
        attention.settings_for("lsh", 9, 0.25, **fixed)


def test_what_is_not_fixed_is_chosen_to_fit():
    own = {"rest": True, "global_tokens": 2}
    assert attention.settings_for("lsh", 256, 0.25) == {**own, "cluster_size": 7, "n_hashes": 8}
    assert attention.settings_for("lsh", 256, 0.25, rest=False)["n_hashes"] == 8
    assert attention.settings_for("lsh", 256, 0.25, n_hashes=10)["cluster_size"] == 6
    assert attention.settings_for("lsh", 32, 0.25) == {**own, "cluster_size": 2, "n_hashes": 2}  # 4 of 5, not 3
    assert attention.settings_for("window", 100, 0.2, global_tokens=5) == {"global_tokens": 5, "keys": 15}
    assert attention.settings_for("shared-qk-lsh", 256, 0.25, bucket_size=8)["n_hashes"] == 4
    assert attention.settings_for("reformer", 256, 0.25) == {"n_hashes": 4, "bucket_size": 8}


@pytest.mark.parametrize(
    ("name", "length", "share", "fixed", "message"),
    [
        ("softmax", 256, 0.25, {}, "attention='softmax' has no budget; one has: shared-qk-lsh, lsh, plain-lsh, window"),
        ("lhs", 256, 0.25, {}, "attention='lhs' is not one of: softmax"),
        ("lsh", 256, 0, {}, "share=0 must be a number above 0, at most 1"),
        ("window", 256, 1.5, {}, "share=1.5 must be a number above 0, at most 1"),
        ("lsh", 256, "0.25", {}, "share='0.25' must be a number above 0, at most 1"),
        ("lsh", 256.0, 0.25, {}, "length=256.0 must be a whole number, 1 to"),
        ("lsh", 256, 0.25, {"keys": 64}, "share=0.25 and keys=64 cannot both be given"),
        ("lsh", 3, 0.25, {}, "share=0.25 of length=3 leaves -1 keys to choose beside rest=1; lsh"),
        ("top-k", 256, None, {"keys": 0}, "keys=0 must be a whole number, 1 to 2147483647"),
        ("shared-qk-lsh", 24, 0.125, {}, "share=0.125 of length=24 leaves 3 keys to choose; shared-qk-lsh needs 4"),
        ("lsh", 256, 0.25, {"n_hashes": 0}, "lsh: n_hashes=0 must be a whole number, 1 to 2147483647"),
        ("shared-qk-lsh", 256, 0.25, {"bucket_size": 0}, "bucket_size=0 must be a whole number, 2 to 2147483647"),
        ("top-k", 256, 0.25, {"global_tokens": 2}, "attention 'top-k' has no setting 'global_tokens'; it has: share"),
        ("lsh", 256, 0.25, {"n_hashes": 63}, "lsh: n_hashes=63 does not fit share=0.25 of length=256; 61 or less fits"),
        ("lsh", 256, 0.25, {"cluster_size": 63}, "cluster_size=63 does not fit share=0.25 of length=256; 61 or less"),
        ("plain-lsh", 256, 0.25, {"n_hashes": 33}, "n_hashes=33 does not fit share=0.25 of length=256; 32 or less"),
        ("plain-lsh", 256, None, {"keys": 30, "n_hashes": 16}, "n_hashes=16 does not fit keys=30 of length=256; 15 or"),
        ("random", 256, 0.25, {"n_hashes": 100}, "random: n_hashes=100 does not fit share=0.25 of length=256; 64 or"),
        ("shared-qk-lsh", 256, 0.25, {"n_hashes": 40}, "n_hashes=40 does not fit share=0.25 of length=256; 16 or less"),
        ("reformer", 256, 0.25, {"bucket_size": 64}, "bucket_size=64 does not fit share=0.25 of length=256; 32 or"),
        ("reformer", 256, 0.25, {"full_attn_thres": 256}, "full_attn_thres=256 does not fit share=0.25 of length=256; "
         "255 or less fits"),
        ("nystrom", 256, 0.25, {"num_landmarks": 64}, "num_landmarks=64 does not fit share=0.25 of length=256; 32 or"),
        ("yoso", 256, 0.25, {"n_hashes": 33}, "yoso: n_hashes=33 does not fit share=0.25 of length=256; 32 or less"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(name, length, share, fixed, message):
    with pytest.raises(ValueError, match=message):
        attention.settings_for(name, length, share, **fixed)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lsh", {"share": 0.25, "keys": 9}, "lsh: share=0.25 and keys=9 cannot both be given"),
        ("window", {"share": 0.25, "keys": 9}, "window: share=0.25 and keys=9 cannot both be given"),
        ("lsh", {"share": 0.25, "n_hashes": 2, "cluster_size": 4}, "a budget leaves n_hashes or cluster_size open"),
        ("lsh", {"keys": 9, "n_hashes": 2, "cluster_size": 4}, "a budget leaves n_hashes or cluster_size open"),
        ("shared-qk-lsh", {"share": 0.5, "n_hashes": 2, "bucket_size": 4}, "leaves n_hashes or bucket_size open"),
        ("lsh", {"share": 0}, "lsh: share=0 must be a number above 0, at most 1"),
        ("lsh", {"share": True}, "share=True must be a number above 0, at most 1"),
        ("lsh", {"share": float("nan")}, "share=nan must be a number above 0, at most 1"),
        ("yoso", {"keys": 2.5}, "yoso: keys=2.5 must be a whole number"),
    ],
    ids=str,
)
def test_settings_that_contradict_one_another_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        attention.attend(name, *tensors((1, 1, 40, 8)), **settings)


def test_evaluation_may_have_a_budget_of_its_own():
    """What is given takes the place of what it contradicts, and of nothing else."""
    trained = {"share": 0.25, "rest": True}
    checked = attention.check_evaluation("lsh", trained, {"share": 0.5})
    assert (checked["share"], checked["rest"], checked["n_hashes"]) == (0.5, True, None)
    checked = attention.check_evaluation("lsh", trained, {"n_hashes": 2, "cluster_size": 9})
    assert (checked["share"], checked["n_hashes"], checked["cluster_size"]) == (None, 2, 9)
    checked = attention.check_evaluation("lsh", {"n_hashes": 2, "cluster_size": 9}, {"keys": 30})
    assert (checked["keys"], checked["n_hashes"], checked["cluster_size"]) == (30, None, None)
    assert attention.check_evaluation("lsh", trained, None) == attention.check("lsh", trained)
    with pytest.raises(ValueError, match="evaluation_settings: lsh: share=2 must be"):
        attention.check_evaluation("lsh", trained, {"share": 2})


def test_settings_that_left_are_read_where_they_changed_nothing():
    """As records and saved models have them."""
    old = {"n_hashes": 7, "cluster_size": 4, "block_size": 1, "global_tokens": 2, "window": 0, "far_field": False}
    today = attention.check("lsh", {"n_hashes": 7, "cluster_size": 4, "global_tokens": 2})
    assert attention.check("lsh", old) == today
    assert attention.check("lsh", {**old, "block_size": None}) == today
    for setting in ({"far_field": True}, {"window": 3}, {"block_size": 64}):
        with pytest.raises(ValueError, match=r"lsh: \w+=\w+ left the library; .* commit e85e234"):
            attention.check("lsh", {**old, **setting})
