"""How near do YOSO's gradients come to those of its expectation, by the number of hashes?

    python benchmarks/yoso_gradients.py         writes results/efficiency/yoso-gradients.csv, and draws it
    python benchmarks/yoso_gradients.py draw    figures/yoso-gradients, of that table

Cosines of the gradients of queries, keys and values with those of `yoso-e`, for an upstream gradient of normal random
numbers. Rows are normal random numbers, or those of layers of all-MiniLM-L6-v2 with softmax on paragraphs of SQuAD:
means over layers, and over SEEDS of hashes. Sampled: weights in the backward pass are the collisions of the forward
pass; n2_backward: their expectation. Codes are as long as the logarithm of the length. `derivative` is the cosine of
the paper's lower bound with the derivative of the expectation itself.
"""

import math
import sys

import matplotlib as mpl
import pandas as pd
import torch
from frontier import MODEL, passes_of
from torch import Tensor

from albert_lsh.attention import attend
from albert_lsh.attention.published.yoso import unit
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.interface import Pass
from albert_lsh.record import provenance
from albert_study.records import read
from albert_study.show import LOOK, curves, save

LENGTHS, HASHES, SEEDS = (128, 512), (4, 8, 16, 32, 64, 128), range(3)
PARTS = ("query", "key", "value")
BELOW_ONE = 1 - 1e-6  # cosines of a query and a key are kept below, for a finite derivative


def gradients(compute, rows: list[Tensor], upstream: Tensor) -> list[Tensor]:
    """Of query, key and value: (batch, heads, length, head_dim) each."""
    leaves = [row.detach().requires_grad_() for row in rows]
    return [*torch.autograd.grad(compute(*leaves), leaves, upstream)]


def derivative(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The expectation, differentiated as it stands."""
    cosine = (unit(query) @ unit(key).mT).clamp(-BELOW_ONE, BELOW_ONE)
    return unit((1 - cosine.acos() / math.pi) ** math.ceil(math.log2(query.shape[2])) @ value)


def cosines(estimated: list[Tensor], exact: list[Tensor]) -> dict[str, float]:
    pairs = zip(PARTS, estimated, exact, strict=True)
    return {part: torch.cosine_similarity(one.flatten(), other.flatten(), dim=0).item() for part, one, other in pairs}


def inputs_at(passes: list[Pass]) -> list[tuple[str, list[Tensor]]]:
    """Queries, keys and values by where they come from: of each pass, and random ones of its shape."""
    made = [("MiniLM", [one.query, one.key, one.value]) for one in passes]
    generator = torch.Generator().manual_seed(0)
    return [*made, ("normal numbers", [torch.randn(x.shape, generator=generator) for x in made[0][1]])]


def main() -> None:
    rows = []
    for length, passes in passes_of(LENGTHS).items():
        for number, (source, inputs) in enumerate(inputs_at(passes)):
            upstream = torch.randn(inputs[2].shape, generator=torch.Generator().manual_seed(number))
            exact = gradients(lambda *t: attend("yoso-e", *t), inputs, upstream)
            about = {"rows": source, "length": length, "number": number}
            rows.append(about | {"gradient": "derivative"} | cosines(gradients(derivative, inputs, upstream), exact))
            for n in HASHES:
                for seed in SEEDS:
                    for gradient, bound in (("sampled", False), ("n2_backward", True)):
                        settings = {"n_hashes": n, "n2_backward": bound, "seed": seed}
                        estimated = gradients(lambda *t, s=settings: attend("yoso", *t, **s), inputs, upstream)
                        drawn = {"gradient": gradient, "n_hashes": n, "seed": seed}
                        rows.append(about | drawn | cosines(estimated, exact))
    table = pd.DataFrame([row | {"model": MODEL} | provenance("cpu") for row in rows])
    path = repository_root() / "results" / "efficiency" / "yoso-gradients.csv"
    write_atomically(path, table.to_csv(index=False))
    print(table.groupby(["rows", "length", "gradient", "n_hashes"], dropna=False)[[*PARTS]].mean().round(3))
    draw()


def draw() -> None:
    lines = read(repository_root(), "efficiency/yoso-gradients")
    is_drawn = (lines["gradient"] != "derivative") & (lines["length"] == max(LENGTHS))
    lines = lines[is_drawn].assign(title=lines["rows"] + lines["length"].map(", {:,} tokens".format))
    looks = {"sampled": "yoso", "n2_backward": "yoso-e"}
    lines = lines.assign(name=lines["gradient"], look=lines["gradient"].map(looks))
    means = lines.groupby(["title", "name", "look", "n_hashes"], as_index=False)["query"].mean()
    with mpl.rc_context(LOOK):
        figure = curves(means, "n_hashes", {"query": "cosine, gradient of queries"}, "title", size=(5.4, 2.6))
        for axis in figure.axes:
            axis.set_xscale("log", base=2)
            axis.set(xlabel="hashes", ylim=(0, 1))
            axis.xaxis.set_major_formatter("{x:g}")
        save(figure, repository_root() / "figures" / "yoso-gradients")


if __name__ == "__main__":
    draw() if sys.argv[1:] == ["draw"] else main()
