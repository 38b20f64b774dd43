"""Padding, the batch and the number of threads change no result of an attention, and no answer of a model."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_lsh import attention, load_model, load_tokenizer
from albert_lsh.predict import predict
from albert_lsh.tasks import find_task
from attention_cases import ALL
from test_wrong_data import LONG, ODD
from test_wrong_tensors import GARBAGE, SEEDS, rows, tokens, with_settings

pytestmark = pytest.mark.filterwarnings("ignore:.* does not hold ")
# In reformer-pytorch the number of buckets follows from the padded length.
NAMES = st.sampled_from([name for name in attention.names() if name != "reformer"])


@settings(max_examples=300)
@given(
    with_settings(NAMES), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(0, 30), SEEDS, GARBAGE
)
def test_more_padding_changes_nothing(chosen, heads, length, dim, more, seed, garbage):
    """On the right, whatever stands in it; within float32's rounding."""
    name, given = chosen
    mask, inputs = tokens((3, heads, length), seed), rows((3, heads, length, dim), seed)
    expected = attention.attend(name, *inputs, mask, seed=seed, **given)
    padded = [torch.nn.functional.pad(x, (0, 0, 0, more), value=garbage) for x in inputs]
    found = attention.attend(name, *padded, torch.nn.functional.pad(mask, (0, more)), seed=seed, **given)
    torch.testing.assert_close(found[:, :, :length], expected, atol=1e-5, rtol=1e-4)
    assert not found[:, :, length:].any()


@settings(max_examples=200)
@given(with_settings(NAMES), st.integers(1, 3), st.integers(2, 40), st.integers(1, 9), SEEDS, st.permutations(range(3)))
def test_the_others_of_a_batch_and_their_order_change_nothing(chosen, heads, length, dim, seed, order):
    name, given = chosen
    mask, inputs = tokens((3, heads, length), seed), rows((3, heads, length, dim), seed)
    together = attention.attend(name, *inputs, mask, seed=seed, **given)
    turned = attention.attend(name, *(x[order] for x in inputs), mask[order], seed=seed, **given)
    torch.testing.assert_close(turned, together[order], atol=1e-5, rtol=1e-4)
    alone = attention.attend(name, *(x[:1] for x in inputs), mask[:1], seed=seed, **given)
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [600])
@pytest.mark.parametrize(("name", "given"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_the_number_of_threads_changes_no_more_than_rounding(name, given, length):
    """Measured with torch 2.13 on x86: they change nothing at all."""
    inputs, before, found = rows((2, 4, length, 32), 0), torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(attention.attend(name, *inputs, seed=1, **given))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found)


KINDS = ("mini-sst2", "mini-mrpc", "stsb", "mini-squad", "mini-squad-v2")


@pytest.fixture(scope="module", params=["softmax", "lsh"])
def models(request):
    """An untrained model for a task of each kind, and their tokenizer."""
    torch.manual_seed(0)
    keys, made = {"share": 0.4} if request.param == "lsh" else {}, {}
    for task in map(find_task, KINDS):
        head = "question-answering" if task.is_squad else "classification"
        made[task.name] = load_model("nano", head=head, attention=request.param, settings=keys, **task.model_options)
    return made, load_tokenizer("nano")


TEXTS = st.sampled_from([text for text in ODD if text.strip()]) | st.text(min_size=1, max_size=60).filter(str.strip)


def numbers(said):
    """All numbers of an answer."""
    return [
        value
        for entry in said.values()
        for value in (entry.values() if isinstance(entry, dict) else [entry])
        if isinstance(value, float)
    ]


@settings(max_examples=8)
@given(st.sampled_from(KINDS), st.data())
def test_a_model_answers_a_text_alone_as_in_a_batch_and_beside_a_very_long_one(models, task, data):
    """And answers every row; a span is a piece of its paragraph."""
    asked, tokenizer = models
    task = find_task(task)
    examples = [{name: data.draw(TEXTS) for name in task.columns} for _ in range(2)]
    examples.append(dict.fromkeys(task.columns, LONG[0][: 1_500 if task.is_squad else 20_000]))

    def ask(given, batch_size):
        return list(predict(asked[task.name], tokenizer, task, given, batch_size))

    together = ask(examples, 4)
    assert len(together) == len(examples)
    for example, said in zip(examples[:2], together, strict=False):
        (alone,) = ask([example], 1)
        assert numbers(said) == pytest.approx(numbers(alone), abs=1e-5)
        if task.is_squad:
            assert example["context"][said["start"] : said["end"]] == said["answer"] == alone["answer"]
