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
    load_text,
    pack,
    sentence_lengths,
    tokenise,
    train_tokenizer,
)
from pretraining_text import rows_of, sentences, write_text


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(rows_of([*sentences()[:400], string.printable]), 300)


def rows(path, tokenizer, cache):
    return tokenise(load_text(str(path), cache=str(cache)), tokenizer)


def test_documents_and_sentences(tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text('One (of two). "Two!"\nThree is 3.5 long. And four\n\n\nFive.\n', encoding="utf-8")
    found = rows(path, tokenizer, tmp_path)
    words = [tokenizer.decode(row["ids"]).replace(" ", "") for row in found]
    assert words == ["one(oftwo).", '"two!"', "threeis3.5long.", "andfour", "", "", "five."]
    assert count_pieces(found, len(tokenizer)).sum() == sum(map(len, found["ids"]))


def test_a_text_is_embedded():
    found = load_text("mini")[:3]["text"]
    assert all(text.endswith(".\n") and text.count("\n") == 1 for text in found)  # each is a document


def test_a_packed_file_is_the_same_and_is_read_once(tmp_path, tokenizer):
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
    first, stop, sizes = pack(found, 200, 0).T
    lengths = sentence_lengths(found)
    within = np.concatenate([np.arange(a, b) for a, b in zip(first, stop, strict=True)])
    assert (within == np.flatnonzero(lengths)).all()  # every sentence once, no border of documents
    assert sizes.tolist() == [lengths[a:b].sum() for a, b in zip(first, stop, strict=True)]
    assert ((sizes <= 197) | (stop - first == 1)).all()
    # What could have taken one sentence more was ended by a document, or aimed at a shorter length (one in ten).
    could = [s + lengths[b] <= 197 and lengths[b] > 0 for s, b in zip(sizes[:-1], stop[:-1], strict=True)]
    assert 0.02 < np.mean(could) < 0.25


def test_a_line_without_end_is_cut_into_pieces(tmp_path, tokenizer):
    path = tmp_path / "line.txt"
    path.write_text("word " * (LINE // 4), encoding="utf-8")
    lengths = sentence_lengths(rows(path, tokenizer, tmp_path))
    assert 0 < lengths.min() <= lengths.max() == 64
    assert lengths.sum() >= LINE // 4


def test_blanks_within_a_line_end_no_document(tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text(f"next\n \nother{' ' * 2 * LINE}end\n", encoding="utf-8")
    assert np.flatnonzero(sentence_lengths(rows(path, tokenizer, tmp_path)) == 0).tolist() == [1]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("latin.txt", "Zürich".encode("latin-1"), "'utf-8' codec can't decode byte 0xfc"),
        ("broken.xz", b"no xz", "the file cannot be read: Input format not supported"),
        ("cut.xz", lzma.compress(b"word " * 1000)[:-40], "the file cannot be read: Compressed file ended"),
        ("none.txt", None, "there is no such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, tokenizer, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(CorpusError, match=f"{name}.*{message}"):
        rows(tmp_path / name, tokenizer, tmp_path)


def test_there_is_nothing_to_learn_from_an_empty_text():
    with pytest.raises(CorpusError, match="the text is empty"):
        train_tokenizer(rows_of(["", ""]), 300)


def test_rows_of_a_data_set_are_documents(tmp_path, tokenizer):
    rows_of(["One.\nTwo.", "Three."]).to_parquet(tmp_path / "data" / "train.parquet")
    found = tokenise(load_text(str(tmp_path / "data"), cache=str(tmp_path)), tokenizer)
    assert (sentence_lengths(found) > 0).tolist() == [True, True, False, True, False]
    with pytest.raises(CorpusError, match="has no column 'body'; there are: text"):
        load_text(str(tmp_path / "data"), "body", cache=str(tmp_path))


def test_the_tokenizer_has_alberts_normalisation_and_form(tmp_path, tokenizer):
    assert tokenizer.tokenize("Züge  ``THE``") == tokenizer.tokenize('zuge "the"')
    assert not any("," in piece and len(piece) > 1 for piece in tokenizer.get_vocab() if piece != "▁,")
    pair = tokenizer("a", "b")
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[0] == "[CLS]"
    assert pair["token_type_ids"][-2:] == [1, 1]
    assert [tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.mask_token_id] == [0, 2, 4]
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path))("The food was dull.") == tokenizer("The food was dull.")
