"""One GPU a run: which there are, and that two runs do not take the same one. Needs no GPU."""

import os
import stat

import pytest

from albert_study.gpus import VISIBLE, lock_folder, one_of, visible_devices


@pytest.mark.parametrize(
    ("environment", "count", "expected"),
    [
        ({}, 2, ["0", "1"]),
        ({VISIBLE: "4,5"}, 2, ["4", "5"]),
        ({VISIBLE: "GPU-8a, GPU-9b"}, 2, ["GPU-8a", "GPU-9b"]),
        ({VISIBLE: "3,-1,5"}, 1, ["3"]),  # CUDA stops at the first that is none
        ({VISIBLE: ""}, 0, []),
        ({}, 0, []),
    ],
)
def test_the_devices_are_those_that_are_visible(monkeypatch, environment, count, expected):
    monkeypatch.delenv(VISIBLE, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert visible_devices(count) == expected


def test_each_run_gets_a_device_of_its_own_and_gives_it_back(tmp_path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "4,MIG-GPU-1/7/0")
    devices = visible_devices(2)
    with one_of(devices, tmp_path):
        assert os.environ[VISIBLE] == "4"
        with one_of(devices, tmp_path):
            assert os.environ[VISIBLE] == "MIG-GPU-1/7/0"
            with pytest.raises(RuntimeError, match="more runs than GPUs"), one_of(devices, tmp_path):
                pass
        assert os.environ[VISIBLE] == "4"
    assert os.environ[VISIBLE] == "4,MIG-GPU-1/7/0"
    with one_of(devices, tmp_path):
        assert os.environ[VISIBLE] == "4"


def test_a_single_device_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    with one_of(["0"], tmp_path), one_of(["0"], tmp_path):
        assert VISIBLE not in os.environ
    assert not list(tmp_path.iterdir())


def test_a_link_where_a_lock_would_be_loses_nothing(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "gpu-0.lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic|symlink|loop"), one_of(["0", "1"], tmp_path / "locks"):
        pass
    assert precious.read_text() == "kept"


def test_locks_are_in_the_users_own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert lock_folder() == tmp_path / "albert-lsh"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert lock_folder().parent.name == ".cache"
    with one_of(["0", "1"], tmp_path / "a" / "b"):
        assert stat.S_ISREG(os.lstat(tmp_path / "a" / "b" / "gpu-0.lock").st_mode)
