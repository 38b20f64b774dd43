"""Text for pretraining: what is read, how it is cut and masked, what is refused; and the first weights made of it."""

import lzma
import string
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForTokenClassification

from albert_lsh import mini
from albert_lsh.model.load import load_tokenizer
from albert_study.experiments import corpus, first_weights
from albert_study.experiments.corpus import IGNORED, CorpusError, Pieces, Sentences, Sequences, choose_masked, tokenise
from albert_study.experiments.pretrain import prepare_model, prepare_text
from albert_study.experiments.pretrain_recipe import Pretraining


def sentences() -> list[str]:
    return list(mini.build("mini-sst2")["train"]["sentence"])


def learn_tokenizer(lines: list[str], vocabulary: int = 300):
    return corpus.train_tokenizer(datasets.Dataset.from_dict({"text": lines}), vocabulary)


def write_text(path: Path, documents: int = 60) -> Path:
    """Documents of two paragraphs of three sentences each."""
    source = iter(sentences())
    texts = [f"{' '.join(islice(source, 3))}\n{' '.join(islice(source, 3))}\n" for _ in range(documents)]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer():
    return learn_tokenizer([*sentences()[:400], string.printable])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def test_documents_and_sentences(tmp_path, tokenizer):
    path = tmp_path / "text.txt"
    path.write_text(f'One (of two). "Two!"\nThree is 3.5 long. And four\n\n\nFive.\n{"word " * 300}', encoding="utf-8")
    ids, lengths = tokenise(corpus.load_text(str(path)), tokenizer)
    words = [tokenizer.decode(part).replace(" ", "") for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert words[:7] == ["one(oftwo).", '"two!"', "threeis3.5long.", "andfour", "", "", "five."]
    assert lengths.max() == 64  # a sentence without end is cut
    assert "".join(words[7:]) == "word" * 300


def test_a_packed_file_is_the_same_and_is_read_once(tmp_path, tokenizer, cache):
    plain, small = write_text(tmp_path / "text.txt"), tmp_path / "text.txt.xz"
    small.write_bytes(lzma.compress(plain.read_bytes()))
    first = tokenise(corpus.load_text(str(small)), tokenizer)
    assert np.array_equal(first.ids, tokenise(corpus.load_text(str(plain)), tokenizer).ids)
    before = sorted(cache.rglob("*.arrow"))
    assert np.array_equal(first.ids, tokenise(corpus.load_text(str(small)), tokenizer).ids)
    assert sorted(cache.rglob("*.arrow")) == before
    plain.write_text("Something else.", encoding="utf-8")
    assert len(tokenise(corpus.load_text(str(plain)), tokenizer).lengths) == 1


def test_sequences_take_whole_sentences_of_one_document(tmp_path, tokenizer):
    lengths = tokenise(corpus.load_text(str(write_text(tmp_path / "text.txt"))), tokenizer).lengths
    first, stop, sizes = corpus.pack(lengths, 200, 0).T
    within = np.concatenate([np.arange(a, b) for a, b in zip(first, stop, strict=True)])
    assert (within == np.flatnonzero(lengths)).all()  # every sentence once, no border of documents
    assert sizes.tolist() == [lengths[a:b].sum() for a, b in zip(first, stop, strict=True)]
    assert ((sizes <= 197) | (stop - first == 1)).all()
    # What could have taken one sentence more was ended by a document, or aimed at a shorter length (one in ten).
    could = [s + lengths[b] <= 197 and lengths[b] > 0 for s, b in zip(sizes[:-1], stop[:-1], strict=True)]
    assert 0.02 < np.mean(could) < 0.25


def test_rows_of_a_data_set_are_documents_and_what_cannot_be_read_is_named(tmp_path, tokenizer):
    datasets.Dataset.from_dict({"text": ["One.\nTwo.", "Three."]}).to_parquet(tmp_path / "data" / "train.parquet")
    lengths = tokenise(corpus.load_text(str(tmp_path / "data")), tokenizer).lengths
    assert (lengths > 0).tolist() == [True, True, False, True, False]
    with pytest.raises(CorpusError, match="has no column 'body'; there are: text"):
        corpus.load_text(str(tmp_path / "data"), "body")
    (tmp_path / "cut.xz").write_bytes(lzma.compress(b"word " * 1000)[:-40])
    with pytest.raises(CorpusError, match=r"cut\.xz.*the file cannot be read: Compressed file ended"):
        corpus.load_text(str(tmp_path / "cut.xz"))
    with pytest.raises(CorpusError, match=r"none\.txt.*there is no such file"):
        corpus.load_text(str(tmp_path / "none.txt"))


def test_the_tokenizer_has_alberts_normalisation_and_form(tmp_path, tokenizer, minilm):
    assert tokenizer.tokenize("Züge  ``THE``") == tokenizer.tokenize('zuge "the"')
    assert not any("," in piece and len(piece) > 1 for piece in tokenizer.get_vocab() if piece != "▁,")
    pair = tokenizer("a", "b")
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"])[0] == "[CLS]"
    assert pair["token_type_ids"][-2:] == [1, 1]
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path))("The food was dull.") == tokenizer("The food was dull.")
    wordpiece = load_tokenizer(minilm)
    begins = Pieces.of(wordpiece).begins_word[wordpiece.convert_tokens_to_ids(["play", "##ing"])]
    assert begins.tolist() == [True, False]


