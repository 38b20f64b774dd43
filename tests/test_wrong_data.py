"""Examples as nobody should write them: named and refused, or read, encoded and answered as they stand."""

import json
import math
from functools import partial

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, disable_progress_bars
from hypothesis import example, given, settings
from hypothesis import strategies as st

from albert_lsh import load_tokenizer, squad
from albert_lsh.data import encode
from albert_lsh.predict import texts_of
from albert_lsh.sources import find_task
from albert_lsh.tasks import TASKS
from wrong_values import REFUSED, answer

disable_progress_bars()
ODD = ["", " ", "\t", "\n", "\r\n", "\x00", "\x1b[31m", "\u202eabc", "שלום עולם"]
ODD += ["مرحبا", "👩‍👩‍👧‍👦🏳️‍🌈", "e\u0301\u0327", "\u200b\ufeff", "ﬁ①Ⅳ", "İ"]
ODD += ["ß", "[CLS] [SEP] [MASK]", "<pad>", "１２３", "\u2028", "한국어 문장", "𝕬𝖓𝖓𝖆"]
LONG = ["word " * 20_000, "a" * 100_000]
TEXTS = (
    st.sampled_from(ODD) | st.text(max_size=40) | st.lists(st.sampled_from([*ODD, "Anna", "lost", "a"])).map(" ".join)
)
WRONG = st.none() | st.integers() | st.floats() | st.booleans() | st.just(["a"]) | st.just({"a": 1}) | st.just("\ud800")
CELLS = TEXTS | WRONG
ANY_TASK = st.sampled_from([*TASKS.values()])
PAIR, SQUAD = find_task("mini-mrpc"), find_task("mini-squad")


@st.composite
def files(draw):
    """A task, the ending of a file, and what stands in it."""
    task = draw(ANY_TASK)
    cells = st.dictionaries(st.sampled_from([*task.columns, "idx"]), CELLS, max_size=3)
    values = st.lists(st.fixed_dictionaries(dict.fromkeys(task.columns, TEXTS)) | cells | WRONG, max_size=3)
    ending = draw(st.sampled_from(["txt", "jsonl"]))
    if ending == "txt":
        rows = [row.values() if isinstance(row, dict) else [row] for row in draw(values)]
        text = "\n".join("\t".join(map(str, row)) for row in rows)
    else:
        text = "\n".join(json.dumps(row) for row in draw(values))
    text += draw(st.sampled_from(["", "", "", "\n", "}", "[" * 5000, "\ud800"]))
    return task, ending, text.encode(draw(st.sampled_from(["utf-8", "utf-8", "utf-16", "utf-8-sig"])), "surrogatepass")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@settings(max_examples=300)
@given(files())
@example((PAIR, "jsonl", b"[" * 100_000))
def test_a_file_of_texts_is_named_with_its_line_or_read(folder, file):
    task, ending, content = file
    path = folder / f"rows.{ending}"
    path.write_bytes(content)
    found = answer(lambda: texts_of(str(path), task), f"{path}")
    if found is not REFUSED:
        assert found
        for row in found:
            assert tuple(row) == task.columns
            assert all(text.strip() for text in row.values())


@st.composite
def columns(draw):
    """A task and a split of it, some columns of which are missing or hold something else."""
    task, size = draw(ANY_TASK), draw(st.integers(0, 3))
    starts = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2)
    answers = st.fixed_dictionaries({"text": st.lists(TEXTS, max_size=2), "answer_start": starts})
    kinds = {name: [st.text(max_size=9), st.integers(-9, 9), st.none() | st.text(max_size=9)] for name in task.columns}
    numbers = [st.integers(0, 2), st.integers(-2, 3), st.floats(), st.none(), st.booleans(), st.text(max_size=2)]
    kinds[task.label] = numbers
    kinds |= {"answers": [answers, st.none(), st.text(max_size=3)], "id": [st.text(max_size=2), st.integers(0, 3)]}
    kinds = {name: draw(st.sampled_from(kinds[name])) for name in kinds if draw(st.integers(0, 9))}
    return task, {name: draw(st.lists(kind, min_size=size, max_size=size)) for name, kind in kinds.items()}


