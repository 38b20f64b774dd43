"""ALBERT's two objectives: predict masked n-grams, and say whether two segments stand in their order.

Lan et al. 2020, "ALBERT", section 3.1 (sentence order) and 4.1 (n-grams, after Joshi et al. 2020, "SpanBERT").
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

MASKED_SHARE = 0.15  # of the tokens of a sequence, predicted; in evaluation always
LONGEST_NGRAM = 3  # words
IGNORED = -100  # the label of what is not predicted
SORTED_STEPS = 50  # steps whose examples are sorted by length together


class Pieces(NamedTuple):
    """What masking needs to know of a tokenizer."""

    cls: int
    sep: int
    mask: int
    special: np.ndarray  # (vocabulary,) bool
    begins_word: np.ndarray  # (vocabulary,) bool

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Pieces":
        """ValueError for a tokenizer that marks no beginnings of words, as SentencePiece's do."""
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        begins = np.array([name.startswith("▁") for name in names])
        if not begins.any():
            raise ValueError("this tokenizer marks no beginning of a word ('▁'); take one of SentencePiece's kind")
        special = np.isin(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        return cls(tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id, special, begins)


def ngram_words(n_words: int, rng: np.random.Generator) -> int:
    """Words of an n-gram: 1, 2 or 3, with probabilities in proportion to 1 / n; at most `n_words`."""
    longest = min(LONGEST_NGRAM, n_words)
    share = 1 / np.arange(1, longest + 1)
    return int(rng.choice(longest, p=share / share.sum())) + 1


def choose_masked(ids: np.ndarray, pieces: Pieces, rng: np.random.Generator, share: float = MASKED_SHARE) -> np.ndarray:
    """Which tokens are predicted, (length,) bool: whole words in n-grams, at most `share` of all tokens, at least one.

    An n-gram with too many tokens is shortened word by word, and left out if even one word is too long.
    """
    allowed = ~pieces.special[ids]
    starts = np.flatnonzero(allowed & (pieces.begins_word[ids] | ~np.roll(allowed, 1)))
    borders = np.union1d(starts, np.flatnonzero(~allowed))  # the last token is [SEP], so that every word has an end
    ends = borders[np.searchsorted(borders, starts, side="right")]
    chosen = np.zeros(len(ids), dtype=bool)
    left = max(1, round(share * len(ids)))
    for number in rng.permutation(len(starts)):
        for n in range(ngram_words(len(starts) - number, rng), 0, -1):
            first, stop = starts[number], ends[number + n - 1]
            if stop - first <= left and allowed[first:stop].all() and not chosen[first:stop].any():
                chosen[first:stop] = True
                left -= stop - first
                break
        if left == 0:
            break
    if not chosen.any():  # every word is longer than what may be masked
        chosen[rng.choice(np.flatnonzero(allowed))] = True
    return chosen


def hide(ids: np.ndarray, chosen: np.ndarray, pieces: Pieces, rng: np.random.Generator) -> np.ndarray:
    """Replace chosen ids by [MASK] (80 %) or by a random piece, never a special one (10 %), or keep them (10 %)."""
    kind = rng.random(len(ids))
    others = rng.choice(np.flatnonzero(~pieces.special), len(ids))
    hidden = np.where(chosen & (kind < 0.8), pieces.mask, ids)
    return np.where(chosen & (kind >= 0.9), others, hidden)


def make_example(
    sentences: Sequence[np.ndarray], max_length: int, pieces: Pieces, rng: np.random.Generator,
    masked_share: float = MASKED_SHARE,
) -> dict[str, Any]:  # fmt: skip
    """A masked sequence of two segments, in order or exchanged.

    Args:
        sentences: ids of consecutive sentences, together at least two tokens; one alone is split within.
        max_length: tokens of the sequence, special ones included; what is beyond is cut off.
        masked_share: share of the sequence's tokens that are predicted.
    Returns:
        input_ids, token_type_ids, labels (the id of what is to be predicted, -100 elsewhere), all (length,) int64, and
        sentence_order_label, 1 where the segments were exchanged.
    """
    tokens = np.concatenate(sentences).astype(np.int64)[: max_length - 3]
    borders = np.cumsum([len(s) for s in sentences])[:-1]
    borders = borders[borders < len(tokens)]
    split = int(rng.choice(borders)) if len(borders) else int(rng.integers(1, len(tokens)))
    exchanged = bool(rng.random() < 0.5)
    first, second = (tokens[split:], tokens[:split]) if exchanged else (tokens[:split], tokens[split:])
    ids = np.concatenate([[pieces.cls], first, [pieces.sep], second, [pieces.sep]])
    kinds = np.repeat([0, 1], [len(first) + 2, len(second) + 1])
    chosen = choose_masked(ids, pieces, rng, masked_share)
    return {
        "input_ids": hide(ids, chosen, pieces, rng),
        "token_type_ids": kinds,
        "labels": np.where(chosen, ids, IGNORED),
        "sentence_order_label": int(exchanged),
    }


def order_of(lengths: np.ndarray, per_step: int, rng: np.random.Generator, begun: int = 0) -> np.ndarray:
    """A random order of all sequences in which those of one step are of similar length: little is padding.

    The sequences of every 50 steps are sorted by length; these steps are then put in a random order. An epoch's last
    step, which may have fewer sequences, stays the last.

    Args:
        lengths: (n,) tokens; per_step: sequences of a step.
        begun: sequences that fill up the last step of the epoch before; they come first, whatever their length.
    Returns:
        (n,) numbers of sequences.
    """
    shuffled = rng.permutation(len(lengths))
    steps = [shuffled[:begun]]
    for start in range(begun, len(shuffled), SORTED_STEPS * per_step):
        some = shuffled[start : start + SORTED_STEPS * per_step]
        some = some[np.argsort(lengths[some], kind="stable")]
        whole = len(some) // per_step
        steps += [some[n * per_step : (n + 1) * per_step] for n in rng.permutation(whole)]
        steps.append(some[whole * per_step :])
    return np.concatenate(steps)


class Sequences(torch.utils.data.Dataset):
    """The examples of a run by number: epoch after epoch, each in an order of its own, with masks of their own.

    All random choices of an example follow from the seed and its number, so that a run can be resumed anywhere.
    """

    def __init__(
        self, sentences: Dataset, packed: np.ndarray, count: int, per_step: int, max_length: int, pieces: Pieces,
        seed: int, masked_share: float = MASKED_SHARE,
    ):  # fmt: skip
        """packed: of `corpus.pack`, rows of `sentences`; count: examples of the whole run, per_step of a step."""
        self.ids = sentences.with_format("numpy", columns=["ids"])
        self.packed, self.count, self.per_step = packed, count, per_step
        self.max_length, self.pieces, self.seed, self.masked_share = max_length, pieces, seed, masked_share
        self.epoch, self.order = -1, np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, len(self.packed))
        if epoch != self.epoch:
            rng = np.random.default_rng((self.seed, epoch))
            begun = -epoch * len(self.packed) % self.per_step
            self.epoch, self.order = epoch, order_of(self.packed[:, 2], self.per_step, rng, begun)
        first, stop, _ = self.packed[self.order[place]].tolist()
        rng = np.random.default_rng((self.seed, 1, number))
        return make_example(list(self.ids[first:stop]["ids"]), self.max_length, self.pieces, rng, self.masked_share)
