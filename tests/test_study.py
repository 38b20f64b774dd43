"""A study end to end: what is done and what differs; notebooks executed, killed, taken up again, and kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import torch
from filelock import FileLock

from albert_lsh import machine
from albert_lsh.record import SCHEMA, read_predictions
from albert_lsh.run import Run
from albert_study.execute import named_arms, say_how_long, summary, without_folders
from albert_study.names import RUNGS
from albert_study.study import StudyError, StudyFile, load_jobs, main, to_make
from checkouts import ROOT, copy_code, make, write_study
from test_study_file import MINI, TASKS, load

GLUE, SQUAD = "pairs/mini/softmax/seed-0", "mini-squad/mini/key-clusters/seed-0"
# Parameters that make a model do all that it can.
ALL = {"recompute": True, "max_length": 160, "extend_positions": True, "random_weights": True}
# Made by everybody on their own machine; waiting for a GPU; under way.
UNFINISHED = ["mini", "original", "original-readme", "albert", "masked-words", "no-training", "minilm"]
UNFINISHED += ["more-training", "more-examples", "minilm-rates", "albert-nli", "transplants"]
UNFINISHED += ["pretrained", "pretraining", "long-range", "word-order", "ladder", "parts", "lsh-limit"]
UNFINISHED += ["long-squad", "within-a-point"]


def record(root, job, **changes):
    """The result that a run would have left, but for some parameters."""
    path = root / job.results[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"status": "complete", "schema": SCHEMA, "metrics": {}, "headline": {}}
    path.write_text(json.dumps(about | {"parameters": job.settings.model_dump() | changes}))


def test_a_result_made_with_other_parameters_is_refused_in_words(root, capsys):
    """All of them are named, with their folders; where the file leaves device and precision open, any will do."""
    jobs = load(root, MINI + "seeds: [0, 1, 2, 3]\n" + TASKS)
    for job, changes in zip(jobs, ({"device": "cuda", "precision": "fp16"}, {"epochs": 7.0}, {}), strict=False):
        record(root, job, **changes)
    (root / jobs[2].results[0]).write_text("{")
    with pytest.raises(SystemExit) as refused:
        main(["x"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["done", "differs", "differs", "to"]
    first, differs, damaged, _, *folders = str(refused.value).splitlines()
    assert first == "error: results not made as studies/x.yaml says, 2 of 4:"
    assert differs == "  mini-mrpc/mini/softmax/seed-1: made with epochs=7.0, not 3.0"
    assert "seed-2/result.json is damaged" in damaged
    assert folders == [f"  results/runs/x/mini-mrpc/mini/softmax/seed-{n}" for n in (1, 2)]
    for n in (1, 2):
        (root / jobs[n].results[0]).unlink()
    assert [job.name[-1] for job in to_make("x", load_jobs("x"))] == ["1", "2", "3"]
    (job,) = load(root, "parameters: {model: mini, precision: fp32}\n" + TASKS)
    with pytest.raises(StudyError, match="precision='fp16', not 'fp32'"):
        to_make("x", {"": job})


def test_a_notebook_is_done_when_what_it_writes_last_is_there(root):
    variants, place = {"few": {"attention": "key-clusters"}}, "results/l/listops-512/few/seed-0/result.json"
    arena = {"max_length": 512, "variants": variants, "task": "listops", "output_dir": "results/l"}
    for notebook, values, result in (
        ("pretrain", {"seed": 1}, "results/pretraining/nano-softmax/seed-1/result.json"),
        ("reading", {"variants": variants, "output": "results/r/256.csv"}, "results/r/256.csv"),
        ("long_range", arena, place),
    ):
        (job,) = load(root, json.dumps({"notebooks": {"a": {"notebook": notebook, **values}}}))
        assert (job.notebook, job.parameters, job.results) == (f"{notebook}.ipynb", values, (result,))
        assert job.status() == f"to make  a: no {result}"
        (root / result).parent.mkdir(parents=True, exist_ok=True)
        if notebook == "reading":
            (root / result).touch()
        else:
            record(root, job, **values)
        assert job.status().startswith("done")


def test_a_pretraining_made_with_other_parameters_and_damaged_results_are_refused(root):
    """What the study's file says is compared: records may be older than other parameters."""
    (job,) = load(root, "notebooks: {a: {notebook: pretrain, steps: 100}}")
    record(root, job, precision="fp16", optimizer="adamw", sentence_order=None)
    assert job.status().startswith("done")
    record(root, job, steps=200)
    with pytest.raises(StudyError, match="made with steps=200, not 100"):
        to_make("x", {"a": job})
    (root / job.results[0]).write_text("{")
    assert "result.json is damaged" in job.status()


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "studies").glob("*.yaml"))])
def test_every_study_of_the_repository_is_sound_and_what_is_committed_is_done(name):
    missing = to_make(name, load_jobs(name))
    assert name in UNFINISHED or not missing


