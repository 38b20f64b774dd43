"""How many pairs of real tokens do SMYRF's two rounds of clusters of 32, or 16, see in GLUE's short texts?

    python benchmarks/smyrf_pairs.py    writes results/efficiency/smyrf-pairs.csv

In its BERT of 128 tokens (Daras et al. 2020, table 2) padding is meant to be sorted last and masked, and clusters are
cut from the front (its repository: smyrf/torch/attn.py and utils.py, `lsh_clustering`). So n tokens have n // 32 full
clusters and one with the rest, and a text of up to 32 tokens sees all of its pairs. Here clusters are of equal size.
Two rounds see what either sees, if their orders are independent. Shares are of all pairs of a split, as in a run's
`attended_share`: a long text weighs more. Tokens are those of MiniLM's tokenizer, BERT's own words.
"""

from statistics import fmean, mean, median

import pandas as pd

from albert_lsh import load_tokenizer
from albert_lsh.data import load_data
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance
from albert_lsh.tasks import TASKS

MODEL, MAX_LENGTH, SIZES = "sentence-transformers/all-MiniLM-L6-v2", 128, (32, 16)
GLUE = ("cola", "sst2", "mrpc", "stsb", "mnli", "rte")


def cut_from_the_front(n: int, size: int) -> list[int]:
    """Sizes of the clusters of n tokens, as SMYRF cuts them."""
    return [size] * (n // size) + [n % size]


def cut_evenly(n: int, size: int) -> list[int]:
    """The same, as `smyrf` here cuts them."""
    count = -(-n // size)
    return [(c + 1) * n // count - c * n // count for c in range(count)]


def main() -> None:
    tokenizer, rows = load_tokenizer(MODEL), []
    for name in GLUE:
        task = TASKS[name]
        split, examples = [*load_data(task).items()][1]
        texts = tokenizer(*(examples[c][:] for c in task.columns), truncation=True, max_length=MAX_LENGTH)["input_ids"]
        tokens = [len(ids) for ids in texts]
        for size in SIZES:
            row = {"task": name, "split": split, "texts": len(texts), "tokens": median(tokens), "cluster_size": size}
            row["one_cluster"] = mean(n <= size for n in tokens)
            for how, cut in (("published", cut_from_the_front), ("here", cut_evenly)):
                one = [sum(members**2 for members in cut(n, size)) / n**2 for n in tokens]
                rounds = {"one_round": one, "two_rounds": [1 - (1 - x) ** 2 for x in one]}
                row |= {f"{how}_{name}": fmean(shares, [n**2 for n in tokens]) for name, shares in rounds.items()}
            rows.append(row | {"model": MODEL, "max_length": MAX_LENGTH} | provenance("cpu"))
            print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
    path = repository_root() / "results" / "efficiency" / "smyrf-pairs.csv"
    write_atomically(path, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    main()
