"""The training loop that all recipes share: Transformers' Trainer, its arguments, what it logs, and its checkpoints.

A run that was killed ends as if it had not been. The order of examples depends on seed and epoch alone, losses are
logged before every checkpoint, and a checkpoint counts once its trainer_state.json, which Trainer writes last, is
whole.
"""

import json
import logging
import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils.data import SequentialSampler
from tqdm import tqdm
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler

from albert_lsh import record
from albert_lsh.files import OneLineError, delete, explain_out_of_memory, write_atomically
from albert_lsh.model.load import without_bars
from albert_lsh.run import ParameterError

CURVE_POINTS = 20  # points of a run's training-loss curve
UNREADABLE = "PytorchStreamReader|deserializing|UnpicklingError|EOFError"  # what loading a damaged checkpoint raises
SAVE_AFTER = 600  # seconds after which a logged loss is followed by a checkpoint
tqdm.monitor_interval = 0  # no thread that watches bars: where memory is out, Python waits for ever for it to begin
logging.getLogger("transformers.trainer_utils").setLevel(logging.ERROR)  # it warns of checkpoints made within a second


class DivergedError(OneLineError):
    """A loss that is not finite; the message names the step."""


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
    """Trainer with an order of examples that can be resumed; it evaluates in the order of the data, in float32.

    A step of several batches has the mean of their losses.
    """

    train_dataset: Any
    args: TrainingArguments

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

    def prediction_step(self, model, *args, **kwargs):
        """Without the autocast that accelerate put around `forward`: bfloat16 leaves logits two or three digits."""
        autocast = model.forward
        model.forward = getattr(model, "_original_forward", autocast)
        try:
            return super().prediction_step(model, *args, **kwargs)
        finally:
            model.forward = autocast


def training_arguments(run: Any, folder: Path, **recipe: Any) -> TrainingArguments:
    """Trainer's arguments: those that all recipes share, and those of one.

    Args:
        run: parameters with seed, batch_size, learning_rate, precision and device.
        folder: of the run; its checkpoints go into folder/checkpoints.
    """
    computes = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if (run.precision, run.device) == ("bf16", "cpu") and not computes:
        print('bf16 is slow on this processor, which does not compute in it; precision="fp32" is faster')
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        save_total_limit=1,
        seed=run.seed,
        data_seed=run.seed,
        per_device_train_batch_size=run.batch_size,
        per_device_eval_batch_size=run.batch_size,
        learning_rate=run.learning_rate,
        lr_scheduler_type="linear",
        bf16=run.precision == "bf16",
        fp16=run.precision == "fp16",
        use_cpu=run.device == "cpu",
        logging_nan_inf_filter=False,  # the filter would hide a loss that is not finite
        restore_callback_states_from_checkpoint=True,
        report_to="none",
        **recipe,
    )


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

    Trainer keeps the sum of losses since the last log in memory only; a resumed run would lose it. Trainer evaluates at
    the end of every epoch, or every `eval_steps`; here it does both. Trainer saves when it evaluates; here a single
    process also saves when a loss is logged and the last checkpoint is ten minutes old, so that a machine that is lost
    takes little of a long epoch along. Several processes do not: their clocks would not agree on the step, and one
    would wait for the others. After the last step the checkpoint comes first, since an evaluation may take an hour:
    `train_loop` evaluates then.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        self.saved = time.monotonic()

    on_save = on_train_begin

    def on_step_end(self, args, state, control, **kwargs):
        is_late = time.monotonic() - self.saved > SAVE_AFTER
        control.should_save |= control.should_log and is_late and args.world_size == 1
        within_epoch = args.eval_strategy == "epoch" and abs(state.epoch - round(state.epoch)) > 1e-6
        if within_epoch and args.eval_steps and state.global_step % args.eval_steps == 0:
            control.should_evaluate = control.should_save = True
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_save
        control.should_evaluate &= state.global_step < state.max_steps

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name, value in (logs or {}).items():
            if name.endswith("loss") and not math.isfinite(value):
                raise DivergedError(
                    f"training diverged: {name}={value} at step {state.global_step} of {state.max_steps} (epoch "
                    f"{state.epoch:.2f}, learning_rate={args.learning_rate:g}); a lower learning_rate may help"
                )


