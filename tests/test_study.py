"""A study end to end on the embedded tasks: notebooks executed, runs killed and taken up again, failures named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import pytest
import yaml
from datasets import Dataset

from albert_lsh.training import files
from albert_lsh.training.record import LATER
from albert_study import runner, study_file

ROOT = Path(__file__).resolve().parents[1]
QUICK = {"model": "mini", "batch_size": 16, "max_length": 64, "learning_rate": "1e-3", "epochs": 1}


@pytest.fixture
def checkout(tmp_path):
    """A copy of the repository's code, so that results go elsewhere; `environment` makes Python use it."""
    for name in ("lib", "notebooks", "profiles", "report"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.pdf"))
    for name in ("pyproject.toml", "Snakefile"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "published.csv", tmp_path / "studies")
    return tmp_path


def environment(checkout):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PYTHONPATH": str(checkout / "lib"), "PATH": path, "OMP_NUM_THREADS": "1"}


def write_study(checkout, name, tasks, switched=None, **parameters):
    content = {"parameters": {**QUICK, **parameters}, "tasks": tasks}
    content |= {"switched": switched} if switched else {}
    (checkout / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(content))


def snakemake(checkout, name, *more):
    command = ["snakemake", "--cores", "2", "--config", f"study={name}", *more]
    return subprocess.run(command, cwd=checkout, env=environment(checkout), capture_output=True, text=True)


def result(checkout, name, task, arm, seed=0):
    folder = checkout / "results" / "runs" / name / task / "mini" / arm / f"seed-{seed}"
    return json.loads((folder / "result.json").read_text()), folder


@pytest.mark.parametrize("attention", ["softmax-eager", "shared-qk", "shared-qk-lsh", "window", "random"])
def test_a_notebook_runs_with_the_attentions_that_no_mini_study_has(attention, tmp_path):
    parameters = {**QUICK, "task": "mini-mnli", "attention": attention, "train_examples": 64, "eval_examples": 32}
    output = tmp_path / "out.ipynb"
    notebook = ROOT / "notebooks" / "glue.ipynb"
    parameters |= {"output_dir": str(tmp_path / "run")}
    papermill.execute_notebook(notebook, output, parameters=parameters, kernel_name="python3", progress_bar=False)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(record["metrics"]) == {"accuracy", "accuracy_mismatched"} == set(record["majority"])
    assert 0 < record["attended_share"] <= 1


def test_a_notebook_runs_with_all_that_a_model_can(tmp_path):
    chosen = {"attention": "lsh", "attention_settings": {"n_hashes": 2, "cluster_size": 8}}
    chosen |= {"evaluation_settings": {"n_hashes": 1}, "passes": [1], "recompute": True, "feed_forward_chunk": 16}
    chosen |= {"max_length": 160, "extend_positions": True, "random_weights": True}
    parameters = {**QUICK, **chosen, "task": "mini-squad", "train_examples": 32, "eval_examples": 16}
    parameters |= {"output_dir": str(tmp_path / "run")}
    notebook = ROOT / "notebooks" / "squad.ipynb"
    output = tmp_path / "out.ipynb"
    papermill.execute_notebook(notebook, output, parameters=parameters, kernel_name="python3", progress_bar=False)
    recorded = json.loads((tmp_path / "run" / "result.json").read_text())["parameters"]
    for name in LATER:
        assert recorded[name] == chosen[name]


def test_a_misspelled_parameter_stops_the_notebook_before_it_works(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match="'learning_rte' is not a parameter of squad.ipynb"):
        papermill.execute_notebook(
            ROOT / "notebooks" / "squad.ipynb",
            tmp_path / "out.ipynb",
            parameters={"learning_rte": 1e-3, "output_dir": str(tmp_path / "run")},
            kernel_name="python3",
            progress_bar=False,
        )
    assert not (tmp_path / "run").exists()


def test_a_study_from_yaml_to_report_and_a_failed_run_named(checkout):
    """Two good runs and one that fails; then the failing one is taken out, and only what is missing is made."""
    small = {"train_examples": 48, "eval_examples": 16}
    arms = {"softmax": {"save_model": True}, "lsh": {"attention_settings": {"n_hashes": 2, "cluster_size": 8}}}
    variants = {"lsh": {"attention": "lsh"}, "window": {"attention": "window"}}
    switched = {
        "held-out": {"seeds": [0], "examples": 16, "looked_into": 8, "shares": [0.5], "variants": variants},
        "validation": {"looked_into": 8, "shares": [0.5, 0.125], "variants": variants},
    }
    tasks = {
        "mini-mrpc": {**small, "switched": {"length": 24}, "arms": arms},
        "mini-squad": {**small, "arms": {"lsh": arms["lsh"]}},
    }
    (checkout / "report" / "report.pdf").write_bytes(b"an older one, as a clone brings it along")
    broken = {**tasks, "mini-sst2": {**small, "model": "no/such-model", "arms": {"softmax": None}}}
    write_study(checkout, "small", broken, switched)
    failed = snakemake(checkout, "small")
    assert failed.returncode != 0
    assert "FAILED results/runs/small/mini-sst2/such-model/softmax/seed-0" in failed.stderr
    assert "ModelError: model='no/such-model': no tokenizer could be loaded" in failed.stderr
    record, folder = result(checkout, "small", "mini-squad", "lsh")
    assert all(texts_shown(folder / "notebook.ipynb"))  # ours are
    written = (folder / "result.json").stat().st_mtime

    write_study(checkout, "small", tasks, switched)
    done = snakemake(checkout, "small")
    assert done.returncode == 0, done.stderr
    assert (checkout / "report" / "report.pdf").read_bytes().startswith(b"%PDF")
    scores = pd.read_csv(checkout / "results" / "tables" / "small-scores.csv")
    assert sorted(zip(scores["task"], scores["arm"], strict=True)) == [
        ("mini-mrpc", "lsh"),
        ("mini-mrpc", "softmax"),
        ("mini-squad", "lsh"),
    ]
    table = pd.read_csv(checkout / "results" / "tables" / "small-switched.csv")
    assert set(zip(table["label"], table["budget"], strict=True)) == {
        (label, budget) for label in variants for budget in (0.5, 0.125)
    }
    assert (checkout / "figures" / "small-switched.svg").exists()
    held_out = pd.read_csv(checkout / "results" / "tables" / "small-held-out.csv")
    assert list(held_out["budget"]) == [0.5, 0.5]
    assert set(held_out["examples"]) == {16}
    assert (folder / "result.json").stat().st_mtime == written
    assert not list(folder.glob("checkpoints"))
    assert record["parameters"]["output_dir"] == "results/runs/small/mini-squad/mini/lsh/seed-0"

    (folder / "result.json").write_text("{")
    damaged = snakemake(checkout, "small")
    assert damaged.returncode != 0
    assert "result.json is damaged" in damaged.stdout + damaged.stderr


def contents(folder):
    """Every file in it that is not hidden, as locks are."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {path: path.read_bytes() for path in files}


def test_a_clone_loses_nothing_that_it_cannot_make_again(checkout):
    """The committed records of a study, in the order in which a checkout may have written them, and no model."""
    for name in ("results/runs/fidelity", "figures"):
        shutil.copytree(ROOT / name, checkout / name)
    (checkout / "results" / "tables").mkdir()
    for path in [*(ROOT / "results" / "tables").glob("fidelity-*.csv"), ROOT / "report" / "report.pdf"]:
        shutil.copy(path, checkout / path.relative_to(ROOT))
    shutil.copy(ROOT / "studies" / "fidelity.yaml", checkout / "studies")
    runs = checkout / "results" / "runs" / "fidelity"
    gone = runs / "stsb" / "all-MiniLM-L6-v2" / "softmax" / "seed-1" / "fidelity-validation.csv"
    gone.unlink()
    for path in runs.rglob("result.json"):
        path.touch()
    before = {folder: contents(checkout / folder) for folder in ("results", "figures", "report")}
    made = snakemake(checkout, "fidelity")
    assert made.returncode != 0
    assert "stsb/all-MiniLM-L6-v2/softmax/seed-1/model is not there (models are not kept" in made.stderr
    assert made.stderr.count("FAILED results/runs") == 1
    (gone.parent / "fidelity-validation.error.partial.txt").unlink()
    assert {folder: contents(checkout / folder) for folder in before} == before


def test_the_name_of_a_study_runs_nothing(checkout):
    made = snakemake(checkout, "x; touch PWNED")
    assert made.returncode != 0
    assert "error: study='x; touch PWNED' is not one of: " in made.stdout + made.stderr
    assert not list(checkout.rglob("PWNED"))


TRIAL = """
import pathlib
if pathlib.Path("broken").exists():
    raise ValueError("broken")
(pathlib.Path(output_dir) / "result.json").write_text("{}")
"""


def test_what_an_attempt_left_when_it_failed_goes_when_a_later_one_succeeds(tmp_path, monkeypatch):
    for module in (files, runner):
        monkeypatch.setattr(module, "repository_root", lambda: tmp_path)
    (tmp_path / "notebooks").mkdir()
    tagged = nbformat.v4.new_code_cell("", metadata={"tags": ["parameters"]})
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    cells = [tagged, nbformat.v4.new_code_cell(TRIAL)]
    trial = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(trial, tmp_path / "notebooks" / "glue.ipynb")
    run = runner.Run("x", "mini-mrpc", "softmax", 0, {"model": "mini"}, {})
    (tmp_path / "broken").touch()
    with pytest.raises(SystemExit, match="(?s)results/runs/x/mini-mrpc/mini/softmax/seed-0 failed.*ValueError: broken"):
        runner.execute(run)
    left = {path.name for path in contents(run.folder)}
    assert left == {"notebook.error.partial.txt", "notebook.failed.partial.ipynb"}
    assert "broken" in runner.failures("x")
    with pytest.raises(SystemExit, match="switches nothing on 'validation'"):
        runner.switch(run, "validation")
    assert "broken" in runner.failures("x")  # of another notebook in the same folder
    (run.folder / "fidelity-validation.error.partial.txt").unlink()
    (tmp_path / "broken").unlink()
    runner.execute(run)
    assert {path.name for path in contents(run.folder)} == {"notebook.ipynb", "result.json"}
    assert runner.failures("x") == ""


def texts_shown(notebook):
    """The outputs of the cells that show what stands in the data."""
    cells = json.loads(notebook.read_text())["cells"]
    shown = [cell["outputs"] for cell in cells if "examples" in cell["metadata"].get("tags", [])]
    assert shown
    return shown


def test_a_notebook_that_is_kept_shows_no_text_of_others(checkout, tmp_path):
    """That of a data set which is not ours, while numbers stay. Its pairs are of one length: there are no thirds."""
    data = tmp_path / "glue"
    data.mkdir()
    for split, count in (("train", 32), ("validation", 8)):
        pairs = {name: [f"Zanzibar {n} {name}" for n in range(count)] for name in ("sentence1", "sentence2")}
        rows = Dataset.from_dict({**pairs, "label": [n % 2 for n in range(count)], "idx": list(range(count))})
        rows.to_parquet(data / f"{split}.parquet")
    files = [{"split": split, "path": f"{split}.parquet"} for split in ("train", "validation")]
    card = yaml.safe_dump({"configs": [{"config_name": "mrpc", "data_files": files}]})
    (data / "README.md").write_text(f"---\n{card}---\n")
    switched = {"validation": {"looked_into": 2, "shares": [0.5], "variants": {"window": {"attention": "window"}}}}
    task = {"data_dir": str(data), "switched": {"length": 24}, "arms": {"softmax": {"save_model": True}}}
    write_study(checkout, "kept", {"mrpc": task}, switched)
    for split in ([], ["validation"]):
        command = [sys.executable, "-m", "albert_study.runner", "kept", "mrpc", "softmax", "0", *split]
        made = subprocess.run(command, cwd=checkout, env=environment(checkout), capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
    _, folder = result(checkout, "kept", "mrpc", "softmax")
    for name in ("notebook.ipynb", "fidelity-validation.ipynb"):
        assert not any(texts_shown(folder / name))
        assert "anzibar" not in (folder / name).read_text()
        assert "accuracy" in (folder / name).read_text()


def test_a_killed_run_is_taken_up_again_and_ends_the_same(checkout):
    """SIGKILL to everything half-way through; the study started again gives the undisturbed run's scores."""
    arms = {"lsh": {"attention_settings": {"n_hashes": 2, "cluster_size": 8}}}
    tasks = {"mini-mrpc": {"train_examples": 1600, "eval_examples": 64, "eval_steps": 20, "epochs": 2, "arms": arms}}
    for name in ("killed", "undisturbed"):
        write_study(checkout, name, tasks)
    command = ["snakemake", "--cores", "1", "--config", "study=killed", "--", "runs"]
    process = subprocess.Popen(
        command, cwd=checkout, env=environment(checkout), start_new_session=True, stderr=subprocess.DEVNULL
    )
    folder = checkout / "results" / "runs" / "killed" / "mini-mrpc" / "mini" / "lsh" / "seed-0"
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoints/checkpoint-*/complete.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()

    assert snakemake(checkout, "killed", "--", "runs").returncode == 0
    assert snakemake(checkout, "undisturbed", "--", "runs").returncode == 0
    (killed, there), (whole, here) = (result(checkout, name, "mini-mrpc", "lsh") for name in ("killed", "undisturbed"))
    assert killed["metrics"] == whole["metrics"]
    assert killed["train_seconds"] > 0.3 * whole["train_seconds"]  # the clock went on where it was
    pd.testing.assert_frame_equal(pd.read_csv(there / "history.csv"), pd.read_csv(here / "history.csv"))


def test_two_processes_that_start_the_same_run_make_it_once(checkout):
    write_study(
        checkout, "twice", {"mini-mrpc": {"train_examples": 48, "eval_examples": 16, "arms": {"softmax": None}}}
    )
    command = [sys.executable, "-m", "albert_study.runner", "twice", "mini-mrpc", "softmax", "0"]
    options = {"cwd": checkout, "env": environment(checkout), "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **options) for _ in range(2)]
    errors = [process.communicate()[1] for process in both if process.wait()]
    assert all("is in use by process" in error for error in errors)  # on a slow machine the wait may be too short
    assert len(errors) < 2
    _, folder = result(checkout, "twice", "mini-mrpc", "softmax")
    made = sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")
    assert made == ["history.csv", "notebook.ipynb", "result.json"]
    written = (folder / "result.json").stat().st_mtime
    subprocess.run(command, **options, check=True)
    assert (folder / "result.json").stat().st_mtime == written


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "studies").glob("*.yaml"))])
def test_every_study_of_the_repository_is_sound(name):
    runs = runner.load_study(name)
    assert len({run.folder for run in runs}) == len(runs)


