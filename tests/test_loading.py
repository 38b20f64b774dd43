"""Models and tokenizers that are loaded: what is missing, damaged or of another kind is named; and a saved model says
the same in another process, whoever loads it there."""

import copy
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AlbertTokenizer, AutoModel, AutoTokenizer, BertTokenizer, PhobertTokenizer, pipeline

from albert_lsh import (
    audit,
    find_task,
    fit,
    load_model,
    load_tokenizer,
    pad_inputs,
    recompute_activations,
    switch_attention,
)
from albert_lsh.encoders import ModelError
from albert_lsh.model.projections import drop_residual
from albert_lsh.run import Run
from encoders import batch, change_weights, config_of, save_encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_encoder("roberta", tmp_path_factory.mktemp("roberta"))


def test_a_tokenizer_tells_the_texts_of_a_pair_apart(folder, tmp_path):
    """ALBERT's does not by itself in Transformers 5; a pipeline asks for nothing."""
    words = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁one", "▁two"]
    AlbertTokenizer(vocab=[(word, -float(i)) for i, word in enumerate(words)]).save_pretrained(tmp_path)
    encoded = load_tokenizer(str(tmp_path))("one", "two one")
    assert encoded["token_type_ids"] == [0, 0, 0, 1, 1, 1]
    assert encoded["attention_mask"] == [1] * 6
    with pytest.raises(ModelError, match="no tokenizer files; a vocabulary of special tokens alone"):
        load_tokenizer(folder)


SENTENCE = "Where did Anna go ? to the park lost a ball in this film was good"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(SENTENCE.split())]


def save_with_bert_s_tokenizer(path, kind, vocabulary=99, **more):
    """As klue/roberta-base is, if kind is "roberta"."""
    BertTokenizer(vocab={word: n for n, word in enumerate(WORDS)}, do_lower_case=False).save_pretrained(path)
    AutoModel.from_config(config_of(kind, vocab_size=vocabulary, **more)).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(("kind", "types"), [("bert", 2), ("bert", 1), ("roberta", 1), ("distilbert", 0)])
def test_token_types_are_those_that_tokenizer_and_model_have(kind, types, tmp_path):
    """In predictions, pipelines and an audit too, which are given a tokenizer as Transformers loads it."""
    folder = save_with_bert_s_tokenizer(tmp_path, kind, **{"type_vocab_size": types} if types else {})
    tokenizer, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer("Where did Anna go?", "Anna lost a ball", return_tensors="pt")
    assert ("token_type_ids" in inputs) == (types == 2)
    model = load_model(folder)
    assert model(**inputs).logits.shape == (1, 2)
    task = find_task("mini-mrpc")
    (answer,) = task.answer(model, tokenizer, [{"sentence1": "Anna lost a ball", "sentence2": "a park"}], 1)
    assert answer["score"] >= 0.5
    answers = pipeline(
        "extractive-question-answering", model=load_model(folder, head="question-answering"), tokenizer=theirs
    )
    assert answers(question="Where did Anna go?", context="Anna lost a ball in the park")["answer"]
    assert audit(load_model(folder, head="base"), ["Anna lost a ball"] * 2, theirs, seconds=0).advice
    assert "token_type_ids" in theirs.model_input_names  # somebody's own stays as it is


def test_a_tokenizer_that_knows_more_than_the_model_is_refused_wherever_they_meet(tmp_path):
    """transformers #12763."""
    folder = save_with_bert_s_tokenizer(tmp_path, "bert", len(WORDS) - 1)
    message = f"its tokenizer knows {len(WORDS)} tokens, its weights only {len(WORDS) - 1}"
    model, theirs = load_model(folder, head="question-answering"), AutoTokenizer.from_pretrained(folder)
    meetings = [
        lambda: load_tokenizer(folder),
        lambda: fit(Run.parse({"task": "mini-mrpc", "model": folder, "output_dir": str(tmp_path / "run")})),
        lambda: pipeline("extractive-question-answering", model=model, tokenizer=theirs),
        lambda: audit(model, ["Anna lost a ball"], theirs),
    ]
    for meet in meetings:
        with pytest.raises(ModelError, match=message):
            meet()
    model.resize_token_embeddings(len(WORDS))
    pipeline("extractive-question-answering", model=model, tokenizer=theirs)


