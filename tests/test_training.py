"""Training: what it records, what it resumes from, what it refuses. (Killed runs: test_study.py.)"""

import dataclasses
import logging
import re
import subprocess
import sys

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import RobertaConfig, RobertaModel

from albert_lsh.model.load import load_model, load_tokenizer, max_positions
from albert_lsh.model.passes import record_passes
from albert_lsh.tasks import squad
from albert_lsh.tasks.data import encode, load_data
from albert_lsh.tasks.metrics import for_trainer, score_splits
from albert_lsh.tasks.table import find_task
from albert_lsh.training.parameters import ParameterError, Parameters
from albert_lsh.training.recipe import attended, hardly_trained, keep_model, prepare_model, sample, train


def make(folder, notebook="glue.ipynb", **changes):
    settings = {"n_hashes": 2, "cluster_size": 4}
    given = {"task": "mini-mrpc", "model": "mini", "attention": "lsh", "attention_settings": settings, "epochs": 2}
    given |= {"train_examples": 64, "eval_examples": 40, "batch_size": 8, "max_length": 48, "learning_rate": 1e-3}
    return Parameters.check({**given, "output_dir": str(folder), **changes}, notebook)


def fit(run):
    task, tokenizer = find_task(run.task), load_tokenizer(run.model)
    data = load_data(run.task, train_examples=run.train_examples, eval_examples=run.eval_examples)
    encoded = encode(data, task, tokenizer, run.max_length)
    model = prepare_model(run, head="classification", num_labels=task.num_labels)
    done = train(model, tokenizer, run, encoded["train"], encoded["validation"], for_trainer(task))
    return done, encoded, attended(model, tokenizer, encoded["validation"], examples=16)


def test_a_run_records_curves_costs_and_what_it_attended(tmp_path):
    run = make(tmp_path, eval_steps=3, tensorboard=True)
    done, encoded, seen = fit(run)
    evaluated = done.history.dropna(subset=["eval_loss"])
    assert evaluated["step"].tolist() == [3, 6, 8, 9, 12, 15, 16]  # every third step, and both epochs' ends
    assert done.history["train_loss"].notna().sum() >= 16
    assert done.cost["examples_per_second"] == pytest.approx(128 / done.cost["train_seconds"])
    assert done.cost["peak_memory_bytes"] > 1e8
    assert 0.2 < seen.pairs < 0.7
    assert list((tmp_path / "logs").iterdir())
    baselines, table = score_splits(done.trainer, find_task(run.task), encoded)
    last = evaluated.iloc[-1]
    assert baselines["score"] == {name: last[name] for name in ("accuracy", "f1")}
    assert (table["label"] == table["answer"]).mean() == baselines["score"]["accuracy"]


