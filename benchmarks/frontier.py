"""How near attentions come to softmax's output in how much time: one layer of all-MiniLM-L6-v2 on English paragraphs.

    OMP_NUM_THREADS=1 python benchmarks/frontier.py [LENGTHS ...]    writes results/efficiency/frontier.csv

For an idle machine. Queries, keys and values are those of the model with softmax, its positions repeated up to the
length, on paragraphs of SQuAD one after another. The error is the norm of the difference from softmax's output over
that of softmax's, mean over LAYERS. Times are a forward pass of one of these layers, float32; all cases of a length
take turns in one process. What took more than SLOW seconds is left out at the lengths above.
"""

import statistics
import sys
from functools import partial
from typing import Any

import pandas as pd
import torch

from albert_lsh import attention, load_model, load_tokenizer, record_passes
from albert_lsh.advice import error
from albert_lsh.data import load_data
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.model.load import extend_positions
from albert_lsh.model.passes import Pass
from albert_lsh.record import provenance
from albert_study.experiments.efficiency import seconds_of

MODEL, LENGTHS, LAYERS, REPEATS = "sentence-transformers/all-MiniLM-L6-v2", (512, 1024, 2048, 4096, 8192), (1, 3, 5), 3
SHARES = (0.5, 0.25, 0.125)
SLOW = 2.0  # seconds at the length before, after which a case is left out
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "lsh": ("lsh", {}),
    "plain-lsh": ("plain-lsh", {}),
    "plain-lsh, rest": ("plain-lsh", {"rest": True}),
    "smyrf": ("smyrf", {}),
    "random, rest": ("random", {"rest": True}),
    "window, rest": ("window", {"rest": True}),
    "hyper": ("hyper", {}),
    "improved-clustered": ("improved-clustered", {}),
    "nystrom": ("nystrom", {}),
    "top-k": ("top-k", {}),
}


@torch.no_grad()
def passes_of(lengths: tuple[int, ...]) -> dict[int, list[Pass]]:
    """Of LAYERS, at each length."""
    text = " ".join(dict.fromkeys(load_data("squad")["validation"]["context"]))
    tokens = load_tokenizer(MODEL)(text[: 12 * max(lengths)], return_tensors="pt", verbose=False)["input_ids"]
    model, passes = extend_positions(load_model(MODEL, head="base"), max(lengths)).eval(), {}
    for length in lengths:
        with record_passes(model) as recorded:
            model(input_ids=tokens[:, :length])
        passes[length] = [recorded[layer] for layer in LAYERS]
    return passes


@torch.no_grad()
def output(one: Pass, name: str, **settings: Any) -> torch.Tensor:
    return attention.attend(name, one.query, one.key, one.value, **settings)


def main(lengths: tuple[int, ...]) -> None:
    rows: list[dict[str, Any]] = []
    cases = {(case, share): (name, {**more, "share": share})
             for case, (name, more) in NAMES.items() for share in SHARES}  # fmt: skip
    cases[("softmax", 1.0)] = ("softmax", {})
    path = repository_root() / "results" / "efficiency" / "frontier.csv"  # written after each length
    for length, passes in passes_of(lengths).items():
        runs = {str(key): partial(output, passes[1], name, **settings) for key, (name, settings) in cases.items()}
        seconds = {key: statistics.median(taken) for key, taken in seconds_of(runs, REPEATS).items()}
        for (case, share), (name, settings) in cases.items():
            switched = [one._replace(attention=name, settings=settings) for one in passes]
            mean = statistics.mean(error(*pair) for pair in zip(switched, passes, strict=True))
            row = {"model": MODEL, "length": length, "case": case, "share": share, "error": mean}
            row |= {"seconds": seconds[str((case, share))], "threads": torch.get_num_threads()} | provenance("cpu")
            rows.append(row)
            print(f"{length} {case} {share:g}: error {mean:.3f}, {row['seconds']:.4f} s", flush=True)
        write_atomically(path, pd.DataFrame(rows).to_csv(index=False))
        cases = {key: case for key, case in cases.items() if key[0] == "softmax" or seconds[str(key)] < SLOW}


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or LENGTHS)
