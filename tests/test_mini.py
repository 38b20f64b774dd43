"""The embedded tasks: schemas of their namesakes, reproducible, disjoint, and nothing for a counter of words."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import ClassLabel, List, Value
from scipy.sparse import hstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from albert_lsh import mini
from albert_lsh.model.load import load_config, load_tokenizer
from albert_lsh.tasks import TASKS

TEXTS = {name: list(TASKS[name].columns) for name in mini.MINI}
SPLITS = {name: ["train", "validation"] for name in mini.MINI}
SPLITS["mini-mnli"] = ["train", "validation_matched", "validation_mismatched"]
CLASSIFICATION = ["mini-mrpc", "mini-sst2", "mini-mnli"]
ANSWERING = ["mini-squad", "mini-squad-v2"]

built = cache(mini.build)


@pytest.mark.parametrize("name", mini.MINI)
def test_schema_is_that_of_the_namesake(name):
    assert list(built(name)) == SPLITS[name]
    if name in ANSWERING:
        answers = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
        features = {**dict.fromkeys(("id", "title", "context", "question"), Value("string")), "answers": answers}
    else:
        texts = dict.fromkeys(TEXTS[name], Value("string"))
        features = {**texts, "label": ClassLabel(names=list(TASKS[name].labels)), "idx": Value("int32")}
    for split in built(name).values():
        assert dict(split.features) == features


@pytest.mark.parametrize("name", mini.MINI)
def test_same_seed_same_examples(name):
    again, other = mini.build(name), mini.build(name, seed=1)
    for split in SPLITS[name]:
        assert again[split].data.table.equals(built(name)[split].data.table)
        assert not other[split].data.table.equals(built(name)[split].data.table)


@cache
def texts(name, split):
    """One tuple of texts per example."""
    return list(zip(*(built(name)[split][column][:] for column in TEXTS[name]), strict=True))


@pytest.mark.parametrize("name", mini.MINI)
def test_no_example_twice(name):
    examples = [example for split in SPLITS[name] for example in texts(name, split)]
    assert len(set(examples)) == len(examples)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_labels_are_balanced(name):
    for split in built(name).values():
        share = np.bincount(split["label"]) / len(split)
        assert np.abs(share - 1 / split.features["label"].num_classes).max() < 0.01
        assert split["idx"][:] == list(range(len(split)))


@pytest.mark.parametrize("name", ANSWERING)
def test_answers_stand_where_they_say(name):
    for split in built(name).values():
        for row in split:
            for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
                assert row["context"][start : start + len(text)] == text
                assert len(re.findall(rf"\b{text}\b", row["context"])) == 1


@pytest.mark.parametrize("name", ANSWERING)
def test_ids_and_share_of_unanswerable_questions(name):
    ids = [i for split in built(name).values() for i in split["id"]]
    assert len(set(ids)) == len(ids)
    for split in built(name).values():
        unanswerable = np.mean([not answers["text"] for answers in split["answers"]])
        assert unanswerable == pytest.approx(0.4 if name == "mini-squad-v2" else 0, abs=0.01)


STUDY = yaml.safe_load((Path(__file__).resolve().parents[1] / "studies" / "mini.yaml").read_text())
MAX_LENGTH = {name: task["max_length"] for name, task in STUDY["tasks"].items()}


@pytest.mark.parametrize("name", mini.MINI)
def test_tokenizer_knows_every_word_and_cuts_nothing(name):
    tokenizer = load_tokenizer("mini")
    for split in SPLITS[name]:
        pairs = [example if len(example) == 2 else example[0] for example in texts(name, split)]
        encoded = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(pairs)]
        assert not any(tokenizer.unk_token_id in ids for ids in encoded)
        assert max(map(len, encoded)) <= MAX_LENGTH[name]


def test_special_ids_are_those_of_albert():
    tokenizer, config = load_tokenizer("mini"), load_config("mini")
    assert tokenizer.pad_token_id == config.pad_token_id
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id) == (config.bos_token_id, config.eos_token_id)
    assert tokenizer.model_max_length == config.max_position_embeddings


@pytest.mark.parametrize("per_field", [True, False], ids=["per-field", "concatenated"])
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_counting_words_does_not_help(name, per_field):
    def fields(split):
        return list(zip(*texts(name, split), strict=True)) if per_field else [[" ".join(t) for t in texts(name, split)]]

    counters = [CountVectorizer().fit(field) for field in fields("train")]

    def counts(split):
        return hstack([counter.transform(field) for counter, field in zip(counters, fields(split), strict=True)])

    model = LogisticRegression(max_iter=300).fit(counts("train"), built(name)["train"]["label"][:])
    for split in SPLITS[name][1:]:
        score = model.score(counts(split), built(name)[split]["label"][:])
        assert score < 1 / len(model.classes_) + 0.07
