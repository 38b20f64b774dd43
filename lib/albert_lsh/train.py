"""A fine-tuning run from its parameters to its record, with one recipe for every task and attention.

AdamW, linear warm-up and decay, dynamic padding with batches of similar length (or all texts padded to max_length by
the model, in random order), bf16 autocast where the device is fast at it, evaluation after every epoch, and
checkpoints. The reported scores are those after the last step; no checkpoint is chosen by its score.

The loop below is shared by all recipes, those of the study's experiments too. A run that was killed ends as if it had
not been: the order of examples depends on seed and epoch alone, losses are logged before every checkpoint, and a
checkpoint counts once its trainer_state.json, which Trainer writes last, is whole.
"""

import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from datasets import Dataset, DatasetDict
from torch.utils.data import SequentialSampler
from tqdm import tqdm
from transformers import EvalPrediction, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import LengthGroupedSampler

from albert_lsh import machine, metrics, record
from albert_lsh.card import write_card
from albert_lsh.data import encode, load_data, token_digest
from albert_lsh.encoders import max_positions
from albert_lsh.files import OneLineError, delete, explain_out_of_memory, lock, write_atomically
from albert_lsh.interface import ModelAttention
from albert_lsh.kinds import SAVED_TASK, Task
from albert_lsh.model.load import extend_positions, load_config, load_model, load_tokenizer, without_bars
from albert_lsh.model.memory import recompute_activations
from albert_lsh.model.padding import pad_inputs
from albert_lsh.model.projections import PROJECTIONS, draw_projections, drop_residual
from albert_lsh.run import OfTask, ParameterError, Run, fastest_precision
from albert_lsh.sources import without_answers

WARMUP, WEIGHT_DECAY = 0.1, 0.01  # of a fine-tuning run; the warm-up as a share of all steps
CURVE_POINTS = 20  # points of a run's training-loss curve
SAVE_AFTER = 600  # seconds after which a logged loss is followed by a checkpoint
# What loading a damaged checkpoint raises.
UNREADABLE = "PytorchStreamReader|deserializing|UnpicklingError|EOFError|JSONDecodeError"
# What `accelerate launch` or a shell may set, and what Trainer would train otherwise by than the parameters say.
OTHER_WAYS = ("ACCELERATE_DYNAMO_", "ACCELERATE_GRADIENT_", "ACCELERATE_USE_")
tqdm.monitor_interval = 0  # no thread that watches bars: where memory is out, Python waits for ever for it to begin
logging.getLogger("transformers.trainer_utils").setLevel(logging.ERROR)  # it warns of checkpoints made within a second


class DivergedError(OneLineError):
    """A loss that is not finite; the message names the step."""


class Trained(NamedTuple):
    """A run that is made."""

    record: dict[str, Any]  # what result.json says
    folder: Path
    model: PreTrainedModel | None  # None where it was trained before, and not kept
    tokenizer: Any
    history: pd.DataFrame  # one row per logged step: step, epoch, learning_rate, train_loss, eval_loss, metrics
    predictions: pd.DataFrame | None  # see `record`; None of a record that is older than they are


