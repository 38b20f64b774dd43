"""Pretraining an ALBERT with any of our attentions, or continuing with another one or with longer positions.

`pretrain` is what notebooks/pretrain.ipynb calls, and what several devices run as a script:

    accelerate launch --num_processes 2 -m albert_study.pretraining.pretrain text=corpus.txt size=nano attention=lsh

Hugging Face's Trainer does the training, on one device or many (see `trainer`). An interrupted run resumes from its
last complete checkpoint; one is written every `eval_steps`.
"""

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from accelerate import PartialState
from datasets import Dataset
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from albert_lsh.files import delete, lock, write_atomically
from albert_lsh.model.layers import save_memory
from albert_lsh.model.load import extend_positions, load_model, load_tokenizer, max_positions, without_bars
from albert_lsh.model.passes import mean_attended
from albert_lsh.record import SCHEMA, differences, environment, resolved
from albert_lsh.run import ParameterError
from albert_lsh.train import CURVE_POINTS, history_of, newest, train_loop, training_arguments
from albert_lsh.training.parameters import recorded
from albert_study.pretraining.corpus import CorpusError, count_pieces, load_text, pack, tokenise, train_tokenizer
from albert_study.pretraining.first_weights import begin_as_bag_of_words
from albert_study.pretraining.objectives import IGNORED, Pieces, Sequences
from albert_study.pretraining.parameters import PRETRAIN_NOTEBOOK, SIZES, Pretraining
from albert_study.pretraining.trainer import PretrainingTrainer

EXAMINED_SEQUENCES = 32  # held-out sequences in which attended pairs are counted
POSITIONS = 512  # learned by a new model, or max_length if that is more


class Material(NamedTuple):
    """What a model is trained with."""

    tokenizer: PreTrainedTokenizerBase
    train: Sequences
    held_out: Sequences
    sentences: Dataset  # before the held-out ones
    tokens: int  # of the text
    counting: dict[str, float]  # scores of counting pieces


