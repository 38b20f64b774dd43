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

from albert_lsh import load_model, pretrained
from albert_lsh.model.load import load_config, load_tokenizer
from albert_study.experiments.corpus import IGNORED, Pieces, make_example

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
]


@pytest.fixture(scope="module")
def examples():
    """Masked sequences of two or three sentences, and their batch."""
    tokenizer = load_tokenizer("nano")
    pieces, ids = Pieces.of(tokenizer), [np.array(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in TEXT]
    made = []
    for n in range(48):
        parts = ids[n % 5 : n % 5 + 3]
        borders = np.cumsum([len(part) for part in parts])[:-1]
        made.append(make_example(np.concatenate(parts), borders, pieces, np.random.default_rng(n)))
    return DataCollatorForTokenClassification(tokenizer)(made)


def mlm_loss(model, batch):
    with torch.no_grad():
        logits = model(**{name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")})
    return torch.nn.functional.cross_entropy(logits.prediction_logits.flatten(0, 1), batch["labels"].flatten()).item()


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_it_knows_more_than_its_shape_and_than_the_text_s_own_counts(name, examples):
    known = load_model(name, head="pretraining")
    attention, settings = SETTINGS[name]
    assert known.config.albert_lsh["attention"] == attention
    assert settings.items() <= known.config.albert_lsh["settings"].items()
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
    for run, folder in zip(("nano-softmax", "nano-lsh"), folders, strict=True):
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
