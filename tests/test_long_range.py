"""Long sequences: parameters, data, a run end to end, an interrupted one, and the tables."""

import json

import pandas as pd
import papermill
import pytest
import torch
from datasets import Dataset

from albert_lsh import record_passes
from albert_lsh.files import repository_root
from albert_lsh.run import ParameterError
from albert_lsh.tasks import TaskError
from albert_lsh.train import Clock
from albert_study.long_range import duplication
from albert_study.long_range.listops import encode_tree
from albert_study.long_range.parameters import LongRange
from albert_study.long_range.tasks import encode, encode_bytes, pad
from albert_study.long_range.train import build_model, comparison, train_all

SMALL = {
    "max_length": 32,
    "steps": 4,
    "batch_size": 4,
    "train_examples": 40,
    "eval_examples": 12,
    "learning_rate": 1e-3,
}
SMALL |= {"device": "cpu", "precision": "fp32"}
FEWER = "4 of 5,000 steps; 32 of 2,000 tokens; 40 of 96,000 training examples; 4 of 32 examples a step"
FEWER += "; learning rate 0.001 instead of 0.0001"


def ask(folder, **changes):
    return LongRange.check({"task": "listops", **SMALL, "output_dir": str(folder), **changes})


@pytest.fixture
def reviews(tmp_path):
    """A folder laid out like stanfordnlp/imdb."""
    folder = tmp_path / "imdb"
    (folder / "plain_text").mkdir(parents=True)
    for split, count in (("train", 30), ("test", 20)):
        rows = {"text": [f"Filmé {n}: {'good' if n % 2 else 'bad'} {'x' * n}" for n in range(count)]}
        rows = Dataset.from_dict(rows | {"label": [n % 2 for n in range(count)]})
        rows.to_parquet(folder / "plain_text" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "lists"}, "task='lists' is not one of: duplication, listops, text .long_range.ipynb"),
        ({"task": ["listops"]}, "task=.'listops'. is not one of: duplication"),
        ({"stesp": 5}, "'stesp' is not a parameter of long_range.ipynb; did you mean 'steps'"),
        ({"steps": 0}, "steps=0 must be greater than or equal to 1 .long_range.ipynb"),
        ({"batch_size": "many"}, "batch_size='many' must be a valid integer.* .long_range.ipynb"),
        ({"max_length": 15}, "max_length=15 must be greater than or equal to 16"),
        ({"task": "duplication", "max_length": 33}, "max_length=33 must be even"),
        ({"learning_rate": 0}, "learning_rate=0 must be greater than 0"),
        ({"variants": {"a": {"attention": "lhs"}}}, "variants: 'a': attention='lhs' is not one of"),
        (
            {"evaluate": {"a": {"attention": "lsh", "hashes": 2}}},
            "variants: 'a': attention 'lsh' has no setting 'hashes'",
        ),
        ({"variants": {"a/b": {"attention": "lsh"}}}, "variants: 'a/b' cannot be the name of a folder"),
        ({"only": ["reformer"]}, "only: 'reformer' is not one of the variants: softmax, shared-qk-lsh, lsh"),
        ({"attention_dropout": 1}, "attention_dropout=1 must be less than 1"),
        ({"share": 2.0}, "share=2.0"),
        ({"precision": "fp64"}, "precision='fp64' must be 'auto', 'fp32', 'bf16' or 'fp16' .long_range.ipynb"),
    ],
)
def test_bad_parameters_are_named(change, message):
    with pytest.raises(ParameterError, match=message):
        LongRange.check({"task": "listops", **change})


def test_what_is_not_given_is_as_published():
    asked = LongRange.check({"task": "listops"})
    assert (asked.max_length, asked.steps, asked.batch_size, asked.learning_rate) == (2000, 5000, 32, 1e-4)
    assert (asked.warmup, asked.eval_steps) == (1000, 500)
    assert LongRange.check({"task": "listops", "steps": 50}).warmup == 10
    assert LongRange.check({"task": "text"}).max_length == 4096
    named = LongRange.check({"task": "duplication", "only": '["LSH-2"]'})
    assert list(named.variants) == list(duplication.PUBLISHED_ACCURACY)
    assert [run.label for run in named.runs()] == ["LSH-2"]
    assert list(named.evaluate) == ["full", "LSH-8", "LSH-4", "LSH-2", "LSH-1"]


