"""A run from its parameters to its record: what it trains, what it resumes from, what it refuses."""

import logging
import os
import re
import subprocess
import sys
import threading
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from datasets import Dataset
from tqdm import TMonitor
from transformers import AutoModel, AutoTokenizer, DistilBertConfig, RobertaConfig, RobertaModel, Trainer, pipeline

from albert_lsh import fit, load_data, load_tokenizer, pad_inputs, squad, switch_attention
from albert_lsh.data import encode
from albert_lsh.encoders import max_positions
from albert_lsh.metrics import attended, hardly_trained
from albert_lsh.model.load import extend_positions, load_model
from albert_lsh.model.projections import drop_residual
from albert_lsh.predict import load
from albert_lsh.run import ParameterError, Run
from albert_lsh.sources import find_task
from albert_lsh.train import Clock, DivergedError, prepare_model, training_arguments

SMALL = {"task": "mini-mrpc", "model": "mini", "attention": "key-clusters"}
SMALL |= {"epochs": 2, "train_examples": 64, "eval_examples": 40}
SMALL |= {"attention_settings": {"n_hashes": 2, "cluster_size": 4}, "batch_size": 8, "max_length": 48}
SMALL |= {"learning_rate": 1e-3, "precision": "fp32", "device": "cpu"}
SOFTMAX = {"attention": "softmax", "attention_settings": {}}


def make(folder, **changes):
    return Run.parse({**SMALL, "output_dir": str(folder), **changes})


def test_a_run_has_its_curves_costs_and_scores_and_is_made_once(tmp_path, capsys, monkeypatch):
    run = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "predict", None)  # what was evaluated after the last step is not predicted again
        trained = fit(run)
    evaluated = trained.history.dropna(subset=["eval_loss"])
    assert evaluated["step"].tolist() == [8, 16]  # the epochs' ends
    assert trained.history["train_loss"].notna().all()
    assert trained.record["examples_per_second"] == pytest.approx(128 / trained.record["train_seconds"])
    assert trained.record["peak_memory_bytes"] > 1e8
    assert 0.2 < trained.record["attended_share"] < 0.7
    assert not (tmp_path / "checkpoints").exists()
    table = trained.predictions
    assert trained.record["metrics"] == evaluated.iloc[-1][["accuracy", "f1"]].to_dict()
    assert (table["label"] == table["answer"]).mean() == trained.record["metrics"]["accuracy"]
    logits, labels = table.filter(like="logit_").to_numpy(), table["label"].to_numpy(dtype="int64")
    loss = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels)).item()
    assert trained.record["eval_loss"] == pytest.approx(loss, abs=1e-6)
    assert trained.record["eval_loss"] == evaluated["eval_loss"].iloc[-1]

    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")}
    capsys.readouterr()
    again = fit(make(tmp_path))  # where and how it is made does not matter
    assert re.search(r"this run was made already \(20.*\): .*result.json stays as it is", capsys.readouterr().out)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")} == kept
    assert again.record == trained.record
    assert again.predictions.equals(table)
    assert again.model is None
    # Without memory for a new thread, a process would wait for ever for it to begin (Python 3.11).
    assert not any(isinstance(thread, TMonitor) for thread in threading.enumerate())
    with pytest.raises(ParameterError, match="holds the result of another run, made with seed=0, not 1; choose"):
        fit(make(tmp_path, seed=1))


def test_the_tokenizer_of_a_run_cuts_texts_where_training_did(tmp_path):
    run = make(tmp_path, **SOFTMAX, epochs=1, max_length=16, save_model=True)
    rows = [{"sentence1": "We came on Monday and the food was good. " * 3, "sentence2": "The music was dull."}]
    now, later = fit(run), fit(run)
    for model, tokenizer in ((now.model.eval(), now.tokenizer), (later.model, later.tokenizer)):
        expected = run.about.answer(*load(str(tmp_path / "model"), run.about), rows, 1)
        assert [*run.about.answer(model, tokenizer, rows, 1)] == [*expected]


def test_what_a_run_leaves_open_is_decided_by_its_task_and_model(tmp_path):
    run = Run(task="mini-mrpc", train_examples=32, eval_examples=8, output_dir=str(tmp_path), precision="fp32")
    made = fit(run).record["parameters"]
    assert (made["batch_size"], made["learning_rate"], made["epochs"]) == (32, 1e-3, 3.0)