def test_bad_studies_are_named(checkout, monkeypatch):
    monkeypatch.setattr(study_file, "repository_root", lambda: checkout)
    with pytest.raises(runner.StudyError, match="study='none' is not one of"):
        runner.load_study("none")
    (checkout / "studies" / "empty.yaml").write_text("parameters: {}")
    with pytest.raises(runner.StudyError, match="empty.yaml, line 1: tasks: Field required"):
        runner.load_study("empty")
    write_study(checkout, "typo", {"mini-mrpc": {"epoch": 3, "arms": {"softmax": None}}})
    with pytest.raises(
        runner.StudyError, match=r"typo.yaml, tasks: mini-mrpc: arms: softmax: 'epoch' is not a parameter"
    ):
        runner.load_study("typo")
    switched = {"validation": {"shares": [0.01], "variants": {"lsh": {"attention": "lsh"}}}}
    kept = {"mini-mrpc": {"arms": {"softmax": {"save_model": True}}, "switched": {"length": 24}}}
    write_study(checkout, "switch", kept, switched)
    with pytest.raises(runner.StudyError, match=r"softmax: variants: 'lsh': share=0.01 of length=24 leaves 0 keys"):
        runner.load_study("switch")
    write_study(checkout, "arm", {"mini-mrpc": {"arms": {"lhs": None}}})
    with pytest.raises(runner.StudyError, match="attention='lhs' is not one of"):
        runner.load_study("arm")
