"""Training: Hugging Face's Trainer under one recipe, for every task and attention.

AdamW, linear warm-up and decay, dynamic padding with batches of similar length, bf16 autocast where the device is fast
at it, evaluation after every epoch and every `eval_steps`, a checkpoint at each evaluation, and resume from the
last complete one (see `checkpoints`). The scores reported are those after the last step; no checkpoint is chosen by its
score.
"""

import copy
import hashlib
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow.compute as pc
import torch
from datasets import Dataset
from torch.utils.data import Sampler, SequentialSampler
from transformers import (
    BatchEncoding,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.integrations import TensorBoardCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import get_length_grouped_indices

from albert_lsh.attention import Coverage
from albert_lsh.model.load import extend_positions, load_config, load_model, max_positions
from albert_lsh.model.memory import is_out_of_memory
from albert_lsh.model.passes import mean_attended
from albert_lsh.training.checkpoints import Seal, last_checkpoint
from albert_lsh.training.parameters import ParameterError, Parameters

CURVE_POINTS = 20  # points of the training-loss curve of a run


class Fit(NamedTuple):
    """What training leaves: the trainer with the trained model, its history, and what it took."""

    trainer: Trainer
    history: pd.DataFrame  # one row a logged step: step, epoch, train_loss, eval_loss, learning_rate, metrics
    cost: dict[str, float]  # train_seconds, examples_per_second, peak_memory_bytes


class Clock(TrainerCallback, ExportableState):
    """Seconds spent in training steps, evaluation left out; saved with every checkpoint and so kept on resume."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def state(self) -> dict[str, dict]:
        return {"args": {}, "attributes": {"seconds": self.seconds}}

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds += time.perf_counter() - self.began


class DivergedError(ValueError):
    """A loss that is not finite; the message says where."""


class Watch(TrainerCallback):
    """Logs the training loss before every checkpoint, and stops a run whose loss is not finite.

    Trainer keeps the sum of the losses since the last log in memory only. What is not logged when a checkpoint is
    written would be missing from the mean of a resumed run.
    """

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_save

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_save

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name, value in (logs or {}).items():
            if name.endswith("loss") and not math.isfinite(value):
                raise DivergedError(
                    f"training diverged: {name}={value} at step {state.global_step} of {state.max_steps} (epoch "
                    f"{state.epoch:.2f}, learning_rate={args.learning_rate:g}); a lower learning_rate may help"
                )


class EvaluateEvery(TrainerCallback):
    """Evaluate and save every `steps` optimiser steps, besides the end of every epoch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        at_end_of_epoch = abs(state.epoch - round(state.epoch)) < 1e-6  # Trainer evaluates there by itself
        if state.global_step % self.steps == 0 and not at_end_of_epoch:
            control.should_evaluate = control.should_save = True


class LengthGrouped(Sampler[int]):
    """Examples in random order, those of a batch of similar length.

    The order follows from the seed and the epoch alone. Transformers' own sampler draws it from torch's global
    generator, whose state a resumed run restores only after the order is drawn.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Trainer says which epoch begins, also when it resumes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.epoch)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class StudyTrainer(Trainer):
    """Trainer that can be resumed anywhere, and evaluates in the order of the data."""

    train_dataset: Any
    args: TrainingArguments

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        lengths = list(self.train_dataset[self.args.length_column_name])  # which the one given has lost
        return LengthGrouped(
            lengths, self.args.train_batch_size * self.args.gradient_accumulation_steps, self.args.seed
        )

    def _get_eval_sampler(self, eval_dataset):
        return SequentialSampler(eval_dataset)


def prepare_model(parameters: Parameters, *, head: str, **config) -> PreTrainedModel:
    """The model of a run, with all random numbers seeded, and positions for max_length tokens.

    Raises:
        ParameterError: max_length exceeds its positions, and they are not to be, or cannot be, extended. ValueError:
            passes that it does not have; see `load_model`.
    """
    set_seed(parameters.seed)
    model = load_model(
        load_config(parameters.model) if parameters.random_weights else parameters.model,
        head=head,
        attention=parameters.attention,
        settings=parameters.attention_settings,
        seed=parameters.seed,
        passes=parameters.passes,
        evaluation_settings=parameters.evaluation_settings,
        recompute=parameters.recompute,
        feed_forward_chunk=parameters.feed_forward_chunk,
        **config,
    )
    limit = max_positions(model.config)
    if parameters.max_length <= limit:
        return model
    more = f"max_length={parameters.max_length} is more than the {limit} positions of model={parameters.model!r}"
    if not parameters.extend_positions:
        raise ParameterError(f"{more}; extend_positions=True repeats them, and training has to do the rest")
    try:
        return extend_positions(model, parameters.max_length)
    except ValueError as error:
        raise ParameterError(f"{more}: {error}") from error


def training_arguments(asked: Any, folder: Path, **own: Any) -> TrainingArguments:
    """Trainer's arguments: those that all recipes share, and a recipe's `own`.

    Args:
        asked: parameters of a notebook with seed, batch_size, learning_rate, precision and device.
        folder: of the run, where its checkpoints go.
    """
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        seed=asked.seed,
        data_seed=asked.seed,
        per_device_train_batch_size=asked.batch_size,
        per_device_eval_batch_size=asked.batch_size,
        learning_rate=asked.learning_rate,
        lr_scheduler_type="linear",
        bf16=asked.precision == "bf16",
        fp16=asked.precision == "fp16",
        use_cpu=asked.device == "cpu",
        logging_nan_inf_filter=False,  # which would hide a loss that is no number
        restore_callback_states_from_checkpoint=True,
        report_to="none",
        **own,
    )


def callbacks(parameters: Parameters, decisive: dict[str, Any]) -> list[TrainerCallback]:
    """What watches over a run; TensorBoard only where asked for.

    decisive: all that decides the result, which is sealed with every checkpoint.
    """
    watching: list[TrainerCallback] = [Clock()]
    if parameters.eval_steps:
        watching.append(EvaluateEvery(parameters.eval_steps))
    watching += [Watch(), Seal(decisive)]
    if parameters.tensorboard:
        from torch.utils.tensorboard import SummaryWriter  # not installed everywhere

        watching.append(TensorBoardCallback(SummaryWriter(Path(parameters.output_dir or ".") / "logs")))
    return watching


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    parameters: Parameters,
    train_data: Dataset,
    eval_data: Dataset,
    compute_metrics: Callable[[Any], dict[str, float]],
) -> Fit:
    """Fine-tune a model; resume from the last complete checkpoint of the same run if there is one.

    Args:
        train_data, eval_data: encoded, with input_ids, labels (or start_positions, end_positions), and length.
        compute_metrics: takes Trainer's EvalPrediction, with predictions in the order of eval_data.
    Raises:
        ParameterError: checkpoints of a run with other parameters are in output_dir.
    """
    decisive = parameters.what() | {"data": fingerprint(train_data)}
    steps = math.ceil(len(train_data) / (parameters.batch_size * parameters.accumulation))
    arguments = training_arguments(
        parameters,
        Path(parameters.output_dir or "."),
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
    trainer = StudyTrainer(
        model=model,
        args=arguments,
        train_dataset=train_data,
        eval_dataset=eval_data,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=callbacks(parameters, decisive),
    )
    if parameters.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with explain_out_of_memory():
        trainer.train(resume_from_checkpoint=last_checkpoint(parameters, decisive))
    examples = len(train_data) * parameters.epochs
    return Fit(trainer, history_of(trainer), cost_of(trainer, "examples", examples, parameters.device))


def fingerprint(data: Dataset) -> str:
    """The SHA-256 of the token ids of encoded data: `data_dir` may name other data under the same parameters."""
    digest = hashlib.sha256()
    for batch in data.select_columns(["input_ids"]).with_format("arrow").iter(10_000):
        digest.update(pc.list_flatten(batch["input_ids"]).to_numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Within, an allocation that fails says what takes less memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        less = "a smaller batch_size or max_length, recompute=True, or feed_forward_chunk takes less"
        raise ParameterError(f"out of memory; {less}") from error


def keep_model(parameters: Parameters, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save the trained model and its tokenizer in output_dir/model, if `save_model` asks for it."""
    if parameters.save_model:
        folder, kept = Path(parameters.output_dir or ".") / "model", copy.deepcopy(tokenizer)
        kept.model_max_length = parameters.max_length  # what is predicted is cut where training cut
        model.save_pretrained(folder)
        kept.save_pretrained(folder)


def history_of(trainer: Trainer) -> pd.DataFrame:
    """Trainer's log as a table: one row a step, training loss, evaluation loss and metrics side by side."""
    renamed = {"loss": "train_loss", "eval_loss": "eval_loss", "learning_rate": "learning_rate"}
    rows: dict[int, dict[str, float]] = {}
    for entry in trainer.state.log_history:
        step = int(entry["step"])
        row = rows.setdefault(step, {"step": step, "epoch": entry["epoch"]})
        for name, value in entry.items():
            if name in renamed:
                row[renamed[name]] = value
            elif name.startswith("eval_") and not name.endswith(("_runtime", "_per_second")):
                row[name.removeprefix("eval_")] = value
    table = pd.DataFrame([rows[step] for step in sorted(rows)])
    first = [name for name in ("step", "epoch", "learning_rate", "train_loss", "eval_loss") if name in table]
    return table[[*first, *sorted(str(name) for name in table if name not in first)]]


def cost_of(trainer: Trainer, things: str, count: float, device: str) -> dict[str, float]:
    """What training took: train_seconds, <things>_per_second with `count` of them trained on, peak_memory_bytes."""
    clock = next(c for c in trainer.callback_handler.callbacks if isinstance(c, Clock))
    return {
        "train_seconds": clock.seconds,
        f"{things}_per_second": count / clock.seconds,
        "peak_memory_bytes": peak_memory(device),
    }


def peak_memory(device: str) -> int:
    """Bytes: the most device memory allocated (CUDA), or the most memory resident in this process (CPU)."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Dataset, examples: int
) -> Iterator[BatchEncoding]:
    """Inputs of `examples` examples spread evenly over `data` (of all, if it has fewer), eight at a time."""
    count = min(examples, len(data))
    rows = data.select([number * len(data) // count for number in range(count)])
    rows = rows.select_columns([name for name in tokenizer.model_input_names if name in data.column_names])
    for start in range(0, len(rows), 8):
        batch = rows.select(range(start, min(start + 8, len(rows)))).to_dict()
        yield tokenizer.pad(batch, return_tensors="pt").to(model.device)


def attended(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: Dataset, examples: int = 64) -> Coverage:
    """The shares of pairs and of softmax's mass that the model attends to in evaluation, over all passes and heads."""
    return mean_attended(model, sample(model, tokenizer, data, examples))
