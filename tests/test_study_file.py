"""Study files: what is refused, and how it is said; what YAML means; names that become parts of paths and commands."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from importlib import import_module

import pytest

from albert_lsh.training import parameters
from albert_lsh.training.record import SCHEMA
from albert_study import runner
from albert_study.jobs import NOTEBOOKS, Run, StudyError, load_jobs, load_study
from albert_study.make import running
from albert_study.runner import to_make
from test_study import ROOT

MINI = "parameters: {model: mini}\n"
TASKS = "tasks: {mini-mrpc: {arms: {softmax: }}}\n"
TENS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository of its own."""
    for place, _ in NOTEBOOKS.values():
        import_module(place.partition(":")[0])
    for module in list(sys.modules.values()):
        if module.__name__.startswith("albert_") and hasattr(module, "repository_root"):
            monkeypatch.setattr(module, "repository_root", lambda: tmp_path)
    (tmp_path / "studies").mkdir()
    return tmp_path


def load(root, text) -> list[Run]:
    (root / "studies" / "x.yaml").write_text(text, errors="surrogateescape")
    load_jobs("x")
    return load_study("x")


def one_arm(arm: str, model: str = "mini", task: str = "mini-mrpc") -> str:
    return json.dumps({"parameters": {"model": model}, "tasks": {task: {"arms": {arm: {"attention": "softmax"}}}}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINI, "x.yaml, line 1: tasks or notebooks must name at least one"),
        ("", "x.yaml: Input should be a valid dictionary"),
        ("- a\n", "line 1: Input should be a valid dictionary"),
        (MINI + "tasks:\n", "line 2: tasks: Input should be a valid dictionary.*, not None"),
        (MINI + "tasks:\n  mini-mrpc:\n    epochs: 3\n", "line 3: tasks: mini-mrpc: arms must be given"),
        (
            MINI + "tasks:\n  mini-mrpc:\n    arms: [softmax]\n",
            r"line 4: tasks: mini-mrpc: arms: .*dictionary.*\['soft",
        ),
        (
            MINI + "tasks:\n  mini-mrpc:\n    arms:\n      1:\n",
            "line 5: tasks: mini-mrpc: arms: 1: .*valid string, not 1",
        ),
        (MINI + "tasks: {mini-mrpc: {arms: {no: }}}", "arms: no: attention='no' is not one of"),
        (MINI + "tasks: {mini-mrpc: {switched: , arms: {softmax: }}}", "mini-mrpc: switched: .*not None"),
        (MINI + "tasks: {mini-mrpc: {switched: {held: {seed: 3}}, arms: {softmax: }}}", "'held' is not one of"),
        (MINI + "switched: {held-out: {shares: [1.5]}}\n" + TASKS, "line 2: .*shares: 0: .*less than or equal to 1"),
        ("notebooks:\n  a:\n    task: text\n", "line 2: notebooks: a: notebook must be given"),
        ("notebooks: {a/b: {notebook: reading}}\n", "notebooks: a/b: String should match pattern .*, not 'a/b'"),
        (
            "notebooks: {a: {notebook: raeding}}\n",
            "notebooks: a: notebook='raeding' is not one of: pretrain, long_range",
        ),
        ("notebooks: {a: {notebook: long_range, task: txt}}\n", "notebooks: a: task='txt' is not one of"),
        ("notebooks: {a: {notebook: efficiency, lengths: []}}\n", "notebooks: a: lengths=.. must have at least 1 item"),
        (MINI + "switched:\n" + TASKS, "line 2: switched: .*dictionary, not None"),
        (MINI + "seeds: 3\n" + TASKS, "line 2: seeds: Input should be a valid list, not 3"),
        (MINI + "seeds: '012'\n" + TASKS, "line 2: seeds: Input should be a valid list, not '012'"),
        (MINI + "seeds: [0, 0]\n" + TASKS, r"line 2: seeds: \[0, 0\] has a value twice"),
        (MINI + "seeds: []\n" + TASKS, "line 2: seeds: List should have at least 1 item"),
        (MINI + "seeds:\n" + TASKS, "line 2: seeds: Input should be a valid list, not None"),
        (MINI + "seeds: [true]\n" + TASKS, "seeds: 0: Input should be a valid integer, not True"),
        ("parameters: {seed: 7}\n" + TASKS, "line 1: parameters: seed cannot be a parameter here .give seeds"),
        ("parameters: {batch_size: '32'}\n" + TASKS, "batch_size: Input should be a valid integer, not '32'"),
        ("parameters: {max_length: 1:30}\n" + TASKS, "max_length: Input should be a valid integer, not '1:30'"),
        ("parameters: {epochs: true}\n" + TASKS, "epochs: Input should be a valid number, not True"),
        ("parameters: {save_model: yes}\n" + TASKS, "save_model: Input should be a valid boolean, not 'yes'"),
        ("paramters: {model: mini}\n" + TASKS, "line 1: 'paramters' is no key here; did you mean 'parameters'"),
        (
            MINI + "switched: {held-out: {sharse: [0.5]}}\n" + TASKS,
            "line 2: switched: held-out: 'sharse' is no key here; did you mean 'shares'",
        ),
        (MINI + "tasks: {mini-mrpc: {arms: {switched: {epoch: 3}}}}\n", "switched: 'epoch' is no key .* 'epochs'"),
        (
            MINI + "tasks:\n  mini-mrpc:\n    arms:\n      lsh: {share: 0.25}\n",
            "line 5: .*lsh: 'share' is no key here; an attention's settings go into attention_settings",
        ),
        ("taks: {}\n", "line 1: 'taks' is no key here; did you mean 'tasks'"),
        (
            "paths: {}\n" + TASKS,
            "line 1: 'paths' is no key here; there are: parameters, seeds, switched, tasks, notebooks",
        ),
        (
            "parameters:\n  learning_rte: 1e-5\n" + TASKS,
            "line 2: parameters: 'learning_rte' is no key here; did you mean 'learning_rate'",
        ),
        (
            MINI + "tasks:\n  mini-mrpc:\n    arm: {softmax: }\n",
            "(?s)line 3: tasks: mini-mrpc: arms must be given.*line 4: tasks: mini-mrpc: 'arm' is no key here.*'arms'",
        ),
        ("parameters:\n  model: mini\n  model: nano\n" + TASKS, "(?s)the key 'model' is given twice.*line 3"),
        (TASKS, "arms: softmax: model must be given"),
        ("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + TENS, "more than 20,000 values"),
        ("a0: &a0 {x: 1}\n" + TENS.replace("[", "{<<: [").replace("]", "]}"), "more than 20,000 values"),
        ("tasks: " + "[" * 2_000, "nested too deeply"),
        ("a: &a [*a]\n", "(?s)more than 20,000 values.*line 1"),
        ("tasks: !!int [1]\n", "(?s)expected a scalar node, but found sequence.*line 1"),
        ("tasks: !!int x\n", "x.yaml is no study: invalid literal"),
        ("tasks: !!python/name:os.system x\n", "(?s)could not determine a constructor for the tag .*os.system.*line 1"),
        ("tasks: \udcff", "x.yaml is no study: 'utf-8' codec"),
        ("tasks: {a: [}\n", "(?s)x.yaml is no study.*line 1, column 13"),
    ],
)
def test_what_is_no_study_is_refused_at_once_with_its_line(root, text, said):
    began = time.monotonic()
    with pytest.raises(StudyError, match=said):
        load(root, text)
    assert time.monotonic() - began < 5


