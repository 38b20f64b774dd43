"""Plain text for pretraining: read as it comes, tokenised once, packed into sequences.

A text has one paragraph a line and an empty line between documents. It is a local file, `.xz` too, or a data set of the
Hub, of which every row is a document. Nothing here holds the text in memory: sentences and the table of sequences are
written to a cache of `datasets` (Arrow files, mapped into memory) and read from there.
"""

import lzma
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, List, Value, load_dataset
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AlbertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

LINE = 2**16  # characters read at a time: a line without end is taken in pieces
SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+(?=[\"'(\[]*[A-Z0-9])")  # between two of them
LONGEST = 64  # tokens of a sentence; a longer one is cut into several
AT_ONCE = 1000  # sentences tokenised together
PARAGRAPHS = 20_000  # from which a tokenizer learns its pieces


class CorpusError(ValueError):
    """A text that cannot be used; the message names it and says why."""


def read_paragraphs(text: str, column: str = "text", config: str | None = None) -> Iterator[str]:
    """The paragraphs of a text; an empty one ends a document.

    Args:
        text: path of a file in UTF-8, as it is or packed (.xz), or the name of a data set of the Hub.
        column: of the data set, that holds the documents; config: of the data set.
    Raises:
        CorpusError: no such file and no such data set, a file that is not UTF-8 or not xz, a column that is not there.
    """
    path = Path(text)
    if path.is_file():
        yield from read_file(path)
        return
    if path.suffix in (".txt", ".xz"):
        raise CorpusError(f"text={text!r}: there is no such file")
    try:
        rows = load_dataset(text, config, split="train", streaming=True)
    except Exception as error:  # the Hub's, the network's and the builder's have no class in common
        reason = str(error).splitlines()[0]
        raise CorpusError(f"text={text!r} is no file, and the Hub gave no data set of that name: {reason}") from error
    for row in rows:
        if column not in row:
            raise CorpusError(f"text={text!r} has no column {column!r}; there are: {', '.join(row)}")
        yield from str(row[column]).split("\n")
        yield ""


def read_file(path: Path) -> Iterator[str]:
    """The lines of a file, without their ends; a very long one in pieces, of which none is empty."""
    opened, begins = lzma.open if path.suffix == ".xz" else open, True
    with opened(path, "rt", encoding="utf-8") as lines:
        try:
            while piece := lines.readline(LINE):
                ends = piece.endswith("\n")
                if piece.strip() or (begins and ends):
                    yield piece.strip()
                begins = ends
        except UnicodeDecodeError as error:
            wrong = error.object[error.start]
            raise CorpusError(f"text={str(path)!r} is not UTF-8: byte {wrong:#04x}, {error.reason}") from error
        except (lzma.LZMAError, EOFError) as error:
            raise CorpusError(f"text={str(path)!r} is no xz file, or is cut short: {error}") from error


def train_tokenizer(paragraphs: Iterable[str], vocabulary: int) -> PreTrainedTokenizerBase:
    """A tokenizer of ALBERT's kind, lower case and without accents, with its own pieces (unigram, Kudo 2018).

    Args:
        paragraphs: the text; the first 20,000 are used.
        vocabulary: pieces, special tokens among them; a short text may have fewer.
    Raises:
        CorpusError: there is no text.
    """
    some = [paragraph for paragraph in islice(paragraphs, PARAGRAPHS) if paragraph]
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


def tokenise(
    text: str, column: str, config: str | None, tokenizer: str, written: float | None
) -> Iterator[dict[str, Any]]:
    """The sentences of a text as ids without special tokens, and whether each begins a document.

    The cache keeps what this yields under the arguments: so `tokenizer` is one's JSON text, and `written` the time at
    which the file was.
    """
    begins, empty, encode = True, True, Tokenizer.from_str(tokenizer).encode_batch
    sentences = (
        (sentence, paragraph == "")
        for paragraph in read_paragraphs(text, column, config)
        for sentence in ([""] if paragraph == "" else SENTENCE.split(paragraph))
    )
    while some := list(islice(sentences, AT_ONCE)):
        encoded = encode([sentence for sentence, _ in some], add_special_tokens=False)
        for one, (_, ends) in zip(encoded, some, strict=True):
            ids = one.ids
            for start in range(0, len(ids), LONGEST):
                yield {"ids": ids[start : start + LONGEST], "begins": begins}
                begins, empty = False, False
            begins = begins or ends
    if empty:
        raise CorpusError(f"text={text!r} is empty")


def tokenised(
    text: str, column: str, config: str | None, tokenizer: PreTrainedTokenizerBase, cache: Path | None
) -> Dataset:
    """`tokenise`, done once and kept: rows with ids (1 to 64 tokens) and begins; CorpusError for an empty text."""
    path = Path(text)
    kind = "uint16" if len(tokenizer) <= 2**16 else "uint32"
    return from_generator(
        tokenise,
        {"text": text, "column": column, "config": config, "tokenizer": tokenizer.backend_tokenizer.to_str(),
         "written": path.stat().st_mtime if path.is_file() else None},
        Features({"ids": List(Value(kind)), "begins": Value("bool")}),
        cache,
    )  # fmt: skip


def from_generator(generator, arguments: dict[str, Any], features: Features, cache: Path | None) -> Dataset:
    """A data set of what a generator yields, from the cache if it is there; the generator's own errors come through."""
    try:
        return Dataset.from_generator(
            generator, features=features, gen_kwargs=arguments, cache_dir=str(cache) if cache else None
        )
    except Exception as error:  # datasets wraps what the generator raises
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, CorpusError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        raise


def pack(sentences: Dataset, max_length: int, seed: int) -> Iterator[dict[str, int]]:
    """Runs of sentences of one document: `first` and `stop` of each sequence, and its `length` in tokens of the text.

    A sequence takes sentences until the next would make it longer than max_length, its three special tokens counted;
    a tenth of them, as in BERT and ALBERT, aim at a random shorter length.
    """
    rng = np.random.default_rng(seed)
    room, first, length, row = max_length - 3, 0, 0, 0

    def target() -> int:
        return int(rng.integers(2, room + 1)) if rng.random() < 0.1 else room

    aim = target()
    for batch in sentences.with_format("arrow").iter(2**16):
        lengths = pc.list_value_length(batch["ids"]).to_pylist()
        for size, begins in zip(lengths, batch["begins"].to_pylist(), strict=True):
            if begins or length + size > aim:
                if length >= 2:  # one token cannot be two segments
                    yield {"first": first, "stop": row, "length": length}
                first, length, aim = row, 0, target()
            length, row = length + size, row + 1
    if length >= 2:
        yield {"first": first, "stop": row, "length": length}


def packed(sentences: Dataset, max_length: int, seed: int, cache: Path | None) -> Dataset:
    """`pack`, done once and kept."""
    arguments = {"sentences": sentences, "max_length": max_length, "seed": seed}
    return from_generator(pack, arguments, Features(dict.fromkeys(("first", "stop", "length"), Value("int64"))), cache)


def count_pieces(sentences: Dataset, vocabulary: int) -> np.ndarray:
    """How often each piece stands in the text: (vocabulary,), int."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for batch in sentences.with_format("arrow").iter(2**16):
        counts += np.bincount(pc.list_flatten(batch["ids"]).to_numpy(), minlength=vocabulary)
    return counts
