"""Pretraining an ALBERT, BERT or RoBERTa with any of our attentions, or continuing with another one or more positions.

`pretrain` is what notebooks/pretrain.ipynb calls, and what several devices run as a script:

    accelerate launch --num_processes 2 -m albert_study.experiments.pretrain text=corpus.txt attention=key-clusters

Hugging Face's Trainer does the training, on one device or many. An interrupted run resumes from its last complete
checkpoint; one is written every `eval_steps`.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from accelerate import PartialState
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import (
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from albert_lsh.encoders import max_positions
from albert_lsh.files import delete, lock, write_atomically
from albert_lsh.machine import choose_threads, environment
from albert_lsh.metrics import mean_attended
from albert_lsh.model.load import extend_positions, load_config, load_model, load_tokenizer, without_bars
from albert_lsh.model.memory import recompute_activations
from albert_lsh.record import check_made, read_result, resolved, write_result
from albert_lsh.run import (
    ParameterError,
)
from albert_lsh.sources import fingerprint
from albert_lsh.train import CURVE_POINTS, StudyTrainer, newest, train_loop, training_arguments
from albert_study.experiments import corpus, first_weights
from albert_study.experiments.pretrain_recipe import KINDS, SIZES, Pretraining

EXAMINED_SEQUENCES = 32  # held-out sequences in which attended pairs are counted
POSITIONS = 512  # learned by a new model, or max_length if that is more


class Material(NamedTuple):
    """What a model is trained with."""

    tokenizer: PreTrainedTokenizerBase
    train: corpus.Sequences
    held_out: corpus.Sequences
    ids: np.ndarray  # of the text before the held-out sequences, (tokens,)
    tokens: int  # of the text
    counting: dict[str, float]  # scores of counting pieces


def prepare_text(run: Pretraining, devices: int = 1) -> Material:
    """The text, tokenised and packed; its last sequences, a tenth at most, are held out.

    A tokenizer that is learned from the text is kept in the run's folder.

    Args:
        devices: that train, each with batch_size sequences.
    Raises:
        CorpusError: a text that is not there, cannot be read, or is too short for two sequences.
        ModelError: no such tokenizer.
    """
    text, named = corpus.load_text(run.text, run.text_column, run.text_config), run.start or run.tokenizer
    kept, partial = run.folder / "tokenizer", run.folder / "tokenizer.partial"
    if not named and (partial.exists() or not kept.exists()):  # both: renaming was copying, and was cut off
        delete(kept)
        corpus.train_tokenizer(text, run.vocabulary, run.kind == "roberta").save_pretrained(partial)
        partial.rename(kept)
    tokenizer = load_tokenizer(named or str(kept))
    sentences = corpus.tokenise(text, tokenizer)
    packed = corpus.pack(sentences.lengths, run.max_length, run.seed)
    if len(packed) < 2:
        raise corpus.CorpusError(
            f"text={run.text!r} is too short: {len(packed)} sequence(s) of up to {run.max_length} tokens, and two are "
            "needed, one of them to be held out"
        )
    n = len(packed) - min(run.eval_sequences, max(1, len(packed) // 10))
    per_step = run.batch_size * run.accumulation * devices
    same = (per_step, run.max_length, corpus.Pieces.of(tokenizer), run.seed)
    objective = KINDS[run.kind].ngrams, bool(run.sentence_order)
    train = corpus.Sequences(sentences, packed[:n], run.steps * per_step, *same, run.masked_share, *objective)
    held_out = corpus.Sequences(sentences, packed[n:], len(packed) - n, *same, corpus.MASKED_SHARE, *objective)
    before = sentences.ids[: sentences.lengths[: packed[n, 0]].sum()]
    counting = counting_scores(np.bincount(sentences.ids, minlength=len(tokenizer)), held_out)
    return Material(tokenizer, train, held_out, before, len(sentences.ids), counting)


def counting_scores(counts: np.ndarray, held_out: corpus.Sequences) -> dict[str, float]:
    """The scores of a model that knows how often each piece occurs, and nothing else.

    `mlm_loss` in nats and `mlm_accuracy`, on the masked tokens of the held-out sequences; `sop_accuracy` of a coin.
    """
    share = (counts + 1) / (counts + 1).sum()
    labels = np.concatenate([held_out[i]["labels"] for i in range(len(held_out))])
    labels = labels[labels != corpus.IGNORED]
    accuracy = float((labels == counts.argmax()).mean())
    scores = {"mlm_loss": float(-np.log(share[labels]).mean()), "mlm_accuracy": accuracy}
    return scores | ({"sop_accuracy": 0.5} if held_out.order_is_asked else {})


def prepare_model(run: Pretraining, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A new model of this size, or that of `start`, with the attention; its positions reach max_length.

    Raises:
        ModelError: no such `start`. ParameterError: `start` is of another kind.
    """
    set_seed(run.seed)
    kind, (width, layers, heads) = KINDS[run.kind], SIZES[run.size]
    positions = max(POSITIONS, run.max_length) + (run.kind == "roberta") * (tokenizer.pad_token_id + 1)
    special = {"pad": tokenizer.pad_token_id} | dict.fromkeys(("bos", "cls"), tokenizer.cls_token_id)
    special |= dict.fromkeys(("eos", "sep"), tokenizer.sep_token_id)
    named = {f"{name}_token_id": token for name, token in special.items()}
    known = {name: token for name, token in named.items() if hasattr(kind.config(), name)}
    config = kind.config(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=len(tokenizer),
        intermediate_size=int(kind.feed_forward * width), max_position_embeddings=positions, **known, **kind.options,
    )  # fmt: skip
    chosen: dict[str, Any] = {"attention": run.attention, "settings": run.attention_settings, "seed": run.seed}
    if run.start and (other := load_config(run.start).model_type) != run.kind:
        raise ParameterError(f"start={run.start!r} is of kind={other!r}, not {run.kind!r} ({run.notebook})")
    model = load_model(run.start or config, head=kind.part, **chosen).float()
    if run.recompute:
        recompute_activations(model)
    return model if run.max_length <= max_positions(model.config) else extend_positions(model, run.max_length)


