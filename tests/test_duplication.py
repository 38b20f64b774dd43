"""Reformer's duplication task: its examples, and a model that has learned it."""

import pytest
import torch

from albert_lsh import load_model
from albert_lsh.attention import attend
from albert_study.long_range import duplication
from albert_study.long_range.duplication import MASK, Duplication
from albert_study.probe.candidates import candidates_of


def test_an_example_is_a_word_and_a_hidden_word():
    example = Duplication("train", 5, 16, seed=0)[3]
    ids, labels = example["input_ids"], example["labels"]
    assert ids.shape == labels.shape == (16,)
    assert ids[0] == ids[8] == 0
    assert (ids[9:] == MASK).all()
    assert torch.equal(labels[9:], ids[1:8])
    assert (labels[:9] == -100).all()
    assert (ids[1:8] >= 1).all()
    assert (ids[1:8] <= 127).all()


def test_examples_follow_from_seed_split_and_number():
    same, again = (Duplication("train", 50, 64, seed=1) for _ in range(2))
    for number in (0, 7, 49):
        assert torch.equal(same[number]["input_ids"], again[number]["input_ids"])
    others = [Duplication("test", 50, 64, seed=1), Duplication("train", 50, 64, seed=2)]
    words = {tuple(data[number]["input_ids"].tolist()) for data in (same, *others) for number in range(50)}
    assert len(same) == 50
    assert len(words) == 150


def test_all_symbols_are_as_likely():
    data = Duplication("train", 400, 256, seed=0)
    words = torch.cat([data[number]["input_ids"][1:128] for number in range(400)])
    counts = words.bincount(minlength=128)
    assert counts[0] == 0
    assert counts[1:].min() > 300  # of 400 on average; the standard deviation is 20
    assert counts[1:].max() < 500


def test_the_attentions_are_the_papers():
    named = {variant.label: variant for variant in candidates_of(duplication.attentions(1024))}
    assert list(named) == ["full", "LSH-8", "LSH-4", "LSH-2", "LSH-1"] == list(duplication.PUBLISHED_ACCURACY["full"])
    assert named["full"].attention == "shared-qk"
    assert named["LSH-2"].settings.items() >= {"bucket_size": 64, "n_hashes": 2}.items()
    assert named["LSH-2"].attention == "shared-qk-lsh"


@pytest.mark.parametrize("label", ["full", "LSH-8"])
def test_attention_can_copy_by_position(label):
    """Queries that are the same half a sequence apart, as a model has to learn them, find the hidden word."""
    length, generator = 64, torch.Generator().manual_seed(0)
    query = 200 * torch.nn.functional.normalize(torch.randn(1, 1, length // 2, 64, generator=generator), dim=-1)
    value = torch.randn(1, 1, length, 64, generator=generator)
    chosen = next(v for v in candidates_of(duplication.attentions(length)) if v.label == label)
    query = torch.cat([query, query], dim=2)
    out = attend(chosen.attention, query, query, value, **chosen.settings)
    copied = (out[:, :, length // 2 :] - value[:, :, : length // 2]).norm(dim=-1) / value.norm(dim=-1).mean()
    assert (copied < 0.2).float().mean() > 0.95


def test_the_model_is_the_papers_in_size():
    model = load_model(duplication.config(64), head="masked-lm", attention="shared-qk")
    layers = model.base_model.encoder.layer
    assert len(layers) == 1
    assert layers[0].intermediate.dense.weight.shape == (256, 256)
    assert layers[0].attention.self.num_attention_heads == 4
    assert model(torch.zeros(1, 64, dtype=torch.long)).logits.shape == (1, 64, 129)
