"""Reformer's duplication task (Kitaev et al. 2020, section 2, "Analysis on a synthetic task"), for an encoder.

An example is 0w0w, where w is a random word of the symbols 1 to 127. The paper's model is a language model: it reads
the example from left to right, under a causal mask, and is scored where it can know the next symbol, in the second
half. Our attentions are an encoder's and look both ways, so here the second half is hidden instead, 0w0 and a mask for
every symbol of w, and the model fills it in. What is asked of attention is the same: to look exactly half a sequence
back, which no local attention can. What differs: the model does not see the symbols of the second half before the one
that it predicts, which tell nothing that the first half does not; and it looks back from the symbol's own place, where
the paper's looks from the place before it.

Trained and evaluated with shared queries and keys, as in the paper: `full` is attention without hashing.

The paper trains for 150,000 steps. A new model sits on a plateau whose length grows with the sequence: as long as
attention looks everywhere, hardly anything of a symbol arrives at a mask, and as long as nothing arrives, nothing says
where to look. With hashing it is worse, for masks are alike and share their buckets. `begin_as_copies` takes all this
away, so that a hundred steps do; where to look, which is the question, is still learned from nothing.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, PreTrainedModel

SYMBOLS = 127  # 1 to 127; 0 stands before each half
MASK = 128
SHARPNESS = 32  # times as large as usual are the first weights of queries
BUCKETS = 16  # in a sequence: 64 tokens each of 1,024, Reformer's default; the paper does not say
ROUNDS = (8, 4, 2, 1)  # of hashing in evaluation; the last three in training too
SPLITS = {"train": 0, "validation": 1, "test": 2}
# Table 2 of the paper: accuracy, by the attention trained with and the one evaluated with.
PUBLISHED = {
    "full": {"full": 1.0, "LSH-8": 0.948, "LSH-4": 0.925, "LSH-2": 0.769, "LSH-1": 0.525},
    "LSH-4": {"full": 0.008, "LSH-8": 1.0, "LSH-4": 0.999, "LSH-2": 0.994, "LSH-1": 0.919},
    "LSH-2": {"full": 0.008, "LSH-8": 1.0, "LSH-4": 0.999, "LSH-2": 0.981, "LSH-1": 0.868},
    "LSH-1": {"full": 0.008, "LSH-8": 0.999, "LSH-4": 0.996, "LSH-2": 0.948, "LSH-1": 0.779},
}


class Duplication(Dataset):
    """Examples of `length` tokens, each drawn when it is asked for: by seed, split and its own number."""

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
            "labels": torch.cat([torch.full((len(word) + 2,), -100), word]),
        }


def config(length: int) -> BertConfig:
    """The paper's model as a BERT: one layer, 256 wide, 4 heads; no dropout, for no example comes twice."""
    return BertConfig(
        vocab_size=MASK + 1, hidden_size=256, num_hidden_layers=1, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=length, type_vocab_size=1, pad_token_id=None,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


@torch.no_grad()
def begin_as_copies(model: PreTrainedModel) -> None:
    """Let a new model of `config` look sharply, answer with what it attends to, and a mask tell nothing but its place.

    The projections of values and outputs and the first layer of the prediction head begin as the identity (the head's
    second one is the table of embeddings), and the embedding of the mask as zero. That of queries, who are the keys
    too, begins SHARPNESS times as large: keys are cut to unit length, so that scores at 1,024 tokens otherwise spread
    by 0.04, and what a better place to look would earn is lost among all other gradients. Very short sequences, of 64
    tokens, are learned later so.
    """
    attention, head = "bert.encoder.layer.0.attention", "cls.predictions.transform"
    for name in (f"{attention}.self.value", f"{attention}.output.dense", f"{head}.dense"):
        torch.nn.init.eye_(model.get_parameter(f"{name}.weight"))
    model.get_parameter(f"{attention}.self.query.weight").mul_(SHARPNESS)
    model.get_parameter("bert.embeddings.word_embeddings.weight")[MASK] = 0


def attentions(length: int) -> dict[str, dict[str, Any]]:
    """The paper's attentions by its names for them, as `candidates.candidates_of` takes them."""
    hashed = {"attention": "shared-qk-lsh", "bucket_size": max(2, length // BUCKETS)}
    return {"full": {"attention": "shared-qk"}} | {f"LSH-{n}": {**hashed, "n_hashes": n} for n in ROUNDS}
