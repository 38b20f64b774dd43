"""A results_root on a folder like Google Drive: slow, renaming copies and then deletes, and it is gone half-way.

No Drive can be had here. This one is a folder whose every operation takes a while and may be the last: the folder is
moved away, what Python does there fails as on a lost mount, and what other code does finds nothing.
"""

import errno
import os
import re
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from albert_lsh import load_tokenizer
from albert_lsh.tasks.data import encode, load_data
from albert_lsh.tasks.table import find_task
from albert_lsh.training import locks
from albert_lsh.training.fine_tuning import fine_tune
from albert_lsh.training.parameters import Parameters
from albert_lsh.training.record import read_result
from albert_study.candidates import GrowingTable
from albert_study.experiments.pretrain import Pretraining, prepare_text
from test_candidates import GIVEN as CANDIDATES
from test_candidates import ask, contents
from test_corpus import write_text

OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.listdir", "os.scandir", "shutil.rmtree"}
GIVEN = {"task": "mini-mrpc", "model": "mini", "epochs": 2, "train_examples": 32, "eval_examples": 8, "batch_size": 8}
GIVEN |= {"max_length": 48, "learning_rate": 1e-3, "eval_steps": 3, "precision": "fp32", "output_dir": "run"}
RENAME = os.rename
mounted: list["Drive"] = []  # an audit hook cannot be taken back


class Drive:
    """A folder as a mount of Drive; `last` is a pattern of the operation at which it is gone."""

    def __init__(self, place: Path, last: str | None = None) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.place, self.away, self.last, self.busy = place, place.with_name("away"), last, False

    def reach(self, operation: str, path: object) -> None:
        if self.busy or not str(path).startswith(str(self.place)):
            return
        time.sleep(0.0005)
        if self.last and re.search(self.last, f"{operation} {path}"):
            self.last = None
            self.move(self.place, self.away)
        if self.away.exists():
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), str(path))

    def move(self, source: Path, target: Path) -> None:
        self.busy = True
        RENAME(source, target)
        self.busy = False

    def copy(self, source: Path, target: Path) -> None:
        """What renaming does here: it can be seen, and cut off, half-way."""
        if source.is_dir():
            target.mkdir()
            for path in sorted(source.iterdir()):
                self.copy(path, target / path.name)
            source.rmdir()
            return
        content = source.read_bytes()
        target.write_bytes(content[: len(content) // 2])
        self.reach("half-way", target)
        target.write_bytes(content)
        source.unlink()


@pytest.fixture
def mount(monkeypatch):
    """Mounts a Drive until the test ends."""
    stat = os.stat

    def rename(source, target, **options):
        for drive in mounted:
            if str(target).startswith(str(drive.place)):
                return drive.copy(Path(source), Path(target))
        return RENAME(source, target, **options)

    def looked_at(path, *args, **options):
        for drive in mounted:
            drive.reach("stat", path)
        return stat(path, *args, **options)

    def begin(place: Path, last: str | None = None) -> Drive:
        mounted[:] = [Drive(place, last)]
        return mounted[0]

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, rename)
    monkeypatch.setattr(os, "stat", looked_at)
    yield begin
    mounted.clear()


def audit(event, arguments):
    for drive in mounted if event in OPERATIONS else ():
        drive.reach(event.split(".")[-1], arguments[0])


sys.addaudithook(audit)


@pytest.fixture(scope="module")
def encoded():
    data = load_data("mini-mrpc", train_examples=GIVEN["train_examples"], eval_examples=GIVEN["eval_examples"])
    return encode(data, find_task("mini-mrpc"), load_tokenizer("mini"), GIVEN["max_length"])


def start(root, encoded):
    """The run, as a notebook with this results_root makes it."""
    return fine_tune(Parameters.check({**GIVEN, "results_root": str(root)}), load_tokenizer("mini"), encoded)


def again(drive, runtime, monkeypatch):
    """A new runtime, in a folder of its own, mounts what is left of the Drive."""
    drive.move(drive.away, drive.place)
    locks.release(drive.place / "run")  # as the system does when a process ends
    runtime.mkdir()
    monkeypatch.chdir(runtime)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, encoded):
    return start(tmp_path_factory.mktemp("disk"), encoded).parent


def files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


