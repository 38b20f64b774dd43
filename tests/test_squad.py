"""Windows and answers of SQuAD, on hand-made examples and tokenizers trained here; no network."""

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from albert_lsh.squad import best_answers, score, windows_of
from albert_lsh.squad import windows as cut

CONTEXT = "The Café de Flore opened in the 1880s, near the  Boulevard Saint-Germain; Simone wrote there in 1943."
QUESTION = "Who wrote there?"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def example(key="q", context=CONTEXT, question=QUESTION, answers=()):
    starts = [context.index(text) for text in answers]
    return {
        "id": key,
        "context": context,
        "question": question,
        "answers": {"text": [*answers], "answer_start": starts},
    }


def dataset(*rows):
    return Dataset.from_list(list(rows))


def make_tokenizer(kind):
    """WordPiece with trimmed offsets, or byte-level BPE whose offsets keep the space before a word."""
    if kind == "wordpiece":
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.normalizer = normalizers.BertNormalizer(lowercase=True)
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=SPECIAL, show_progress=False)
    else:
        raw = Tokenizer(models.BPE(unk_token="[UNK]"))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=275, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
    raw.train_from_iterator([CONTEXT, QUESTION], trainer)
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1" if kind == "wordpiece" else "[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0"
    ids = [(name, raw.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    raw.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special_tokens=ids)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


@pytest.fixture(scope="module", params=["wordpiece", "byte-level"])
def tokenizer(request):
    return make_tokenizer(request.param)


def room(tokenizer, context_tokens):
    """The max_length that leaves so many tokens for the context."""
    return len(tokenizer(QUESTION)["input_ids"]) + 1 + context_tokens


def logits(windows, start, end, padded=None, fill=-100.0):
    """(n_windows, padded) start and end logits: 0 but for {(window, token): value}, and `fill` as padding."""
    shape = len(windows), padded or max(windows["length"])
    arrays = []
    for values in (start, end):
        array = np.full(shape, fill, dtype=np.float32)
        for row, length in enumerate(windows["length"]):
            array[row, :length] = 0
        for place, value in values.items():
            array[place] = value
        arrays.append(array)
    return arrays


def answer_in(window, context):
    """The text that a window's start and end positions mark."""
    offsets = window["offset_mapping"]
    return context[offsets[window["start_positions"]][0] : offsets[window["end_positions"]][1]].strip()


# --- windows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "stride"), [(8, 0), (8, 3), (9, 8), (500, 5)])
def test_windows_cover_the_context_and_overlap_by_stride(tokenizer, size, stride):
    whole = tokenizer(QUESTION, CONTEXT)["input_ids"]
    question = tokenizer(QUESTION)["input_ids"]
    windows = cut(dataset(example()), tokenizer, max_length=room(tokenizer, size), stride=stride)
    rebuilt = []
    for ids, length in zip(windows["input_ids"], windows["length"], strict=True):
        assert len(ids) == length <= room(tokenizer, size)
        assert ids[: len(question)] == question
        context = ids[len(question) : -1]
        assert not rebuilt or rebuilt[-stride or len(rebuilt) :] == context[:stride]
        rebuilt += context[stride:] if rebuilt else context
    assert rebuilt == whole[len(question) : -1]


def test_columns(tokenizer):
    names = {"input_ids", "attention_mask", "start_positions", "end_positions", "length"}
    segments = {"token_type_ids"} if tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"][-1] else set()
    found = cut(dataset(example()), tokenizer, max_length=60, stride=8)
    assert set(found.column_names) == names | segments | {"example_id", "offset_mapping"}


@pytest.mark.parametrize("answer", ["The Café de Flore", "Café", "1880s", "Boulevard Saint-Germain", "1943."])
def test_answer_comes_back_from_its_tokens(tokenizer, answer):
    windows = cut(dataset(example(answers=[answer])), tokenizer, max_length=room(tokenizer, 25), stride=20)
    found = 0
    for row in windows:
        first, last = row["start_positions"], row["end_positions"]
        left = min(start for start, _ in row["offset_mapping"] if start >= 0)
        right = max(end for _, end in row["offset_mapping"])
        start = CONTEXT.index(answer)
        if left <= start and start + len(answer) <= right:
            found += 1
            text = CONTEXT[row["offset_mapping"][first][0] : row["offset_mapping"][last][1]]
            assert text.strip() == answer
        else:
            assert (first, last) == (0, 0)
    assert found >= (2 if answer == "Boulevard Saint-Germain" else 1)  # the overlap shows it to more than one window


def test_without_answer_every_window_points_at_cls(tokenizer):
    windows = cut(dataset(example()), tokenizer, max_length=room(tokenizer, 10), stride=2)
    assert len(windows) > 2
    assert set(windows["start_positions"]) == set(windows["end_positions"]) == {0}


def test_white_space_around_a_reference_takes_no_neighbour_in(tokenizer):
    answers = {"text": [" 1880s, "], "answer_start": [CONTEXT.index(" 1880s")]}
    (row,) = cut(dataset(example() | {"answers": answers}), tokenizer, max_length=200, stride=5)
    (plain,) = cut(dataset(example(answers=["1880s,"])), tokenizer, max_length=200, stride=5)
    assert row == plain
    assert plain["start_positions"] > 0


def test_offsets_are_outside_for_all_but_context(tokenizer):
    (row,) = cut(dataset(example()), tokenizer, max_length=200, stride=5)
    n_question = len(tokenizer(QUESTION)["input_ids"])
    assert row["offset_mapping"][:n_question] == [[-1, -1]] * n_question
    assert row["offset_mapping"][-1] == [-1, -1]
    # The second of two spaces is a token of its own in byte-level BPE, and no place for an answer.
    assert all(CONTEXT[start:end].strip() for start, end in row["offset_mapping"] if start >= 0)


def test_a_long_window_reads_a_paragraph_whole(tokenizer):
    """What 384 tokens cut into windows, 1,024 hold, wherever the answer is."""
    context = " ".join(CONTEXT.replace("1943", f"19{n}") for n in range(50, 64))
    examples = dataset(*(example(answer, context, answers=[answer]) for answer in ("The Café", "1956", "1963")))
    short, long = (cut(examples, tokenizer, max_length=length) for length in (384, 1024))
    assert len(short) >= 6
    assert 512 < long["length"][0] <= 1024
    assert long["example_id"] == examples["id"] == [answer_in(row, context) for row in long]
    whole = tokenizer(QUESTION, context)["input_ids"]
    assert long["input_ids"] == [whole] * 3


def test_a_question_is_cut_at_half_of_a_window(tokenizer):
    examples = dataset(example("long", question=f" {QUESTION}" * 9), example("short"))
    windows = cut(examples, tokenizer, max_length=48)
    read = {row["example_id"]: row["input_ids"][:26] for row in windows}
    whole = tokenizer(QUESTION * 9)["input_ids"]
    assert len(whole) > 26
    first, second = (
        windows_of(row["question"], row["context"], tokenizer, max_length=48)[1].remove_columns("example_id").to_list()
        for row in examples
    )
    assert first + second == windows.remove_columns("example_id").to_list()
    assert read["long"][25] == read["short"][len(tokenizer(QUESTION)["input_ids"]) - 1]  # the question ends there


@pytest.mark.parametrize(("size", "stride"), [(-3, 0), (0, 0), (4, 4), (4, 9), (4, -1)])
def test_no_room_for_context_names_the_question(tokenizer, size, stride):
    examples = dataset(example("short", question="W"), example("long"))
    limit = room(tokenizer, size)
    message = rf"question='.*' leaves room for {max(size, 0)} tokens of context in max_length={limit};.*stride={stride}"
    with pytest.raises(ValueError, match=message):
        cut(examples.select([1]), tokenizer, max_length=limit, stride=stride)
    if (size, stride) == (4, 4):  # the shorter question of the two is not to blame
        with pytest.raises(ValueError, match=message):
            cut(examples, tokenizer, max_length=limit, stride=stride)


def test_a_misplaced_answer_is_named(tokenizer):
    wrong = example("bad") | {"answers": {"text": ["Simone"], "answer_start": [3]}}
    with pytest.raises(ValueError, match="example bad: its answer 'Simone' is not at character 3"):
        cut(dataset(wrong), tokenizer, max_length=60, stride=8)


# --- best_answers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words():
    """A context of ten words, one token each, in windows of six that share two: w0-w5 and w4-w9 at tokens 3 to 8."""
    vocabulary = {name: i for i, name in enumerate([*SPECIAL, "q", *(f"w{i}" for i in range(10))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    raw.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, cls_token="[CLS]", pad_token="[PAD]", unk_token="[UNK]")
    examples = dataset(example("q", " ".join(f"w{i}" for i in range(10)), "q"), example("r", "w7 w8", "q"))
    return examples, cut(examples, tokenizer, max_length=10, stride=2)


def answer_of(words, start, end, key="q", no_answer=False, **settings):
    return best_answers(*words, *logits(words[1], start, end), no_answer=no_answer, **settings)[key]


def test_words_are_cut_as_described(words):
    assert words[1]["example_id"] == ["q", "q", "r"]
    assert words[1]["length"] == [10, 10, 6]


def test_the_best_span_wins_over_windows(words):
    assert answer_of(words, {(0, 3): 4}, {(0, 4): 4, (1, 8): 1}).text == "w0 w1"
    assert answer_of(words, {(0, 3): 4, (1, 7): 5}, {(0, 4): 4, (1, 8): 5}).text == "w8 w9"
    # A start in one window and an end in the other make no span, though both would be the best.
    assert answer_of(words, {(0, 3): 9}, {(1, 8): 9, (0, 5): 1}).text == "w0 w1 w2"


def test_question_special_tokens_and_padding_are_no_answer(words):
    start = {(0, 1): 50, (0, 2): 50, (0, 9): 50, (0, 5): 1}
    assert answer_of(words, start, start).text == "w2"
    for fill in (-100.0, 1000.0):
        start, end = logits(words[1], {(2, 4): 1}, {(2, 4): 1}, padded=16, fill=fill)
        assert best_answers(*words, start, end, no_answer=True)["r"].text == "w8"


def test_low_logits_beat_padding(words):
    low = np.full((3, 12), -100.0, dtype=np.float32)
    for row, length in enumerate(words[1]["length"]):
        low[row, :length] = -1000
    low[2, 3] = low[2, 4] = -900
    assert best_answers(*words, low, low, no_answer=False)["r"].text == "w7"


def test_end_before_start_and_long_spans_are_no_answer(words):
    assert answer_of(words, {(0, 6): 5}, {(0, 4): 5, (0, 7): 1}).text == "w3 w4"
    start, end = {(0, 3): 5}, {(0, 8): 5, (0, 5): 1}
    assert answer_of(words, start, end, max_answer_tokens=6).text == "w0 w1 w2 w3 w4 w5"
    assert answer_of(words, start, end, max_answer_tokens=5).text == "w0 w1 w2"
    assert answer_of(words, start, end, max_answer_tokens=1).text == "w0"
    assert answer_of(words, start, end, max_answer_tokens=99).text == "w0 w1 w2 w3 w4 w5"


def test_a_span_is_found_below_the_best_starts_and_ends(words):
    # Every pair of the best start and the best end runs backwards; the recipe with n_best=1 would find nothing.
    assert answer_of(words, {(0, 8): 5, (1, 8): 5}, {(0, 3): 5, (1, 3): 5}, n_best=1).text != ""


def test_an_answer_says_where_it_stands(tokenizer):
    """Byte-level tokens hold the space before a word; the answer does not, nor another piece of the same text."""
    context = "1943 and 1943 and 1943"
    examples = dataset(example(context=context, question="When?"))
    windows = cut(examples, tokenizer, max_length=60, stride=5)
    (offsets,) = windows["offset_mapping"]
    token = next(i for i, (left, right) in enumerate(offsets) if left <= 9 < right)
    last = max(i for i, (left, right) in enumerate(offsets) if 0 <= left < 13)
    found = best_answers(examples, windows, *logits(windows, {(0, token): 5}, {(0, last): 5}), no_answer=True)["q"]
    assert (found.text, found.start, found.end) == ("1943", 9, 13)
    nothing = best_answers(examples, windows, *logits(windows, {(0, 0): 9}, {}), no_answer=True)["q"]
    assert (nothing.text, nothing.start, nothing.end) == ("", 0, 0)


def test_n_best_is_sorted_without_repeats(words):
    # w4 w5 stands in both windows; the better of its scores counts.
    result = answer_of(words, {(0, 7): 3, (1, 3): 2}, {(0, 8): 3, (1, 4): 2}, n_best=4)
    assert result.n_best[0] == ("w4 w5", 6.0)
    assert len({text for text, _ in result.n_best}) == len(result.n_best) <= 4
    assert [value for _, value in result.n_best] == sorted((value for _, value in result.n_best), reverse=True)


def test_no_answer_competes_by_its_smallest_score(words):
    # CLS scores 6 in one window and 2 in the other: the smaller counts, against a span of 3.
    start = {(0, 0): 4, (1, 0): 1, (0, 3): 2}
    end = {(0, 0): 2, (1, 0): 1, (0, 4): 1}
    result = answer_of(words, start, end, no_answer=True)
    assert (result.text, result.score, result.null_score) == ("w0 w1", 3, 2)
    assert ("", 2.0) in result.n_best
    start[1, 0] = 2
    assert answer_of(words, start, end, no_answer=True).text == "w0 w1"  # as high is not above
    start[1, 0] = 9
    refused = answer_of(words, start, end, no_answer=True)
    assert (refused.text, refused.score, refused.null_score, refused.n_best[0]) == ("", 3, 6, ("", 6.0))
    forced = answer_of(words, start, end, no_answer=False)
    assert (forced.text, forced.null_score) == ("w0 w1", 6)
    assert all(text for text, _ in forced.n_best)


def test_a_context_without_tokens_has_no_answer(tokenizer):
    examples = dataset(example("empty", context=" "))
    windows = cut(examples, tokenizer, max_length=40, stride=4)
    result = best_answers(examples, windows, *logits(windows, {}, {}), no_answer=False)
    assert (result["empty"].text, result["empty"].score, result["empty"].n_best) == ("", -np.inf, [])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(words, value):
    start, end = logits(words[1], {}, {})
    end[2, 3] = value
    with pytest.raises(ValueError, match="question='q': the model's logits are not finite"):
        best_answers(*words, start, end, no_answer=False)


# --- what tokenizers drop ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["the cafe\u0301", "a heart \u2764\ufe0f", "cafe\u0301\u0323", "e\u0301"])
def test_an_answer_keeps_the_marks_at_its_end(tokenizer, answer):
    """Combining marks and variation selectors, which no token holds."""
    context = f"Ana liked {answer} most of all. It was {answer}"
    for place in (context.index(answer), context.rindex(answer)):
        row = {"id": "q", "question": "What?", "context": context}
        examples = dataset({**row, "answers": {"text": [answer], "answer_start": [place]}})
        windows = cut(examples, tokenizer, max_length=80, stride=8)
        start, end = ({(0, windows[f"{side}_positions"][0]): 9.0} for side in ("start", "end"))
        found = best_answers(examples, windows, *logits(windows, start, end, padded=99), no_answer=False)["q"]
        assert (found.text, context[found.start : found.end], found.start) == (answer, answer, place)
        assert score(examples, {"q": found.text}) == {"exact": 100, "f1": 100}


# --- all of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unanswerable", [False, True])
def test_oracle_logits_score_full_marks(tokenizer, unanswerable):
    golds = ["The Café de Flore", "Boulevard Saint-Germain", "Simone", "1943", "1880s"]
    rows = [example(f"q{i}", answers=[gold, "1943."]) for i, gold in enumerate(golds)]
    rows += [example("none")] if unanswerable else []
    examples = dataset(*rows)
    windows = cut(examples, tokenizer, max_length=room(tokenizer, 28), stride=22)
    assert len(windows) > 2 * len(examples)
    # A window with the answer is sure of it; one without prefers CLS, less surely.
    places = {"start": {}, "end": {}}
    for row, window in enumerate(windows):
        for side, place in places.items():
            token = window[f"{side}_positions"]
            place[row, token] = 9.0 if token else 4.0
    answers = best_answers(examples, windows, *logits(windows, *places.values(), padded=99), no_answer=unanswerable)
    result = score(
        examples, {k: a.text for k, a in answers.items()}, {k: a.null_score - a.score for k, a in answers.items()}
    )
    assert (result["exact"], result["f1"]) == (100, 100)
    assert [answers[f"q{i}"].text for i in range(len(golds))] == golds
    if unanswerable:
        assert (result["best_exact"], result["no_answer_exact"], answers["none"].text) == (100, 100, "")
