"""Records: complete or not there; predictions small, without texts; where a run ran."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from albert_lsh import machine
from albert_lsh.files import write_atomically
from albert_lsh.record import (
    SCHEMA,
    differences,
    read_predictions,
    read_result,
    todays_method,
    write_predictions,
    write_result,
)
from albert_lsh.run import Run

WHOLE = {"parameters": {}, "metrics": {}, "headline": {}}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "running"}', '{"status": "complete", "schema": 3}'])
def test_a_damaged_result_is_named(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="result.json is (damaged|not of a complete run).*look at it; moved away"):
        read_result(path)


def test_a_flipped_bit_of_a_record_is_noticed_and_another_schema_not_read(tmp_path):
    path = write_result(tmp_path, {**WHOLE, "metrics": {"f1": 0.5}}, pd.DataFrame({"step": [1]}))
    text = path.read_text()
    assert write_result(tmp_path, WHOLE, pd.DataFrame()) == path  # a finished result stays
    # The second as a clone by Git for Windows has it, the third as an editor leaves it.
    for content in (text.encode(), text.replace("\n", "\r\n").encode(), text.encode("utf-8-sig")):
        path.write_bytes(content)
        assert read_result(path)["metrics"] == {"f1": 0.5}
    path.write_text(text.replace("0.5", "0.7"))
    with pytest.raises(ValueError, match=r"result.json is damaged \(its checksum is another\)"):
        read_result(path)
    for schema in (None, 2, "3"):
        path.write_text(json.dumps({**WHOLE, "status": "complete", "schema": schema}))
        with pytest.raises(ValueError, match=f"has schema {schema}; this version of albert-lsh reads schema 3"):
            read_result(path)


def test_a_parameter_or_setting_that_a_record_lacks_counts_with_its_default():
    run = Run.parse({"task": "mini-mrpc", "attention": "random"})
    older = {k: v for k, v in run.recorded().items() if k not in ("folds", "projections", "accumulation")}
    older["attention_settings"] = {"share": 0.25}
    assert differences({"parameters": older}, run.identity(), run.defaults()) == []
    block = {"task": "mini-mrpc", "attention": "reformer", "output_dir": run.output_dir}
    before = {k: v for k, v in Run.parse(block).recorded().items() if k not in ("residual", "pad_to_max_length")}
    before["attention_settings"] = {"bucket_size": 64, "n_hashes": 8, "full_attn_thres": None}
    for changes, other in (({}, 0), ({"residual": True, "mask_padding": True}, 0), ({"residual": False}, 1)):
        today = Run.parse({**block, "attention_settings": changes})
        assert len(differences({"parameters": before}, today.identity(), today.defaults())) == other
    other = run.model_copy(update={"accumulation": 2, "seed": 1}).identity()
    said = differences({"parameters": older}, other, run.defaults())
    assert said == ["seed=0, not 1", "accumulation=1, not 2"]


def test_writing_leaves_the_old_file_when_it_fails(tmp_path):
    write_atomically(tmp_path / "it", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "it", "\ud800")
    assert (tmp_path / "it").read_text() == "old"


def test_a_run_takes_the_cores_that_are_free_and_says_so(monkeypatch, capsys):
    before, used = torch.get_num_threads(), iter([10.0, 10.0 + 99 * machine.LOOK])
    monkeypatch.setattr(machine, "seconds_of_others", lambda: next(used))
    monkeypatch.setenv("OMP_NUM_THREADS", str(before))
    assert machine.choose_threads("cpu") == before  # somebody has chosen
    monkeypatch.delenv("OMP_NUM_THREADS")
    try:
        torch.set_num_threads(2)
        assert machine.choose_threads("cpu") == torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert "threads: 1 of" in capsys.readouterr().out


AXES = {"axes": 8}


@pytest.mark.parametrize(("name", "settings", "version", "today"), [
    ("lsh", {}, None, ("lsh-tree", 1)),  # records older than versions
    ("lsh", AXES, None, ("key-clusters", 2)),
    ("lsh", {}, 1, ("lsh-tree", 1)),
    ("lsh", AXES, 1, ("key-clusters", 2)),  # of the days in which axes were a setting of version 1
    ("lsh", AXES, 2, ("key-clusters", 2)),
    ("key-clusters", AXES, 2, ("key-clusters", 2)),
    ("plain-lsh", {}, None, ("lsh", 3)),
    ("plain-lsh", {}, 1, ("lsh", 3)),
    ("lsh", {}, 3, ("lsh", 3)),
    ("shared-qk-lsh", {}, None, ("shared-qk-lsh", 1)),
    ("softmax", {}, 1, ("softmax", 1)),
])  # fmt: skip
def test_the_attention_of_a_record_has_the_name_of_today(name, settings, version, today, tmp_path):
    """And so have its model, its label, and the attentions that it was evaluated under; the file stays as it is."""
    old = {"attention": name, "attention_settings": settings, "model": "nano-lsh", "label": f"{name}, 1/4"}
    old |= {"evaluate": {f"{name}, 1/8": {"attention": name, **settings}, "rest": {"attention": "random"}}}
    resolved = {} if version is None else {"attention_version": version}
    metrics = {"accuracy": 1.0, f"accuracy, {name}, 1/8": 0.5, "cost, rest": 0.2}
    record = {"status": "complete", "schema": 3, "parameters": old, "resolved": resolved, "metrics": metrics}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(record))
    result = read_result(path)
    parameters, new = result["parameters"], today[0]
    assert (parameters["attention"], result["resolved"]["attention_version"]) == today
    assert parameters["model"] == "nano-key-clusters"
    assert parameters["label"] == f"{new}, 1/4"
    at_an_eighth = todays_method(name, settings)[0]  # of which no version was recorded
    evaluated = {} if at_an_eighth == "lsh-tree" else {f"{at_an_eighth}, 1/8": 0.5}  # which left
    assert {label: one["attention"] for label, one in parameters["evaluate"].items()} == {
        **dict.fromkeys(evaluated, at_an_eighth),
        "rest": "random",
    }
    of_labels = {f"accuracy, {label}": score for label, score in evaluated.items()}
    assert result["metrics"] == {"accuracy": 1.0, **of_labels, "cost, rest": 0.2}
    assert json.loads(path.read_text()) == record
    path.write_text(json.dumps(record | {"schema": SCHEMA}))
    assert read_result(path)["parameters"] == old  # of today's schema no name is translated


def test_settings_of_a_record_have_the_names_of_today(tmp_path):
    """A share beside a size of clusters is the sizes that it came to."""
    both = {"attention": "key-clusters", "share": 0.125, "cluster_size": 16, "axes": 8}
    parameters = {"attention": "lsh", "attention_settings": {"share": 0.25, "rest": True}, "max_length": 1024}
    parameters |= {"evaluate": {"few": {"attention": "random", "rest": False}, "both": both}}
    record = {"status": "complete", "schema": SCHEMA, "parameters": parameters, "metrics": {}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(record))
    today = read_result(path)["parameters"]
    assert today["attention_settings"] == {"share": 0.25, "mean_key": True}
    sizes = {"n_hashes": 7, "cluster_size": 16, "global_tokens": 2, "mean_key": True, "axes": 8}
    both = {"attention": "key-clusters", **sizes}
    assert today["evaluate"] == {"few": {"attention": "random", "mean_key": False}, "both": both}


def test_a_result_of_another_version_of_its_attention_is_another_result():
    run = Run.parse({"task": "mini-mrpc", "attention": "key-clusters", "device": "cpu", "precision": "fp32"})
    for changes, version, other in (
        ({}, 2, []),
        ({"attention": "lsh-tree"}, 1, ["attention='lsh-tree', not 'key-clusters'"]),
        ({}, 3, ["attention 'key-clusters' is of version 3, here it is 2, which computes otherwise"]),
    ):
        result = {"parameters": run.recorded() | changes, "resolved": {"attention_version": version}}
        assert differences(result, run.identity(), run.defaults()) == other


def like_squad(n, rng):
    """Answers to n questions, whose ids are numbers in a row in groups of five, as SQuAD's are."""
    groups, start = [rng.bytes(10).hex() for _ in range(n // 5 + 1)], rng.integers(0, 800, n).astype("int32")
    answers = {"start": start, "end": start + rng.integers(1, 60, n).astype("int32")}
    floats = {name: rng.normal(8, 4, n).astype("float32") for name in ("score", "null_score")}
    flags = {name: rng.random(n) < 0.5 for name in ("answered", "is_answerable")}
    return pd.DataFrame({"id": [f"{groups[i // 5]}{4096 + i % 5:04x}" for i in range(n)], **answers, **floats, **flags})


def like_qqp(n, rng):
    classes = {name: rng.integers(0, 2, n).astype("int32") for name in ("label", "answer")}
    logits = {f"logit_{i}": rng.normal(0, 3, n).astype("float32") for i in range(2)}
    return pd.DataFrame({"split": "validation", "id": np.arange(n, dtype="int32"), **classes, **logits})


def like_numbers(n, rng):
    values = {name: rng.normal(3, 1, n).astype("float32") for name in ("label", "logit_0")}
    return pd.DataFrame({"split": "validation", "id": np.arange(n, dtype="int32"), **values})


def like_large_logits(n, rng):
    table = like_qqp(n, rng)
    return table.assign(logit_1=table["logit_1"] * 1e5)


@pytest.mark.parametrize("made", [like_numbers, like_large_logits])
def test_a_regressions_values_and_what_half_precision_has_not_stay_as_they_are(made, tmp_path):
    table, path = made(40_430, np.random.default_rng(0)), tmp_path / "predictions.parquet"
    write_predictions(path, table)
    pd.testing.assert_frame_equal(read_predictions(path), table)


@pytest.mark.parametrize(("made", "n", "kept"), [(like_squad, 11_873, "float32"), (like_qqp, 40_430, "float16")])
def test_the_largest_development_sets_fit(made, n, kept, tmp_path):
    """Noise compresses worst. Only outputs are rounded, and only where the file is too large otherwise."""
    table, path = made(n, np.random.default_rng(0)), tmp_path / "predictions.parquet"
    write_predictions(path, table)
    assert path.stat().st_size <= 200_000
    again = read_predictions(path)
    outputs = [name for name in table if table[name].dtype == "float32"]
    assert {str(again[name].dtype) for name in outputs} == {kept}
    np.testing.assert_allclose(again[outputs], table[outputs], rtol=1e-3)
    for name in set(table) - set(outputs):
        assert again[name].tolist() == table[name].tolist()


def test_texts_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "predictions.parquet"
    with pytest.raises(ValueError, match=r"predictions.parquet: column 'answer' holds text"):
        write_predictions(path, pd.DataFrame({"id": ["a"], "answer": ["in 1943"]}))
    path.write_text(json.dumps({}))
    with pytest.raises(ValueError, match="predictions.parquet cannot be read"):
        read_predictions(path)
