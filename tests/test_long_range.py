"""Long sequences: their data, parameters, a run end to end, an interrupted one, and the tables."""

import json
from unittest.mock import Mock

import datasets
import pandas as pd
import pytest
import torch
from datasets import Dataset

from albert_lsh import record_passes, tasks
from albert_lsh.files import OneLineError
from albert_lsh.kinds import TaskError
from albert_study.experiments import long_tasks
from albert_study.experiments.long_range import build_model, comparison, train_all
from albert_study.experiments.long_recipe import LongRange
from albert_study.experiments.long_tasks import MASK, OPERATORS, Duplication, encode, encode_tree, pad

SMALL = {"max_length": 32, "steps": 4, "batch_size": 4, "train_examples": 40, "eval_examples": 12}
SMALL |= {"learning_rate": 1e-3, "device": "cpu", "precision": "fp32"}
FEWER = "4 of 5,000 steps; 32 of 2,000 tokens; 40 of 96,000 training examples; 4 of 32 examples a step"
FEWER += "; learning rate 0.001 instead of 0.0001"


def ask(folder, **changes):
    return LongRange.parse({"task": "listops", **SMALL, "output_dir": str(folder), **changes})


def test_an_example_of_duplication_is_a_word_and_a_hidden_word():
    data = [Duplication(split, 50, 64, seed=seed) for split, seed in (("train", 1), ("test", 1), ("train", 2))]
    ids, labels = data[0][3]["input_ids"], data[0][3]["labels"]
    assert ids[0] == ids[32] == 0
    assert (ids[33:] == MASK).all()
    assert torch.equal(labels[33:], ids[1:32])
    assert (labels[:33] == -100).all()
    assert len({tuple(rows[number]["input_ids"].tolist()) for rows in data for number in range(50)}) == 150
    assert torch.equal(ids, Duplication("train", 50, 64, seed=1)[3]["input_ids"])
    counts = torch.cat([data[0][number]["input_ids"][1:32] for number in range(50)]).bincount(minlength=128)
    assert counts[0] == 0
    assert (counts[1:] > 0).float().mean() > 0.99


def evaluate_tree(tokens):
    """The value of a tree, from its tokens alone; and its operators' numbers of arguments, by their depth."""
    open_nodes, arguments = [[]], []  # operators with their arguments so far; the first holds the answer
    for token in tokens:
        if token in OPERATORS:
            open_nodes.append([OPERATORS[token]])
        elif token == long_tasks.END:
            operator, *values = open_nodes.pop()
            open_nodes[-1].append(operator(values))
            arguments.append((len(open_nodes), len(values)))
        else:
            open_nodes[-1].append(int(token))
    return open_nodes[0][0], arguments


def test_trees_are_drawn_as_by_the_original_and_the_same_every_time():
    by_hand = "[SM [MAX 3 8 ] [MED 2 3 9 0 ] [MED 1 2 ] [MIN 6 [SM 5 5 ] ] ]"  # 8 + int(2.5) + int(1.5) + 0
    assert evaluate_tree(by_hand.split())[0] == 1
    sizes = {"max_length": 400, "train_examples": 300, "eval_examples": 50}
    data, fewer = ask("x", **sizes).load_data(), ask("x", **sizes | {"train_examples": 20, "seed": 1}).load_data()
    assert fewer["test"]["text"] == data["test"]["text"]
    assert fewer["train"]["text"] == data["train"]["text"][:20]
    assert len({text for rows in data.values() for text in rows["text"]}) == 400
    arguments = []
    for row in data["train"]:
        tokens = row["text"].split()
        value, counts = evaluate_tree(tokens)
        assert 100 < len(tokens) == row["length"] == len(row["input_ids"]) < 400
        assert row["label"] == value
        arguments += counts
    assert max(depth for depth, _ in arguments) <= 9  # digits are at most at depth 10
    assert {number for _, number in arguments} == set(range(2, 11))
    assert set(encode_tree(data["test"]["text"][0])) <= set(range(1, 16))


def test_reviews_are_read_as_bytes_and_cut(tmp_path, monkeypatch):
    folder = tmp_path / "imdb"  # laid out like stanfordnlp/imdb
    monkeypatch.setattr(tasks, "load_dataset", lambda *_, **__: datasets.load_dataset(str(folder)))
    for split, count in (("train", 30), ("test", 20)):
        rows = {"text": [f"Filmé {n}: {'good' if n % 2 else 'bad'} {'x' * n}" for n in range(count)]}
        rows = Dataset.from_dict(rows | {"label": [n % 2 for n in range(count)]})
        rows.to_parquet(folder / "plain_text" / f"{split}-00000-of-00001.parquet")
    data = ask(tmp_path, task="text", train_examples=None, eval_examples=None).load_data()
    assert {split: len(rows) for split, rows in data.items()} == {"train": 30, "validation": 20, "test": 20}
    assert data["test"]["length"] == [min(len(text.encode()), 32) for text in data["test"]["text"]]
    assert long_tasks.encode_bytes("Aé") == [66, 196, 170]
    batch = pad([data["test"][0], data["test"][19]])
    assert batch["attention_mask"].sum(1).tolist() == [len(data["test"][0]["text"].encode()), 32]
    assert batch["labels"].tolist() == [0, 1]
    monkeypatch.setattr(tasks, "load_dataset", Mock(side_effect=ConnectionError))
    with pytest.raises(TaskError, match="task='text': the data could not be loaded from 'stanfordnlp/imdb'"):
        ask(tmp_path, task="text").load_data()


