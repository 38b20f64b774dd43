"""Predictions: the same as evaluation's, from the command and from pipelines; errors that name the place."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from typing import NamedTuple

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import pipeline

from albert_lsh import load_model, squad
from albert_lsh.model.load import load_tokenizer
from albert_lsh.predict import main
from albert_lsh.run import Run
from albert_lsh.tasks import Task, encode, find_task, load_data
from albert_lsh.train import StudyTrainer, fit, prepare_trainer
from test_repository import PROJECT
from weights import change_weights

# Shorter than most texts, so that it matters where they are cut, and that paragraphs have several windows.
LENGTHS = {"mini-mrpc": 18, "mini-sst2": 16, "mini-mnli": 20, "mini-squad": 32, "mini-squad-v2": 32}


class Trained(NamedTuple):
    task: Task
    model: str  # its folder
    rows: list[dict]  # of the validation split
    trainer: StudyTrainer
    encoded: Dataset  # what the trainer evaluates of it

    def write(self, path):
        """The rows as a JSON list, every column of the task's data in it."""
        path.write_text(json.dumps(self.rows))
        return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Makes, once for each task, a run of a few steps, as the notebooks do."""
    made = {}

    def make(name):
        if name not in made:
            folder, task = tmp_path_factory.mktemp(name), find_task(name)
            given = {"task": name, "attention": "lsh", "attention_settings": {"n_hashes": 2, "cluster_size": 4}}
            given |= {"epochs": 1, "max_length": LENGTHS[name], "learning_rate": 1e-3, "batch_size": 16}
            given |= {"precision": "fp32", "device": "cpu", "save_model": True, "output_dir": str(folder)}
            given |= {"train_examples": 96, "eval_examples": 24}
            run, tokenizer = Run.parse(given), load_tokenizer("mini")
            data = load_data(name, train_examples=96, eval_examples=24)
            encoded, split = encode(data, task, tokenizer, run.max_length), task.evaluation[0]
            trainer = prepare_trainer(run, fit(run, data, encoded).model, tokenizer, encoded["train"], encoded[split])
            made[name] = Trained(task, str(folder / "model"), data[split].to_list(), trainer, encoded[split])
        return made[name]

    return make


def ask(capsys, *arguments):
    """What `albert-lsh predict` prints: its lines, read."""
    capsys.readouterr()
    main(["predict", *map(str, arguments)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("name", ["mini-mrpc", "mini-sst2", "mini-mnli"])
def test_classes_have_names_and_the_scores_of_evaluation(trained, name, tmp_path, capsys):
    kept = trained(name)
    logits = torch.tensor(kept.trainer.predict(kept.encoded).predictions)
    probabilities = torch.softmax(logits, -1).numpy()
    rows = kept.write(tmp_path / "rows.json")
    found = ask(capsys, "--model", kept.model, "--task", name, "--batch-size", 5, rows)
    assert [list(row["scores"]) for row in found] == [list(kept.task.labels)] * 24
    np.testing.assert_allclose([list(row["scores"].values()) for row in found], probabilities, atol=1e-5)
    assert [row["label"] for row in found] == [kept.task.labels[i] for i in probabilities.argmax(-1)]
    assert [row["score"] for row in found] == [row["scores"][row["label"]] for row in found]
    assert ask(capsys, "--model", kept.model, "--task", name, "--batch-size", 5, rows) == found

    classify = pipeline("text-classification", model=load_model(kept.model), tokenizer=load_tokenizer(kept.model))
    texts = [dict(zip(("text", "text_pair"), (row[c] for c in kept.task.columns), strict=False)) for row in kept.rows]
    said = classify(texts, truncation=True)  # to the max_length of training
    assert [one["label"] for one in said] == [row["label"] for row in found]
    np.testing.assert_allclose([one["score"] for one in said], [row["score"] for row in found], atol=1e-5)


def test_lines_and_both_kinds_of_json_say_the_same(trained, tmp_path, capsys, monkeypatch):
    kept = trained("mini-mrpc")
    asked = ["--model", kept.model, "--task", "mini-mrpc"]
    rows = [{"sentence2": row["sentence2"], "sentence1": row["sentence1"]} for row in kept.rows]
    lines = "".join(f"{row['sentence1']}\t{row['sentence2']}\n" for row in rows)
    (tmp_path / "lines.txt").write_text(lines)
    (tmp_path / "windows.tsv").write_bytes(b"\xef\xbb\xbf" + lines.removesuffix("\n").replace("\n", "\r\n").encode())
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "lines.JSONL").write_text("\n".join(map(json.dumps, rows)))
    found = [ask(capsys, *asked, tmp_path / name) for name in ("lines.txt", "windows.tsv", "list.json", "lines.JSONL")]
    with open(tmp_path / "lines.txt") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        found.append(ask(capsys, *asked))
    assert len(found[0]) == 24
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("name", ["mini-squad", "mini-squad-v2"])
def test_answers_are_those_of_evaluation(trained, name, tmp_path, capsys):
    kept = trained(name)
    assert len(kept.encoded) > 24  # some paragraphs have several windows
    rows = kept.write(tmp_path / "rows.json")
    found = ask(capsys, "--model", kept.model, "--task", name, rows)
    logits, examples = kept.trainer.predict(kept.encoded).predictions[:2], Dataset.from_list(kept.rows)
    expected = squad.best_answers(examples, kept.encoded, *logits, no_answer=kept.task.no_answer)
    assert [row["answer"] for row in found] == [expected[row["id"]].text for row in kept.rows]
    assert ("" in {row["answer"] for row in found}) == kept.task.no_answer
    for said, row in zip(found, kept.rows, strict=True):
        values = np.array([value for _, value in expected[row["id"]].n_best])
        assert said["score"] == pytest.approx(1 / np.exp(values - values.max()).sum(), abs=1e-4)
        assert row["context"][said["start"] : said["end"]] == said["answer"]

    model = load_model(kept.model, head="question-answering")
    answer = pipeline("extractive-question-answering", model=model, tokenizer=load_tokenizer(kept.model))
    for batch_size in (1, 7):
        said = answer(kept.rows, batch_size=batch_size, no_answer=kept.task.no_answer)
        assert [one["answer"] for one in said] == [row["answer"] for row in found]
        np.testing.assert_allclose([one["score"] for one in said], [row["score"] for row in found], atol=1e-5)
    first = {key: kept.rows[0][key] for key in ("question", "context")}
    assert answer(**first) == answer(first) == answer([first])[0]
    assert answer(**first)["answer"]  # a piece of the paragraph, unless no_answer is asked for
    lists = {key: [row[key] for row in kept.rows[:3]] for key in ("question", "context")}
    assert answer(**lists) == answer(kept.rows[:3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"question": "Who?", "context": ["a", "b"]}, r"context=\['a', 'b'\] must be a text"),
        ({"question": ["Who?"], "context": ["a", "b"]}, "question has 1 texts, context 2; they must be as many"),
        ({"question": "Who?"}, "context=None must be a text"),
        ({"context": "a"}, "question=None must be a text"),
        ({"inputs": "Who?"}, "input='Who\\?' must be a dictionary with question and context"),
        ({"question": 3, "context": "a"}, "question=3 must be a text"),
        ({"question": "Who?", "context": "a", "top_k": 3}, "top_k: no option of .*max_length, no_answer, batch_size"),
        ({"question": "Who?", "context": "a", "handle_impossible_answer": True}, "handle_impossible_answer: no option"),
    ],
)
def test_what_the_pipeline_cannot_answer_is_named(given, message):
    model, tokenizer = load_model("nano", head="question-answering"), load_tokenizer("nano")
    answer = pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=message):
        answer(**given)


def test_no_answer_stands_nowhere_and_an_empty_context_has_none(trained):
    kept = trained("mini-squad-v2")
    model = load_model(kept.model, head="question-answering")
    answer = pipeline("extractive-question-answering", model=model, tokenizer=load_tokenizer(kept.model))
    with torch.no_grad():
        model.qa_outputs.weight.zero_()  # CLS is as good as every span, and a span is taken
        model.qa_outputs.bias.zero_()
    said = answer(question="Who lost something?", context="  Anna", no_answer=True)
    assert said == {"answer": "Anna", "score": pytest.approx(0.5), "start": 2, "end": 6}
    nothing = {"answer": "", "score": 0.0, "start": 0, "end": 0}
    assert answer(question="Who?", context=" ") == nothing
    assert answer(question="Who?", context=" ", no_answer=True) == {**nothing, "score": 1.0}


def test_regression_gives_the_number(tmp_path, capsys):
    torch.manual_seed(0)
    model, tokenizer = load_model("mini", **find_task("stsb").model_options), load_tokenizer("mini")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pairs = [("The food was lovely.", "The food was awful."), ("It was Monday.", "This was Monday.")]
    (tmp_path / "pairs.txt").write_text("\n".join("\t".join(pair) for pair in pairs))
    found = ask(capsys, "--model", tmp_path, "--task", "stsb", tmp_path / "pairs.txt")
    logits = [model(**tokenizer(*pair, return_tensors="pt")).logits.item() for pair in pairs]
    assert found == [{"value": pytest.approx(value, abs=1e-5)} for value in logits]
    texts = [dict(zip(("text", "text_pair"), pair, strict=True)) for pair in pairs]
    said = pipeline("text-classification", model=load_model(str(tmp_path)), tokenizer=tokenizer)(texts)
    assert [one["score"] for one in said] == pytest.approx(logits, abs=1e-5)


def test_a_model_without_names_for_its_classes_takes_the_tasks(tmp_path, capsys):
    load_model("mini", num_labels=2).save_pretrained(tmp_path)
    load_tokenizer("mini").save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text("The food was lovely.\n")
    for task in ("mini-sst2", "cola"):
        (found,) = ask(capsys, "--model", tmp_path, "--task", task, tmp_path / "text.txt")
        assert list(found["scores"]) == list(find_task(task).labels)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "pairs.txt",
            b"one\ttwo\nthree\n",
            r"pairs.txt, line 2 has no tabs; task 'mini-mrpc' reads sentence1, tab, sen",
        ),
        ("pairs.txt", b"one\ttwo\tthree\n", "pairs.txt, line 1 has 2 tabs;"),
        ("pairs.txt", b"one\ttwo\n \tthree\n", "pairs.txt, line 2: sentence1=' ' must be text, and not empty"),
        ("pairs.txt", b"one\ttwo\n\nthree\tfour\n", "pairs.txt, line 2 has no tabs"),
        ("pairs.txt", b"one\ttwo\ncaf\xe9\tthree\n", "pairs.txt is not UTF-8: .* position 11: invalid contin"),
        ("pairs.txt", b" \n\n", "pairs.txt is empty; it must hold one example a line, or JSON"),
        ("rows.json", b"", "rows.json is empty"),
        (
            "rows.json",
            b'[{"sentence1": "one",\n "sentence2": }]',
            r"rows.json is not JSON \(Expecting value: line 2 column 15",
        ),
        ("rows.json", b'["one"]', "rows.json, entry 1 is 'one'; it must be an object with sentence1, sentence2"),
        (
            "rows.jsonl",
            b'{"sentence1": "one"\n',
            "rows.jsonl, line 1 is not JSON .* column 20 .*a list of objects, or one",
        ),
        (
            "rows.jsonl",
            b'{"sentence1": "a", "sentence2": "b"}\n{"sentence1": "a", "idx": 3}',
            "rows.jsonl, line 2 has no column 'sentence2', which task 'mini-mrpc' reads; it has: sentence1, idx",
        ),
        ("rows.jsonl", b'{"sentence1": 3, "sentence2": "b"}', "rows.jsonl, line 1: sentence1=3 must be text"),
        ("rows.jsonl", rb'{"sentence1": "\ud800", "sentence2": "b"}', "line 1: sentence1='.ud800' must be text"),
    ],
)
def test_texts_that_cannot_be_read_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        main(["predict", "--model", "nowhere", "--task", "mini-mrpc", str(tmp_path / name)])


def test_a_model_of_another_task_is_refused(trained, tmp_path, capsys):
    def refused(task, model, message, *more):
        text = "\t".join(["text"] * len(find_task(task).columns))
        (tmp_path / "text.txt").write_text(text)
        with pytest.raises(SystemExit, match=f"^error: {message}"):
            main(["predict", "--model", str(model), "--task", task, str(tmp_path / "text.txt"), *more])

    mrpc, mnli, v2 = (trained(name).model for name in ("mini-mrpc", "mini-mnli", "mini-squad-v2"))
    refused(
        "mini-mrpc",
        mnli,
        "model='.*' has the labels entailment, neutral, .*; task 'mini-mrpc' has not_equivalent, equivalent",
    )
    refused("stsb", mrpc, "model='.*' has the labels .*; task 'stsb' has none: it predicts a number")
    refused(
        "mini-sst2", mrpc, "model='.*' has the labels not_equivalent, equivalent; task 'mini-sst2' has negative, pos"
    )
    refused("mini-mrpc", v2, "model='.*' is AlbertForQuestionAnswering; task 'mini-mrpc' needs .* ...ForSequenceClass")
    refused("mini-squad", mrpc, "model='.*' is AlbertForSequenceClassification; task 'mini-squad' needs")
    refused("mini-mrpc", "mini", "model='mini' is not fine-tuned; task 'mini-mrpc' needs")
    refused("mini-mrpc", tmp_path / "no", "model='.*no': no such folder, and the Hub gave no model of that name")
    shutil.copy(f"{mrpc}/config.json", tmp_path)
    refused("mini-mrpc", tmp_path, ".*model.safetensors")
    refused("mini-mrpc", mrpc, "batch_size should be a positive integer", "--batch-size", "0")
    with pytest.raises(SystemExit, match="error: task='mprc' is not one of: mrpc"):
        main(["predict", "--model", mrpc, "--task", "mprc"])
    with pytest.raises(SystemExit, match="error: .*No such file.*none.txt"):
        main(["predict", "--model", mrpc, "--task", "mini-mrpc", str(tmp_path / "none.txt")])


def without(word):
    return lambda weights: {key: value for key, value in weights.items() if word not in key}


def as_pickle(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def longer_vocabulary(folder):
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens("unheard-of")
    tokenizer.save_pretrained(folder)


def truncate(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change_weights(f, without("classifier")), "lacks weights: classifier.bias, classifier.weight$"),
        (
            lambda f: change_weights(f, without("encoder")),
            r"lacks weights: albert.encoder.*, \[...\]$",
        ),
        (lambda f: change_weights(f, lambda weights: {"other": weights["classifier.bias"]}), "lacks weights: albert"),
        (
            lambda f: change_weights(f, lambda weights: {**weights, "classifier.weight": torch.zeros(3, 5)}),
            r"classifier.weight is \(3, 5\) in its file, not \(2, 96\)",
        ),
        (truncate, "its weights cannot be read: "),
        (as_pickle, "its weights cannot be read: .*no file named model.safetensors"),
        (without_tokenizer, "no tokenizer files"),
        (longer_vocabulary, r"its tokenizer knows \d+ tokens, its weights only \d+"),
    ],
)
def test_a_model_with_parts_missing_or_damaged_is_refused(trained, tmp_path, capsys, damage, message):
    folder = shutil.copytree(trained("mini-mrpc").model, tmp_path / "model")
    damage(folder)
    (tmp_path / "pairs.txt").write_text("The food was lovely.\tThe food was awful.\n")
    with pytest.raises(SystemExit, match=f"^error: model='.*model'.*{message}"):
        ask(capsys, "--model", folder, "--task", "mini-mrpc", tmp_path / "pairs.txt")
    assert capsys.readouterr().out == ""


def test_an_error_is_one_line_and_exit_code_1(trained, tmp_path):
    folder = shutil.copytree(trained("mini-mrpc").model, tmp_path / "model")
    change_weights(folder, without("classifier"))
    command = [sys.executable, "-m", "albert_lsh.predict", "--model", str(folder), "--task", "mini-mrpc"]
    done = subprocess.run(command, input="one\ttwo\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch("error: model='.*' lacks weights: classifier.bias, classifier.weight\n", done.stderr)


@pytest.mark.parametrize("name", ["mini-mrpc", "mini-squad"])
def test_scores_that_are_not_finite_are_an_error_and_not_printed(trained, name, tmp_path, capsys):
    """The embedding of one word is broken, and only the second example has it."""
    folder, task = shutil.copytree(trained(name).model, tmp_path / "model"), find_task(name)
    broken = load_tokenizer("mini").convert_tokens_to_ids("awful" if name == "mini-mrpc" else "kite")
    texts = ["It was lovely.\tIt was {}.", "Who lost something?\tAnna lost a red {}."][task.is_squad]
    words = ["great", "awful"] if name == "mini-mrpc" else ["ball", "kite"]
    named = "question=.Who lost something.." if task.is_squad else "example 2"
    (tmp_path / "texts.txt").write_text("\n".join(texts.format(word) for word in words))

    def break_one(weights):
        weights["albert.embeddings.word_embeddings.weight"][broken] = float("nan")
        return weights

    change_weights(folder, break_one)
    with pytest.raises(SystemExit, match=f"^error: {named}: the model.s .* not finite"):
        ask(capsys, "--model", folder, "--task", name, tmp_path / "texts.txt")
    assert "NaN" not in capsys.readouterr().out
    model = load_model(str(folder), head="question-answering" if task.is_squad else "classification")
    if task.is_squad:
        answer = pipeline("extractive-question-answering", model=model, tokenizer=load_tokenizer(str(folder)))
        with pytest.raises(ValueError, match="question='Who lost something.': .* not finite"):
            answer(question="Who lost something?", context="Anna lost a red kite.")


def test_a_closed_pipe_ends_the_command_quietly(trained, tmp_path):
    (tmp_path / "pairs.txt").write_text("The food was lovely.\tThe food was awful.\n" * 3)
    command = [sys.executable, "-m", "albert_lsh.predict", "--model", trained("mini-mrpc").model, "--task", "mini-mrpc"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [*command, "--batch-size", "1", tmp_path / "pairs.txt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=buffered,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_memory_that_does_not_suffice_is_named(trained, tmp_path):
    (tmp_path / "pairs.txt").write_text("one\ttwo\n")
    asked = ["predict", "--model", trained("mini-mrpc").model, "--task", "mini-mrpc", str(tmp_path / "pairs.txt")]
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: torch.empty(2**58))
    try:
        with pytest.raises(SystemExit, match="^error: out of memory; a smaller --batch-size takes less"):
            main(asked)
    finally:
        hook.remove()


def test_the_command_is_there_and_prints_nothing_but_lines(trained):
    module, function = PROJECT["scripts"]["albert-lsh"].split(":")
    assert getattr(import_module(module), function) is main
    command = [sys.executable, "-m", "albert_lsh.predict", "--model", trained("mini-squad").model]
    text = "Who lost something?\tIt was Monday. Anna lost a red ball in the park.\n"
    done = subprocess.run([*command, "--task", "mini-squad"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(json.loads(done.stdout)) == {"answer", "score", "start", "end"}
