"""How should `lsh` count a key that a query meets in several rounds: once, or each time?

    python benchmarks/duplicates.py          writes results/tables/duplicates.csv

A pretrained encoder (all-MiniLM-L6-v2) reads 64 pairs of MRPC's training set under softmax. Every attention pass is
then done again by `lsh` on the same queries, keys and values, counting both ways, and held against softmax. An error
is the Frobenius norm of the difference of the outputs over that of softmax's output, mean over passes and seeds.
"""

import pandas as pd
import torch

from albert_lsh import attention, load_model, record_passes
from albert_lsh.model.load import load_tokenizer
from albert_lsh.model.passes import Pass
from albert_lsh.tasks.table import encode, find_task, load_data
from albert_lsh.training.files import repository_root, write_atomically
from albert_lsh.training.record import environment

MODEL, TASK, EXAMPLES, SEEDS = "sentence-transformers/all-MiniLM-L6-v2", "mrpc", 64, 3
PLAIN = {"hashing": "plain", "choose": "collision", "global_tokens": 0}  # rounds, in which a key can be met again
SETTINGS = [(2, 6), (4, 6), (8, 6), (2, 12), (4, 12), (8, 12), (4, 24)]


@torch.no_grad()
def read_under_softmax() -> list[Pass]:
    """What every attention pass is given for the first pairs of the training set."""
    tokenizer = load_tokenizer(MODEL)
    data = load_data(TASK, train_examples=EXAMPLES, eval_examples=1)
    rows = encode(data, find_task(TASK), tokenizer, max_length=128)["train"]
    batch = tokenizer.pad(rows.select_columns(["input_ids", "attention_mask"]).to_dict(), return_tensors="pt")
    model = load_model(MODEL, head="base")
    with record_passes(model) as passes:
        model(**batch)
    return passes


@torch.no_grad()
def error(seen: Pass, seed: int, **settings) -> float:
    """Distance of `lsh`'s output from softmax's, relative to the latter."""
    tensors = seen.query, seen.key, seen.value, seen.padding_mask
    softmax = attention.attend("softmax", *tensors)
    return ((attention.attend("lsh", *tensors, seed=seed, **settings) - softmax).norm() / softmax.norm()).item()


def main() -> None:
    passes, started = read_under_softmax(), environment("cpu")
    rows = []
    for n_hashes, cluster_size in SETTINGS:
        settings = {**PLAIN, "n_hashes": n_hashes, "cluster_size": cluster_size}
        seen = [
            attention.coverage("lsh", p.query, p.key, p.padding_mask, seed=s, **settings)
            for p in passes
            for s in range(SEEDS)
        ]
        errors = {
            f"error_{way}": pd.Series(
                [error(p, s, duplicates=way, **settings) for p in passes for s in range(SEEDS)]
            ).mean()
            for way in ("once", "each")
        }
        rows.append(
            {
                "n_hashes": n_hashes,
                "cluster_size": cluster_size,
                "pairs": pd.Series([c.pairs for c in seen]).mean(),
                **errors,
            }
        )
    about = {"model": MODEL, "task": TASK, "split": "train", "examples": EXAMPLES, "seeds": SEEDS, **started}
    about["packages"] = " ".join(f"{name}=={version}" for name, version in started["packages"].items())
    table = pd.DataFrame(rows).assign(**about)
    write_atomically(repository_root() / "results" / "tables" / "duplicates.csv", table.to_csv(index=False))
    print(table.iloc[:, :5].round(3).to_string(index=False))


if __name__ == "__main__":
    main()
