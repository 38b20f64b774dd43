"""The jobs of a study: which are done, which differ from what its file asks for, and what is said of them."""

import json
import shutil

import pytest

from albert_lsh.record import SCHEMA
from albert_lsh.run import Run as Parameters
from albert_study import runner
from albert_study.jobs import Run, StudyError, load_jobs, load_study
from albert_study.make import running
from albert_study.runner import to_make
from study_texts import MINI, TASKS, load


def record(run: Run, **changes) -> None:
    """The result that a run would have left, but for some parameters."""
    made = Parameters.parse(run.parameters, run.notebook).recorded() | changes
    run.folder.mkdir(parents=True, exist_ok=True)
    result = {"status": "complete", "schema": SCHEMA, "parameters": made, "metrics": {}, "headline": {}}
    (run.folder / "result.json").write_text(json.dumps(result))


def test_a_result_made_with_other_parameters_is_not_taken_even_if_the_file_leaves_them_out(root):
    (run,) = load(root, MINI + TASKS)
    assert not run.is_done()
    for changes in ({}, {"device": "cuda", "precision": "fp16"}, {"save_model": True, "output_dir": "x"}):
        record(run, **changes)
        assert run.is_done()
    for name, value in {"epochs": 7.0, "warmup_share": 0.2, "attention_settings": {"window": 1}}.items():
        record(run, **{name: value})
        with pytest.raises(StudyError, match=f"result.json was made with {name}="):
            run.is_done()


def test_device_and_precision_count_where_the_file_names_them(root):
    for named, done in (("precision: fp32", False), ("precision: auto", True)):
        (run,) = load(root, f"parameters: {{model: mini, {named}}}\n{TASKS}")
        record(run, precision="fp16")
        if done:
            assert run.is_done()
        else:
            with pytest.raises(StudyError, match="precision='fp16', not 'fp32'"):
                run.is_done()


def test_a_record_need_not_have_a_setting_that_came_after_it(root):
    text = MINI + "tasks: {mini-mrpc: {arms: {lsh: {attention_settings: {%s}}}}}\n"
    (run,) = load(root, text % "keys: 16")
    record(run, attention_settings={"keys": 16})
    assert run.is_done()
    (run,) = load(root, text % "keys: 16, window: 2")
    with pytest.raises(StudyError, match="made with attention_settings={.*'window': 0.*, not {.*'window': 2"):
        run.is_done()


def entry(**parameters) -> str:
    return json.dumps({"notebooks": {"a": parameters}})


