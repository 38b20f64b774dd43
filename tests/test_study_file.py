"""Study files: what is refused, and how it is said; what YAML means; names that become parts of paths and commands; a
file with a damaged text, or in another encoding: named, or read."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_study.study import StudyError, load_jobs
from wrong_values import REFUSED, answer

MINI = "parameters: {model: mini}\n"
TASKS = "tasks: {mini-mrpc: {arms: {softmax: }}}\n"
SWITCHED = MINI.replace("mini}", "mini, save_model: true}")


def load(root, text):
    """The jobs of a study with this text."""
    (root / "studies" / "x.yaml").write_text(text, errors="surrogateescape")
    return list(load_jobs("x").values())


TEXTS = [
    (MINI, "x.yaml, line 1: tasks or notebooks must name at least one"),
    ("", "x.yaml: study=None must be a valid dictionary"),
    (MINI + "tasks:\n  mini-mrpc:\n    epochs: 3\n", "line 3: tasks: mini-mrpc: arms must be given"),
    (
        MINI + "tasks:\n  mini-mrpc:\n    arms:\n      1:\n",
        "line 5: tasks: mini-mrpc: arms.1.=1 must be a valid string",
    ),
    (MINI + "tasks: {mini-mrpc: {arms: {lhs: }}}", "line 2: .*arms: lhs: attention='lhs' is not one of"),
    (MINI + "tasks: {mini-mrpc: {switched: {held: {seed: 3}}, arms: {softmax: }}}", "'held' is not one of"),
    (
        MINI + "switched: {held-out: {shares: [1.5]}}\n" + TASKS,
        r"line 2: switched: held-out: shares\[0\]=1.5 must be less than or equal to 1",
    ),
    ("notebooks:\n  a:\n    task: text\n", "line 2: notebooks: a: notebook must be given"),
    ("notebooks: {a/b: {notebook: reading}}\n", "notebooks: a/b='a/b' must match pattern"),
    ("notebooks: {a: {notebook: raeding}}\n", "line 1: notebooks: a: notebook='raeding' is not one of: pretrain, long"),
    (
        "notebooks:\n  a: {notebook: bag_of_words, tasks: [mini-mrpc]}\n"
        "  b: {notebook: bag_of_words, tasks: [mini-sst2]}\n",
        "notebooks: b: it writes the results of 'a', .*csv; name another output",
    ),
    ("notebooks: {a: {notebook: efficiency, lengths: []}}\n", "notebooks: a: lengths=.. must have at least 1 item"),
    (MINI + "seeds: [0, 0]\n" + TASKS, r"line 2: seeds: \[0, 0\] has a value twice"),
    (
        MINI + "tasks: {mini-mrpc: {seeds: [0, 1],\n later: [1, 2], arms: {key-clusters: }}}",
        "line 3: .*key-clusters: later: 2 is not one of the",
    ),
    (MINI + "seeds: [true]\n" + TASKS, r"seeds\[0\]=True must be a number"),
    ("parameters: {seed: 7}\n" + TASKS, "line 1: parameters: 'seed' is no key here; give seeds, a list"),
    ("parameters:\n  model: mini\n  epochs: true\n" + TASKS, "line 3: .*softmax: epochs=True must be a number"),
    ("parameters: {model: mini, max_length: 1-30}\n" + TASKS, "max_length='1-30' must be a valid integer"),
    ("paramters: {model: mini}\n" + TASKS, "line 1: 'paramters' is no key here; did you mean 'parameters'"),
    (MINI + "switched: {held-out: {sharse: [0.5]}}\n" + TASKS, "held-out: 'sharse' is no key .* mean 'shares'"),
    (MINI + "tasks:\n  mini-mrpc:\n    arms:\n      key-clusters: {share: 0.25}\n", "line 5: .*'share'.*_settings"),
    ("parameters:\n  learning_rte: 1\n" + TASKS, "line 2: .*'learning_rte' is no key .* 'learning_rate'"),
    (MINI + "tasks:\n  mini-mrpc:\n    arm: {softmax: }\n", "(?s)arms must be given.*line 4: .*'arm' is no key"),
    ("parameters:\n  model: mini\n  model: nano\n" + TASKS, "(?s)the key 'model' is given twice.*line 3"),
    (TASKS, "line 1: tasks: mini-mrpc: arms: softmax: model must be given"),
    ("tasks: " + "[" * 2_000, "x.yaml is no study: maximum recursion"),
    ("tasks: !!python/name:os.system x\n", "(?s)could not determine a constructor .*os.system.*line 1"),
    ("tasks: \udcff", "x.yaml is no study: 'utf-8' codec"),
    (
        SWITCHED + "switched: {vlidation: {variants: {a: {attention: key-clusters}}}}\n" + TASKS,
        "is not one of: held-out",
    ),
]


@pytest.mark.parametrize(("text", "said"), TEXTS)
def test_what_is_no_study_is_refused_with_its_line(root, text, said):
    with pytest.raises(StudyError, match=said):
        load(root, text)


def test_numbers_may_be_written_as_python_does_and_what_is_meant_may_be_said_again(root):
    text = "parameters: {model: mini, max_length: +64, learning_rate: 1e-5, epochs: .5}\n"
    (job,) = load(root, text + TASKS)
    assert (job.run.max_length, job.run.learning_rate, job.run.epochs) == (64, 1e-5, 0.5)
    text = MINI + "tasks:\n  mini-mrpc: &a {epochs: 1, arms: {softmax: }}\n  mini-sst2: &b {<<: *a, epochs: 2}\n"
    jobs = load(root, text + "  mini-mnli: {<<: [*b, *a], batch_size: 8}\n")
    assert [job.run.epochs for job in jobs] == [1, 2, 2]


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "$x", "..", "", "-n", "x$(touch A)", "a\nb", "é", "a" * 101])
def test_a_name_that_is_more_than_a_name_is_refused(root, name):
    arms = {"softmax": {"model": f"org/{name}/.." if name else "", "attention": "softmax"}}
    for tasks in ({"mini-mrpc": {"arms": arms}}, {name: {"arms": {"x": None}}}, {"mini-mrpc": {"arms": {name: None}}}):
        with pytest.raises(StudyError, match="must match pattern"):
            load(root, json.dumps({"parameters": {"model": "mini"}, "tasks": tasks}))
    with pytest.raises(StudyError, match="is not one of: "):
        load_jobs(name, root)


def test_a_table_outside_of_results_is_refused(root):
    for output in ("../x.csv", "/tmp/x.csv", "lib/x.csv"):
        entry = {"notebook": "reading", "variants": {"few": {"attention": "key-clusters"}}, "output": output}
        with pytest.raises(StudyError, match=r"notebooks: a: .*x.csv is not in results/"):
            load(root, json.dumps({"notebooks": {"a": entry}}))


def test_an_arm_has_the_attention_of_its_name(root):
    """Parameters of all tasks may name an attention too, for arms whose names are none."""
    arms = "{softmax: , key-clusters: , long: {max_length: 64}, other: {attention: random}}"
    jobs = load(root, f"parameters: {{model: mini, attention: window}}\ntasks: {{mini-mrpc: {{arms: {arms}}}}}\n")
    assert [job.run.attention for job in jobs] == ["softmax", "key-clusters", "window", "random"]


def test_a_task_may_change_what_its_models_are_evaluated_under(root):
    """And the study's shares are those of every variant that names none."""
    few, switched = {"attention": "key-clusters", "axes": 4}, {"looked_into": 4, "shares": [0.125, 0.12]}
    tasks = {"switched": {"validation": {"examples": 9, "variants": {"window": None, "more": few | {"share": 0.1}}}}}
    study = {
        "parameters": {"model": "mini", "save_model": True},
        "switched": {
            "validation": switched | {"variants": {"few": few, "window": {"attention": "window"}}},
            "held-out": {"seeds": [0], "examples": 8, "variants": {"few": few}},
        },
        "seeds": [0, 1],
        "tasks": {"mini-mrpc": tasks | {"arms": {"softmax": None}}},
    }
    jobs = {job.name.removeprefix("mini-mrpc/mini/softmax/"): job for job in load(root, json.dumps(study))}
    evaluated = {"seed-0/fidelity-validation", "seed-1/fidelity-validation", "seed-0/fidelity-held-out"}
    assert set(jobs) == {"seed-0", "seed-1", *evaluated}
    folder = "results/runs/x/mini-mrpc/mini/softmax/seed-1"
    assert jobs["seed-1/fidelity-validation"].results == (f"{folder}/fidelity-validation.csv",)
    variants = {"few": {"shares": [0.125, 0.12], **few}, "more": few | {"share": 0.1}}
    expected = {"looked_into": 4, "examples": 9, "split": "validation", "trained": folder, "variants": variants}
    assert jobs["seed-1/fidelity-validation"].parameters == expected


