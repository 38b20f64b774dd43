"""What comes with the package: tasks that are reproducible, disjoint, balanced, and nothing for a counter of words; and
models that are small and better than knowing nothing."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

from albert_lsh import load_model, mini, pretrained
from albert_lsh.model.load import load_config, load_tokenizer
from albert_lsh.tasks import TASKS

CLASSIFICATION = ["mini-mrpc", "mini-sst2", "mini-mnli"]
ROOT = Path(__file__).resolve().parents[1]
STUDY = yaml.safe_load((ROOT / "studies" / "mini.yaml").read_text())
built = cache(mini.build)


@cache
def texts(name, split):
    """One tuple of texts per example."""
    return list(zip(*(built(name)[split][column][:] for column in TASKS[name].columns), strict=True))


@pytest.mark.parametrize("name", mini.MINI)
def test_the_same_seed_has_the_same_examples_and_none_of_them_twice(name):
    again, other = mini.build(name), mini.build(name, seed=1)
    for split, rows in built(name).items():
        assert again[split].data.table.equals(rows.data.table)
        assert not other[split].data.table.equals(rows.data.table)
    examples = [example for split in built(name) for example in texts(name, split)]
    assert len(set(examples)) == len(examples)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_labels_are_balanced(name):
    for split in built(name).values():
        share = np.bincount(split["label"]) / len(split)
        assert np.abs(share - 1 / split.features["label"].num_classes).max() < 0.01
        assert split["idx"][:] == list(range(len(split)))


@pytest.mark.parametrize(("name", "unanswerable"), [("mini-squad", 0), ("mini-squad-v2", 0.4)])
def test_answers_stand_where_they_say_or_there_are_none(name, unanswerable):
    ids = [i for split in built(name).values() for i in split["id"]]
    assert len(set(ids)) == len(ids)
    for split in built(name).values():
        assert np.mean([not answers["text"] for answers in split["answers"]]) == pytest.approx(unanswerable, abs=0.01)
        for context, answers in zip(split["context"], split["answers"], strict=True):
            for text, start in zip(answers["text"], answers["answer_start"], strict=True):
                assert [match.start() for match in re.finditer(rf"\b{text}\b", context)] == [start]


@pytest.mark.parametrize("name", mini.MINI)
def test_the_tokenizer_knows_every_word_and_cuts_nothing(name):
    tokenizer, config = load_tokenizer("mini"), load_config("mini")
    assert (tokenizer.pad_token_id, tokenizer.model_max_length) == (config.pad_token_id, config.max_position_embeddings)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (config.bos_token_id, config.eos_token_id)
    for split in built(name):
        pairs = [example if len(example) == 2 else example[0] for example in texts(name, split)]
        encoded = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(pairs)]
        assert not any(tokenizer.unk_token_id in ids for ids in encoded)
        assert max(map(len, encoded)) <= STUDY["tasks"][name]["max_length"]


@pytest.mark.parametrize("per_field", [True, False], ids=["per-field", "concatenated"])
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_counting_words_does_not_help(name, per_field):
    def fields(split):
        return list(zip(*texts(name, split), strict=True)) if per_field else [[" ".join(t) for t in texts(name, split)]]

    counters = [CountVectorizer().fit(field) for field in fields("train")]

    def counts(split):
        return hstack([counter.transform(field) for counter, field in zip(counters, fields(split), strict=True)])

    model = LogisticRegression(max_iter=300).fit(counts("train"), built(name)["train"]["label"][:])
    for split in [*built(name)][1:]:
        assert model.score(counts(split), built(name)[split]["label"][:]) < 1 / len(model.classes_) + 0.07


SETTINGS = {
    "nano": ("softmax", {}),
    "nano-key-clusters": ("key-clusters", {"n_hashes": 7, "cluster_size": 4, "global_tokens": 2}),
}
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
    for run, folder in zip(("nano-softmax", "nano-key-clusters"), folders, strict=True):
        record = json.loads((ROOT / "results" / "pretraining" / run / "result.json").read_text())
        card = (folder / "README.md").read_text()
        assert f"loss {record['metrics']['mlm_loss']:.3f}" in card
        assert record["environment"]["commit"] in card
        assert f"{record['tokens']['trained']:,}" in card
