"""What is read of a reader's own files: splits by files' names, columns by theirs, cells as text; and what is wrong."""

import json
import math
from pathlib import Path

import pytest

from albert_lsh import find_task, load_data
from albert_lsh.kinds import TaskError
from albert_lsh.run import ParameterError
from test_own_data import parse, rows

TWO = "text,label\n" + "".join(f"{{0}} {n},{n % 2}\n" for n in range(30))


def splits_of(folder, *names):
    """Where the texts of each file are, by its name, when files of these names are in a folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(TWO.format(Path(name).stem) if name.endswith("csv") else "{}")
    data = load_data(str(folder))
    return {split: {text.split()[0] for text in rows["text"]} for split, rows in data.items()}


@pytest.mark.parametrize("names", [
    ("Train.csv", "Test.csv"), ("TRAIN.csv", "TEST.csv"), ("trainset.csv", "testset.csv"), ("train.csv", "eval.csv"),
    ("training.csv", "held-out.csv"), ("train-00000-of-00001.csv", "valid-00000-of-00001.csv"),
    ("train.csv", "validate.csv"), ("SemEval-Train.csv", "SemEval-Dev.csv"), ("reviewsTrain.csv", "reviewsHeldOut.csv"),
    ("train/a.csv", "test/b.csv"),
    ("train.csv", "dev_set.csv", "README.md", ".ipynb_checkpoints/train-checkpoint.csv", "train.py"),
], ids=lambda names: names[1])  # fmt: skip
def test_a_files_split_follows_from_its_name(tmp_path, names, capsys):
    first, second, *others = names
    train, evaluated = splits_of(tmp_path / "own", *names).values()
    assert (train, evaluated) == ({Path(first).stem}, {Path(second).stem})
    said = capsys.readouterr().out
    assert f"own: train is {first}, 30 rows" in said
    assert ("own: not read: README.md, train.py\n" in said) == bool(others)


@pytest.mark.parametrize(("names", "message"), [
    (("train.csv", "extra.csv"), "extra.csv is in no split; a file is called after one of: train, training, valid"),
    (("train.csv", "train_test.csv"), "train_test.csv names test and train; a file is called after one of"),
    (("train.csv", "dev.csv", "heldout.csv"), "dev.csv, heldout.csv are all 'validation'; rename those that are not"),
    (("train.csv", "test.xlsx"), "test.xlsx may be 'test', but a file must be one of: .csv, .tsv"),
    (("notes.md",), "the folder has no file that ends in one of: .csv"),
    (("dev.csv", "test.csv"), "there is no split 'train'; there are: validation, test|there are: test, validation"),
], ids=str)  # fmt: skip
def test_a_file_that_is_in_no_split_or_in_two_is_named(tmp_path, names, message):
    with pytest.raises(TaskError, match=message):
        splits_of(tmp_path / "own", *names)


def test_tabs_need_no_quotes_and_an_open_one_in_csv_is_named(tmp_path, capsys):
    texts = [f"text {n}" for n in range(40)]
    texts[5], texts[9], texts[20] = '"Never again', '"Good', '"Fine" thing'
    (tmp_path / "own.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{n % 2}\n" for n, t in enumerate(texts)))
    data = load_data(str(tmp_path / "own.tsv"))
    assert sorted(text for rows in data.values() for text in rows["text"]) == sorted(texts)
    (tmp_path / "own.csv").write_text("text,label\n" + "".join(f"{t},{n % 2}\n" for n, t in enumerate(texts)))
    with pytest.raises(TaskError, match="own.csv could not be read .*line 11: .*; is a quotation mark open"):
        load_data(str(tmp_path / "own.csv"))
    (tmp_path / "own.csv").write_text('text,label\n"a,0\nb,1\nc",0\nd,1\ne,0\nf,1\n')
    load_data(str(tmp_path / "own.csv"))
    assert "own.csv: 4 rows of 7 lines; is a quotation mark open, or do cells have lines?" in capsys.readouterr().out


@pytest.mark.parametrize(("late", "labels"), [
    (("text", "1", "seen twice"), ("0", "1")), (("text", "3.5", ""), ()), (("text", "no", ""), ("0", "1", "no")),
    (("words", "0", "7"), ("0", "1")),
], ids=lambda late: " ".join(late))  # fmt: skip
def test_what_a_column_holds_may_change_after_many_rows(tmp_path, late, labels):
    """In columns too that nobody needs; Arrow infers types from the first ten thousand rows or so."""
    rows = [(f"{n}", f"{n % 2}", "") for n in range(10_200)] + [late] * 2
    (tmp_path / "own.csv").write_text("text,label,note\n" + "".join(",".join(row) + "\n" for row in rows))
    lines = (json.dumps({"text": n, "label": n % 2, "note": None}) for n in range(10_200))
    last = json.dumps({"text": late[0], "label": late[1], "note": {"by": [late[2]]}})
    (tmp_path / "own.jsonl").write_text("\n".join([*lines, last, last]))
    for name in ("own.csv", "own.jsonl"):
        task = find_task(str(tmp_path / name))
        assert task.labels == labels
        assert sum(map(len, load_data(task).values())) == 10_202


def test_names_may_be_digits_as_papermill_hands_them_over(tmp_path):
    (tmp_path / "own.csv").write_text("1,2,3\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(20)))
    task = parse(tmp_path, "own.csv", text_columns=[1, 2], label_column=3, labels=[1, 0]).about
    assert (task.columns, task.label, task.labels) == (("1", "2"), "3", ("1", "0"))
    rows = load_data(task)["train"]
    assert [1 - int(text) % 2 for text in rows["1"]] == rows["label"][:]


ENTRY = {"id": "0", "question": "Where?", "answers": [{"text": "Ulm", "answer_start": 0}]}


@pytest.mark.parametrize(("before", "first", "mark"), [
    ({}, ENTRY, b"\xef\xbb\xbf"), ({"meta": {"tool": ["x"]}}, ENTRY, b""), ({"languages": ["en"]}, ENTRY, b""),
    ({}, {"id": "0", "question": "Where?", "is_impossible": True}, b""),
], ids=["byte order mark", "object before data", "list before data", "first question without answers"])  # fmt: skip
def test_squads_json_is_known_by_what_it_holds(tmp_path, before, first, mark):
    asked = [first, *(ENTRY | {"id": str(number)} for number in range(1, 9))]
    articles = [{"title": "T", "paragraphs": [{"context": f"Ulm {e['id']}", "qas": [e]}]} for e in asked]
    (tmp_path / "own.json").write_bytes(mark + json.dumps(before | {"data": articles}).encode())
    data = load_data(str(tmp_path / "own.json"))
    assert sorted(number for rows in data.values() for number in rows["id"]) == [*"012345678"]


@pytest.mark.parametrize(
    ("labels", "given", "names", "first"),
    [
        ([10, 9, 10, 9], None, ("9", "10"), 1),
        ([True, False, True, False], None, ("False", "True"), 1),
        ([1, 0, 1, 0], "no,yes", ("no", "yes"), 1),
        (["no", "yes", "no"], '["yes", "no"]', ("yes", "no"), 1),
        ([1, 3, 2, 3], "[]", (), 1.0),
        ([*range(30)], None, (), 0.0),
        ([1, 2.5, 4], None, (), 1.0),
        ([1.0, 0.0, 1.0, 0], None, ("0", "1"), 1),
        ([1, 0, 1.0, 0], [1, 0], ("1", "0"), 0),
        ([1.0, 0.0, 1.0, 0.0], ["1.0", "0.0"], ("1.0", "0.0"), 0),
    ],
)
def test_labels_are_classes_or_numbers(tmp_path, labels, given, names, first):
    (tmp_path / "own.json").write_text(json.dumps(rows(labels)))
    task = parse(tmp_path, "own.json", labels=given).about
    data = load_data(task)
    found = {n: label for part in data.values() for n, label in zip(part["idx"], part["label"], strict=True)}
    assert (task.labels, found[0], type(found[0])) == (names, first, type(first))


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("reviws.csv", None, {}, "task='.*reviws.csv': there is no such file in .*; there are: reviews.csv"),
        ("a.xlsx", "", {}, "a file must be one of: .csv, .tsv, .json"),
        ("nothing", None, {}, "is not one of: mrpc, .*; nor a file, a folder, or owner/name on the Hub"),
        (
            "a.csv",
            "text;label\nb;1\n",
            {},
            "text_columns must be given, .*; the columns are: text;label",
        ),
        (
            "a.csv",
            "text,mood\nb,1\n",
            {},
            "label_column must be given, as no column is called 'label'; the col",
        ),
        ("a.csv", "text,label\nb,1\n", {"label_column": "c"}, "label_column: there is no column 'c'; the columns are"),
        ("a.csv", "text,label\nb,1\n", {"text_columns": "t"}, "text_columns: there is no column 't'; the columns are"),
        (
            "a.csv",
            "label,x\nb,1\nc,2\n",
            {"text_columns": "label", "label_column": "x"},
            "none called 'label' or 'idx'",
        ),
        ("a.csv", "text,label\nb,x\n", {"labels": "x"}, r"labels=\['x'\] must name two classes or more"),
        ("./mini-mrpc", None, {}, "is called like a task of the table; give it another name"),
        (
            "a.csv",
            "a,b,c,label\nx,y,z,0\nu,v,w,1",
            {"text_columns": "a,b,c"},
            "must name one or two columns, not 'label'",
        ),
        ("a.csv", "text,label\nb,x\nc,x\n", {}, "label_column='label' has one value, 'x'"),
        (
            "a.csv",
            "text,label\n" + "".join(f"t,n{i}\n" for i in range(9)),
            {},
            "9 different values in 9 rows .* too many",
        ),
        ("a.csv", "text,label\n" + "".join(f"t,{i}.5\n" for i in range(9)) + "t,x\n", {}, "row 9: label='x' must be"),
        ("a.csv", "text,label\nb,x\n,y\nc,x\nd,y\n", {}, "split 'train', row 1: text=None must be text"),
        (
            "a.csv",
            'text,label\nb,x\n" ",y\nc,x\nd,y\n',
            {},
            "split 'train', row 1: text=' ' must be text, and not empty",
        ),
        ("a.csv", "text,label\nb,x\nc,\nd,y\ne,y\n", {}, "split 'train', row 1: label=None must be one of: x, y"),
        ("a.csv", "text,label\nb,x\nc,z\n", {"labels": "x,y"}, "split 'train', row 1: label='z' must be one of: x, y"),
        ("a.csv", "text,label\nb,x\nc,z,1\n", {}, "a.csv could not be read .* line 3 has 3 cells, the first line 2"),
        ("a.csv", "text,text,label\nb,x,1\n", {}, "two columns have the same name: text, text, label"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", {}, "a.csv could not be read .*it is not UTF-8: .* position 14"),
        ("a.json", "[{", {}, "a.json could not be read .*it is not JSON: Expecting property name"),
        ("a.json", '[1, {"text": "a"}]', {}, "entry 0 is 1; it must be an object"),
        ("a.jsonl", json.dumps({"text": "a"}) + "\n{\n", {}, "line 2 is not JSON: Expecting property name"),
        ("a.parquet", "garbage", {}, "a.parquet could not be read .a damaged file.*: ArrowInvalid"),
        ("a.json", json.dumps(rows([1, "x", 2])), {}, "row 1: label='x' must be a number, as most labels are"),
        ("a.json", json.dumps(rows([1, 0, math.nan])), {}, "split 'train', row 2: label=None must be one of: 0, 1"),
        ("a.json", '[{"text": "a", "label": 1}, {"text": NaN, "label": 0}]', {}, "row 1: text=None must be text, and"),
        ("a.json", '{"data": [{"paragraphs": [{}]}]}', {}, "has paragraphs, but not as SQuAD's JSON has them"),
        ("a.csv", "text,label\nb,x\n", {"text_columns": "a,a"}, r"text_columns=\['a', 'a'\] has a name twice"),
        ("mrpc", None, {"label_column": "x"}, "label_column='x' is for data of your own; task 'mrpc' has its columns"),
        ("mini-mrpc", None, {"data_revision": "x"}, "data_revision='x': the data of task 'mini-mrpc' come with"),
        ("mini-mrpc", None, {"revision": "x"}, "revision='x' is of a repository on the Hub, and model='mini' is none"),
    ],
)
def test_what_is_wrong_with_ones_own_data_is_named(tmp_path, name, content, options, message):
    (tmp_path / "reviews.csv").write_text("text,label\n")
    (tmp_path / "mini-mrpc").mkdir()
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ParameterError, TaskError), match=message):
        load_data(parse(tmp_path, name, **options).about)
