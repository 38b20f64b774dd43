"""Where results go, from every notebook; and what the set-up cell says."""

import json
import os
import sys
import types
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from albert_lsh import load_data, load_model, load_tokenizer
from albert_lsh.model.config import ModelError
from albert_lsh.tasks.table import TaskError
from albert_lsh.training.files import recorded, root_of
from albert_lsh.training.parameters import ParameterError, Parameters
from albert_study.experiments.efficiency import Efficiency
from albert_study.experiments.long_range import LongRange
from albert_study.experiments.pretrain import Pretraining
from albert_study.probe import Fidelity
from albert_study.reading import Reading

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NOWHERE = "file://localhost/nowhere/albert-lsh"
VARIANTS = {"variants": {"a": {"attention": "window"}}}
CHECKS = {
    "glue": lambda **given: Parameters.check({"task": "mini-mrpc", **given}),
    "pretrain": lambda **given: Pretraining.parse({"text": "some/text", **given}),
    "long_range": lambda **given: LongRange.parse({"task": "duplication", **given}),
    "efficiency": lambda **given: Efficiency.parse(
        {"lengths": [64], "cases": ["softmax"], "step_lengths": [], "step_cases": [], **given}
    ),
    "reading": lambda **given: Reading.parse({**VARIANTS, **given}),
    "fidelity": lambda **given: Fidelity.parse({**VARIANTS, "trained": "results/runs/x", **given}),
}


def cells(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def set_up(setup, folder):
    """Run a notebook's set-up cell in a kernel; what it shows."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(setup)])
    try:
        NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}).execute()
    except CellExecutionError:
        assert notebook.cells[0].outputs[-1].output_type == "error"
    return notebook.cells[0].outputs


def test_set_up_stops_where_pip_fails_and_says_why_in_one_line(tmp_path):
    setup = cells(NOTEBOOKS[0])[1]
    address = next(line for line in setup.splitlines() if "https://" in line).split('"')[1]
    missing = setup.replace(address, NOWHERE).replace('find_spec("albert_lsh")', 'find_spec("not_installed")')
    (shown,) = set_up(missing, tmp_path)
    (line,) = shown.traceback
    assert line.startswith(f"SetUpError: albert-lsh could not be installed from {NOWHERE} (a placeholder")
    assert line.endswith(": '/nowhere/albert-lsh' does not appear to be a git repository")
    assert "\n" not in line


def test_set_up_says_in_colab_that_results_die_with_the_machine(tmp_path, monkeypatch):
    setup = cells(NOTEBOOKS[0])[1]
    assert set_up(setup, tmp_path) == []
    monkeypatch.setitem(os.environ, "COLAB_RELEASE_TAG", "release-colab-2026")
    (shown,) = set_up(setup, tmp_path)
    assert 'results_root = "/content/drive/MyDrive/albert-lsh"' in shown.text


def test_every_notebook_has_the_same_set_up_and_ends_its_parameters_with_the_root():
    assert len({cells(path)[1] for path in NOTEBOOKS}) == 1
    for path in NOTEBOOKS:
        parameters = next(cell for cell in cells(path) if "results_root = " in cell and "print" not in cell)
        assert parameters.splitlines()[-1].startswith("results_root = None  # ")


@pytest.mark.parametrize("name", CHECKS)
def test_all_paths_are_below_the_root(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # beside the notebook nothing is written
    for given, root in (({}, ROOT), ({"results_root": str(tmp_path / "drive")}, tmp_path / "drive")):
        asked = CHECKS[name](**given)
        assert Path(getattr(asked, "output_dir", None) or asked.output).is_relative_to(root)
        assert Path(getattr(asked, "figures_dir", root)).is_relative_to(root)
        field = "output" if hasattr(asked, "output") else "output_dir"
        assert getattr(CHECKS[name](**given, **{field: "here"}), field) == str(root / "here")
        assert getattr(CHECKS[name](**given, **{field: "/there"}), field) == "/there"


@pytest.mark.parametrize(
    "place", ["glue.model", "reading.model", "efficiency.text_model", "pretrain.start", "pretrain.text"]
)
def test_a_model_or_text_in_a_folder_is_found_below_the_root_and_recorded_without_it(place, tmp_path):
    name, field = place.split(".")
    folder = tmp_path / "runs" / "one" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((ROOT / "lib/albert_lsh/pretrained/nano/config.json").read_text())
    asked = CHECKS[name](**{field: "runs/one/model", "results_root": str(tmp_path)})
    assert getattr(asked, field) == str(folder)
    assert recorded(asked)[field] == "runs/one/model"
    assert str(tmp_path) not in json.dumps(recorded(asked))


@pytest.mark.parametrize("name", CHECKS)
def test_the_tilde_is_the_home_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "config.json").write_text((ROOT / "lib/albert_lsh/pretrained/nano/config.json").read_text())
    fields = ("output_dir", "output", "data_dir", "model", "text_model", "text", "start", "figures_dir")
    named = [field for field in fields if hasattr(CHECKS[name](), field)]
    assert named
    for field in named:
        assert getattr(CHECKS[name](**{field: "~/kept"}), field) == str(tmp_path / "kept"), field


def test_models_and_data_are_found_below_the_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for part in (load_model("mini"), load_tokenizer("mini")):
        part.save_pretrained(tmp_path / "kept")
    assert load_model("~/kept").config.hidden_size == load_model("mini").config.hidden_size
    assert load_tokenizer("~/kept").vocab_size == load_tokenizer("mini").vocab_size
    with pytest.raises(ModelError, match="model='~/nowhere'"):
        load_model("~/nowhere")
    with pytest.raises(TaskError, match="data_dir='.*/nowhere' is not a folder"):
        load_data("sst2", "~/nowhere")


def test_a_root_on_drive_is_an_error_where_drive_cannot_be_mounted():
    with pytest.raises(ParameterError, match="MyDrive/albert-lsh': Drive cannot be mounted here"):
        Parameters.check({"task": "mini-mrpc", "results_root": "/content/drive/MyDrive/albert-lsh"})
    assert not Path("/content/drive").exists()


def test_a_root_on_drive_mounts_it_in_colab(monkeypatch):
    """Colab's own package cannot be had elsewhere; this one only notes what it is asked for."""
    mounted, package, colab = [], types.ModuleType("google"), types.ModuleType("google.colab")
    colab.drive = types.SimpleNamespace(mount=mounted.append)
    monkeypatch.setitem(sys.modules, "google", package)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    assert root_of("/content/drive/MyDrive/albert-lsh") == Path("/content/drive/MyDrive/albert-lsh")
    assert mounted == ["/content/drive"]


def test_without_a_root_everything_is_in_the_checkout():
    assert root_of() == root_of("") == ROOT
    assert root_of("results") == ROOT / "results"