def test_numbers_and_texts_are_those_of_yaml_1_2(root):
    text = "parameters: {model: no, batch_size: 010, max_length: +64, learning_rate: 1e-5, weight_decay: .5}\n"
    (run,) = load(root, text + TASKS)
    assert run.parameters["model"] == "no"
    assert [run.parameters[k] for k in ("batch_size", "max_length", "learning_rate", "weight_decay")] == [
        10,
        64,
        1e-5,
        0.5,
    ]


def test_aliases_and_merge_keys_may_say_again_what_is_meant(root):
    text = MINI + "tasks:\n  mini-mrpc: &a {epochs: 1, arms: {softmax: }}\n  mini-sst2: &b {<<: *a, epochs: 2}\n"
    found = load(root, text + "  mini-mnli: {<<: [*b, *a], batch_size: 8}\n")
    assert [run.parameters["epochs"] for run in found] == [1, 2, 2]


BAD_NAMES = ["../../x", "/tmp/x", "$x", "x/y", "..", "", "-n", "x$(touch PWNED)", "a b", "a;b", "a\nb", "é", "a" * 101]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_more_than_a_name_is_refused(root, name):
    for text in (one_arm(name), one_arm("softmax", model=f"org/{name}/.." if name else ""), one_arm("x", task=name)):
        with pytest.raises(StudyError, match="String should match pattern"):
            load(root, text)
    with pytest.raises(StudyError, match="is not one of: "):
        load_study(name, root)


def test_models_are_of_the_hub_or_folders(root):
    for model in ("org/a-model_1.5", "/some/where else/model/", "mini"):
        (run,) = load(root, one_arm("softmax-2.x", model=model))
        assert run.folder.is_relative_to(root / "results" / "runs" / "x" / "mini-mrpc")


def test_a_folder_that_a_link_puts_elsewhere_is_refused(root, tmp_path_factory):
    (root / "results" / "runs" / "x").mkdir(parents=True)
    (root / "results" / "runs" / "x" / "mini-mrpc").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(StudyError, match="arms: softmax: its folder, .*elsewhere.*, is not in results/runs"):
        load(root, one_arm("softmax"))


