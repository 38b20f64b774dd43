"""Hugging Face's Trainer, made to resume exactly: a run that was killed ends as if it had not been.

`fit` trains any Trainer from its newest complete checkpoint on. It watches the loss, times the steps, and seals each
checkpoint; `training_arguments` has what all recipes share.
"""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from accelerate import PartialState
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput

from albert_lsh.errors import OneLineError, explain_out_of_memory
from albert_lsh.model.load import without_bars
from albert_lsh.training import bfloat16
from albert_lsh.training.checkpoints import checkpoints_in, prune, seal
from albert_lsh.training.files import explain_disk

CURVE_POINTS = 20  # points of a run's training-loss curve


class Fit(NamedTuple):
    """The result of training."""

    trainer: Trainer  # with the trained model
    history: pd.DataFrame  # one row per logged step: step, epoch, learning_rate, train_loss, eval_loss, metrics
    cost: dict[str, float]  # train_seconds, <unit>_per_second, peak_memory_bytes


class DivergedError(OneLineError):
    """A loss that is not finite; the message names the step."""


class Clock(TrainerCallback, ExportableState):
    """Seconds spent in training steps, without evaluation. Checkpoints keep the count."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def state(self) -> dict[str, dict]:
        return {"args": {}, "attributes": {"seconds": self.seconds}}

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds += time.perf_counter() - self.began


class Watch(TrainerCallback):
    """Logs the training loss before every checkpoint, and stops a run whose loss is not finite.

    Trainer keeps the sum of losses since the last log in memory only; a resumed run would lose it.
    """

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_save

    on_epoch_end = on_step_end

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name, value in (logs or {}).items():
            if name.endswith("loss") and not math.isfinite(value):
                raise DivergedError(
                    f"training diverged: {name}={value} at step {state.global_step} of {state.max_steps} (epoch "
                    f"{state.epoch:.2f}, learning_rate={args.learning_rate:g}); a lower learning_rate may help"
                )


class EvaluateEvery(TrainerCallback):
    """Evaluates and saves every `steps` optimiser steps, besides the end of every epoch."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        at_end_of_epoch = abs(state.epoch - round(state.epoch)) < 1e-6  # Trainer evaluates there itself
        if state.global_step % self.steps == 0 and not at_end_of_epoch:
            control.should_evaluate = control.should_save = True


class Seal(TrainerCallback):
    """Seals each checkpoint after Trainer has written it, then deletes the older ones."""

    def __init__(self, decisive: dict[str, Any]) -> None:
        self.decisive = decisive

    def on_save(self, args, state, control, **kwargs):
        processes = PartialState()
        processes.wait_for_everyone()  # each process writes its own random state
        if processes.is_main_process:
            folder = Path(args.output_dir)
            written = checkpoints_in(folder)[state.global_step]
            seal(written, self.decisive)
            prune(folder, keep=written)


class LengthGrouped(LengthGroupedSampler):
    """Examples in random order, those of a batch of similar length.

    The order depends on seed and epoch alone. Transformers' own sampler draws it from torch's global generator, whose
    state a resumed run restores only after the order is drawn.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int) -> None:
        super().__init__(batch_size, lengths=lengths)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer at the beginning of an epoch, also after a resume."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + 1_000_003 * self.epoch)
        return super().__iter__()


class StudyTrainer(Trainer):
    """Trainer with an order of examples that can be resumed; it evaluates in the order of the data.

    A step of several batches has the mean of their losses. What training evaluates after its last step is kept for the
    first `predict` of the same data.
    """

    train_dataset: Any
    args: TrainingArguments
    last: EvalLoopOutput | None = None  # of training's newest evaluation, until a step or a `predict` follows it

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Classifiers take any argument, so that Trainer thinks that they divide by the examples of a whole step
        # themselves, and adds up the losses of its batches (transformers#37766).
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset=None):
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        lengths = list(self.train_dataset[self.args.length_column_name])  # the argument has lost this column
        batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LengthGrouped(lengths, batch_size, self.args.seed)

    def _get_eval_sampler(self, eval_dataset):
        return SequentialSampler(eval_dataset)

    def training_step(self, *args, **kwargs):
        self.last = None
        with bfloat16.products(self.args):
            return super().training_step(*args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        with bfloat16.products(self.args):
            found = super().evaluation_loop(*args, **kwargs)
        if self.is_in_train:
            self.last = found
        return found

    def predict(self, test_dataset, *args, **kwargs):
        last, self.last = self.last, None
        if last is None or test_dataset is not self.eval_dataset:
            return super().predict(test_dataset, *args, **kwargs)
        return PredictionOutput(last.predictions, last.label_ids, last.metrics)


def training_arguments(asked: Any, folder: Path, **own: Any) -> TrainingArguments:
    """Trainer's arguments: those that all recipes share, and a recipe's `own`.

    Args:
        asked: parameters with seed, batch_size, learning_rate, precision and device.
        folder: of the run; its checkpoints go into folder/checkpoints.
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
        logging_nan_inf_filter=False,  # the filter would hide a loss that is not finite
        restore_callback_states_from_checkpoint=True,
        report_to="none",
        **own,
    )


def fit(
    trainer: Trainer, decisive: dict[str, Any], checkpoint: Path | None, trained: float, unit: str = "examples"
) -> Fit:
    """Train, from a checkpoint on if there is one.

    Args:
        trainer: its checkpoints go into args.output_dir.
        decisive: everything that decides the result; sealed with every checkpoint.
        checkpoint: of `checkpoints.newest(..., decisive)`.
        trained, unit: how many examples (or tokens) the whole run trains on; gives <unit>_per_second.
    Raises:
        DivergedError: a loss is not finite. ValueError: out of memory, or of room on the disk.
    """
    on_gpu = trainer.args.device.type == "cuda"
    for callback in (Clock(), Watch(), Seal(decisive)):
        trainer.add_callback(callback)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    folder = Path(str(trainer.args.output_dir))
    hint = "a smaller batch_size or max_length, recompute=True, or feed_forward_chunk"
    with explain_disk(folder), explain_out_of_memory(hint), without_bars():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    clock = next(c for c in trainer.callback_handler.callbacks if isinstance(c, Clock))  # a resume makes another
    cost = {"train_seconds": clock.seconds, f"{unit}_per_second": trained / clock.seconds}
    return Fit(trainer, history_of(trainer), cost | {"peak_memory_bytes": peak_memory(on_gpu)})


def history_of(trainer: Trainer) -> pd.DataFrame:
    """Trainer's log as a table: one row per step, training loss, evaluation loss and metrics side by side."""
    log = pd.DataFrame(trainer.state.log_history).drop(columns="train_loss", errors="ignore")  # of a whole training
    log = log.rename(columns={"loss": "train_loss"})
    names = ["step", "epoch", "learning_rate", "train_loss", "eval_loss"]
    names += sorted(str(name) for name in log if str(name).startswith("eval_") and name != "eval_loss")
    kept = [name for name in names if name in log and not name.endswith(("_runtime", "_per_second"))]
    table = log[kept].groupby("step", as_index=False).last()
    return table.rename(columns={name: name.removeprefix("eval_") for name in kept if name != "eval_loss"})


def peak_memory(on_gpu: bool) -> int:
    """The most bytes allocated on the GPU, or resident in this process."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        import psutil  # comes with accelerate

        return psutil.Process().memory_info().peak_wset
    import resource  # which Windows does not have

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
