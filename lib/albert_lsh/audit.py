"""What an attention would do to a model on texts of one's own, before anything is trained: errors, and measured time.

    result = audit("sentence-transformers/all-MiniLM-L6-v2", texts)
    result.shares, result.lengths       tables
    print(result.advice)                one sentence

Time is that of the whole model in evaluation, on this machine, with its threads and dtype, against softmax in the same
minutes. How much of a task's score an error costs, training decides (docs/fidelity.md has what it cost in ours).
"""

import copy
import reprlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from albert_lsh import attention as attentions

if TYPE_CHECKING:  # each imports much, and the package imports this module
    import pandas as pd
    from transformers import PreTrainedModel

    from albert_lsh.interface import Pass

SHARES = (0.5, 0.25, 0.125)
TEXTS = 16  # of up to 512 tokens that are looked at, spread evenly over all by length; of longer ones fewer
LENGTHS = (512, 1024, 2048, 4096, 8192)
REPEATS = 2  # of a measured pass, of which the fastest counts
WORTH = 0.9  # of softmax's time; what saves less is within what times vary by


class Audit(NamedTuple):
    """What `audit` measured."""

    shares: "pd.DataFrame"  # a row a share, on the texts: share, error, mass, pairs, full_cost, seconds, of_softmax
    lengths: "pd.DataFrame"  # a row a length and share, on random tokens: length, share, seconds, of_softmax
    advice: str  # or else that other programs disturbed the times