# Training


class PretrainingTrainer(StudyTrainer):
    """Trainer with the losses of masked tokens and of the order; only masked tokens go through the prediction head.

    The loss is the mean over all masked tokens of a step plus the mean over its examples, counted over all devices and
    accumulated batches: two devices with half of the batch each compute the same as one with all of it.
    """

    model: Any
    eval_dataset: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.model_accepts_loss_kwargs = True  # Trainer counts the masked tokens of a whole step, over devices too
        self.wanted: Tensor | None = None
        self.kind = KINDS[self.model.config.model_type]
        self.model.get_submodule(self.kind.head).register_forward_pre_hook(
            lambda _, states: None if self.wanted is None else (states[0][self.wanted],)
        )

    def _get_train_sampler(self, train_dataset: Any = None):
        return SequentialSampler(train_dataset)  # the examples are shuffled already

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        for callback in self.callback_handler.callbacks:
            if bar := getattr(callback, "training_tracker", None):  # a notebook's; it says None before the first step
                bar.update(self.state.global_step)
        return super().evaluate(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # trainer_state.json, which completes a checkpoint, is written after this

    def logits_of(self, model, inputs: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
        """Logits, float32, with labels: of masked tokens (n, vocabulary), and of the order (batch, 2) if asked."""
        labels, order = inputs.pop("labels"), inputs.pop("sentence_order_label", None)
        self.wanted = labels != corpus.IGNORED
        out = model(**inputs)
        self.wanted = None
        predicted = [(out[self.kind.logits].float(), labels[labels != corpus.IGNORED])]
        return predicted if order is None else [*predicted, (out[str(self.kind.order_logits)].float(), order)]

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        devices, arguments = self.accelerator.num_processes, self.args
        examples = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * devices
        losses = [F.cross_entropy(*pair, reduction="sum") for pair in self.logits_of(model, inputs)]
        loss = sum(loss / count for loss, count in zip(losses, (num_items_in_batch, examples), strict=False))
        return loss * devices  # whose gradients are averaged

    @torch.no_grad()
    def prediction_step(self, model, inputs, *args: Any, **kwargs: Any) -> tuple[None, Tensor, Tensor]:
        """By sequence: its masked tokens, their summed loss, how many were found, and whether the order was if it is
        asked, (batch, 3 or 4)."""
        inputs = self._prepare_inputs(inputs)
        sequence = (inputs["labels"] != corpus.IGNORED).nonzero()[:, 0]
        n = len(inputs["labels"])
        with self.compute_loss_context_manager():
            (masked, labels), *orders = self.logits_of(model, inputs)
        lost = F.cross_entropy(masked, labels, reduction="none").double()
        of_tokens = torch.stack([torch.ones_like(lost), lost, masked.argmax(-1) == labels], dim=1)
        sums = lost.new_zeros(n, 3).index_add_(0, sequence, of_tokens)
        sums = torch.cat([sums, *((order.argmax(-1) == right).double()[:, None] for order, right in orders)], dim=1)
        return None, sums, sums


HELD_OUT = ("tokens", "lost", "found", "order")  # the columns of held-out.csv


def scores_of(sums: Any) -> dict[str, float]:
    """Held-out loss (nats per masked token), and accuracies of the objectives, from the sums of `prediction_step`."""
    tokens, lost, hits, *right = sums.sum(0).tolist()
    scores = {"mlm_loss": lost / tokens, "mlm_accuracy": hits / tokens}
    return scores | ({"sop_accuracy": right[0] / len(sums)} if right else {})


class Pretrained(NamedTuple):
    """The result of pretraining."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    history: pd.DataFrame  # one row per logged step: train_loss, learning_rate, mlm_loss, mlm_accuracy, sop_accuracy
    record: dict[str, Any]  # what result.json holds


def pretrain(run: Pretraining) -> Pretrained:
    """Train, evaluate and save: output_dir/model, history.csv, held-out.csv and, last, result.json.

    A finished run is read instead.

    Raises:
        ParameterError: output_dir holds another run, or the parameters do not fit a model. CorpusError: the text has
        changed since the run was made; see also `prepare_text`. ModelError: no such model or tokenizer. DivergedError:
        a loss is not finite.
    """
    choose_threads(run.device)
    arguments = training_arguments(
        run, run.folder, max_steps=run.steps, gradient_accumulation_steps=run.accumulation,
        warmup_steps=run.warmup_share,  # below 1: a share of all steps
        weight_decay=run.weight_decay, average_tokens_across_devices=True, ddp_find_unused_parameters=False,
        include_num_input_tokens_seen="non_padding", remove_unused_columns=False,
        logging_steps=max(1, min(run.eval_steps, run.steps // CURVE_POINTS)),
        eval_on_start=True,  # scores of the first weights
        eval_strategy="steps", eval_steps=run.eval_steps, save_strategy="steps", save_steps=run.eval_steps,
    )  # fmt: skip
    with lock(run.folder) if arguments.process_index == 0 else nullcontext():
        if not (run.folder / "result.json").exists():
            return train(run, arguments)
        check_made(run)  # by another process, maybe, which had the folder first
        made_with, now = read_result(run.folder / "result.json").get("text_revision"), text_revision(run)
        if now and made_with not in (None, now):
            raise corpus.CorpusError(
                f"text={run.text!r} has changed since {run.folder} was made; take another output_dir"
            )
        kept = f"{run.folder}/model"
        model, tokenizer = load_model(kept, head=KINDS[run.kind].part), load_tokenizer(kept)
        history = pd.read_csv(run.folder / "history.csv")
        return Pretrained(model, tokenizer, history, read_result(run.folder / "result.json"))


def text_revision(run: Pretraining) -> str | None:
    """A digest of the text's file; None where the text is no file that is there."""
    return fingerprint(run.text, f"text={run.text!r}") if Path(run.text).is_file() else None


def train(run: Pretraining, arguments: TrainingArguments) -> Pretrained:
    """What `pretrain` does in a folder that is its own, on each of the devices."""
    started, revision = environment(run.device), text_revision(run)
    decisive = run.identity() | {"devices": arguments.world_size, "text_revision": revision}
    with arguments.main_process_first(local=False, desc="text"):  # the others find it in folder and cache
        checkpoint = newest(run.folder / "checkpoints", decisive, resume=run.resume)
        material = prepare_text(run, arguments.world_size)
    model = prepare_model(run, material.tokenizer)
    if run.kind == "albert" and not run.start and not checkpoint:
        first_weights.begin_as_bag_of_words(model, material.ids)
    trainer = PretrainingTrainer(
        model=model, args=arguments, train_dataset=material.train, eval_dataset=material.held_out,
        data_collator=DataCollatorForTokenClassification(material.tokenizer),
        compute_metrics=lambda seen: scores_of(seen.predictions),
    )  # fmt: skip
    history, cost = train_loop(trainer, checkpoint)
    sums = np.asarray(trainer.predict(material.held_out).predictions)
    record = record_of(run, material, trainer, cost, scores_of(sums), started) | {"text_revision": revision}
    if trainer.is_world_process_zero():
        with without_bars():
            model.save_pretrained(run.folder / "model")
        material.tokenizer.save_pretrained(run.folder / "model")
        each = pd.DataFrame(sums, columns=HELD_OUT[: sums.shape[1]])
        write_atomically(run.folder / "held-out.csv", each.to_csv(index=False))
        write_result(run.folder, record, history)
        delete(run.folder / "tokenizer")
        delete(run.folder / "checkpoints")
    trainer.accelerator.wait_for_everyone()
    return Pretrained(model, material.tokenizer, history, record)


def record_of(
    run: Pretraining, material: Material, trainer: PretrainingTrainer, cost: dict[str, float], scores: dict[str, float],
    started: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """What result.json says. started: the `environment` when the run began."""
    held_out, device, settled = material.held_out, trainer.model.device, resolved(run, trainer)
    batch = trainer.data_collator([held_out[n] for n in range(min(EXAMINED_SEQUENCES, len(held_out)))])
    inputs = {name: batch[name].to(device) for name in ("input_ids", "token_type_ids", "attention_mask")}
    coverage, tokens = mean_attended(trainer.model, [inputs]), int(trainer.state.num_input_tokens_seen)
    record: dict[str, Any] = {"parameters": run.recorded(), "resolved": settled, "metrics": scores}
    record |= {"attended_share": coverage.pairs, "attention_mass": coverage.mass, "full_cost": coverage.cost}
    record |= {"counting": material.counting, "tokens": {"text": material.tokens, "trained": tokens}}
    record |= {"sequences": {"train": len(material.train.packed), "held_out": len(held_out)}}
    record |= {"parameters_of_model": settled["parameters_of_model"], "devices": trainer.args.world_size, **cost}
    return record | {"tokens_per_second": tokens / cost["train_seconds"], "environment": started}


def values_of(words: list[str]) -> dict[str, str]:
    """The parameters of words like name=value; ParameterError: a word without "=", or a name that comes twice."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in values:
            problem = f"{name!r} comes twice" if equals else f"{word!r} is not name=value"
            raise ParameterError(f"{problem}, as in: text=corpus.txt size=nano")
        values[name] = value
    return values


def main(words: list[str]) -> int:
    """The command: name=value ..., as papermill's `-p name value`."""
    try:
        done = pretrain(Pretraining.parse(values_of(words)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if PartialState().is_main_process:
        print(json.dumps({**done.record["metrics"], "tokens_per_second": done.record["tokens_per_second"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
