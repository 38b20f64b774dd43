"""The kinds and sizes of models that can be pretrained, and the parameters of pretrain.ipynb."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from transformers import AlbertConfig, BertConfig, ModernBertConfig, PreTrainedConfig, RobertaConfig

from albert_lsh import attention as attentions
from albert_lsh.run import (
    Count,
    Device,
    NameOrPath,
    Place,
    Positive,
    Precision,
    Seed,
    Settings,
    Share,
    on_this_machine,
)
from albert_study.experiments import corpus
from albert_study.names import name_of_size

# From base on as in ALBERT (Lan et al. 2020, table 1), bert-small as in mlpen/YOSO (BERT/models): width, layers, heads.
SIZES = {"nano": (256, 6, 4), "small": (384, 12, 6), "bert-small": (512, 4, 8), "base": (768, 12, 12)}
SIZES |= {"large": (1024, 24, 16), "xlarge": (2048, 24, 16)}


class Kind(NamedTuple):
    """A kind of model and what it is pretrained for."""

    config: Callable[..., PreTrainedConfig]
    options: dict[str, Any]  # of a new model's config
    part: str  # of the model, as `load_model` calls it
    head: str  # what predicts masked tokens, in it
    logits: str  # what it gives out
    order_logits: str | None  # those of the order of segments; None: it has no such head
    ngrams: bool  # words are masked in n-grams, or pieces one by one
    feed_forward: float = 4  # its width, in widths of the model


# Dropout is 0 in ALBERT (version 2) and ModernBERT, 0.1 in the others.
KINDS = {
    "albert": Kind(
        AlbertConfig,
        {"embedding_size": 128, "classifier_dropout_prob": 0.0, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0},
        "pretraining", "predictions", "prediction_logits", "sop_logits", True,
    ),
    "bert": Kind(
        BertConfig, {}, "pretraining", "cls.predictions", "prediction_logits", "seq_relationship_logits", False
    ),
    "roberta": Kind(RobertaConfig, {"type_vocab_size": 1}, "pretraining", "lm_head", "logits", None, False),
    # Rotary positions, two of three layers local (64 tokens to each side), gated feed-forward parts.
    "modernbert": Kind(ModernBertConfig, {}, "masked-lm", "head", "logits", None, False, 1.5),
}  # fmt: skip


class Pretraining(Settings):
    """The parameters of pretrain.ipynb, which explains each."""

    notebook: ClassVar[str] = "pretrain.ipynb"
    text: NameOrPath = corpus.EMBEDDED
    text_column: str = "text"
    text_config: str | None = None
    tokenizer: NameOrPath | None = None
    vocabulary: Annotated[Count, Field(ge=100)] = 8000
    kind: Literal["albert", "bert", "roberta", "modernbert"] = "albert"
    sentence_order: bool | None = None
    size: Literal["nano", "small", "bert-small", "base", "large", "xlarge"] = "nano"
    start: NameOrPath | None = None
    attention: str = "softmax"
    attention_settings: dict[str, Any] = Field(default={}, validate_default=True)
    seed: Seed = 0
    max_length: Annotated[Count, Field(ge=16)] = 128
    steps: Count = 100
    batch_size: Count = 32
    accumulation: Count = 1
    learning_rate: Positive = 1e-3
    warmup_share: Share = 0.05
    masked_share: Annotated[float, Field(gt=0, lt=1)] = corpus.MASKED_SHARE
    weight_decay: Share = 0.01
    eval_steps: Count = 20
    eval_sequences: Count = 128
    precision: Precision = "auto"
    device: Device = "auto"
    recompute: bool = False
    resume: bool = True
    output_dir: Place | None = None

    @field_validator("attention_settings")
    @classmethod
    def complete(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """All settings of the attention."""
        return attentions.check(info.data["attention"], settings) if "attention" in info.data else settings

    @model_validator(mode="after")
    def consistent(self) -> Self:
        if self.attention == "reformer":
            raise ValueError("attention='reformer' is the students' transplant; to pretrain take shared-qk-lsh")
        if self.start and self.tokenizer:
            raise ValueError(f"tokenizer={self.tokenizer!r}: start={self.start!r} has a tokenizer of its own")
        if self.sentence_order and not KINDS[self.kind].order_logits:
            raise ValueError(f"sentence_order=True: a model of kind={self.kind!r} has no head for it")
        return self

    def completed(self, place: str) -> Self:
        """In a folder of its own, one more for every change of the parameters."""
        order = bool(KINDS[self.kind].order_logits) if self.sentence_order is None else self.sentence_order
        named = ("kind", "size", "start", "attention", "seed", "results_root")
        same = {name: getattr(self, name) for name in named}
        settings = attentions.check(self.attention)
        usual = type(self).model_construct(**same, attention_settings=settings).identity()
        changes = {name: value for name, value in self.identity().items() if value != usual[name]}
        digest = hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:6]
        new = name_of_size(self.kind, self.size)
        name = f"{Path(self.start).name if self.start else new}-{self.attention}" + f"-{digest}" * bool(changes)
        folder = self.output_dir or f"{self.results_root}/results/pretraining/{name}/seed-{self.seed}"
        settled = {"output_dir": folder, "sentence_order": order}
        return self.model_copy(update=settled | on_this_machine(self.device, self.precision))

    @property
    def folder(self) -> Path:
        return Path(str(self.output_dir))

    @property
    def results(self) -> list[str]:
        return [f"{self.output_dir}/result.json"]