def audit(
    model: "str | PreTrainedModel",
    texts: Sequence[str],
    tokenizer: Any = None,
    *,
    attention: str = "key-clusters",
    shares: Sequence[float] = SHARES,
    seconds: float = 60.0,
) -> Audit:
    """Compare an attention with softmax in a pretrained model, on texts and on this machine. The model is not changed.

    Args:
        model: a name or folder for `load_model`, or a model of Transformers with softmax attention.
        texts: as the model is to read them, any number; longer ones are cut where the model's positions end. Sixteen
            are looked at; where these have more than 512 tokens fewer, with as many pairs as sixteen of 512 have.
        tokenizer: the model's; None loads it by the model's name.
        attention: one with a budget. shares: of the pairs, each above 0, below 1.
        seconds: about how long longer sequences are tried, after the texts.
    Returns:
        For each share the error of the attention's output (the norm of the difference over that of softmax's, mean over
        passes and batches), softmax's mass on the keys that are seen, pairs and full cost as `attention.coverage` has
        them, and seconds of the whole model; from which length on a share saves time; and advice.
    Raises:
        ValueError: no texts, or one that is no text; an attention without a budget, or a share that it cannot have.
    """
    if isinstance(texts, str) or not len(texts) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"texts={reprlib.repr(texts)} must be a list of at least one text")
    from datasets import Dataset

    from albert_lsh import machine
    from albert_lsh.metrics import SHORT, sample
    from albert_lsh.model.load import load_model, load_tokenizer, longest_input, matched, switch_attention

    tokenizer = tokenizer or load_tokenizer(model if isinstance(model, str) else str(model.name_or_path))
    model = load_model(model, head="base") if isinstance(model, str) else copy.deepcopy(model)
    switch_attention(model, "softmax").eval()
    tokenizer = matched(tokenizer, model.config, model.name_or_path)
    for share in shares:
        attentions.check(attention, {"share": share})
    chosen = spread(sorted(texts, key=len), TEXTS)
    encoded = tokenizer(chosen, truncation=True, max_length=longest_input(model, tokenizer))
    pairs = sum(len(ids) ** 2 for ids in encoded["input_ids"]) / len(chosen)
    data = Dataset.from_dict({name: spread(column, int(TEXTS * SHORT**2 / pairs)) for name, column in encoded.items()})
    batches = list(sample(model, tokenizer, data, TEXTS))
    tokens = int(torch.cat([batch["attention_mask"].sum(-1) for batch in batches]).float().median())
    clocks = machine.clocks()
    table = on_texts(model, batches, attention, shares)
    by_length = on_lengths(model, attention, shares, seconds)
    if others := machine.disturbed(clocks):
        return Audit(table, by_length, f"These times say nothing: {others} meanwhile; audit again without them.")
    return Audit(table, by_length, advise(table, by_length, attention, tokens))


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """So many rows (one at least) of them, in their order: the middle of each of `count` equal parts; all if fewer."""
    count = min(max(1, count), len(rows))
    return [rows[(2 * number + 1) * len(rows) // (2 * count)] for number in range(count)]


@torch.no_grad()
def on_texts(model: "PreTrainedModel", batches: list[Any], attention: str, shares: Sequence[float]) -> "pd.DataFrame":
    """The table `Audit.shares`."""
    import pandas as pd
    from tqdm import tqdm

    from albert_lsh.metrics import mean_coverage, recorded

    rows, of_softmax = [], fastest(model, batches, "softmax")
    for share in tqdm(shares, "audit: shares, on the texts", file=sys.stdout):
        other: dict[str, Any] = {"attention": attention, "settings": {"share": share}}
        errors = [error(one._replace(**other), one) for one in recorded(model.base_model, batches)]
        coverage = mean_coverage(one._replace(**other) for one in recorded(model.base_model, batches))
        taken = fastest(model, batches, attention, share=share)
        rows.append((share, sum(errors) / len(errors), coverage.mass, coverage.pairs, coverage.cost, taken))
    table = pd.DataFrame(rows, columns=["share", "error", "mass", "pairs", "full_cost", "seconds"])
    return table.assign(of_softmax=table["seconds"] / of_softmax)


def error(one: "Pass", exact: "Pass") -> float:
    """Of a pass's output, tokens alone: the norm of its difference from another's over that of the other's."""
    outputs = [
        attentions.attend(p.attention, p.query, p.key, p.value, p.padding_mask, seed=p.seed, **p.settings)
        for p in (one, exact)
    ]
    return ((outputs[0] - outputs[1]).norm() / outputs[1].norm()).item()


@torch.no_grad()
def fastest(
    model: "PreTrainedModel", inputs: Sequence[Mapping[str, Tensor]], attention: str, **settings: float
) -> float:
    """Seconds that the model takes for all inputs with an attention; afterwards it has softmax."""
    from albert_lsh.model.load import switch_attention

    switch_attention(model, attention, settings)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for batch in inputs:
            model.base_model(**batch)
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    switch_attention(model, "softmax")
    return min(times)


def on_lengths(model: "PreTrainedModel", attention: str, shares: Sequence[float], seconds: float) -> "pd.DataFrame":
    """The table `Audit.lengths`: one sequence of random tokens, longer and longer while there is time."""
    import pandas as pd
    from tqdm import tqdm

    from albert_lsh.encoders import max_positions
    from albert_lsh.model.load import extend_positions

    rows: list[tuple[float, ...]] = []
    end, longer = time.perf_counter() + seconds, copy.deepcopy(model)
    for length in tqdm(LENGTHS, f"audit: lengths to {LENGTHS[-1]:,} tokens, about {seconds:g} s", file=sys.stdout):
        if length > max_positions(longer.config):
            extend_positions(longer, length)
        began = time.perf_counter()
        ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length))
        inputs = [{"input_ids": ids.to(model.device)}]
        softmax = fastest(longer, inputs, "softmax")
        for share in shares:
            taken = fastest(longer, inputs, attention, share=share)
            rows.append((length, share, taken, taken / softmax))
        if time.perf_counter() + 4 * (time.perf_counter() - began) > end:  # what the next length takes
            break
    return pd.DataFrame(rows, columns=["length", "share", "seconds", "of_softmax"])


def advise(table: "pd.DataFrame", by_length: "pd.DataFrame", attention: str, tokens: int) -> str:
    """One sentence: whether a share saves time on the texts, and else from which length on one does."""
    at = f"At your {tokens} tokens (median)"
    if saving := table[table["of_softmax"] < WORTH].sort_values("error").to_dict("records"):
        best = saving[0]
        faster = f"{at} {attention} with a share of {best['share']:g} takes {best['of_softmax']:.0%} of softmax's time"
        return f"{faster}, with an error of {best['error']:.2f} in its output: fine-tune with it, and compare scores."
    keep = f"{at} no share of {attention} saves a tenth of the time, keep softmax"
    longer = by_length[by_length["length"] > tokens]
    if saving := longer[longer["of_softmax"] < WORTH].sort_values(["length", "of_softmax"]).to_dict("records"):
        best = saving[0]
        return f"{keep}; from about {best['length']:,.0f} one of {best['share']:g} does ({best['of_softmax']:.0%})."
    return keep + (f"; nor does any up to {by_length['length'].max():,} tokens." if len(by_length) else ".")
