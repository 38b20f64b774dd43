"""Padding, the batch and very long texts beside it change no answer of a model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_lsh import load_model, load_tokenizer
from albert_lsh.sources import find_task
from test_wrong_data import LONG, ODD

KINDS = ("mini-sst2", "mini-mrpc", "stsb", "mini-squad", "mini-squad-v2")


@pytest.fixture(scope="module", params=["softmax", "key-clusters"])
def models(request):
    """An untrained model for a task of each kind, and their tokenizer."""
    torch.manual_seed(0)
    keys, made = {"share": 0.4} if request.param == "key-clusters" else {}, {}
    for task in map(find_task, KINDS):
        made[task.name] = load_model(
            "nano", head=task.head, attention=request.param, settings=keys, **task.model_options
        )
    return made, load_tokenizer("nano")


TEXTS = st.sampled_from([text for text in ODD if text.strip()]) | st.text(min_size=1, max_size=60).filter(str.strip)


def numbers(answer):
    """All numbers of an answer."""
    values = [x for entry in answer.values() for x in (entry.values() if isinstance(entry, dict) else [entry])]
    return [x for x in values if isinstance(x, float)]


@settings(max_examples=8)
@given(st.sampled_from(KINDS), st.data())
def test_a_model_answers_a_text_alone_as_in_a_batch_and_beside_a_very_long_one(models, task, data):
    """And answers every row; a span is a piece of its paragraph."""
    (by_task, tokenizer), task = models, find_task(task)
    examples = [{name: data.draw(TEXTS) for name in task.columns} for _ in range(2)]
    examples.append(dict.fromkeys(task.columns, LONG[0][: 20_000 if task.has_free_words else 1_500]))

    def answers(examples, batch_size):
        return list(task.answer(by_task[task.name], tokenizer, examples, batch_size))

    together = answers(examples, 4)
    assert len(together) == len(examples)
    for example, answer in zip(examples[:2], together, strict=False):
        (alone,) = answers([example], 1)
        assert numbers(answer) == pytest.approx(numbers(alone), abs=1e-5)
        if "context" in task.columns:
            assert example["context"][answer["start"] : answer["end"]] == answer["answer"] == alone["answer"]
