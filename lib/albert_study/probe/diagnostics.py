"""What an attention does in place of softmax, layer by layer; nothing is trained.

    base = look(model, batches)                     last hidden states and passes under softmax
    row, rows = diagnose(model, batches, base, c)   one candidate against it, overall and pass by pass

Drift and the share of pairs are those of the model with the attention switched in all layers. Mass, recall and the
error of the output are measured on the queries, keys and values of the softmax model: a layer's error is its own, not
that of the layers before it.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from transformers import BatchEncoding, PreTrainedModel

from albert_lsh import attention as attentions
from albert_lsh.model.load import switch_attention
from albert_lsh.model.passes import Pass, mean_coverage, record_passes
from albert_study.probe.candidates import Candidate


class Looks(NamedTuple):
    """What a model did with some batches: last hidden states without padding, and every attention pass."""

    states: torch.Tensor  # (tokens, hidden)
    passes: list[list[Pass]]  # by batch


@torch.no_grad()
def look(model: PreTrainedModel, batches: list[BatchEncoding]) -> Looks:
    """Last hidden states and attention passes of a model, as it is."""
    states, seen = [], []
    for batch in batches:
        with record_passes(model) as passes:
            hidden = model.base_model(**batch).last_hidden_state
        states.append(hidden[batch["attention_mask"].bool()])
        seen.append(passes)
    return Looks(torch.cat(states), seen)


def diagnose(
    model: PreTrainedModel, batches: list[BatchEncoding], base: Looks, candidate: Candidate, seed: int = 0
) -> tuple[dict[str, Any], pd.DataFrame]:
    """One candidate compared with `base`, the model's look at the same batches under softmax.

    The model has softmax again afterwards.

    Args:
        seed: of the hashes, which are those of the switched model in both looks.
    Returns:
        drift (of the last hidden state), share (of the pairs) and whatever else `attention.Coverage` counts, mass,
        recall and error; and the rows of `compare` with their layer and the number of their batch.
    """
    switch_attention(model, candidate.attention, candidate.settings, seed, candidate.passes)
    switched = look(model, batches)
    switch_attention(model, "softmax")
    rows = pd.concat(
        compare(one._replace(seed=other.seed), candidate).assign(layer=layer, batch=number)
        for number, passes in enumerate(zip(base.passes, switched.passes, strict=True))
        for layer, (one, other) in enumerate(zip(*passes, strict=True))
        if candidate.passes is None or layer in candidate.passes
    )
    counted = mean_coverage([p for passes in switched.passes for p in passes])._asdict()
    drift = ((switched.states - base.states).norm() / base.states.norm()).item()
    overall: Any = summary(rows.assign(all=0), ["all"])[["mass", "recall", "error"]].iloc[0].to_dict()
    # The mass of `counted` gives way to that on softmax's queries and keys.
    return {"drift": drift, "share": counted.pop("pairs"), **counted, **overall}, rows


@torch.no_grad()
def compare(seen: Pass, candidate: Candidate) -> pd.DataFrame:
    """What an attention does with a pass's queries, keys and values, compared with softmax.

    Returns:
        One row for each sequence and head: head, length (tokens), pairs (attended), mass and recall (sums over its
        queries), difference and norm (squared, of the output). A query that sees m keys has a recall: the share of the
        m keys with the highest scores that it sees.
    """
    query, key, value, mask = seen.query, seen.key, seen.value, seen.padding_mask
    if mask is None:
        mask = torch.ones(query.shape[0], query.shape[2], dtype=torch.bool, device=query.device)
    tensors = query, key, value, mask
    out = attentions.attend(candidate.attention, *tensors, seed=seen.seed, **candidate.settings)
    softmax = attentions.attend("softmax", *tensors)
    met = attentions.pairs(candidate.attention, query, key, mask, seed=seen.seed, **candidate.settings) > 0
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    mass = (scores.softmax(-1) * met).sum(-1)
    n_met = met.sum(-1, keepdim=True)
    rank = scores.argsort(-1, descending=True).argsort(-1)
    recall = (met & (rank < n_met)).sum(-1) / n_met[..., 0].clamp(min=1)
    batch, heads = query.shape[:2]
    columns = {
        "length": mask.sum(-1)[:, None].expand(-1, heads),
        "pairs": met.sum((-1, -2)),
        "mass": mass.mul(mask[:, None]).sum(-1),
        "recall": recall.mul(mask[:, None]).sum(-1),
        "difference": (out - softmax).square().sum((-1, -2)),
        "norm": softmax.square().sum((-1, -2)),
    }
    frame = pd.DataFrame({name: column.flatten().tolist() for name, column in columns.items()})
    return frame.assign(head=list(range(heads)) * batch)


def summary(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Rows of `compare` summed up: shares of pairs and of mass, recall, and the error of the output.

    The error is the Frobenius norm of the difference over that of softmax's output, in each layer and batch; then the
    mean over these.
    """
    sums = rows.assign(all_pairs=rows["length"] ** 2).groupby(by).sum(numeric_only=True)
    one = rows.groupby(list(dict.fromkeys([*by, "layer", "batch"])))[["difference", "norm"]].sum()
    table = sums[["mass", "recall"]].div(sums["length"], axis="index")
    table.insert(0, "pairs", sums["pairs"] / sums["all_pairs"])
    table["error"] = (one["difference"] / one["norm"]).pow(0.5).groupby(by).mean()
    return table.reset_index()


def by_head_and_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `compare` summed up by layer, head and third of the sequences by length."""
    thirds = np.unique(np.quantile(rows["length"], [1 / 3, 2 / 3]))
    same = rows.groupby(np.searchsorted(thirds, rows["length"]))["length"]
    lengths = same.transform("min").astype(str) + " to " + same.transform("max").astype(str)
    return summary(rows.assign(lengths=lengths), ["layer", "head", "lengths"])
