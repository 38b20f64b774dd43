"""What efficiency.ipynb measures: every attention, and its peers, at about the same number of keys per query.

A case is built for a length and a number of keys and is then a function of query, key and value. Peers are torch's
fused softmax attention (`softmax`), reformer-pytorch's `LSHAttention`, and Transformers' Nyströmformer and YOSO
attentions with identities for their projections: they take one tensor, here the query, for query, key and value.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from reformer_pytorch import LSHAttention
from torch import Tensor, nn
from transformers import NystromformerConfig, YosoConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

from albert_lsh import attention

ROUNDS = 4  # of hashing, in which a query sees a quarter of its keys each


Settings = Callable[[int, int], dict[str, Any]]


class Case(NamedTuple):
    """What is measured."""

    build: Callable[[int, int], Callable[[Tensor, Tensor, Tensor], Tensor]]  # for a length and a number of keys
    quadratic: bool = False  # stores matrices of length x length numbers
    longest: int | None = None  # tokens; where more cannot be asked of a machine with 24 GB
    name: str = ""  # of the attention, if a model can have it
    settings: Settings = lambda length, keys: {}  # of that, for a length and a number of keys


def ours(name: str, settings: Settings, quadratic: bool = False) -> Case:
    """One of our attentions."""

    def within(length: int, keys: int) -> dict[str, Any]:
        return settings(length, min(keys, length))

    def build(length: int, keys: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        chosen = within(length, keys)
        return lambda query, key, value: attention.attend(name, query, key, value, **chosen)

    return Case(build, quadratic, name=name, settings=within)


def plain(keys: int, rounds: int) -> dict[str, Any]:
    """Settings of `lsh` for hashed clusters alone, a key counted in every round as in reformer-pytorch."""
    return {
        "n_hashes": rounds, "cluster_size": max(2, keys // rounds), "hashing": "plain", "choose": "collision",
        "global_tokens": 0, "duplicates": "each",
    }  # fmt: skip


def with_budget(name: str, **fixed: Any) -> Callable[[int, int], dict[str, Any]]:
    """Settings of `attention.settings_for` for so many of the keys."""
    return lambda length, keys: attention.settings_for(name, length, keys / length, **fixed)


def reformer_pytorch(rounds: int) -> Case:
    """The package's attention: a query sees its own bucket and the one before, together keys / rounds of them."""

    def settings(length: int, keys: int) -> dict[str, Any]:
        return {"n_hashes": rounds, "bucket_size": min(keys, length) // rounds // 2}

    def build(length: int, keys: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        layer = LSHAttention(**settings(length, keys), dropout=0.0)
        return lambda query, key, value: layer(query.flatten(0, 1), value.flatten(0, 1))[0].view(value.shape)

    # In four rounds its hashes alone, length times length / bucket_size numbers, take 26 GB at 65,536 tokens.
    return Case(build, longest=2**15, name="reformer", settings=settings)


def of_transformers(layer_class: Any, config_class: Any, **options: Any) -> Case:
    """A self-attention of Transformers on the rows of the query alone; options may be functions of length and keys."""

    def build(length: int, keys: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        chosen = {name: value(length, keys) if callable(value) else value for name, value in options.items()}
        layers: dict[tuple[int, int], nn.Module] = {}

        def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            heads, dim = query.shape[1], query.shape[3]
            if (heads, dim) not in layers:
                shape = {"hidden_size": heads * dim, "num_attention_heads": heads}
                layer = layer_class(config_class(**shape, attention_probs_dropout_prob=0.0, **chosen))
                layer.conv_kernel_size = None  # ours has none either; Nystromformer's would have by default
                layer.query, layer.key, layer.value = nn.Identity(), nn.Identity(), nn.Identity()
                layers[heads, dim] = layer.to(query.device)
            nothing_hidden = query.new_zeros(len(query), 1, 1, query.shape[2])
            found = layers[heads, dim](query.transpose(1, 2).flatten(2), nothing_hidden)[0]
            return found.unflatten(-1, (heads, dim)).transpose(1, 2)

        return call

    return Case(build)


def landmarks(length: int, keys: int) -> int:
    return min(keys, length) // 2


CASES: dict[str, Case] = {
    "softmax": ours("softmax", lambda length, keys: {}),
    "softmax-eager": ours("softmax-eager", lambda length, keys: {}, quadratic=True),
    "shared-qk": ours("shared-qk", lambda length, keys: {}, quadratic=True),
    "reformer-pytorch": reformer_pytorch(ROUNDS),
    "reformer-pytorch, one round": reformer_pytorch(1),
    "shared-qk-lsh": ours(
        "shared-qk-lsh", lambda length, keys: {"n_hashes": ROUNDS, "bucket_size": keys // ROUNDS // 2}
    ),
    "plain lsh": ours("lsh", lambda length, keys: plain(keys, ROUNDS)),
    "plain lsh, one round": ours("lsh", lambda length, keys: plain(keys, 1)),
    "plain lsh, each key once": ours("lsh", lambda length, keys: {**plain(keys, ROUNDS), "duplicates": "once"}),
    "lsh": ours("lsh", with_budget("lsh")),
    # At 65,536 tokens 512 keys are too few for mean keys of all clusters and one cluster besides.
    "lsh, window, far field": ours("lsh", with_budget("lsh", window=16, far_field=True))._replace(longest=2**15),
    "random": ours("random", lambda length, keys: {"n_hashes": 1, "cluster_size": keys}),
    "window": ours("window", with_budget("window"), quadratic=True),
    "top-k": ours("top-k", with_budget("top-k"), quadratic=True),
    "nystrom": ours("nystrom", lambda length, keys: {"num_landmarks": landmarks(length, keys)}),
    "nystrom, transformers": of_transformers(
        NystromformerSelfAttention, NystromformerConfig,
        num_landmarks=landmarks, segment_means_seq_len=lambda length, keys: length,
    ),
    "yoso": ours("yoso", lambda length, keys: {}),
    "yoso-e": ours("yoso-e", lambda length, keys: {}, quadratic=True),
    "yoso-e, transformers": of_transformers(
        YosoSelfAttention, YosoConfig, use_expectation=True, max_position_embeddings=lambda length, keys: length,
    )._replace(quadratic=True),
}  # fmt: skip