@settings(max_examples=150)
@given(columns())
def test_a_split_is_named_with_its_row_or_can_be_read(given):
    task, columns = given
    rows = Dataset.from_dict(columns)
    found = answer(lambda: task.check(rows, "train"), f"task={task.name!r}")
    if found is not REFUSED:
        assert all(isinstance(text, str) for column in task.columns for text in rows[column])
        if "context" in task.columns:
            answer(lambda: squad.windows(rows, load_tokenizer("mini"), 32), "example ", "question=")
        else:
            assert all(math.isfinite(label) for label in rows[task.label])


@pytest.fixture(scope="module", params=["mini", "nano"])
def tokenizer(request):
    """Words, and pieces of words."""
    return load_tokenizer(request.param)


@settings(max_examples=40)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), st.integers(8, 64))
@example([(long, other) for long in LONG for other in (*LONG, "short")], 64)
def test_every_row_is_encoded_and_cut(tokenizer, pairs, max_length):
    texts = dict(zip(PAIR.columns, zip(*pairs, strict=True), strict=True))
    rows = Dataset.from_dict({**texts, "label": [0] * len(pairs)})
    (found,) = encode(DatasetDict({"train": rows}), PAIR, tokenizer, max_length).values()
    assert len(found) == len(pairs)
    for row in found:
        assert len(row["input_ids"]) == row["length"] == min(max_length, row["whole_length"])
        assert max(row["input_ids"]) < len(tokenizer)


def squad_row(context, question, key="q"):
    return {"id": key, "context": context, "question": question, "answers": {"text": [], "answer_start": []}}


@st.composite
def questions(draw):
    """Examples of SQuAD; their answers stand in the context, or beside, before or behind it."""
    rows = []
    for number in range(draw(st.integers(1, 3))):
        context = draw(TEXTS)
        start = draw(st.integers(0, max(0, len(context) - 1)))
        text = context[start : start + draw(st.integers(1, 9))]
        if not draw(st.integers(0, 3)):
            start = draw(st.sampled_from([start + 1, start - 1, -1, -len(context), len(context), 10**6, -(10**6)]))
        if not draw(st.integers(0, 5)):
            text = draw(TEXTS)
        row = squad_row(context, draw(TEXTS), f"q{number if draw(st.integers(0, 5)) else 0}")
        if draw(st.integers(0, 3)):
            row["answers"] = {"text": [text], "answer_start": [start]}
        rows.append(row)
    return rows


@settings(max_examples=50)
@given(questions(), st.integers(12, 64), st.integers(0, 99))
@example([squad_row(LONG[0], "Who?"), squad_row("Anna lost a ball.", LONG[1], "r")], 64, 0)
def test_answers_are_pieces_of_their_context(tokenizer, rows, max_length, seed):
    examples = Dataset.from_list(rows)
    named = [f"example {row['id']}" for row in rows] + ["question=", "example ids"]
    windows = answer(lambda: squad.windows(examples, tokenizer, max_length), *named)
    if windows is REFUSED:
        return
    for row in rows:
        if row["answers"]["text"]:
            (text,), (start,) = row["answers"].values()
            assert not text.strip() or (start >= 0 and row["context"][start : start + len(text)] == text)
    assert max(windows["length"]) <= max_length
    logits = np.random.default_rng(seed).normal(size=(2, len(windows), max(windows["length"])))
    for no_answer in (False, True):
        found = answer(partial(squad.best_answers, examples, windows, *logits, no_answer=no_answer), "example ids")
        if found is REFUSED:
            return
        assert list(found) == [row["id"] for row in rows]
        for row, best in zip(rows, found.values(), strict=True):
            assert row["context"][best.start : best.end] == best.text
            assert best.text or no_answer or best.score == -np.inf
    table = squad.predictions(examples, windows, logits)
    assert len(table) == len(rows)
    assert all(0 <= value <= 100 for name, value in squad.scores_of(examples, table).items() if "threshold" not in name)