def prepare_text(asked: Pretraining, folder: Path, devices: int = 1) -> Material:
    """The text, tokenised and packed; its last sequences, a tenth at most, are held out.

    Args:
        folder: of the run; keeps a tokenizer that is learned from the text.
        devices: that train, each with batch_size sequences.
    Raises:
        CorpusError: a text that is not there, cannot be read, or is too short for two sequences.
        ModelError: no such tokenizer.
    """
    text = load_text(asked.text, asked.text_column, asked.text_config, asked.cache_dir)
    named, kept = asked.start or asked.tokenizer, folder / "tokenizer"
    partial = folder / "tokenizer.partial"
    if not named and (partial.exists() or not kept.exists()):  # both: renaming was copying, and was cut off
        delete(kept)
        train_tokenizer(text, asked.vocabulary).save_pretrained(partial)
        partial.rename(kept)
    tokenizer = load_tokenizer(named or str(kept))
    sentences = tokenise(text, tokenizer)
    packed = pack(sentences, asked.max_length, asked.seed)
    if len(packed) < 2:
        raise CorpusError(
            f"text={asked.text!r} is too short: {len(packed)} sequence(s) of up to {asked.max_length} tokens, and "
            "two are needed, one of them to be held out"
        )
    n = len(packed) - min(asked.eval_sequences, max(1, len(packed) // 10))
    per_step = asked.batch_size * asked.accumulation * devices
    same = (per_step, asked.max_length, Pieces.of(tokenizer), asked.seed)
    train = Sequences(sentences, packed[:n], asked.steps * per_step, *same, asked.masked_share)
    held_out = Sequences(sentences, packed[n:], len(packed) - n, *same)
    counts, before = count_pieces(sentences, len(tokenizer)), sentences.select(range(packed[n, 0]))
    return Material(tokenizer, train, held_out, before, int(counts.sum()), counting_scores(counts, held_out))


def counting_scores(counts: np.ndarray, held_out: Sequences) -> dict[str, float]:
    """The scores of a model that knows how often each piece occurs, and nothing else.

    `mlm_loss` in nats and `mlm_accuracy`, on the masked tokens of the held-out sequences; `sop_accuracy` of a coin.
    """
    share = (counts + 1) / (counts + 1).sum()
    labels = np.concatenate([held_out[i]["labels"] for i in range(len(held_out))])
    labels = labels[labels != IGNORED]
    accuracy = float((labels == counts.argmax()).mean())
    return {"mlm_loss": float(-np.log(share[labels]).mean()), "mlm_accuracy": accuracy, "sop_accuracy": 0.5}


def prepare_albert(asked: Pretraining, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A new model of this size, or that of `start`, with the attention; its positions reach max_length.

    Raises:
        ModelError: no such `start`. ParameterError: `start` is no ALBERT, whose objectives these are.
    """
    set_seed(asked.seed)
    width = SIZES[asked.size]
    config = AlbertConfig(
        **width, intermediate_size=4 * width["hidden_size"], embedding_size=128, vocab_size=len(tokenizer),
        max_position_embeddings=max(POSITIONS, asked.max_length),
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    chosen: dict[str, Any] = {"attention": asked.attention, "settings": asked.attention_settings, "seed": asked.seed}
    model = load_model(asked.start or config, head="pretraining", **chosen)
    if not isinstance(model, AlbertForPreTraining):
        raise ParameterError(
            f"start={asked.start!r} is of type {model.config.model_type}, not albert ({PRETRAIN_NOTEBOOK})"
        )
    save_memory(model, recompute=asked.recompute, feed_forward_chunk=asked.feed_forward_chunk)
    return model if asked.max_length <= max_positions(model.config) else extend_positions(model, asked.max_length)


def pretraining_arguments(asked: Pretraining, folder: Path) -> TrainingArguments:
    """The recipe as Trainer takes it. A dry run is evaluated at its end only, and writes no checkpoint."""
    when: Any = "no" if asked.dry_run else "steps"
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
        eval_strategy=when,
        eval_on_start=not asked.dry_run,  # scores of the first weights
        eval_steps=asked.eval_steps,
        save_strategy=when,
        save_steps=asked.eval_steps,
        remove_unused_columns=False,
    )


def optimizer_of(asked: Pretraining) -> tuple[type, dict[str, Any]] | None:
    """LAMB (You et al. 2020), if asked for; None stands for Trainer's AdamW."""
    if asked.optimizer == "adamw":
        return None
    from pytorch_optimizer import Lamb  # not among the requirements: nothing else needs it

    return Lamb, {"lr": asked.learning_rate, "weight_decay": asked.weight_decay}


class Pretrained(NamedTuple):
    """The result of pretraining."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    history: pd.DataFrame  # one row per logged step: train_loss, learning_rate, mlm_loss, mlm_accuracy, sop_accuracy
    record: dict[str, Any]  # what result.json holds


def pretrain(asked: Pretraining) -> Pretrained:
    """Train, evaluate and save: output_dir/model, history.csv, held-out.csv and, last, result.json.

    A finished run is read instead. A dry run does two steps and an evaluation, and writes nothing but the cache of the
    text.

    Raises:
        ParameterError: output_dir holds another run, or the parameters do not fit a model. CorpusError: see
        `prepare_text`. ModelError: no such model or tokenizer. DivergedError: a loss is not finite.
    """
    finished = Path(asked.output_dir or ".") / "result.json"
    if finished.exists() and not asked.dry_run:
        return read_finished(asked, finished)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if asked.dry_run else finished.parent)
        started, arguments = environment(asked.device), pretraining_arguments(asked, folder)
        decisive = asked.identity() | {"devices": arguments.world_size}
        with arguments.main_process_first(local=False, desc="text"):  # the others find it in folder and cache
            if not asked.dry_run and arguments.process_index == 0:
                stack.enter_context(lock(folder))
            checkpoint = newest(folder / "checkpoints", decisive, resume=asked.resume)
            material = prepare_text(asked, folder, arguments.world_size)
        model = prepare_albert(asked, material.tokenizer)
        if not asked.start and not checkpoint and asked.first_weights == "counted":
            begin_as_bag_of_words(model, material.sentences)
        trainer = PretrainingTrainer(
            model=model, args=arguments, train_dataset=material.train, eval_dataset=material.held_out,
            data_collator=DataCollatorForTokenClassification(material.tokenizer),
            optimizer_cls_and_kwargs=optimizer_of(asked),
        )  # fmt: skip
        _, cost = train_loop(trainer, checkpoint)
        record = record_of(asked, folder, material, trainer, cost, started)
        history = history_of(trainer)  # with the last evaluation
        if not asked.dry_run and trainer.is_world_process_zero():
            with without_bars():
                model.save_pretrained(folder / "model")
            material.tokenizer.save_pretrained(folder / "model")
            write_atomically(folder / "history.csv", history.to_csv(index=False))
            each = trainer.score_each(range(len(material.held_out)))
            write_atomically(folder / "held-out.csv", each.to_csv(index=False))
            write_atomically(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
            shutil.rmtree(folder / "tokenizer", ignore_errors=True)
            delete(folder / "checkpoints")
        trainer.accelerator.wait_for_everyone()
    return Pretrained(model, material.tokenizer, history, record)


def read_finished(asked: Pretraining, path: Path) -> Pretrained:
    """A finished run, as `pretrain` gives it; path: of its result.json.

    Raises:
        ParameterError: it is another run's.
    """
    record, folder = json.loads(path.read_text(encoding="utf-8")), path.parent
    if other := differences(record, asked.identity(), Pretraining.defaults()):
        raise ParameterError(
            f"{path} is of a run made with {'; '.join(other)}; choose another output_dir, or delete that folder"
        )
    print(f"{path} is there, and nothing is trained; delete its folder to make the run again")
    model = load_model(str(folder / "model"), head="pretraining")
    return Pretrained(model, load_tokenizer(str(folder / "model")), pd.read_csv(folder / "history.csv"), record)


def record_of(
    asked: Pretraining,
    folder: Path,
    material: Material,
    trainer: PretrainingTrainer,
    cost: dict[str, float],
    started: dict[str, Any],
) -> dict[str, Any]:
    """Evaluate the trained model; what result.json holds.

    started: the `environment` when the run began.
    """
    held_out = material.held_out
    model: Any = trainer.model
    scores, settled, tokens = trainer.evaluate(), resolved(asked, trainer), int(trainer.state.num_input_tokens_seen)
    examined = [held_out[n] for n in range(min(EXAMINED_SEQUENCES, len(held_out)))]
    batch = trainer.data_collator(examined)
    inputs = {name: batch[name].to(model.device) for name in ("input_ids", "token_type_ids", "attention_mask")}
    coverage = mean_attended(model, [inputs])
    return {
        "status": "complete",
        "schema": SCHEMA,
        "parameters": recorded(asked),
        "resolved": settled,
        "metrics": {name.removeprefix("eval_"): value for name, value in scores.items()},
        "counting": material.counting,
        "attended_share": coverage.pairs,
        "attention_mass": coverage.mass,
        "full_cost": coverage.cost,
        "tokens": {"text": material.tokens, "trained": tokens},
        "sequences": {"train": len(material.train.packed), "held_out": len(held_out)},
        "parameters_of_model": settled["parameters_of_model"],
        "devices": trainer.args.world_size,
        **cost,
        "tokens_per_second": tokens / cost["train_seconds"],
        "environment": started,
    }


def main(words: list[str]) -> int:
    """The command: name=value ..., as papermill's `-p name value`."""
    try:
        done = pretrain(Pretraining.check({name: value for name, _, value in (word.partition("=") for word in words)}))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if PartialState().is_main_process:
        print(json.dumps({**done.record["metrics"], "tokens_per_second": done.record["tokens_per_second"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