def test_the_ladder_is_the_same_in_all_tasks_of_its_study_and_can_be_had_by_name():
    """But for learning rates, which belong to a study's models."""
    ladder = named_arms("ladder")
    assert list(RUNGS) == list(ladder)
    assert ladder["2020-block"]["attention_settings"]["residual"] is False
    own = {"softmax": {"attention": "softmax"}}
    assert [named_arms(arms) for arms in (["softmax"], "softmax", own)] == [own] * 3
    assert named_arms({"softmax": None}) == {"softmax": {}}
    for task, entry in StudyFile("ladder").study.tasks.items():
        for name in entry.arms.keys() & ladder.keys() if task != "squad" else ():  # of 128 tokens, which are hashed
            values = entry.arms[name].values()
            assert {key: value for key, value in values.items() if key != "learning_rate"} == ladder[name]
    for arms in ("ladders", ["2020"], [], {}, {"softmax": "softmax"}, 5):
        with pytest.raises(StudyError, match='must be "ladder", a list of its arms .*, or by name'):
            named_arms(arms)


def test_a_forecast_knows_that_bf16_is_slow_where_it_is_emulated_and_how_to_take_float32(root, capsys, monkeypatch):
    """The record is of a processor that computes in bf16, where a step takes two thirds of float32's time."""
    record_of_a_second(root, precision="bf16")
    like = {**LIKE, "train_examples": 900, "epochs": 2}
    runs = {name: Run.parse({**like, "precision": name}) for name in ("bf16", "fp32")}
    monkeypatch.setattr(machine, "time_in_bf16", lambda: 16)
    assert say_how_long([runs["bf16"]]) == pytest.approx(1800 * 1.5 * 16)
    assert "emulates, takes 16 times as long as float32; precision: auto (in the study's" in capsys.readouterr().out
    assert say_how_long([runs["fp32"]]) == pytest.approx(1800 * 1.5)
    assert "bf16" not in capsys.readouterr().out


def test_a_step_in_bf16_is_measured_where_it_is_emulated(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert 0.1 < machine.time_in_bf16.__wrapped__() < 1000


LIKE = {"task": "mini-mrpc", "model": "mini", "eval_examples": 32, "epochs": 1, "device": "cpu"}


def test_a_forecast_takes_the_times_of_like_runs_and_counts_the_others(root, capsys):
    run, other = (Run.parse({**LIKE, **more}) for more in ({"train_examples": 900, "epochs": 2}, {"model": "nano"}))
    assert say_how_long([run, other]) == 0
    record_of_a_second(root)
    assert say_how_long([run, run, other], 4) == 1800
    took = "expected: about 30 minutes of training, 2 at a time, by the times of like runs; without 1 of 3 runs\n"
    assert capsys.readouterr().out == took
    run.folder.mkdir(parents=True)
    (run.folder / "result.json").write_text("{}")
    assert say_how_long([run, other]) == 0  # it is made


def record_of_a_second(root, **changes):
    """A run with all of its task's hundred examples, of which each took a second; and a damaged record."""
    run = Run.parse({**LIKE, "train_examples": None, "attention": "window", **changes}).identity()
    record = {"status": "complete", "schema": SCHEMA, "metrics": {}, "parameters": run}
    record |= {"examples": {"train": 100}, "train_seconds": 100.0}
    for number, text in enumerate([json.dumps(record), "{"]):
        (path := root / "results" / "runs" / str(number) / "result.json").parent.mkdir(parents=True)
        path.write_text(text)


def test_the_scores_of_many_tasks_fit_into_a_terminal():
    scores = summary("minilm").split("\ntables:")[0]
    assert {"mrpc (f1)", "stsb (pearson)", "squad (f1)"} <= {*re.findall(r"\w+ \(\w+\)", scores)}
    assert max(map(len, scores.splitlines())) <= 120


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<td>/mnt/c/clone/results/runs/minilm/a...</td>", "<td>results/runs/minilm/a...</td>"),
        ("/tmp/ipykernel_24288/361678337.py:3: UserWarning", "361678337.py:3: UserWarning"),
        ("\x1b[32m/opt/env/lib/site-packages/pandas/x.py:7\x1b[39m", "\x1b[32msite-packages/pandas/x.py:7\x1b[39m"),
        *((text, text) for text in ("https://a.com/github/a/b.ipynb", "<b>1</b> 3/4/5", "results/x.csv", "../a/b")),
    ],
)  # fmt: skip
def test_an_absolute_path_is_kept_from_the_checkout_on(text, kept):
    assert without_folders([{"a": text, "image/png": text}]) == [{"a": kept, "image/png": text}]


