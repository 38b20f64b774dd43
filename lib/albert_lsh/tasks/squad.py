"""SQuAD 1.1 and 2.0: windows of a paragraph, the best answer over them, and what a trained model scores.

A paragraph longer than the model's input is read in overlapping windows (Devlin et al. 2019, section 4.2). One answer
is chosen over all windows of a question; in SQuAD 2.0 it competes with the score of the CLS token, which stands for "no
answer" (section 4.3). `squad_scores` has the official scores. `examples` are rows of rajpurkar/squad or
rajpurkar/squad_v2: id, context, question, answers {text, answer_start}.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unicodedata import category

import numpy as np
import pandas as pd
from datasets import Dataset
from numpy.lib.stride_tricks import sliding_window_view
from transformers import EvalPrediction, Trainer

from albert_lsh.tasks.long_texts import shortened
from albert_lsh.tasks.squad_scores import chance_score, check_ids, majority_score, question_scores, score

OUTSIDE = (-1, -1)  # offsets of a token outside of the context, or of white space alone
CLS = 0  # position of the CLS token in every window


class Answer(NamedTuple):
    """The answer to one question."""

    text: str  # a piece of the context without white space around it; "" for no answer
    start: int  # [start, end) of the text in the context's characters; both 0 for no answer
    end: int
    score: float  # start logit + end logit of the best span, given or not; -inf if the context has no token
    null_score: float  # the same at CLS, for no answer
    n_best: list[tuple[str, float]]  # texts and scores, each text once, best first


def windows(examples: Dataset, tokenizer: Any, *, max_length: int, stride: int | None = None) -> Dataset:
    """Cut every context into windows, and mark the first reference answer in them.

    Args:
        tokenizer: of `model.load.load_tokenizer`.
        max_length: the most tokens in a window, question and special tokens included.
        stride: tokens of the context that neighbouring windows share. None: 128 as in the original recipe, but at most
            a third of max_length; and a question is cut at half of max_length, which none reaches at 384.
    Returns:
        A row per window, in the order of examples, unpadded: input_ids, attention_mask, token_type_ids (if the
        tokenizer tells question from context), start_positions, end_positions (inclusive; both CLS if the window
        does not hold the whole answer), length, example_id, and offset_mapping: for every token its [start, end) in
        the context's characters, [-1, -1] for question, special and white-space tokens.
    Raises:
        ValueError: a question that leaves room for no more than `stride` tokens of context; an answer that is not at
            its place in the context.
    """
    return examples.map(
        _encode,
        batched=True,
        remove_columns=examples.column_names,
        fn_kwargs={"tokenizer": tokenizer, "max_length": max_length, "stride": stride},
        load_from_cache_file=False,  # datasets does not notice when this code changes
    )


def windows_of(question: str, context: str, tokenizer: Any, *, max_length: int) -> tuple[Dataset, Dataset]:
    """One question whose answer is not known, as an example; and its `windows`."""
    example: dict[str, list] = {"id": [""], "question": [question], "context": [context]}
    example["answers"] = [{"text": [], "answer_start": []}]
    return Dataset.from_dict(example), Dataset.from_dict(_encode(example, tokenizer, max_length, None))


def _encode(batch: dict[str, list], tokenizer: Any, max_length: int, stride: int | None) -> dict[str, list]:
    """The windows of a batch of examples, as columns."""
    questions = [question.strip() for question in batch["question"]]
    if stride is None:
        questions, stride = shortened(questions, tokenizer, max_length // 2), min(128, max_length // 3)
    _check_room(questions, tokenizer, max_length, stride)
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
        inside = [pair if side == 1 and context[slice(*pair)].strip() else OUTSIDE for pair, side in tokens]
        offsets.append(_with_marks(inside, context))
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


def _with_marks(offsets: list, context: str) -> list:
    """Offsets that hold the combining marks and variation selectors behind a token, which tokenizers drop: they are
    part of the character before them, and an answer that ends there has them."""
    starts = {left for left, _ in offsets}
    extended = []
    for left, right in offsets:
        while left >= 0 and right < len(context) and right not in starts and category(context[right])[0] == "M":
            right += 1
        extended.append((left, right))
    return extended


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
    """[start, end) of the first reference answer without white space around it; None if there is none."""
    if not answers["text"] or not answers["text"][0].strip():
        return None
    text, start = answers["text"][0], answers["answer_start"][0]
    if start < 0 or context[start : start + len(text)] != text:
        raise ValueError(f"example {example_id}: its answer {text!r} is not at character {start} of its context")
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def _check_room(questions: list[str], tokenizer: Any, max_length: int, stride: int) -> None:
    """Every window must hold more context than it shares with the next."""
    found = tokenizer(questions, add_special_tokens=False)["input_ids"]
    for question, tokens in zip(questions, found, strict=True):
        room = max_length - tokenizer.num_special_tokens_to_add(pair=True) - len(tokens)
        if not 0 <= stride < room:
            raise ValueError(
                f"question={question!r} leaves room for {max(room, 0)} tokens of context in max_length={max_length}; "
                f"that must exceed stride={stride}, at least 0"
            )


def best_answers(
    examples: Dataset,
    cut: Dataset,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    n_best: int = 20,
    max_answer_tokens: int = 30,
    no_answer: bool,
) -> dict[str, Answer]:
    """The best span of every question over all its windows, or no answer (Devlin et al. 2019, section 4.3).

    The score of a span is its start logit plus its end logit; that of no answer is the same at CLS, the smallest over
    the windows. All spans are compared, not only those of the best 20 starts and ends as in the original recipe.

    Args:
        examples, cut: the questions and their `windows`.
        start_logits, end_logits: (n_windows, padded_length) float, in the order of windows; padding is ignored.
        n_best, max_answer_tokens: how many answers to keep, and the most tokens in one.
        no_answer: whether "" may be the answer; it is if null_score > score.
    Returns:
        One Answer per example, by id. Without no_answer its text is empty only if no token of context was seen.
    Raises:
        ValueError: logits that are not finite (the message has the question); two examples of one id.
    """
    check_ids("answers", examples["id"], examples["id"])
    finite = (np.isfinite(start_logits) & np.isfinite(end_logits)).all(axis=1)
    if not finite.all():
        number = examples["id"].index(cut["example_id"][int(finite.argmin())])
        raise ValueError(f"question={examples['question'][number]!r}: the model's logits are not finite")
    null: dict[str, float] = defaultdict(lambda: np.inf)
    spans: dict[str, list] = defaultdict(list)
    for row, (example_id, offsets) in enumerate(_offsets(cut)):
        start, end = (side[row, : len(offsets)].astype(np.float32) for side in (start_logits, end_logits))
        null[example_id] = min(null[example_id], float(start[CLS] + end[CLS]))
        spans[example_id] += _best_spans(start, end, offsets, n_best, max_answer_tokens)
    contexts = zip(examples["id"], examples["context"], strict=True)
    return {key: _choose(context, spans[key], null[key], n_best, no_answer) for key, context in contexts}


def _best_spans(start: np.ndarray, end: np.ndarray, offsets: np.ndarray, n_best: int, max_tokens: int) -> list:
    """The best spans of a window as (score, first character, end); logits are (length,), offsets (length, 2) ints."""
    inside = offsets[:, 0] >= 0
    start, end = np.where(inside, start, -np.inf), np.where(inside, end, -np.inf)
    width = min(max_tokens, len(start))
    ends = np.concatenate([end, np.full(width - 1, -np.inf, end.dtype)])
    scores = (start[:, None] + sliding_window_view(ends, width)).ravel()  # (length * width,): every start and span
    best = np.argpartition(scores, -n_best)[-n_best:] if n_best < len(scores) else np.arange(len(scores))
    best = best[np.isfinite(scores[best])]
    first, last = best // width, best // width + best % width
    return list(zip(scores[best].tolist(), offsets[first, 0].tolist(), offsets[last, 1].tolist(), strict=True))


def _choose(context: str, spans: list, null: float, n_best: int, no_answer: bool) -> Answer:
    """The Answer to one question."""
    texts: dict[str, float] = {}
    spans = sorted(spans, key=lambda span: (-span[0], *span[1:]))  # ties: the first, the shortest
    for value, start, stop in spans:
        texts.setdefault(context[start:stop].strip(), value)
    ranked = list(texts.items())[:n_best]
    best = ranked[0][1] if ranked else -np.inf
    if no_answer:
        ranked = sorted([*ranked, ("", null)], key=lambda entry: -entry[1])
    text = ranked[0][0] if ranked else ""
    first = context.index(text, spans[0][1]) if text else 0  # white space may stand before it
    return Answer(text, first, first + len(text), best, null, ranked)


def _offsets(cut: Dataset) -> Iterable[tuple[str, np.ndarray]]:
    """Every window's example_id and offset_mapping, (length, 2) int."""
    for batch in cut.select_columns(["example_id", "offset_mapping"]).with_format("arrow").iter(1000):
        pairs = batch["offset_mapping"].combine_chunks()
        flat = pairs.flatten().flatten().to_numpy().reshape(-1, 2)
        cuts = np.cumsum(pairs.value_lengths().to_numpy())[:-1]
        yield from zip(batch["example_id"].to_pylist(), np.split(flat, cuts), strict=True)