def test_a_tokenizer_in_python_alone_reads_long_texts_and_is_refused_for_paragraphs(tmp_path):
    """PhoBERT's and BERTweet's say no token's place (BERTweet #36)."""
    (tmp_path / "vocab.txt").write_text("".join(f"{letter}</w> 1\n" for letter in "abcdefghij"))
    (tmp_path / "bpe.codes").write_text("")
    PhobertTokenizer(*(str(tmp_path / name) for name in ("vocab.txt", "bpe.codes"))).save_pretrained(tmp_path)
    AutoModel.from_config(config_of("roberta")).save_pretrained(tmp_path)
    tokenizer, task = load_tokenizer(str(tmp_path)), find_task("mini-mrpc")
    assert not tokenizer.is_fast
    texts = ["a b c d e " * 500, "f g"]
    rows = Dataset.from_dict({"sentence1": texts, "sentence2": ["h i", "j " * 900], "label": [0, 1]})
    encoded = task.encode(rows, tokenizer, 16)
    assert encoded["length"] == [16, 16]
    assert encoded[1]["input_ids"] == tokenizer("f g", "j " * 10)["input_ids"]
    (answer,) = task.answer(load_model(str(tmp_path)), tokenizer, [{"sentence1": texts[0]}], 1)
    assert answer["score"] >= 0.5
    run = {"task": "mini-squad", "model": str(tmp_path), "output_dir": str(tmp_path / "run"), "max_length": 32}
    refused = "tokenizer PhobertTokenizer is written in Python alone and gives no offsets .*take a model with"
    with pytest.raises(ValueError, match=refused):
        fit(Run.parse(run))
    model = load_model(str(tmp_path), head="question-answering")
    with pytest.raises(ValueError, match=refused):
        pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)(QUESTION)


def test_other_heads_load():
    for kind, head in (("albert", "masked-lm"), ("roberta", "masked-lm"), ("bert", "pretraining")):
        assert load_model(config_of(kind), head=head, attention="key-clusters")(**batch())[0].shape == (3, 21, 99)


def test_weights_that_are_new_are_named_once_and_refused_on_request(folder, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_model(folder, head="question-answering")
    (record,) = caplog.records
    assert record.getMessage() == f"model={folder!r}: new weights, not in its file: qa_outputs.bias, qa_outputs.weight"
    with pytest.raises(ModelError, match="lacks weights: qa_outputs.bias, qa_outputs.weight$"):
        load_model(folder, head="question-answering", complete=True)

    convolved = {"head": "base", "attention": "yoso", "settings": {"conv_kernel_size": 3}}
    load_model(folder, **convolved).save_pretrained(tmp_path / "convolved")
    caplog.clear()
    load_model(str(tmp_path / "convolved"), head="base", complete=True)
    load_model("mini")  # which has no file
    assert not caplog.records
    with pytest.raises(ModelError, match=r"lacks weights: .*convolution.weight"):
        load_model(folder, **convolved, complete=True)
    load_model(folder, head="masked-lm").save_pretrained(tmp_path / "words")
    load_model(str(tmp_path / "words"), head="base", complete=True)  # a base model is complete without a pooler


def test_damaged_weights_are_named(folder, tmp_path):
    load_model(folder).save_pretrained(tmp_path)
    name = "embeddings.word_embeddings.weight"
    change_weights(tmp_path, lambda weights: {k: w[:-1].clone() if k.endswith(name) else w for k, w in weights.items()})
    with pytest.raises(ModelError, match=rf"{name} is \(98, \d+\) in its file, not \(99, \d+\)$"):
        load_model(str(tmp_path))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ModelError, match=r"its weights \(model.safetensors\) cannot be read: .*deserializ"):
        load_model(str(tmp_path))


def test_a_damaged_config_is_named(tmp_path):
    load_model("mini").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="its config.json cannot be read: "):
        load_model(str(tmp_path))


def test_a_model_that_cannot_be_reached_is_one_clear_error():
    message = 'model=.no such/model.: no such folder, and the Hub gave no model.*no network. task="mini-mrpc", model="m'
    with pytest.raises(ModelError, match=message):
        load_model("no such/model")  # no name of the Hub; it is not asked


