"""Fine-tuning: one recipe for every task and attention.

AdamW, linear warm-up and decay, dynamic padding with batches of similar length, bf16 autocast where the device is fast
at it, evaluation after every epoch and every `eval_steps`, and a checkpoint at each evaluation. The reported scores are
those after the last step; no checkpoint is chosen by its score.
"""

import copy
import hashlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from datasets import Dataset
from transformers import (
    BatchEncoding,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)

from albert_lsh.attention import Coverage
from albert_lsh.checksums import NAME, checksums
from albert_lsh.model.load import (
    extend_positions,
    load_config,
    load_model,
    max_positions,
    switch_attention,
    without_bars,
)
from albert_lsh.model.memory import save_memory
from albert_lsh.model.passes import mean_attended
from albert_lsh.model.projections import draw_projections
from albert_lsh.training.checkpoints import newest
from albert_lsh.training.files import identity_of, write_atomically
from albert_lsh.training.parameters import ParameterError, Parameters
from albert_lsh.training.trainer import (
    CURVE_POINTS,
    EvaluateEvery,
    Fit,
    StudyTrainer,
    fit,
    training_arguments,
)

WORTH = 0.15  # of the way from always the same answer's score to a perfect one
FALLING = 0.1  # share of the loss


def prepare_model(parameters: Parameters, *, head: str, **config) -> PreTrainedModel:
    """The model of a run, with all random numbers seeded, and positions for max_length tokens.

    Args:
        head, config: as in `load_model`.
    Raises:
        ParameterError: max_length exceeds the model's positions, which are not to be, or cannot be, extended.
        ValueError: passes that the model does not have; see `load_model`.
    """
    asked = parameters
    set_seed(asked.seed)
    chosen: dict[str, Any] = {"settings": asked.attention_settings, "seed": asked.seed}
    source = load_config(asked.model) if asked.random_weights else asked.model
    said, log = logging.StreamHandler(sys.stdout), logging.getLogger("albert_lsh")
    if not log.handlers:  # that the head is new is no reason for red in a notebook
        log.addHandler(said)
    try:
        model = load_model(source, head=head, attention=asked.attention, **chosen, **config)
    finally:
        log.removeHandler(said)
    if asked.passes is not None or asked.evaluation_settings:
        chosen |= {"passes": asked.passes, "evaluation_settings": asked.evaluation_settings}
        switch_attention(model, asked.attention, **chosen)
    if asked.projections == "new":
        draw_projections(model)
    save_memory(model, recompute=asked.recompute, feed_forward_chunk=asked.feed_forward_chunk)
    if asked.max_length <= (limit := max_positions(model.config)):
        return model
    more = f"max_length={asked.max_length} is more than the {limit} positions of model={asked.model!r}"
    if not asked.extend_positions:
        raise ParameterError(f"{more}; extend_positions=True repeats them, and training has to do the rest")
    try:
        return extend_positions(model, asked.max_length)
    except ValueError as error:
        raise ParameterError(f"{more}: {error}") from error


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parameters: Parameters,
    train_data: Dataset,
    eval_data: Dataset,
    compute_metrics: Callable[[Any], dict[str, float]],
) -> Fit:
    """Fine-tune a model; resume from the newest complete checkpoint of the same run if there is one.

    Args:
        train_data, eval_data: encoded, with input_ids, labels (or start_positions, end_positions), and length.
        compute_metrics: takes Trainer's EvalPrediction, with predictions in the order of eval_data.
    Raises:
        ParameterError: output_dir holds checkpoints of a run with other parameters.
        ValueError: out of memory. DivergedError: a loss is not finite.
    """
    steps = math.ceil(len(train_data) / parameters.batch_size / parameters.accumulation)
    folder = Path(parameters.output_dir or ".")
    arguments = training_arguments(
        parameters,
        folder,
        num_train_epochs=parameters.epochs,
        gradient_accumulation_steps=parameters.accumulation,
        warmup_steps=parameters.warmup_share,  # below 1: a share of all steps
        weight_decay=parameters.weight_decay,
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        logging_steps=max(1, math.ceil(steps * parameters.epochs) // CURVE_POINTS),
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    for token in ("bos_token_id", "eos_token_id"):  # as Trainer does itself, some releases with a warning
        setattr(model.config, token, getattr(tokenizer, token))
    trainer = StudyTrainer(
        model=model,
        args=arguments,
        train_dataset=train_data,
        eval_dataset=eval_data,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=callbacks(parameters),
    )
    decisive = identity_of(parameters) | {"data": fingerprint(train_data)}
    checkpoint = newest(folder / "checkpoints", decisive, resume=parameters.resume)
    return fit(trainer, decisive, checkpoint, trained=len(train_data) * parameters.epochs)


def hardly_trained(history: pd.DataFrame, score: float, constant: float, best: float = 1.0) -> str | None:
    """What speaks against taking a score for what the attention can do, in a sentence; None if nothing does.

    Either the score is closer to always the same answer's than WORTH of the way to a perfect one, or the training loss
    still fell by FALLING between the last two quarters of training.

    Args:
        history: of `Fit`. score, constant: the run's headline, and that of always the same answer. best: a perfect one.
    """
    reasons = []
    if score - constant < WORTH * (best - constant):
        reasons.append(f"the score, {score:.3g}, is near that of always the same answer, {constant:.3g}")
    losses = history["train_loss"].dropna().to_numpy()
    third, last = (part.mean() for part in np.array_split(losses, 4)[2:]) if len(losses) >= 4 else (0.0, 0.0)
    if last < (1 - FALLING) * third:
        reasons.append(f"the training loss is still falling ({third:.3g} to {last:.3g} in the last half)")
    how = "more epochs, more examples or another learning_rate may change it"
    return f"hardly trained: {'; '.join(reasons)}; {how}" if reasons else None


def callbacks(parameters: Parameters) -> list[TrainerCallback]:
    """What `eval_steps` and `tensorboard` ask for."""
    found: list[TrainerCallback] = [EvaluateEvery(parameters.eval_steps)] if parameters.eval_steps else []
    if parameters.tensorboard:
        from torch.utils.tensorboard import SummaryWriter  # not installed everywhere
        from transformers.integrations import TensorBoardCallback

        found.append(TensorBoardCallback(SummaryWriter(Path(parameters.output_dir or ".") / "logs")))
    return found


def fingerprint(data: Dataset) -> str:
    """The SHA-256 of all token ids: the same parameters may name other data (`data_dir`)."""
    digest = hashlib.sha256()
    for batch in data.select_columns(["input_ids"]).with_format("arrow").iter(10_000):
        digest.update(pc.list_flatten(batch["input_ids"]).to_numpy().tobytes())
    return digest.hexdigest()


def keep_model(parameters: Parameters, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save the trained model and its tokenizer in output_dir/model, if `save_model` asks for it."""
    if parameters.save_model:
        folder, kept = Path(parameters.output_dir or ".") / "model", copy.deepcopy(tokenizer)
        kept.model_max_length = parameters.max_length  # prediction cuts texts where training did
        with without_bars():
            model.save_pretrained(folder)
        kept.save_pretrained(folder)
        write_atomically(folder / NAME, json.dumps(checksums(folder), indent=1))


def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Dataset, examples: int
) -> Iterator[BatchEncoding]:
    """Inputs of `examples` examples spread evenly over `data` (all, if it has fewer), eight at a time."""
    count = min(examples, len(data))
    rows = data.select([number * len(data) // count for number in range(count)])
    rows = rows.select_columns([name for name in tokenizer.model_input_names if name in data.column_names])
    for start in range(0, len(rows), 8):
        batch = rows.select(range(start, min(start + 8, len(rows)))).to_dict()
        yield tokenizer.pad(batch, return_tensors="pt").to(model.device)


def attended(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Dataset, examples: int = 64) -> Coverage:
    """What the model attends to in evaluation, over all passes and heads of some examples.

    Pairs and cost are shares of what softmax has on the whole texts: with max_length=16 an attention that sees every
    pair of 16 tokens sees a quarter of those of a text of 32.
    """
    seen = mean_attended(model, sample(model, tokenizer, data, examples))
    if "whole_length" not in data.column_names:  # SQuAD's windows leave nothing out
        return seen
    length, whole = (np.array(data[name], dtype=float) for name in ("length", "whole_length"))
    kept = float((length**2).sum() / (whole**2).sum())
    return seen._replace(pairs=seen.pairs * kept, cost=seen.cost * kept)
