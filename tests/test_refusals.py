"""Attentions, settings and models that cannot be had: the message names the value, what was expected, and the place."""

import json

import pytest
import torch

from albert_lsh import attention, load_model, switch_attention
from albert_lsh.encoders import ModelError
from attention_cases import label, tensors

ATTENTION = [
    ("lhs", {}, "attention='lhs' is not one of: softmax, softmax-eager, reformer"),
    ("key-clusters", {"n_hash": 2}, "'key-clusters' has no setting 'n_hash'; did you mean 'n_hashes'"),
    ("key-clusters", {"cluster_size": 0}, "key-clusters: cluster_size=0 must be greater than or equal to 1"),
    ("key-clusters", {"n_hashes": 2.0}, "n_hashes=2.0 must be a valid integer"),
    ("key-clusters", {"mean_key": 1}, "mean_key=1 must be a valid boolean"),
    ("key-clusters", {"share": float("nan")}, "share=nan must be"),
    ("key-clusters", {"share": 0.25, "keys": 9}, "key-clusters: share=0.25 and keys=9 cannot both be given"),
    ("key-clusters", {"keys": 9, "n_hashes": 2}, "share or keys decides n_hashes, cluster_size; n_hashes=2 cannot be"),
    ("shared-qk-lsh", {"bucket_size": 1}, "bucket_size=1 must be greater than or equal to 2"),
    ("shared-qk-lsh", {"causal": True, "mean_key": True}, "mean_key and causal cannot both be True"),
    ("yoso", {"hash_code_len": 40}, "hash_code_len=40 must be less than or equal to 20"),
    ("nystrom", {"conv_kernel_size": 4}, "nystrom: conv_kernel_size=4 must be odd"),
    ("softmax", {"n_hashes": 2}, "attention 'softmax' has no setting 'n_hashes'; there are: none"),
    ("softmax", {"conv_weight": torch.ones(2, 3)}, "attention 'softmax' has no convolution, and no conv_weight"),
    ("nystrom", {"conv_kernel_size": 3}, r"conv_kernel_size=3 needs .* = \(1, 3\); got None"),
    ("yoso", {"conv_kernel_size": 3, "conv_weight": torch.ones(1, 5)}, r"= \(1, 3\); got \(1, 5\)"),
]


@pytest.mark.parametrize(("name", "settings", "message"), ATTENTION, ids=label)
def test_of_an_attention(name, settings, message):
    with pytest.raises(ValueError, match=message):
        attention.attend(name, *tensors((1, 1, 8, 4)), **settings)


BUDGET = [
    ("softmax", 256, 0.25, "attention 'softmax' has no setting 'share'"),
    ("window", 256, 1.5, "window: share=1.5 must be less than or equal to 1"),
    ("key-clusters", 256.0, 0.25, "length=256.0 must be a whole number, 1 to"),
]


@pytest.mark.parametrize(("name", "length", "share", "message"), BUDGET, ids=label)
def test_of_a_budget(name, length, share, message):
    with pytest.raises(ValueError, match=message):
        attention.settings_for(name, length, share)


class Named(attention.Attention):
    name = "softmax"


class InAFolder(attention.Attention):
    name = "lin/elu"


class WithDropout(attention.Attention):
    name = "dropping"
    dropout: float = 0.1


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Named, "'softmax' is there already"),
        (attention.Attention, "is no subclass of"),
        (3, "3 is no"),
        (InAFolder, "name='lin/elu' must be letters"),
        (WithDropout, "a setting cannot be called 'dropout'"),
    ],
)
def test_of_an_attention_that_is_registered(kind, message):
    with pytest.raises(ValueError, match=message):
        attention.register(kind)


LOADED = [
    ({"head": "classify"}, "head='classify' is not one of: base, classification"),
    ({"num_lables": 3}, "has no option 'num_lables'$"),
    ({"attention": "key-clusters", "share": 0.25}, "has no option 'share'; an attention's settings go into settings="),
]


@pytest.mark.parametrize(("options", "message"), LOADED, ids=label)
def test_of_a_model_that_is_loaded(options, message):
    with pytest.raises(ValueError, match=message):
        load_model("mini", **options)


SWITCHED = [
    ("key-clusters", {"passes": [9]}, "passes=9 must be a whole number, 0 to"),
    ("key-clusters", {"passes": []}, r"passes=\[\] must be a list with one or more of the model's passes"),
    ("reformer", {}, "'softmax' cannot become 'reformer': reformer has projections of its own"),
]


@pytest.mark.parametrize(("name", "options", "message"), SWITCHED, ids=label)
def test_of_a_model_that_is_switched(name, options, message):
    with pytest.raises(ValueError, match=message):
        switch_attention(load_model("mini"), name, **options)


CLUSTERS = {"attention": "key-clusters", "version": 2}
SAVED = [
    ("x", "dictionary update sequence"),
    ({"seed": 1}, "'attention'"),
    (CLUSTERS | {"settings": [1]}, r"attention 'key-clusters': settings=\[1\] must be a dictionary"),
    (CLUSTERS | {"seed": "x"}, "seed='x' must be a whole number"),
    (CLUSTERS | {"evaluation_settings": {"keys": 9}}, "unexpected keyword argument 'evaluation_settings'"),
    (CLUSTERS | {"version": 3}, "'key-clusters' is of version 3, here it is 2, which computes otherwise$"),
    ({"attention": "lsh", "version": 2}, "attention 'lsh' is of version 2, here it is 3, which computes otherwise$"),
]


@pytest.mark.parametrize(("saved", "message"), SAVED, ids=str)
def test_of_a_saved_model(saved, message, tmp_path):
    load_model("mini").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"albert_lsh": saved}))
    with pytest.raises(ModelError, match=f"albert_lsh in its config.json cannot be read: .*{message}"):
        load_model(str(tmp_path))
