"""What is timed, and whose memory is measured: one pass of an attention, or one training step of a model."""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from transformers import AlbertConfig, PreTrainedModel

from albert_lsh.model.layers import save_memory
from albert_lsh.model.load import load_model
from albert_study.efficiency.contenders import CONTENDERS, HEAD_DIM, HEADS, Attend
from albert_study.efficiency.parameters import STEPS, EfficiencyParameters

VOCABULARY = 30_000  # ALBERT's
STEP_TOKENS = 1024  # a training step has two sequences, or one if two are more tokens
ENOUGH = 30  # seconds that a case has taken, after which it is not repeated
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Workload = Callable[[], None]


def inputs(length: int, asked: EfficiencyParameters) -> list[Tensor]:
    """Query, key and value, (1, HEADS, length, HEAD_DIM), the same for every case."""
    generator = torch.Generator().manual_seed(length)
    tensors = [torch.randn((1, HEADS, length, HEAD_DIM), generator=generator) for _ in range(3)]
    return [tensor.to(asked.device, PRECISIONS[asked.precision]) for tensor in tensors]


def one_pass(attend: Attend, tensors: list[Tensor], backward: bool) -> Workload:
    """A function that goes through an attention once: forward, or forward and backward."""

    def run() -> None:
        leaves = [t.detach().requires_grad_(backward) for t in tensors]
        with torch.set_grad_enabled(backward):
            out = attend(*leaves)
        if backward:
            out.backward(torch.ones_like(out))

    return run


def base_model(length: int, keys: int, step: str) -> PreTrainedModel:
    """A model of ALBERT-base's shape in training mode, with random weights and positions for `length` tokens.

    Its attention is that of STEPS[step], and sees at most half of the keys.
    """
    case, options = STEPS[step]
    config = AlbertConfig(
        vocab_size=VOCABULARY, hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, intermediate_size=3072,
        max_position_embeddings=max(512, length), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    settings = CONTENDERS[case].settings(length, min(keys, length // 2))
    model = load_model(config, attention=CONTENDERS[case].attention, settings=settings)
    save_memory(model, **options)
    return model.train()


def batch_of(length: int) -> int:
    """Sequences of a training step."""
    return min(2, max(1, STEP_TOKENS // length))


def training_step(length: int, step: str, asked: EfficiencyParameters) -> Workload:
    """A function that trains a `base_model` for one step: forward, backward, AdamW."""
    model = base_model(length, asked.keys, step)
    model.to(torch.device(asked.device))  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = batch_of(length)
    ids = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0)).to(model.device)
    labels = torch.arange(batch, device=model.device) % 2
    dtype, kind = PRECISIONS[asked.precision], model.device.type

    def run() -> None:
        with nullcontext() if dtype is torch.float32 else torch.autocast(kind, dtype=dtype):
            loss = model(ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def seconds_of(runs: dict[str, Workload], repeats: int) -> dict[str, list[float]]:
    """Seconds of each function, called in turn; slow ones are repeated less. The first call warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            if sum(seconds[name]) < ENOUGH:
                began = time.perf_counter()
                run()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - began)
    return {name: found[1:] or found for name, found in seconds.items()}


def memory_of(kind: str, case: str, length: int, asked: EfficiencyParameters) -> int:
    """`measure_memory_here` in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure_memory_here, kind, case, length, asked).result()


def measure_memory_here(kind: str, case: str, length: int, asked: EfficiencyParameters) -> int:
    """Peak memory in bytes, above what there was before, as Linux counts it.

    A short run comes first, so that what is loaded at first use does not count.

    Args:
        kind: "attention", a forward and backward pass; or "step", a training step.
    """

    def prepare(length: int) -> Workload:
        if kind == "step":
            return training_step(length, case, asked)
        return one_pass(CONTENDERS[case].build(length, asked.keys), inputs(length, asked), backward=True)

    run = prepare(length)
    prepare(64)()
    ctypes.CDLL(None).malloc_trim(0)  # what the short run has freed would be taken again without being counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_memory("VmRSS")
    run()
    return resident_memory("VmHWM") - before


def resident_memory(name: str) -> int:
    """Bytes of memory resident now (VmRSS), or at the peak (VmHWM)."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
