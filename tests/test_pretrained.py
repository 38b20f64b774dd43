"""The models that come with the package: small, offline, and better than knowing nothing."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from albert_lsh import load_model, pretrained
from albert_lsh.model.load import load_config, load_tokenizer

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


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_it_knows_more_than_its_shape_and_than_the_text_s_own_counts(name):
    """The loss of every seventh token, which is masked."""
    known, tokenizer = load_model(name, head="pretraining"), load_tokenizer(name)
    attention, settings = SETTINGS[name]
    assert known.config.albert_lsh["attention"] == attention
    assert settings.items() <= known.config.albert_lsh["settings"].items()
    torch.manual_seed(0)
    new, losses = load_model(load_config(name), head="pretraining"), dict.fromkeys(("known", "new", "counts"), 0.0)
    ids = tokenizer(" ".join(TEXT), return_tensors="pt").input_ids
    counts = torch.bincount(ids[0], minlength=known.config.vocab_size) + 1
    for first in range(1, 8):
        masked = ids.clone()
        masked[0, first:-1:7] = tokenizer.mask_token_id
        target = ids[0, first:-1:7]
        with torch.no_grad():
            for model, which in ((known, "known"), (new, "new")):
                losses[which] += cross_entropy(model(masked).prediction_logits[0, first:-1:7], target).item()
        losses["counts"] += -(counts / counts.sum()).log()[target].mean().item()
    assert losses["known"] < losses["counts"] < losses["new"]


def test_together_they_are_small_and_their_cards_are_of_their_records():
    folders = [Path(pretrained.folder_of(name)) for name in pretrained.NAMES]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) < 12e6
    for run, folder in zip(("nano-softmax", "nano-lsh"), folders, strict=True):
        record = json.loads((ROOT / "results" / "pretraining" / run / "result.json").read_text())
        card = (folder / "README.md").read_text()
        assert f"loss {record['metrics']['mlm_loss']:.3f}" in card
        assert record["environment"]["commit"] in card
        assert f"{record['tokens']['trained']:,}" in card
