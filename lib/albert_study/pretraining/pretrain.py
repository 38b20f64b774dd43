"""Pretraining an ALBERT with any of our attentions, or continuing with another one or with longer positions.

`pretrain` is what notebooks/pretrain.ipynb calls, and what several devices run as a script:

    accelerate launch --num_processes 2 -m albert_study.pretraining.pretrain text=corpus.txt size=nano attention=lsh

Hugging Face's Trainer does the training, on one device or many (see `trainer`), and takes up an interrupted
run at its last checkpoint. One is written every `eval_steps`; the older one is deleted after the newer is complete.
"""

import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from accelerate import PartialState
from datasets import Dataset
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from albert_lsh import attention as attentions
from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, max_positions
from albert_lsh.training import locks
from albert_lsh.training.checkpoints import Seal, last_checkpoint
from albert_lsh.training.files import relative_to_root, repository_root, write_atomically
from albert_lsh.training.parameters import ParameterError, check_ranges, errors_named, from_given, on_this_machine
from albert_lsh.training.recipe import (
    CURVE_POINTS,
    Clock,
    Watch,
    cost_of,
    explain_out_of_memory,
    history_of,
    training_arguments,
)
from albert_lsh.training.record import SCHEMA, close_run, environment, resolved
from albert_study.pretraining.corpus import (
    CorpusError,
    count_pieces,
    packed,
    read_paragraphs,
    tokenised,
    train_tokenizer,
)
from albert_study.pretraining.first_weights import begin_as_bag_of_words
from albert_study.pretraining.objectives import IGNORED, MASKED_SHARE, Collator, Pieces, Sequences
from albert_study.pretraining.trainer import PretrainingTrainer, attended

NOTEBOOK = "pretrain.ipynb"
# By name; from base on as in ALBERT (Lan et al. 2020, table 1).
SIZES: dict[str, dict[str, Any]] = {
    "nano": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4},
    "small": {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "xlarge": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16},
}
POSITIONS = 512  # learned, of a new model, if max_length asks for no more
DRY_STEPS = 2
# Parameters that say where and how fast, not what.
WHERE = ("output_dir", "cache_dir", "resume", "dry_run")


