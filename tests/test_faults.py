"""The campaign of faults in its short form (`faults.py` is all of it), and damage that breaks no file format."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_flipped_bit_of_a_record_is_named(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    assert read_result(folder / "result.json")["headline"]["name"] == "f1"
    content = bytearray((folder / "result.json").read_bytes())
    content[content.index(b'"value": 0.') + len(b'"value": 0.')] ^= 1
    (folder / "result.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.json is damaged \(.*\); look at it; moved away, "):
        read_result(folder / "result.json")


def test_a_record_stands_whatever_the_line_ends_of_the_files_beside_it(finished, tmp_path):
    """A clone by Git for Windows has others."""
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("result.json", "history.csv"):
        (folder / name).write_bytes((folder / name).read_bytes().replace(b"\n", b"\r\n"))
    assert read_result(folder / "result.json") == read_result(finished / "result.json")