CHARACTERS = st.sampled_from([*" :-[]{}&*#|>'\"!%@`,?\n\t\0\ufeff01.é", "<<", "---", "1e400", "!!python/name:os"])
STUDY = {
    "parameters": {"model": "mini", "save_model": True},
    "seeds": [0, 1],
    "switched": {"validation": {"variants": {"few": {"attention": "key-clusters", "n_hashes": 1}}, "shares": [0.25]}},
    "tasks": {
        "mini-mrpc": {"max_length": 48, "arms": {"softmax": None, "key-clusters": {"attention_settings": {"keys": 4}}}}
    },
    "notebooks": {"a": {"notebook": "reading", "variants": {"few": {"attention": "key-clusters"}}, "max_length": 64}},
}
GOOD = yaml.safe_dump(STUDY, sort_keys=False)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "studies").mkdir()
    return root


@settings(max_examples=400)
@given(
    st.integers(0, len(GOOD)), st.integers(0, 40), st.lists(CHARACTERS, max_size=6), st.sampled_from(["utf8", "utf16"])
)
def test_a_damaged_study_file_is_named_or_read(repository, start, length, inserted, encoding):
    text = GOOD[:start] + "".join(inserted) + GOOD[start + length :]
    (repository / "studies" / "x.yaml").write_bytes(text.encode(encoding, "replace"))
    jobs = answer(lambda: load_jobs("x", repository), "studies/x.yaml")
    if jobs is not REFUSED:
        json.dumps([job.parameters for job in jobs.values()], allow_nan=False)
