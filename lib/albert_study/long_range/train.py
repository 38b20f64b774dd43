"""Small models trained on long sequences, one after the other.

For `listops` and `text` an ordinary BERT of two layers, 64 wide, two heads, a feed-forward part of 128, and a small
network that reads the mean of its last hidden states. What differs from Nyströmformer's authors: BERT normalises the
embeddings, and normalises after each part instead of before it; the mean leaves padding out; batches are of similar
length; gradients are clipped at a norm of 1, as Trainer does; and the score is that after the last step, not that of
the best checkpoint (for `text` on the test set: it has no other). For `duplication` see there.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, EvalPrediction, PreTrainedModel, Trainer, set_seed
from transformers.trainer_utils import PredictionOutput

from albert_lsh.files import delete, lock, write_atomically
from albert_lsh.metrics import chance, majority, scores
from albert_lsh.model.load import load_model, switch_attention
from albert_lsh.model.passes import mean_attended
from albert_lsh.record import check_made, choose_threads, environment, read_result, record_of, write_result
from albert_lsh.train import CURVE_POINTS, StudyTrainer, newest, train_loop, training_arguments
from albert_study.long_range import duplication
from albert_study.long_range.parameters import LongRange, LongRun
from albert_study.long_range.tasks import ARENA_ACCURACY, LONG_TASKS, shorter
from albert_study.probe.candidates import candidates_of

EXAMINED_EXAMPLES = 4  # examples in which pairs attended are counted
LABELS = 100_000  # of duplication, whose frequencies give the majority baseline
ACCURACY = ("accuracy",)
PARAMETERS = ("task", "max_length", "label", "attention", "seed", "steps", "batch_size")


class Classifier(nn.Module):
    """An encoder of `load_model`, and a network of one hidden layer that reads the mean of its last hidden states."""

    def __init__(self, encoder: PreTrainedModel, classes: int):
        super().__init__()
        self.encoder, self.config = encoder, encoder.config
        self.hidden = nn.Linear(self.config.hidden_size, self.config.intermediate_size)
        self.out = nn.Linear(self.config.intermediate_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """logits (batch, classes), and the cross-entropy as `loss` where labels (batch,) are given.

        input_ids, attention_mask: (batch, length), the latter 1 where there is a token.
        """
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1) / attention_mask.sum(1).clamp(min=1)[:, None, None]
        logits = self.out(self.hidden((states * weights).sum(1)).relu())
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def build_model(run: LongRun) -> nn.Module:
    """The run's model. Seeds all random numbers."""
    set_seed(run.seed)
    chosen: dict[str, Any] = {"attention": run.attention, "settings": run.attention_settings, "seed": run.seed}
    chosen |= {"attention_probs_dropout_prob": run.attention_dropout}
    if run.task == "duplication":
        model = load_model(duplication.config(run.max_length), head="masked-lm", **chosen)
        duplication.begin_as_copies(model)
        return model
    task = LONG_TASKS[run.task]
    config = BertConfig(
        vocab_size=task.vocabulary, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=run.max_length, type_vocab_size=1, pad_token_id=0, hidden_dropout_prob=0.1,
    )  # fmt: skip
    return Classifier(load_model(config, head="base", **chosen), task.classes)


def accuracy(seen: EvalPrediction | PredictionOutput) -> dict[str, float]:
    """The share of right answers, where there is something to predict."""
    labels, answers = np.asarray(seen.label_ids), np.asarray(seen.predictions)
    scored = labels != duplication.UNSCORED
    return scores(ACCURACY, labels[scored], answers[scored])


