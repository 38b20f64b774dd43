"""The models that come with the package: small, offline, and better than knowing nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from albert_lsh import load_model, load_tokenizer, pretrained
from albert_lsh.model.config import load_config

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {"nano": ("softmax", {}), "nano-lsh": ("lsh", {"n_hashes": 7, "cluster_size": 4, "global_tokens": 2})}
TEXT = [
    "The town lies on the northern bank of the river, about twenty miles from the border.",
    "It was founded in the twelfth century by a group of monks who came from the south.",
    "During the war most of the houses were destroyed, and the people moved to the hills.",
    "After the end of the war a new bridge was built, and many of the families came back.",
    "In the summer there is a large market in front of the town hall, and visitors come from all over the country.",
    "She was born in London and studied at the university there before she became a member of the parliament.",
    "He played for the national team for ten years and was named the best player of the year in 1978.",
    "The film was released in the United States in May of the same year and received good reviews.",
]


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_it_knows_more_than_its_shape_and_than_the_text_s_own_counts(name):
    """Of every text, each tenth piece is masked, in ten copies."""
    tokenizer = load_tokenizer(name)
    inputs = tokenizer([text for text in TEXT for _ in range(10)], padding=True, return_tensors="pt")
    rows, columns = torch.meshgrid(*map(torch.arange, inputs["input_ids"].shape), indexing="ij")
    masked = ((columns + rows) % 10 == 0) & (columns > 0) & inputs["attention_mask"].bool()
    labels = inputs["input_ids"][masked]
    inputs["input_ids"][masked] = tokenizer.mask_token_id

    def loss(model):
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(**inputs).prediction_logits[masked], labels).item()

    known = load_model(name, head="pretraining")
    attention, settings = SETTINGS[name]
    assert known.config.albert_lsh["attention"] == attention
    assert settings.items() <= known.config.albert_lsh["settings"].items()
    counts = np.bincount(labels, minlength=known.config.vocab_size) + 1
    counting = -np.log(counts / counts.sum())[labels].mean()
    torch.manual_seed(0)
    assert loss(known) < counting < loss(load_model(load_config(name), head="pretraining"))


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
