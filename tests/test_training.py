"""Training: what it records, what it resumes from, what it refuses. (Killed runs: test_study.py.)"""

import dataclasses
import json

import pytest
import torch
from albert_lsh import tasks
from albert_lsh.metrics import for_trainer, score_splits
from albert_lsh.model import load_model, load_tokenizer
from albert_lsh.runs import ParameterError, Parameters
from albert_lsh.training import attended, keep_model, last_checkpoint, prepare_model, remove_checkpoints, train


def make(folder, **changes):
    settings = {"n_hashes": 2, "cluster_size": 4}
    given = {"task": "mini-mrpc", "model": "mini", "attention": "lsh", "attention_settings": settings, "epochs": 2}
    given |= {"train_examples": 64, "eval_examples": 40, "batch_size": 8, "max_length": 48, "learning_rate": 1e-3}
    return Parameters.check({**given, "output_dir": str(folder), **changes})


def fit(run):
    task, tokenizer = tasks.find_task(run.task), load_tokenizer(run.model)
    data = tasks.load_data(run.task, train_examples=run.train_examples, eval_examples=run.eval_examples)
    encoded = tasks.encode(data, task, tokenizer, run.max_length)
    model = prepare_model(run, head="classification", num_labels=task.num_labels)
    done = train(model, tokenizer, run, encoded["train"], encoded["validation"], for_trainer(task))
    return done, encoded, attended(model, tokenizer, encoded["validation"], examples=16)


def test_a_run_records_curves_costs_and_what_it_attended(tmp_path):
    run = make(tmp_path, eval_steps=3, tensorboard=True)
    done, encoded, seen = fit(run)
    evaluated = done.history.dropna(subset=["eval_loss"])
    assert evaluated["step"].tolist() == [3, 6, 8, 9, 12, 15, 16]  # every third step, and both epochs' ends
    assert done.history["train_loss"].notna().sum() >= 16
    assert done.cost["examples_per_second"] == pytest.approx(128 / done.cost["train_seconds"])
    assert done.cost["peak_memory_bytes"] > 1e8
    assert 0.2 < seen.pairs < 0.7
    assert list((tmp_path / "logs").iterdir())
    table, labels, predictions = score_splits(done.trainer, tasks.find_task(run.task), encoded)
    last = evaluated.iloc[-1]
    assert table["score"] == {name: last[name] for name in ("accuracy", "f1")}
    assert (labels == predictions).mean() == table["score"]["accuracy"]


def test_the_same_seed_trains_the_same(tmp_path):
    histories = [fit(make(tmp_path / str(i), seed=seed))[0].history for i, seed in enumerate((0, 0, 1))]
    assert histories[0].equals(histories[1])
    assert not histories[0].equals(histories[2])


def test_softmax_attends_to_everything(tmp_path):
    seen = fit(make(tmp_path, attention="softmax", attention_settings={}, epochs=0.5))[2]
    assert seen == pytest.approx((1.0, 1.0, 0.0))


def test_only_complete_checkpoints_of_the_same_run_are_taken_up(tmp_path):
    run = make(tmp_path)
    assert last_checkpoint(run) is None
    for step, complete in ((9, True), (10, True), (11, False)):
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir()
        if complete:
            (tmp_path / "checkpoints" / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    assert last_checkpoint(run).endswith("checkpoint-10")
    with pytest.raises(ParameterError, match="checkpoints of a run with another learning_rate; delete it"):
        last_checkpoint(dataclasses.replace(run, learning_rate=1.0))
    assert last_checkpoint(dataclasses.replace(run, learning_rate=1.0, resume=False)) is None
    assert json.loads((tmp_path / "checkpoints" / "parameters.json").read_text())["learning_rate"] == 1.0
    remove_checkpoints(run)
    assert not (tmp_path / "checkpoints").exists()


def test_the_weights_of_a_convolution_are_in_the_checkpoints(tmp_path):
    run = make(tmp_path, attention="nystrom", attention_settings={"num_landmarks": 8, "conv_kernel_size": 3}, epochs=1)
    trained = {name: p.clone() for name, p in fit(run)[0].trainer.model.named_parameters()}
    assert [p.any() for name, p in trained.items() if "convolution" in name] == [True]
    resumed = fit(run)[0].trainer  # after its last step: nothing is left to train
    kept = load_model(last_checkpoint(run))
    for model in (resumed.model, kept):
        assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())


def test_more_tokens_than_positions_are_refused_before_training(tmp_path):
    with pytest.raises(ParameterError, match="max_length=129 is more than the 128 positions of model='mini'"):
        prepare_model(make(tmp_path, max_length=129), head="classification")


def test_the_model_is_kept_where_that_is_asked_for(tmp_path):
    for asked in (False, True):
        run = make(tmp_path, save_model=asked)
        model, tokenizer = prepare_model(run, head="classification", num_labels=2), load_tokenizer("mini")
        keep_model(run, model, tokenizer)
        assert (tmp_path / "model").exists() == asked
    again = load_model(str(tmp_path / "model"))
    assert again.config.albert_lsh == model.config.albert_lsh
    assert again.classifier.weight.equal(model.classifier.weight)
    assert load_tokenizer(str(tmp_path / "model"))("one two")["input_ids"] == tokenizer("one two")["input_ids"]
