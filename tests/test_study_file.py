"""Study files: what is refused, and how it is said; what YAML means; names that become parts of paths and commands."""

import json
import shutil
import time

import pytest

from albert_study.jobs import StudyError, load_jobs, load_study
from study_texts import MINI, TASKS, load
from test_study import ROOT

TENS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))


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
        ("notebooks: {a: {notebook: long_range, task: txt}}\n", "notebooks: a: task='txt' must be 'duplication'"),
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
