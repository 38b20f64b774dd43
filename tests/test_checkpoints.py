"""Runs that are killed, and checkpoints that are damaged: what a run resumes from, and how it ends."""

import dataclasses
import json
import shutil

import pytest
import torch

from albert_lsh import load_tokenizer
from albert_lsh.run import ParameterError
from albert_lsh.train import Clock, DivergedError, LengthGrouped, newest
from test_training import fit, make

FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "config.json")
# Of 22 steps, whose loss is logged every third step, and at every checkpoint.
THREE_EPOCHS = {"epochs": 3, "train_examples": 88, "batch_size": 4, "eval_examples": 16, "eval_steps": 5}


class Killed(BaseException):
    """What no handler of errors catches."""


def kill_at_step(patch, step):
    begin = Clock.on_step_begin

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise Killed
        begin(self, args, state, control, **kwargs)

    patch.setattr(Clock, "on_step_begin", on_step_begin)


def kill_during_save(patch, number):
    """While the optimizer is written in the checkpoint of that number."""
    written, save = [], torch.save

    def saved(content, file, *args, **kwargs):
        written.append(str(file))
        save(content, file, *args, **kwargs)
        if sum(name.endswith("optimizer.pt") for name in written) == number:
            with open(file, "r+b") as half:
                half.truncate(100)
            raise Killed

    patch.setattr(torch, "save", saved)


PLACES = {
    "in epoch 1": (kill_at_step, 8, 5),
    "at the end of epoch 1": (kill_at_step, 22, 22),
    "in epoch 2": (kill_at_step, 33, 30),
    "during a save in epoch 2": (kill_during_save, 7, 25),
    "in epoch 3": (kill_at_step, 63, 60),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The history and the weights of each attention's run."""
    found = {}
    for attention in ("softmax", "lsh"):
        run = make(tmp_path_factory.mktemp(attention), **THREE_EPOCHS, **settings_of(attention))
        done = fit(run)[0]
        found[attention] = done.history, {n: p.clone() for n, p in done.trainer.model.named_parameters()}
    return found


def settings_of(attention):
    return {"attention": attention} | ({"attention_settings": {}} if attention == "softmax" else {})


def ends_as(done, undisturbed):
    history, weights = undisturbed
    assert done.history.equals(history)
    for name, weight in done.trainer.model.named_parameters():
        assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize("attention", ["softmax", "lsh"])
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_goes_on_and_ends_as_if_undisturbed(place, attention, undisturbed, tmp_path, monkeypatch, capsys):
    run = make(tmp_path, **THREE_EPOCHS, **settings_of(attention))
    kill, where, last = PLACES[place]
    with monkeypatch.context() as patch:
        kill(patch, where)
        with pytest.raises(Killed):
            fit(run)
    assert "going on" not in capsys.readouterr().out
    ends_as(fit(run)[0], undisturbed[attention])
    assert f"going on after step {last}, from checkpoint-{last}\n" in capsys.readouterr().out


def checkpoints(folder, run, steps):
    """Sealed checkpoints with something in every file."""
    for step in steps:
        checkpoint = folder / "checkpoints" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        for name in FILES:
            (checkpoint / name).write_text(f"{name} of step {step}")
        seal(checkpoint, run.what())
    return checkpoint


def flip(path):
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "flipped": flip,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [*FILES, SEAL])
def test_a_damaged_checkpoint_does_not_count(name, damage, tmp_path):
    run = make(tmp_path)
    DAMAGE[damage](checkpoints(tmp_path, run, (9, 10)) / name)
    with pytest.warns(UserWarning, match=rf"checkpoint-10 is ignored: .*{name}"):
        assert newest(tmp_path / "checkpoints", run.what()).name == "checkpoint-9"


