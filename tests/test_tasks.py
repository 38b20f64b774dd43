"""Tasks: data from the Hub's schemas, encoded; their scores beside what needs no reading."""

import numpy as np
import pytest
from datasets import Dataset

from albert_lsh import load_tokenizer, metrics, mini
from albert_lsh.run import ParameterError, Run
from albert_lsh.tasks import TASKS, TaskError, check_rows, encode, find_task, load_data


def test_the_table_has_glue_without_wnli_squad_korean_tasks_and_the_embedded_ones():
    glue = ["mrpc", "mnli", "sst2", "qnli", "qqp", "rte", "cola", "stsb"]
    korean = ["kor-sts", "kor-qpair", "nsmc", "korquad", "klue-nli"]
    assert list(TASKS) == [*glue, "squad", "squad-v2", *korean, *mini.MINI_NAMES]
    with pytest.raises(TaskError, match="task='wnli' is not one of: mrpc"):
        load_data("wnli")


def test_a_local_folder_is_read_like_the_hub(tmp_path):
    rows = Dataset.from_dict({"sentence": ["good", "bad", "fine"], "label": [1, 0, 1], "idx": [0, 1, 2]})
    for split in ("train", "validation"):
        (tmp_path / "sst2").mkdir(exist_ok=True)
        rows.to_parquet(tmp_path / "sst2" / f"{split}-00000-of-00001.parquet")
    readme = "---\nconfigs:\n- config_name: sst2\n  data_files:\n  - split: train\n    path: sst2/train-*\n"
    (tmp_path / "README.md").write_text(readme + "  - split: validation\n    path: sst2/validation-*\n---\n")
    data = load_data("sst2", tmp_path, train_examples=2)
    assert {split: len(part) for split, part in data.items()} == {"train": 2, "validation": 3}
    (tmp_path / "README.md").write_text(readme.replace("name: sst2", "name: mrpc") + "---\n")
    with pytest.raises(TaskError, match="split 'train' has no sentence1, sentence2"):
        load_data("mrpc", tmp_path)


