"""SQuAD 1.1 and 2.0: train_windows for training; eval_windows, best_answers and score for the official scores.

A context longer than the model's input is read through windows that overlap (Devlin et al. 2019, section 4.2); one
answer is chosen over all windows of a question, for SQuAD 2.0 against the score of the CLS token, which stands for
"no answer" (section 4.3). `score` follows evaluate-v1.1.py (Rajpurkar et al. 2016) and evaluate-v2.0.py (Rajpurkar et
al. 2018), but demands an answer to every question: the first script counts a missing one as wrong, the second drops it.
`examples` are rows of rajpurkar/squad or rajpurkar/squad_v2: id, context, question, answers {text, answer_start}.
"""

import reprlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.lib.stride_tricks import sliding_window_view
from transformers import EvalPrediction, Trainer

from albert_lsh.tasks.squad_scores import chance_score, check_ids, majority_score, score

OUTSIDE = (-1, -1)  # the offsets of a token that is no part of the context, or that is only white space
CLS = 0  # position of the CLS token in every window; _check_tokenizer makes sure of it


class Answer(NamedTuple):
    """What a model answers to one question."""

    text: str  # a slice of the context without white space around it; "" for no answer
    no_answer_score: float  # score of no answer minus that of the best span; infinite if there is no span
    n_best: list[tuple[str, float]]  # texts and scores (start logit + end logit), each text once, best first
    start: int = 0  # [start, end) of the text in the context's characters; both 0 for no answer
    end: int = 0


def train_windows(examples: Dataset, tokenizer: Any, *, max_length: int, stride: int) -> Dataset:
    """Cut every context into windows that share `stride` tokens, and mark the first reference answer in them.

    Args:
        tokenizer: a fast tokenizer that puts CLS first and pads on the right (ALBERT, BERT, RoBERTa).
        max_length, stride: the most tokens in a window, all included; those of the context that two neighbours share.
    Returns:
        One row per window, in the order of examples, unpadded: input_ids, attention_mask, token_type_ids (where the
        tokenizer tells question from context), start_positions, end_positions (inclusive; both at CLS when the window
        does not hold the whole answer), length.
    Raises:
        ValueError: a tokenizer of another kind; a question that leaves no room for more than `stride` tokens of
            context; an answer that is not at its place in the context.
    """
    windows = eval_windows(examples, tokenizer, max_length=max_length, stride=stride)
    return windows.remove_columns(["example_id", "offset_mapping"])


def eval_windows(examples: Dataset, tokenizer: Any, *, max_length: int, stride: int) -> Dataset:
    """The windows of `train_windows`, with what `best_answers` needs to find its way back to the text.

    Returns:
        The columns of `train_windows`, and example_id (str) and offset_mapping: for every token its [start, end)
        in the context's characters, [-1, -1] for question, special and white-space tokens.
    """
    _check_tokenizer(tokenizer)
    settings = {"tokenizer": tokenizer, "max_length": max_length, "stride": stride}
    return examples.map(
        _encode,
        batched=True,
        remove_columns=examples.column_names,
        fn_kwargs=settings,
        load_from_cache_file=False,  # datasets does not notice when this code changes
    )