def test_reviews_are_read_as_bytes_and_cut(reviews, tmp_path):
    asked = ask(tmp_path, task="text", data_dir=str(reviews), train_examples=None, eval_examples=None)
    data = asked.load_data()
    assert {split: len(rows) for split, rows in data.items()} == {"train": 30, "validation": 20, "test": 20}
    assert data["test"]["length"] == [min(len(text.encode()), 32) for text in data["test"]["text"]]
    assert encode_bytes("Aé") == [66, 196, 170]
    batch = pad([data["test"][0], data["test"][19]])
    assert batch["input_ids"].shape == (2, 32)
    assert batch["attention_mask"].sum(1).tolist() == [len(data["test"][0]["text"].encode()), 32]
    assert batch["labels"].tolist() == [0, 1]
    with pytest.raises(TaskError, match="task='text': the data could not be loaded from '.*nowhere'"):
        ask(tmp_path, task="text", data_dir=str(tmp_path / "nowhere")).load_data()


def test_models_have_their_attention_and_padding_changes_nothing(tmp_path):
    asked = ask(tmp_path)
    texts = Dataset.from_list([{"text": f"[MAX {'3 ' * n}]", "label": 3} for n in (8, 25)])
    short, long = encode(texts, encode_tree, 32)
    for run in asked.runs():
        model = build_model(run).eval()
        assert model.encoder.encoder.layer[1].attention.self.dropout.p == 0.1
        with record_passes(model) as passes, torch.no_grad():
            alone = model(**pad([short]))
            beside = model(**pad([short, long]))
        assert [seen.attention for seen in passes] == [run.attention] * 4
        assert passes[0].settings == run.attention_settings
        assert alone["logits"].shape == (1, 10)
        torch.testing.assert_close(beside["logits"][:1], alone["logits"], rtol=1e-3, atol=1e-3)
        assert torch.isfinite(beside["loss"])


def test_every_variant_is_trained_and_recorded(tmp_path):
    asked = ask(tmp_path, eval_steps=2)
    data = asked.load_data()
    found = train_all(asked, data).set_index("label")
    assert sorted(found.index) == ["lsh", "nystrom", "shared-qk-lsh", "softmax", "yoso"]
    for label, row in found.iterrows():
        folder = tmp_path / "listops-32" / str(label) / "seed-0"
        result = json.loads((folder / "result.json").read_text())
        history = pd.read_csv(folder / "history.csv")
        made = sorted(path.name for path in folder.iterdir() if path.name != ".run.lock")
        assert made == ["history.csv", "result.json"]
        assert history.dropna(subset=["eval_loss"])["step"].tolist() == [2, 4]
        assert result["parameters"]["attention"] == row["attention"]
        assert result["train_seconds"] > 0
        assert result["examples"] == {"train": 40, "validation": 12, "test": 12}
        assert result["chance"] == {"accuracy": 0.1}
        assert row["shorter"] == FEWER
    assert found.loc["softmax", ["arena", "rerun"]].tolist() == [0.3637, 0.3710]
    assert found.loc["softmax", "attended"] == 1
    assert 0 < found.loc["lsh", "attended"] < 1
    labels = pd.Series(data["test"]["label"])
    assert found["majority"].unique() == (labels == pd.Series(data["train"]["label"]).mode()[0]).mean()
    assert found.loc["softmax", "full_cost"] == 1
    before = (tmp_path / "listops-32" / "lsh" / "seed-0" / "result.json").stat().st_mtime_ns
    train_all(asked, data)
    assert (tmp_path / "listops-32" / "lsh" / "seed-0" / "result.json").stat().st_mtime_ns == before
    with pytest.raises(ParameterError, match="holds the result of another run, made with steps=4, not 5"):
        train_all(ask(tmp_path, eval_steps=2, steps=5), data)


def test_each_change_of_an_unnamed_run_has_its_folder(tmp_path):
    def folder(**changes):
        return ask("", results_root=str(tmp_path), **changes).output_dir

    sweep = [{}, {"steps": 5}, {"share": 0.5}, {"variants": {"lsh": {"attention": "lsh"}}}]
    assert len({folder(**changes) for changes in sweep}) == len(sweep)
    assert folder(only=["lsh"], resume=False) == folder()  # trained later, they stand beside the others


