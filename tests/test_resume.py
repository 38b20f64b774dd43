"""Runs that are killed, and checkpoints that are damaged or another run's: what a run resumes from, and how it ends."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from albert_lsh import fit, load_data
from albert_lsh.files import FolderInUseError, lock
from albert_lsh.record import read_result
from albert_lsh.run import ParameterError
from albert_lsh.train import LengthGrouped, newest
from test_train import SOFTMAX, make

# Of 21 steps an epoch, whose loss is logged every second step, and at every checkpoint.
LONG = {"epochs": 2, "train_examples": 84, "batch_size": 4, "eval_examples": 16, "save_model": True}
CONVOLUTION = {"attention": "nystrom", "attention_settings": {"num_landmarks": 8, "conv_kernel_size": 3}}
IN_RANDOM_ORDER = {"pad_to_max_length": True}  # the examples; otherwise those of a batch are of like length
PLACES = {  # the operation before which the process is killed, and the step after which the next one goes on
    "the first checkpoint": ({}, r"os.mkdir .*/checkpoint-21$", None),
    "a long epoch": ({}, r"os.mkdir .*/checkpoint-6$", 4),
    "saving": (IN_RANDOM_ORDER, r"open .*/checkpoint-42/trainer_state.json", 21),
    "deleting a checkpoint": (SOFTMAX, r"shutil.rmtree .*/checkpoint-21", 42),
    "the predictions": (CONVOLUTION, r"os.rename .*/predictions.parquet", 42),
    "the result": ({}, r"os.rename .*/result.json", 42),
    "the end": (SOFTMAX, r"shutil.rmtree .*/checkpoints$", None),
}


def kill(run, pattern):
    """Make a run in a process that is killed, by SIGKILL, before an operation on a file."""

    def audit(event, arguments):
        if arguments and re.search(pattern, f"{event} {arguments[0]}"):
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        sys.addaudithook(audit)
        try:
            fit(run)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of each attention's run."""
    chosen = {str(changes): changes for changes, *_ in PLACES.values()}
    return {key: fit(make(tmp_path_factory.mktemp("it"), **LONG, **of)).folder for key, of in chosen.items()}


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_goes_on_and_ends_as_if_undisturbed(place, undisturbed, tmp_path, capsys, monkeypatch):
    changes, pattern, step = PLACES[place]
    if place == "a long epoch":  # ten minutes of it
        monkeypatch.setattr("albert_lsh.train.SAVE_AFTER", 0)
    run, whole = make(tmp_path, **LONG, **changes), undisturbed[str(changes)]
    kill(run, pattern)
    assert (tmp_path / "result.json").exists() == (place == "the end")
    fit(run)
    said = re.findall(r"going on after step (\d+), from checkpoint-\1\n", capsys.readouterr().out)
    assert said == ([str(step)] if step else [])
    assert not (tmp_path / "checkpoints").exists()
    for name in ("history.csv", "predictions.parquet", "model/model.safetensors"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    assert read_result(tmp_path / "result.json")["metrics"] == read_result(whole / "result.json")["metrics"]


def test_who_is_interrupted_in_the_last_evaluation_does_not_train_again(tmp_path, monkeypatch, capsys):
    """It takes an hour, where the attention is slow."""

    def interrupt(*args):
        raise KeyboardInterrupt

    run = make(tmp_path, **LONG | {"epochs": 1})
    with monkeypatch.context() as patch:
        patch.setattr("albert_lsh.kinds.Task.score_split", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit(run)
    fit(run)
    assert "going on after step 21, from checkpoint-21\n" in capsys.readouterr().out


def checkpoints(folder, steps, identity):
    """Checkpoints as Trainer leaves them, as far as `newest` reads them."""
    newest(folder, identity)
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text('{"global_step": 1}')
        for name in ("optimizer.pt", "scheduler.pt"):
            (folder / f"checkpoint-{step}" / name).touch()


def test_the_newest_checkpoint_counts_whose_state_is_whole(tmp_path):
    checkpoints(tmp_path, (9, 10, 11, 12, 14, 100), {"seed": 0})
    (tmp_path / "checkpoint-12" / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-14" / "scheduler.pt").unlink()
    (tmp_path / "checkpoint-11" / "trainer_state.json").write_text('{"global_st')
    (tmp_path / "checkpoint-100" / "trainer_state.json").unlink()
    shutil.copytree(tmp_path / "checkpoint-9", tmp_path / "checkpoint-13.bak")
    assert newest(tmp_path, {"seed": 0}).name == "checkpoint-10"


def test_checkpoints_of_another_run_are_refused_and_resume_false_deletes_them(tmp_path):
    folder, identity = tmp_path / "checkpoints", {"seed": 0, "passes": (1, 2)}
    assert newest(folder, identity) is None
    checkpoints(folder, (9,), identity)
    assert newest(folder, identity).name == "checkpoint-9"
    with pytest.raises(ParameterError, match="holds checkpoints of a run with another rate, seed; delete that folder"):
        newest(folder, {**identity, "seed": 1, "rate": 2})
    (folder / "run.json").unlink()
    with pytest.raises(ParameterError, match="holds checkpoints that do not say of which run .* resume=False"):
        newest(folder, identity)
    assert newest(folder, identity, resume=False) is None
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert newest(folder, {"seed": 1}, resume=False) is None
    assert not folder.is_symlink()


def test_checkpoints_of_other_data_are_refused(tmp_path):
    """Another name for them is another run; but data may change under their name."""
    run, data = make(tmp_path, **LONG), load_data("mini-mrpc", train_examples=84, eval_examples=16)
    kill(run, PLACES["saving"][1])
    data["train"] = data["train"].map(lambda row: {"sentence1": f"{row['sentence2']} {row['sentence1']}"})
    with pytest.raises(ParameterError, match="holds checkpoints of a run with another data; delete that folder"):
        fit(run, data)


def test_one_checkpoint_is_kept_and_a_damaged_file_in_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("albert_lsh.train.SAVE_AFTER", 0)
    run = make(tmp_path, **LONG)
    kill(run, PLACES["a long epoch"][1])
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-4", "run.json"}
    for name in ("optimizer.pt", "rng_state.pth", "config.json"):
        file = tmp_path / "checkpoints" / "checkpoint-4" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:10])
        with pytest.raises(ValueError, match=r"checkpoint-4 is damaged \(\w+\); delete it, and go on"):
            fit(run)
        file.write_bytes(whole)


def test_the_order_of_the_examples_follows_from_seed_and_epoch():
    lengths = [10 + n % 40 for n in range(400)]
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        sampler = LengthGrouped(lengths, 8, seed)
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert sorted(order) == list(range(400))
        torch.rand(3)  # whatever else is drawn
        assert list(sampler) == order not in orders
        orders.append(order)
        spans = [[lengths[i] for i in order[start : start + 8]] for start in range(8, 400, 8)]
        assert sum(max(span) - min(span) for span in spans) / len(spans) < 4


HOLD = "import sys, time, pathlib; from albert_lsh.files import lock\n"
HOLD += "with lock(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_folder_has_one_process_at_a_time_and_is_free_when_that_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    in_use = pytest.raises(FolderInUseError, match=r"is in use by another process \(waited 0.1 s\)")
    with in_use, lock(tmp_path, wait=0.1):
        pass
    with lock(tmp_path, "notebook", wait=0):  # another lock
        process.kill()
    process.wait()
    with lock(tmp_path, wait=5):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file cannot be locked: .*File exists"), lock(tmp_path / "file"):
        pass