def test_the_labels_of_every_task_are_called_label(tmp_path):
    rows = {"question1": ["a", "b"], "question2": ["c", "d"], "is_duplicate": [0, 1]}
    for split in ("train", "validation"):
        Dataset.from_dict(rows).to_parquet(tmp_path / f"{split}.parquet")
    data = load_data("kor-qpair", tmp_path)
    assert data["validation"]["label"][:] == [0, 1]
    Dataset.from_dict({**rows, "is_duplicate": [0, 2]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(TaskError, match="split 'train', row 1: is_duplicate=2 must be 0 to 1"):
        load_data("kor-qpair", tmp_path)
    for split in ("train", "validation"):
        unlabelled = Dataset.from_dict({**rows, "label": [0, 1]}).remove_columns("is_duplicate")
        unlabelled.to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(TaskError, match="split 'train' has no is_duplicate"):
        load_data("kor-qpair", tmp_path)


def test_articles_that_cannot_be_cut_are_named(tmp_path):
    """KorQuAD's are cut before their rows are checked."""
    row = {"id": "1", "title": "t", "context": "a b", "question": "c", "answers": {"text": ["a"], "answer_start": [0]}}
    Dataset.from_list([row]).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(TaskError, match="task='korquad': there is no split 'validation'"):
        load_data("korquad", tmp_path)
    Dataset.from_list([row]).to_parquet(tmp_path / "validation.parquet")
    with pytest.raises(
        TaskError, match="task='korquad': 1 article, of which 113 are to be trained on and others evaluated"
    ):
        load_data("korquad", tmp_path)
    untitled = Dataset.from_list([row]).remove_columns("title")
    for split in ("train", "validation"):
        untitled.to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(TaskError, match="task='korquad': split 'validation' has no title"):
        load_data("korquad", tmp_path)


def test_shuffled_words_are_the_same_words_of_each_text_in_another_order():
    data = load_data("mini-mrpc", train_examples=20, eval_examples=50, shuffle_words=3)
    plain, shuffled = data["validation"], data["shuffled"]
    assert list(data) == ["train", "validation", "shuffled"]
    for column in ("sentence1", "sentence2"):  # each for itself
        pairs = list(zip(plain[column][:], shuffled[column][:], strict=True))
        assert all(sorted(one.split()) == sorted(other.split()) for one, other in pairs)
        assert sum(one != other for one, other in pairs) > 40
    assert all(plain[name][:] == shuffled[name][:] for name in ("label", "idx"))


def test_the_order_of_shuffled_words_depends_on_seed_and_text_alone():
    few, many, other = (
        load_data("mini-sst2", eval_examples=size, shuffle_words=seed)["shuffled"]
        for size, seed in ((20, 0), (200, 0), (20, 1))
    )
    order = dict(zip(many["idx"], many["sentence"], strict=True))
    assert few["sentence"][:] == [order[number] for number in few["idx"]]
    assert few["sentence"][:] != other["sentence"][:]
    data = load_data("mini-sst2", train_examples=50, held_out_examples=20, shuffle_words=0)
    assert data["shuffled"]["idx"][:] == data["held-out"]["idx"][:]


def test_words_of_a_paragraph_with_an_answer_are_not_shuffled():
    with pytest.raises(TaskError, match="task='mini-squad': shuffle_words=0, but its answers are places in the text"):
        load_data("mini-squad", shuffle_words=0)
    with pytest.raises(ParameterError, match="shuffle_words=0: the answers of 'mini-squad' are places in a text"):
        Parameters.check({"task": "mini-squad", "shuffle_words": 0}, "squad.ipynb")


def test_held_out_examples_are_training_examples_that_are_not_trained_on():
    data = load_data("mini-sst2", train_examples=50, eval_examples=7, held_out_examples=20)
    assert {split: len(rows) for split, rows in data.items()} == {"train": 50, "held-out": 20}
    everything = load_data("mini-sst2")
    texts = [data[split]["sentence"][:] for split in ("train", "held-out")]
    assert {*texts[0], *texts[1]} <= set(everything["train"]["sentence"][:])
    assert data["train"]["idx"][:] == load_data("mini-sst2", train_examples=50)["train"]["idx"][:]
    assert not {*data["train"]["idx"]} & {*data["held-out"]["idx"]}
    with pytest.raises(TaskError, match="train_examples=None of 6000: the run saw all training examples"):
        load_data("mini-sst2", held_out_examples=20)
    with pytest.raises(TaskError, match=r"fold=\(0, 3\) and held_out_examples=20: take one of them"):
        load_data("mini-sst2", train_examples=50, held_out_examples=20, fold=(0, 3))


def test_every_example_is_in_one_fold_and_trained_on_in_the_others():
    sizes = {split: len(rows) for split, rows in load_data("mini-sst2").items()}
    parts = [load_data("mini-sst2", fold=(part, 3)) for part in range(3)]
    everything = set(range(sum(sizes.values())))
    evaluated = [number for part in parts for number in part["fold"]["idx"]]
    assert sorted(evaluated) == sorted(everything)
    texts = {}
    for part in parts:
        assert set(part) == {"train", "fold"}
        assert {*part["train"]["idx"]} == everything - {*part["fold"]["idx"]}
        for rows in part.values():
            for number, text in zip(rows["idx"], rows["sentence"], strict=True):
                assert texts.setdefault(number, text) == text
    run = Parameters.check({"task": "mini-sst2", "folds": 3, "seed": 4})
    assert run.examples["fold"] == (1, 3)
    with pytest.raises(ParameterError, match="folds=3 and held_out_examples=9"):
        Parameters.check({"task": "mini-sst2", "folds": 3, "held_out_examples": 9})


def test_a_task_without_training_data_is_cut_by_article(tmp_path):
    rows = [
        {"id": f"{article}-{n}", "title": f"{article}", "context": "a b", "question": "c", "answers": answers}
        for article in range(140)
        for n in range(2)
        for answers in [{"text": ["a"], "answer_start": [0]}]
    ]
    Dataset.from_list(rows).to_parquet(tmp_path / "validation.parquet")
    data = load_data("korquad", tmp_path)
    titles = {split: set(of_split["title"]) for split, of_split in data.items()}
    assert {split: len(names) for split, names in titles.items()} == {"train": 113, "validation": 27}
    assert not titles["train"] & titles["validation"]
    assert len(data["train"]) + len(data["validation"]) == len(rows)
    assert load_data("korquad", tmp_path)["validation"]["id"][:] == data["validation"]["id"][:]


def test_data_that_cannot_be_had_is_one_clear_error(tmp_path, monkeypatch):
    with pytest.raises(TaskError, match=r"data_dir='.*nowhere' is not a folder \(task 'sst2'\)"):
        load_data("sst2", tmp_path / "nowhere")
    with pytest.raises(TaskError, match='task=\'sst2\': .*; without a network set task="mini-sst2", model="mini"$'):
        load_data("sst2", tmp_path)


def test_a_damaged_file_is_named_by_its_task_and_folder(tmp_path):
    for split in ("train", "validation"):
        (tmp_path / f"{split}.parquet").write_text("garbage")
    with pytest.raises(TaskError, match=r"task='sst2': the data could not be loaded from .*damaged file.*"):
        load_data("sst2", tmp_path)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("sst2", {"sentence": None, "label": 1}, "sentence=None must be text"),
        ("sst2", {"sentence": 7, "label": 1}, "sentence=7 must be text"),
        ("sst2", {"sentence": "good", "label": 2}, r"label=2 must be 0 to 1 \(negative, positive\)"),
        ("sst2", {"sentence": "good", "label": -100}, "label=-100 must be 0 to 1"),  # ignored by the loss
        ("sst2", {"sentence": "good", "label": None}, "label=None must be 0 to 1"),
        ("stsb", {"sentence1": "a", "sentence2": "b", "label": float("nan")}, "label=nan must be a finite number"),
        ("stsb", {"sentence1": "a", "sentence2": None, "label": 1.0}, "sentence2=None must be text"),
    ],
)
def test_a_row_that_is_no_example_of_the_task_is_named(name, row, message):
    rows = Dataset.from_list([row])
    with pytest.raises(TaskError, match=f"task='{name}': split 'train', row 0: {message}"):
        check_rows(rows, find_task(name), "train")


