"""How near attentions come to softmax's output in how much time: one layer of all-MiniLM-L6-v2 on English paragraphs.

    OMP_NUM_THREADS=1 python benchmarks/frontier.py [LENGTHS ...]    writes results/efficiency/frontier.csv
    python benchmarks/frontier.py draw                               figures/frontier, of that table

For an idle machine. Queries, keys and values are those of the model with softmax, its positions repeated up to the
length, on paragraphs of SQuAD one after another. Errors are means over LAYERS. Times are a forward pass of one of these
layers, float32; all cases of a length take turns in one process. What took more than SLOW seconds is left out at the
lengths above.
"""

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib as mpl
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from peers import hyper, lsg
from torch import Tensor

from albert_lsh import load_model, load_tokenizer, record_passes
from albert_lsh.attention import attend
from albert_lsh.data import load_data
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.interface import Pass
from albert_lsh.model.load import extend_positions
from albert_lsh.record import provenance
from albert_study.experiments.efficiency import seconds_of
from albert_study.records import read
from albert_study.show import LOOK, curves, save

MODEL, LENGTHS, LAYERS, REPEATS = "sentence-transformers/all-MiniLM-L6-v2", (512, 1024, 2048, 4096, 8192), (1, 3, 5), 3
SHARES = (0.5, 0.25, 0.125)
SLOW = 2.0  # seconds at the length before, after which a case is left out
NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "key-clusters": ("key-clusters", {}),
    "lsh": ("lsh", {}),
    "lsh, rest": ("lsh", {"mean_key": True}),
    "smyrf": ("smyrf", {}),
    "random, rest": ("random", {"mean_key": True}),
    "window, rest": ("window", {"mean_key": True}),
    "hyper": (hyper.Hyper.name, {}),
    "improved-clustered": ("improved-clustered", {}),
    "nystrom": ("nystrom", {}),
    "top-k": ("top-k", {}),
    "LSG": (lsg.LSG.name, {}),
}

ON_FRONTIER = ("key-clusters", "lsh", "nystrom", "LSG", "top-k")  # lines of their own; the others are grey points
Attend = Callable[..., Tensor]  # of a query, a key and a value, each (batch, heads, length, head_dim)


@torch.no_grad()
def passes_of(lengths: tuple[int, ...]) -> dict[int, list[Pass]]:
    """Of LAYERS, at each length."""
    text = " ".join(dict.fromkeys(load_data("squad")["validation"]["context"]))
    tokens = load_tokenizer(MODEL)(text[: 12 * max(lengths)], return_tensors="pt", verbose=False)["input_ids"]
    model, passes = extend_positions(load_model(MODEL, head="base"), max(LENGTHS + lengths)).eval(), {}
    for length in lengths:
        with record_passes(model) as recorded:
            model(input_ids=tokens[:, :length])
        passes[length] = [recorded[layer] for layer in LAYERS]
    return passes


def cases_at(length: int) -> dict[tuple[str, float], Attend]:
    """The attentions, each by name and the share of the pairs that it is asked for."""
    cases: dict[tuple[str, float], Attend] = {("softmax", 1.0): partial(attend, "softmax")}
    for share in SHARES:
        cases |= {(case, share): partial(attend, name, share=share, **more) for case, (name, more) in NAMES.items()}
    return cases


@torch.no_grad()
def error(case: Attend, passes: list[Pass]) -> float:
    """The norm of the difference from softmax's output over that of softmax's, mean over passes."""
    rows = [(one.query, one.key, one.value) for one in passes]
    exact = [attend("softmax", *row) for row in rows]
    pairs = zip(rows, exact, strict=True)
    return statistics.mean(((case(*row) - output).norm() / output.norm()).item() for row, output in pairs)


@torch.no_grad()
def run(case: Attend, one: Pass) -> None:
    case(one.query, one.key, one.value)


def plot_frontier(table: pd.DataFrame) -> Figure:
    """The error of the output on real text against the time of a layer's attention, as a multiple of softmax's.

    A panel a length, a line an attention; its points are the shares of the pairs that it was asked for. The grey line
    is what seeing the best keys would be, in softmax's time x pairs; grey points are the other attentions.

    table: that `main` wrote.
    """
    is_softmax = table["case"] == "softmax"
    softmax = table[is_softmax].set_index("length")["seconds"]
    lines = table[~is_softmax].assign(time=table["seconds"] / table["length"].map(softmax), name=table["case"])
    best = lines[lines["case"] == "top-k"].assign(name="best keys, if time were the pairs'", look="")
    is_drawn = lines["case"].isin(ON_FRONTIER)
    drawn = pd.concat([lines[is_drawn].assign(look=lines["case"]), best.assign(time=best["share"])])
    drawn["title"] = drawn["length"].map("{:,} tokens".format)
    figure = curves(
        drawn.sort_values(["length", "time"]), "time", {"error": "error of output"}, "title", size=(6.6, 3.4)
    )
    others = lines[~is_drawn].groupby("length")
    for axis, (_, points) in zip(figure.axes, others, strict=True):
        axis.plot(points["time"], points["error"], linestyle="", marker="o", markersize=2.5, color="#bbbbbb", zorder=1)
        axis.axvline(1, color="black", linewidth=0.6)
        axis.set(xscale="log", yscale="log", xlabel="time / softmax's", xlim=(0.08, 160))
        axis.xaxis.set_major_locator(LogLocator(10, numticks=9))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_locator(NullLocator())
    return figure


def draw() -> None:
    with mpl.rc_context(LOOK):  # without its salt the same figure would be another file
        save(plot_frontier(read(repository_root(), "efficiency/frontier")), repository_root() / "figures" / "frontier")


def main(lengths: tuple[int, ...]) -> None:
    rows: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    path = repository_root() / "results" / "efficiency" / "frontier.csv"  # written after each length
    for length, passes in passes_of(lengths).items():
        cases = {key: case for key, case in cases_at(length).items()
                 if key[0] == "softmax" or seconds.get(str(key), 0) < SLOW}  # fmt: skip
        runs = {str(key): partial(run, case, passes[1]) for key, case in cases.items()}
        seconds = {str(key): SLOW for key in cases_at(length)}  # those that are left out stay so
        seconds |= {key: statistics.median(taken) for key, taken in seconds_of(runs, REPEATS).items()}
        for (name, share), case in cases.items():
            row = {"model": MODEL, "length": length, "case": name, "share": share, "error": error(case, passes)}
            row |= {"seconds": seconds[str((name, share))], "threads": torch.get_num_threads()} | provenance("cpu")
            rows.append(row)
            print(f"{length} {name} {share:g}: error {row['error']:.3f}, {row['seconds']:.4f} s", flush=True)
        write_atomically(path, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    draw() if sys.argv[1:] == ["draw"] else main(tuple(map(int, sys.argv[1:])) or LENGTHS)
