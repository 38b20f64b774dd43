"""Plain text for pretraining: loaded, tokenised, packed into sequences, and made into examples.

A text has one paragraph per line and an empty line between documents. It is a local file, `.xz` too, or a data set of
the Hub whose rows are documents. Its tokens are held in memory, two bytes each.

The examples are those of ALBERT's two objectives: predict masked n-grams, and say whether two segments stand in their
order (Lan et al. 2020, sections 3.1 and 4.1; n-grams after Joshi et al. 2020, "SpanBERT"). BERT and RoBERTa predict
masked pieces, each by itself (Devlin et al. 2019; Liu et al. 2019); RoBERTa's sequences are one segment. Masks are new
in every epoch.
"""

import glob
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value, load_dataset
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AlbertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, RobertaTokenizer

from albert_lsh import mini
from albert_lsh.files import OneLineError, reading
from albert_lsh.tasks import download

EMBEDDED = "mini"  # the name of a text that needs no file and no network: the paragraphs of mini-squad
INSTEAD = f'text="{EMBEDDED}" is a small one that is always there'
SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+(?=[\"'(\[]*[A-Z0-9])")  # the space between two sentences
LONGEST = 64  # tokens of a sentence; a longer one is cut into several
PARAGRAPHS = 20_000  # from which a tokenizer learns its pieces
MASKED_SHARE = 0.15  # of the tokens of a sequence, predicted; in evaluation always
LONGEST_NGRAM = 3  # words
IGNORED = -100  # the label of what is not predicted
SORTED_STEPS = 50  # steps whose examples are sorted by length together


class CorpusError(OneLineError):
    """A text that cannot be used; the message names it and says why."""


def load_text(text: str, column: str = "text", config: str | None = None) -> Dataset:
    """A text as rows of one column, `text`: one or more lines; an empty line ends a document.

    Args:
        text: path of a file in UTF-8, plain or compressed (.xz), the name of a data set of the Hub, or "mini".
        column: of the data set, that holds the documents; config: of the data set.
    Raises:
        CorpusError: no such file, one that cannot be read, a column that is not there. TaskError: no such data set.
    """
    if text == EMBEDDED:
        return Dataset.from_dict({"text": [f"{row}\n" for row in mini.build("mini-squad")["train"]["context"]]})
    if Path(text).is_file():
        try:
            lines = Features({"text": Value("string")})
            return load_dataset("text", data_files=glob.escape(text), split="train", features=lines)
        except Exception as error:  # the builder's have no class in common
            reason = str(error.__cause__ or error).splitlines()[0]
            raise CorpusError(f"text={text!r}: the file cannot be read: {reason}; {INSTEAD}") from error
    if Path(text).suffix in (".txt", ".xz"):
        raise CorpusError(f"text={text!r}: there is no such file; {INSTEAD}")
    rows = download(text, config, f"text={text!r}", f"; {INSTEAD}")["train"]
    if column not in rows.column_names:
        raise CorpusError(f"text={text!r} has no column {column!r}; there are: {', '.join(rows.column_names)}")
    return rows.map(lambda row: {"text": f"{row[column]}\n"}, remove_columns=rows.column_names)


def train_tokenizer(text: Dataset, vocabulary: int, bytes_alone: bool = False) -> PreTrainedTokenizerBase:
    """A tokenizer of ALBERT's kind, lower case and without accents, with its own pieces (unigram, Kudo 2018).

    Args:
        text: of `load_text`; its first 20,000 rows are used.
        vocabulary: pieces, special tokens among them; a short text may have fewer.
        bytes_alone: RoBERTa's kind: pairs of bytes are merged, and nothing is changed before.
    Raises:
        CorpusError: no text, or one with more characters than the vocabulary has room for.

    Pieces that are about as frequent may have another order, and so other ids, in another process: `tokenizers` sums
    up in the order of random hashes. To repeat a run exactly, name the tokenizer that it was made with.
    """
    paragraphs = [paragraph for paragraph in text[:PARAGRAPHS]["text"] if paragraph.strip()]
    if not paragraphs:
        raise CorpusError("the text is empty: there is nothing to learn a tokenizer from")
    with reading(CorpusError, f"vocabulary={vocabulary}: no tokenizer could be learnt"):
        tokenizer = RobertaTokenizer(add_prefix_space=True) if bytes_alone else blank_tokenizer()
        return tokenizer.train_new_from_iterator(paragraphs, vocabulary, show_progress=False)


def blank_tokenizer() -> PreTrainedTokenizerBase:
    """ALBERT's, without pieces."""
    blank = AlbertTokenizer().backend_tokenizer
    # ALBERT's own has no piece like "s,": SentencePiece keeps punctuation apart from letters.
    splits = [blank.pre_tokenizer, pre_tokenizers.Punctuation("isolated")]
    blank.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return PreTrainedTokenizerFast(
        tokenizer_object=blank, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="<pad>", unk_token="<unk>", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        bos_token="[CLS]", eos_token="[SEP]",
    )  # fmt: skip


class Sentences(NamedTuple):
    """The sentences of a text, one after the other."""

    ids: np.ndarray  # (tokens,)
    lengths: np.ndarray  # (sentences,): tokens of each, 64 at most; 0 ends a document


def tokenise(text: Dataset, tokenizer: PreTrainedTokenizerBase) -> Sentences:
    """The sentences of a text, without special tokens. Cached by `datasets`."""
    form = Features({"ids": List(Value("uint16" if len(tokenizer) <= 2**16 else "uint32"))})
    # The cache goes by the arguments: JSON is the same in every process, a tokenizer object is not.
    options = {"tokenizer": tokenizer.backend_tokenizer.to_str()}
    rows = text.map(encode_rows, batched=True, remove_columns=["text"], fn_kwargs=options, features=form)
    column = rows.with_format("arrow")[:]["ids"]
    return Sentences(pc.list_flatten(column).to_numpy(), pc.list_value_length(column).to_numpy())


def encode_rows(rows: dict[str, list[str]], tokenizer: str) -> dict[str, list[list[int]]]:
    """The ids of the sentences of some rows; [] for an empty line."""
    sentences = [x for text in rows["text"] for line in text.split("\n") for x in SENTENCE.split(line.strip())]
    encodings = Tokenizer.from_str(tokenizer).encode_batch(sentences, add_special_tokens=False)
    return {"ids": [x.ids[i : i + LONGEST] for x in encodings for i in range(0, len(x.ids) or 1, LONGEST)]}


def pack(lengths: np.ndarray, max_length: int, seed: int) -> np.ndarray:
    """Sequences, each of consecutive sentences of one document, (n, 3): first sentence, the one after the last, tokens.

    A sequence takes sentences until the next would make it longer than max_length, with its three special tokens;
    a tenth of them, as in BERT and ALBERT, aim at a random shorter length.
    """
    rng, room = np.random.default_rng(seed), max_length - 3

    def target() -> int:
        return int(rng.integers(2, room + 1)) if rng.random() < 0.1 else room

    sequences, first, stop, length, aim, ended = [], 0, 0, 0, target(), True
    for number, size in enumerate([*lengths.tolist(), 0, room]):  # a last document that is not packed
        if size == 0:
            ended = True
            continue
        if ended or length + size > aim:
            if length >= 2:  # one token cannot be two segments
                sequences.append((first, stop, length))
            first, length, aim, ended = number, 0, target(), False
        length, stop = length + size, number + 1
    return np.array(sequences, dtype=np.int64).reshape(-1, 3)


class Pieces(NamedTuple):
    """What masking needs to know of a tokenizer."""

    cls: int
    sep: int
    mask: int
    special: np.ndarray  # (vocabulary,) bool
    begins_word: np.ndarray  # (vocabulary,) bool

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Pieces":
        """SentencePiece and RoBERTa's mark the beginning of a word ("▁", "Ġ"), WordPiece what goes on ("##")."""
        names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        begins = np.array([name.startswith(("▁", "Ġ")) for name in names])
        if not begins.any():
            begins = np.array([not name.startswith("##") for name in names])
        special = np.isin(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        return cls(tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id, special, begins)


def choose_masked(ids: np.ndarray, pieces: Pieces, rng: np.random.Generator, share: float = MASKED_SHARE) -> np.ndarray:
    """Which tokens are predicted, (length,) bool: whole words in n-grams, at most `share` of all tokens, at least one.

    An n-gram has 1, 2 or 3 words, with probabilities in proportion to 1 / n. One with too many tokens is shortened word
    by word, and left out if even one word is too long.
    """
    allowed = ~pieces.special[ids]
    starts = np.flatnonzero(allowed & (pieces.begins_word[ids] | ~np.roll(allowed, 1)))
    borders = np.union1d(starts, np.flatnonzero(~allowed))  # the last token is [SEP], so that every word has an end
    ends = borders[np.searchsorted(borders, starts, side="right")]
    chosen = np.zeros(len(ids), dtype=bool)
    left = max(1, round(share * len(ids)))
    for number in rng.permutation(len(starts)):
        weights = 1 / np.arange(1, min(LONGEST_NGRAM, len(starts) - number) + 1)
        for n in range(rng.choice(len(weights), p=weights / weights.sum()) + 1, 0, -1):
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


def choose_single(ids: np.ndarray, pieces: Pieces, rng: np.random.Generator, share: float = MASKED_SHARE) -> np.ndarray:
    """Which tokens are predicted, (length,) bool: `share` of all but the special ones, at least one."""
    allowed = np.flatnonzero(~pieces.special[ids])
    chosen = np.zeros(len(ids), dtype=bool)
    chosen[rng.choice(allowed, max(1, int(share * len(allowed))), replace=False)] = True
    return chosen


def make_example(
    tokens: np.ndarray, borders: np.ndarray, pieces: Pieces, rng: np.random.Generator, share: float = MASKED_SHARE,
    ngrams: bool = True, order: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """A masked sequence of two segments, in order or exchanged.

    Of what is predicted 80 % is [MASK], 10 % a random piece, never a special one, and 10 % stays.

    Args:
        tokens: ids of consecutive sentences, two or more.
        borders: where the sentences but the first begin; without any the one sentence is split within.
        share: of the sequence's tokens that are predicted.
        ngrams: whole words are, in n-grams; False: single pieces.
        order: False: the sequence is one segment, and has no sentence_order_label.
    Returns:
        input_ids, token_type_ids, labels (the id of what is to be predicted, -100 elsewhere), all (length,) int64, and
        sentence_order_label, 1 where the segments were exchanged.
    """
    segments, label = [tokens], {}
    if order:
        split = int(rng.choice(borders)) if len(borders) else int(rng.integers(1, len(tokens)))
        exchanged = bool(rng.random() < 0.5)
        segments = [tokens[split:], tokens[:split]] if exchanged else [tokens[:split], tokens[split:]]
        label = {"sentence_order_label": int(exchanged)}
    ids = np.concatenate([[pieces.cls], *(part for segment in segments for part in (segment, [pieces.sep]))])
    chosen = (choose_masked if ngrams else choose_single)(ids, pieces, rng, share)
    kind = rng.random(len(ids))
    others = rng.choice(np.flatnonzero(~pieces.special), len(ids))
    masked = np.where(chosen & (kind < 0.8), pieces.mask, ids)
    kinds = [0, *(number for number, segment in enumerate(segments) for _ in range(len(segment) + 1))]
    return label | {
        "input_ids": np.where(chosen & (kind >= 0.9), others, masked),
        "token_type_ids": np.array(kinds),
        "labels": np.where(chosen, ids, IGNORED),
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
        part = shuffled[start : start + SORTED_STEPS * per_step]
        part = part[np.argsort(lengths[part], kind="stable")]
        whole = len(part) // per_step
        steps += [part[n * per_step : (n + 1) * per_step] for n in rng.permutation(whole)]
        steps.append(part[whole * per_step :])
    return np.concatenate(steps)


class Sequences(torch.utils.data.Dataset):
    """The examples of a run by number: epoch after epoch, each in an order of its own, with masks of their own.

    All random choices of an example follow from the seed and its number, so that a run can be resumed anywhere.
    """

    def __init__(
        self, sentences: Sentences, packed: np.ndarray, count: int, per_step: int, max_length: int, pieces: Pieces,
        seed: int, masked_share: float = MASKED_SHARE, ngrams: bool = True, order: bool = True,
    ):  # fmt: skip
        """packed: of `pack`; count: examples of the whole run, per_step of a step; the others: of `make_example`."""
        self.ids, self.starts = sentences.ids, np.cumsum([0, *sentences.lengths])
        self.packed, self.count, self.per_step = packed, count, per_step
        self.max_length, self.pieces, self.seed, self.masked_share = max_length, pieces, seed, masked_share
        self.ngrams, self.order_is_asked = ngrams, order
        self.epoch, self.order = -1, np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, len(self.packed))
        if epoch != self.epoch:
            rng = np.random.default_rng((self.seed, epoch))
            begun = -epoch * len(self.packed) % self.per_step
            self.epoch, self.order = epoch, order_of(self.packed[:, 2], self.per_step, rng, begun)
        first, stop, _ = self.packed[self.order[place]]
        starts = self.starts[first : stop + 1] - self.starts[first]
        tokens = self.ids[self.starts[first] :][: min(starts[-1], self.max_length - 3)].astype(np.int64)
        rng, borders = np.random.default_rng((self.seed, 1, number)), starts[1:-1]
        borders = borders[borders < len(tokens)]
        return make_example(tokens, borders, self.pieces, rng, self.masked_share, self.ngrams, self.order_is_asked)