def has_unanswerable(examples: Dataset) -> bool:
    """Whether this is SQuAD 2.0: some question has no reference answer."""
    return not all(answers["text"] for answers in examples["answers"])


def predictions(examples: Dataset, cut: Dataset, logits: Iterable[Any]) -> pd.DataFrame:
    """The best span of every question, as `tasks.predictions` keeps it.

    Args:
        examples, cut: the questions and their `windows`.
        logits: start and end logits of `best_answers`; what follows them is ignored, so Trainer's predictions will do.
    """
    start, end, *_ = (np.asarray(side) for side in logits)
    found, may_refuse = best_answers(examples, cut, start, end, no_answer=False), has_unanswerable(examples)
    rows = [(key, answer.start, answer.end, answer.score, answer.null_score) for key, answer in found.items()]
    table = pd.DataFrame(rows, columns=["id", "start", "end", "score", "null_score"])
    table["answered"] = (table["end"] > 0) & ~((table["null_score"] > table["score"]) & may_refuse)
    table["is_answerable"] = [bool(answers["text"]) for answers in examples["answers"]]
    table[["exact", "f1"]] = [*question_scores(examples, texts_of(examples, table)).values()]
    kinds = {"start": "int32", "end": "int32", "score": "float32", "null_score": "float32"}
    return table.astype(kinds | {"exact": bool, "f1": "float32"})


