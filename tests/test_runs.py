"""Parameters: checked, converted, refused with a message that helps. Records: complete or not there."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from albert_lsh import attention
from albert_lsh.training import cores
from albert_lsh.training.files import run_folder, write_atomically
from albert_lsh.training.parameters import ParameterError, Parameters, fastest_precision
from albert_lsh.training.record import close_run, open_run, provenance, read_result

GOOD = {"task": "mini-mrpc", "attention": "lsh", "output_dir": "out"}


def test_text_becomes_numbers_and_defaults_are_filled_in():
    given = {
        **GOOD,
        "learning_rate": "1e-5",
        "epochs": "2",
        "max_length": "64",
        "seed": 3.0,
        "attention_settings": '{"n_hashes": 2}',
        "train_examples": "None",
        "resume": "False",
        "evaluation_settings": '{"n_hashes": 8}',
        "passes": "[0, 2]",
        "recompute": "True",
        "feed_forward_chunk": "16",
    }
    run = Parameters.check(given)
    assert (run.learning_rate, run.epochs, run.max_length, run.seed) == (1e-5, 2.0, 64, 3)
    assert run.attention_settings == attention.check("lsh", {"n_hashes": 2})
    assert run.attention_settings["cluster_size"] == 32
    assert run.train_examples is None
    assert run.resume is False
    assert (run.evaluation_settings, run.passes) == ({"n_hashes": 8}, [0, 2])
    assert (run.recompute, run.feed_forward_chunk) == (True, 16)
    assert run.device in ("cpu", "cuda")
    assert run.precision in ("bf16", "fp32")


CELL = "".join(f"{f.name} = None  # what it is\n" for f in dataclasses.fields(Parameters))


def of_notebook(*cells, **names):
    """The variables of a kernel that has executed these cells."""
    return {**GOOD, "In": ["", *cells], "Out": {1: 2}, "json": json, "open_run": open_run, **names}


def test_a_notebooks_other_names_are_no_parameters():
    left_behind = {"examples": {"train": 3}, "text": "Anna", "path": Path("x"), "epochs": 7}
    without_epochs = CELL.replace("epochs =", "pass; _ =")
    for cells in (
        [CELL, "text = 'Anna'"],
        [CELL.replace("seed", "sed"), without_epochs],
        ["# Parameters\ntask = 1", CELL],
    ):
        found = Parameters.check(of_notebook(*cells, **left_behind))
        assert (found.task, found.epochs) == ("mini-mrpc", 3 if without_epochs in cells else 7)


@pytest.mark.parametrize(
    "cells", [[CELL + "sed = 1"], [CELL, f"# Parameters\n{CELL}sed = 1\n"]], ids=["cell", "papermill"]
)
def test_a_misspelled_name_of_the_parameters_cell_is_an_error(cells):
    with pytest.raises(ParameterError, match="'sed' is not a parameter of glue.ipynb; did you mean 'seed'"):
        Parameters.check(of_notebook(*cells, sed=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rte": 1e-5}, "'learning_rte' is not a parameter of glue.ipynb; did you mean 'learning_rate'"),
        ({"zzz": 1}, "'zzz' is not a parameter of glue.ipynb; there are: task, model"),
        ({"task": "mprc"}, "task='mprc' is not one of: mrpc, mnli"),
        ({"task": "squad"}, "task='squad' belongs to squad.ipynb"),
        ({"attention": "lhs"}, "attention='lhs' is not one of"),
        ({"attention_settings": {"buckets": 2}}, "attention 'lsh' has no setting 'buckets'"),
        ({"attention_settings": "n_hashes=2"}, "attention_settings='n_hashes=2' must be a valid dictionary"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be a valid number"),
        ({"learning_rate": 0}, "learning_rate=0 must be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be"),
        ({"epochs": float("inf")}, "epochs=inf must be"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be a valid integer"),
        ({"batch_size": "2.5"}, "batch_size=2.5 must be a valid integer"),
        ({"batch_size": True}, "batch_size=True must be a valid integer"),
        ({"seed": None}, "seed=None must be a valid integer"),
        ({"warmup_share": 1}, "warmup_share=1 must be less than 1"),
        ({"resume": "maybe"}, "resume='maybe' must be a valid boolean"),
        ({"attention": "nystrom", "max_length": 48}, "num_landmarks=64 is above max_length=48"),
        (
            {"attention": "nystrom", "evaluation_settings": {"num_landmarks": 129}},
            "num_landmarks=129 is above max_length=128",
        ),
        ({"evaluation_settings": {"buckets": 2}}, "evaluation_settings: attention 'lsh' has no setting 'buckets'"),
        ({"evaluation_settings": {"n_hashes": 0}}, "evaluation_settings: lsh: n_hashes=0 must be greater"),
        ({"evaluation_settings": [8]}, "evaluation_settings=[8] must be a valid dictionary"),
        (
            {"attention": "reformer", "evaluation_settings": {"n_hashes": 8}},
            "'reformer' has in evaluation the settings",
        ),
        ({"passes": []}, "passes=[] must have at least 1 item"),
        ({"passes": [0, -1]}, "passes[1]=-1 must be greater than or equal to 0"),
        ({"passes": [True]}, "passes[0]=True must be a valid integer"),
        ({"passes": ["last"]}, "passes[0]='last' must be a valid integer"),
        ({"passes": 3}, "passes=3 must be a valid list"),
        ({"attention": "reformer", "passes": [0]}, "passes=[0]: 'reformer' replaces the projections of all passes"),
        ({"recompute": 2}, "recompute=2 must be a valid boolean"),
        ({"feed_forward_chunk": 0}, "feed_forward_chunk=0 must be greater than or equal to 1"),
        ({"feed_forward_chunk": 1.5}, "feed_forward_chunk=1.5 must be a valid integer"),
        ({"precision": "int8"}, "precision='int8' is not one of: auto, fp32, bf16, fp16"),
        ({"model": 7}, "model=7 must be a valid string"),
        ({"seed": float("inf")}, "seed=inf must be a valid integer"),
        ({"seed": 2**32}, "seed=4294967296 must be less than or equal to 4294967295"),
        ({"seed": 10**400}, "must be less than or equal to 4294967295"),
        ({"max_length": "1e400"}, "max_length=inf must be a valid integer"),
        ({"batch_size": 2**53 + 1}, "batch_size=9007199254740993 must be less than or equal to 2147483647"),
        ({"learning_rate": 10**400}, "must be a valid number"),
        ({"epochs": 1e308}, "epochs=1e+308 must be less than or equal to 10000"),
        ({"attention_settings": '{"a":' * 50_000}, "must be a valid dictionary"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ParameterError) as caught:
        Parameters.check({**GOOD, **change})
    assert message in str(caught.value)
    assert "glue.ipynb" in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
@pytest.mark.parametrize("change", [{"device": "cuda"}, {"precision": "fp16"}], ids=str)
def test_cuda_where_there_is_none_is_an_error(change):
    with pytest.raises(ParameterError, match="CUDA"):
        Parameters.check({**GOOD, **change})


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
def test_a_table_cannot_be_measured_on_a_device_that_is_not_there():
    device = provenance("cpu")["device"]
    assert device.startswith("cpu, ")
    assert device.endswith(torch.backends.cpu.get_cpu_capability())
    with pytest.raises(ParameterError, match="device='cuda', but torch finds no CUDA device here"):
        provenance("cuda")


@pytest.mark.parametrize(("emulated", "computed", "expected"), [(True, True, "bf16"), (True, False, "fp16")])
def test_a_gpu_that_only_emulates_bf16_trains_in_fp16(monkeypatch, emulated, computed, expected):
    def supported(including_emulation=True):
        return emulated if including_emulation else computed

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)  # stands for a T4
    assert fastest_precision("cuda") == expected


def test_a_run_has_its_folder():
    folder = run_folder("mini", "mrpc", "albert/albert-base-v2", "lsh", 2)
    assert folder.parts[-6:] == ("runs", "mini", "mrpc", "albert-base-v2", "lsh", "seed-2")


def unnamed(**changes):
    return Path(Parameters.check({"task": "mini-mrpc", "attention": "lsh", **changes}).output_dir)


def test_an_unnamed_run_has_a_folder_for_what_differs_from_the_defaults():
    plain = unnamed()
    assert plain == run_folder("notebook", "mini-mrpc", "mini", "lsh", 0)
    same = [{"learning_rate": "1e-3"}, {"attention_settings": {"share": 0.25}}, {"save_model": True, "resume": False}]
    assert {unnamed(**changes) for changes in same} == {plain}
    sweep = [
        {"learning_rate": 1e-5},
        {"learning_rate": 2e-5},
        {"attention_settings": {"share": 0.5}},
        {"evaluation_settings": {"share": 0.5}},
        {"precision": "bf16"},
        {"model": "nano", "epochs": 4},
    ]
    folders = [unnamed(**changes) for changes in sweep]
    assert len({plain, *folders}) == len(sweep) + 1
    assert folders == [unnamed(**changes) for changes in sweep]
    assert re.fullmatch("lsh-[0-9a-f]{6}", folders[0].parent.name)
    assert unnamed(learning_rate=1e-5, seed=1) == folders[0].with_name("seed-1")  # seeds of one arm stay together


@pytest.mark.parametrize(
    ("task", "model", "recipe"),
    [
        ("mrpc", "albert/albert-base-v2", (128, 32, 2e-5, 3)),
        ("squad", "albert/albert-base-v2", (384, 12, 3e-5, 2)),
        ("mini-squad", "nano", (384, 12, 3e-5, 2)),
        ("mini-mrpc", "mini", (128, 32, 1e-3, 3)),
        ("mini-squad", "mini", (128, 32, 1e-3, 3)),  # mini has 128 positions, and starts from nothing
    ],
)
@pytest.mark.parametrize("absent", [True, False], ids=["absent", "None"])
def test_what_is_left_open_follows_from_task_and_model(task, model, recipe, absent):
    notebook = "squad.ipynb" if "squad" in task else "glue.ipynb"
    named = dict(zip(("max_length", "batch_size", "learning_rate", "epochs"), recipe, strict=True))
    run = Parameters.check({"task": task, "model": model} | ({} if absent else dict.fromkeys(named, "None")), notebook)
    assert {name: getattr(run, name) for name in named} == named
    assert Parameters.check({"task": task, "model": model, **named}, notebook) == run  # and so the same folder
    assert Parameters.check({"task": task, "model": model, "max_length": 48}, notebook).max_length == 48


@pytest.mark.parametrize(
    "cell",
    [
        "from albert_lsh import Parameters; Parameters.check({'task': 'mini-mrpc', 'epochs': 'many'})",
        "from albert_lsh import load_data; load_data('mprc')",
        "from albert_lsh import load_tokenizer; load_tokenizer('./no/model')",
    ],
)
def test_a_notebook_shows_an_error_in_one_line(cell, capsys):
    shell = InteractiveShell()
    shell.run_cell("%colors nocolor")
    shell.run_cell(cell)
    (line,) = capsys.readouterr().out.strip().splitlines()
    assert re.match("(Parameter|Task|Model)Error: ", line)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "running"}', '{"status": "complete", "schema": 3}'])
def test_a_damaged_result_is_named(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(
        ValueError,
        match="result.json is (damaged|not of a complete run).*look at it; moved away",
    ):
        read_result(path)


def test_a_finished_result_is_said_and_not_overwritten_by_another_run(tmp_path, capsys):
    run = Parameters.check({**GOOD, "output_dir": str(tmp_path)})
    open_run(run)
    record = {"status": "complete", "schema": 3, "parameters": dataclasses.asdict(run), "metrics": {}, "headline": {}}
    write_atomically(tmp_path / "result.json", json.dumps(record))
    assert not capsys.readouterr().out
    open_run(dataclasses.replace(run, resume=False))  # the same run may be made again
    assert re.search(r"this run was made already \(before\): .*result.json stays as it is", capsys.readouterr().out)
    del record["parameters"]["attention_settings"]["rest"]  # a setting that came after the record
    write_atomically(tmp_path / "result.json", json.dumps(record))
    open_run(run)
    with pytest.raises(ParameterError, match="holds the result of another run, made with seed=0, not 1; choose"):
        open_run(dataclasses.replace(run, seed=1))
    close_run(run)


def test_a_run_takes_the_cores_that_are_free_and_says_so(monkeypatch, capsys):
    before, used = torch.get_num_threads(), iter([10.0, 10.0 + 99 * cores.LOOK])
    monkeypatch.setattr(cores, "seconds_of_others", lambda: next(used))
    monkeypatch.setenv("OMP_NUM_THREADS", str(before))
    assert cores.choose_threads("cpu") == before  # somebody has chosen
    monkeypatch.delenv("OMP_NUM_THREADS")
    try:
        torch.set_num_threads(2)
        assert cores.choose_threads("cpu") == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert "threads: 1 of" in capsys.readouterr().out


@pytest.mark.parametrize("schema", [None, 2, 99, "3"])
def test_a_result_of_another_schema_is_not_read(tmp_path, schema):
    record = {"status": "complete", "schema": schema, "parameters": {}, "metrics": {}, "headline": {}}
    write_atomically(tmp_path / "result.json", json.dumps(record))
    with pytest.raises(ValueError, match=f"result.json has schema {schema}; this version of albert-lsh reads schema 3"):
        read_result(tmp_path / "result.json")


def test_writing_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "result.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
