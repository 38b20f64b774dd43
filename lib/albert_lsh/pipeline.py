"""Questions about paragraphs as a pipeline of Transformers, which no longer has one."""

import reprlib
from collections.abc import Iterator
from typing import Any

import torch
from scipy.special import softmax
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForQuestionAnswering
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline

from albert_lsh import squad
from albert_lsh.files import OneLineError
from albert_lsh.model.load import longest_input, matched

QUESTION_ANSWERING = "extractive-question-answering"
Base: Any = ChunkPipeline  # its type annotations forbid what Transformers' own chunk pipelines do


class QuestionAnsweringPipeline(Base):
    """Answers a question with a piece of a context, or not at all; see `squad.best_answers`.

    Transformers no longer has such a pipeline, and refuses its name, "question-answering"; ours has another:

        model, tokenizer = load_model(path, head="question-answering"), load_tokenizer(path)
        answer = transformers.pipeline("extractive-question-answering", model=model, tokenizer=tokenizer)
        answer(question="Who wrote there?", context="Simone wrote there in 1943.")

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
    tokenizer: Any

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.check_model_type(MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES)
        self.tokenizer = matched(self.tokenizer, self.model.config, self.model.name_or_path)

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **kwargs) -> Any:
        if inputs is None and isinstance(question, list | tuple) and isinstance(context, list | tuple):
            if len(question) != len(context):
                raise OneLineError(f"question has {len(question)} texts, context {len(context)}; they must be as many")
            inputs = [{"question": q, "context": c} for q, c in zip(question, context, strict=True)]
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__({"question": question, "context": context} if inputs is None else inputs, **kwargs)

    def _sanitize_parameters(self, **options):
        if unknown := ", ".join(options.keys() - {"max_length", "no_answer"}):
            known = "max_length, no_answer, batch_size"
            raise OneLineError(f"{unknown}: no option of {QUESTION_ANSWERING!r}; there are: {known}")
        longest, length = longest_input(self.model, self.tokenizer), options.get("max_length")
        if length is not None and (type(length) is not int or not 8 <= length <= longest):
            raise OneLineError(f"max_length={length!r} must be a whole number, 8 to {longest}")
        if not isinstance(no_answer := options.get("no_answer"), bool | None):
            raise OneLineError(f"no_answer={no_answer!r} must be True or False")
        reading, choosing = ({name: options[name]} if name in options else {} for name in ("max_length", "no_answer"))
        return reading, {}, choosing

    def preprocess(self, inputs: dict[str, str], max_length: int | None = None) -> Iterator[dict[str, Any]]:
        """The windows of one question, each with the examples and windows that `postprocess` needs."""
        for name in ("question", "context"):
            if not isinstance(inputs, dict) or not isinstance(inputs.get(name), str):
                raise OneLineError(f"input={reprlib.repr(inputs)} must have question and context, both texts")
        longest = max_length or longest_input(self.model, self.tokenizer)
        examples, windows = squad.windows_of(inputs["question"], inputs["context"], self.tokenizer, max_length=longest)
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in windows.column_names]
        for number, window in enumerate(windows):
            tensors = {name: torch.tensor(window[name])[None] for name in names}
            yield {**tensors, "read": (examples, windows), "is_last": number == len(windows) - 1}

    def _forward(self, model_inputs: dict[str, Any]) -> dict[str, Any]:
        carried = {name: model_inputs.pop(name) for name in ("read", "is_last")}
        out = self.model(**model_inputs)
        return {"start": out.start_logits, "end": out.end_logits, **carried}

    def postprocess(self, model_outputs: list[dict[str, Any]], no_answer: bool = False) -> dict[str, Any]:
        sides = [[out[side][0].float() for out in model_outputs] for side in ("start", "end")]
        logits = [pad_sequence(rows, batch_first=True).numpy() for rows in sides]  # (windows, length) each
        (best,) = squad.best_answers(*model_outputs[0]["read"], *logits, no_answer=no_answer).values()
        texts, values = [text for text, _ in best.n_best], [value for _, value in best.n_best]
        score = float(softmax(values)[texts.index(best.text)]) if texts else 0.0
        return {"answer": best.text, "score": score, "start": best.start, "end": best.end}


PIPELINE_REGISTRY.register_pipeline(
    QUESTION_ANSWERING, QuestionAnsweringPipeline, pt_model=AutoModelForQuestionAnswering
)