def _encode(batch: dict[str, list], tokenizer: Any, max_length: int, stride: int) -> dict[str, list]:
    """All windows of a batch of examples, as columns."""
    questions = [question.strip() for question in batch["question"]]
    _check_room(batch["id"], questions, tokenizer, max_length, stride)
    # Transformers 5 makes ALBERT's token types only when asked for them; RoBERTa's are all 0 and left out.
    wanted = dict.fromkeys(("return_overflowing_tokens", "return_offsets_mapping"), True)
    wanted["return_token_type_ids"] = any(tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"])
    cut = {"truncation": "only_second", "max_length": max_length, "stride": stride}
    encoded = tokenizer(questions, batch["context"], **cut, **wanted)
    owners = encoded.pop("overflow_to_sample_mapping")
    answers = [_first_answer(*fields) for fields in zip(batch["id"], batch["context"], batch["answers"], strict=True)]
    offsets, spans = [], []
    for window, owner in enumerate(owners):
        context = batch["context"][owner]
        tokens = zip(encoded["offset_mapping"][window], encoded.sequence_ids(window), strict=True)
        offsets.append([pair if side == 1 and context[slice(*pair)].strip() else OUTSIDE for pair, side in tokens])
        neighbours = owner in owners[window - 1 : window], owner in owners[window + 1 : window + 2]
        spans.append(_token_span(offsets[-1], answers[owner], *neighbours))
    return {
        **encoded,
        "offset_mapping": offsets,
        "start_positions": [start for start, _ in spans],
        "end_positions": [end for _, end in spans],
        "length": [len(ids) for ids in encoded["input_ids"]],
        "example_id": [batch["id"][owner] for owner in owners],
    }


def _token_span(offsets: list, answer: tuple[int, int] | None, has_left: bool, has_right: bool) -> tuple[int, int]:
    """First and last token that share a character with the answer; CLS twice unless the window holds all of it."""
    start, stop = answer or (-1, -1)
    tokens = [i for i, (left, right) in enumerate(offsets) if left < stop and right > start]
    if not tokens:
        return CLS, CLS
    # A tokenizer may drop characters at the ends of the context, so only an end with a neighbour can cut an answer.
    inside = [pair for pair in offsets if pair != OUTSIDE]
    is_cut = (has_left and start < inside[0][0]) or (has_right and stop > inside[-1][1])
    return (CLS, CLS) if is_cut else (tokens[0], tokens[-1])


def _first_answer(example_id: str, context: str, answers: dict[str, list]) -> tuple[int, int] | None:
    """The [start, end) of the first reference answer, white space around it left out; None if there is none."""
    if not answers["text"] or not answers["text"][0].strip():
        return None
    text, start = answers["text"][0], answers["answer_start"][0]
    if context[start : start + len(text)] != text:
        raise ValueError(f"example {example_id}: its answer {text!r} is not at character {start} of its context")
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def _check_tokenizer(tokenizer: Any) -> None:
    """Offsets need a fast tokenizer; positions in a window are counted from CLS."""
    kind = {key: getattr(tokenizer, key) for key in ("is_fast", "padding_side", "truncation_side")}
    if kind != {"is_fast": True, "padding_side": "right", "truncation_side": "right"}:
        raise ValueError(f"the tokenizer has {kind}; it must be a fast one and both sides 'right'")
    if tokenizer.cls_token_id is None or tokenizer("a", "a")["input_ids"][CLS] != tokenizer.cls_token_id:
        raise ValueError(f"{type(tokenizer).__name__} does not put a CLS token first")


def _check_room(ids: list[str], questions: list[str], tokenizer: Any, max_length: int, stride: int) -> None:
    """Make sure that every window holds more context than it shares with the next."""
    found = tokenizer(questions, add_special_tokens=False)["input_ids"]
    for example_id, text, question in zip(ids, questions, found, strict=True):
        room = max_length - tokenizer.num_special_tokens_to_add(pair=True) - len(question)
        if not 0 <= stride < room:
            left = f"leaves room for {max(room, 0)} tokens of context in max_length={max_length}"
            named = f"example {example_id}: its question" if example_id else f"question {reprlib.repr(text)}"
            raise ValueError(f"{named} {left}; that must exceed stride={stride}, at least 0")


def best_answers(
    examples: Dataset,
    windows: Dataset,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    n_best: int = 20,
    max_answer_tokens: int = 30,
    no_answer: bool,
    threshold: float = 0.0,
) -> dict[str, Answer]:
    """The best span of every question over all its windows, or no answer (Devlin et al. 2019, section 4.3).

    The score of a span is its start logit plus its end logit; that of no answer is the same at CLS, the smallest over
    the windows. All spans are compared, not only those of the best 20 starts and ends as in the original recipe.

    Args:
        examples, windows: the questions and what `eval_windows` made of them.
        start_logits, end_logits: (n_windows, padded_length) float, in the order of windows; padding is ignored.
            Trainer keeps this order unless its train_sampling_strategy is "group_by_length" (as `recipe` has it).
        n_best, max_answer_tokens: how many answers to keep, and the most tokens in one.
        no_answer: whether "" may be the answer; it is when no_answer_score > threshold.
    Returns:
        One Answer per example, by id. Without no_answer its text is empty only if no token of context was seen.
    Raises:
        ValueError: logits of another shape or with NaN in them; examples without windows or the reverse.
    """
    _check_logits(windows, start_logits, end_logits)
    if n_best < 1 or max_answer_tokens < 1:
        raise ValueError(f"n_best={n_best} and max_answer_tokens={max_answer_tokens} must be at least 1")
    null: dict[str, float] = defaultdict(lambda: np.inf)
    spans: dict[str, list] = defaultdict(list)
    for row, (example_id, offsets) in enumerate(_offsets(windows)):
        start, end = start_logits[row, : len(offsets)], end_logits[row, : len(offsets)]
        null[example_id] = min(null[example_id], float(start[CLS]) + float(end[CLS]))
        spans[example_id] += _best_spans(start, end, offsets, n_best, max_answer_tokens)
    check_ids("windows", examples["id"], null)
    limit, contexts = threshold if no_answer else None, zip(examples["id"], examples["context"], strict=True)
    return {key: _choose(context, spans[key], null[key], n_best, limit) for key, context in contexts}


def _best_spans(start: np.ndarray, end: np.ndarray, offsets: np.ndarray, n_best: int, max_tokens: int) -> list:
    """The best spans of a window as (score, first character, end); logits are (length,), offsets (length, 2) ints."""
    inside = offsets[:, 0] >= 0
    start, end = np.where(inside, start, -np.inf), np.where(inside, end, -np.inf)
    width = min(max_tokens, len(start))
    ends = np.concatenate([end, np.full(width - 1, -np.inf)])
    scores = (start[:, None] + sliding_window_view(ends, width)).ravel()  # (length * width,): every start and span
    best = np.argpartition(scores, -n_best)[-n_best:] if n_best < len(scores) else np.arange(len(scores))
    best = best[np.isfinite(scores[best])]
    first, last = best // width, best // width + best % width
    return list(zip(scores[best].tolist(), offsets[first, 0].tolist(), offsets[last, 1].tolist(), strict=True))


def _choose(context: str, spans: list, null: float, n_best: int, threshold: float | None) -> Answer:
    """The Answer to one question; with threshold None it is a span whenever there is one."""
    texts: dict[str, float] = {}
    spans = sorted(spans, key=lambda span: (-span[0], *span[1:]))  # ties: the first, the shortest
    for value, start, stop in spans:
        texts.setdefault(context[start:stop].strip(), value)
    ranked = list(texts.items())[:n_best]
    text, best = ranked[0] if ranked else ("", -np.inf)
    if threshold is not None:
        text = "" if null - best > threshold else text
        ranked = sorted([*ranked, ("", null)], key=lambda entry: -entry[1])
    first = context.index(text, spans[0][1]) if text else 0  # white space may stand before it
    return Answer(text, null - best, ranked, first, first + len(text))


def _offsets(windows: Dataset) -> Iterable[tuple[str, np.ndarray]]:
    """Every window's example_id and offset_mapping, (length, 2) int."""
    for batch in windows.select_columns(["example_id", "offset_mapping"]).with_format("arrow").iter(1000):
        pairs = batch["offset_mapping"].combine_chunks()
        flat = pairs.flatten().flatten().to_numpy().reshape(-1, 2)
        cuts = np.cumsum(pairs.value_lengths().to_numpy())[:-1]
        yield from zip(batch["example_id"].to_pylist(), np.split(flat, cuts), strict=True)


def _check_logits(windows: Dataset, start_logits: np.ndarray, end_logits: np.ndarray) -> None:
    shapes, longest = (start_logits.shape, end_logits.shape), max(windows["length"], default=0)
    if shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] != len(windows) or shapes[0][1] < longest:
        raise ValueError(f"start and end logits are {shapes}, not both ({len(windows)}, {longest} or more)")
    if n_bad := int((np.isnan(start_logits) | np.isnan(end_logits)).any(axis=1).sum()):
        raise ValueError(f"the logits of {n_bad} of {len(windows)} windows have NaN in them")


