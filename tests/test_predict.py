"""Predictions: the same as evaluation's, from the command and from pipelines; errors that name the place."""

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from transformers import pipeline

from albert_lsh import find_task, fit, load_data, load_model, load_tokenizer
from albert_lsh.kinds import TaskError
from albert_lsh.predict import main, texts_of
from encoders import change_weights
from test_repository import PROJECT
from test_train import make

MRPC, MNLI = "mini-mrpc", "mini-mnli"
# Shorter than most texts, so that it matters where they are cut, and that paragraphs have several windows.
LENGTHS = {"mini-mrpc": 18, "mini-sst2": 16, "mini-mnli": 20, "mini-squad": 32, "mini-squad-v2": 32}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Makes, once for each task, a run; what it was evaluated on, its predictions, and the folder of its model."""

    @cache
    def make_run(name):
        changes = {"task": name, "max_length": LENGTHS[name], "epochs": 1, "train_examples": 8, "eval_examples": 24}
        trained = fit(make(tmp_path_factory.mktemp(name), **changes, save_model=True))
        rows = load_data(name, eval_examples=24)[find_task(name).evaluation[0]].to_list()
        return rows, trained.predictions[:24], str(trained.folder / "model")

    return make_run


def ask(capsys, model, task, file, *more):
    """What `albert-lsh predict` prints: its lines, read."""
    capsys.readouterr()
    main(["predict", "--model", str(model), "--task", task, *more, str(file)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def write(path, rows):
    path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["mini-sst2", "mini-mnli"])
def test_classes_have_names_and_the_scores_of_evaluation(saved, name, tmp_path, capsys):
    (rows, predictions, folder), task = saved(name), find_task(name)
    probabilities = softmax(predictions.filter(like="logit_").to_numpy(), axis=1)
    answers = ask(capsys, folder, name, write(tmp_path / "rows.jsonl", rows), "--batch-size", "5")
    assert [list(row["scores"]) for row in answers] == [list(task.labels)] * 24
    np.testing.assert_allclose([list(row["scores"].values()) for row in answers], probabilities, atol=1e-5)
    assert [row["label"] for row in answers] == [task.labels[i] for i in predictions["answer"]]
    assert [row["score"] for row in answers] == [row["scores"][row["label"]] for row in answers]

    classify = pipeline("text-classification", folder)
    texts = [dict(zip(("text", "text_pair"), (row[c] for c in task.columns), strict=False)) for row in rows]
    classes = classify(texts, truncation=True)  # to the max_length of training
    np.testing.assert_allclose([one["score"] for one in classes], [row["score"] for row in answers], atol=1e-5)


def test_lines_csv_and_json_lines_say_the_same(saved, tmp_path, capsys, monkeypatch):
    examples, _, folder = saved(MRPC)
    rows = [{"sentence2": row["sentence2"], "sentence1": row["sentence1"]} for row in examples]
    lines = "".join(f"{row['sentence1']}\t{row['sentence2']}\n" for row in rows)
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + lines.removesuffix("\n").replace("\n", "\r\n").encode())
    write(tmp_path / "lines.JSONL", "\n".join(map(json.dumps, rows)))
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv")
    expected = ask(capsys, folder, MRPC, write(tmp_path / "lines.txt", lines))
    assert len(expected) == 24
    for name in ("windows.txt", "lines.JSONL", "table.csv"):
        assert ask(capsys, folder, MRPC, tmp_path / name) == expected
    with open(tmp_path / "lines.txt") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert ask(capsys, folder, MRPC, "-") == expected


@pytest.mark.parametrize("name", ["mini-squad", "mini-squad-v2"])
def test_answers_are_those_of_evaluation(saved, name, tmp_path, capsys):
    (rows, predictions, folder), no_answer = saved(name), find_task(name).no_answer
    answers = ask(capsys, folder, name, write(tmp_path / "rows.jsonl", rows))
    for answer, row, expected in zip(answers, rows, predictions.itertuples(), strict=True):
        text = row["context"][expected.start : expected.end] if expected.answered else ""
        assert answer["answer"] == text == row["context"][answer["start"] : answer["end"]]

    pipe = pipeline("extractive-question-answering", folder)
    for batch_size in (1, 7):
        again = pipe(rows, batch_size=batch_size, no_answer=no_answer)
        assert [one["answer"] for one in again] == [row["answer"] for row in answers]
    first = {key: rows[0][key] for key in ("question", "context")}
    assert pipe(**first) == pipe(first) == pipe([first])[0]
    lists = {key: [row[key] for row in rows[:3]] for key in ("question", "context")}
    assert pipe(**lists) == pipe(rows[:3])
    with torch.no_grad():  # CLS is as good as every span, and a span is taken
        pipe.model.qa_outputs.weight.zero_()
        pipe.model.qa_outputs.bias.zero_()
    anna = {"answer": "Anna", "score": pytest.approx(0.5), "start": 2, "end": 6}
    assert pipe(question="Who lost something?", context="  Anna", no_answer=True) == anna
    nothing = {"answer": "", "score": 0.0, "start": 0, "end": 0}
    assert pipe(question="Who?", context=" ") == nothing
    assert pipe(question="Who?", context=" ", no_answer=True) == {**nothing, "score": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"question": "Who?", "context": ["a", "b"]}, "input=.* must have question and context, both texts"),
        ({"question": ["Who?"], "context": ["a", "b"]}, "question has 1 texts, context 2; they must be as many"),
        ({"inputs": "Who?"}, "input='Who\\?' must have question and context, both texts"),
        ({"question": "Who?", "context": "a", "top_k": 3}, "top_k: no option of .*max_length, no_answer, batch_size"),
        ({"question": "Who?", "context": "a", "max_length": "20"}, "max_length='20' must be a whole number"),
        ({"question": "Who?", "context": "a", "max_length": 10**6}, "max_length=1000000 must be .*, 8 to 512"),
        ({"question": "Who?", "context": "a", "no_answer": "yes"}, "no_answer='yes' must be True or False"),
    ],
)
def test_what_the_pipeline_cannot_answer_is_named(options, message):
    model, tokenizer = load_model("nano", head="question-answering"), load_tokenizer("nano")
    with pytest.raises(ValueError, match=message):
        pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)(**options)


def test_a_tokenizer_that_pads_and_cuts_on_the_left_has_the_same_answers_and_stays_as_it_is():
    torch.manual_seed(0)
    model, rows = load_model("nano", head="question-answering"), load_data("mini-squad", eval_examples=12)["validation"]
    right, left = load_tokenizer("nano"), load_tokenizer("nano")
    left.padding_side = left.truncation_side = "left"
    pipes = (pipeline("extractive-question-answering", model=model, tokenizer=tokenizer) for tokenizer in (right, left))
    expected, *others = (pipe(rows.to_list(), max_length=32, batch_size=size) for pipe in pipes for size in (1, 5))
    for answers in others:
        assert [one["answer"] for one in answers] == [one["answer"] for one in expected]
        assert [one["score"] for one in answers] == pytest.approx([one["score"] for one in expected], abs=1e-5)
    assert (left.padding_side, left.truncation_side) == ("left", "left")


def test_regression_gives_the_number_and_classes_without_names_have_the_tasks(tmp_path, capsys):
    torch.manual_seed(0)
    model, tokenizer = load_model("mini", **find_task("stsb").model_options), load_tokenizer("mini")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    pairs = [("The food was lovely.", "The food was awful."), ("It was Monday.", "This was Monday.")]
    file = write(tmp_path / "pairs.txt", "\n".join("\t".join(pair) for pair in pairs))
    logits = [model(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]
    expected = [{"value": pytest.approx(value, abs=1e-5)} for value in logits]
    assert ask(capsys, tmp_path, "stsb", file) == expected
    load_model("mini", num_labels=2).save_pretrained(tmp_path)
    (answer,) = ask(capsys, tmp_path, "cola", write(tmp_path / "text.txt", "The food was lovely.\n"))
    assert list(answer["scores"]) == list(find_task("cola").labels)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pairs.txt", b"one\ttwo\nthree\n", "line 2 has no tabs; task 'mini-mrpc' reads sentence1, tab, sentence2"),
        ("pairs.txt", b"one\ttwo\ncaf\xe9\tthree\n", "pairs.txt could not be read: UnicodeDecodeError: .* position 11"),
        ("pairs.txt", b" \n\n", "pairs.txt is empty; it must hold one example a line"),
        ("pairs.tsv", b"one\ttwo\n", "pairs.tsv: texts are read from .csv, .jsonl, or lines of any other file"),
        ("rows.csv", b"sentence1,sentence2\na\n", "rows.csv could not be read: .*line 2 has 1 cells, the first line 2"),
        ("rows.csv", b'sentence1,sentence2\n"a,b\n', "line 2: .*; is a quotation mark open"),
        ("rows.jsonl", b'["one"]', r"entry 0 is \['one'\]; it must be an object|entry 0 is 'one'"),
        ("rows.jsonl", b'{"sentence1": "one"\n', "it is not JSON: .*"),
        ("rows.jsonl", b'{"sentence1": "a"}\n{"sentence1"}\n', "line 2 is not JSON"),
        ("rows.jsonl", b'{"sentence1": "a", "idx": 3}', "row 0 has no column 'sentence2', .*; it has: sentence1, idx"),
        ("rows.jsonl", rb'{"sentence1": "\ud800", "sentence2": "b"}', "row 0: sentence1='.ud800' must be text"),
    ],
)
def test_texts_that_cannot_be_read_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        main(["predict", "--model", "nowhere", "--task", "mini-mrpc", str(tmp_path / name)])


def test_a_blank_line_of_a_single_column_is_named_but_at_the_end(tmp_path):
    task, file = find_task("mini-sst2"), tmp_path / "rows.csv"
    assert texts_of(str(write(file, "\nsentence\na\nb\n\r\n\n")), task) == [{"sentence": "a"}, {"sentence": "b"}]
    with pytest.raises(TaskError, match="rows.csv, row 1: sentence='' must be text, and not empty"):
        texts_of(str(write(file, "sentence\na\n\nb\n")), task)


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (MRPC, MNLI, "has the labels entailment, .*; task 'mini-mrpc' has not_equivalent, equivalent"),
        ("stsb", MRPC, "has the labels .*; task 'stsb' has none: it predicts a number"),
        ("mini-squad", MRPC, "is AlbertForSequenceClassification; task 'mini-squad' needs"),
        (MRPC, "mini", "model='mini' is not fine-tuned; task 'mini-mrpc' needs"),
        (MRPC, "./no", "--model ./no: no such folder here, and no model of that name on the Hub, or no network; a run"),
    ],
)
def test_a_model_of_another_task_is_refused(saved, task, model, message, tmp_path, capsys):
    file = write(tmp_path / "text.txt", "\t".join(["text"] * len(find_task(task).columns)))
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        ask(capsys, saved(model)[-1] if model in LENGTHS else model, task, file)


def without(word):
    return lambda folder: change_weights(folder, lambda weights: {k: w for k, w in weights.items() if word not in k})


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def longer_vocabulary(folder):
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens("unheard-of")
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("classifier"), "lacks weights: classifier.bias, classifier.weight$"),
        (without_tokenizer, "no tokenizer files"),
        (longer_vocabulary, r"its tokenizer knows \d+ tokens, its weights only \d+"),
    ],
)
def test_a_model_with_parts_missing_is_refused(saved, tmp_path, capsys, damage, message):
    folder = shutil.copytree(saved(MRPC)[-1], tmp_path / "model")
    damage(folder)
    with pytest.raises(SystemExit, match=f"^error: model='.*model'.*{message}"):
        ask(capsys, folder, MRPC, write(tmp_path / "pairs.txt", "one\ttwo\n"))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", [MRPC, "mini-squad"])
def test_scores_that_are_not_finite_are_an_error_and_not_printed(saved, name, tmp_path, capsys):
    """The embedding of one word is broken, and only the second example has it."""
    folder = shutil.copytree(saved(name)[-1], tmp_path / "model")
    lines = "Who lost it?\tAnna lost a ball.\nWho found it?\tAnna found a kite."
    broken = load_tokenizer("mini").convert_tokens_to_ids("kite")

    def break_one(weights):
        weights["albert.embeddings.word_embeddings.weight"][broken] = float("nan")
        return weights

    change_weights(folder, break_one)
    named = "question='Who found it.'" if name == "mini-squad" else "example 2"
    with pytest.raises(SystemExit, match=f"^error: {named}: the model.s .* not finite"):
        ask(capsys, folder, name, write(tmp_path / "texts.txt", lines))
    assert "NaN" not in capsys.readouterr().out


COMMAND = [sys.executable, "-c", "from albert_lsh.predict import main; main()", "predict"]


def test_the_command_prints_nothing_but_lines_and_an_error_is_one_line(saved, tmp_path):
    module, function = PROJECT["scripts"]["albert-lsh"].split(":")
    assert getattr(import_module(module), function) is main
    folder = shutil.copytree(saved("mini-squad")[-1], tmp_path / "model")
    command = [*COMMAND, "--model", str(folder), "--task", "mini-squad"]
    text = "Who lost something?\tIt was Monday. Anna lost a red ball in the park.\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(json.loads(done.stdout)) == {"answer", "score", "start", "end"}
    without("qa_outputs")(folder)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch("error: model='.*' lacks weights: qa_outputs.bias, qa_outputs.weight\n", done.stderr)


def test_memory_that_does_not_suffice_is_named(saved, tmp_path, capsys):
    model = saved(MRPC)[-1]  # trained before memory ends
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: torch.empty(2**58))
    try:
        with pytest.raises(SystemExit, match="^error: out of memory; a smaller --batch-size takes less"):
            ask(capsys, model, MRPC, write(tmp_path / "pairs.txt", "one\ttwo\n"))
    finally:
        hook.remove()