# The loss of a span is taken over padding too, and smaller batches have less of it.
@pytest.mark.parametrize(("task", "apart"), [("mini-mnli", 1e-4), ("mini-squad", 0.1)])
def test_a_step_of_several_batches_is_that_of_one_of_all_their_examples(tmp_path, task, apart):
    losses, weights = [], []
    for batch_size, accumulation in ((16, 1), (4, 4)):
        changes = {"task": task, **SOFTMAX, "epochs": 1, "train_examples": 32, "eval_examples": 8, "max_length": 96}
        sizes = {"batch_size": batch_size, "accumulation": accumulation}
        trained = fit(make(tmp_path / str(batch_size), **changes, **sizes))
        losses.append(trained.history["train_loss"].dropna().tolist())
        named = trained.model.named_parameters()
        # softmax does not change with the keys' bias: its gradient is rounding, of which Adam makes whole steps
        weights.append(torch.cat([weight.detach().flatten() for name, weight in named if "key.bias" not in name]))
    assert losses[0] == pytest.approx(losses[1], rel=apart)
    assert apart == 0.1 or torch.allclose(*weights, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "more"),
    [("mini-mnli", "accuracy_mismatched"), ("mini-sst2", "accuracy_shuffled"), ("mini-squad-v2", None)],
)
def test_scores_follow_from_predictions_which_hold_no_text(name, more, tmp_path):
    shuffle = {"shuffle_words": 0} if more == "accuracy_shuffled" else {}
    trained = fit(make(tmp_path, task=name, epochs=1, **shuffle))
    task, data, table = find_task(name), load_data(name, eval_examples=40, **shuffle), trained.predictions
    record, right = trained.record, {}
    assert record["examples"] == {"train": 64} | {split: 40 for split in data if split != "train"}
    if name == "mini-squad-v2":
        assert table["id"].tolist() == data["validation"]["id"][:]
        assert squad.scores_of(data["validation"], table) == record["metrics"]
        for metric in ("exact", "f1"):
            assert 100 * table[metric].astype(float).mean() == pytest.approx(record["metrics"][metric])
    else:
        for split, rows in table.groupby("split", sort=False):
            assert rows["label"].tolist() == data[split]["label"][:]
            assert rows["id"].tolist() == data[split]["idx"][:]
            right[more if right else "accuracy"] = (rows["label"] == rows["answer"]).mean()
        assert task.mean_scores(table) == record["metrics"] == right
        assert record["headline"] == {"name": "accuracy", "value": right["accuracy"]}
    whole = (tmp_path / "predictions.parquet").read_bytes()
    assert not any(text in whole for text in (b"Anna", b"lovely"))


def test_the_same_seed_trains_the_same_recomputed_too(tmp_path):
    changes = ({}, {"recompute": True}, {"seed": 1})
    same, again, other = (fit(make(tmp_path / str(i), **of)).history["train_loss"] for i, of in enumerate(changes))
    assert again.tolist() == pytest.approx(same.tolist(), rel=1e-5)
    assert not same.equals(other)


def test_dropout_of_attention_weights_is_that_of_the_run_or_else_of_the_model(tmp_path):
    """Also of a model whose config calls it otherwise, and kept in the model's config."""
    shape = {"vocab_size": 30, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}
    saved = DistilBertConfig(**shape, attention_dropout=0.25, dropout=0)
    AutoModel.from_config(saved).save_pretrained(tmp_path)
    ids = torch.arange(5, 25)[None]
    for changes, share in (({}, 0.25), ({"attention_dropout": 0}, 0), ({"attention_dropout": 0.5}, 0.5)):
        model = prepare_model(make(tmp_path / "run", model=str(tmp_path), **SOFTMAX, **changes)).base_model.train()
        one, other = (model(ids).last_hidden_state for _ in range(2))
        assert torch.equal(one, other) == (not share)
        assert model.config.attention_dropout == share
    with pytest.raises(ParameterError, match="attention_dropout=1"):
        make(tmp_path, attention_dropout=1)


# The original study's block: a text's answer depends on how far it is padded, so the model pads all texts alike.
ORIGINAL = {"attention": "reformer", "pad_to_max_length": True, "max_length": 48}
BLOCK = {"residual": False, "mask_padding": False, "bucket_size": 8, "n_hashes": 4}


def answers_of(folder, task, rows, batch_size):
    """What `albert-lsh predict` says with a saved model, as numbers."""
    answers = task.answer(*load(str(folder), task), rows, batch_size)
    return [row.get("scores") or {"start": row["start"], "score": row["score"]} for row in answers]


