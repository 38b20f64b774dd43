"""Parameters: converted, completed, placed, or refused with a message that helps; from a notebook in whatever order."""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from albert_lsh import attention, load_model, load_tokenizer
from albert_lsh.encoders import ModelError
from albert_lsh.files import root_of
from albert_lsh.run import ParameterError, Run, fastest_precision

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
GOOD = {"task": "mini-mrpc", "attention": "key-clusters", "output_dir": "out"}


def test_text_becomes_numbers_and_defaults_are_filled_in():
    texts = {"learning_rate": "1e-5", "epochs": "2", "max_length": "64", "train_examples": "None", "resume": "False"}
    texts |= {"attention_settings": '{"n_hashes": 2}'}
    run = Run.parse({**GOOD, **texts, "seed": 3.0, "recompute": "True"})
    assert (run.learning_rate, run.epochs, run.max_length, run.seed) == (1e-5, 2.0, 64, 3)
    assert run.attention_settings == attention.check("key-clusters", {"n_hashes": 2})
    assert (run.train_examples, run.resume, run.recompute) == (None, False, True)
    left_open = {"text_columns": "", "label_column": "None", "labels": "None", "data_revision": "None"}
    assert Run.parse({**GOOD, **left_open}) == Run.parse(GOOD)
    assert (run.device in ("cpu", "cuda"), run.precision in ("bf16", "fp32", "fp16")) == (True, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rte": 1e-5}, "'learning_rte' is not a parameter of glue.ipynb; did you mean 'learning_rate'"),
        ({"zzz": 1}, "'zzz' is not a parameter of glue.ipynb; there are: results_root, task, text_columns"),
        ({"task": "mprc"}, "task='mprc' is not one of: mrpc, mnli"),
        ({"task": ""}, "task must be given"),
        ({"task": "squad"}, "task='squad' belongs to squad.ipynb"),
        ({"attention_settings": '{"a":' * 50_000}, "must be a valid dictionary"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a valid number"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be"),
        ({"batch_size": "2.5"}, "batch_size='2.5' must be a valid integer"),
        ({"batch_size": True}, "batch_size=True must be a number"),
        ({"labels": {"no", "yes"}}, "must be a valid list"),  # a set has no order
        ({"label_column": 5}, "label_column='5' is for data of your own"),
        ({"model": "~nobody-here/x"}, "model='~nobody-here/x': there is no such home folder"),
        ({"evaluation_settings": {}}, "'evaluation_settings' is not a parameter of glue.ipynb"),
        ({"projections": ["query", "keys"]}, "projections=['query', 'keys'] must be 'new' or a list of: query, key,"),
        ({"precision": "int8"}, "precision='int8' must be 'auto', 'fp32', 'bf16' or 'fp16'"),
        ({"attention": "nystrom", "max_length": 48}, "num_landmarks=64 is above max_length=48"),
        ({"text_columns": ["a", ""]}, "text_columns[1]='' must have at least 1 character"),
        ({"attention": "reformer", "residual": False}, "residual=False: of 'reformer' it is a setting, atten"),
        (
            {"attention": "reformer", "attention_settings": {"mask_padding": False}},
            "mask_padding=False: answers would depend on the longest text of a batch; it needs pad_to_max_length=True",
        ),
        ({"folds": 3, "held_out_examples": 9}, "fold=(0, 3) and held_out_examples=9: take one of them"),
        ({"results_root": "/content/drive/MyDrive"}, "Drive is not mounted; the notebook's set-up cell does it"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ParameterError) as caught:
        Run.parse({**GOOD, **change}, "glue.ipynb")
    assert message in str(caught.value)
    assert "glue.ipynb" in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
def test_cuda_where_there_is_none_is_an_error():
    for change in ({"device": "cuda"}, {"precision": "fp16"}):
        with pytest.raises(ParameterError, match="CUDA"):
            Run.parse({**GOOD, **change})


def test_a_gpu_that_only_emulates_bf16_trains_in_fp16(monkeypatch):
    for computed, expected in ((True, "bf16"), (False, "fp16")):  # the latter stands for a T4
        supported = lambda including_emulation=True, computed=computed: including_emulation or computed  # noqa: E731
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        assert fastest_precision("cuda") == expected


def unnamed(**changes):
    return Run.parse({"task": "mini-mrpc", "attention": "key-clusters", **changes}).folder


def test_an_unnamed_run_has_a_folder_for_what_differs_from_the_defaults():
    plain = unnamed()
    assert plain.parts[-6:] == ("runs", "notebook", "mini-mrpc", "mini", "key-clusters", "seed-0")
    same = [{"learning_rate": "1e-3"}, {"attention_settings": {"share": 0.5}}, {"save_model": True, "resume": False}]
    assert {unnamed(**changes) for changes in same} == {plain}
    sweep = [{"learning_rate": 1e-5}, {"learning_rate": 2e-5}, {"attention_settings": {"share": 0.25}}]
    sweep += [{"precision": "bf16"}, {"model": "nano", "epochs": 4}]
    folders = [unnamed(**changes) for changes in sweep]
    assert len({plain, *folders}) == len(sweep) + 1
    assert re.fullmatch("key-clusters-[0-9a-f]{6}", folders[0].parent.name)
    assert unnamed(learning_rate=1e-5, seed=1) == folders[0].with_name("seed-1")  # seeds of one arm stay together


@pytest.mark.parametrize(
    ("task", "model", "recipe"),
    [
        ("mrpc", "albert/albert-base-v2", (128, 32, 2e-5, 3)),
        ("squad", "albert/albert-base-v2", (384, 12, 3e-5, 2)),
        ("mini-mrpc", "mini", (128, 32, 1e-3, 3)),
        ("mini-squad", "mini", (128, 32, 1e-3, 3)),  # mini has 128 positions, and starts from nothing
    ],
)
def test_what_is_left_open_follows_from_task_and_model(task, model, recipe):
    named = dict(zip(("max_length", "batch_size", "learning_rate", "epochs"), recipe, strict=True))
    run = Run.parse({"task": task, "model": model, **named})
    for left_open in ({}, dict.fromkeys(named, "None")):
        assert Run.parse({"task": task, "model": model, **left_open}) == run  # and so the same folder


# Notebooks --------------------------------------------------------------------------------------------------------


def execute(names, parameters, *, first=True):
    """Set-up, parameters and the cell that checks them; `first` is False where the set-up is not executed again."""
    if first:
        names["before"] = {*names, "before"}
    names |= parameters
    run = Run.from_notebook(names, names["before"])
    names |= {"run": run, "sentence": "a later cell's", "losses": [0.5]}
    return run


def test_a_misspelling_is_refused_however_often_the_cells_are_executed_and_earlier_names_are_none():
    names = {"display": print}
    assert execute(names, {"task": "mrpc", "seed": 1}).seed == 1
    assert execute(names, {"seed": 2}).seed == 2
    assert execute(names, {"seed": 3}, first=False).seed == 3
    for first in (True, False, True):
        with pytest.raises(ParameterError, match="'learning_rte' is not a parameter of glue.ipynb; did you mean"):
            execute(names, {"learning_rte": 1e-3}, first=first)
    assert execute(names, {"learning_rate": 1e-3}).learning_rate == 1e-3
    assert execute({"rounds": 3}, {"task": "mrpc"}).task == "mrpc"
    with pytest.raises(ParameterError, match="'rounds' is not a parameter of glue.ipynb; there are: "):
        execute({}, {"task": "mrpc", "rounds": 3})


def test_a_parameter_without_a_line_in_the_cell_stands_in_options_or_is_a_variable_all_the_same():
    given = {"task": "mini-mrpc", "seed": 2}
    for more in ({"options": {"folds": 5}}, {"options": '{"folds": "5"}'}, {"folds": 5, "options": {}}):
        run = execute({}, given | more)  # in the cell; by papermill's -p options, and by its -p folds
        assert (run.folds, run.seed) == (5, 2)
    for wrong, message in (
        ({"fold": 5}, "'fold' is not a parameter of glue.ipynb; did you mean 'folds'"),
        ({"folds": 1}, "folds=1 must be greater than or equal to 2"),
        ({"seed": 3}, "'seed' is given twice, by itself and in options .glue.ipynb"),
        (["folds"], r"options=\['folds'\] must be a dictionary of parameters"),
    ):
        with pytest.raises(ParameterError, match=message):
            execute({}, given | {"options": wrong})


def test_a_notebook_shows_an_error_in_one_line(capsys):
    shell = InteractiveShell()
    shell.run_cell("%colors nocolor")
    for call in ("Run.parse({'task': 'mini-mrpc', 'epochs': 'many'})", "load_data('mprc')", "load_tokenizer('./no')"):
        shell.run_cell(f"import albert_lsh; albert_lsh.{call}")
        (line,) = capsys.readouterr().out.strip().splitlines()
        assert re.match("(Parameter|Task|Model)Error: ", line)


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


def test_set_up_shows_what_pip_says_where_it_fails(tmp_path):
    setup = cells(NOTEBOOKS[0])[1]
    address = re.search(r"git\+(https:[^\"]+)", setup)[1]
    failing = setup.replace(address, "file://localhost/nowhere/albert-lsh").replace(
        'spec("albert_lsh")', 'spec("none")'
    )
    shown = "".join(output.get("text", "") for output in set_up(failing, tmp_path))
    assert "'/nowhere/albert-lsh' does not appear to be a git repository" in shown


def test_set_up_says_in_colab_that_results_die_with_the_machine_and_mounts_drive_where_asked_to(tmp_path, monkeypatch):
    setup = cells(NOTEBOOKS[0])[1]
    assert set_up(setup, tmp_path) == []
    monkeypatch.setitem(os.environ, "COLAB_RELEASE_TAG", "release-colab-2026")
    assert 'results_root = "/content/drive/MyDrive/albert-lsh"' in set_up(setup, tmp_path)[0].text
    package = tmp_path / "google" / "colab"  # Colab's own cannot be had elsewhere; this one says what it is asked for
    package.mkdir(parents=True)
    (package / "drive.py").write_text("def mount(path): print('mounted', path)")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    asked = setup.replace("keep_on_drive=False", "keep_on_drive=True")
    assert asked != setup
    assert set_up(asked, tmp_path)[0].text.startswith("mounted /content/drive\n")


def test_every_notebook_has_the_same_set_up_and_ends_its_parameters_with_the_root():
    (setup,) = {cells(path)[1] for path in NOTEBOOKS}
    assert len([line for line in setup.splitlines() if line and not line.startswith("#")]) <= 6
    assert setup.splitlines()[-1].startswith("before = set_up(globals(), ")
    for path in NOTEBOOKS:
        parameters = next(cell for cell in cells(path) if "results_root = " in cell and "print" not in cell)
        assert parameters.splitlines()[-1].startswith("results_root = None  # ")


# Places -----------------------------------------------------------------------------------------------------------


def test_all_paths_are_below_the_root_and_recorded_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # beside the notebook nothing is written
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((ROOT / "lib/albert_lsh/pretrained/nano/config.json").read_text())
    for root in (None, str(tmp_path)):
        run = Run.parse({**GOOD, "model": "runs/one", "results_root": root})
        assert run.folder == (tmp_path if root else ROOT) / "out"
        assert run.model == (str(folder) if root else "runs/one")  # a name, where the root has no such path
        assert (run.recorded()["output_dir"], run.recorded()["model"]) == ("out", "runs/one")
        assert str(tmp_path) not in json.dumps(run.recorded())
        assert unnamed(results_root=root).is_relative_to(tmp_path if root else ROOT)
    assert Run.parse({**GOOD, "output_dir": "/there"}).folder == Path("/there")
    assert Run.parse({**GOOD, "output_dir": "nano"}).folder == ROOT / "nano"
    assert root_of() == root_of("") == ROOT


def test_the_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for load in (load_model, load_tokenizer):
        load("mini").save_pretrained(tmp_path / "kept")
        load("~/kept")
    for field in ("output_dir", "model"):
        assert getattr(Run.parse({**GOOD, field: "~/kept"}), field) == str(tmp_path / "kept")
    with pytest.raises(ModelError, match="model='~/nowhere'"):
        load_model("~/nowhere")