def test_roberta_s_pieces_are_of_bytes_and_mark_words(tmp_path):
    tokenizer = corpus.train_tokenizer(datasets.Dataset.from_dict({"text": sentences()}), 400, bytes_alone=True)
    tokenizer.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    ids = tokenizer("The food, naïve")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "The food, naïve"  # nothing is lost
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1]]) == ["<s>", "</s>"]
    assert Pieces.of(tokenizer).begins_word[ids].sum() == 3


def test_a_vocabulary_too_small_for_the_characters_is_named():
    with pytest.raises(corpus.CorpusError, match="vocabulary=100: no tokenizer could be learnt"):
        learn_tokenizer(["".join(map(chr, range(0x4E00, 0x4F00)))], 100)


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
    ids = np.array(tokenizer(" ".join(sentences()[:20]))["input_ids"])
    assert choose_masked(ids, pieces, rng, 0.5).mean() == pytest.approx(0.5, abs=0.01)
    ids = np.array(tokenizer("w" * 8)["input_ids"])  # a word longer than what may be masked gives one token
    assert choose_masked(ids, pieces, rng).sum() == 1


def test_an_example_is_two_segments_in_order_or_exchanged_with_masks(tokenizer):
    pieces, texts, labels, inputs, exchanged = Pieces.of(tokenizer), sentences(), [], [], []
    for n in range(400):
        ids = [np.array(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts[3 * n : 3 * n + 3]]
        tokens, borders = np.concatenate(ids), np.cumsum([len(part) for part in ids])[:-1]
        example = corpus.make_example(tokens, borders, pieces, np.random.default_rng((7, n)))
        whole = np.where(example["labels"] == IGNORED, example["input_ids"], example["labels"])
        end = int(np.flatnonzero(whole == tokenizer.sep_token_id)[0])
        assert (example["token_type_ids"] == np.repeat([0, 1], [end + 1, len(whole) - end - 1])).all()
        parts = [whole[1:end], whole[end + 1 : -1]][:: -1 if example["sentence_order_label"] else 1]
        assert np.array_equal(np.concatenate(parts), tokens)
        assert len(parts[0]) in borders
        exchanged.append(example["sentence_order_label"])
        labels.extend(example["labels"])
        inputs.extend(example["input_ids"])
    assert np.mean(exchanged) == pytest.approx(0.5, abs=0.08)
    labels, inputs, chosen = np.array(labels), np.array(inputs), np.array(labels) != IGNORED
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (inputs[chosen] == tokenizer.mask_token_id).mean() == pytest.approx(0.8, abs=0.03)
    assert (inputs[chosen] == labels[chosen]).mean() == pytest.approx(0.1, abs=0.03)
    alone = corpus.make_example(np.array([10, 11]), np.array([]), pieces, np.random.default_rng(0))
    assert alone["token_type_ids"].tolist() == [0, 0, 0, 1, 1]  # one sentence is split within


def test_an_example_of_single_pieces_and_one_segment(tokenizer):
    pieces, rng, tokens = Pieces.of(tokenizer), np.random.default_rng(0), np.arange(10, 50)
    examples = [corpus.make_example(tokens, np.array([20]), pieces, rng, 0.2, False, False) for _ in range(200)]
    for example in examples:
        assert example.keys() == {"input_ids", "token_type_ids", "labels"}
        assert (example["labels"] != IGNORED).sum() == 8
        whole = np.where(example["labels"] == IGNORED, example["input_ids"], example["labels"])
        assert whole.tolist() == [pieces.cls, *tokens, pieces.sep]
        assert not example["token_type_ids"].any()
    often = np.mean([example["labels"][1:-1] != IGNORED for example in examples], axis=0)
    assert 0.08 < often.min() <= often.max() < 0.35  # each token as often, whatever word it is in


@pytest.mark.parametrize("count", [3, 1003])
def test_an_epoch_has_every_sequence_once_and_those_of_a_step_are_of_similar_length(tokenizer, count):
    lengths = np.random.default_rng(0).integers(10, 125, count)
    text = Sentences(np.arange(lengths.sum()) % 50 + 5, lengths)
    packed = np.stack([np.arange(count), np.arange(count) + 1, lengths], axis=1)
    sequences = Sequences(text, packed, 3 * count, 8, 128, Pieces.of(tokenizer), seed=0)
    sizes = np.array([len(sequences[number]["input_ids"]) for number in range(3 * count)])
    for of_epoch in sizes.reshape(3, count):
        assert sorted(of_epoch - 3) == sorted(lengths)
    if count > 1000:  # an epoch ends within a step
        for steps in np.array_split(sizes[: 3 * count // 8 * 8].reshape(-1, 8), 3):
            assert 1 - steps.mean() / steps.max(axis=1).mean() < 0.04
            assert np.ptp(steps.mean(axis=1)[:30]) > 60  # the steps themselves are in no order


def test_neighbours_are_counted_on_both_sides():
    line = np.array([5, 3, 5, 8, 1, 2, 7, 2, 9, 3, 3])
    expected = np.zeros((12, 12))
    for i, one in enumerate(line):
        for j, other in enumerate(line):
            expected[one, other] += 0 < abs(i - j) <= first_weights.NEIGHBOURS
    assert first_weights.count_neighbours(line, 12).toarray().tolist() == expected.tolist()


def test_word_vectors_are_those_of_positive_pointwise_mutual_information():
    counts = np.random.default_rng(0).integers(0, 9, (12, 12)).astype(float)
    counts += counts.T
    counts[4], counts[:, 4] = 0, 0  # a piece that is not in the text
    information, beside = np.zeros_like(counts), counts.sum(0) ** 0.75
    for one, other in zip(*np.nonzero(counts), strict=True):
        ratio = counts[one, other] / counts[one].sum() / (beside[other] / beside.sum())
        information[one, other] = max(0, np.log(ratio))
    left, values, _ = np.linalg.svd(information)
    vectors = first_weights.word_vectors(sparse.csr_array(counts), 5)
    np.testing.assert_allclose(np.abs(vectors), np.abs(left[:, :5] * np.sqrt(values[:5])), atol=1e-6)
    assert np.abs(vectors[4]).max() < 1e-9


def test_a_new_model_knows_more_than_how_common_a_piece_is(tmp_path):
    """On a text whose documents keep to one of eight topics."""
    rng, lines = np.random.default_rng(0), []
    words = [[f"{a}{b}{c}" for b in "aeiou" for c in "tn"] for a in "bdfgklmp"]
    for document in range(200):
        lines += [" ".join(rng.choice(words[document % 8], 12)).capitalize() + "." for _ in range(4)] + [""]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    learn_tokenizer(lines, 150).save_pretrained(tmp_path / "tokenizer")
    parameters = {"text": str(tmp_path / "text.txt"), "tokenizer": str(tmp_path / "tokenizer"), "max_length": 64}
    run = Pretraining.parse({**parameters, "precision": "fp32", "masked_share": 0.4, "output_dir": str(tmp_path)})
    material = prepare_text(run)
    plain, model = (prepare_model(run, material.tokenizer).eval() for _ in range(2))
    first_weights.begin_as_bag_of_words(model, material.ids)
    for examples, share in ((material.train, 0.4), (material.held_out, 0.15)):  # more is masked in training alone
        masked = np.concatenate([examples[n]["labels"] for n in range(16)]) != IGNORED
        assert masked.mean() == pytest.approx(share, abs=0.03)
    batch = DataCollatorForTokenClassification(material.tokenizer)(list(map(material.held_out.__getitem__, range(16))))
    labels = batch.pop("labels").flatten()
    batch.pop("sentence_order_label")
    with torch.no_grad():
        logits = [each(**batch).prediction_logits.flatten(0, 1) for each in (model, plain)]
    begins, random = (cross_entropy(each, labels).item() for each in logits)
    assert begins < cross_entropy(model.predictions.bias.expand(len(labels), -1), labels).item() < random
    assert len(material.ids) < material.tokens  # held-out text is not counted
    before, after = (each.albert.embeddings.word_embeddings.weight for each in (plain, model))
    same = (before == after).all(1).numpy()
    assert same[material.tokenizer.mask_token_id]  # it is not in the text
    assert not same[material.ids].any()