PLACES = {
    "a checkpoint": (r"open .*checkpoint-6/trainer_state\.json", 4),
    "a seal": (r"half-way .*checkpoint-6/complete\.json", 4),
    "deleting a checkpoint": (r"rmtree .*checkpoint-4", 6),
    "predictions": (r"half-way .*predictions\.parquet", 8),
    "the result": (r"half-way .*result\.json", None),
    "the end": (r"rmtree .*checkpoints$", None),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_whose_drive_is_gone_goes_on_from_there(
    place, mount, encoded, undisturbed, tmp_path, monkeypatch, capsys
):
    last, step = PLACES[place]
    drive = mount(tmp_path / "MyDrive", last)
    with pytest.raises((OSError, ValueError), match="Transport endpoint is not connected"):
        start(drive.place, encoded)
    capsys.readouterr()
    again(drive, tmp_path / "runtime", monkeypatch)
    path = start(drive.place, encoded)
    assert re.findall(r"going on after step (\d+)", capsys.readouterr().out) == ([str(step)] if step else [])
    assert read_result(path)["metrics"] == read_result(undisturbed / "result.json")["metrics"]
    left, expected = files(drive.place), files(undisturbed)
    assert left.keys() == expected.keys()
    assert all(left[name] == expected[name] for name in ("history.csv", "predictions.parquet"))
    assert list((tmp_path / "runtime").iterdir()) == []


def test_training_on_a_drive_that_is_gone_says_so_and_what_to_do(mount, encoded, tmp_path, monkeypatch):
    drive = mount(tmp_path / "MyDrive", PLACES["a checkpoint"][0])
    with pytest.raises(
        ValueError, match=r"MyDrive/run/checkpoints cannot be reached \(.*\).*a run goes on from its last checkpoint"
    ):
        start(drive.place, encoded)
    again(drive, tmp_path / "runtime", monkeypatch)


def test_rows_of_measurements_are_whole(mount, tmp_path, monkeypatch):
    """A number whose last digits are missing is a number."""
    rows = [{"case": name, "seconds": 0.123456789} for name in ("softmax", "lsh", "window")]
    (tmp_path / "MyDrive").mkdir()
    table = GrowingTable(tmp_path / "MyDrive" / "times.csv")
    for row in rows[:2]:
        table.put({"case": row["case"]}, [row])
    drive = mount(tmp_path / "MyDrive", "open .*partial")
    with pytest.raises(OSError, match="not connected"):
        table.put({"case": "window"}, rows[2:])
    again(drive, tmp_path / "runtime", monkeypatch)
    table = GrowingTable(tmp_path / "MyDrive" / "times.csv")
    assert table.tables[0] == rows[:2]
    table.put({"case": "window"}, rows[2:])
    table.finish()
    assert pd.read_csv(tmp_path / "MyDrive" / "times.csv").to_dict("records") == rows
    assert [path.name for path in (tmp_path / "MyDrive").iterdir()] == ["times.csv"]


@pytest.mark.parametrize("name", [r"open .*partial\.jsonl", r"half-way .*table-looks\.csv", r"half-way .*table\.csv"])
def test_tables_of_candidates_are_whole(name, mount, tmp_path, monkeypatch):
    ask(tmp_path / "disk" / "table.csv", CANDIDATES)
    first = next(iter(CANDIDATES))
    drive = mount(tmp_path / "MyDrive")
    ask(drive.place / "table.csv", [first])
    drive.last = f"{name}$"
    with pytest.raises(OSError, match="not connected"):
        ask(drive.place / "table.csv", CANDIDATES)
    again(drive, tmp_path / "runtime", monkeypatch)
    assert first not in ask(drive.place / "table.csv", CANDIDATES)[0]
    assert contents(drive.place) == contents(tmp_path / "disk")


def test_a_tokenizer_is_whole(mount, tmp_path, monkeypatch):
    """It is a folder, of which files may have arrived."""
    given = {"text": str(write_text(tmp_path / "text.txt")), "vocabulary": 300, "max_length": 64}
    runs = [Pretraining.parse(given | {"output_dir": str(tmp_path / name)}) for name in ("disk", "MyDrive")]
    pieces = prepare_text(runs[0]).tokenizer.get_vocab()
    drive = mount(tmp_path / "MyDrive", "half-way .*tokenizer_config.json")
    with pytest.raises(OSError, match="not connected"):
        prepare_text(runs[1])
    again(drive, tmp_path / "runtime", monkeypatch)
    assert prepare_text(runs[1]).tokenizer.get_vocab() == pieces
    assert [path.name for path in drive.place.iterdir() if path.is_dir()] == ["tokenizer"]