@dataclass(frozen=True)
class Pretraining:
    """The parameters of pretrain.ipynb."""

    text: str
    text_column: str = "text"
    text_config: str | None = None
    tokenizer: str | None = None
    vocabulary: int = 8000
    size: str = "nano"
    start: str | None = None
    attention: str = "softmax"
    attention_settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    max_length: int = 128
    steps: int = 5000
    batch_size: int = 32
    accumulation: int = 1
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup_share: float = 0.05
    masked_share: float = MASKED_SHARE
    weight_decay: float = 0.01
    eval_steps: int = 250
    eval_sequences: int = 512
    precision: str = "auto"
    device: str = "auto"
    recompute: bool = False
    feed_forward_chunk: int | None = None
    resume: bool = True
    dry_run: bool = False
    cache_dir: str | None = None
    output_dir: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any]) -> "Pretraining":
        """From a notebook's variables (pass `globals()`), or from any dictionary.

        Raises:
            ParameterError: a name that is no parameter, a value of the wrong type or out of range, an unknown size,
                attention or setting, CUDA asked for where there is none; the message says which and what was expected.
        """
        with errors_named(NOTEBOOK):
            asked = from_given(cls, given, NOTEBOOK)
            asked._check_ranges()
            settings = attentions.check(asked.attention, asked.attention_settings)
            found = on_this_machine(asked.device, asked.precision)
        asked = dataclasses.replace(asked, attention_settings=settings, **found)
        if asked.dry_run:
            asked = dataclasses.replace(asked, steps=min(asked.steps, DRY_STEPS), eval_sequences=asked.batch_size)
        return asked if asked.output_dir else dataclasses.replace(asked, output_dir=str(asked.default_folder()))

    def _check_ranges(self) -> None:
        lowest = {"max_length": 16, "batch_size": 1, "accumulation": 1, "steps": 1, "eval_steps": 1, "seed": 0}
        lowest |= {"eval_sequences": 1, "vocabulary": 100, "feed_forward_chunk": 1}
        shares = ("masked_share", "warmup_share", "weight_decay")
        check_ranges(self, lowest, positive=("learning_rate", "masked_share"), shares=shares)
        for name, allowed in {"size": SIZES, "optimizer": ("adamw", "lamb")}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of: {', '.join(allowed)}")
        if self.attention == "reformer":
            raise ValueError("attention='reformer' is the students' transplant; to pretrain take shared-qk-lsh")
        if self.start and self.tokenizer:
            raise ValueError(f"tokenizer={self.tokenizer!r}: start={self.start!r} has a tokenizer of its own")

    def default_folder(self) -> Path:
        name = Path(self.start).name if self.start else self.size
        return repository_root() / "results" / "pretraining" / f"{name}-{self.attention}" / f"seed-{self.seed}"

    def what(self) -> dict[str, Any]:
        """All that decides the result."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in WHERE}


class Material(NamedTuple):
    """What a model is trained with."""

    tokenizer: PreTrainedTokenizerBase
    train: Sequences
    held_out: Sequences
    sentences: Dataset  # before the held-out ones
    tokens: int  # of the text
    baseline: dict[str, float]  # what counting pieces reaches


def prepare_tokenizer(asked: Pretraining, folder: Path) -> PreTrainedTokenizerBase:
    """That of `start`, the one asked for, or a new one, which is kept in the folder for when the run is taken up."""
    if named := asked.start or asked.tokenizer:
        return load_tokenizer(named)
    kept, partial = folder / "tokenizer", folder / "tokenizer.partial"
    if not kept.exists():
        paragraphs = read_paragraphs(asked.text, asked.text_column, asked.text_config)
        train_tokenizer(paragraphs, asked.vocabulary).save_pretrained(partial)
        partial.rename(kept)
    return load_tokenizer(str(kept))


def prepare_text(asked: Pretraining, folder: Path, world: int = 1) -> Material:
    """The text, tokenised and packed; its last sequences, a tenth at most, are held out.

    Args:
        folder: of the run; keeps a tokenizer that is learned from the text.
        world: devices that train, each with batch_size sequences.
    Raises:
        CorpusError: a text that is not there, empty, not UTF-8, or too short for two sequences.
        ModelError: no such tokenizer.
    """
    cache = Path(asked.cache_dir) if asked.cache_dir else None
    tokenizer = prepare_tokenizer(asked, folder)
    sentences = tokenised(asked.text, asked.text_column, asked.text_config, tokenizer, cache)
    sequences = packed(sentences, asked.max_length, asked.seed, cache)
    if len(sequences) < 2:
        raise CorpusError(
            f"text={asked.text!r} is too short: {len(sequences)} sequence(s) of up to {asked.max_length} tokens, and "
            "two are needed, one of them to be held out"
        )
    n = len(sequences) - min(asked.eval_sequences, max(1, len(sequences) // 10))
    pieces, per_step = Pieces.of(tokenizer), asked.batch_size * asked.accumulation * world
    kinds = (per_step, asked.max_length, pieces, asked.seed)
    train = Sequences(sentences, sequences.select(range(n)), asked.steps * per_step, *kinds, asked.masked_share)
    held_out = Sequences(sentences, sequences.select(range(n, len(sequences))), len(sequences) - n, *kinds)
    counts, before = count_pieces(sentences, len(tokenizer)), sentences.select(range(sequences[n]["first"]))
    return Material(tokenizer, train, held_out, before, int(counts.sum()), of_counting(counts, held_out))


def of_counting(counts: np.ndarray, held_out: Sequences) -> dict[str, float]:
    """What a model reaches that knows how often each piece stands in the text and nothing else.

    `mlm_loss` in nats and `mlm_accuracy`, on the masked tokens of the held-out sequences; `sop_accuracy`, of a coin.
    """
    share = (counts + 1) / (counts + 1).sum()
    labels = np.concatenate([held_out[i]["labels"] for i in range(len(held_out))])
    labels = labels[labels != IGNORED]
    accuracy = float((labels == counts.argmax()).mean())
    return {"mlm_loss": float(-np.log(share[labels]).mean()), "mlm_accuracy": accuracy, "sop_accuracy": 0.5}


def prepare(asked: Pretraining, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A new model of this size, or that of `start`, with the attention; its positions reach max_length.

    Raises:
        ModelError: no such `start`. ParameterError: it is no ALBERT, whose objectives these are.
    """
    set_seed(asked.seed)
    chosen: dict[str, Any] = {
        "head": "pretraining", "attention": asked.attention, "settings": asked.attention_settings, "seed": asked.seed,
        "recompute": asked.recompute, "feed_forward_chunk": asked.feed_forward_chunk,
    }  # fmt: skip
    if asked.start:
        model = load_model(asked.start, **chosen)
        if not isinstance(model, AlbertForPreTraining):
            raise ParameterError(f"start={asked.start!r} is of type {model.config.model_type}, not albert ({NOTEBOOK})")
        return model if asked.max_length <= max_positions(model.config) else extend_positions(model, asked.max_length)
    width = SIZES[asked.size]
    config = AlbertConfig(
        **width, intermediate_size=4 * width["hidden_size"], embedding_size=128, vocab_size=len(tokenizer),
        max_position_embeddings=max(POSITIONS, asked.max_length),
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
        hidden_act="gelu_pytorch_tanh",  # ALBERT's gelu_new as one operation, which takes a fifth off a step's time
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    return load_model(config, **chosen)


def recipe(asked: Pretraining, folder: Path) -> TrainingArguments:
    """The recipe, in Trainer's words."""
    return training_arguments(
        asked,
        folder,
        max_steps=asked.steps,
        gradient_accumulation_steps=asked.accumulation,
        warmup_steps=asked.warmup_share,  # below 1: a share of all steps
        weight_decay=asked.weight_decay,
        average_tokens_across_devices=True,
        ddp_find_unused_parameters=False,
        include_num_input_tokens_seen="non_padding",
        logging_steps=max(1, min(asked.eval_steps, asked.steps // CURVE_POINTS)),
        eval_strategy="no" if asked.dry_run else "steps",
        eval_on_start=not asked.dry_run,  # what the first weights are worth
        eval_steps=asked.eval_steps,
        save_strategy="no" if asked.dry_run else "steps",
        save_steps=asked.eval_steps,
        remove_unused_columns=False,
    )


def optimizer_of(asked: Pretraining) -> tuple[type, dict[str, Any]] | None:
    """LAMB (You et al. 2020), if asked for; None stands for Trainer's AdamW."""
    if asked.optimizer == "adamw":
        return None
    try:
        from pytorch_optimizer import Lamb
    except ImportError as error:
        message = f"optimizer='lamb' needs a package that is not here: pip install pytorch-optimizer ({NOTEBOOK})"
        raise ParameterError(message) from error
    return Lamb, {"lr": asked.learning_rate, "weight_decay": asked.weight_decay}


class Pretrained(NamedTuple):
    """What pretraining leaves."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    history: pd.DataFrame  # a row a logged step: train_loss, learning_rate, mlm_loss, mlm_accuracy, sop_accuracy
    record: dict[str, Any]  # what result.json holds


def pretrain(asked: Pretraining) -> Pretrained:
    """Train, evaluate and save: output_dir/model, history.csv, held-out.csv and, last, result.json.

    A dry run does two steps and an evaluation and writes nothing (but the text's cache).

    Raises:
        ParameterError: output_dir holds another run, or the parameters do not fit a model. CorpusError: see
        `prepare_text`. ModelError: no such model or tokenizer.
    """
    if (finished := Path(asked.output_dir or ".") / "result.json").exists() and not asked.dry_run:
        raise ParameterError(
            f"{finished} is there: the run is finished; delete its folder, or choose another output_dir"
        )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if asked.dry_run else asked.output_dir or ".")
        return train(asked, folder)


def train(asked: Pretraining, folder: Path) -> Pretrained:
    started = environment(asked.device)
    arguments = recipe(asked, folder)
    decisive = asked.what() | {"devices": arguments.world_size}
    with arguments.main_process_first(desc="text"):  # the others find it in the cache
        if not asked.dry_run and arguments.process_index == 0:
            locks.hold(folder)
        checkpoint = None if asked.dry_run else last_checkpoint(asked, decisive)
        material = prepare_text(asked, folder, arguments.world_size)
    model = prepare(asked, material.tokenizer)
    if not asked.start and not checkpoint:
        begin_as_bag_of_words(model, material.sentences)
    trainer = PretrainingTrainer(
        model=model, args=arguments, train_dataset=material.train, eval_dataset=material.held_out,
        data_collator=Collator(material.tokenizer), callbacks=[Clock(), Watch(), Seal(decisive)],
        optimizer_cls_and_kwargs=optimizer_of(asked),
    )  # fmt: skip
    with explain_out_of_memory():
        trainer.train(resume_from_checkpoint=checkpoint)
    scores, coverage = trainer.evaluate(), attended(model, trainer)
    tokens, history = int(trainer.state.num_input_tokens_seen), history_of(trainer)
    record = {
        "status": "complete",
        "schema": SCHEMA,
        "parameters": {**dataclasses.asdict(asked), "output_dir": relative_to_root(folder)},
        "resolved": resolved(asked, trainer),
        "metrics": {name.removeprefix("eval_"): value for name, value in scores.items()},
        "counting": material.baseline,
        "attended_share": coverage.pairs,
        "attention_mass": coverage.mass,
        "tokens": {"text": material.tokens, "trained": tokens},
        "sequences": {"train": len(material.train.sequences), "held_out": len(material.held_out)},
        "parameters_of_model": resolved(asked, trainer)["parameters_of_model"],
        "devices": arguments.world_size,
        **cost_of(trainer, "tokens", tokens, asked.device),
        "environment": started,
    }
    if not asked.dry_run and trainer.is_world_process_zero():
        model.save_pretrained(folder / "model")
        material.tokenizer.save_pretrained(folder / "model")
        write_atomically(folder / "history.csv", history.to_csv(index=False))
        each = trainer.score_each(range(len(material.held_out)))
        write_atomically(folder / "held-out.csv", each.to_csv(index=False))
        write_atomically(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        close_run(asked)
    trainer.accelerator.wait_for_everyone()
    return Pretrained(model, material.tokenizer, history, record)


def given_by(words: list[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ParameterError(f"{word!r} must be name=value, a parameter of {NOTEBOOK}")
        yield name, value


def main(words: list[str]) -> int:
    """The command: name=value ..., as papermill's `-p name value`."""
    try:
        done = pretrain(Pretraining.check(dict(given_by(words))))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if PartialState().is_main_process:
        print(json.dumps({**done.record["metrics"], "tokens_per_second": done.record["tokens_per_second"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