def fit(run: Run, data: DatasetDict | None = None, encoded: DatasetDict | None = None) -> Trained:
    """Make a run: train from its newest checkpoint on, score, and write its record. One that is made stays as it is.

    Args:
        data, encoded: of `load_data` and `encode`, where several runs share them.
    Raises:
        ParameterError: its folder holds another run's result or checkpoints, the model has too few positions, or this
            is one of several processes. FolderInUseError: another process makes it. DivergedError: a loss is not
            finite. ValueError: out of memory; data or model that cannot be had.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        alone = "start it without torchrun or accelerate launch; `make study` makes several runs at a time"
        raise ParameterError(f"a run is made by one process, and this is one of {os.environ['WORLD_SIZE']}; {alone}")
    folder, task, tokenizer = run.folder, run.about, load_tokenizer(run.model, run.revision)
    tokenizer.model_max_length = run.max_length  # prediction cuts texts where training did
    with lock(folder), warnings_on_stdout():
        if (folder / "result.json").exists():
            record.check_made(run)
            kept = folder / "model"
            model = load_model(str(kept), head=task.head) if (kept / "config.json").exists() else None
        else:
            data = data or load_data(task, **run.examples)
            model = make(run, task, tokenizer, data, encoded or encode(data, task, tokenizer, run.max_length))
        delete(folder / "checkpoints")
    result, history, predictions = record.read_run(folder)
    constant = result["majority"][result["headline"]["name"]]
    if remark := metrics.hardly_trained(history, result["headline"]["value"], constant, task.perfect):
        print(remark)
    return Trained(result, folder, model, tokenizer, history, predictions)


def make(run: Run, task: Task, tokenizer: Any, data: DatasetDict, encoded: DatasetDict) -> PreTrainedModel:
    """Train and score a run's model, and write all that `fit` reads; the record comes last."""
    machine.choose_threads(run.device)
    unanswered = without_answers(task) if task.is_own else {}  # read before training: files may change meanwhile
    started, model = machine.environment(run.device), prepare_model(run)
    _, first, *others = encoded
    trainer = prepare_trainer(run, model, tokenizer, encoded["train"], encoded[first])
    evaluated: Any = None  # logits of the newest evaluation

    def compute_metrics(seen: EvalPrediction) -> dict[str, float]:
        nonlocal evaluated
        evaluated = seen.predictions
        return task.score_split(data[first], encoded[first], seen.predictions)

    trainer.compute_metrics = compute_metrics
    identity = run.identity() | {"data": token_digest(encoded["train"])}  # of a name there may be other data
    history, cost = train_loop(trainer, newest(run.folder / "checkpoints", identity, resume=run.resume))
    cost["examples_per_second"] = len(encoded["train"]) * run.epochs / cost["train_seconds"]
    logits, trainer.compute_metrics = {first: evaluated}, None  # which scores the first split alone
    logits |= {split: trainer.predict(encoded[split]).predictions for split in others}
    scores, predictions = task.score(data, encoded, logits)
    coverage = metrics.attended(model, tokenizer, encoded[first])
    sizes = {split: len(rows) for split, rows in data.items()}
    result = record.record_of(run, trainer, task.headline, scores, coverage, cost, sizes, started)
    task = task.learnt(data["train"])
    for split, rows in unanswered.items():
        answers = task.answer(model.eval(), tokenizer, rows.to_list(), run.batch_size)
        lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
        write_atomically(run.folder / f"answers-{split}.jsonl", lines)
    if run.save_model:
        keep_model(run, model, tokenizer, task)
        result["intervals"] = metrics.intervals(predictions, task.mean_scores)
        write_card(run.folder / "model", result)
    record.write_result(run.folder, result, history, predictions)
    return model


@contextmanager
def warnings_on_stdout() -> Iterator[None]:
    """The library's warnings as plain text: that a head is new is no reason for red in a notebook."""
    log, handler = logging.getLogger("albert_lsh"), logging.StreamHandler(sys.stdout)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def prepare_model(run: Run) -> PreTrainedModel:
    """The model of a run, with all random numbers seeded, float32 weights, and positions for max_length tokens.

    Raises:
        ParameterError: max_length exceeds the model's positions, which are not to be, or cannot be, extended; see
            `check_start`.
        ValueError: see `load_model`.
    """
    set_seed(run.seed)
    source, revision = (
        (load_config(run.model, revision=run.revision), None) if run.random_weights else (run.model, run.revision)
    )
    task, options = run.about, dict[str, Any](output_hidden_states=False)  # logits alone
    if run.attention_dropout is not None:
        config, name = load_config(run.model, revision=run.revision), "attention_probs_dropout_prob"
        options[name if hasattr(config, name) else "attention_dropout"] = run.attention_dropout
    chosen: dict[str, Any] = {"attention": run.attention, "settings": run.attention_settings, "seed": run.seed}
    model = load_model(source, head=task.head, revision=revision, **chosen, **options, **task.model_options)
    check_start(run, model)
    model.float()  # of a file in half precision: a step of 2e-5 moves no weight of these
    if run.projections:
        draw_projections(model, PROJECTIONS if run.projections == "new" else run.projections)
    if not run.residual:
        drop_residual(model)
    if run.recompute:
        recompute_activations(model)
    if run.max_length > (limit := max_positions(model.config)):
        more = f"max_length={run.max_length} is more than the {limit} positions of model={run.model!r}"
        if not run.extend_positions:
            raise ParameterError(f"{more}; extend_positions=True repeats them, and training has to do the rest")
        try:
            extend_positions(model, run.max_length)
        except ValueError as error:
            raise ParameterError(f"{more}: {error}") from error
    return pad_inputs(model, run.max_length) if run.pad_to_max_length else model


