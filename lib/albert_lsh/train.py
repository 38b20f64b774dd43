"""A fine-tuning run from its parameters to its record, with one recipe for every task and attention.

AdamW, linear warm-up and decay, dynamic padding with batches of similar length (or all texts padded to max_length by
the model, in random order), bf16 autocast where the device is fast
at it, evaluation after every epoch and every `eval_steps`, and checkpoints (see `loop.Watch`). The reported scores are
those after the last step; no checkpoint is chosen by its score. The loop itself is in `loop`.
"""

import copy
import hashlib
import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict
from transformers import EvalPrediction, PreTrainedModel, set_seed

from albert_lsh import metrics, record, squad
from albert_lsh.card import write_card
from albert_lsh.data import encode, load_data, without_answers
from albert_lsh.files import delete, lock, write_atomically
from albert_lsh.interface import max_positions
from albert_lsh.loop import CURVE_POINTS, StudyTrainer, newest, train_loop, training_arguments
from albert_lsh.model.load import (
    extend_positions,
    load_config,
    load_model,
    load_tokenizer,
    switch_attention,
    without_bars,
)
from albert_lsh.model.memory import save_memory
from albert_lsh.model.padding import pad_inputs
from albert_lsh.model.projections import draw_projections, drop_residual
from albert_lsh.predict import predict
from albert_lsh.run import OfTask, ParameterError, Run
from albert_lsh.tasks import SAVED_TASK, Task


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
        ParameterError: its folder holds another run's result or checkpoints, or the model has too few positions.
        FolderInUseError: another process makes it. DivergedError: a loss is not finite.
        ValueError: out of memory, or of room on the disk; data or model that cannot be had.
    """
    folder, task, tokenizer = run.folder, run.about, load_tokenizer(run.model, run.revision)
    with lock(folder), warnings_on_stdout():
        if (folder / "result.json").exists():
            record.check_made(run)
            kept = folder / "model"
            model = load_model(str(kept), head=task.head) if (kept / "config.json").exists() else None
        else:
            data = data or load_data(task, run.data_dir, **run.examples)
            model = make(run, task, tokenizer, data, encoded or encode(data, task, tokenizer, run.max_length))
        delete(folder / "checkpoints")
    result, history = record.read_result(folder / "result.json"), pd.read_csv(folder / "history.csv")
    constant = result["majority"][result["headline"]["name"]]
    if remark := metrics.hardly_trained(history, result["headline"]["value"], constant, 100 if task.is_squad else 1):
        print(remark)
    path = folder / "predictions.parquet"
    predictions = record.read_predictions(path) if path.exists() else None
    return Trained(result, folder, model, tokenizer, history, predictions)


def make(run: Run, task: Task, tokenizer: Any, data: DatasetDict, encoded: DatasetDict) -> PreTrainedModel:
    """Train and score a run's model, and write all that `fit` reads; the record comes last."""
    record.choose_threads(run.device)
    unanswered = without_answers(task) if task.is_own else {}  # read before training: files may change meanwhile
    started, model = record.environment(run.device), prepare_model(run)
    _, first, *others = encoded
    trainer = prepare_trainer(run, model, tokenizer, encoded["train"], encoded[first])
    evaluated: Any = None  # logits of the newest evaluation

    def compute_metrics(seen: EvalPrediction) -> dict[str, float]:
        nonlocal evaluated
        evaluated = seen.predictions
        return metrics.score_split(task, data[first], encoded[first], seen.predictions)

    trainer.compute_metrics = compute_metrics
    identity = run.identity() | {"data": fingerprint(encoded["train"])}  # `data_dir` may hold other data
    history, cost = train_loop(trainer, newest(run.folder / "checkpoints", identity, resume=run.resume))
    cost["examples_per_second"] = len(encoded["train"]) * run.epochs / cost["train_seconds"]
    logits = {first: evaluated}
    logits |= {split: trainer.predict(encoded[split]).predictions for split in others}
    scores, predictions = metrics.score(task, data, encoded, logits)
    coverage = metrics.attended(model, tokenizer, encoded[first])
    sizes = {split: len(rows) for split, rows in data.items()}
    result = record.record_of(run, trainer, task.headline, scores, coverage, cost, sizes, started)
    task = replace(task, no_answer=task.no_answer or (task.is_squad and squad.has_unanswerable(data["train"])))
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = run.max_length  # prediction cuts texts where training did
    for split, rows in unanswered.items():
        answers = predict(model.eval(), tokenizer, task, rows.to_list(), run.batch_size)
        lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
        write_atomically(run.folder / f"answers-{split}.jsonl", lines)
    if run.save_model:
        keep_model(run, model, tokenizer, task)
        result["intervals"] = metrics.intervals(task, predictions)
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
    """The model of a run, with all random numbers seeded, and positions for max_length tokens.

    Raises:
        ParameterError: max_length exceeds the model's positions, which are not to be, or cannot be, extended.
        ValueError: passes that the model does not have; see `load_model`.
    """
    set_seed(run.seed)
    task, source, revision = run.about, run.model, run.revision
    if run.random_weights:
        source, revision = load_config(run.model, revision=revision), None
    chosen: dict[str, Any] = {"settings": run.attention_settings, "seed": run.seed}
    options = {**chosen, **task.model_options, "revision": revision}
    model = load_model(source, head=task.head, attention=run.attention, **options)
    if run.passes is not None:
        switch_attention(model, run.attention, **chosen, passes=run.passes)
    if run.projections == "new":
        draw_projections(model)
    if not run.residual:
        drop_residual(model)
    save_memory(model, recompute=run.recompute, feed_forward_chunk=run.feed_forward_chunk)
    extend_to(run, model)
    return pad_inputs(model, run.max_length) if run.pad_to_max_length else model