def test_a_notebook_is_done_when_what_it_writes_last_is_there(root):
    """Each declares where its results go, before it is executed."""
    of = {
        "pretrain": ({"seed": 1}, ["pretraining/nano-softmax/seed-1/result.json"]),
        "long_range": (
            {
                "max_length": 512,
                "variants": {"few": {"attention": "lsh"}},
                "task": "listops",
                "output_dir": "results/l",
            },
            ["l/listops-512/few/seed-0/result.json"],
        ),
        "efficiency": (
            {"lengths": [128], "cases": ["softmax"], "step_lengths": [], "step_cases": [], "precision": "bf16"}
            | {"output_dir": "results/efficiency"},
            ["efficiency/time-cpu-bf16.csv", "efficiency/memory-cpu-bf16.csv"],
        ),
        "reading": ({"variants": {"few": {"attention": "lsh"}}, "output": "results/r/256.csv"}, ["r/256.csv"]),
    }
    for notebook, (given, results) in of.items():
        load(root, entry(notebook=notebook, **given))
        job = load_jobs("x")["a"]
        assert job.results == tuple(f"results/{path}" for path in results)
        assert (job.notebook, job.parameters) == (f"{notebook}.ipynb", given)
        for path in map(root.joinpath, job.results):
            assert not job.is_done()
            assert job.status().startswith("to make  a: no results/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        assert job.is_done()


def test_a_notebook_that_would_write_outside_of_results_is_refused(root):
    for output in ("../x.csv", "/tmp/x.csv", "lib/x.csv"):
        with pytest.raises(StudyError, match="notebooks: a: .*x.csv is not in results/"):
            load(root, entry(notebook="reading", variants={"few": {"attention": "lsh"}}, output=output))


def test_a_job_says_why_it_is_done_or_not(root, capsys):
    text = MINI + "seeds: [0, 1, 2]\n" + TASKS
    runs = load(root, text)
    record(runs[1])
    record(runs[2], epochs=7.0)
    with pytest.raises(SystemExit, match="error: results not made as studies/x.yaml says, 1 of 3:"):
        runner.main(["x"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("to make  mini-mrpc/mini/softmax/seed-0: no results/runs/x/")
    assert said[1].startswith("done     mini-mrpc/mini/softmax/seed-1: ")
    assert "differs  mini-mrpc/mini/softmax/seed-2: results/runs/" in said[2]
    assert "was made with epochs=7.0, not 3" in said[2]
    with pytest.raises(SystemExit, match="study 'x' has no job 'y'; it has: mini-mrpc/mini/softmax/seed-0, "):
        runner.main(["x", "y"])


def test_a_changed_parameter_names_all_runs_that_it_affects_and_where_they_are(root):
    text = MINI + "seeds: [0, 1, 2, 3]\n" + TASKS
    runs = load(root, text)
    for run in runs[1:]:
        record(run)
    (runs[3].folder / "result.json").write_text("{")
    with pytest.raises(StudyError, match="results not made as studies/x.yaml says, 1 of 4:") as damaged:
        to_make("x", load_jobs("x"))
    assert "seed-3/result.json is damaged" in str(damaged.value)
    (root / "studies" / "x.yaml").write_text("parameters: {model: mini, epochs: 5}\nseeds: [0, 1, 2, 3]\n" + TASKS)
    with pytest.raises(StudyError, match="results not made as studies/x.yaml says, 3 of 4:") as changed:
        to_make("x", load_jobs("x"))
    said = str(changed.value)
    for number in (1, 2):
        assert f"  mini-mrpc/mini/softmax/seed-{number}: made with epochs=3.0, not 5.0" in said
    *_, first, second, third = said.splitlines()
    for number, folder in enumerate((first, second, third), 1):
        assert folder == f"  results/runs/x/mini-mrpc/mini/softmax/seed-{number}"
        shutil.move(root / folder.strip(), root / f"away-{number}")
    assert [job.run for job in to_make("x", load_jobs("x"))] == load_study("x")
    assert not any(run.folder.exists() for run in runs)


def test_a_result_that_cannot_be_read_is_not_called_damaged(root):
    """Nobody is told to delete what they may not read."""
    (run,) = load(root, MINI + TASKS)
    (run.folder / "result.json").mkdir(parents=True)  # what reads it gets an OSError, as root too
    with pytest.raises(SystemExit, match="error: .*result.json") as refused:
        runner.main(["x"])
    assert not {"damaged", "delete", "rm"} & set(str(refused.value).split())


def test_a_run_that_is_asked_for_and_differs_is_named(root):
    (run,) = load(root, MINI + TASKS)
    record(run, epochs=7.0)
    with pytest.raises(SystemExit, match=r"made with epochs=7.0, not 3(.|\n)*  results/runs/x/mini-mrpc/mini"):
        runner.main(["x", "mini-mrpc/mini/softmax/seed-0"])


def test_what_runs_is_said_with_the_step_that_it_has_reached(root):
    runs = load(root, MINI + "seeds: [0, 1, 2]\n" + TASKS)
    for run in runs[:2]:
        run.folder.mkdir(parents=True)
        (run.folder / "notebook.partial.ipynb").touch()
    checkpoint = runs[0].folder / "checkpoints" / "checkpoint-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 20, "max_steps": 60}))
    where = "mini-mrpc/mini/softmax/seed-"
    assert running(load_jobs("x")) == [f"{where}0 (step 20 of 60)", f"{where}1"]
