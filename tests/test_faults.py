"""Faults: damage that breaks no file format is noticed, a full disk is named; and the campaign in its short form.

`benchmarks/faults` has the campaign; killed runs and damaged checkpoints are also in test_checkpoints.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh.record import read_result
from albert_lsh.tasks import load_data
from albert_lsh.train import fit
from albert_study import jobs as jobs_of_studies
from albert_study import make as make_study
from albert_study.jobs import load_jobs
from test_resume import kill
from test_train import make

ROOT = Path(__file__).resolve().parents[1]
KINDS = [
    "SIGKILL in saving",
    "disk full: files of a run",
    "truncated",
    "out of memory",
    "Hub in trouble",
]


def flip(path, behind=None):
    """One bit of a file: of the byte behind a text, or of its last but fifty."""
    content = bytearray(path.read_bytes())
    at = content.index(behind) + len(behind) if behind else len(content) - 50
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """One fault of each kind that is cheap."""
    table = tmp_path_factory.mktemp("faults") / "faults.csv"
    command = [sys.executable, "-m", "faults", "--table", str(table), "--rounds", "1", *KINDS]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "lib"), str(ROOT / "benchmarks")])}
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return table


def test_after_a_fault_a_run_ends_as_if_undisturbed(campaign):
    table = pd.read_csv(campaign)
    assert set(table["kind"]) >= {kind for kind in KINDS if not kind.startswith("disk full")}
    assert (table["difference"] == 0).all()
    assert json.loads(campaign.with_suffix(".json").read_text())["seed"] == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with its model."""
    folder = tmp_path_factory.mktemp("run")
    return fit(make(folder, epochs=1, save_model=True)).folder


def test_a_finished_run_whose_record_is_damaged_is_named(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    assert read_result(folder / "result.json")["headline"]["name"] == "f1"
    flip(folder / "result.json", b'"value": 0.')
    with pytest.raises(ValueError, match=r"result\.json is damaged \(.*\); look at it; moved away, "):
        read_result(folder / "result.json")


def test_a_record_stands_whatever_the_line_ends_of_the_files_beside_it(finished, tmp_path):
    """A clone by Git for Windows has others."""
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("result.json", "history.csv"):
        text = (folder / name).read_bytes()
        (folder / name).write_bytes(text.replace(b"\n", b"\r\n"))
    assert read_result(folder / "result.json") == read_result(finished / "result.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_checkpoint_for_which_the_disk_has_no_room_is_named(tmp_path):
    """Torch's own message counts bytes, and says nothing about a disk."""
    run = make(tmp_path, epochs=1)
    kill(run, "os.mkdir .*/checkpoint-8$")
    (tmp_path / "checkpoints" / "checkpoint-8").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-8" / "optimizer.pt").symlink_to("/dev/full")
    with pytest.raises(ValueError, match=r"checkpoints: No space left on device\? \([\d.,]+ MB are free"):
        fit(run)


def test_data_whose_copy_in_the_cache_is_cut_off_are_prepared_again(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "validation"):
        rows = {"sentence": [f"{split} {n}" for n in range(50)], "label": [n % 2 for n in range(50)]}
        Dataset.from_dict(rows).to_parquet(folder / f"{split}.parquet")
    entries = "".join(f"  - {{split: {split}, path: {split}.parquet}}\n" for split in ("train", "validation"))
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: sst2\n  data_files:\n{entries}---\n")
    before = load_data("sst2", folder, train_examples=20)["train"]["sentence"][:]
    (arrow,) = (tmp_path / "cache").rglob("*-train.arrow")
    arrow.write_bytes(arrow.read_bytes()[:600])
    assert load_data("sst2", folder, train_examples=20)["train"]["sentence"][:] == before


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("a warning\n", "its process ended without a word (killed, or out of memory?)"),
        (
            "a warning\nerror: results/runs/x is in use by another process\n",
            "error: results/runs/x is in use by another process",
        ),
        ("a warning\nFAILED notebook.ipynb\nKernel died", "FAILED notebook.ipynb\nKernel died"),
    ],
)
def test_a_job_that_was_killed_is_named(tmp_path, monkeypatch, log, cause):
    jobs = load_jobs("mini")
    name = next(iter(jobs))
    for module in (make_study, jobs_of_studies):
        monkeypatch.setattr(module, "repository_root", lambda: tmp_path)
    (path := tmp_path / "logs" / "mini" / "jobs" / f"{name}.log").parent.mkdir(parents=True)
    path.write_text(log)
    said = make_study.failures("mini", jobs)
    assert said == (cause if cause.startswith("FAILED") else f"FAILED {name}\n{cause}")


def test_a_killed_snakemake_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(make_study, "repository_root", lambda: tmp_path)
    monkeypatch.setattr(make_study, "run_snakemake", lambda *_: -9)
    with pytest.raises(SystemExit, match=r"Snakemake was killed \(signal 9\); `make study STUDY=mini` goes on where"):
        make_study.main("mini")
