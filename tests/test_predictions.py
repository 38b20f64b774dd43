"""predictions.parquet: small, without texts, and enough to compute the scores again."""

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from albert_lsh import find_task, load_data, load_tokenizer, metrics, squad
from albert_lsh.record import environment, read_predictions, read_result, write_predictions, write_result
from albert_lsh.run import Run
from albert_lsh.tasks import encode
from albert_lsh.train import attended, prepare_model


def finished(folder, name):
    """A short run as the notebooks make it: its task, its data, and the path of its result."""
    task, tokenizer = find_task(name), load_tokenizer("mini")
    given = {"task": name, "epochs": 1, "max_length": 48, "batch_size": 16, "output_dir": str(folder)}
    run = Parameters.check(given, "squad.ipynb" if task.is_squad else "glue.ipynb")
    data = load_data(name, train_examples=64, eval_examples=40)
    first = task.evaluation[0]
    if task.is_squad:
        encoded = {split: squad.windows(rows, tokenizer, max_length=48) for split, rows in data.items()}
        model, scored = prepare_model(run, head="question-answering"), squad.for_trainer(data[first], encoded[first])
    else:
        encoded = encode(data, task, tokenizer, 48)
        model, scored = prepare_model(run, head="classification", **task.model_options), metrics.for_trainer(task)
    fit = train(model, tokenizer, run, encoded["train"], encoded[first], scored)
    if task.is_squad:
        baselines, table = squad.score_answers(fit.trainer, data[first], encoded[first])
    else:
        baselines, table = metrics.score_splits(fit.trainer, task, encoded)
    seen, sizes = attended(model, tokenizer, encoded[first], examples=4), {split: len(data[split]) for split in data}
    return task, data, write_result(run, task.headline, baselines, seen, fit, sizes, environment("cpu"), table)


def test_a_finished_result_is_not_written_again(tmp_path):
    finished(tmp_path, "mini-mnli")
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    assert {"result.json", "history.csv", "predictions.parquet"} <= kept.keys()
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")}
    finished(tmp_path, "mini-mnli")  # Run All again
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == kept
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.*")} == written


@pytest.mark.parametrize("name", ["mini-mnli", "mini-squad", "mini-squad-v2"])
def test_a_runs_scores_follow_from_its_predictions(name, tmp_path):
    task, data, path = finished(tmp_path, name)
    result, table = read_result(path), read_predictions(tmp_path / "predictions.parquet")
    assert (result["schema"], result["resolved"]["attention_settings"]) == (3, {})
    assert {"attended_share", "attention_mass", "full_cost"} <= result.keys()
    if task.is_squad:
        assert table["id"].tolist() == data["validation"]["id"][:]
        assert squad.scores_of(data["validation"], table) == result["metrics"]
        means = table[["exact", "f1"]].astype(float).mean() * 100
        assert means.to_dict() == pytest.approx({name: result["metrics"][name] for name in ("exact", "f1")})
        assert table["is_answerable"].tolist() == [bool(a["text"]) for a in data["validation"]["answers"]]
    else:
        assert metrics.scores_of(task, table) == result["metrics"]
        assert set(result["metrics"]) == {"accuracy", "accuracy_mismatched"}
        for split, rows in table.groupby("split"):
            assert rows["label"].tolist() == data[split]["label"][:]
            assert rows["id"].tolist() == data[split]["idx"][:]
            assert (rows.filter(like="logit_").to_numpy().argmax(1) == rows["answer"]).all()
    whole = (tmp_path / "predictions.parquet").read_bytes()
    assert not any(name.encode() in whole for name in ("Anna", "lovely"))


def test_the_predictions_of_a_regression_are_its_values(tmp_path):
    task, values = find_task("stsb"), np.array([[0.5], [3.25], [4.75]], dtype=np.float32)
    rows = Dataset.from_dict({"labels": [0.0, 2.6, 5.0], "idx": [4, 7, 9]})
    write_predictions(tmp_path / "it.parquet", metrics.predictions(task, "validation", values, rows))
    table = read_predictions(tmp_path / "it.parquet")
    assert list(table) == ["split", "id", "label", "logit_0"]
    assert table["id"].tolist() == [4, 7, 9]
    labels = table["label"].to_numpy()
    assert metrics.scores_of(task, table) == metrics.scores(task.metrics, labels, values[:, 0])


def like_squad(n, rng):
    """Answers to n questions, whose ids are numbers in a row in groups of five, as SQuAD's are."""
    groups = [rng.bytes(10).hex() for _ in range(n // 5 + 1)]
    start = rng.integers(0, 800, n).astype("int32")
    answers = {"start": start, "end": start + rng.integers(1, 60, n).astype("int32")}
    floats = {name: rng.normal(8, 4, n).astype("float32") for name in ("score", "null_score")}
    flags = {name: rng.random(n) < 0.5 for name in ("answered", "is_answerable")}
    return pd.DataFrame({"id": [f"{groups[i // 5]}{4096 + i % 5:04x}" for i in range(n)], **answers, **floats, **flags})


def like_qqp(n, rng):
    classes = {name: rng.integers(0, 2, n).astype("int8") for name in ("label", "answer")}
    logits = {f"logit_{i}": rng.normal(0, 3, n).astype("float32") for i in range(2)}
    return pd.DataFrame({"split": "validation", "id": np.arange(n, dtype="int32"), **classes, **logits})


@pytest.mark.parametrize(
    ("made", "n", "kept"),
    [(like_squad, 10_570, "float32"), (like_squad, 11_873, "float32"), (like_qqp, 40_430, "float16")],
)
def test_the_largest_development_sets_fit(made, n, kept, tmp_path):
    """Noise compresses worst. Only outputs are rounded, and only where the file is too large otherwise."""
    table, path = made(n, np.random.default_rng(0)), tmp_path / "predictions.parquet"
    write_predictions(path, table)
    assert path.stat().st_size <= 200_000
    found = read_predictions(path)
    outputs = [name for name in table if table[name].dtype == "float32"]
    assert {str(found[name].dtype) for name in outputs} == {kept}
    np.testing.assert_allclose(found[outputs], table[outputs], rtol=1e-3)
    for name in set(table) - set(outputs):
        assert found[name].tolist() == table[name].tolist()


def test_texts_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "predictions.parquet"
    with pytest.raises(ValueError, match=r"predictions.parquet: column 'answer' holds text"):
        write_predictions(path, pd.DataFrame({"id": ["a"], "answer": ["in 1943"]}))
    assert not path.exists()
    path.write_text(json.dumps({}))
    with pytest.raises(ValueError, match="predictions.parquet cannot be read"):
        read_predictions(path)
