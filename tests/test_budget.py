"""`settings_for`: the budget is spent and never exceeded, and what is fixed stays as it is or is refused."""

import pytest

from albert_lsh import attention
from attention_cases import PLAIN, tensors

COLLIDE = {"choose": "collision", "hashing": "plain"}
FIXED = {
    "lsh": [
        {"n_hashes": 1},
        {"n_hashes": 50},
        {"cluster_size": 1},
        {"cluster_size": 40},
        {"n_hashes": 3, "cluster_size": 5},
        {"n_hashes": 2, "far_field": True},
        {"cluster_size": 8, "far_field": True, "window": 3},
        {"n_hashes": 2, "cluster_size": 6, "far_field": True},
        {"global_tokens": 9, "window": 5, "block_size": 4},
        COLLIDE,
        {**COLLIDE, "n_hashes": 4},
        {**COLLIDE, "cluster_size": 6, "window": 2},
        {**COLLIDE, "n_hashes": 3, "cluster_size": 4},
    ],
    "window": [{"global_tokens": 3}, {"n_hashes": 4}, {"cluster_size": 5}, {"n_hashes": 2, "cluster_size": 4}],
    "top-k": [{"n_hashes": 4}, {"cluster_size": 5}, {"n_hashes": 2, "cluster_size": 4}],
    "random": [{"global_tokens": 3}, {"n_hashes": 100}, {"cluster_size": 5}, {"n_hashes": 2, "cluster_size": 4}],
    "shared-qk-lsh": [{"n_hashes": 1}, {"n_hashes": 40}, {"bucket_size": 7}, {"n_hashes": 2, "bucket_size": 3}],
    "reformer": [{"n_hashes": 1}, {"n_hashes": 40}, {"bucket_size": 7}, {"bucket_size": 4, "full_attn_thres": 30}],
    "nystrom": [{"num_landmarks": 5}, {"pinv_iterations": 2}],
    "yoso": [{"n_hashes": 5}, {"hash_code_len": 4}],
}
EACH = [(name, fixed) for name, several in FIXED.items() for fixed in [{}, *several]]


