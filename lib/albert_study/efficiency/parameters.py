"""The parameters of efficiency.ipynb."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from albert_lsh.run import Count, Device, Precision, on_this_machine
from albert_lsh.training.parameters import errors_named, from_given, placed
from albert_study.efficiency.contenders import CONTENDERS

EFFICIENCY_NOTEBOOK = "efficiency.ipynb"
# A training step: a contender that a model can have, and what saves memory (`save_memory`).
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name, contender in CONTENDERS.items() if contender.attention},
    "softmax, recomputed": ("softmax", {"recompute": True}),
    "lsh, recomputed": ("lsh", {"recompute": True}),
    "lsh, recomputed, in chunks": ("lsh", {"recompute": True, "feed_forward_chunk": 512}),
}


Size = Annotated[int, Field(ge=64, le=2**24)]  # a power of two: reformer-pytorch cuts a sequence into equal buckets


@dataclass(frozen=True)
class EfficiencyParameters:
    """What is measured, at which lengths, and how often; the notebook explains each."""

    lengths: Annotated[list[Size], Field(min_length=1)]
    cases: Annotated[list[str], Field(min_length=1)]
    step_lengths: list[Size]
    step_cases: list[str]
    keys: Size = 512
    precision: Precision = "fp32"
    device: Device = "cpu"
    repeats: Count = 5
    longest_quadratic: Count = 4096
    slowest: Annotated[float, Field(ge=0)] = 50.0
    memory: bool = True
    text_model: str | None = None
    text_length: Size = 2048
    output_dir: str = "results/runs/notebook/efficiency"
    figures_dir: str = "results/runs/notebook/efficiency"
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "EfficiencyParameters":
        """From a notebook's variables (pass `globals()`), or from any dictionary.

        Raises:
            ParameterError: a name that is no parameter, an unknown case, a length or number of keys that is no power
                of two, memory to be measured on a GPU, a device or precision that this machine does not have.
        """
        with errors_named(EFFICIENCY_NOTEBOOK):
            asked = placed(from_given(cls, given, EFFICIENCY_NOTEBOOK), ["output_dir", "figures_dir"], ["text_model"])
            for name, known in (("cases", CONTENDERS), ("step_cases", STEPS)):
                if unknown := [case for case in getattr(asked, name) if case not in known]:
                    raise ValueError(f"{name}: {unknown[0]!r} is not one of: {', '.join(known)}")
                if "softmax" not in getattr(asked, name) and (name == "cases" or asked.step_lengths):
                    raise ValueError(f"{name} must have 'softmax', with which the others are compared")
            for size in (*asked.lengths, *asked.step_lengths, asked.keys, asked.text_length):
                if size & (size - 1):
                    raise ValueError(f"{size} is no power of two, as lengths and keys must be")
            if asked.memory and asked.device != "cpu":
                raise ValueError(f"memory=True needs device='cpu', not {asked.device!r}")
            return dataclasses.replace(asked, **on_this_machine(asked.device, asked.precision))

    def table(self, kind: str) -> Path:
        """Of time, step, memory or quality."""
        return Path(self.output_dir) / f"{kind}-{self.device}-{self.precision}.csv"
