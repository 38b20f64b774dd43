"""Windows, answers and official scores of SQuAD, on hand-made examples and tokenizers trained here."""

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from albert_lsh import squad
from albert_lsh.squad import best_answers, score, windows

CONTEXT = "The Café de Flore opened in the 1880s, near the  Boulevard Saint-Germain; Simone wrote there in 1943."
QUESTION = "Who wrote there?"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def example(key="q", context=CONTEXT, question=QUESTION, answers=()):
    answers = {"text": [*answers], "answer_start": [context.index(text) for text in answers]}
    return {"id": key, "context": context, "question": question, "answers": answers}


def dataset(*rows):
    return Dataset.from_list(list(rows))


def wrapped(raw, pair):
    """A trained tokenizer as Transformers has it, which puts a pair together in this way."""
    ids = [(name, raw.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    raw.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, special_tokens=ids)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **names)


@pytest.fixture(scope="module", params=["wordpiece", "byte-level"])
def tokenizer(request):
    """WordPiece with trimmed offsets, or byte-level BPE whose offsets keep the space before a word."""
    more = {"special_tokens": SPECIAL, "show_progress": False}
    if request.param == "wordpiece":
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.normalizer = normalizers.BertNormalizer(lowercase=True)
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=90, **more)
    else:
        raw = Tokenizer(models.BPE(unk_token="[UNK]"))
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=275, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **more)
    raw.train_from_iterator([CONTEXT, QUESTION], trainer)
    kind = 1 if request.param == "wordpiece" else 0
    return wrapped(raw, f"[CLS]:0 $A:0 [SEP]:0 $B:{kind} [SEP]:{kind}")


def logits(cut, start, end, padded=None, fill=-100.0):
    """(n_windows, padded) start and end logits: 0 but for {(window, token): value}, and `fill` as padding."""
    arrays = np.full((2, len(cut), padded or max(cut["length"])), fill, dtype=np.float32)
    for array, values in zip(arrays, (start, end), strict=True):
        for row, length in enumerate(cut["length"]):
            array[row, :length] = 0
        for place, value in values.items():
            array[place] = value
    return arrays


# Windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [24, 64])
def test_windows_cover_the_context_and_share_a_third(tokenizer, max_length):
    context = " ".join([CONTEXT] * 3)
    whole, question = tokenizer(QUESTION, context)["input_ids"], tokenizer(QUESTION)["input_ids"]
    question = [*question[: max_length // 2 + 1], question[-1]] if len(question) - 2 > max_length // 2 else question
    cut, shared, rebuilt = windows(dataset(example(context=context)), tokenizer, max_length), max_length // 3, []
    for row in cut:
        ids = row["input_ids"]
        assert len(ids) == row["length"] <= max_length
        assert ids[: len(question)] == question
        assert row["offset_mapping"][: len(question)] == [[-1, -1]] * len(question)
        inside = ids[len(question) : -1]
        assert not rebuilt or rebuilt[-shared:] == inside[:shared]
        rebuilt += inside[shared:] if rebuilt else inside
        # The second of two spaces is a token of its own in byte-level BPE, and no place for an answer.
        assert all(context[start:end].strip() for start, end in row["offset_mapping"] if start >= 0)
    assert rebuilt == whole[len(tokenizer(QUESTION)["input_ids"]) : -1]


def test_white_space_around_a_reference_takes_no_neighbour_in(tokenizer):
    answers = {"text": [" 1880s, "], "answer_start": [CONTEXT.index(" 1880s")]}
    (row,) = windows(dataset(example() | {"answers": answers}), tokenizer, 200)
    (plain,) = windows(dataset(example(answers=["1880s,"])), tokenizer, 200)
    assert row == plain
    assert plain["start_positions"] > 0


def test_a_question_that_leaves_no_room_for_its_context_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"question='.*' leaves no room for its context in max_length=10"):
        windows(dataset(example()), tokenizer, 10)


# Answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words():
    """A context of 60 words, one token each, in windows of 32 that share 12, from tokens 3 on; and one of two words.

    w0 to w31 stand in the first window, w20 to w51 in the second, w40 to w59 in the third.
    """
    vocabulary = {name: i for i, name in enumerate([*SPECIAL, "q", *(f"w{i}" for i in range(60))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    examples = dataset(example("q", " ".join(f"w{i}" for i in range(60)), "q"), example("r", "w7 w8", "q"))
    return examples, windows(examples, wrapped(raw, "[CLS] $A [SEP] $B:1 [SEP]:1"), 36)


def answer_of(words, start, end, key="q", no_answer=False):
    return best_answers(*words, *logits(words[1], start, end), no_answer=no_answer)[key]


def spans_of(window, start, end):
    """Every span of at most 30 tokens of context in a window, with its score."""
    places, n = window["offset_mapping"], window["length"]
    inside = [token for token in range(n) if places[token][0] >= 0]
    pairs = [(i, j) for i in inside for j in inside if i <= j < i + 30]
    return [(start[i] + end[j], (places[i][0], places[j][1])) for i, j in pairs]


@pytest.mark.parametrize("slope", [-3, 0, 3], ids=["backwards", "any", "as long as can be"])
def test_the_best_span_over_all_windows_is_that_of_a_search(words, slope):
    """Question, special tokens and padding have high logits as well."""
    examples, cut = words
    assert cut["length"] == [36, 36, 24, 6]
    for seed in range(10):
        sides = np.random.default_rng(seed).normal(size=(2, 4, 40))  # (start and end, windows, padded length)
        sides += slope * np.multiply.outer([[1], [-1]], np.linspace(1, -1, 40))
        best = best_answers(*words, *sides, no_answer=False)
        for key, context in zip(examples["id"], examples["context"], strict=True):
            own = [n for n in range(4) if cut["example_id"][n] == key]
            score, (left, right) = max(span for n in own for span in spans_of(cut[n], *sides[:, n]))
            assert best[key].text == context[left:right]
            assert best[key].n_best[0][1] == best[key].score
            assert (best[key].text, pytest.approx(score, abs=1e-5)) == best[key].n_best[0]
            assert best[key].null_score == pytest.approx(min(sides[:, n, 0].sum() for n in own), abs=1e-5)
            values = [value for _, value in best[key].n_best]
            assert values == sorted(values, reverse=True)
            assert len(dict(best[key].n_best)) == len(values) <= 20


def test_an_answer_says_where_it_stands(tokenizer):
    """Byte-level tokens hold the space before a word; the answer does not, nor another piece of the same text."""
    examples = dataset(example(context="1943 and 1943 and 1943", question="When?"))
    cut = windows(examples, tokenizer, 60)
    (offsets,) = cut["offset_mapping"]
    token = next(i for i, (left, right) in enumerate(offsets) if left <= 9 < right)
    last = max(i for i, (left, right) in enumerate(offsets) if 0 <= left < 13)
    best = best_answers(examples, cut, *logits(cut, {(0, token): 5}, {(0, last): 5}), no_answer=True)["q"]
    assert (best.text, best.start, best.end) == ("1943", 9, 13)
    nothing = best_answers(examples, cut, *logits(cut, {(0, 0): 9}, {}), no_answer=True)["q"]
    assert (nothing.text, nothing.start, nothing.end) == ("", 0, 0)


def test_no_answer_competes_by_its_smallest_score(words):
    # CLS scores 6 in two windows and 2 in another: the smallest counts, against a span of 3.
    start, end = {(0, 0): 4, (1, 0): 1, (2, 0): 4, (0, 3): 2}, {(0, 0): 2, (1, 0): 1, (2, 0): 2, (0, 4): 1}
    best = answer_of(words, start, end, no_answer=True)
    assert (best.text, best.score, best.null_score) == ("w0 w1", 3, 2)
    assert ("", 2.0) in best.n_best
    assert answer_of(words, start | {(1, 0): 2}, end, no_answer=True).text == "w0 w1"  # as high is not above
    refused, forced = (answer_of(words, start | {(1, 0): 9}, end, no_answer=may) for may in (True, False))
    assert (refused.text, refused.score, refused.null_score, refused.n_best[0]) == ("", 3, 6, ("", 6.0))
    assert (forced.text, forced.null_score) == ("w0 w1", 6)
    assert all(text for text, _ in forced.n_best)


def test_a_context_without_tokens_has_no_answer_and_infinite_logits_are_refused(tokenizer, words):
    examples = dataset(example("empty", context=" "))
    cut = windows(examples, tokenizer, 60)
    best = best_answers(examples, cut, *logits(cut, {}, {}), no_answer=False)["empty"]
    assert (best.text, best.score, best.n_best) == ("", -np.inf, [])
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="question='q': the model's logits are not finite"):
            answer_of(words, {}, {(2, 3): value})


KEPT = ["the cafe\u0301", "a heart \u2764\ufe0f", "cafe\u0301\u0323", "e\u0301", "end\u00ad", "\u00adstart", "ab\u200b"]
KEPT += ["\ufeffab", "a\ue000", "a\ufffd", "\u2066abc\u2069", "a\u200d"]


@pytest.mark.parametrize("answer", KEPT, ids=ascii)
def test_an_answer_keeps_what_no_token_holds(tokenizer, answer):
    """Combining marks and variation selectors, and characters that show nothing."""
    context = f"Ana liked {answer} most of all. It was {answer}"
    for place in (context.index(answer), context.rindex(answer)):
        row = example(context=context, question="What?")
        examples = dataset(row | {"answers": {"text": [answer], "answer_start": [place]}})
        cut = windows(examples, tokenizer, 120)
        start, end = ({(0, cut[f"{side}_positions"][0]): 9.0} for side in ("start", "end"))
        best = best_answers(examples, cut, *logits(cut, start, end), no_answer=False)["q"]
        assert (best.text, context[best.start : best.end], best.start) == (answer, answer, place)
        assert score(examples, {"q": best.text}) == {"exact": 100, "f1": 100}


@pytest.mark.parametrize("unanswerable", [False, True])
def test_oracle_logits_score_full_marks(tokenizer, unanswerable):
    golds = ["The Café de Flore", "Simone", "1943", "1880s"]
    rows = [example(f"q{i}", answers=[gold, "1943."]) for i, gold in enumerate(golds)]
    examples = dataset(*rows, *[example("none")] * unanswerable)
    cut = windows(examples, tokenizer, 32)
    assert len(cut) > len(examples)
    # A window with the answer is sure of it; one without prefers CLS, less surely.
    starts, ends = (
        {(row, token): 9.0 if token else 4.0 for row, token in enumerate(cut[f"{side}_positions"])}
        for side in ("start", "end")
    )
    table = squad.predictions(examples, cut, logits(cut, starts, ends, padded=99))
    scores = squad.scores_of(examples, table)
    assert (scores["exact"], scores["f1"]) == (100, 100)
    assert list(squad.texts_of(examples, table).values()) == [*golds, *[""] * unanswerable]
    if unanswerable:
        assert (scores["best_exact"], scores["no_answer_exact"]) == (100, 100)


# Scores -----------------------------------------------------------------------------------------------------------


def references(**golds):
    """Examples that only a scorer needs: by id, the reference answers."""
    answers = {key: {"text": list(texts), "answer_start": [0] * len(texts)} for key, texts in golds.items()}
    return Dataset.from_list([{"id": key, "answers": of} for key, of in answers.items()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel-Tower, (Paris)!", "eiffeltower paris"),
        ("A.", ""),  # punctuation goes first, then the article that is left
        ("the\u00a0end", "end"),  # a no-break space is white space
        ("“quoted” – 5", "“quoted” – 5"),  # only ASCII punctuation goes
        ("a–b", "–b"),  # a dash that stays is a word boundary
        ("áa", "áa"),  # á is a letter, so there is no boundary before a
    ],
)
def test_normalize(text, expected):
    assert squad.normalize(text) == expected


@pytest.mark.parametrize(
    ("golds", "answer", "exact", "f1"),
    [
        (["a b c d"], "b c e", 0, 200 * 2 / 6),  # "a" is an article: b c d against b c e
        (["new new york"], "new york york", 0, 200 * 2 / 6),  # bags: new and york count once each
        (["new new york"], "new new", 0, 200 * 2 / 5),  # and new counts twice
        (["x y", "x y z w"], "x y z", 0, 100 * 6 / 7),  # 4/5 against the first, 6/7 against the second
        (["caf\u00e9"], "cafe\u0301", 0, 0),  # composed and decomposed differ in the official scripts
        (["Rome"], "", 0, 0),
        (["The"], "an", 100, 0),  # 1.1 keeps the reference and gives texts without words an F1 of 0
    ],
)
def test_score_of_version_1(golds, answer, exact, f1):
    assert score(references(q=golds), {"q": answer}) == {"exact": exact, "f1": pytest.approx(f1)}


@pytest.mark.parametrize(
    ("golds", "answer", "right"),
    [
        ([], "the", 100),  # normalises to nothing
        (["The"], "", 100),  # no reference is left, so no answer is right
        (["The", "Rome"], "", 0),  # the first reference is dropped
        (["The", "Rome"], "a Rome", 100),
    ],
)
def test_score_of_version_2(golds, answer, right):
    scores = score(references(q=golds, other=[]), {"q": answer, "other": "wrong"})
    assert (scores["exact"], scores["f1"]) == (right / 2, right / 2)


def test_score_by_kind_of_question_and_best_threshold():
    examples = references(a=["x"], b=["x y"], c=["x"], d=[], e=[])
    answers = {"a": "x", "b": "x", "c": "z", "d": "x", "e": "x"}
    null = {"a": -3.0, "d": -2.0, "b": -1.0, "c": 0.0, "e": 1.0}
    scores = score(examples, answers)
    expected = {"exact": 20, "f1": (100 + 200 / 3) / 5, "no_answer_exact": 0, "no_answer_f1": 0}
    expected |= {"has_answer_exact": 100 / 3, "has_answer_f1": (100 + 200 / 3) / 3}
    assert scores == pytest.approx(expected)
    # From no answer at all, 2 right: a makes 3, d 2, b 2 (F1 2.67), c no change, e 1.
    best = squad.best_thresholds(examples, answers, null)
    assert best["best_exact"] == best["best_f1"] == pytest.approx(60)
    assert best["best_exact_threshold"] == best["best_f1_threshold"] == -3
    # With d most certain of no answer, F1 gains from b what exact match does not: 2, 3, 3.67.
    best = squad.best_thresholds(examples, answers, null | {"d": 2.0})
    assert (best["best_exact"], best["best_exact_threshold"]) == (pytest.approx(60), -3)
    assert (best["best_f1"], best["best_f1_threshold"]) == (pytest.approx(100 * (3 + 2 / 3) / 5), -1)
    best = squad.best_thresholds(references(a=["x"], b=[]), {"a": "z", "b": "z"}, {"a": -5.0, "b": 5.0})
    assert (best["best_exact"], best["best_exact_threshold"]) == (50, 0)  # no answer to anything is best


def test_every_example_must_be_answered_once_and_nothing_else():
    for answers, key in (({"a": "x"}, "b"), ({"a": "x", "b": "", "zz": ""}, "zz")):
        with pytest.raises(ValueError, match=rf"1 of 2 example ids are repeated, without an answer or .*'{key}'"):
            score(references(a=["x"], b=[]), answers)
    row = {"id": "a", "answers": {"text": ["x"], "answer_start": [0]}}
    with pytest.raises(ValueError, match=r"1 of 1 example ids are repeated.*'a'"):
        score(Dataset.from_list([row, row]), {"a": "x"})
    with pytest.raises(ValueError, match="no examples"):
        score(references(a=["x"]).select([]), {})


def test_never_answering_and_guessing():
    assert squad.majority_score(references(a=["x"], b=["y"])) == {"exact": 0, "f1": 0}
    scores = squad.majority_score(references(a=["x"], b=[], c=[], d=[]))
    assert (scores["exact"], scores["has_answer_f1"], scores["no_answer_f1"]) == (75, 0, 100)
    assert squad.chance_score(dataset(example(context="one", answers=["one"]))) == {"exact": 100, "f1": 100}
