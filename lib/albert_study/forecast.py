"""How long training will take: by the recorded times of like runs, or else counted before anything is loaded.

Products of matrices are counted: three times a forward pass, two operations for each weight and token. How fast this
machine multiplies is measured, and training taken to reach a quarter of that (0.17 to 0.3 in our runs on a CPU), plus a
fixed time a step. It may be off by a factor of two; some attentions take three times as long.
"""

import json
import timeit
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from albert_lsh.model.config import ModelError, load_config

# Training examples, and their mean length in tokens; of qnli and qqp about, of mnli, SQuAD, nsmc and klue-nli sampled.
SIZES = {
    "mrpc": (3_668, 57), "mnli": (392_702, 40), "sst2": (67_349, 14), "qnli": (104_743, 50), "qqp": (363_846, 30),
    "rte": (2_490, 71), "cola": (8_551, 11), "stsb": (5_749, 28), "squad": (87_599, 169), "squad-v2": (130_319, 170),
    "kor-sts": (5_743, 29), "kor-qpair": (6_133, 15), "nsmc": (150_000, 19), "klue-nli": (24_998, 33),
    "korquad": (4_863, 255), "mini-mrpc": (9_000, 29), "mini-sst2": (6_000, 22), "mini-mnli": (9_000, 26),
    "mini-squad": (9_000, 38), "mini-squad-v2": (9_000, 38),
}  # fmt: skip
HALF_AN_HOUR = 1800  # seconds
LIKE = ("task", "model", "attention", "max_length", "device", "precision")


@cache
def operations_a_second(device: str, precision: str) -> float:
    """Of a product of matrices on the GPU, or on one thread, as a study's runs have."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size, threads = 4096 if device == "cuda" else 512, torch.get_num_threads()
    matrix = torch.ones(size, size, device=device, dtype=kind)
    torch.set_num_threads(1)
    seconds = min(timeit.repeat(lambda: (matrix @ matrix)[0, 0].item(), number=1, repeat=10))  # waits for a GPU
    torch.set_num_threads(threads)
    return 2 * size**3 / seconds


def counted_pace(run: Any) -> float:
    """Seconds of an example in training on this machine; 0 for a model that cannot be reached."""
    try:
        config = load_config(run.model, revision=run.revision)
    except ModelError:
        return 0.0
    tokens, layers, hidden = min(SIZES[run.task][1], run.max_length), config.num_hidden_layers, config.hidden_size
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    operations = 3 * tokens * (2 * weights + 4 * layers * tokens * hidden)
    return 4 * operations / operations_a_second(run.device, run.precision) + 0.005 * layers / run.batch_size


def recorded_paces(root: Path) -> dict[tuple[Any, ...], float]:
    """The median seconds of an example in training, of all runs in results/runs that are alike."""
    paces: dict[tuple[Any, ...], list[float]] = {}
    for path in (root / "results" / "runs").rglob("result.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # `study` says what is wrong with a record
            record = json.loads(path.read_text(encoding="utf-8"))
            like, trained = tuple(record["parameters"][name] for name in LIKE), record["examples"]["train"]
            paces.setdefault(like, []).append(record["train_seconds"] / trained / record["parameters"]["epochs"])
    return {like: median(values) for like, values in paces.items()}


def seconds_of(run: Any, paces: dict[tuple[Any, ...], float]) -> float:
    """Of the training of a `Run`; 0 where it is not known. paces: as recorded; what they lack is counted."""
    if run.task not in SIZES:
        return 0.0
    examples = min(run.train_examples or SIZES[run.task][0], SIZES[run.task][0]) * run.epochs
    return examples * (paces.get(tuple(getattr(run, name) for name in LIKE)) or counted_pace(run))


def say_how_long(runs: list[Any]) -> float:
    """Say how long runs, one after another, will take on a CPU. Returns the seconds, 0 where nothing is said."""
    seconds = sum(seconds_of(run, {}) for run in runs if run.device == "cpu")
    if seconds:
        less = '; train_examples takes a part of a task, task="mini-mrpc" with model="mini" minutes'
        said = f"without a GPU: about {duration(seconds)} of training on this processor, by counting"
        print(said + less * (seconds > HALF_AN_HOUR))
    return seconds


def forecast(runs: list[Any], at_once: int, root: Path) -> str:
    """What runs will take, so many side by side, as a sentence; "" where it is not known."""
    paces = recorded_paces(root)
    known = [seconds for run in runs if (seconds := seconds_of(run, paces))]
    if not known:
        return ""
    took, at_once = duration(sum(known) / min(at_once, len(known))), min(at_once, len(known))
    others = f"; {len(runs) - len(known)} runs are not counted" if len(known) < len(runs) else ""
    return f"expected: about {took} of training, {at_once} at a time, by the times of like runs or by counting{others}"


def duration(seconds: float) -> str:
    """ "2.5 hours", "12 minutes", "40 seconds"."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{float(f'{seconds / size:.2g}'):,g} {unit}"
    return f"{float(f'{max(seconds, 1):.1g}'):g} seconds"