def texts_of(examples: Dataset, table: pd.DataFrame, *, always: bool = False) -> dict[str, str]:
    """The answers of a table of `predictions`, by id; "" where none was given, unless `always` asks for the span."""
    contexts = dict(zip(examples["id"], examples["context"], strict=True))
    columns = (table[name].tolist() for name in ("id", "start", "end", "answered"))
    return {
        key: contexts[key][start:end] if always or given else ""
        for key, start, end, given in zip(*columns, strict=True)
    }


def scores_of(examples: Dataset, table: pd.DataFrame) -> dict[str, float]:
    """The official scores of a table of `predictions`; in SQuAD 2.0 also those that the best threshold would reach."""
    found = score(examples, texts_of(examples, table))
    if not has_unanswerable(examples):
        return found
    nulls = table["null_score"].astype("float64") - table["score"].astype("float64")
    best = score(examples, texts_of(examples, table, always=True), dict(zip(table["id"], nulls, strict=True)))
    return found | {name: value for name, value in best.items() if name.startswith("best_")}


def for_trainer(examples: Dataset, cut: Dataset) -> Callable[[EvalPrediction], dict[str, float]]:
    """Official exact match and F1, in percent, as Trainer wants them; `cut` are the `windows` of examples."""
    return lambda seen: score(examples, texts_of(examples, predictions(examples, cut, seen.predictions)))


def score_answers(trainer: Trainer, examples: Dataset, cut: Dataset) -> tuple[dict, pd.DataFrame]:
    """The scores of a trained model, beside those of never answering and of random pieces of the paragraph.

    Returns:
        {"score": {metric: percent}, "majority": ..., "chance": ...}, and the table of `predictions`.
    """
    table = predictions(examples, cut, trainer.predict(cut).predictions)
    found = scores_of(examples, table)
    return {"score": found, "majority": majority_score(examples), "chance": chance_score(examples)}, table