@pytest.mark.parametrize("name", ["mini-sst2", "mini-squad"])
def test_where_padding_is_seen_an_answer_does_not_depend_on_the_batch(name, tmp_path):
    shuffle = {} if name == "mini-squad" else {"shuffle_words": 0}
    changes = {"task": name, **ORIGINAL, "attention_settings": BLOCK, "max_length": 64, "epochs": 1, **shuffle}
    trained = fit(make(tmp_path, **changes, save_model=True, eval_examples=12))
    task, table, kept = find_task(name), trained.predictions, tmp_path / "model"
    assert trained.record["parameters"]["pad_to_max_length"]
    data = load_data(name, eval_examples=12, **shuffle)
    for split in list(data)[1:]:
        rows = data[split].select_columns([*task.columns]).to_list()
        alone, together = (answers_of(kept, task, rows, batch_size) for batch_size in (1, 12))
        for one, other in zip(alone, together, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    if name == "mini-squad":
        assert table["start"].tolist() == [row["start"] for row in alone]
        return
    scores = torch.tensor(table.filter(like="logit_").to_numpy()).softmax(-1)[12:]  # of the shuffled texts
    assert [row[task.labels[1]] for row in alone] == pytest.approx(scores[:, 1].tolist(), abs=1e-5)
    # And with Transformers' own pipeline, whatever padding it is told to have.
    classify = pipeline(
        "text-classification", model=load_model(str(kept)), tokenizer=AutoTokenizer.from_pretrained(kept)
    )
    texts = [row["sentence"] for row in rows]
    for padding in ({}, {"padding": True}, {"padding": "max_length", "max_length": 64}):
        for classes, row in zip(classify(texts, batch_size=4, top_k=None, **padding), alone, strict=True):
            assert {entry["label"]: entry["score"] for entry in classes} == pytest.approx(row, abs=1e-5)


def test_a_run_without_a_residual_connection_trains_and_keeps_a_model_without(tmp_path):
    trained = fit(make(tmp_path, residual=False, epochs=1, save_model=True))
    model, again = trained.model.eval(), load_model(str(tmp_path / "model"))
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)
    assert trained.record["parameters"]["residual"] is False
    assert "without the residual connection" in (tmp_path / "model" / "README.md").read_text()


# Models -----------------------------------------------------------------------------------------------------------


def test_random_weights_have_the_models_shape_and_know_nothing_of_it(tmp_path):
    torch.manual_seed(99)  # not the run's, whatever test came before
    saved = load_model("mini", intermediate_size=64)
    saved.save_pretrained(tmp_path)
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    known, new, again = (
        prepare_model(make(tmp_path, model=str(tmp_path), random_weights=is_new)).get_parameter(name)
        for is_new in (False, True, True)
    )
    assert torch.equal(known, saved.get_parameter(name))
    assert (new != known).float().mean() > 0.99
    assert torch.equal(new, again)


def test_more_tokens_than_positions_are_refused_or_get_positions_that_are_trained_and_kept(tmp_path):
    message = "max_length=192 is more than the 128 positions of model='mini'; extend_positions=True repeats them"
    with pytest.raises(ParameterError, match=message):
        prepare_model(make(tmp_path, max_length=192))
    small = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    RobertaModel(RobertaConfig(**small, max_position_embeddings=42, pad_token_id=1)).save_pretrained(tmp_path / "it")
    behind_padding = prepare_model(make(tmp_path, model=str(tmp_path / "it"), max_length=48, extend_positions=True))
    positions = behind_padding.base_model.embeddings.position_embeddings.weight
    assert max_positions(behind_padding.config) == 48
    assert torch.equal(positions[42:], positions[2:10])

    run = make(tmp_path, task="mini-squad", max_length=192, extend_positions=True, save_model=True, epochs=1)
    before = prepare_model(run).base_model.embeddings.position_embeddings.weight
    assert torch.equal(before[128:], before[:64])
    # Two paragraphs in one: the model reads beyond the 128 positions that it comes with.
    long = load_data("mini-squad", train_examples=32, eval_examples=16)
    long = long.map(lambda row: {"context": f"{row['context']} " + "It was Monday . " * 25 + row["context"]})
    trained = fit(run, long)
    positions = trained.model.base_model.embeddings.position_embeddings.weight
    assert not (positions[128:152] == before[128:152]).all(-1).any()
    again, tokenizer = fit(run).model, load_tokenizer(str(tmp_path / "model"))
    assert (max_positions(again.config), tokenizer.model_max_length) == (192, 192)
    ids = torch.arange(5, 180)[None] % 90
    assert torch.equal(again(ids).start_logits, trained.model.eval()(ids).start_logits)