def test_what_is_not_given_is_as_published_and_each_change_of_an_unnamed_run_has_its_folder(tmp_path):
    settings = LongRange.parse({"task": "listops", "steps": None})
    assert (settings.max_length, settings.steps, settings.batch_size, settings.learning_rate) == (2000, 5000, 32, 1e-4)
    assert (settings.warmup, settings.eval_steps) == (1000, 500)
    assert LongRange.parse({"task": "listops", "steps": 50}).warmup == 10
    named = LongRange.parse({"task": "duplication", "only": '["LSH-2"]'})
    assert [run.label for run in named.runs()] == ["LSH-2"]
    assert list(named.evaluate) == ["full", "LSH-8", "LSH-4", "LSH-2", "LSH-1"]
    sweep = [
        {},
        {"steps": 5},
        {"share": 0.5},
        {"variants": {"key-clusters": {"attention": "key-clusters"}}},
        {"only": ["key-clusters"]},
    ]
    folders = [ask("", results_root=str(tmp_path), **changes).output_dir for changes in sweep]
    assert len(set(folders)) == 4
    assert folders[-1] == folders[0]  # trained later, they stand beside the others


def test_models_have_their_attention_and_padding_changes_nothing(tmp_path):
    texts = Dataset.from_list([{"text": f"[MAX {'3 ' * n}]", "label": 3} for n in (8, 25)])
    short, long = encode(texts, encode_tree, 32)
    for run in ask(tmp_path).runs():
        model = build_model(run).eval()
        assert model.encoder.encoder.layer[1].attention.self.dropout.p == 0.1
        with record_passes(model) as passes, torch.no_grad():
            alone = model(**pad([short]))
            beside = model(**pad([short, long]))
        assert [one.attention for one in passes] == [run.attention] * 4
        assert passes[0].settings == run.attention_settings
        torch.testing.assert_close(beside["logits"][:1], alone["logits"], rtol=1e-3, atol=1e-3)
        assert torch.isfinite(beside["loss"])


def test_every_variant_is_trained_and_recorded(tmp_path, capsys):
    settings = ask(tmp_path, eval_steps=2, only=["softmax", "key-clusters", "nystrom"])
    data = settings.load_data()
    table = train_all(settings, data).set_index("label")
    assert "key-clusters (2 of 3): 4 steps" in capsys.readouterr().out
    assert sorted(table.index) == ["key-clusters", "nystrom", "softmax"]
    for label in table.index:
        folder = tmp_path / "listops-32" / str(label) / "seed-0"
        result = json.loads((folder / "result.json").read_text())
        assert sorted(path.name for path in folder.iterdir() if path.name[0] != ".") == ["history.csv", "result.json"]
        assert pd.read_csv(folder / "history.csv").dropna(subset=["eval_loss"])["step"].tolist() == [2, 4]
        assert result["examples"] == {"train": 40, "validation": 12, "test": 12}
        assert result["chance"] == {"accuracy": 0.1}
    assert table["shorter"].unique() == [FEWER]
    assert table.loc["softmax", ["arena", "rerun", "attended", "full_cost"]].tolist() == [0.3637, 0.3710, 1, 1]
    assert 0 < table.loc["key-clusters", "attended"] < 1
    labels = pd.Series(data["test"]["label"])
    assert table["majority"].unique() == (labels == pd.Series(data["train"]["label"]).mode()[0]).mean()
    assert train_all(settings, data).set_index("label")["seconds"].equals(table["seconds"])
    assert "this run was made already" in capsys.readouterr().out
    with pytest.raises(OneLineError, match="the result of another run, made with steps=4, not 5"):
        train_all(ask(tmp_path, eval_steps=2, steps=5), data)


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path, killed_after):
    whole, broken = (ask(tmp_path / name, only=["key-clusters"], eval_steps=2, steps=6) for name in ("whole", "broken"))
    data = whole.load_data()
    undisturbed = train_all(whole, data)
    killed_after(5, train_all, broken, data)
    folders = [tmp_path / name / "listops-32" / "key-clusters" / "seed-0" for name in ("whole", "broken")]
    assert not (folders[1] / "result.json").exists()
    with pytest.raises(OneLineError, match="checkpoints of a run with another learning_rate"):
        train_all(broken.model_copy(update={"learning_rate": 0.5}), data)
    resumed = train_all(broken, data)
    assert not (folders[1] / "checkpoints").exists()
    pd.testing.assert_frame_equal(*(pd.read_csv(folder / "history.csv") for folder in folders))
    assert resumed["accuracy"].equals(undisturbed["accuracy"])


def test_a_word_is_learned_in_a_few_steps_and_evaluated_under_every_attention(tmp_path):
    settings = ask(tmp_path, task="duplication", only=["LSH-1"], max_length=64, steps=80, batch_size=8,
                   train_examples=None, eval_examples=50)  # fmt: skip
    table = train_all(settings, settings.load_data())
    assert table["evaluated"].tolist() == list(settings.evaluate)
    accuracy = table.set_index("evaluated")["accuracy"]
    assert accuracy["LSH-8"] > accuracy["LSH-1"] > 0.5
    result = json.loads((tmp_path / "duplication-64" / "LSH-1" / "seed-0" / "result.json").read_text())
    assert result["metrics"]["accuracy"] == result["metrics"]["accuracy, LSH-1"]
    assert result["metrics"]["cost, LSH-1"] < result["metrics"]["cost, full"] == 1
    assert table["published"].tolist() == [0.008, 0.999, 0.996, 0.948, 0.779]
    assert table["shorter"].unique() == ["80 of 150,000 steps; 64 of 1,024 tokens"]
    assert comparison(tmp_path, "duplication").equals(table)
