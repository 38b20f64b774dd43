"""The data of the long tasks: Reformer's duplication, and two of Long Range Arena.

Each has a function that loads the splits train, validation and test for a `long_range.LongRecipe`.
"""

import random
import statistics
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from albert_lsh.data import subset
from albert_lsh.kinds import Classification
from albert_lsh.tasks import download

SPLITS = ("train", "validation", "test")

# Duplication (Kitaev et al. 2020, section 2, "Analysis on a synthetic task"), for an encoder
#
# An example is 0w0w, where w is a random word of the symbols 1 to 127. The paper's model is a language model: it reads
# from left to right and is scored on the second half. Our attentions look both ways. So the second half is hidden, 0w0
# and a mask for every symbol of w, and the model fills it in. What is asked of attention is the same: to look exactly
# half a sequence back, which no local attention can. Two things differ: the model does not see the earlier symbols of
# the second half, which add nothing to the first; and it looks back from the symbol's own place, not from the place
# before it. As in the paper, queries and keys are shared; `full` is attention without hashing.
#
# The paper trains for 150,000 steps. A new model sits on a plateau whose length grows with the sequence: while
# attention looks everywhere, hardly anything of a symbol arrives at a mask, and while nothing arrives, no gradient says
# where to look. With hashing it is worse: masks are alike and share their buckets. `begin_as_copies` removes the
# plateau, so that a hundred steps are enough. Where to look, which is the question, is still learned from nothing.

SYMBOLS, MASK = 127, 128  # 1 to 127; 0 stands before each half
UNSCORED = -100  # label of a token that is not predicted
SHARPNESS = 32  # factor on the first weights of queries
BUCKETS = 16  # in a sequence: 64 tokens each of 1,024, Reformer's default; the paper does not say
# Table 2 of the paper: accuracy, by the attention trained with and the one evaluated with.
PUBLISHED_ACCURACY = {
    "full": {"full": 1.0, "LSH-8": 0.948, "LSH-4": 0.925, "LSH-2": 0.769, "LSH-1": 0.525},
    "LSH-4": {"full": 0.008, "LSH-8": 1.0, "LSH-4": 0.999, "LSH-2": 0.994, "LSH-1": 0.919},
    "LSH-2": {"full": 0.008, "LSH-8": 1.0, "LSH-4": 0.999, "LSH-2": 0.981, "LSH-1": 0.868},
    "LSH-1": {"full": 0.008, "LSH-8": 0.999, "LSH-4": 0.996, "LSH-2": 0.948, "LSH-1": 0.779},
}


class Duplication(Dataset):
    """Examples of `length` tokens, an even number, drawn on demand from the seed, the split and their number."""

    def __init__(self, split: str, count: int, length: int, seed: int):
        self.count, self.length, self.stream = count, length, (seed, SPLITS.index(split))

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


