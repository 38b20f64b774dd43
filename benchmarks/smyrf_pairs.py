"""How many pairs of real tokens do SMYRF's two rounds of clusters of 32 see in GLUE's short texts?

    python benchmarks/smyrf_pairs.py    writes results/efficiency/smyrf-pairs.csv

In its BERT of 128 tokens (Daras et al. 2020, table 2) padding is sorted last and masked, and clusters are cut from the
front (its repository: smyrf/torch/attn.py and utils.py, `lsh_clustering`). So n tokens have n // 32 full clusters and
one with the rest, and a text of up to 32 tokens sees all of its pairs. Here clusters are of equal size. Two rounds see
what either sees, if their orders are independent. Tokens are those of MiniLM's tokenizer, BERT's own words.
"""

from statistics import mean, median

import pandas as pd

from albert_lsh import load_tokenizer
from albert_lsh.data import load_data
from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance
from albert_lsh.tasks import TASKS

MODEL, MAX_LENGTH, SIZE = "sentence-transformers/all-MiniLM-L6-v2", 128, 32
GLUE = ("cola", "sst2", "mrpc", "stsb", "mnli", "rte")


def cut_from_the_front(n: int) -> list[int]:
    """Sizes of the clusters of n tokens, as SMYRF cuts them."""
    return [SIZE] * (n // SIZE) + [n % SIZE]


def cut_evenly(n: int) -> list[int]:
    """The same, as `smyrf` here cuts them."""
    count = -(-n // SIZE)
    return [(c + 1) * n // count - c * n // count for c in range(count)]


def main() -> None:
    tokenizer, rows = load_tokenizer(MODEL), []
    for name in GLUE:
        task = TASKS[name]
        split, examples = [*load_data(task).items()][1]
        texts = tokenizer(*(examples[c][:] for c in task.columns), truncation=True, max_length=MAX_LENGTH)["input_ids"]
        tokens = [len(ids) for ids in texts]
        row = {"task": name, "split": split, "texts": len(texts), "tokens": median(tokens)}
        row["one_cluster"] = mean(n <= SIZE for n in tokens)
        for cut, sizes in (("published", cut_from_the_front), ("here", cut_evenly)):
            one = [sum(size**2 for size in sizes(n)) / n**2 for n in tokens]
            row |= {f"{cut}_one_round": mean(one), f"{cut}_two_rounds": mean(1 - (1 - share) ** 2 for share in one)}
        rows.append(row | {"model": MODEL, "max_length": MAX_LENGTH} | provenance("cpu"))
        print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
    path = repository_root() / "results" / "efficiency" / "smyrf-pairs.csv"
    write_atomically(path, pd.DataFrame(rows).to_csv(index=False))


if __name__ == "__main__":
    main()