def train_model(
    run: LongRun, model: nn.Module, data: dict[str, Dataset]
) -> tuple[Trainer, pd.DataFrame, dict[str, float]]:
    """Train a model; resume from the newest complete checkpoint of the same run if there is one.

    Returns:
        Trainer, history and cost, see `train_loop`.

    Raises:
        ParameterError: its folder holds checkpoints of a run with other parameters; out of memory.
        DivergedError: a loss is not finite.
    """
    arguments = training_arguments(
        run,
        Path(run.output_dir),
        max_steps=run.steps,
        warmup_steps=run.warmup,
        weight_decay=0.0,
        train_sampling_strategy="random" if run.task == "duplication" else "group_by_length",
        length_column_name="length",
        remove_unused_columns=False,
        logging_steps=max(1, run.steps // CURVE_POINTS),
        eval_strategy="steps",
        eval_steps=run.eval_steps,
        save_strategy="steps",
        save_steps=run.eval_steps,
    )
    trainer = StudyTrainer(
        model=model,
        args=arguments,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        data_collator=LONG_TASKS[run.task].collate,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    decisive = run.identity() | {"data_dir": run.data_dir}  # another folder may hold other data
    checkpoint = newest(Path(run.output_dir) / "checkpoints", decisive, resume=run.resume)
    history, cost = train_loop(trainer, checkpoint)
    return trainer, history, cost | {"examples_per_second": run.steps * run.batch_size / cost["train_seconds"]}


def test_scores(run: LongRun, trainer: Trainer, test: Dataset, some: list[dict[str, Tensor]]) -> dict[str, float]:
    """Accuracy on the test split: `accuracy` as trained, and `accuracy, <label>` under each attention of `evaluate`.

    some: batches on which the `cost, <label>` of each is counted, as a share of softmax attention's.
    """
    model: Any = trainer.model
    found = accuracy(trainer.predict(test))
    for variant in candidates_of(run.evaluate) if run.evaluate else []:
        switch_attention(model, variant.attention, variant.settings, run.seed)
        found[f"accuracy, {variant.label}"] = accuracy(trainer.predict(test))["accuracy"]
        found[f"cost, {variant.label}"] = mean_attended(model, some).cost
    return found


def labels_of(run: LongRun, data: Dataset) -> np.ndarray:
    """The right answers, (n,); of duplication those of its first examples."""
    if run.task != "duplication":
        return np.asarray(data["label"])
    few = range(min(len(data), LABELS // run.max_length))  # type: ignore[arg-type]
    labels = np.concatenate([data[number]["labels"].numpy() for number in few])
    return labels[labels != duplication.UNSCORED]


def make_run(run: LongRun, data: dict[str, Dataset]) -> None:
    """Train and evaluate one model, and write its history.csv and, last, result.json; a finished run is kept.

    Raises:
        ParameterError: its folder holds another run's result or checkpoints.
    """
    path = Path(run.output_dir) / "result.json"
    with lock(path.parent):
        if path.exists():
            check_made(run)
            return
        choose_threads(run.device)
        started = environment(run.device)
        model, test, task = build_model(run), data["test"], LONG_TASKS[run.task]
        trainer, history, cost = train_model(run, model, data)
        some = [test[number] for number in range(min(EXAMINED_EXAMPLES, len(test)))]  # type: ignore[arg-type]
        batches = [{k: v.to(run.device) for k, v in task.collate([example]).items()} for example in some]
        coverage = mean_attended(model, batches)
        answers = labels_of(run, test)
        baselines = {
            "score": test_scores(run, trainer, test, batches),
            "majority": majority(ACCURACY, labels_of(run, data["train"]), answers),
            "chance": chance(ACCURACY, answers, task.classes),
        }
        sizes = {split: len(rows) for split, rows in data.items()}  # type: ignore[arg-type]
        record = record_of(run, trainer, "accuracy", baselines, coverage, cost, sizes, started)
        write_result(path.parent, record, history)
        delete(path.parent / "checkpoints")


def train_all(asked: LongRange, data: dict[str, Dataset]) -> pd.DataFrame:
    """Train every variant that has no result yet.

    Returns:
        `comparison` of the task, which is also written to output_dir/<task>.csv.
    """
    runs = asked.runs()
    for number, run in enumerate(runs, start=1):
        there = run.resume and (Path(run.output_dir) / "result.json").exists()
        print(f"{run.label} ({number} of {len(runs)}): {'its result is there' if there else f'{run.steps:,} steps'}")
        make_run(run, data)
    table = comparison(Path(asked.output_dir), asked.task)
    write_atomically(Path(asked.output_dir) / f"{asked.task}.csv", table.to_csv(index=False))
    return table


def comparison(folder: Path, task: str) -> pd.DataFrame:
    """One row for each result of a task below a folder, beside chance, majority class and the published numbers.

    `shorter` says where a run had less than the published recipe. Duplication has a row for each attention that a
    model was evaluated under.
    """
    rows = []
    for path in sorted(folder.glob(f"{task}-*/*/seed-*/result.json")):
        result = read_result(path)
        asked, scores = result["parameters"], result["metrics"]
        row = {name: asked[name] for name in PARAMETERS}
        row |= {"attention_settings": json.dumps(asked["attention_settings"]), "seconds": result["train_seconds"]}
        row |= {"attended": result["attended_share"], "full_cost": result.get("full_cost"), "shorter": shorter(result)}
        row |= {"test_examples": result["examples"]["test"]}
        row |= {name: result[name]["accuracy"] for name in ("chance", "majority")}
        if task in ARENA_ACCURACY:
            arena, rerun = ARENA_ACCURACY[task].get(asked["attention"], (None, None))
            rows.append(row | {"accuracy": scores["accuracy"], "arena": arena, "rerun": rerun})
            continue
        published = duplication.PUBLISHED_ACCURACY.get(asked["label"], {})
        for under in (name.removeprefix("accuracy, ") for name in scores if name.startswith("accuracy, ")):
            here = {"evaluated": under, "evaluated_cost": scores.get(f"cost, {under}")}
            rows.append(row | here | {"accuracy": scores[f"accuracy, {under}"], "published": published.get(under)})
    return pd.DataFrame(rows)
