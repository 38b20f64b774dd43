"""What efficiency.ipynb compares: our attentions and their peers, each with about the same number of keys per query.

A contender is built for a length and a number of keys. It is then a function of query, key and value, all of shape
(1, HEADS, length, HEAD_DIM). Peers are reformer-pytorch's `LSHAttention`, and Transformers' Nyströmformer and YOSO with
identity projections: these take one tensor, here the query, as query, key and value.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from reformer_pytorch import LSHAttention
from torch import Tensor, nn
from transformers import NystromformerConfig, YosoConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention
from transformers.models.yoso.modeling_yoso import YosoSelfAttention

from albert_lsh import attention

HEADS, HEAD_DIM = 12, 64  # ALBERT-base's
SEVERAL_ROUNDS = 4  # of hashing, where there are several
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Contender(NamedTuple):
    """One attention to be measured."""

    build: Callable[[int, int], Attend]  # from a length and a number of keys
    quadratic: bool = False  # stores matrices of length x length numbers
    longest: int | None = None  # tokens; longer sequences need more than 24 GB
    attention: str = ""  # the name by which a model can have it, if any
    settings: Callable[[int, int], dict[str, Any]] = lambda length, keys: {}  # of that attention


def ours(name: str, *, budget: bool = False, quadratic: bool = False, **fixed: Any) -> Contender:
    """One of our attentions with fixed settings; with a budget it also gets the number of keys."""

    def settings(length: int, keys: int) -> dict[str, Any]:
        return {"keys": min(keys, length), **fixed} if budget else fixed

    def build(length: int, keys: int) -> Attend:
        chosen = settings(length, keys)
        return lambda query, key, value: attention.attend(name, query, key, value, **chosen)

    return Contender(build, quadratic, attention=name, settings=settings)


def reformer_pytorch(rounds: int) -> Contender:
    """The package's attention: in each round a query sees its bucket and the one before it, keys / rounds in all."""

    def settings(length: int, keys: int) -> dict[str, Any]:
        return {"n_hashes": rounds, "bucket_size": min(keys, length) // rounds // 2}

    def build(length: int, keys: int) -> Attend:
        layer = LSHAttention(**settings(length, keys), dropout=0.0)
        return lambda query, key, value: layer(query.flatten(0, 1), value.flatten(0, 1))[0].view(value.shape)

    # The hashes of four rounds, rounds x length x length / bucket_size numbers, take 26 GB at 65,536 tokens.
    return Contender(build, longest=2**15, attention="reformer", settings=settings)


def of_transformers(layer_class: Any, config_class: Any, options: Callable[[int, int], dict[str, Any]]) -> Contender:
    """A self-attention layer of Transformers; `options` of its config follow from the length and the keys."""

    def build(length: int, keys: int) -> Attend:
        shape = {"hidden_size": HEADS * HEAD_DIM, "num_attention_heads": HEADS, "attention_probs_dropout_prob": 0.0}
        layer = layer_class(config_class(**shape, **options(length, keys)))
        layer.query, layer.key, layer.value = nn.Identity(), nn.Identity(), nn.Identity()
        layer.conv_kernel_size = None  # Nystromformer's convolution of the values; ours has none by default

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            no_padding = query.new_zeros(len(query), 1, 1, query.shape[2])
            out = layer(query.transpose(1, 2).flatten(2), no_padding)[0]
            return out.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

        return attend

    return Contender(build)


CONTENDERS: dict[str, Contender] = {
    "softmax": ours("softmax"),
    "softmax-eager": ours("softmax-eager", quadratic=True),
    "shared-qk": ours("shared-qk", quadratic=True),
    "reformer-pytorch": reformer_pytorch(SEVERAL_ROUNDS),
    "reformer-pytorch, one round": reformer_pytorch(1),
    "shared-qk-lsh": ours("shared-qk-lsh", budget=True, n_hashes=SEVERAL_ROUNDS),
    "plain-lsh": ours("plain-lsh", budget=True, n_hashes=SEVERAL_ROUNDS),
    "plain-lsh, one round": ours("plain-lsh", budget=True, n_hashes=1),
    "lsh": ours("lsh", budget=True),
    "random": ours("random", budget=True, n_hashes=1),
    "window": ours("window", budget=True, quadratic=True),
    "top-k": ours("top-k", budget=True, quadratic=True),
    "nystrom": ours("nystrom", budget=True),
    "nystrom, transformers": of_transformers(
        NystromformerSelfAttention,
        NystromformerConfig,
        lambda length, keys: {"num_landmarks": min(keys, length) // 2, "segment_means_seq_len": length},
    ),
    "yoso": ours("yoso"),
    "yoso-e": ours("yoso-e", quadratic=True),
    "yoso-e, transformers": of_transformers(
        YosoSelfAttention, YosoConfig, lambda length, keys: {"use_expectation": True, "max_position_embeddings": length}
    )._replace(quadratic=True),
}