def write_pairs(folder):
    """A task of somebody's own, whose texts are not ours."""
    folder.mkdir()
    for split, count in (("train", 64), ("validation", 16)):
        pairs = {name: [f"Zanzibar {n} {name}" for n in range(count)] for name in ("sentence1", "sentence2")}
        pd.DataFrame({**pairs, "label": [n % 2 for n in range(count)]}).to_csv(folder / f"{split}.csv", index=False)


def write_trial(checkout, last):
    """A notebook that writes its result and then does what the line `last` says."""
    source = f"import pathlib\npathlib.Path('results/x.csv').write_text('new')\n{last}"
    cells = [nbformat.v4.new_code_cell(text) for text in ("", source)]
    cells[0].metadata.tags = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, checkout / "notebooks" / "masked_words.ipynb")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A checkout in which the study `small` was made: first with a job that fails, then as a whole."""
    checkout = copy_code(tmp_path_factory.mktemp("checkout"))
    runs = checkout / "results" / "runs" / "small"
    write_pairs(checkout / "pairs")
    variants = {"key-clusters": {"attention": "key-clusters"}, "all": {"attention": "window", "share": 1.0}}
    tasks = {
        "pairs": {"arms": {"softmax": {"save_model": True}}},
        "mini-squad": {"train_examples": 32, **ALL, "arms": {"key-clusters": {"attention_settings": {"n_hashes": 2}}}},
    }
    trial = {
        "notebook": "masked_words",
        "variants": {"key-clusters": variants["key-clusters"]},
        "output": "results/x.csv",
    }
    content = {
        "parameters": {"model": "mini", "batch_size": 16, "max_length": 64, "epochs": 1, "eval_examples": 16},
        "switched": {"validation": {"looked_into": 2, "shares": [0.5, 0.25], "variants": variants}},
        "notebooks": {"trial": trial},
    }
    write_study(checkout, "small", tasks=tasks, **content)
    backup = checkout / ".snakemake" / "backups" / "results" / "x.csv"
    backup.parent.mkdir(parents=True)
    backup.write_text("old")
    write_trial(checkout, "raise ValueError('broken')")
    failed = make(checkout, "small")
    result = (checkout / "results" / "x.csv").read_text()
    write_trial(checkout, "")
    whole = make(checkout, "small")
    assert whole.returncode == 0, whole.stderr
    return {"checkout": checkout, "runs": runs, "failed": failed, "result": result, "whole": whole}


def said_of(done: subprocess.CompletedProcess) -> str:
    """What a study says, but for what became of each file and column of its data."""
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("pairs: "))


def test_every_step_has_a_line_and_a_failed_job_is_named_and_stops_no_other(made):
    said = said_of(made["failed"])
    lines = said.splitlines()
    assert made["failed"].returncode != 0
    assert lines[0] == "study small: 0 of 4 jobs are done, 4 are made now, each with a line; more in logs/small/"
    steps = {line.split()[3]: line for line in lines if re.match(r" *\d of 4 ", line)}
    assert set(steps) == {GLUE, SQUAD, f"{GLUE}/fidelity-validation"}
    assert re.search(r"accuracy [\d.]+ +\d+ s$", steps[GLUE])
    assert re.search(r"^failed +trial +\d+ s$", said, re.MULTILINE)
    assert re.search(r"FAILED trial(.|\n)*ValueError: broken", said)


def test_the_end_shows_scores_and_where_everything_is(made):
    end = said_of(made["whole"])
    lines = end.splitlines()
    assert lines[0].startswith("study small: 3 of 4 jobs are done, 1 is made now")  # three before, and not again
    assert lines[1].startswith("started  ")  # before minutes in which nothing else is said
    assert [line.split(":")[0] for line in lines[3:5]] == ["tables and figures", "report"]
    assert re.search(r"softmax +0\.\d+", end)
    for path in ("results/tables/small-scores.csv", "figures/small-loss-pairs.svg", "report/build/small.pdf"):
        assert f"  {path}\n" in end
        assert (made["checkout"] / path).is_file()
    assert f"  results/runs/small/{GLUE}/notebook.ipynb" in end


def test_a_run_has_the_parameters_of_its_study(made):
    recorded = json.loads((made["runs"] / SQUAD / "result.json").read_text())["parameters"]
    assert {name: recorded[name] for name in ALL} == ALL
    assert recorded["output_dir"] == f"results/runs/small/{SQUAD}"


def test_a_switched_evaluation_keeps_its_predictions_and_seeing_everything_changes_nothing(made):
    folder = made["runs"] / GLUE / "fidelity-validation-predictions"
    assert {path.stem for path in folder.iterdir()} == {"softmax", "key-clusters 0.5", "key-clusters 0.25", "all 1.0"}
    first, same = (
        read_predictions(path) for path in (folder.with_name("predictions.parquet"), folder / "all 1.0.parquet")
    )
    expected = first.set_index("id")["logit_0"].sort_index()
    assert same.set_index("id")["logit_0"].sort_index().tolist() == pytest.approx(expected.tolist(), abs=1e-2)
    rows = pd.read_csv(folder.with_name("fidelity-validation.csv")).set_index("variant")
    assert rows.loc["all", ["error", "drift"]].max() < 1e-4 < rows.loc[["key-clusters"], "error"].min()


def test_a_kept_notebook_shows_our_texts_alone_and_names_no_folder_of_the_machine(made):
    kept = {path: path.read_text() for path in made["runs"].rglob("*.ipynb") if ".partial" not in path.name}
    assert len(kept) == 3
    folders = (str(made["checkout"]), str(Path.home()), "/tmp/")
    assert not any(folder in text for text in kept.values() for folder in folders)
    for path, text in kept.items():
        cells = [cell for cell in json.loads(text)["cells"] if "examples" in cell["metadata"].get("tags", [])]
        assert all(bool(cell["outputs"]) == ("mini-squad" in str(path)) for cell in cells), path


def test_nothing_that_is_there_is_lost_when_a_job_is_made_again_or_fails(made):
    """A notebook that was cut off after its result is executed again; a result that is gone, and cannot be made."""
    folder, trial = made["runs"] / GLUE, made["checkout"] / "results" / "x.ipynb"
    trial.rename(trial.with_name("x.partial.ipynb"))
    (folder / "fidelity-validation.csv").unlink()
    (folder / "model").rename(folder / "away")
    files = [path for path in made["runs"].rglob("*.*") if path.is_file() and "partial" not in path.name]
    before = {path: path.read_bytes() for path in files if path.parent.name != "away"}
    again = make(made["checkout"], "small")
    (folder / "away").rename(folder / "model")
    assert said_of(again).startswith("study small: 2 of 4 jobs are done, 2 are made now")
    assert f"{GLUE}/model is not there (models are not kept" in again.stdout
    assert again.stdout.count("FAILED ") == 1
    assert trial.exists()
    assert [path for path, content in before.items() if path.read_bytes() != content] == []


def test_a_job_that_fails_after_its_result_loses_nothing(made):
    """Not even if an older backup of Snakemake's lies there; its notebook is executed again."""
    assert "ValueError: broken" in made["failed"].stdout
    assert made["result"] == "new"
    assert {path.name for path in (made["checkout"] / "results").glob("x.*")} == {"x.csv", "x.ipynb"}


