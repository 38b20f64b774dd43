"""Reformer's duplication task (Kitaev et al. 2020, section 2, "Analysis on a synthetic task"), for an encoder.

An example is 0w0w, where w is a random word of the symbols 1 to 127. The paper's model is a language model: it reads
the example from left to right, under a causal mask, and is scored on the second half, where the next symbol can be
known. Our attentions are an encoder's and look both ways. So the second half is hidden here, 0w0 and a mask for every
symbol of w, and the model fills it in. What is asked of attention is the same: to look exactly half a sequence back,
which no local attention can. Two things differ: the model does not see the earlier symbols of the second half, which
add nothing to the first; and it looks back from the symbol's own place, not from the place before it.

As in the paper, queries and keys are shared in training and evaluation: `full` is attention without hashing.

The paper trains for 150,000 steps. A new model sits on a plateau whose length grows with the sequence: while attention
looks everywhere, hardly anything of a symbol arrives at a mask, and while nothing arrives, no gradient says where to
look. With hashing it is worse: masks are alike and share their buckets. `begin_as_copies` removes the plateau, so that
a hundred steps are enough. Where to look, which is the question, is still learned from nothing.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # the tables need none of it, and it takes seconds

SYMBOLS = 127  # 1 to 127; 0 stands before each half
MASK = 128
UNSCORED = -100  # label of a token that is not predicted
SHARPNESS = 32  # factor on the first weights of queries
BUCKETS = 16  # in a sequence: 64 tokens each of 1,024, Reformer's default; the paper does not say
PAPER_ROUNDS = (8, 4, 2, 1)  # of hashing in evaluation; the last three in training too
SPLITS = {"train": 0, "validation": 1, "test": 2}
# Table 2 of the paper: accuracy, by the attention trained with and the one evaluated with.
PUBLISHED_ACCURACY = {
    "full": {"full": 1.0, "LSH-8": 0.948, "LSH-4": 0.925, "LSH-2": 0.769, "LSH-1": 0.525},
    "LSH-4": {"full": 0.008, "LSH-8": 1.0, "LSH-4": 0.999, "LSH-2": 0.994, "LSH-1": 0.919},
    "LSH-2": {"full": 0.008, "LSH-8": 1.0, "LSH-4": 0.999, "LSH-2": 0.981, "LSH-1": 0.868},
    "LSH-1": {"full": 0.008, "LSH-8": 0.999, "LSH-4": 0.996, "LSH-2": 0.948, "LSH-1": 0.779},
}


class Duplication(Dataset):
    """Examples of `length` tokens, drawn on demand from the seed, the split and their number."""

    def __init__(self, split: str, count: int, length: int, seed: int):
        """count: how many examples; length: an even number, 4 or more."""
        self.count, self.length, self.stream = count, length, (seed, SPLITS[split])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """input_ids: 0, the word, 0, masks; labels: -100 up to the masks, then the word; both (length,), long."""
        generator = np.random.default_rng([*self.stream, number])
        word = torch.from_numpy(generator.integers(1, SYMBOLS + 1, self.length // 2 - 1))
        zero = torch.zeros(1, dtype=torch.long)
        return {
            "input_ids": torch.cat([zero, word, zero, torch.full_like(word, MASK)]),
            "labels": torch.cat([torch.full((len(word) + 2,), UNSCORED), word]),
        }


def config(length: int) -> BertConfig:
    """The paper's model as a BERT: one layer, 256 wide, 4 heads; no dropout, for no example comes twice."""
    return BertConfig(
        vocab_size=MASK + 1, hidden_size=256, num_hidden_layers=1, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=length, type_vocab_size=1, pad_token_id=None,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


@torch.no_grad()
def begin_as_copies(model: "PreTrainedModel") -> None:
    """Let a new model of `config` look sharply and answer with what it attends to; a mask shows only its place.

    The projections of values and outputs and the first layer of the prediction head begin as the identity (the head's
    second layer is the table of embeddings), the embedding of the mask as zero. The projection of queries, which are
    the keys too, begins SHARPNESS times as large: keys have unit length, so that scores at 1,024 tokens otherwise
    spread by 0.04, and the gradient of a better place to look is lost among the others. Very short sequences, of 64
    tokens, are learned later this way.
    """
    attention, head = "bert.encoder.layer.0.attention", "cls.predictions.transform"
    for name in (f"{attention}.self.value", f"{attention}.output.dense", f"{head}.dense"):
        torch.nn.init.eye_(model.get_parameter(f"{name}.weight"))
    model.get_parameter(f"{attention}.self.query.weight").mul_(SHARPNESS)
    model.get_parameter("bert.embeddings.word_embeddings.weight")[MASK] = 0


def attentions(length: int) -> dict[str, dict[str, Any]]:
    """The paper's attentions by its names for them, as `candidates.candidates_of` takes them."""
    hashed = {"attention": "shared-qk-lsh", "bucket_size": max(2, length // BUCKETS)}
    return {"full": {"attention": "shared-qk"}} | {f"LSH-{n}": {**hashed, "n_hashes": n} for n in PAPER_ROUNDS}