@pytest.mark.parametrize(("change", "message", "parameters"), [
    (drop_residual, "residual=True, but model='.*' has no residual conn.*; say residual=False", {"residual": False}),
    (
        lambda model: pad_inputs(model, 32),
        "pad_to_max_length=False, but model='.*' pads its inputs, to 32 tokens; say pad_to_max_length=True",
        {"pad_to_max_length": True},
    ),
    (
        lambda model: switch_attention(model, "key-clusters", passes=[1]),
        r"attention='key-clusters' is that of all passes, but model='.*' has it in \[1\] alone; .* and save it first",
        SOFTMAX,
    ),
], ids=["residual", "padding", "passes"])  # fmt: skip
def test_a_run_says_what_the_model_that_it_starts_from_was_changed_in(tmp_path, change, message, parameters):
    change(load_model("mini")).save_pretrained(tmp_path / "model")
    start = {"model": str(tmp_path / "model")}
    with pytest.raises(ParameterError, match=message):
        prepare_model(make(tmp_path / "run", **start))
    run = make(tmp_path / "run", **start, **parameters)
    config = prepare_model(run).config
    assert (config.albert_lsh["residual"], config.albert_lsh["passes"]) == (run.residual, None)
    assert config.padded_length == run.max_length if run.pad_to_max_length else not hasattr(config, "padded_length")


def test_a_new_head_is_named_once_and_not_in_red(tmp_path, capsys):
    fit(make(tmp_path, model="nano", epochs=0.1))
    shown = capsys.readouterr()
    assert shown.out.count("new weights, not in its file") == 1
    assert "new weights" not in shown.err
    assert logging.getLogger("albert_lsh").handlers == []


def test_a_loss_that_is_no_number_ends_the_run_and_says_where(tmp_path):
    with pytest.raises(DivergedError, match=r"loss=nan at step \d of 16 \(epoch 0\.\d+, learning_rate=1e\+09\)"):
        fit(make(tmp_path, learning_rate=1e9))
    assert not list(tmp_path.glob("checkpoints/*/trainer_state.json"))


def test_too_little_memory_is_named_with_what_takes_less(tmp_path, monkeypatch):
    monkeypatch.setattr(Clock, "on_step_begin", Mock(side_effect=torch.OutOfMemoryError("CUDA")))
    with pytest.raises(ValueError, match="out of memory; a smaller batch_size or max_length, or recompute=True takes"):
        fit(make(tmp_path))


def test_training_can_be_imported_where_unix_modules_are_missing():
    """Windows has no `resource`, and no `fcntl`; other packages know what there is."""
    code = "import sys; import datasets; from transformers import Trainer\n"
    code += "sys.modules |= dict.fromkeys(('resource', 'fcntl'))\nimport albert_lsh.train, albert_lsh.predict"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bf16_on_a_processor_without_it_is_called_slow(tmp_path, monkeypatch, capsys):
    for has, said in ((True, ""), (False, 'bf16 is slow on this processor, .*; precision="fp32" is faster')):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        training_arguments(make(tmp_path, precision="bf16"), tmp_path)
        assert re.fullmatch(said, capsys.readouterr().out.strip())


# What is said of a trained model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "score", "constant", "said"),
    [
        ([1.0] * 8, 0.10, 0.0, "the score, 0.1, is near that of always the same answer, 0;"),
        ([2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6], 0.9, 0.5, r"the training loss is still falling \(1.1 to 0.7 in"),
        ([1.0, 0.5, 0.31, 0.30, 0.30, 0.29, 0.3, 0.29], 0.9, 0.5, None),
        ([2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6], 0.98, 0.5, None),  # what is left to gain is little
        ([1.0] * 8, float("nan"), 0.0, "the score, nan, is near that of always the same answer"),
    ],
)
def test_a_run_that_was_hardly_trained_says_so(losses, score, constant, said):
    remark = hardly_trained(pd.DataFrame({"train_loss": losses}), score, constant)
    assert re.search(said, remark) if said else remark is None


def test_a_sparse_attention_that_sees_everything_says_so_once(caplog):
    rows = Dataset.from_dict({"input_ids": [[2, *range(5, 60), 3]] * 24, "attention_mask": [[1] * 57] * 24})
    for settings in ({}, {"n_hashes": 4, "cluster_size": 32}):
        attended(load_model("mini", attention="key-clusters", settings=settings), load_tokenizer("mini"), rows)
    (line,) = (line for line in caplog.messages if "of the pairs" in line)
    assert re.search("""attention='key-clusters' attends to 100% of the pairs.*{"share": 0.25}""", line)


