"""ALBERT's objectives: n-grams of whole words, and two segments in order or exchanged."""

import string
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from transformers import DataCollatorForTokenClassification

from albert_lsh.model.load import load_tokenizer
from albert_study.pretraining.corpus import train_tokenizer
from albert_study.pretraining.objectives import (
    IGNORED,
    Pieces,
    Sequences,
    choose_masked,
    make_example,
    ngram_words,
    order_of,
)
from pretraining_text import rows_of, sentences


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(rows_of([*sentences()[:400], string.printable]), 300)


@pytest.fixture(scope="module")
def examples(tokenizer):
    """400 examples, with the ids that they are made of."""
    pieces, texts = Pieces.of(tokenizer), sentences()
    made = []
    for n in range(400):
        ids = [np.array(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts[3 * n : 3 * n + 3]]
        made.append((ids, make_example(ids, 400, pieces, np.random.default_rng((7, n)))))
    return made


def test_ngrams_are_as_frequent_as_their_length_is_short():
    rng = np.random.default_rng(0)
    counts = Counter(ngram_words(10, rng) for _ in range(11_000))
    assert [counts[n] / 11_000 for n in (1, 2, 3)] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)
    assert {ngram_words(1, rng) for _ in range(50)} == {1}
    assert {ngram_words(2, rng) for _ in range(50)} == {1, 2}


def test_whole_words_are_masked_and_fifteen_percent_of_all(tokenizer):
    pieces, rng = Pieces.of(tokenizer), np.random.default_rng(0)
    for text in sentences()[:100]:
        ids = np.array(tokenizer(text, "The food was dull.")["input_ids"])
        chosen = choose_masked(ids, pieces, rng)
        assert 1 <= chosen.sum() <= max(1, round(0.15 * len(ids)))
        assert not (chosen & pieces.special[ids]).any()
        inside = ~pieces.begins_word[ids] & ~pieces.special[ids]  # goes on with the word before
        if chosen.sum() > 1:
            assert (chosen[1:] == chosen[:-1])[inside[1:]].all()


def test_more_may_be_masked(tokenizer):
    ids = np.array(tokenizer(" ".join(sentences()[:20]))["input_ids"])
    for share in (0.3, 0.5):
        chosen = choose_masked(ids, Pieces.of(tokenizer), np.random.default_rng(0), share)
        assert chosen.mean() == pytest.approx(share, abs=0.01)


def test_a_word_longer_than_what_may_be_masked_gives_one_token(tokenizer):
    ids = np.array(tokenizer("w" * 8)["input_ids"])
    assert len(ids) > 6
    assert choose_masked(ids, Pieces.of(tokenizer), np.random.default_rng(0)).sum() == 1


def test_what_is_masked_and_what_stands_there_instead(tokenizer, examples):
    labels = np.concatenate([e["labels"] for _, e in examples])
    inputs = np.concatenate([e["input_ids"] for _, e in examples])
    chosen = labels != IGNORED
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == tokenizer.mask_token_id).mean() == pytest.approx(0.8, abs=0.03)
    assert (inputs[chosen] == labels[chosen]).mean() == pytest.approx(0.1, abs=0.03)
    assert not Pieces.of(tokenizer).special[labels[chosen]].any()


def test_segments_are_the_text_in_order_or_exchanged(tokenizer, examples):
    for ids, example in examples:
        whole = np.where(example["labels"] == IGNORED, example["input_ids"], example["labels"])
        end = int(np.flatnonzero(whole == tokenizer.sep_token_id)[0])
        parts = [whole[1:end], whole[end + 1 : -1]]
        assert whole[-1] == tokenizer.sep_token_id
        assert (example["token_type_ids"] == np.repeat([0, 1], [end + 1, len(whole) - end - 1])).all()
        if example["sentence_order_label"]:
            parts.reverse()
        assert np.array_equal(np.concatenate(parts), np.concatenate(ids))
        assert len(parts[0]) in np.cumsum([len(s) for s in ids])
    assert np.mean([e["sentence_order_label"] for _, e in examples]) == pytest.approx(0.5, abs=0.08)


def test_one_sentence_is_split_within(tokenizer):
    ids = np.array([10, 11])
    made = make_example([ids], 64, Pieces.of(tokenizer), np.random.default_rng(0))
    assert len(made["input_ids"]) == 5
    assert made["token_type_ids"].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("count", [3, 8, 100, 1000, 1003])
def test_an_epoch_has_every_sequence_once_and_those_of_a_step_are_of_similar_length(count):
    lengths = np.random.default_rng(0).integers(5, 125, count)
    order = order_of(lengths, 8, np.random.default_rng(1))
    assert sorted(order) == list(range(count))
    if count >= 1000:
        assert not np.array_equal(order, order_of(lengths, 8, np.random.default_rng(2)))
        steps = lengths[order[: count // 8 * 8]].reshape(-1, 8)
        padding = 1 - steps.mean() / steps.max(axis=1).mean()
        assert padding < 0.04 < 1 - lengths.mean() / lengths.max()
        assert steps[:30].mean() == pytest.approx(lengths.mean(), rel=0.15)  # the steps themselves are in no order
        assert np.ptp(steps.mean(axis=1)[:30]) > 60


def test_the_steps_of_later_epochs_are_of_similar_length_too(tokenizer):
    count = 1003  # an epoch ends within a step
    lengths = np.random.default_rng(0).integers(10, 125, count)
    ids = [np.arange(5, 5 + n) % 50 + 5 for n in lengths]
    sentences = Dataset.from_dict({"ids": ids})
    packed = np.stack([np.arange(count), np.arange(count) + 1, lengths], axis=1)
    sequences = Sequences(sentences, packed, 3 * count, 8, 128, Pieces.of(tokenizer), seed=0)
    sizes = np.array([len(sequences[number]["input_ids"]) for number in range(3 * count)])
    for steps in np.array_split(sizes[: 3 * count // 8 * 8].reshape(-1, 8), 3):
        assert 1 - steps.mean() / steps.max(axis=1).mean() < 0.04
    for of_epoch in sizes.reshape(3, count):  # each has every sequence once
        assert sorted(of_epoch - 3) == sorted(lengths)


def test_batches_are_padded(tokenizer, examples):
    some = [example for _, example in examples[:8]]
    batch = DataCollatorForTokenClassification(tokenizer)(some)
    for number, example in enumerate(some):
        n = len(example["input_ids"])
        assert batch["input_ids"][number, :n].tolist() == example["input_ids"].tolist()
        assert batch["attention_mask"][number].sum() == n
        assert (batch["labels"][number, n:] == IGNORED).all()


def test_a_tokenizer_without_beginnings_of_words_is_refused(minilm):
    with pytest.raises(ValueError, match="marks no beginning of a word"):
        Pieces.of(load_tokenizer(minilm))