def test_it_is_said_which_variant_is_being_trained(tmp_path, capsys):
    asked = ask(tmp_path, only=["softmax", "lsh"])
    for said in ("4 steps", "its result is there"):
        train_all(asked, asked.load_data())
        lines = capsys.readouterr().out.splitlines()
        assert {f"softmax (1 of 2): {said}", f"lsh (2 of 2): {said}"} <= set(lines)


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    whole, broken = (ask(tmp_path / name, only=["lsh"], eval_steps=2, steps=6) for name in ("whole", "broken"))
    data = whole.load_data()
    undisturbed = train_all(whole, data)
    on_step_end = Clock.on_step_end

    def stop(self, args, state, control, **kwargs):
        on_step_end(self, args, state, control, **kwargs)
        if state.global_step == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Clock, "on_step_end", stop)
        with pytest.raises(KeyboardInterrupt):
            train_all(broken, data)
    folder = tmp_path / "broken" / "listops-32" / "lsh" / "seed-0"
    assert not (folder / "result.json").exists()
    assert (folder / "checkpoints" / "checkpoint-4").exists()
    with pytest.raises(ParameterError, match="checkpoints of a run with another learning_rate"):
        train_all(ask(tmp_path / "broken", only=["lsh"], eval_steps=2, steps=6, learning_rate=2e-3), data)
    with pytest.raises(ParameterError, match="checkpoints of a run with another data_dir"):
        train_all(ask(tmp_path / "broken", only=["lsh"], eval_steps=2, steps=6, data_dir=str(tmp_path)), data)
    resumed = train_all(broken, data)
    assert not (folder / "checkpoints").exists()
    histories = [pd.read_csv(tmp_path / name / "listops-32/lsh/seed-0/history.csv") for name in ("whole", "broken")]
    pd.testing.assert_frame_equal(histories[0], histories[1])
    assert resumed["accuracy"].equals(undisturbed["accuracy"])


def test_a_new_model_of_duplication_looks_sharply_and_answers_with_what_it_sees(tmp_path):
    """In a word of one symbol that is what most masks see; scores spread, or nothing would say where to look."""
    asked = ask(tmp_path, task="duplication", only=["full"], max_length=256)
    (run,) = asked.runs()
    model, ids = build_model(run).eval(), asked.load_data()["test"][0]["input_ids"][None]
    with torch.no_grad(), record_passes(model) as passes:
        model(input_ids=ids)
    query = passes[0].query
    scores = query @ torch.nn.functional.normalize(query, dim=-1).mT * query.shape[-1] ** -0.5
    assert scores[..., ~torch.eye(256, dtype=torch.bool)].std() > 1  # usual first weights give 0.04
    for symbol in (5, 90):
        word = torch.where((ids > 0) & (ids < duplication.MASK), symbol, ids)
        with torch.no_grad():
            answers = model(input_ids=word).logits.argmax(-1)
        assert (answers[word == duplication.MASK] == symbol).float().mean() > 0.5  # chance is 0.008


def test_duplication_is_evaluated_under_every_attention(tmp_path):
    asked = ask(tmp_path, task="duplication", only=["full", "LSH-1"], train_examples=None)
    found = train_all(asked, asked.load_data())
    assert found.groupby("label", sort=False)["evaluated"].apply(list).to_dict() == {
        label: list(asked.evaluate) for label in ("LSH-1", "full")
    }
    result = json.loads((tmp_path / "duplication-32" / "LSH-1" / "seed-0" / "result.json").read_text())
    assert result["metrics"]["accuracy"] == result["metrics"]["accuracy, LSH-1"]
    assert result["metrics"]["cost, LSH-1"] < result["metrics"]["cost, full"] == 1
    assert result["examples"]["train"] == 16
    assert found.loc[found["evaluated"] == "LSH-1", "published"].tolist() == [0.779, 0.525]
    assert found["shorter"].unique() == ["4 of 150,000 steps; 32 of 1,024 tokens"]
    assert comparison(tmp_path, "duplication").equals(found)


def test_a_word_is_learned_in_a_few_steps(tmp_path):
    asked = ask(tmp_path, task="duplication", only=["LSH-1"], max_length=64, steps=80, batch_size=8,
                train_examples=None, eval_examples=50)  # fmt: skip
    found = train_all(asked, asked.load_data()).set_index("evaluated")["accuracy"]
    assert found["LSH-1"] > 0.5
    assert found["LSH-8"] > found["LSH-1"]


def test_the_notebook_runs(tmp_path, reviews):
    parameters = {**SMALL, "task": "text", "only": ["softmax", "lsh"], "output_dir": str(tmp_path / "out")}
    parameters |= {"data_dir": str(reviews), "train_examples": None, "steps": 2}
    notebook = repository_root() / "notebooks" / "long_range.ipynb"
    papermill.execute_notebook(
        notebook, tmp_path / "out.ipynb", parameters=parameters, kernel_name="python3", progress_bar=False
    )
    found = pd.read_csv(tmp_path / "out" / "text.csv")
    assert found["label"].tolist() == ["lsh", "softmax"]
    assert found["rerun"].dropna().tolist() == [0.6502]
    assert "Film" not in (tmp_path / "out.ipynb").read_text()  # the reviews are not ours
