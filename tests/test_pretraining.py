"""Pretraining: an interrupted run, two devices, continuing; small, but as it is really done."""

import json
import math
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch
from accelerate import debug_launcher
from accelerate.state import AcceleratorState
from transformers import trainer
from transformers.utils import notebook

from albert_lsh import load_model, train
from albert_lsh.encoders import ModelError, attention_modules, max_positions
from albert_lsh.run import ParameterError
from albert_study.compare import gaps
from albert_study.experiments import pretrain as pretrain_module
from albert_study.experiments.corpus import CorpusError
from albert_study.experiments.pretrain import main, pretrain
from albert_study.experiments.pretrain_recipe import Pretraining
from albert_study.records import load
from test_corpus import learn_tokenizer, sentences, write_text

HASHING = {"attention": "key-clusters", "attention_settings": {"n_hashes": 3, "cluster_size": 4}}
SMALL = {"max_length": 64, "steps": 24, "batch_size": 4, "eval_steps": 8, "eval_sequences": 8, "precision": "fp32"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A text and its tokenizer, as parameters of a small run."""
    folder = tmp_path_factory.mktemp("text")
    learn_tokenizer(sentences()).save_pretrained(folder / "tokenizer")
    return {**SMALL, "text": str(write_text(folder / "text.txt")), "tokenizer": str(folder / "tokenizer")}


def run_in(folder, parameters, **more):
    return pretrain(Pretraining.parse({**parameters, "output_dir": str(folder), **more}))


@pytest.fixture(scope="module")
def undisturbed(small, tmp_path_factory):
    """A finished run that hashes."""
    folder = tmp_path_factory.mktemp("run")
    return folder, run_in(folder, small | HASHING)


def same_weights(one, other):
    return all(torch.equal(weight, other.state_dict()[name]) for name, weight in one.state_dict().items())


def test_a_run_leaves_a_model_its_curve_and_its_record(small, undisturbed, tmp_path):
    folder, done = undisturbed
    record, each = json.loads((folder / "result.json").read_text()), pd.read_csv(folder / "held-out.csv")
    left = sorted(path.name for path in folder.iterdir() if path.name != ".run.lock")
    assert left == ["held-out.csv", "history.csv", "model", "result.json"]
    assert record["parameters"]["text"] == "text.txt"  # no folder of the machine
    assert record["tokens"]["trained"] == pytest.approx(24 * 4 * 50, rel=0.25)
    assert done.history["step"].iloc[0] == 0  # what the first weights are worth
    assert done.history["mlm_loss"].iloc[0] < math.log(done.model.config.vocab_size) - 1  # guessing has the logarithm
    assert record["metrics"]["mlm_loss"] < done.history["mlm_loss"].iloc[0]
    assert 0 < record["counting"]["mlm_accuracy"] < 0.5
    assert 0 < record["attended_share"] < record["full_cost"]  # mean keys are compared with besides
    assert len(each) == record["sequences"]["held_out"]
    assert each["lost"].sum() / each["tokens"].sum() == pytest.approx(record["metrics"]["mlm_loss"])
    assert each["order"].mean() == pytest.approx(record["metrics"]["sop_accuracy"])
    loaded = load_model(str(folder / "model"), head="pretraining")
    assert loaded.config.albert_lsh["attention"] == "key-clusters"
    assert same_weights(done.model, loaded)
    again = run_in(folder, small | HASHING)  # is read, not made
    assert (again.record, len(again.tokenizer)) == (record, len(done.tokenizer))
    pd.testing.assert_frame_equal(again.history, done.history)
    with pytest.raises(
        ParameterError, match="the result of another run, made with attention='key-clusters', not 'softmax'"
    ):
        run_in(folder, small)
    with pytest.raises(CorpusError, match="has changed since"):
        run_in(folder, small | HASHING, text=longer_text(small, tmp_path))


def longer_text(small, folder):
    """Another file of the same name."""
    text = Path(small["text"])
    (folder / text.name).write_text(f"{text.read_text()}\nOne sentence more.\n")
    return str(folder / text.name)


def test_interrupted_it_ends_as_if_undisturbed(small, undisturbed, tmp_path, killed_after):
    killed_after(11, run_in, tmp_path, small | HASHING)
    assert (tmp_path / "checkpoints" / "checkpoint-8").exists()
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(ParameterError, match="holds checkpoints of a run with another learning_rate"):
        run_in(tmp_path, small | HASHING, learning_rate=1e-4)
    (tmp_path / "other").mkdir()
    with pytest.raises(ParameterError, match="holds checkpoints of a run with another text_revision"):
        run_in(tmp_path, small | HASHING, text=longer_text(small, tmp_path / "other"))
    done = run_in(tmp_path, small | HASHING)
    assert done.history.equals(undisturbed[1].history)
    assert done.record["metrics"] == undisturbed[1].record["metrics"]
    assert same_weights(undisturbed[1].model, done.model)


def on_a_device(words, node=False):
    """`main` in a process that `debug_launcher` has forked; it may count itself the first of its node."""
    os.environ |= {"LOCAL_RANK": "0"} if node else {}
    AcceleratorState._reset_state(reset_partial_state=True)  # the parent's, a single device
    train.SAVE_AFTER = 600 * torch.distributed.get_rank()  # one device would save by its clock, and wait for the other
    assert main(words) == 0


def test_two_devices_equal_one_with_twice_the_batch(small, tmp_path):
    """Rounding may put a token into another bucket, which was seen to change a loss by 2e-4; other hashes on one of the
    two devices change it by 1.5e-3."""
    parameters = {**small, **HASHING, "steps": 3, "eval_steps": 3, "accumulation": 2, "device": "cpu"}
    one = run_in(tmp_path / "one", parameters)
    halves = {**parameters, "batch_size": 2, "output_dir": str(tmp_path / "two")}
    words = [f"{name}={json.dumps(value) if isinstance(value, dict) else value}" for name, value in halves.items()]
    debug_launcher(on_a_device, (words,), num_processes=2)
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    assert (two["devices"], two["tokens"]) == (2, one.record["tokens"])
    assert two["metrics"] == pytest.approx(one.record["metrics"], rel=1e-3)
    held_out = [pd.read_csv(tmp_path / name / "held-out.csv")["tokens"].tolist() for name in ("one", "two")]
    assert held_out[0] == held_out[1]
    curve = pd.read_csv(tmp_path / "two" / "history.csv")["train_loss"].dropna().to_numpy()
    assert curve == pytest.approx(one.history["train_loss"].dropna().to_numpy(), rel=5e-4)


def test_two_nodes_learn_one_tokenizer_in_the_folder_that_both_see(small, tmp_path):
    parameters = {**small, "vocabulary": 150, "steps": 1, "eval_steps": 1, "device": "cpu", "output_dir": tmp_path}
    words = [f"{name}={value}" for name, value in parameters.items() if name != "tokenizer"]
    debug_launcher(on_a_device, (words, True), num_processes=2)
    assert json.loads((tmp_path / "result.json").read_text())["devices"] == 2
    assert 50 < json.loads((tmp_path / "model" / "config.json").read_text())["vocab_size"] <= 150


def test_a_run_goes_on_with_another_attention_and_longer_positions(small, undisturbed, tmp_path, monkeypatch):
    bars = []
    monkeypatch.setattr(trainer, "DEFAULT_PROGRESS_CALLBACK", notebook.NotebookProgressCallback)
    monkeypatch.setattr(notebook, "html_progress_bar", lambda *values: str(bars.append(values)))
    start = {"start": str(undisturbed[0] / "model"), "tokenizer": None, "learning_rate": 1e-12, "weight_decay": 0}
    again = run_in(tmp_path / "out", small | start, max_length=700, steps=2, eval_steps=2, eval_sequences=4)
    assert max_positions(again.model.config) == 700
    assert again.model.config.albert_lsh["attention"] == "softmax"
    models = (undisturbed[1].model, again.model)
    before, after = (m.get_parameter("albert.embeddings.position_embeddings.weight") for m in models)
    torch.testing.assert_close(after, torch.cat([before, before[:188]]), atol=1e-6, rtol=0)
    assert bars
    assert not [values for values in bars if None in values]  # a bar said None until the first step


@pytest.mark.parametrize(("kind", "order"), [("bert", None), ("bert", False), ("roberta", None), ("modernbert", None)])
def test_every_kind_is_pretrained_and_gone_on_with_at_more_positions(small, tmp_path, kind, order):
    parameters = {**small, "tokenizer": None, "vocabulary": 320, "kind": kind, "sentence_order": order, "steps": 8}
    done = run_in(tmp_path / "new", parameters, attention="yoso")
    asked = kind == "bert" and order is None
    assert done.record["metrics"].keys() == {"mlm_loss", "mlm_accuracy", *(["sop_accuracy"] if asked else [])}
    assert done.record["counting"].keys() == done.record["metrics"].keys()
    each = pd.read_csv(tmp_path / "new" / "held-out.csv")
    assert each["lost"].sum() / each["tokens"].sum() == pytest.approx(done.record["metrics"]["mlm_loss"])
    losses = done.history["mlm_loss"].dropna()
    assert losses.iloc[0] == pytest.approx(math.log(done.model.config.vocab_size), abs=0.3)  # it begins with nothing
    assert losses.iloc[-1] < losses.iloc[0] - 0.3
    assert done.model.config.model_type == kind
    assert len(attention_modules(done.model)) == 6  # layers of their own
    if order is False:  # differs in its head alone
        return
    start = {"start": str(tmp_path / "new" / "model"), "kind": kind, "tokenizer": None, "learning_rate": 1e-12}
    again = run_in(tmp_path / "on", small | start, max_length=700, steps=1, eval_steps=1, eval_sequences=4)
    assert max_positions(again.model.config) == 700
    if kind != "modernbert":  # which computes its positions
        name = f"{kind}.embeddings.position_embeddings.weight"
        before, after = (model.get_parameter(name) for model in (done.model, again.model))
        reserved = len(before) - 512
        torch.testing.assert_close(after[:-188], before, atol=1e-6, rtol=0)
        torch.testing.assert_close(after[-188:], before[reserved : reserved + 188], atol=1e-6, rtol=0)
    with pytest.raises(ParameterError, match=f"is of kind='{kind}', not 'albert'"):
        run_in(tmp_path / "none", small | start, kind="albert")


def test_roberta_has_no_order_of_sentences():
    with pytest.raises(ParameterError, match="sentence_order=True: a model of kind='roberta' has no head for it"):
        Pretraining.parse({"kind": "roberta", "sentence_order": True})


def test_a_text_that_is_too_short_and_a_start_that_is_not_there(small, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("The food was dull.", encoding="utf-8")
    parameters = {**small, "text": str(tmp_path / "short.txt"), "output_dir": str(tmp_path / "run")}
    assert main([f"{name}={value}" for name, value in parameters.items()]) == 2
    assert re.search(r"short\.txt.* is too short: 1 sequence\(s\) of up to 64 tokens", capsys.readouterr().err)
    with pytest.raises(ModelError, match="none"):
        run_in(tmp_path, small, start=str(tmp_path / "none"), tokenizer=None)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["size=nano", "recompute"], "'recompute' is not name=value"), (["steps=1", "steps=2"], "'steps' comes twice")],
)
def test_a_word_that_names_no_value_is_an_error(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_another_process_finished_meanwhile_is_read(small, undisturbed, tmp_path, monkeypatch):
    @contextmanager
    def freed_when_finished(folder):
        shutil.copytree(undisturbed[0], folder, dirs_exist_ok=True)
        yield

    monkeypatch.setattr(pretrain_module, "lock", freed_when_finished)
    monkeypatch.setattr(pretrain_module, "train", None)
    assert run_in(tmp_path, small | HASHING).record["metrics"] == undisturbed[1].record["metrics"]


def test_unnamed_pretrainings_that_differ_have_folders_of_their_own():
    default = {"attention_settings": {"share": 0.5}, "learning_rate": 1e-3, "resume": False}
    sweep = [{}, {"text": "pages.txt"}, {"learning_rate": 1e-4}, {"attention_settings": {"share": 0.25}}, default]
    folders = [Pretraining.parse({"attention": "key-clusters", **changes}).output_dir for changes in sweep]
    assert len(set(folders)) == len(sweep) - 1
    assert folders[0] == folders[-1]
    assert folders[0].endswith("results/pretraining/nano-key-clusters/seed-0")


def test_a_run_stands_beside_another_in_the_table(small, undisturbed, tmp_path):
    folder = tmp_path / "results" / "pretraining"
    shutil.copytree(undisturbed[0], folder / "hashed")
    run_in(folder / "softmax", small)
    rows = load(tmp_path)
    values = rows[rows["split"] == "held-out"].set_index(["arm", "measure"])["value"]
    table = gaps(rows, tmp_path).set_index("metric")
    assert (table["from"] == "softmax").all()
    for name in table.index:
        assert table["difference"][name] == pytest.approx(values["hashed", name] - values["softmax", name], abs=1e-9)
    first = rows[(rows["split"] == "first weights") & (rows["arm"] == "hashed")].set_index("measure")["value"]
    assert first["mlm_loss"] == undisturbed[1].history["mlm_loss"].iloc[0]
