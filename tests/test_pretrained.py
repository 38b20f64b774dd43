"""The models that come with the package: small, offline, and better than knowing nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DataCollatorForTokenClassification

from albert_lsh import fit, load_model, pretrained
from albert_lsh.model.load import load_config, load_tokenizer
from albert_study.experiments.corpus import IGNORED, Pieces, make_example
from test_train import make

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {"nano": ("softmax", {}), "nano-lsh": ("lsh", {"n_hashes": 7, "cluster_size": 4, "global_tokens": 2})}
TEXT = [
    "The town lies on the northern bank of the river, about twenty miles from the border.",
    "It was founded in the twelfth century by a group of monks who came from the south.",
    "During the war most of the houses were destroyed, and the people moved to the hills.",
    "After the end of the war a new bridge was built, and many of the families came back.",
    "The old church, which was built in 1842, is now a museum of the history of the region.",
    "In the summer there is a large market in front of the town hall, and visitors come from all over the country.",
    "The local school has about three hundred students and was the first in the state to teach music.",
    "She was born in London and studied at the university there before she became a member of the parliament.",
    "He played for the national team for ten years and was named the best player of the year in 1978.",
    "The film was released in the United States in May of the same year and received good reviews.",
]


@pytest.fixture(scope="module")
def examples():
    """Masked sequences of two or three sentences, and their batch."""
    tokenizer = load_tokenizer("nano")
    pieces, ids = Pieces.of(tokenizer), [np.array(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in TEXT]
    made = []
    for n in range(48):
        parts = ids[n % 8 : n % 8 + 3]
        borders = np.cumsum([len(part) for part in parts])[:-1]
        made.append(make_example(np.concatenate(parts), borders, pieces, np.random.default_rng(n)))
    return DataCollatorForTokenClassification(tokenizer)(made)


def mlm_loss(model, batch):
    labels = batch["labels"]
    inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    with torch.no_grad():
        logits = model(**inputs).prediction_logits
    return torch.nn.functional.cross_entropy(logits[labels != IGNORED], labels[labels != IGNORED]).item()


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_it_knows_more_than_its_shape_and_than_the_text_s_own_counts(name, examples):
    known = load_model(name, head="pretraining")
    chosen = known.config.albert_lsh
    attention, settings = SETTINGS[name]
    assert chosen["attention"] == attention
    assert settings.items() <= chosen["settings"].items()
    torch.manual_seed(0)
    new = load_model(load_config(name), head="pretraining")
    labels = examples["labels"][examples["labels"] != IGNORED].numpy()
    ids = np.concatenate([load_tokenizer(name)(text, add_special_tokens=False)["input_ids"] for text in TEXT])
    counts = np.bincount(ids, minlength=known.config.vocab_size) + 1
    counting = -np.log(counts / counts.sum())[labels].mean()
    assert mlm_loss(known, examples) < counting
    assert mlm_loss(new, examples) > counting


def test_together_they_are_small_and_their_cards_are_of_their_records():
    folders = [Path(pretrained.folder_of(name)) for name in pretrained.NAMES]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) < 12e6
    for name, folder in zip(pretrained.NAMES, folders, strict=True):
        run = {"nano": "nano-softmax", "nano-lsh": "nano-lsh"}[name]
        record = json.loads((ROOT / "results" / "pretraining" / run / "result.json").read_text())
        card = (folder / "README.md").read_text()
        assert f"loss {record['metrics']['mlm_loss']:.3f}" in card
        assert record["environment"]["commit"] in card
        assert f"{record['tokens']['trained']:,}" in card


def test_they_are_there_without_a_network():
    code = "from albert_lsh import load_model, load_tokenizer, pretrained\n"
    code += "for name in pretrained.NAMES: load_model(name), load_tokenizer(name)"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-c", code], env=offline, check=True, capture_output=True)


def test_it_is_fine_tuned_with_its_attention(tmp_path):
    trained = fit(make(tmp_path, model="nano-lsh", attention_settings=SETTINGS["nano-lsh"][1], epochs=1))
    assert trained.model.config.albert_lsh["attention"] == "lsh"
    assert trained.history["train_loss"].notna().all()
    assert 0 < trained.record["attended_share"] < 1