@torch.no_grad()
def begin_as_copies(model: PreTrainedModel) -> None:
    """Let a new model of duplication look sharply and answer with what it attends to; a mask shows only its place.

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


def load_duplication(recipe: Any) -> dict[str, Dataset]:
    """New examples in every step, unless train_examples limits them."""
    few, many = recipe.eval_examples or 1000, recipe.train_examples or recipe.steps * recipe.batch_size
    counts = {"train": many, "validation": few, "test": few}
    return {split: Duplication(split, n, recipe.max_length, seed=recipe.seed) for split, n in counts.items()}


# ListOps (Nangia and Bowman 2018; Tay et al. 2021), generated from a seed
#
# An example is a nested list operation such as `[MAX 2 9 [MIN 4 7 ] 0 ]`; its answer is a digit. Trees are drawn as by
# the original's generator (google-research/long-range-arena, lra_benchmarks/data/listops.py): a node above the greatest
# depth is an operator with probability 1/4, otherwise a digit; an operator has 2 to 10 arguments, all numbers equally
# likely. Trees are kept once each, if they have more than max_length / 4 and fewer than max_length tokens (operators
# with their bracket, digits, closing brackets). Two things differ. The original writes parentheses around every pair,
# which its input pipeline removes again. And it has no seed and sorts examples by a hash; here they are the same every
# time, in the order in which they are drawn.

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),  # rounded down
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
OPERATOR_SHARE, MOST_ARGUMENTS, GREATEST_DEPTH = 0.25, 10, 10  # the root has depth 1
NUMBERS = {token: number for number, token in enumerate([*map(str, range(10)), *OPERATORS, END], start=1)}  # 0: padding
SIZES = {"test": 2_000, "validation": 2_000, "train": 96_000}  # train last: fewer of it change no other split


def draw_tree(rng: random.Random, longest: int) -> tuple[list[str], int]:
    """The tokens of a tree, and its answer; one with more than `longest` tokens is cut short, and its answer wrong."""
    tokens: list[str] = []

    def grow(depth: int) -> int:
        if depth == GREATEST_DEPTH or rng.random() > OPERATOR_SHARE:
            digit = rng.randrange(10)
            tokens.append(str(digit))
            return digit
        if len(tokens) > longest:
            return 0
        operator = rng.choice([*OPERATORS])
        tokens.append(operator)
        value = OPERATORS[operator]([grow(depth + 1) for _ in range(rng.randint(2, MOST_ARGUMENTS))])
        tokens.append(END)
        return value

    answer = grow(1)
    return tokens, answer


def load_listops(recipe: Any) -> dict[str, Dataset]:
    """Rows with text and label (0 to 9), the same for every seed; no example is in two splits."""
    rng, texts, splits = random.Random("listops 0"), set[str](), {}
    for split, size in SIZES.items():
        limit = recipe.train_examples if split == "train" else recipe.eval_examples
        rows: list[dict[str, Any]] = []
        while len(rows) < min(size, limit or size):
            tokens, answer = draw_tree(rng, recipe.max_length)
            text = " ".join(tokens)
            if recipe.max_length // 4 < len(tokens) < recipe.max_length and text not in texts:
                texts.add(text)
                rows.append({"text": text, "label": answer})
        splits[split] = encode(datasets.Dataset.from_list(rows), encode_tree, recipe.max_length)
    return splits


def encode_tree(text: str) -> list[int]:
    """Token numbers of a tree, 1 to 15."""
    return [NUMBERS[token] for token in text.split()]


# The bytes of IMDb's reviews (Maas et al. 2011)

IMDB = Classification("text", "stanfordnlp/imdb", None, ("text",), ("accuracy",), ("negative", "positive"))


def load_reviews(recipe: Any) -> dict[str, Dataset]:
    """As in Long Range Arena the test set is also the validation set.

    Raises:
        TaskError: the data cannot be had, or a split or column is missing.
    """
    data, splits = download(IMDB.dataset, IMDB.config, f"task={IMDB.name!r}"), {}
    for split, limit in (("train", recipe.train_examples), ("test", recipe.eval_examples)):
        rows = data[split] if split in data else datasets.Dataset.from_dict({})
        IMDB.check(rows, split)
        splits[split] = encode(subset(rows, limit), encode_bytes, recipe.max_length)
    return {"train": splits["train"], "validation": splits["test"], "test": splits["test"]}


def encode_bytes(text: str) -> list[int]:
    """The bytes of a text, each plus one as in Long Range Arena: 1 to 256."""
    return [byte + 1 for byte in text.encode()]


# What they share


def encode(rows: datasets.Dataset, numbers_of: Callable[[Any], list[int]], longest: int) -> datasets.Dataset:
    """Rows with the first token numbers of `text` as `input_ids`, and their `length`."""

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        ids = np.array(numbers_of(row["text"])[:longest], dtype=np.uint16)
        return {"input_ids": ids, "length": len(ids)}

    return rows.map(encoded)


def pad(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch of `encode`d rows, padded with zeros.

    Returns:
        input_ids and attention_mask (batch, length), labels (batch,).
    """
    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    labels = torch.tensor([row["label"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