def question_limit(max_length: int) -> tuple[int, int]:
    """The most tokens of a question that are read, and the tokens that two windows share.

    The stride is 128, as in the original recipe, where a third of the window allows it; half of the window is kept
    for the paragraph. Both matter only for windows far shorter than the usual 384.
    """
    return max_length // 2, min(128, max_length // 3)


def windows(examples: Dataset, tokenizer: Any, *, max_length: int) -> Dataset:
    """`eval_windows` for training and evaluation alike, with a stride that suits `max_length`.

    A question of more than half of max_length is cut at its end; none is at 384.
    """
    _check_tokenizer(tokenizer)
    return examples.map(
        _encode_shortened,
        batched=True,
        remove_columns=examples.column_names,
        fn_kwargs={"tokenizer": tokenizer, "max_length": max_length},
        load_from_cache_file=False,  # datasets does not notice when this code changes
    )


def windows_of(question: str, context: str, tokenizer: Any, *, max_length: int) -> tuple[Dataset, Dataset]:
    """One question, whose answer is not known, as an example; and its `windows`."""
    example: dict[str, list] = {
        "id": [""],
        "question": [question],
        "context": [context],
        "answers": [{"text": [], "answer_start": []}],
    }
    _check_tokenizer(tokenizer)
    return Dataset.from_dict(example), Dataset.from_dict(_encode_shortened(example, tokenizer, max_length))