# The loss of a span is taken over padding too, and smaller batches have less of it.
@pytest.mark.parametrize(("task", "apart"), [("mini-mrpc", 1e-4), ("mini-mnli", 1e-4), ("mini-squad", 0.1)])
def test_a_step_of_several_batches_is_that_of_one_of_all_their_examples(tmp_path, task, apart):
    losses, weights = [], []
    for batch_size, accumulation in ((16, 1), (4, 4)):
        notebook = "squad.ipynb" if task == "mini-squad" else "glue.ipynb"
        changes = {"task": task, "attention": "softmax", "attention_settings": {}, "epochs": 1, "precision": "fp32"}
        sizes = {"batch_size": batch_size, "accumulation": accumulation, "train_examples": 32, "eval_examples": 8}
        folder = tmp_path / str(batch_size)
        run, about = make(folder, notebook, **changes, **sizes, max_length=96), find_task(task)
        tokenizer, data = load_tokenizer(run.model), load_data(task, train_examples=32, eval_examples=8)
        if about.is_squad:
            encoded = {split: squad.windows(rows, tokenizer, max_length=96) for split, rows in data.items()}
            metrics = squad.for_trainer(data["validation"], encoded["validation"])
        else:
            encoded, metrics = encode(data, about, tokenizer, 96), for_trainer(about)
        head = "question-answering" if about.is_squad else "classification"
        model = prepare_model(run, head=head, **about.model_options)
        done = train(model, tokenizer, run, encoded["train"], encoded[about.evaluation[0]], metrics)
        losses.append(done.history["train_loss"].dropna().tolist())
        weights.append(torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert losses[0] == pytest.approx(losses[1], rel=apart)
    assert apart == 0.1 or torch.allclose(*weights, atol=1e-4)


def test_what_was_evaluated_after_the_last_step_is_not_predicted_again(tmp_path):
    done, encoded, _ = fit(make(tmp_path))
    task, calls = find_task("mini-mrpc"), []
    done.trainer.model.register_forward_hook(lambda *_: calls.append(None))
    kept = score_splits(done.trainer, task, encoded)[1]
    assert not calls
    again = score_splits(done.trainer, task, encoded)[1]  # the model may have been changed since
    assert len(calls) == 5
    assert kept.equals(again)


def test_the_same_seed_trains_the_same(tmp_path):
    histories = [fit(make(tmp_path / str(i), seed=seed))[0].history for i, seed in enumerate((0, 0, 1))]
    assert histories[0].equals(histories[1])
    assert not histories[0].equals(histories[2])


@pytest.mark.parametrize(("rows", "expected"), [(127, 64), (128, 64), (408, 64), (64, 64), (10, 10)])
def test_a_sample_has_as_many_examples_as_asked_for_from_end_to_end(rows, expected):
    data = Dataset.from_dict({"input_ids": [[2, n + 5, 3] for n in range(rows)], "attention_mask": [[1, 1, 1]] * rows})
    batches = list(sample(load_model("mini"), load_tokenizer("mini"), data, 64))
    numbers = [ids[1].item() - 5 for batch in batches for ids in batch["input_ids"]]
    assert len(set(numbers)) == len(numbers) == expected
    assert numbers[0] == 0
    assert numbers[-1] >= rows - 1 - rows / expected


def test_softmax_attends_to_everything(tmp_path):
    seen = fit(make(tmp_path, attention="softmax", attention_settings={}, epochs=0.5))[2]
    assert (seen.pairs, seen.mass) == pytest.approx((1.0, 1.0))


def test_training_can_be_imported_where_unix_modules_are_missing():
    """Windows has no `resource`, and no `fcntl`; other packages know what there is."""
    code = "import sys; import datasets; from transformers import Trainer\n"
    code += "sys.modules |= dict.fromkeys(('resource', 'fcntl'))\n"
    code += "import albert_lsh.training.fine_tuning, albert_lsh.predict, albert_study.execute"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("losses", "score", "constant", "said"),
    [
        ([1.0] * 8, 0.10, 0.0, "the score, 0.1, is near that of always the same answer, 0;"),
        ([2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6], 0.9, 0.5, r"the training loss is still falling \(1.1 to 0.7 in"),
        ([1.0, 0.5, 0.31, 0.30, 0.30, 0.29, 0.3, 0.29], 0.9, 0.5, None),
        ([0.3], 0.9, 0.5, None),
    ],
)
def test_a_run_that_was_hardly_trained_says_so(losses, score, constant, said):
    remark = hardly_trained(pd.DataFrame({"train_loss": losses}), score, constant)
    assert re.search(said, remark) if said else remark is None


def test_a_new_head_is_named_once_on_stdout(capsys):
    """compare.ipynb prints the library's warnings, and so does every run of it."""
    run, log = Parameters.check({"task": "mini-mrpc", "model": "nano"}), logging.getLogger("albert_lsh")
    prepare_model(run, head="classification")
    assert capsys.readouterr().out.count("new weights, not in its file") == 1
    log.addHandler(mine := logging.StreamHandler(sys.stdout))
    try:
        prepare_model(run, head="classification")
    finally:
        log.removeHandler(mine)
    assert capsys.readouterr().out.count("new weights, not in its file") == 1


CLUSTERS = {"n_hashes": 4, "cluster_size": 32}


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("lsh", CLUSTERS, """attends to 100% of the pairs.*{"share": 0.25}"""),
        ("reformer", {}, "attends to 9[5-9]% of the pairs.*bucket_size"),
        ("lsh", {}, None),
        ("smyrf", {"n_hashes": 1, "cluster_size": 64}, """attends to 100% of the pairs.*{"share": 0.25}"""),
        ("window", {"share": 0.25}, None),
        ("smyrf", {}, None),
        ("improved-clustered", {}, None),
        ("softmax", {}, None),
        ("nystrom", {}, None),
    ],
    ids=str,
)
def test_a_sparse_attention_that_sees_everything_says_so_once(caplog, name, settings, said):
    rows = Dataset.from_dict({"input_ids": [[2, *range(5, 60), 3]] * 24, "attention_mask": [[1] * 57] * 24})
    model = load_model("mini", attention=name, settings=settings)
    attended(model, load_tokenizer("mini"), rows)
    found = [line for line in caplog.messages if "of the pairs" in line]
    assert len(found) == (said is not None)
    assert said is None or re.search(f"attention='{name}' {said}", found[0])


