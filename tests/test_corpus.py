"""Text for pretraining: what is read, how it is cut, what is refused."""

import lzma
import string

import numpy as np
import pytest

from albert_lsh.model.load import load_tokenizer
from albert_study.pretraining.corpus import (
    LINE,
    CorpusError,
    count_pieces,
    packed,
    read_paragraphs,
    tokenised,
    train_tokenizer,
)
from pretraining_text import sentences, write_text


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*sentences()[:400], string.printable], 300)


def rows(path, tokenizer, cache):
    return tokenised(str(path), "text", None, tokenizer, cache)


def test_documents_and_sentences(tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text('One (of two). "Two!"\nThree is 3.5 long. And four\n\n\nFive.\n', encoding="utf-8")
    found = rows(path, tokenizer, tmp_path)
    words = [tokenizer.decode(row["ids"]).replace(" ", "") for row in found]
    assert words == ["one(oftwo).", '"two!"', "threeis3.5long.", "andfour", "five."]
    assert found["begins"][:] == [True, False, False, False, True]
    assert count_pieces(found, len(tokenizer)).sum() == sum(map(len, found["ids"]))


def test_a_packed_file_is_the_same_and_is_read_once(tmp_path, tokenizer, monkeypatch):
    plain = write_text(tmp_path / "text.txt")
    small = tmp_path / "text.txt.xz"
    small.write_bytes(lzma.compress(plain.read_bytes()))
    found = rows(small, tokenizer, tmp_path)
    assert found["ids"][:] == rows(plain, tokenizer, tmp_path)["ids"][:]
    before = sorted(tmp_path.rglob("*.arrow"))
    assert rows(small, tokenizer, tmp_path)["ids"][:] == found["ids"][:]
    assert sorted(tmp_path.rglob("*.arrow")) == before
    plain.write_text("Something else.", encoding="utf-8")
    assert len(rows(plain, tokenizer, tmp_path)) == 1


def test_sequences_take_whole_sentences_of_one_document(tmp_path, tokenizer):
    found = rows(write_text(tmp_path / "text.txt"), tokenizer, tmp_path)
    sequences = packed(found, 200, 0, tmp_path)
    lengths, begins = np.array([len(ids) for ids in found["ids"]]), np.array(found["begins"])
    first, stop = np.array(sequences["first"]), np.array(sequences["stop"])
    assert first[0] == 0
    assert stop[-1] == len(found)
    assert (first[1:] == stop[:-1]).all()
    sizes = np.array([lengths[a:b].sum() for a, b in zip(first, stop, strict=True)])
    assert not any(begins[a + 1 : b].any() for a, b in zip(first, stop, strict=True))
    assert ((sizes <= 197) | (stop - first == 1)).all()
    # What could have taken one sentence more was ended by a document, or aimed at a shorter length (one in ten).
    could = [s + lengths[b] <= 197 and not begins[b] for s, b in zip(sizes[:-1], stop[:-1], strict=True)]
    assert 0.02 < np.mean(could) < 0.25


def test_a_line_without_end_is_cut_into_pieces(tmp_path, tokenizer):
    path = tmp_path / "line.txt"
    path.write_text("word " * 40_000, encoding="utf-8")
    found = rows(path, tokenizer, tmp_path)
    assert max(map(len, found["ids"])) == 64
    assert found["begins"][:] == [True] + [False] * (len(found) - 1)
    assert sum(map(len, found["ids"])) >= 40_000


def test_only_a_whole_empty_line_ends_a_document(tmp_path):
    """Not the end of a line that was read in pieces, nor blanks within one."""
    path = tmp_path / "text.txt"
    whole = "word" * (LINE // 4)
    path.write_text(f"{whole}\nnext\n \nother{' ' * 2 * LINE}end\n", encoding="utf-8")
    assert list(read_paragraphs(str(path))) == [whole, "next", "", "other", "end"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("latin.txt", "Zürich".encode("latin-1"), "is not UTF-8: byte 0xfc"),
        ("broken.xz", b"no xz", "is no xz file, or is cut short"),
        ("cut.xz", lzma.compress(b"word " * 1000)[:-40], "is no xz file, or is cut short"),
        ("none.txt", None, "there is no such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, tokenizer, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=f"{name}.*{message}"):
        rows(tmp_path / name, tokenizer, tmp_path)
    with pytest.raises(CorpusError, match=message):
        list(read_paragraphs(str(tmp_path / name)))


def test_an_empty_text(tmp_path, tokenizer):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(CorpusError, match="the text is empty"):
        train_tokenizer(read_paragraphs(str(tmp_path / "empty.txt")), 300)
    with pytest.raises(CorpusError, match=r"empty\.txt.* is empty"):
        rows(tmp_path / "empty.txt", tokenizer, tmp_path)


def test_the_tokenizer_has_alberts_normalisation_and_form(tmp_path, tokenizer):
    assert tokenizer.tokenize("Züge  ``THE``") == tokenizer.tokenize('zuge "the"')
    assert not any("," in piece and len(piece) > 1 for piece in tokenizer.get_vocab() if piece != "▁,")
    pair = tokenizer("a", "b")
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[0] == "[CLS]"
    assert pair["token_type_ids"][-2:] == [1, 1]
    assert [tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.mask_token_id] == [0, 2, 4]
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path))("The food was dull.") == tokenizer("The food was dull.")