def test_pairs_and_cost_are_shares_of_the_whole_texts():
    task, tokenizer = find_task("mini-mrpc"), load_tokenizer("mini")
    data = load_data("mini-mrpc", train_examples=8, eval_examples=20)
    whole, cut = (encode(data, task, tokenizer, length)["validation"] for length in (64, 16))
    kept = sum(n**2 for n in cut["length"]) / sum(n**2 for n in whole["length"])
    assert kept < 0.5
    assert attended(load_model("mini"), tokenizer, cut) == pytest.approx((kept, 1.0, kept))
    assert attended(load_model("mini"), tokenizer, whole) == pytest.approx((1.0, 1.0, 1.0))


def test_of_long_texts_few_are_looked_into_at_a_time_since_all_their_pairs_are_counted():
    """Eight texts of 2,048 tokens took 18 GB, and the run died after its training."""
    model, tokenizer, seen = extend_positions(load_model("mini"), 1024), load_tokenizer("mini"), []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(output.logits)))
    for tokens, at_once, in_all in ((512, 8, 20), (1024, 2, 5)):  # as many pairs as 20 of 512 tokens have
        rows = {"input_ids": [[5] * tokens] * 24, "attention_mask": [[1] * tokens] * 24, "length": [tokens] * 24}
        seen.clear()
        assert attended(model, tokenizer, Dataset.from_dict(rows), 20) == pytest.approx((1, 1, 1))
        assert (max(seen), sum(seen)) == (at_once, in_all)


def test_scores_are_computed_in_float32(tmp_path):
    """bfloat16 leaves logits two or three digits: predictions of two classes tie."""
    trained = fit(make(tmp_path, precision="bf16", epochs=1, **SOFTMAX))
    logits = trained.predictions.filter(like="logit_")
    assert (logits.map(lambda x: torch.tensor(x).bfloat16().item()) != logits).to_numpy().mean() > 0.9


# Whatever is around ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_checkpoint_in_half_precision_is_trained_and_asked_in_float32(tmp_path, kind):
    """A step of 2e-5 would move hardly any of its weights."""
    load_model("mini").to(kind).save_pretrained(tmp_path)
    load_tokenizer("mini").save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).dtype == kind
    assert prepare_model(make(tmp_path, model=str(tmp_path))).dtype == torch.float32
    assert load(str(tmp_path), find_task("mini-mrpc"))[0].dtype == torch.float32


def test_a_parameter_wins_over_what_accelerate_finds_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    for precision, expected in (("fp32", "no"), ("bf16", "bf16")):
        assert training_arguments(make(tmp_path, precision=precision), tmp_path).mixed_precision == expected
    assert "ACCELERATE_DYNAMO_BACKEND" not in os.environ


def test_a_run_is_made_by_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ParameterError, match="a run is made by one process, .* without torchrun or accelerate launch"):
        fit(make(tmp_path))


FORMER = {
    "three classes": {"num_labels": 3, "output_hidden_states": True}, "a number": find_task("stsb").model_options,
    "several labels": {"num_labels": 2, "problem_type": "multi_label_classification"},
}  # fmt: skip
SAME_SHAPE = ("several labels", "mini-mrpc")


@pytest.mark.parametrize(("former", "task"), [
    ("three classes", "mini-mrpc"), ("several labels", "mini-mrpc"), ("several labels", "stsb"),
    ("a number", "mini-squad"),
])  # fmt: skip
def test_a_model_that_learnt_another_task_gets_a_new_head_in_one_line(tmp_path, former, task, caplog):
    load_tokenizer("mini").save_pretrained(tmp_path / "former")
    load_model("mini", **FORMER[former]).save_pretrained(tmp_path / "former")
    run = make(tmp_path / "run", task=task, model=str(tmp_path / "former"), epochs=1, train_examples=8, save_model=True)
    model, about = (prepare_model if task == "stsb" else lambda run: fit(run).model)(run), run.about
    options = about.model_options
    assert {name: getattr(model.config, name) for name in options} == options
    head = "qa_outputs" if task == "mini-squad" else "classifier"
    shape = "" if task == "mini-squad" else " in this shape"
    said = [f"new weights, not in its file{shape}: {head}.bias, {head}.weight"] * ((former, task) != SAME_SHAPE)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("albert_lsh")]
    assert [message.partition(": ")[2] for message in ours] == said
    if task != "stsb":
        with torch.no_grad():
            (answer,) = about.answer(*load(str(run.folder / "model"), about), [dict.fromkeys(about.columns, "a b")], 1)
        assert 0 <= answer["score"] <= 1
    with pytest.raises(ValueError, match="classifier.bias is .* in its file, not"):
        load_model(str(tmp_path / "former"), complete=True, num_labels=5)