def test_pairs_and_cost_are_shares_of_the_whole_texts():
    task, tokenizer = find_task("mini-mrpc"), load_tokenizer("mini")
    data = load_data("mini-mrpc", train_examples=8, eval_examples=20)
    whole = encode(data, task, tokenizer, 64)["validation"]
    cut = encode(data, task, tokenizer, 16)["validation"]
    assert whole["whole_length"] == whole["length"] == cut["whole_length"]
    kept = sum(n**2 for n in cut["length"]) / sum(n**2 for n in whole["length"])
    assert kept < 0.5
    seen = attended(load_model("mini"), tokenizer, cut)
    assert seen == pytest.approx((kept, 1.0, kept))
    assert attended(load_model("mini"), tokenizer, whole) == pytest.approx((1.0, 1.0, 1.0))


def test_the_weights_of_a_convolution_are_in_the_checkpoints(tmp_path):
    run = make(tmp_path, attention="nystrom", attention_settings={"num_landmarks": 8, "conv_kernel_size": 3}, epochs=1)
    trained = {name: p.clone() for name, p in fit(run)[0].trainer.model.named_parameters()}
    assert [p.any() for name, p in trained.items() if "convolution" in name] == [True]
    resumed = fit(run)[0].trainer  # after its last step: nothing is left to train
    (newest,) = (tmp_path / "checkpoints").iterdir()
    kept = load_model(str(newest))
    for model in (resumed.model, kept):
        assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())


def test_evaluation_settings_change_the_score_and_not_what_is_learned(tmp_path):
    """Trained with two clusters of four; evaluated, during training and after it, with one cluster of one."""
    few, data = {"n_hashes": 1, "cluster_size": 1, "global_tokens": 0}, {"train_examples": 256, "eval_examples": 200}
    plain, encoded, share = fit(make(tmp_path / "plain", **data))
    other, _, other_share = fit(make(tmp_path / "other", evaluation_settings=few, **data))
    task = find_task("mini-mrpc")
    scores = [score_splits(done.trainer, task, encoded)[0]["score"] for done in (plain, other)]
    assert scores[0] != scores[1]
    assert scores[1]["accuracy"] == other.history.iloc[-1]["accuracy"]
    for name, weight in plain.trainer.model.named_parameters():
        assert torch.equal(other.trainer.model.get_parameter(name), weight), name
    assert plain.history["train_loss"].equals(other.history["train_loss"])
    evaluated = [done.history["eval_loss"].dropna() for done in (plain, other)]
    assert len(evaluated[0]) == 2
    assert not (evaluated[0] == evaluated[1]).any()
    assert other_share.pairs < 0.1 < share.pairs


def test_recomputing_trains_the_same(tmp_path):
    runs = [make(tmp_path / str(again), recompute=again) for again in (False, True)]
    plain, recomputed = (fit(run)[0] for run in runs)
    assert recomputed.history["train_loss"].tolist() == pytest.approx(plain.history["train_loss"].tolist(), rel=1e-5)


def test_a_runs_parameters_reach_its_model(tmp_path):
    run = make(tmp_path, passes=[1], feed_forward_chunk=5, evaluation_settings={"n_hashes": 3})
    model, ids = prepare_model(run, head="classification"), torch.arange(5, 27)[None]
    for training, n_hashes in ((True, 2), (False, 3)):
        with record_passes(model.train(training)) as passes:
            model(ids)
        assert [p.attention for p in passes] == ["softmax", "lsh"]
        assert passes[1].settings["n_hashes"] == n_hashes
    lengths = []
    inner = model.get_submodule("albert.encoder.albert_layer_groups.0.albert_layers.0.ffn")
    inner.register_forward_hook(lambda module, inputs, out: lengths.append(out.shape[1]))
    model(ids)
    assert lengths == [5, 5, 5, 5, 2] * 2
    with pytest.raises(ValueError, match="passes: 2 is not one of the model's passes, 0 to 1"):
        prepare_model(dataclasses.replace(run, passes=[2]), head="classification")