def test_the_same_study_is_not_made_twice_at_once(made):
    """Both would write the same tables."""
    with FileLock(made["checkout"] / "logs" / ".small.lock"):
        done = make(made["checkout"], "small")
    assert (done.returncode, said_of(done)) == (1, "error: study small is being made by another process\n")


def test_each_job_has_one_gpu_and_comes_after_the_run_whose_model_it_reads(made):
    """As it would be with two, of which one is named otherwise."""
    arms = {"softmax": None, "key-clusters": None, "window": None}
    first = "results/runs/three/mini-mrpc/mini/window/seed-0"
    tasks = {"mini-mrpc": {"arms": arms}, "mini-sst2": {"model": f"{first}/model", "arms": {"softmax": None}}}
    write_study(made["checkout"], "three", parameters={"model": "mini"}, tasks=tasks)
    code = "import sys, torch; torch.cuda.device_count = lambda: 2; from snakemake.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, *["-n", "-p", "--cores", "8", "--config", "study=three"]]
    environment = os.environ | {"PYTHONPATH": str(made["checkout"] / "lib"), "CUDA_VISIBLE_DEVICES": "5,GPU-8a"}
    said = subprocess.run(command, cwd=made["checkout"], env=environment, capture_output=True, text=True).stdout
    assert sorted(re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) ", said)) == ["5", "5", "GPU-8a", "GPU-8a"]
    assert said.count("gpu_0=1, gpu_1=0") == 2
    assert re.findall(r"input: (results\S+)\n", said) == [f"{first}/notebook.ipynb"]
