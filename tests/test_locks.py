"""A run's folder has one process at a time."""

import subprocess
import sys

import pytest

from albert_lsh.files import FolderInUseError, lock

HOLD = "import sys, time; from albert_lsh.training.locks import hold; "
HOLD += "hold(sys.argv[1]); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def other(tmp_path):
    """A process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path, other):
    with pytest.raises(FolderInUseError, match=rf"is in use by process {other.pid} on .* .waited 0.1 s."):
        hold(tmp_path, wait=0.1)
    hold(tmp_path, "notebook")  # another lock
    release(tmp_path, "notebook")


def test_what_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder" / ".run.holder").mkdir(parents=True)
    for name in ("file", "folder"):
        with pytest.raises(ValueError, match=f"{name} cannot be locked: ") as caught:
            hold(tmp_path / name, wait=0.1)
    (tmp_path / "folder" / ".run.holder").rmdir()
    hold(tmp_path / "folder", wait=0.1)  # the lock was given back, though the error's traceback still refers to it
    assert caught.tb
    release(tmp_path / "folder")


def test_a_killed_process_gives_the_folder_free(tmp_path, other):
    other.kill()
    hold(tmp_path, wait=5)
    hold(tmp_path, wait=0)  # this process has it
    release(tmp_path)
    release(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".holder"] == []
