"""A fine-tuned model asked again under other attentions, with the same weights: what it answers, and what they do.

What an attention does in place of softmax is told pass by pass, on the queries, keys and values of the softmax model: a
layer's error is its own, not that of the layers before it. Drift and the share of pairs are those of the model with the
attention switched.
"""

import math
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from scipy.special import softmax
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor
from transformers import BatchEncoding, DataCollatorWithPadding, PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh import metrics
from albert_lsh.data import encode, held_out, load_data
from albert_lsh.files import run_folder
from albert_lsh.interface import Pass, record_passes
from albert_lsh.kinds import QuestionAnswering, Regression, Task, TaskError
from albert_lsh.model.load import load_model, load_tokenizer, switch_attention
from albert_lsh.record import provenance, read_result, write_predictions
from albert_lsh.run import Count, ParameterError, Place, Run
from albert_lsh.train import StudyTrainer, fit, training_arguments
from albert_study.probe.variants import TRUNCATION, Measured, Probe, Variant, fill, variants_of
from albert_study.records import variant_file

# The model that is trained where none is given; it learns its task.
SMALL: dict[str, Any] = {"task": "mini-mrpc", "model": "mini", "max_length": 48, "learning_rate": 1e-3}
SMALL |= {"train_examples": 8000, "precision": "fp32", "save_model": True}


# What an attention does in place of softmax


class Trace(NamedTuple):
    """What a model did with some batches."""

    states: Tensor  # (tokens, hidden): its last hidden states, without padding
    passes: list[list[Pass]]  # by batch


@torch.no_grad()
def trace(model: PreTrainedModel, batches: list[BatchEncoding]) -> Trace:
    """The last hidden states and attention passes of a model, as it is."""
    states, passes = [], []
    for batch in batches:
        with record_passes(model) as of_batch:
            hidden = model.base_model(**batch).last_hidden_state
        states.append(hidden[batch["attention_mask"].bool()])
        passes.append(of_batch)
    return Trace(torch.cat(states), passes)


def diagnose(
    model: PreTrainedModel, batches: list[BatchEncoding], base: Trace, variant: Variant, seed: int = 0
) -> tuple[dict[str, Any], pd.DataFrame]:
    """One variant compared with `base`, the model's trace of the same batches under softmax, which it has afterwards.

    Returns:
        drift (of the last hidden state), share (of the pairs) and whatever else `attention.Coverage` counts, mass,
        recall and error; and the rows of `compare` with their layer and the number of their batch.
    """
    switch_attention(model, variant.attention, variant.settings, seed)
    switched = trace(model, batches)
    switch_attention(model, "softmax")
    rows = pd.concat(
        compare(one._replace(seed=other.seed), variant).assign(layer=layer, batch=number)
        for number, passes in enumerate(zip(base.passes, switched.passes, strict=True))
        for layer, (one, other) in enumerate(zip(*passes, strict=True))
    )
    counted = metrics.mean_coverage([p for passes in switched.passes for p in passes])._asdict()
    drift = ((switched.states - base.states).norm() / base.states.norm()).item()
    overall: Any = summary(rows.assign(all=0), ["all"])[["mass", "recall", "error"]].iloc[0].to_dict()
    # The mass of `counted` gives way to that on softmax's queries and keys.
    return {"drift": drift, "share": counted.pop("pairs"), **counted, **overall}, rows