def test_a_split_that_is_not_there_is_named():
    with pytest.raises(TaskError, match="task='sst2': there is no split 'validation'"):
        check_rows(Dataset.from_dict({}), find_task("sst2"), "validation")


def test_subsets_are_the_same_for_every_run():
    first, again = (load_data("mini-sst2", train_examples=50, eval_examples=20) for _ in range(2))
    assert first["train"]["sentence"] == again["train"]["sentence"]
    assert {split: len(rows) for split, rows in first.items()} == {"train": 50, "validation": 20}


@pytest.mark.parametrize("name", [name for name in mini.MINI_NAMES if "squad" not in name])
def test_classes_are_named_as_in_the_data(name):
    data, task = load_data(name, train_examples=1, eval_examples=1), find_task(name)
    assert tuple(data["train"].features["label"].names) == task.labels
    assert task.model_options["id2label"] == dict(enumerate(task.labels))


def test_a_task_says_what_its_models_answer():
    counts = {name: task.num_labels for name, task in TASKS.items() if not task.is_squad}
    several = {"mnli", "mini-mnli", "klue-nli", "stsb", "kor-sts"}
    assert {name for name, n in counts.items() if n != 2} == several
    assert find_task("stsb").model_options == {"num_labels": 1, "problem_type": "regression"}
    assert [name for name, task in TASKS.items() if task.no_answer] == ["squad-v2", "mini-squad-v2"]


def test_encoding_cuts_and_keeps_labels_and_segments():
    data = load_data("mini-mnli", train_examples=30, eval_examples=10)
    encoded = encode(data, find_task("mini-mnli"), load_tokenizer("mini"), max_length=16)
    assert set(encoded) == {"train", "validation_matched", "validation_mismatched"}
    row = encoded["train"][0]
    assert row["labels"] == data["train"][0]["label"]
    assert len(row["input_ids"]) == row["length"] == 16
    assert set(row["token_type_ids"]) == {0, 1}


def test_scores_by_hand():
    labels, answers = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    found = metrics.scores(("accuracy", "f1", "matthews"), labels, answers)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 1) / (3 * 2 * 3 * 2) ** 0.5)
    correlated = metrics.scores(("pearson", "spearman"), np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    assert correlated == {"pearson": pytest.approx(1), "spearman": pytest.approx(1)}


def test_majority_and_chance_by_hand():
    labels = np.array([1, 1, 1, 0])
    assert metrics.majority(("accuracy", "f1"), np.array([1, 1, 0]), labels) == {"accuracy": 0.75, "f1": 6 / 7}
    assert metrics.majority(("accuracy", "f1"), np.array([1, 0, 0]), labels) == {"accuracy": 0.25, "f1": 0.0}
    assert metrics.chance(("accuracy", "f1"), labels, 2) == {"accuracy": 0.5, "f1": 0.6}
    assert metrics.chance(("accuracy",), labels, 3) == {"accuracy": pytest.approx(1 / 3)}


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_a_constant_prediction_has_no_correlation():
    assert metrics.scores(("pearson", "spearman"), np.array([1.0, 2, 3]), np.ones(3)) == {"pearson": 0, "spearman": 0}
    assert metrics.scores(("matthews",), np.array([0, 1, 1]), np.ones(3)) == {"matthews": 0}