def record(run: Run, **changes) -> None:
    """The result that a run would have left, but for some parameters."""
    made = dataclasses.asdict(parameters.Parameters.check(run.parameters, run.notebook)) | changes
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


def test_a_study_is_read_from_the_repository_that_is_meant(tmp_path):
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    (tmp_path / "studies" / "minilm.yaml").rename(tmp_path / "studies" / "same.yaml")
    assert len(load_study("same", tmp_path)) == len(load_study("minilm"))


def test_an_arm_has_the_attention_of_its_name(root):
    """Parameters of all tasks may name an attention too, for arms whose names are none."""
    arms = "{softmax: , lsh: , long: {max_length: 64}, other: {attention: random}}"
    load(root, f"parameters: {{model: mini, attention: window}}\ntasks: {{mini-mrpc: {{arms: {arms}}}}}\n")
    found = {run.arm: run.parameters["attention"] for run in load_study("x")}
    assert found == {"softmax": "softmax", "lsh": "lsh", "long": "window", "other": "random"}


SWITCHED = MINI.replace("mini}", "mini, save_model: true}")


def test_a_split_that_the_task_does_not_have_is_refused(root):
    text = SWITCHED + "switched: {vlidation: {variants: {window: {attention: window}}}}\n" + TASKS
    with pytest.raises(StudyError, match="switched: 'vlidation' is not one of: held-out, validation"):
        load(root, text)


def test_a_task_may_change_what_its_models_are_evaluated_under(root):
    text = (
        SWITCHED
        + """
switched:
  validation: {looked_into: 4, variants: {few: {attention: lsh, n_hashes: 1}, window: {attention: window}}}
  held-out: {seeds: [0], examples: 8, variants: {few: {attention: lsh, n_hashes: 1}}}
seeds: [0, 1]
tasks:
  mini-mrpc:
    switched: {validation: {examples: 9, variants: {window: , more: {attention: lsh, n_hashes: 2}}}}
    arms: {softmax: }
"""
    )
    first, second = load(root, text)
    variants = {"few": {"attention": "lsh", "n_hashes": 1}, "more": {"attention": "lsh", "n_hashes": 2}}
    validation = {"looked_into": 4, "examples": 9, "split": "validation", "variants": variants}
    assert second.switched == {"validation": validation}
    assert first.switched.keys() == {"validation", "held-out"}
    (job,) = [job for name, job in load_jobs("x").items() if name.endswith("seed-1/fidelity-validation")]
    assert job.parameters == {**validation, "trained": "results/runs/x/mini-mrpc/mini/softmax/seed-1"}
    assert job.results == ("results/runs/x/mini-mrpc/mini/softmax/seed-1/fidelity-validation.csv",)


def test_a_study_s_shares_are_those_of_every_variant_that_names_none(root):
    variants = "{a: {attention: window}, b: {attention: window, share: 0.1}, c: {attention: window, shares: [0.2]}}"
    (run,) = load(root, f"{SWITCHED}switched: {{validation: {{shares: [0.125, 0.12], variants: {variants}}}}}\n{TASKS}")
    found = run.switched["validation"]["variants"]
    assert found["a"]["shares"] == [0.125, 0.12]
    assert found["b"] == {"attention": "window", "share": 0.1}
    assert found["c"]["shares"] == [0.2]


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


def test_a_changed_parameter_names_all_runs_that_it_affects_and_what_removes_them(root, capsys):
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
        assert f"  mini-mrpc/mini/softmax/seed-{number}: made with epochs=3, not 5" in said
    command = said[said.index("  rm -r ") :]
    subprocess.run(["bash", "-c", command], cwd=root, check=True)
    assert [job.run for job in to_make("x", load_jobs("x"))] == load_study("x")
    assert not any(run.folder.exists() for run in runs)


def test_a_result_that_cannot_be_read_is_not_called_damaged(root):
    """Nobody is told to delete what they may not read."""
    (run,) = load(root, MINI + TASKS)
    (run.folder / "result.json").mkdir(parents=True)  # what reads it gets an OSError, as root too
    with pytest.raises(SystemExit, match="error: .*result.json") as refused:
        runner.main(["x"])
    assert not {"damaged", "delete", "rm"} & set(str(refused.value).split())


def test_a_run_that_is_asked_for_and_differs_is_named_with_what_removes_it(root):
    (run,) = load(root, MINI + TASKS)
    record(run, epochs=7.0)
    with pytest.raises(SystemExit, match=r"made with epochs=7.0, not 3(.|\n)*  rm -r results/runs/x/mini-mrpc/mini"):
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