def test_what_is_not_a_checkpoint_as_it_was_sealed_does_not_count(tmp_path):
    run = make(tmp_path)
    checkpoints(tmp_path, run, (9, 10, 11, 12))
    folder = tmp_path / "checkpoints"
    (folder / "checkpoint-12" / "scaler.pt").touch()
    shutil.rmtree(folder / "checkpoint-11")
    shutil.copytree(folder / "checkpoint-9", folder / "checkpoint-11")
    (folder / "checkpoint-10" / SEAL).unlink()
    (folder / "checkpoint-10" / SEAL).mkdir()
    shutil.copytree(folder / "checkpoint-9", folder / "checkpoint-13.bak")
    (folder / "checkpoint-14").write_text("a note")
    with pytest.warns(UserWarning, match="is ignored") as warned:
        assert newest(folder, run.what()).name == "checkpoint-9"
    said = [str(warning.message).split("checkpoint-")[1] for warning in warned]
    assert [text.split(": ", 1)[0] for text in said] == ["12 is ignored", "11 is ignored", "10 is ignored"]
    assert "scaler.pt: missing, damaged, or not sealed" in said[0]
    assert "its complete.json is of step 9" in said[1]


def test_a_save_deletes_older_checkpoints_and_nothing_else(tmp_path):
    own = tmp_path / "checkpoints" / "checkpoint-best"
    own.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-3").symlink_to(tmp_path / "elsewhere")
    fit(make(tmp_path, epochs=1))
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-best", "checkpoint-8"}
    assert (tmp_path / "elsewhere").is_dir()


def test_checkpoints_of_other_data_are_refused(tmp_path):
    """`data_dir` says where the data are, and another folder may hold other data."""
    run = make(tmp_path, epochs=1)
    done, encoded, _ = fit(run)
    other = encoded["train"].map(lambda row: {"input_ids": [*row["input_ids"][:-1], 1]})
    with pytest.raises(ParameterError, match="holds checkpoints of a run with another data; delete that folder"):
        train(done.trainer.model, load_tokenizer("mini"), run, other, encoded["validation"], dict)


def test_with_a_damaged_checkpoint_alone_a_run_begins_anew(undisturbed, tmp_path, monkeypatch):
    run = make(tmp_path, **THREE_EPOCHS)
    with monkeypatch.context() as patch:
        kill_at_step(patch, 33)
        with pytest.raises(Killed):
            fit(run)
    flip(tmp_path / "checkpoints" / "checkpoint-30" / "optimizer.pt")
    with pytest.warns(UserWarning, match="optimizer.pt: missing, damaged"):
        ends_as(fit(run)[0], undisturbed["lsh"])


def test_checkpoints_of_another_run_are_refused_and_resume_false_deletes_them(tmp_path):
    run, folder = make(tmp_path), tmp_path / "checkpoints"
    assert newest(folder, run.what()) is None
    checkpoints(tmp_path, run, (9, 10))
    assert newest(folder, run.what()).name == "checkpoint-10"
    other = dataclasses.replace(run, learning_rate=1.0).what()
    with pytest.raises(ParameterError, match="holds checkpoints of a run with another learning_rate; delete that"):
        newest(folder, other)
    assert newest(folder, other, resume=False) is None
    assert not folder.exists()
    (tmp_path / "scratch" / "checkpoint-9").mkdir(parents=True)
    folder.symlink_to(tmp_path / "scratch")
    assert newest(folder, other, resume=False) is None
    assert not folder.is_symlink()


def test_a_loss_that_is_no_number_ends_the_run_and_says_where(tmp_path):
    run = make(tmp_path, learning_rate=1e9)
    with pytest.raises(DivergedError, match=r"loss=nan at step \d of 16 \(epoch 0\.\d+, learning_rate=1e\+09\)"):
        fit(run)
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("checkpoints/*/trainer_state.json")]
    assert not kept


def test_memory_that_does_not_suffice_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Clock, "on_step_begin", lambda *_, **__: torch.empty(2**50))
    with pytest.raises(ValueError, match="out of memory; a smaller batch_size or max_length, recompute=True"):
        fit(make(tmp_path))


def test_the_order_of_the_examples_follows_from_seed_and_epoch():
    lengths = [10 + n % 40 for n in range(400)]
    orders = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        sampler = LengthGrouped(lengths, 8, seed)
        sampler.set_epoch(epoch)
        orders[seed, epoch] = list(sampler)
        assert sorted(orders[seed, epoch]) == list(range(400))
        torch.rand(3)  # whatever else is drawn
        assert list(sampler) == orders[seed, epoch]
        spans = [[lengths[i] for i in orders[seed, epoch][start : start + 8]] for start in range(8, 400, 8)]
        assert sum(max(span) - min(span) for span in spans) / len(spans) < 4
    assert len({tuple(order) for order in orders.values()}) == 3
