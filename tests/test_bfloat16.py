"""bfloat16 on a CPU without products of it: the same numbers, from products in float32."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainingArguments

from albert_lsh.model.load import load_tokenizer
from albert_lsh.tasks.data import encode, load_data
from albert_lsh.tasks.metrics import for_trainer
from albert_lsh.tasks.table import find_task
from albert_lsh.training import bfloat16
from albert_lsh.training.bfloat16 import BACKWARD, FORWARD
from albert_lsh.training.parameters import Parameters
from albert_lsh.training.recipe import prepare_model, train


def masked(query, key, value):
    """torch's fused attention of texts of 11 and of 5 tokens; it wants a mask of its query's type."""
    mask = torch.zeros(2, 1, 1, 11, dtype=query.dtype)
    mask[1, ..., 5:] = -1e4
    return F.scaled_dot_product_attention(query, key, value, mask)


MATRIX, OTHER = (2, 1, 7, 24), (2, 1, 24, 9)
CASES = {
    "mm": (torch.mm, MATRIX[2:], OTHER[2:]),
    "addmm": (torch.addmm, (7, 9), MATRIX[2:], OTHER[2:]),
    "linear": (F.linear, MATRIX, OTHER[:1:-1], (9,)),
    "bmm": (torch.bmm, (3, 7, 24), (3, 24, 9)),
    "baddbmm": (torch.baddbmm, (3, 7, 9), (3, 7, 24), (3, 24, 9)),
    "fused attention": (F.scaled_dot_product_attention, (2, 3, 7, 8), (2, 3, 11, 8), (2, 3, 11, 8)),
    "fused attention, masked": (masked, (2, 3, 7, 8), (2, 3, 11, 8), (2, 3, 11, 8)),
}
ATEN = torch.ops.aten
MULTIPLIES = (ATEN.mm, ATEN.addmm, ATEN.bmm, ATEN.baddbmm, FORWARD, BACKWARD)


class Multiplied(TorchDispatchMode):
    """The types of numbers that are multiplied in it."""

    def __init__(self):
        super().__init__()
        self.types = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in MULTIPLIES:
            self.types.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def found(function, inputs):
    """Output and gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape).bfloat16().to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]


@pytest.mark.parametrize(("function", "shapes"), [(each[0], each[1:]) for each in CASES.values()], ids=CASES)
def test_output_and_gradients_are_those_of_the_rounded_numbers(function, shapes):
    """A number is rounded once, by at most 2^-8 of itself; the attention's backward begins with rounded numbers."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    expected = found(function, [x.double() for x in inputs])
    with Multiplied() as multiplied, bfloat16.ProductsInFloat32():
        measured = found(function, inputs)
    assert multiplied.types == {torch.float32}
    from_rounded = 2**-8 if function in (F.scaled_dot_product_attention, masked) else 0
    for one, other in zip(measured, expected, strict=True):
        assert one.dtype == torch.bfloat16
        largest = other.abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=2**-8, atol=(from_rounded + 1e-6) * largest)


def test_the_log_sum_of_attention_keeps_float32():
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, 2, 3, 7, 8, generator=generator).bfloat16()
    with bfloat16.ProductsInFloat32():
        _, log_sum = FORWARD(query, key, value)
    expected = (query.double() @ key.double().mT / 8**0.5).logsumexp(-1)
    torch.testing.assert_close(log_sum.double(), expected, rtol=0, atol=1e-5)


def test_other_products_are_left_alone():
    given = [torch.randn(5, 6), torch.randn(6, 7)]
    with bfloat16.ProductsInFloat32():
        assert torch.equal(torch.mm(*given), given[0] @ given[1])
        assert torch.mm(*(x.double() for x in given)).dtype == torch.float64


def test_a_tensor_given_for_the_result_is_written():
    given, out = [torch.ones(5, 6).bfloat16(), torch.ones(6, 7).bfloat16()], torch.zeros(5, 7).bfloat16()
    with bfloat16.ProductsInFloat32():
        torch.mm(*given, out=out)
    assert (out == 6).all()


def trained(folder, attention="softmax"):
    """A short training in bf16 on the CPU, and its examples."""
    given = {"task": "mini-mrpc", "model": "mini", "attention": attention, "epochs": 1, "train_examples": 64}
    given |= {"batch_size": 8, "max_length": 48, "learning_rate": 1e-3, "precision": "bf16", "device": "cpu"}
    run = Parameters.check({**given, "output_dir": str(folder)}, "glue.ipynb")
    task, tokenizer = find_task(run.task), load_tokenizer(run.model)
    encoded = encode(load_data(run.task, train_examples=64, eval_examples=16), task, tokenizer, run.max_length)
    model = prepare_model(run, head="classification", num_labels=task.num_labels)
    return train(model, tokenizer, run, encoded["train"], encoded["validation"], for_trainer(task)), encoded


@pytest.mark.parametrize("has", [True, False])
def test_a_run_in_bf16_multiplies_what_the_processor_can(tmp_path, monkeypatch, has):
    monkeypatch.setattr(bfloat16, "has_products", lambda: has)  # stands for another processor
    with Multiplied() as multiplied:
        done, encoded = trained(tmp_path)
        in_training, multiplied.types = multiplied.types, set()
        done.trainer.predict(encoded["train"])
    assert in_training == multiplied.types == {torch.bfloat16 if has else torch.float32}


@pytest.mark.parametrize("attention", ["softmax", "lsh", "reformer"])
def test_both_ways_train_the_same(tmp_path, monkeypatch, attention):
    losses = []
    for has in (True, False):
        monkeypatch.setattr(bfloat16, "has_products", lambda has=has: has)
        done, _ = trained(tmp_path / str(has), attention)
        losses.append(done.history["train_loss"].dropna().to_numpy())
    assert abs(losses[0] - losses[1]).max() < 0.02  # measured: 0.0015, 0.0033, 0.0064


@pytest.mark.parametrize(("precision", "has"), [("fp32", False), ("bf16", True)])
def test_nothing_is_changed_where_nothing_is_missing(tmp_path, monkeypatch, precision, has):
    monkeypatch.setattr(bfloat16, "has_products", lambda: has)
    args = TrainingArguments(str(tmp_path), bf16=precision == "bf16", use_cpu=True, report_to="none")
    with Multiplied() as multiplied, bfloat16.products(args):
        torch.randn(5, 6, dtype=torch.bfloat16) @ torch.randn(6, 7, dtype=torch.bfloat16)
    assert multiplied.types == {torch.bfloat16}