def newest(folder: Path, identity: dict[str, Any], *, resume: bool = True) -> Path | None:
    """The newest complete checkpoint in a folder; None if there is none. Prints its step.

    The run's parameters are written there before its first step, and read again here.

    Args:
        folder: of the checkpoints; need not exist.
        identity: everything that decides the run's result.
        resume: False deletes the folder first, to start anew.
    Raises:
        ParameterError: the checkpoints are of a run with other parameters, or do not say of which.
    """
    if not resume:
        delete(folder)
    steps = {int(path.name[11:]): path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()}
    file, identity = folder / "run.json", json.loads(json.dumps(identity))
    if not file.exists() and not steps:
        write_atomically(file, json.dumps(identity, indent=1) + "\n")
    anew = "delete that folder, choose another output_dir, or set resume=False to start anew"
    try:
        previous = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ParameterError(f"{folder} holds checkpoints that do not say of which run ({error}); {anew}") from error
    if other := sorted(k for k in identity.keys() | previous.keys() if identity.get(k) != previous.get(k)):
        raise ParameterError(f"{folder} holds checkpoints of a run with another {', '.join(other)}; {anew}")
    for step, checkpoint in sorted(steps.items(), reverse=True):
        with suppress(OSError, ValueError):  # it was not written to its end
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
            print(f"going on after step {step}, from {checkpoint.name}")
            return checkpoint
    return None


def train_loop(trainer: Trainer, checkpoint: Path | None) -> tuple[pd.DataFrame, dict[str, float]]:
    """Train, from a checkpoint of `newest` on if there is one, and evaluate. The trained model computes in float32.

    Args:
        trainer: its arguments are of `training_arguments`.
    Returns:
        The history, see `Trained`; and the cost: train_seconds and peak_memory_bytes.
    Raises:
        DivergedError: a loss is not finite. ValueError: out of memory; a damaged checkpoint.
    """
    on_gpu = trainer.args.device.type == "cuda"
    for callback in (Clock(), Watch()):
        trainer.add_callback(callback)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    less = "a smaller batch_size or max_length, recompute=True, or feed_forward_chunk"
    with explain_out_of_memory(less), without_bars():
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Exception as error:
            if checkpoint and re.search(UNREADABLE, f"{type(error).__name__}: {error}"):
                raise ValueError(f"{checkpoint} is damaged ({type(error).__name__}); delete it, and go on") from error
            raise
        model: Any = trainer.model
        model.forward = getattr(model, "_original_forward", model.forward)  # accelerate leaves its autocast there
        trainer.evaluate()
    clock = next(c for c in trainer.callback_handler.callbacks if isinstance(c, Clock))  # a resume makes another
    return history_of(trainer), {"train_seconds": clock.seconds, "peak_memory_bytes": record.peak_memory(on_gpu)}


def history_of(trainer: Trainer) -> pd.DataFrame:
    """Trainer's log as a table: one row per step, training loss, evaluation loss and metrics side by side."""
    log = pd.DataFrame(trainer.state.log_history).drop(columns="train_loss", errors="ignore")  # of a whole training
    log = log.rename(columns={"loss": "train_loss"})
    names = ["step", "epoch", "learning_rate", "train_loss", "eval_loss"]
    names += sorted(str(name) for name in log if str(name).startswith("eval_") and name != "eval_loss")
    kept = [name for name in names if name in log and not name.endswith(("_runtime", "_per_second"))]
    table = log[kept].groupby("step", as_index=False).last()
    return table.rename(columns={name: name.removeprefix("eval_") for name in kept if name != "eval_loss"})
