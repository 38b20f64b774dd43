"""How often do codes of vectors at right angles collide: Gaussian ones, as `yoso` has them, and Hadamard ones?

    python benchmarks/yoso_hashes.py    writes results/efficiency/yoso-hashes.csv

The configurations of mlpen/YOSO hash by three rounds of random signs and a Hadamard transform
(yoso_v1/cuda/fast_lsh_cumulation_cuda.cu); the code's bits are the signs of neighbouring places of the result. A
Gaussian code of n bits collides in 2^-n there.
"""

import numpy as np
import pandas as pd
from scipy.linalg import hadamard

from albert_lsh.files import repository_root, write_atomically
from albert_lsh.record import provenance

DIM, BITS, PAIRS, BATCHES, ROUNDS = 64, 9, 50_000, 20, 3


def collide(left: np.ndarray, right: np.ndarray) -> float:
    """The share of the codes that are the same in both, (pairs, DIM)."""
    codes = DIM // BITS  # of one transform
    alike = ((left > 0) == (right > 0))[:, : codes * BITS]
    return float(alike.reshape(PAIRS, codes, BITS).all(-1).mean())


def shares(seed: int) -> dict[str, float]:
    """Of pairs of random vectors at right angles, by the kind of hash."""
    rng, transform = np.random.default_rng(seed), hadamard(DIM)
    one, other = rng.normal(size=(2, PAIRS, DIM))
    other -= (one * other).sum(1, keepdims=True) / (one * one).sum(1, keepdims=True) * one
    rows, directions = [one, other], rng.normal(size=(DIM, DIM))
    for signs in rng.choice([-1, 1], size=(ROUNDS, PAIRS, DIM)):
        rows = [(x * signs) @ transform for x in rows]
    return {"hadamard": collide(*rows), "gaussian": collide(one @ directions, other @ directions)}


def main() -> None:
    table = pd.DataFrame([{"seed": seed, **shares(seed)} for seed in range(BATCHES)])
    of_all = {"dim": DIM, "bits": BITS, "pairs": PAIRS, **provenance("cpu")}
    path = repository_root() / "results" / "efficiency" / "yoso-hashes.csv"
    write_atomically(path, table.assign(**of_all).to_csv(index=False))
    print(table[["hadamard", "gaussian"]].agg(["mean", "sem"]).round(6))


if __name__ == "__main__":
    main()
