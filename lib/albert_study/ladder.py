"""The ladder: from the attention block of 2020 to softmax, one change a rung, and two attentions that choose keys.

compare.ipynb takes it by name; studies/ladder.yaml has the same arms (a test compares them), with learning rates of its
models. `scores.RUNGS` has the words for each arm, in the same order.
"""

from typing import Any

# As in 2020, but that texts of up to 64 tokens are not hashed: a bucket of 32 and the one before hold the whole text.
# Hashing changes weights alone there, and takes twelve times as long (studies/ladder.yaml).
HASHING: dict[str, Any] = {"bucket_size": 32, "n_hashes": 16, "full_attn_thres": 64}


def block_of_2020(**kept: bool) -> dict[str, Any]:
    """An arm with new projections, keys that are queries, and padded texts; `kept`: settings of `reformer`."""
    return {"attention": "reformer", "attention_settings": {**kept, **HASHING}, "pad_to_max_length": True}


LADDER: dict[str, dict[str, Any]] = {  # by arm, the parameters of its runs that are its own
    "2020-block": block_of_2020(residual=False, mask_padding=False),
    "with-residual": block_of_2020(residual=True, mask_padding=False),
    "with-mask": block_of_2020(residual=True, mask_padding=True),
    "tied-keys": {"attention": "shared-qk"},
    "softmax": {"attention": "softmax"},
    "lsh": {"attention": "lsh", "attention_settings": {"share": 0.25, "mean_key": True}},
    "key-clusters": {"attention": "key-clusters", "attention_settings": {"share": 0.5}},
}
