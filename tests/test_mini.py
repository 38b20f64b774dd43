"""The embedded tasks: reproducible, disjoint, balanced, and nothing for a counter of words."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from albert_lsh import mini
from albert_lsh.model.load import load_config, load_tokenizer
from albert_lsh.tasks import TASKS

CLASSIFICATION = ["mini-mrpc", "mini-sst2", "mini-mnli"]
STUDY = yaml.safe_load((Path(__file__).resolve().parents[1] / "studies" / "mini.yaml").read_text())
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
