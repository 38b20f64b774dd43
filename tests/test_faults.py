"""The campaign of faults in its short form (`faults.py` is all of it), and damage that breaks no file format."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from albert_lsh import load_model, load_tokenizer
from albert_lsh.model.config import ModelError
from albert_lsh.record import read_result
from disturbed import folder_of, run

KINDS = ["SIGKILL in saving", "disk full: files of a run", "truncated", "bit flipped", "out of memory"]
KINDS += ["Hub in trouble"]


def test_after_a_fault_a_run_ends_as_if_undisturbed():
    """One fault of each kind that is cheap; a full disk needs the right to mount one."""
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), "1", *KINDS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in csv.reader(done.stdout.splitlines()) if row[0] in KINDS]
    assert {row[0] for row in rows} >= {kind for kind in KINDS if "disk full" not in kind}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with its model."""
    root = tmp_path_factory.mktemp("run")
    run(root)
    return folder_of(root)


@pytest.mark.parametrize("name", ["model/model.safetensors", "model/tokenizer.json", "result.json"])
def test_a_flipped_bit_is_named(finished, tmp_path, name):
    folder = shutil.copytree(finished, tmp_path / "run")
    read = {
        "model/tokenizer.json": lambda: load_tokenizer(str(folder / "model")),
        "result.json": lambda: read_result(folder / "result.json"),
    }.get(name, lambda: load_model(str(folder / "model"), complete=True))
    read()
    content = bytearray((folder / name).read_bytes())
    behind = {"model/tokenizer.json": b'"lovely', "result.json": b'"value": 0.'}.get(name)
    content[content.index(behind) + len(behind) if behind else -50] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises((ModelError, ValueError), match=r"model='.*model': |result\.json is damaged \(.*\); look at it"):
        read()


def test_a_record_stands_whatever_the_line_ends_of_the_files_beside_it(finished, tmp_path):
    """A clone by Git for Windows has others."""
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("result.json", "history.csv"):
        (folder / name).write_bytes((folder / name).read_bytes().replace(b"\n", b"\r\n"))
    assert read_result(folder / "result.json") == read_result(finished / "result.json")
