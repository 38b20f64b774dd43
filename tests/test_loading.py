"""Models and tokenizers that are loaded: what is missing, damaged or of another kind is named."""

import json
import logging
from pathlib import Path

import pytest
from transformers import (
    AlbertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)

from albert_lsh import load_model
from albert_lsh.model.load import ModelError, load_tokenizer
from encoders import batch, save_encoder
from weights import change_weights


@pytest.fixture(scope="module", params=["albert", "bert", "roberta"])
def folder(request, tmp_path_factory):
    return save_encoder(request.param, tmp_path_factory.mktemp(request.param))


def test_a_tokenizer_tells_the_texts_of_a_pair_apart(tmp_path):
    """ALBERT's does not by itself in Transformers 5; a pipeline asks for nothing."""
    words = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁one", "▁two"]
    AlbertTokenizer(vocab=[(word, -float(i)) for i, word in enumerate(words)]).save_pretrained(tmp_path)
    found = load_tokenizer(str(tmp_path))("one", "two one")
    assert found["token_type_ids"] == [0, 0, 0, 1, 1, 1]
    assert found["attention_mask"] == [1] * 6


def test_tokenizers_of_one_name_are_apart():
    first, second = load_tokenizer("mini"), load_tokenizer("mini")
    first.model_max_length = 7
    assert first.add_tokens("unheard-of") == 1
    assert (second.model_max_length, load_tokenizer("mini").model_max_length) == (128, 128)
    assert len(second) == len(load_tokenizer("mini")) == len(first) - 1


def test_a_folder_without_tokenizer_files_has_no_tokenizer(folder):
    with pytest.raises(ModelError, match="no tokenizer files; a vocabulary of special tokens alone"):
        load_tokenizer(folder)


@pytest.mark.parametrize("head", ["masked-lm", "pretraining"])
def test_other_heads_load(folder, head):
    if head == "pretraining" and "roberta" in folder:
        head = "masked-lm"  # RoBERTa was pretrained on masked tokens alone
    model = load_model(folder, head=head, attention="lsh")
    assert model(**batch())[0].shape == (3, 21, 99)


def test_unknown_names_are_errors(folder, tmp_path):
    with pytest.raises(ValueError, match="attention='lhs' is not one of: softmax"):
        load_model(folder, attention="lhs")
    with pytest.raises(ValueError, match="head='classify' is not one of: base, classification"):
        load_model(folder, head="classify")
    with pytest.raises(ModelError, match="has no option 'num_lables'"):
        load_model(folder, num_lables=3)
    with pytest.raises(ModelError, match="has no option 'num_lables'$"):
        load_model("mini", num_lables=3)
    with pytest.raises(ModelError, match=r"has no option 'share'; an attention's settings go into settings="):
        load_model("mini", attention="lsh", share=0.25)
    GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=8)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"\(gpt2\) is not of a supported type: albert, bert, "):
        load_model(str(tmp_path), head="base")


@pytest.mark.parametrize("option", ["is_decoder", "add_cross_attention"])
def test_a_decoder_is_refused(folder, option, tmp_path):
    """Attention of ours sees what comes after a token."""
    config = json.loads((Path(folder) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, option: True}))
    with pytest.raises(ModelError, match=f"{option}=True: no decoder"):
        load_model(str(tmp_path), head="base")


def saved_again(folder, tmp_path, change):
    """A classification model with its weights changed."""
    load_model(folder).save_pretrained(tmp_path)
    change_weights(tmp_path, change)
    return str(tmp_path)


def test_weights_that_are_new_are_named_once_and_refused_on_request(folder, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_model(folder, head="question-answering")
    (said,) = caplog.records
    assert said.getMessage() == f"model={folder!r}: new weights, not in its file: qa_outputs.bias, qa_outputs.weight"
    with pytest.raises(ModelError, match="lacks weights: qa_outputs.bias, qa_outputs.weight$"):
        load_model(folder, head="question-answering", complete=True)

    load_model(folder, head="base", attention="yoso", settings={"conv_kernel_size": 3}).save_pretrained(tmp_path)
    load_model(str(tmp_path), head="base", complete=True)
    with pytest.raises(ModelError, match=r"lacks weights: .*convolution.weight"):
        load_model(folder, head="base", attention="yoso", settings={"conv_kernel_size": 3}, complete=True)
    caplog.clear()
    load_model(str(tmp_path), head="base")
    load_model("mini")  # which has no file
    assert not caplog.records


def test_a_base_model_is_complete_without_a_pooler(folder, tmp_path):
    load_model(folder, head="masked-lm").save_pretrained(tmp_path)
    load_model(str(tmp_path), head="base", complete=True)
    with pytest.raises(ModelError, match="lacks weights"):
        load_model(str(tmp_path), head="classification", complete=True)


def test_weights_of_other_shapes_are_named(folder, tmp_path):
    name = "embeddings.word_embeddings.weight"

    def cut(weights):
        found = next(key for key in weights if key.endswith(name))
        return {**weights, found: weights[found][:-1].clone()}

    with pytest.raises(ModelError, match=rf"{name} is \(98, \d+\) in its file, not \(99, \d+\)$"):
        load_model(saved_again(folder, tmp_path, cut))


def test_truncated_weights_are_named(folder, tmp_path):
    load_model(folder).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ModelError, match="its weights cannot be read: .*deserializ"):
        load_model(str(tmp_path))


def test_a_model_that_cannot_be_reached_is_one_clear_error():
    said = (
        'model=\'no such/model\': no such folder, and the Hub gave no model.*no network. task="mini-mrpc", model="mini"'
    )
    with pytest.raises(ModelError, match=said):
        load_model("no such/model")  # no name of the Hub; it is not asked


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ("x", "albert_lsh='x' of albert_lsh"),
        ({"settings": [1]}, r"settings=\[1\] of albert_lsh"),
        ({"seed": "x"}, "seed='x' of albert_lsh"),
        ({"passes": 3}, "passes=3 of albert_lsh"),
    ],
)
def test_a_damaged_config_is_named(saved, message, tmp_path):
    load_model("mini").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"albert_lsh": saved}))
    with pytest.raises(ModelError, match=f"its config.json is damaged: {message}"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="its config.json cannot be read: "):
        load_model(str(tmp_path))


def test_a_runs_folder_is_no_model_and_the_error_says_where_its_model_is(tmp_path):
    load_model("mini").save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=rf"cannot be read \(a run's folder\? its model is '{tmp_path}/model'\)"):
        load_model(str(tmp_path))
