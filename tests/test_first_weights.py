"""The first weights of a new model: counted as told, and worth something before the first step."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy import sparse
from transformers import DataCollatorForTokenClassification

from albert_study.pretraining.corpus import train_tokenizer
from albert_study.pretraining.first_weights import NEIGHBOURS, begin_as_bag_of_words, count_neighbours, word_vectors
from albert_study.pretraining.parameters import Pretraining
from albert_study.pretraining.pretrain import prepare_albert, prepare_text
from pretraining_text import rows_of

TEXT = [[5, 3, 5, 8, 1, 2], [7], [2, 9, 3, 3]]
PIECES = 12


def of_topics(documents=200):
    """A text of which every document keeps to one of eight topics, of ten words each."""
    rng = np.random.default_rng(0)
    words = [[f"{a}{b}{c}" for b in "aeiou" for c in "tn"] for a in "bdfgklmp"]
    for document in range(documents):
        yield from (" ".join(rng.choice(words[document % 8], 12)).capitalize() + "." for _ in range(4))
        yield ""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A new model before and after its first weights, with what it would be trained with."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("\n".join(of_topics()), encoding="utf-8")
    train_tokenizer(rows_of(list(of_topics())), 150).save_pretrained(folder / "tokenizer")
    given = {"text": str(folder / "text.txt"), "tokenizer": str(folder / "tokenizer"), "max_length": 64}
    asked = Pretraining.check({**given, "cache_dir": str(folder), "precision": "fp32", "dry_run": True})
    material = prepare_text(asked, folder)
    plain, model = (prepare_albert(asked, material.tokenizer) for _ in range(2))
    begin_as_bag_of_words(model, material.sentences)
    return plain.eval(), model.eval(), material


def test_neighbours_are_counted_on_both_sides():
    counts = count_neighbours(Dataset.from_dict({"ids": TEXT}), PIECES)
    line, expected = [*TEXT[0], *TEXT[1], *TEXT[2]], np.zeros((PIECES, PIECES))
    for i, one in enumerate(line):
        for j, other in enumerate(line):
            expected[one, other] += 0 < abs(i - j) <= NEIGHBOURS
    assert counts.toarray().tolist() == expected.tolist()


def test_word_vectors_are_those_of_positive_pointwise_mutual_information():
    counts = np.random.default_rng(0).integers(0, 9, (PIECES, PIECES)).astype(float)
    counts += counts.T
    counts[4], counts[:, 4] = 0, 0  # a piece that is not in the text
    information = np.zeros_like(counts)
    beside = counts.sum(0) ** 0.75
    for one, other in zip(*np.nonzero(counts), strict=True):
        ratio = counts[one, other] / counts[one].sum() / (beside[other] / beside.sum())
        information[one, other] = max(0, np.log(ratio))
    left, values, _ = np.linalg.svd(information)
    found = word_vectors(sparse.csr_array(counts), 5)
    assert found.shape == (PIECES, 5)
    np.testing.assert_allclose(np.abs(found), np.abs(left[:, :5] * np.sqrt(values[:5])), atol=1e-6)
    assert np.abs(found[4]).max() < 1e-9


def test_a_new_model_knows_more_than_how_common_a_piece_is(begun):
    plain, model, material = begun
    batch = DataCollatorForTokenClassification(material.tokenizer)(
        [material.held_out[n] for n in range(len(material.held_out))]
    )
    batch.pop("sentence_order_label")
    labels = batch.pop("labels")
    with torch.no_grad():
        answers = [m(**batch).prediction_logits for m in (model, plain)]
    answers.append(model.predictions.bias.expand(*labels.shape, -1))
    begins, random, counted = (
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item() for logits in answers
    )
    assert begins < counted < random


def test_what_stands_near_tells_more(begun):
    """What stands near a token changes what is made of it more than what stands far away."""
    _, model, _ = begun
    embedded = torch.randn(8, 64, 128, generator=torch.Generator().manual_seed(0)) * 0.02
    embedded.requires_grad_()
    seen = model.albert(inputs_embeds=embedded).last_hidden_state[:, 32, ::2].sum()
    (gradient,) = torch.autograd.grad(seen, embedded)
    share = gradient.norm(dim=-1).mean(0)  # of each place in what stands at place 32
    near, far = share[[29, 30, 31, 33, 34, 35]].mean(), share[[*range(12), *range(52, 64)]].mean()
    assert near > 1.1 * far


def test_held_out_text_is_not_counted(begun):
    _, _, material = begun
    assert len(material.sentences) == material.held_out.packed[0, 0]


def test_a_piece_that_is_not_in_the_text_keeps_its_random_vector(begun):
    plain, model, material = begun
    before, after = (m.albert.embeddings.word_embeddings.weight for m in (plain, model))
    mask = material.tokenizer.mask_token_id
    assert torch.equal(before[mask], after[mask])
    known = material.sentences[0]["ids"][0]
    assert not torch.equal(before[known], after[known])