@pytest.mark.parametrize("share", [1, 0.5, 0.25, 0.125])
@pytest.mark.parametrize("length", [24, 57, 256, 600])
@pytest.mark.parametrize(("name", "fixed"), EACH, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_the_budget_is_never_exceeded_and_what_is_fixed_stays(name, fixed, length, share):
    try:
        settings = attention.settings_for(name, length, share, **fixed)
    except ValueError:
        assert fixed or length < 32  # on its own an attention finds settings, but for the fewest keys
        return
    assert settings.items() >= fixed.items()
    if name == "nystrom":  # sees all keys by way of landmarks; counts a landmark asked, and one that asks
        assert 2 * settings["num_landmarks"] <= share * length
    elif name == "yoso":  # a row that is added and one that is read; who collides is up to chance
        assert 2 * settings["n_hashes"] <= share * length
    else:
        query, key, _ = tensors((1, 2, length, 8))
        assert attention.coverage(name, query, key, **settings).pairs <= share


@pytest.mark.parametrize("share", [0.5, 0.25, 0.125])
@pytest.mark.parametrize("length", [24, 57, 256])
@pytest.mark.parametrize("name", ["lsh", "window", "random", "top-k", "shared-qk-lsh"])
def test_most_of_the_budget_is_spent(name, length, share):
    if name == "shared-qk-lsh" and share * length < 4:
        with pytest.raises(ValueError, match="leaves 3 keys to choose; shared-qk-lsh needs 4 or more"):
            attention.settings_for(name, length, share)
        return
    query, key, _ = tensors((1, 2, length, 8))
    seen = attention.coverage(name, query, key, **attention.settings_for(name, length, share)).pairs
    assert 0.5 * share < seen <= share


@pytest.mark.parametrize(("length", "share"), [(57, 0.5), (256, 0.5), (256, 0.25), (700, 0.125)])
@pytest.mark.parametrize("window", [0, 6])
def test_a_far_field_is_paid_from_the_budget(length, share, window):
    query, key, _ = tensors((1, 2, length, 8))
    settings = attention.settings_for("lsh", length, share, far_field=True, window=window)
    assert 0.7 * share < attention.coverage("lsh", query, key, **settings).pairs <= share


def test_what_is_not_fixed_is_chosen_to_fit():
    settings = attention.settings_for("lsh", 256, 0.25, far_field=True, cluster_size=8, window=4)
    assert settings == {
        "far_field": True, "cluster_size": 8, "window": 4, "global_tokens": 2, "n_hashes": 3, "block_size": 1,
    }  # fmt: skip
    assert attention.settings_for("lsh", 36, 0.5) == attention.settings_for("lsh", 36, 0.5, far_field=True)
    assert "far_field" not in {**attention.settings_for("lsh", 6, 0.5), **attention.settings_for("lsh", 36, 0.4)}
    assert attention.settings_for("window", 100, 0.2, global_tokens=5)["n_hashes"] == 15
    assert attention.settings_for("lsh", 256, 0.25, n_hashes=10)["cluster_size"] == 6
    assert attention.settings_for("lsh", 4096, 1 / 16, n_hashes=10)["block_size"] == 128
    far = attention.settings_for("lsh", 256, 0.25, far_field=True, n_hashes=3)
    assert far["cluster_size"] == 16  # 3 clusters of 16 and 16 - 3 mean keys are 61 of 62; of 17 they were 64
    assert attention.settings_for("shared-qk-lsh", 256, 0.25, bucket_size=8)["n_hashes"] == 4


@pytest.mark.parametrize(
    ("name", "length", "share", "fixed", "message"),
    [
        ("softmax", 256, 0.25, {}, "attention='softmax' has no budget; one has: lsh, window"),
        ("lhs", 256, 0.25, {}, "attention='lhs' has no budget; one has: lsh, window"),
        ("lsh", 256, 0, {}, "share=0 must be above 0"),
        ("lsh", 256, "0.25", {}, "share='0.25' must be above 0"),
        ("lsh", 256.0, 0.25, {}, "length=256.0 a whole number from 1"),
        ("lsh", 3, 0.25, {}, "share=0.25 of length=3 leaves 0 keys to choose; lsh needs 1 or more"),
        ("lsh", 36, 0.25, {"window": 12}, "leaves -5 keys to choose beside global_tokens=2, window=12; lsh needs 1"),
        ("lsh", 36, 0.25, {"far_field": True}, "share=0.25 of length=36 leaves 7 keys to choose, too few for a far"),
        ("lsh", 256, 0.25, {"far_field": True, "n_hashes": 50}, "too few for a far field with n_hashes=50"),
        ("lsh", 256, 0.25, {"n_hashes": 0}, "lsh: n_hashes=0 must be a whole number, 1 to 2147483647"),
        ("lsh", 256, 0.25, {"cluster_size": 0}, "lsh: cluster_size=0 must be a whole number, 1 to 2147483647"),
        ("shared-qk-lsh", 256, 0.25, {"bucket_size": 0}, "bucket_size=0 must be a whole number, 2 to 2147483647"),
        ("yoso", 256, 0.25, {"n_hashes": 2.5}, "yoso: n_hashes=2.5 must be a whole number, 1 to 2147483647"),
        ("top-k", 256, 0.25, {"global_tokens": 2}, "attention 'top-k' has no setting 'global_tokens'; it has: n_hash"),
        ("lsh", 256, 0.25, {"choose": "collision"}, "lsh: hashing='tree' sorts queries and keys apart"),
        ("lsh", 256, 0.25, {"n_hashes": 63}, "lsh: n_hashes=63 does not fit share=0.25 of length=256; 62 or less fits"),
        ("lsh", 256, 0.25, {"cluster_size": 63}, "cluster_size=63 does not fit share=0.25 of length=256; 62 or less"),
        ("lsh", 256, 0.25, {"cluster_size": 8, "n_hashes": 8}, "n_hashes=8 with cluster_size=8 does not fit share=0.25 "
         "of length=256; 7 or less fits"),
        ("lsh", 256, 0.25, {**PLAIN, "n_hashes": 33}, "n_hashes=33 does not fit share=0.25 of length=256; 32 or less"),
        ("random", 256, 0.25, {"n_hashes": 100}, "random: n_hashes=100 does not fit share=0.25 of length=256; 64 or"),
        ("window", 256, 0.25, {"n_hashes": 100}, "window: n_hashes=100 does not fit share=0.25 of length=256; 64 or"),
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
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        attention.settings_for(name, length, share, **fixed)