def _encode_shortened(batch: dict[str, list], tokenizer: Any, max_length: int) -> dict[str, list]:
    """`_encode` with the questions cut, and the stride, that `question_limit` says."""
    longest, stride = question_limit(max_length)
    questions = [question.strip() for question in batch["question"]]
    found = tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ends = [offsets[longest - 1][1] if len(offsets) > longest else None for offsets in found]
    cut = {"question": [question[:end] for question, end in zip(questions, ends, strict=True)]}
    return _encode({**batch, **cut}, tokenizer, max_length, stride)


def has_unanswerable(examples: Dataset) -> bool:
    """Whether this is SQuAD 2.0: some question has no reference answer."""
    return not all(answers["text"] for answers in examples["answers"])


def for_trainer(examples: Dataset, cut: Dataset) -> Callable[[EvalPrediction], dict[str, float]]:
    """Official exact match and F1, in percent, as Trainer wants them; `cut` is what `windows` made of examples."""

    def compute(seen: EvalPrediction) -> dict[str, float]:
        start, end = (np.asarray(logits) for logits in seen.predictions[:2])
        answers = best_answers(examples, cut, start, end, no_answer=has_unanswerable(examples))
        return score(examples, {key: answer.text for key, answer in answers.items()})

    return compute


def score_answers(trainer: Trainer, examples: Dataset, cut: Dataset) -> tuple[dict, dict[str, Answer]]:
    """The scores of a trained model, beside those of never answering and of random pieces of the paragraph.

    Returns:
        {"score": {metric: percent}, "majority": ..., "chance": ...}, and the answers by id.
    """
    start, end = (np.asarray(logits) for logits in trainer.predict(cut).predictions[:2])
    answers = best_answers(examples, cut, start, end, no_answer=has_unanswerable(examples))
    found = score(examples, {key: answer.text for key, answer in answers.items()})
    if has_unanswerable(examples):  # what the best threshold would reach needs an answer to every question
        all_answered = best_answers(examples, cut, start, end, no_answer=False)
        texts = {key: answer.text for key, answer in all_answered.items()}
        nulls = {key: answer.no_answer_score for key, answer in all_answered.items()}
        found |= {k: v for k, v in score(examples, texts, nulls).items() if k.startswith("best_")}
    return {"score": found, "majority": majority_score(examples), "chance": chance_score(examples)}, answers
