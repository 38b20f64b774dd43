"""What runs will take, counted from their parameters before anything is loaded.

Products of matrices are counted, in training alone: three times a forward pass, two operations for each weight and
token. How fast this machine multiplies is measured, and training is taken to reach a quarter of that, plus a fixed time
a step. Memory is what the weights, AdamW and the stored activations take. Both may be off by a factor of two, and more
where runs take seconds.
"""

import os
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from transformers import AlbertConfig, PreTrainedConfig

from albert_lsh.model.config import ModelError, load_config
from albert_lsh.run import Run
from albert_lsh.tasks import find_task
from albert_study.jobs import Job

# Training examples, and their mean length in the tokens of ALBERT, Korean or English; of qnli and qqp about, of mnli,
# SQuAD, nsmc and klue-nli from a sample.
SIZES = {
    "mrpc": (3_668, 57), "mnli": (392_702, 40), "sst2": (67_349, 14), "qnli": (104_743, 50), "qqp": (363_846, 30),
    "rte": (2_490, 71), "cola": (8_551, 11), "stsb": (5_749, 28), "squad": (87_599, 169), "squad-v2": (130_319, 170),
    "kor-sts": (5_743, 29), "kor-qpair": (6_133, 15), "nsmc": (150_000, 19), "klue-nli": (24_998, 33),
    "korquad": (4_863, 255),
    "mini-mrpc": (9_000, 29), "mini-sst2": (6_000, 22), "mini-mnli": (9_000, 26),
    "mini-squad": (9_000, 38), "mini-squad-v2": (9_000, 38),
}  # fmt: skip
ALBERT_BASE = AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
EFFICIENCY = 0.25  # of the speed of a product of matrices; 0.17 to 0.3 in our runs on a CPU
STEP_SECONDS = 0.005  # a step and pass through a layer, whatever its size
QUESTION = 15  # tokens of a question, which every window of a paragraph repeats


@lru_cache
def config_of(model: str) -> PreTrainedConfig | None:
    """The model's config; None if it cannot be reached, which is found out once."""
    with suppress(ModelError):
        return ALBERT_BASE if model.endswith("/albert-base-v2") else load_config(model)
    return None


class Need(NamedTuple):
    """What a run takes."""

    operations: float
    steps: float
    passes: int
    memory: float  # bytes

    def seconds(self, speed: float) -> float:
        """speed: operations a second of a product of matrices."""
        return self.operations / speed / EFFICIENCY + self.steps * self.passes * STEP_SECONDS


def need(run: Run) -> Need | None:
    """What a run takes; None for a task that is not in SIZES, or a model that cannot be reached."""
    config = config_of(run.model)
    if config is None or run.task not in SIZES:
        return None
    of_task, mean = SIZES[run.task]
    examples, length = min(run.train_examples or of_task, of_task) * run.epochs, run.max_length
    tokens = float(min(mean, length))
    if find_task(run.task).is_squad and mean > length:  # in windows
        tokens = length + length * (mean - length) / (length - QUESTION - min(128, length // 3))
    weights, parameters = sizes(config)
    wide = config.num_hidden_layers * 4 * tokens * config.hidden_size  # of attention, for each token
    operations = 3 * examples * tokens * (2 * weights + wide)
    stored = run.batch_size * length * config.num_hidden_layers
    memory = 16 * parameters + stored * (150 * config.hidden_size + 25 * config.num_attention_heads * length)
    steps = examples * max(1, tokens / length) / run.batch_size
    return Need(operations, steps, config.num_hidden_layers, memory + 0.9e9)


def sizes(config: PreTrainedConfig) -> tuple[int, int]:
    """The weights that a token is multiplied with in the encoder, and the number of all parameters, about."""
    layer = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    own = 1 if config.model_type == "albert" else config.num_hidden_layers
    width = getattr(config, "embedding_size", config.hidden_size)
    return config.num_hidden_layers * layer, own * layer + config.vocab_size * width


def speed_here(device: str, precision: str) -> float:
    """Operations a second of a product of matrices, measured for a fraction of a second."""
    kind: Any = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size, threads = 4096 if device == "cuda" else 512, torch.get_num_threads()
    matrix, best = torch.ones(size, size, device=device, dtype=kind), float("inf")
    torch.set_num_threads(1)  # as a run of a study has
    for _ in range(10):
        began = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for a GPU
        best = min(best, time.perf_counter() - began)
    torch.set_num_threads(threads)
    return 2 * size**3 / best


def say_how_long(runs: list[Run]) -> float:
    """Say how long runs, one after another, will take on a CPU; nothing on a GPU, or where it is not known.

    Returns:
        Seconds, 0 where nothing is said. Attentions are taken to be as fast as softmax; some take three times as long.
    """
    needs = [one for one in map(need, runs) if one]
    if not needs or runs[0].device != "cpu":
        return 0.0
    seconds = sum(one.seconds(speed_here("cpu", runs[0].precision)) for one in needs)
    print(f"without a GPU: about {duration(seconds)} of training on this processor, by counting")
    return seconds


def duration(seconds: float) -> str:
    """ "2.5 hours", "12 minutes", "40 seconds"."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{float(f'{max(seconds, 1):.1g}'):g} seconds"


def announcement(jobs: list[Job]) -> str:
    """What the runs among these jobs will take, as a sentence; "" if there is nothing to count.

    Runs are made side by side, one on each GPU or each core.
    """
    runs = [Run.parse(job.parameters, job.notebook) for job in jobs if job.makes_run]
    needs = [one for one in map(need, runs) if one]
    if not needs:
        return ""
    device, at_once = runs[0].device, min(torch.cuda.device_count() or os.cpu_count() or 1, len(needs))
    speed = speed_here(device, runs[0].precision)
    hours = sum(one.seconds(speed) for one in needs) / at_once / 3600
    took = f"{float(f'{hours:.2g}'):,g} hours" if hours >= 1 else f"{60 * hours:.2g} minutes"
    operations, memory = sum(one.operations for one in needs), max(one.memory for one in needs)
    others = len(jobs) - len(needs)
    left_out = f"; {others} other {'jobs are' if others > 1 else 'job is'} not counted" if others else ""
    counted = f"{len(needs)} run{'s' * (len(needs) > 1)}"
    return (
        f"expected: {counted}, {at_once} at a time, about {took} on this machine's {device} ({operations:.1e} "
        f"operations, at a quarter of the {speed / 1e9:,.0f} billion a second that a product of matrices reaches), "
        f"each with up to {memory / 1e9:.1f} GB of memory{left_out}"
    )