def check_start(run: Run, model: PreTrainedModel) -> None:
    """Raise ParameterError for a model that was changed before, where the run's record would not say so."""
    kept, padded = ModelAttention.of(model.config, run.model), getattr(model.config, "padded_length", None)
    what = f"but model={run.model!r}"
    if run.residual and not kept["residual"]:
        raise ParameterError(f"residual=True, {what} has no residual connection around attention; say residual=False")
    if padded and not run.pad_to_max_length:
        pads = f"pads its inputs, to {padded} tokens"
        raise ParameterError(f"pad_to_max_length=False, {what} {pads}; say pad_to_max_length=True")
    if kept["passes"] is not None:
        first = f"switch_attention(model, {run.attention!r}, ...) and save it first"
        raise ParameterError(
            f"attention={run.attention!r} is that of all passes, {what} has it in {kept['passes']} alone; {first}"
        )


def prepare_trainer(
    run: Run, model: PreTrainedModel, tokenizer: Any, train_data: Dataset, eval_data: Dataset
) -> "StudyTrainer":
    """The Trainer of a run; the data are encoded."""
    steps = math.ceil(len(train_data) / run.batch_size / run.accumulation)
    for token in ("bos_token_id", "eos_token_id"):  # as Trainer does itself, some releases with a warning
        setattr(model.config, token, getattr(tokenizer, token))
    arguments = training_arguments(
        run, run.folder, num_train_epochs=run.epochs, gradient_accumulation_steps=run.accumulation,
        warmup_steps=WARMUP, weight_decay=WEIGHT_DECAY,
        train_sampling_strategy="random" if run.pad_to_max_length else "group_by_length", length_column_name="length",
        logging_steps=max(1, math.ceil(steps * run.epochs) // CURVE_POINTS),
        eval_strategy="epoch", save_strategy="epoch",
    )  # fmt: skip
    return StudyTrainer(
        model=model, args=arguments, train_dataset=train_data, eval_dataset=eval_data, processing_class=tokenizer
    )


def keep_model(run: Run, model: PreTrainedModel, tokenizer: Any, task: Task) -> None:
    """Save the trained model, with the parameters that say what its task is, and its tokenizer in output_dir/model."""
    about = {name: value for name, value in run.recorded().items() if name in OfTask.model_fields}
    setattr(model.config, SAVED_TASK, about | {"no_answer": task.no_answer})
    with without_bars():
        model.save_pretrained(run.folder / "model")
    tokenizer.save_pretrained(run.folder / "model")


# The loop ---------------------------------------------------------------------------------------------------------


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
    """Trainer's arguments: those that all recipes share, and those of one. They win over accelerate's environment.

    Args:
        run: parameters with seed, batch_size, learning_rate, precision and device.
        folder: of the run; its checkpoints go into folder/checkpoints.
    """
    if (run.precision, run.device) == ("bf16", "cpu") and fastest_precision("cpu") != "bf16":
        print('bf16 is slow on this processor, which does not compute in it; precision="fp32" is faster')
    for name in [name for name in os.environ if name.startswith(OTHER_WAYS)]:
        del os.environ[name]
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no" if run.precision == "fp32" else run.precision
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"), save_total_limit=1, seed=run.seed, data_seed=run.seed,
        per_device_train_batch_size=run.batch_size, per_device_eval_batch_size=run.batch_size,
        learning_rate=run.learning_rate, lr_scheduler_type="linear",
        bf16=run.precision == "bf16", fp16=run.precision == "fp16", use_cpu=run.device == "cpu",
        logging_nan_inf_filter=False,  # the filter would hide a loss that is not finite
        restore_callback_states_from_checkpoint=True, report_to="none", **recipe,
    )  # fmt: skip
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # else batch_size would be that of each GPU, and a step's another
    return arguments


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

    Trainer keeps the sum of losses since the last log in memory only; a resumed run would lose it. Trainer saves when
    it evaluates; here a single process also saves when a loss is logged and the last checkpoint is ten minutes old, so
    that a machine that is lost takes little of a long epoch along. Several processes do not: their clocks would not
    agree on the step, and one would wait for the others. After the last step the checkpoint comes first, since an
    evaluation may take an hour: `train_loop` evaluates then.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        self.saved = time.monotonic()

    on_save = on_train_begin

    def on_step_end(self, args, state, control, **kwargs):
        is_late = time.monotonic() - self.saved > SAVE_AFTER
        control.should_save |= control.should_log and is_late and args.world_size == 1
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
        with suppress(OSError, ValueError):  # it was not written, or copied, to its end
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
            for name in ("optimizer.pt", "scheduler.pt"):  # without one of them Trainer begins that anew, silently
                (checkpoint / name).stat()
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
    less = "a smaller batch_size or max_length, or recompute=True"
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
    cost = {"train_seconds": clock.seconds, "peak_memory_bytes": machine.peak_memory(on_gpu)}
    return record.history_of(trainer.state.log_history), cost