def test_random_weights_have_the_models_shape_and_know_nothing_of_it(tmp_path):
    torch.manual_seed(99)  # not the run's, whatever test came before
    saved = load_model("mini", intermediate_size=64)
    saved.save_pretrained(tmp_path / "it")
    known = prepare_model(make(tmp_path, model=str(tmp_path / "it")), head="classification")
    new, again = (
        prepare_model(
            make(tmp_path, model=str(tmp_path / "it"), random_weights=True), head="classification", num_labels=3
        )
        for _ in range(2)
    )
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"
    there, here = known.get_parameter(name), new.get_parameter(name)
    assert torch.equal(there, saved.get_parameter(name))
    assert here.shape == there.shape
    assert (here != there).float().mean() > 0.99
    assert torch.equal(here, again.get_parameter(name))
    assert new.config.num_labels == 3
    assert new.config.albert_lsh["attention"] == "lsh"


def test_more_tokens_than_positions_are_refused_before_training(tmp_path):
    message = "max_length=129 is more than the 128 positions of model='mini'; extend_positions=True repeats them"
    with pytest.raises(ParameterError, match=message):
        prepare_model(make(tmp_path, max_length=129), head="classification")
    short = prepare_model(make(tmp_path, max_length=48, extend_positions=True), head="classification")
    assert max_positions(short.config) == 128  # nothing to extend

    small = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    RobertaModel(RobertaConfig(**small, max_position_embeddings=42, pad_token_id=1)).save_pretrained(tmp_path / "it")
    run = make(tmp_path, model=str(tmp_path / "it"), extend_positions=True)
    with pytest.raises(ParameterError, match="max_length=48 is more than the 40 positions .* positions of a roberta"):
        prepare_model(run, head="classification")


def test_positions_are_extended_where_asked_for_trained_resumed_and_loaded_again(tmp_path):
    chosen = {
        "task": "mini-squad",
        "max_length": 192,
        "extend_positions": True,
        "save_model": True,
        "epochs": 1,
        "precision": "fp32",
    }
    run = make(tmp_path, "squad.ipynb", **chosen)
    data, tokenizer = load_data("mini-squad", train_examples=32, eval_examples=16), load_tokenizer("mini")
    # Two paragraphs in one: the model reads beyond the 128 positions that it comes with, and finds answers there.
    long = data.map(lambda row: {"context": f"{row['context']} " + "It was Monday . " * 25 + row["context"]})
    cut = {split: squad.windows(rows, tokenizer, max_length=192) for split, rows in long.items()}
    assert [len(windows) for windows in cut.values()] == [32, 16]
    assert min(cut["train"]["length"]) > 128
    learned = []
    for _ in range(2):  # the second takes the first's last checkpoint up, after which nothing is left to train
        model = prepare_model(run, head="question-answering")
        positions = model.base_model.embeddings.position_embeddings.weight
        assert torch.equal(positions[128:], positions[:64])
        metrics = squad.for_trainer(long["validation"], cut["validation"])
        train(model, tokenizer, run, cut["train"], cut["validation"], metrics)
        learned.append(positions.detach().clone())
    assert torch.equal(*learned)
    assert not (learned[0][128:152] == learned[0][:24]).all(-1).any()  # all of them are read, and trained
    keep_model(run, model, tokenizer)
    again = load_model(str(tmp_path / "model"), head="question-answering")
    assert (max_positions(again.config), load_tokenizer(str(tmp_path / "model")).model_max_length) == (192, 192)
    ids = torch.tensor(cut["train"][:1]["input_ids"])
    assert torch.equal(again(ids).start_logits, model.eval()(ids).start_logits)


def test_the_model_is_kept_where_that_is_asked_for(tmp_path):
    for asked in (False, True):
        run = make(tmp_path, save_model=asked)
        model, tokenizer = prepare_model(run, head="classification", num_labels=2), load_tokenizer("mini")
        keep_model(run, model, tokenizer)
        assert (tmp_path / "model").exists() == asked
    assert load_tokenizer("mini").model_max_length == tokenizer.model_max_length > run.max_length
    again = load_model(str(tmp_path / "model"))
    assert again.config.albert_lsh == model.config.albert_lsh
    assert again.classifier.weight.equal(model.classifier.weight)
    assert load_tokenizer(str(tmp_path / "model"))("one two")["input_ids"] == tokenizer("one two")["input_ids"]