@torch.no_grad()
def compare(one: Pass, variant: Variant) -> pd.DataFrame:
    """What an attention does with a pass's queries, keys and values, compared with softmax.

    Returns:
        One row for each sequence and head: head, length (tokens), pairs (attended), mass and recall (sums over its
        queries), difference and norm (squared, of the output). A query that sees m keys has a recall: the share of the
        m keys with the highest scores that it sees.
    """
    query, key, value, mask = one.query, one.key, one.value, one.padding_mask
    if mask is None:
        mask = torch.ones(query.shape[0], query.shape[2], dtype=torch.bool, device=query.device)
    name, options = variant.attention, {"seed": one.seed, **variant.settings}
    output = attentions.attend(name, query, key, value, mask, **options)
    exact = attentions.attend("softmax", query, key, value, mask)
    attended = attentions.pairs(name, query, key, mask, **options) > 0
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    counts = attended.sum(-1, keepdim=True)
    rank = scores.argsort(-1, descending=True).argsort(-1)
    recall = (attended & (rank < counts)).sum(-1) / counts[..., 0].clamp(min=1)
    batch, heads = query.shape[:2]
    columns = {
        "length": mask.sum(-1)[:, None].expand(-1, heads),
        "pairs": attended.sum((-1, -2)),
        "mass": (scores.softmax(-1) * attended).sum(-1).mul(mask[:, None]).sum(-1),
        "recall": recall.mul(mask[:, None]).sum(-1),
        "difference": (output - exact).square().sum((-1, -2)),
        "norm": exact.square().sum((-1, -2)),
    }
    table = pd.DataFrame({name: column.flatten().tolist() for name, column in columns.items()})
    return table.assign(head=list(range(heads)) * batch)


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Rows of `compare` summed up: shares of pairs and of mass, recall, and the error of the output.

    The error is the Frobenius norm of the difference over that of softmax's output, in each layer and batch; then the
    mean over these.
    """
    sums = rows.assign(all_pairs=rows["length"] ** 2).groupby(by).sum(numeric_only=True)
    each = rows.groupby(list(dict.fromkeys([*by, "layer", "batch"])))[["difference", "norm"]].sum()
    table = sums[["mass", "recall"]].div(sums["length"], axis="index")
    table.insert(0, "pairs", sums["pairs"] / sums["all_pairs"])
    table["error"] = (each["difference"] / each["norm"]).pow(0.5).groupby(by).mean()
    return table.reset_index()


# A fine-tuned model


class Fidelity(Probe):
    """The parameters of fidelity.ipynb."""

    notebook: ClassVar[str] = "fidelity.ipynb"
    usual: ClassVar[str] = "{0.trained}/fidelity-{0.split}.csv"
    trained: Place | None = None  # folder of a run that trained with softmax; None: by `train_small_model`
    split: str = "held-out"
    examples: Count | None = None
    looked_into: Count = 64

    def completed(self, place: str) -> Self:
        settings = self.model_copy(update={"trained": self.trained or self.small_folder})
        return super(Fidelity, settings).completed(place)

    @property
    def small_folder(self) -> str:
        return str(run_folder("notebook", SMALL["task"], SMALL["model"], "softmax-kept", 0, self.results_root))

    @property
    def run(self) -> Run:
        """The run that trained the model; on a machine without CUDA, for the CPU."""
        result = Path(str(self.trained)) / "result.json"
        made = 'glue.ipynb or squad.ipynb with attention="softmax" and save_model=True makes one'
        if not result.exists():
            raise ParameterError(f"trained={self.trained!r} has no result.json; {made} ({self.notebook})")
        parameters = read_result(result)["parameters"]
        if not parameters["attention"].startswith("softmax"):
            other = f"was trained with attention={parameters['attention']!r}, which cannot be compared with softmax"
            raise ParameterError(f"trained={self.trained!r} {other} in its place; {made} ({self.notebook})")
        if parameters["device"] == "cuda" and not torch.cuda.is_available():
            parameters |= {"device": "auto", "precision": "auto"}
        return Run.parse(parameters | {"output_dir": self.trained, "results_root": self.results_root}, str(result))


def train_small_model(settings: Fidelity) -> None:
    """Train the small model with softmax, if no other is asked for; one that is there is left as it is."""
    if settings.trained == settings.small_folder:
        fit(Run.parse(SMALL | {"output_dir": settings.trained, "results_root": settings.results_root}))


class Answers(NamedTuple):
    """What a model says of the examples."""

    score: float
    answers: list[Any]  # in the same order every time: class numbers, values, or texts
    table: pd.DataFrame  # as `tasks.predictions` keeps them


class Subject:
    """The model that a run has kept, and the examples that it is asked about, shortest first.

    Attributes:
        examples, encoded: the task's rows, and what the model reads of them.
        score_name: accuracy, or the task's headline. majority: the score of the most frequent class; 0 where there are
            no classes.
    """

    def __init__(self, run: Run, split: str = "validation", examples: int | None = None):
        """The run trained with softmax; its model is in `output_dir`.

        Args:
            split: "held-out" for training examples that the run did not see; else a split's name.
            examples: how many, the same for every run; None takes all.
        Raises:
            ParameterError: the run kept no model, saw all training examples, has no such split, or is one of folds.
        """
        if run.folds:
            raise ParameterError(
                f"{run.folder}: its model was trained on {run.folds - 1} of folds={run.folds}, which have examples of "
                "every split; take the model of a run with folds=None"
            )
        folder = run.folder / "model"
        if not folder.is_dir():
            remove = f"to make the run again with save_model=True, remove {run.folder} first"
            raise ParameterError(f"{folder} is not there (models are not kept in the repository); {remove}")
        self.run, self.split, self.task, self.tokenizer = run, split, run.about, load_tokenizer(str(folder))
        data = load_data(run.about, eval_examples=examples)
        is_held_out = split == "held-out"
        others = " or ".join(f'split="{name}"' for name in data if name != "train")
        if not is_held_out and split not in data:
            raise ParameterError(f"split={split!r} is not in the data of {run.task!r}; take {others}")
        try:
            seen = (run.train_examples, examples, self.task.kept_together)
            self.examples = held_out(data["train"], *seen) if is_held_out else data[split]
        except TaskError as error:
            raise ParameterError(f"split={split!r}: {error}; take {others}") from error
        encoded = encode({split: self.examples}, self.task, self.tokenizer, run.max_length)[split]
        self.encoded = encoded.select(np.argsort(encoded["length"], kind="stable"))  # Dataset.sort warns
        self.model = load_model(str(folder), head=self.task.head, complete=True)
        self.score_name, self.majority = self.task.headline, 0.0
        if "accuracy" in self.task.metrics:
            labels = [np.asarray(part["label"]) for part in (data["train"], self.examples)]
            self.score_name, self.majority = "accuracy", metrics.majority(("accuracy",), *labels)["accuracy"]
        arguments = training_arguments(run, folder, disable_tqdm=True)  # else a bar for every variant
        collate = DataCollatorWithPadding(self.tokenizer)
        self.trainer = StudyTrainer(self.model, arguments, collate, processing_class=self.tokenizer)

    def answer(self, encoded: Dataset) -> Answers:
        """What the model says, under its present attention, of the examples as they are encoded."""
        task, logits = self.task, self.trainer.predict(encoded).predictions
        table = task.predictions(self.split, self.examples, encoded, logits)
        score = task.scores_of(self.examples, table)[self.score_name]
        return Answers(score, task.answers(self.examples, table), table)

    def truncated(self, share: float) -> Dataset:
        """The encoded examples, each cut to sqrt(share) of its tokens: attention to it then costs about that share.

        In a window of SQuAD only the paragraph is cut.
        """

        def cut(row: dict[str, Any]) -> dict[str, Any]:
            special = self.tokenizer.get_special_tokens_mask(row["input_ids"], already_has_special_tokens=True)
            left = positions_left(
                special, round(math.sqrt(share) * row["length"]), only_last=isinstance(self.task, QuestionAnswering)
            )
            each = {k: v for k, v in row.items() if isinstance(v, list) and len(v) == row["length"]}
            return {name: [values[place] for place in left] for name, values in each.items()} | {"length": len(left)}

        return self.encoded.map(cut, load_from_cache_file=False)


def positions_left(special: list[int], n: int, *, only_last: bool = False) -> list[int]:
    """Which tokens stay when a text, or a pair of texts, is cut to n tokens: special ones, and the texts' beginnings.

    The longer text gives a token, again and again, until n are left; or only the last one does. Every text keeps one.

    Args:
        special: 1 for a special token, 0 for one of a text.
    """
    runs = [(is_special, list(run)) for is_special, run in groupby(range(len(special)), special.__getitem__)]
    texts = [places for is_special, places in runs if not is_special]
    giving = texts[-1:] if only_last else texts
    while sum(len(places) for _, places in runs) > n and len(longest := max(giving, key=len)) > 1:
        longest.pop()
    return [place for _, places in runs for place in places]


def without_a_threshold(task: Task, table: pd.DataFrame) -> dict[str, float]:
    """What does not hang on where the line between two classes is: the loss in nats (of numbers, their squared error),
    and of two classes the area under the ROC curve. Nothing for spans.
    """
    if isinstance(task, QuestionAnswering):
        return {}
    if isinstance(task, Regression):
        return {"loss": float(((table["logit_0"] - table["label"]) ** 2).mean())}
    logits = table.filter(like="logit_").to_numpy(float)
    scores = {"loss": float(log_loss(table["label"], softmax(logits, axis=1), labels=range(task.num_labels)))}
    if task.num_labels == 2 and table["label"].nunique() == 2:
        scores["auc"] = float(roc_auc_score(table["label"], logits[:, 1] - logits[:, 0]))
    return scores


def share_changed(before: list[Any], after: list[Any]) -> float:
    """Share of the answers that change; a value (STS-B's 0 to 5) changes when it moves by more than half a point."""
    pairs = zip(before, after, strict=True)
    return float(np.mean([abs(x - y) > 0.5 if isinstance(x, float) else x != y for x, y in pairs]))


def measure_fidelity(subject: Subject, settings: Fidelity) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Answer under softmax, then under every variant that the table at settings.output lacks (see `fill`).

    Beside it go, with "-heads" in the name, the diagnostics of each layer and head, and of thirds of the sequences by
    length; and in a folder with "-predictions" in its name the predictions under every variant.

    Returns:
        The table, a row for each variant; and the diagnostics by variant, layer, head and length.
    """
    run, model, path = subject.run, subject.model, Path(str(settings.output))
    folder = path.with_name(f"{path.stem}-predictions")

    def measure(missing: list[Variant]) -> Measured:
        switch_attention(model, "softmax")
        before, about = subject.answer(subject.encoded), provenance(run.device)
        write_predictions(folder / "softmax.parquet", before.table)
        batches = list(metrics.sample(model, subject.tokenizer, subject.encoded, settings.looked_into))
        base, span = trace(model, batches), before.score - subject.majority
        for variant in missing:
            if variant.attention == TRUNCATION:
                shorter = subject.truncated(variant.settings["share"])
                share = sum(n * n for n in shorter["length"]) / sum(n * n for n in subject.encoded["length"])
                after, diagnosed, details = subject.answer(shorter), {"share": share, "cost": share}, pd.DataFrame()
            else:
                diagnosed, rows = diagnose(model, batches, base, variant, settings.seed)
                width = base.passes[0][0].query.shape[-1]
                lengths = subject.encoded["length"][:]  # of all texts: cost hangs on them, and a few may be short
                diagnosed["cost"] = attentions.mean_cost(variant.attention, lengths, width, **variant.settings)
                details = summary(rows.assign(lengths=thirds(rows["length"])), ["layer", "head", "lengths"])
                switch_attention(model, variant.attention, variant.settings, settings.seed)
                after = subject.answer(subject.encoded)
                switch_attention(model, "softmax")
            row = {
                "score_name": subject.score_name,
                "score": after.score,
                "softmax": before.score,
                "majority": subject.majority,
                "kept": (after.score - subject.majority) / span if span else math.nan,  # no share of nothing
                "changed": share_changed(before.answers, after.answers),
                **without_a_threshold(subject.task, after.table),
            }
            row |= {f"softmax_{name}": x for name, x in without_a_threshold(subject.task, before.table).items()}
            name = variant_file(variant.label, variant.settings.get("share"))
            write_predictions(folder / f"{name}.parquet", after.table)
            yield row | diagnosed | about, details

    same = {"task": run.task, "seed": run.seed, "hash_seed": settings.seed, "split": settings.split}
    same |= {"examples": len(subject.examples), "looked_into": settings.looked_into}
    return fill(path, "heads", variants_of(settings.variants), same, measure)


def thirds(lengths: pd.Series) -> pd.Series:
    """By sequence, the third of the lengths that it is in, as text: "4 to 17"."""
    third = lengths.groupby(np.searchsorted(np.unique(np.quantile(lengths, [1 / 3, 2 / 3])), lengths))
    return third.transform("min").astype(str) + " to " + third.transform("max").astype(str)
