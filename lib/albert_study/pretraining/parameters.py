"""The parameters of pretrain.ipynb."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from albert_lsh import attention as attentions
from albert_lsh.files import root_of
from albert_lsh.run import HIGHEST, Count, Device, Positive, Precision, Seed, Share, on_this_machine
from albert_lsh.training.parameters import errors_named, from_given, hash_of_changes, placed, recorded
from albert_study.pretraining.corpus import EMBEDDED
from albert_study.pretraining.objectives import MASKED_SHARE

PRETRAIN_NOTEBOOK = "pretrain.ipynb"
# From base on as in ALBERT (Lan et al. 2020, table 1).
SIZES: dict[str, dict[str, Any]] = {
    "nano": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4},
    "small": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "xlarge": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16},
}
DRY_STEPS = 2
# Parameters that say where and how fast, not what.
NOT_DECISIVE = ("output_dir", "results_root", "cache_dir", "resume", "dry_run")


@dataclass(frozen=True)
class Pretraining:
    """What is pretrained, on which text, and how; the notebook explains each."""

    text: str = EMBEDDED
    text_column: str = "text"
    text_config: str | None = None
    tokenizer: str | None = None
    vocabulary: Annotated[int, Field(ge=100, le=HIGHEST)] = 8000
    size: Literal["nano", "small", "base", "large", "xlarge"] = "nano"
    start: str | None = None
    first_weights: Literal["counted", "random"] = "counted"  # of a new model: see `first_weights`
    attention: str = "softmax"
    attention_settings: dict[str, Any] = field(default_factory=dict)
    seed: Seed = 0
    max_length: Annotated[int, Field(ge=16, le=HIGHEST)] = 128
    steps: Count = 100
    batch_size: Count = 32
    accumulation: Count = 1
    optimizer: Literal["adamw", "lamb"] = "adamw"
    learning_rate: Positive = 1e-3
    warmup_share: Share = 0.05
    masked_share: Annotated[float, Field(gt=0, lt=1)] = MASKED_SHARE
    weight_decay: Share = 0.01
    eval_steps: Count = 20
    eval_sequences: Count = 128
    precision: Precision = "auto"
    device: Device = "auto"
    recompute: bool = False
    feed_forward_chunk: Count | None = None
    resume: bool = True
    dry_run: bool = False
    cache_dir: str | None = None
    output_dir: str | None = None
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Pretraining":
        """From a notebook's variables (pass `globals()`), or from any dictionary.

        Raises:
            ParameterError: a name that is no parameter, a value of the wrong type or out of range, an unknown size,
                attention or setting, a device that is not there; the message says which and what was expected.
        """
        with errors_named(PRETRAIN_NOTEBOOK):
            asked = from_given(cls, given, PRETRAIN_NOTEBOOK)
            asked = placed(asked, ["output_dir", "cache_dir"], ["text", "tokenizer", "start"])
            if asked.attention == "reformer":
                raise ValueError("attention='reformer' is the students' transplant; to pretrain take shared-qk-lsh")
            if asked.start and asked.tokenizer:
                raise ValueError(f"tokenizer={asked.tokenizer!r}: start={asked.start!r} has a tokenizer of its own")
            if asked.start and asked.first_weights == "random":
                raise ValueError(f"first_weights='random': start={asked.start!r} has weights of its own")
            changed: dict[str, Any] = on_this_machine(asked.device, asked.precision)
            settings = attentions.check(asked.attention, asked.attention_settings)
            asked = dataclasses.replace(asked, attention_settings=settings)
        named = {name: getattr(asked, name) for name in ("size", "start", "attention", "seed", "results_root")}
        plain = cls(**named, attention_settings=attentions.check(asked.attention))
        name = f"{Path(asked.start).name if asked.start else asked.size}-{asked.attention}"
        name += hash_of_changes(asked.identity(), plain.identity())
        usual = root_of(asked.results_root) / "results" / "pretraining" / name / f"seed-{asked.seed}"
        changed["output_dir"] = asked.output_dir or str(usual)
        if asked.dry_run:
            changed |= {"steps": min(asked.steps, DRY_STEPS), "eval_sequences": asked.batch_size}
        return dataclasses.replace(asked, **changed)

    def recorded(self) -> dict[str, Any]:
        return recorded(self)

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        return {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}

    def identity(self) -> dict[str, Any]:
        """All that decides the result."""
        return {name: value for name, value in recorded(self).items() if name not in NOT_DECISIVE}
