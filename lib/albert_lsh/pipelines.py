"""Question answering as a Transformers pipeline, with the windows of training and evaluation.

Transformers no longer has one, and refuses its name, "question-answering". Importing this module, or
`albert_lsh.load_model`, registers ours under another name:

    model, tokenizer = load_model(path, head="question-answering"), load_tokenizer(path)
    answer = transformers.pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)
    answer(question="Who wrote there?", context="Simone wrote there in 1943.")

For classification and regression use Transformers' own "text-classification".
"""

import reprlib
from collections.abc import Iterator
from typing import Any

import torch
from scipy.special import softmax
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForQuestionAnswering
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline

from albert_lsh import squad
from albert_lsh.model.load import longest_input

TASK = "extractive-question-answering"
Base: Any = ChunkPipeline  # its type annotations forbid what Transformers' own chunk pipelines do


def pairs_of(question: Any, context: Any) -> Any:
    """One pair, or a list of them where both are lists of one length."""
    if isinstance(question, list | tuple) and isinstance(context, list | tuple):
        if len(question) != len(context):
            raise ValueError(f"question has {len(question)} texts, context {len(context)}; they must be as many")
        return [{"question": one, "context": other} for one, other in zip(question, context, strict=True)]
    return {"question": question, "context": context}


def checked(inputs: Any) -> tuple[str, str]:
    """Question and context of one input; ValueError naming what is missing or no text."""
    if not isinstance(inputs, dict):
        raise ValueError(f"input={reprlib.repr(inputs)} must be a dictionary with question and context")
    for name in ("question", "context"):
        if not isinstance(inputs.get(name), str):
            raise ValueError(f"{name}={reprlib.repr(inputs.get(name))} must be a text")
    return inputs["question"], inputs["context"]


class QuestionAnsweringPipeline(Base):
    """Answers a question with a piece of a context, or not at all; see `squad.best_answers`.

    Call it with question and context, each a text or both lists of them, with {"question": ..., "context": ...}, or
    with a list or generator of these. Its options, when it is made or called, are

        max_length     the most tokens of a window; the default is `longest_input`
        no_answer      whether "" may be the answer, as in SQuAD 2.0; False by default
        batch_size     windows that go through the model at a time; 1 by default

    and returns, for each question,

        answer         a piece of the context, or ""
        start, end     [start, end) of it in the context's characters; both 0 for ""
        score          0 to 1: its share among the 20 best answers, by the softmax of their logits, which BERT's
                       run_squad.py calls probability; 0 if the context has no token

    Raises:
        ValueError: a question or context that is missing or no text, lists of different lengths, another option, such
            as Transformers' former pipeline had; a max_length above the model's positions, or too short for any
            context; logits that are not finite.
    """

    _load_tokenizer = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.check_model_type(MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES)

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **kwargs) -> Any:
        return super().__call__(pairs_of(question, context) if inputs is None else inputs, **kwargs)

    def _sanitize_parameters(self, max_length=None, no_answer=None, **others):
        if others:
            known = "max_length, no_answer, batch_size"
            raise ValueError(f"{', '.join(others)}: no option of {TASK!r}; there are: {known}")
        reading = {} if max_length is None else {"max_length": max_length}
        choosing = {} if no_answer is None else {"no_answer": no_answer}
        return reading, {}, choosing

    def preprocess(self, inputs: dict[str, str], max_length: int | None = None) -> Iterator[dict[str, Any]]:
        """The windows of one question, each with the examples and windows that `postprocess` needs."""
        longest = max_length or longest_input(self.model, self.tokenizer)
        question, context = checked(inputs)
        found = squad.windows_of(question, context, self.tokenizer, max_length=longest)
        windows = found[1]
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in windows.column_names]
        for number, window in enumerate(windows):
            tensors = {name: torch.tensor(window[name])[None] for name in names}
            yield {**tensors, "found": found, "is_last": number == len(windows) - 1}

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in model_inputs.items() if not isinstance(value, Tensor)}
        out = self.model(**{name: value for name, value in model_inputs.items() if name not in rest})
        return {"start": out.start_logits, "end": out.end_logits, **rest}

    def postprocess(self, model_outputs: list[dict[str, Any]], no_answer: bool = False) -> dict[str, Any]:
        examples, windows = model_outputs[0]["found"]
        logits = [
            pad_sequence([out[side][0].float() for out in model_outputs], batch_first=True).numpy()  # (windows, length)
            for side in ("start", "end")
        ]
        (best,) = squad.best_answers(examples, windows, *logits, no_answer=no_answer).values()
        score = 0.0
        if best.n_best:
            texts, values = zip(*best.n_best, strict=True)
            score = float(softmax(values)[texts.index(best.text)])
        return {"answer": best.text, "score": score, "start": best.start, "end": best.end}


PIPELINE_REGISTRY.register_pipeline(TASK, QuestionAnsweringPipeline, pt_model=AutoModelForQuestionAnswering)