def extend_to(run: Run, model: PreTrainedModel) -> None:
    """Give the model of a run positions for max_length tokens; errors as those of `prepare_model`."""
    if run.max_length <= (limit := max_positions(model.config)):
        return
    more = f"max_length={run.max_length} is more than the {limit} positions of model={run.model!r}"
    if not run.extend_positions:
        raise ParameterError(f"{more}; extend_positions=True repeats them, and training has to do the rest")
    try:
        extend_positions(model, run.max_length)
    except ValueError as error:
        raise ParameterError(f"{more}: {error}") from error


def prepare_trainer(
    run: Run, model: PreTrainedModel, tokenizer: Any, train_data: Dataset, eval_data: Dataset
) -> StudyTrainer:
    """The Trainer of a run; the data are encoded."""
    steps = math.ceil(len(train_data) / run.batch_size / run.accumulation)
    for token in ("bos_token_id", "eos_token_id"):  # as Trainer does itself, some releases with a warning
        setattr(model.config, token, getattr(tokenizer, token))
    arguments = training_arguments(
        run,
        run.folder,
        num_train_epochs=run.epochs,
        gradient_accumulation_steps=run.accumulation,
        warmup_steps=run.warmup_share,  # below 1: a share of all steps
        weight_decay=run.weight_decay,
        train_sampling_strategy="random" if run.pad_to_max_length else "group_by_length",
        length_column_name="length",
        logging_steps=max(1, math.ceil(steps * run.epochs) // CURVE_POINTS),
        eval_strategy="epoch",
        eval_steps=run.eval_steps,  # besides, see `Watch`
        save_strategy="epoch",
    )
    trainer = StudyTrainer(
        model=model, args=arguments, train_dataset=train_data, eval_dataset=eval_data, processing_class=tokenizer
    )
    if run.tensorboard:
        from torch.utils.tensorboard import SummaryWriter  # not installed everywhere
        from transformers.integrations import TensorBoardCallback

        trainer.add_callback(TensorBoardCallback(SummaryWriter(run.folder / "logs")))
    return trainer


def keep_model(run: Run, model: PreTrainedModel, tokenizer: Any, task: Task) -> None:
    """Save the trained model, with the parameters that say what its task is, and its tokenizer in output_dir/model."""
    about = {name: value for name, value in run.recorded().items() if name in OfTask.model_fields}
    setattr(model.config, SAVED_TASK, about | {"no_answer": task.no_answer})
    with without_bars():
        model.save_pretrained(run.folder / "model")
    tokenizer.save_pretrained(run.folder / "model")


def fingerprint(data: Dataset) -> str:
    """The SHA-256 of all token ids of encoded data."""
    digest = hashlib.sha256()
    for batch in data.select_columns(["input_ids"]).with_format("arrow").iter(10_000):
        digest.update(pc.list_flatten(batch["input_ids"]).to_numpy().tobytes())
    return digest.hexdigest()
