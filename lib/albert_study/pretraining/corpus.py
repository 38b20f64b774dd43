"""Plain text for pretraining: loaded, tokenised once, packed into sequences.

A text has one paragraph per line and an empty line between documents. It is a local file, `.xz` too, or a data set of
the Hub whose rows are documents. The text and its tokens stay on disk, in the cache of `datasets` (Arrow files, mapped
into memory); only the table of sequences is held in memory.
"""

import functools
import glob
import re
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value, load_dataset
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AlbertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from albert_lsh import mini
from albert_lsh.errors import OneLineError

EMBEDDED = "mini"  # the name of a text that needs no file and no network: the paragraphs of mini-squad
LINE = 2**16  # characters split into sentences at a time; some texts are one long line
SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+(?=[\"'(\[]*[A-Z0-9])")  # the space between two sentences
LONGEST = 64  # tokens of a sentence; a longer one is cut into several
SENTENCES_AT_ONCE = 2**16  # sentences read from the cache at a time
INSTEAD = 'text="mini" is a small one that is always there'
PARAGRAPHS = 20_000  # from which a tokenizer learns its pieces


class CorpusError(OneLineError):
    """A text that cannot be used; the message names it and says why."""


def load_text(text: str, column: str = "text", config: str | None = None, cache: str | None = None) -> Dataset:
    """A text as rows of one column, `text`: one or more lines; an empty line ends a document.

    Args:
        text: path of a file in UTF-8, plain or compressed (.xz), the name of a data set of the Hub, or "mini".
        column: of the data set, that holds the documents; config: of the data set.
    Raises:
        CorpusError: no such file and no such data set, a file that cannot be read, a column that is not there.
    """
    if text == EMBEDDED:
        return Dataset.from_dict({"text": [f"{row}\n" for row in mini.build("mini-squad")["train"]["context"]]})
    is_file = Path(text).is_file()
    if Path(text).suffix in (".txt", ".xz") and not is_file:
        raise CorpusError(f"text={text!r}: there is no such file; {INSTEAD}")
    try:
        if is_file:
            lines = Features({"text": Value("string")})
            return load_dataset("text", data_files=glob.escape(text), split="train", features=lines, cache_dir=cache)
        rows = load_dataset(text, config, split="train", cache_dir=cache)
    except Exception as error:  # the Hub's, the network's and the builder's have no class in common
        what = "the file cannot be read" if is_file else "it is no file, and the Hub gave no data set of that name"
        reason = str(error.__cause__ or error).splitlines()[0]
        raise CorpusError(f"text={text!r}: {what}: {reason}; {INSTEAD}") from error
    if column not in rows.column_names:
        raise CorpusError(f"text={text!r} has no column {column!r}; there are: {', '.join(rows.column_names)}")
    return rows.map(lambda row: {"text": f"{row[column]}\n"}, remove_columns=rows.column_names)


def train_tokenizer(text: Dataset, vocabulary: int) -> PreTrainedTokenizerBase:
    """A tokenizer of ALBERT's kind, lower case and without accents, with its own pieces (unigram, Kudo 2018).

    Args:
        text: of `load_text`; its first 20,000 rows are used.
        vocabulary: pieces, special tokens among them; a short text may have fewer.
    Raises:
        CorpusError: there is no text.
    """
    some = [paragraph for paragraph in text[:PARAGRAPHS]["text"] if paragraph.strip()]
    if not some:
        raise CorpusError("the text is empty: there is nothing to learn a tokenizer from")
    blank = AlbertTokenizer().backend_tokenizer
    # ALBERT's own has no piece like "s,": SentencePiece keeps punctuation apart from letters.
    splits = [blank.pre_tokenizer, pre_tokenizers.Punctuation("isolated")]
    blank.pre_tokenizer = pre_tokenizers.Sequence(splits)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=blank, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="<pad>", unk_token="<unk>", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        bos_token="[CLS]", eos_token="[SEP]",
    )  # fmt: skip
    return wrapped.train_new_from_iterator(some, vocabulary, show_progress=False)


def tokenise(text: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """The sentences of a text as rows of `ids`, 1 to 64 tokens each; a row without ids ends a document. Cached."""
    form = Features({"ids": List(Value("uint16" if len(tokenizer) <= 2**16 else "uint32"))})
    # The cache goes by the arguments: JSON is the same in every process, a tokenizer object is not.
    options = {"tokenizer": tokenizer.backend_tokenizer.to_str()}
    return text.map(encode_sentences, batched=True, remove_columns=["text"], fn_kwargs=options, features=form)


def encode_sentences(rows: dict[str, list[str]], tokenizer: str) -> dict[str, list[list[int]]]:
    """The ids of the sentences of some rows, without special tokens; [] for an empty line."""
    lines = [line.strip() for text in rows["text"] for line in text.split("\n")]
    pieces = [line[i : i + LINE] for line in lines for i in range(0, len(line) or 1, LINE)]
    sentences = [sentence for piece in pieces if not piece.isspace() for sentence in SENTENCE.split(piece)]
    ids = [one.ids for one in backend(tokenizer).encode_batch(sentences, add_special_tokens=False)]
    return {"ids": [one[i : i + LONGEST] for one in ids for i in range(0, len(one) or 1, LONGEST)]}


@functools.cache
def backend(tokenizer: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer)


def sentence_lengths(sentences: Dataset) -> np.ndarray:
    """Number of tokens of each sentence, (n,); 0 at the end of a document."""
    batches = sentences.with_format("arrow").iter(SENTENCES_AT_ONCE)
    return np.concatenate([[0], *(pc.list_value_length(batch["ids"]).to_numpy() for batch in batches)])[1:]


def pack(sentences: Dataset, max_length: int, seed: int) -> np.ndarray:
    """Sequences, each of consecutive sentences of one document, (n, 3): first row, row after the last, tokens.

    A sequence takes sentences until the next would make it longer than max_length, with its three special tokens;
    a tenth of them, as in BERT and ALBERT, aim at a random shorter length.
    """
    rng, room = np.random.default_rng(seed), max_length - 3

    def target() -> int:
        return int(rng.integers(2, room + 1)) if rng.random() < 0.1 else room

    found, first, stop, length, aim, ended = [], 0, 0, 0, target(), True
    for row, size in enumerate([*sentence_lengths(sentences).tolist(), 0, room]):  # a last document that is not packed
        if size == 0:
            ended = True
            continue
        if ended or length + size > aim:
            if length >= 2:  # one token cannot be two segments
                found.append((first, stop, length))
            first, length, aim, ended = row, 0, target(), False
        length, stop = length + size, row + 1
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def count_pieces(sentences: Dataset, vocabulary: int) -> np.ndarray:
    """How often each piece occurs in the text: (vocabulary,), int."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for batch in sentences.with_format("arrow").iter(SENTENCES_AT_ONCE):
        counts += np.bincount(pc.list_flatten(batch["ids"]).to_numpy(), minlength=vocabulary)
    return counts