def test_a_runs_folder_is_no_model_and_the_error_says_where_its_model_is(tmp_path):
    load_model("mini").save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=rf"cannot be read \(a run's folder\? its model is '{tmp_path}/model'\)"):
        load_model(str(tmp_path))


LSH = {"n_hashes": 2, "cluster_size": 4}
PAIR = {"text": "The town lies on the northern bank of the river.", "text_pair": "It was founded by a group of monks."}
CONTEXT = "She was born in London in 1882 and studied there before she became a member of the parliament. " * 12
QUESTION = {"question": "Where was she born?", "context": CONTEXT}
MADE = {
    "nano": lambda: load_model("nano"),
    "nano-key-clusters": lambda: load_model("nano-key-clusters", seed=7),
    "some-passes": lambda: switch_attention(load_model("nano"), "key-clusters", LSH, 5, passes=[1, 4]),
    "reformer": lambda: load_model("nano", attention="reformer", settings={"bucket_size": 4}, seed=3),
    "convolution": lambda: load_model("nano", attention="yoso-e", settings={"conv_kernel_size": 3}),
    "answers": lambda: load_model("nano-key-clusters", head="question-answering"),
}
OWN_WEIGHTS = ("reformer", "convolution")  # which Transformers' own classes do not know
# In the other process, each is loaded by our own functions and, where these know it, by Transformers' own.
ASK = """
import json, sys
from pathlib import Path
from transformers import pipeline
import albert_lsh
from test_loading import OWN_WEIGHTS, say

said = {}
for folder in map(Path, sys.argv[1:]):
    head = "question-answering" if folder.name == "answers" else "classification"
    said[folder.name] = [say(albert_lsh.load_model(str(folder), head=head), albert_lsh.load_tokenizer(str(folder)))]
    if folder.name not in OWN_WEIGHTS:
        said[folder.name].append(say(str(folder), None, head))
print(json.dumps(said))
"""


def say(model, tokenizer, head=None):
    """What a pipeline says with a model, or with the folder of one."""
    if head == "question-answering" or hasattr(model, "qa_outputs"):
        return pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)(QUESTION)
    return pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)(PAIR)


def elsewhere(code, *arguments):
    """What another process prints last, as JSON."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_pipelines_say_the_same_in_another_process(tmp_path):
    said = {}
    for name, make in MADE.items():
        torch.manual_seed(0)
        model, tokenizer = make(), load_tokenizer("nano")
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        said[name] = say(model, tokenizer)
    for name, answers in elsewhere(ASK, *tmp_path.iterdir()).items():
        assert answers == [said[name]] * (1 if name in OWN_WEIGHTS else 2)
    assert len({json.dumps(answer) for answer in said.values()}) == len(MADE)  # or all models might be one


WHOLE = {
    "recomputed": lambda: recompute_activations(load_model("mini", attention="lsh")),
    "reformer": lambda: load_model("mini", attention="reformer", settings={"bucket_size": 4}),
    "convolution": lambda: load_model(config_of("bert"), attention="yoso", settings={"conv_kernel_size": 3}),
    "padded": lambda: pad_inputs(load_model("mini", head="base"), 32),
    "no residual": lambda: drop_residual(load_model("mini", attention="lsh", settings=LSH)),
    "bert without residual": lambda: drop_residual(load_model(config_of("bert"))),
    "padded and recomputed": lambda: recompute_activations(pad_inputs(load_model("mini", attention="reformer"), 32)),
}
READ = """
import json, sys
import torch

models = [torch.load(file, weights_only=False) for file in sys.argv[1:]]
from encoders import batch
print(json.dumps([model(**batch(32))[0].tolist() for model in models]))
"""


def test_whole_models_are_pickled_and_say_the_same_in_another_process(tmp_path):
    """By torch.save; spawned processes get their models in this way too."""
    expected = []
    for name, make in WHOLE.items():
        torch.save(model := make(), tmp_path / name)
        copied = [copy.deepcopy(model), torch.load(tmp_path / name, weights_only=False)]
        expected.append(model(**batch(32))[0])
        assert all(torch.equal(again(**batch(32))[0], expected[-1]) for again in copied)
        assert copy.deepcopy(copied[1]).state_dict().keys() == model.state_dict().keys()
    outputs = elsewhere(READ, *(tmp_path / name for name in WHOLE))
    assert outputs == [out.tolist() for out in expected]
