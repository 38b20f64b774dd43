"""How far the intervals and p-values of `bootstrap` can be trusted: simulated differences whose truth is known."""

import math

import numpy as np
import pandas as pd

from albert_study.evidence.bootstrap import crossed

SEEDS = (2, 3, 5)
RATIOS = (0.25, 1.0, 4.0, 16.0)
SMALL = 0.0025  # about what Holm's correction asks of one among twenty comparisons
EXPERIMENTS = 50_000


def calibration() -> pd.DataFrame:
    """Two arms that do not differ, compared many times, by number of seeds and by what varies.

    What examples vary is taken as known, as from thousands of them it nearly is; folds are not simulated.

    Columns: seeds, ratio (the variance that seeds give the mean difference, to that which examples give it), covered
    (share of 95 % intervals that hold the truth), small (p-value), found (share of p-values below it).
    """
    generator, rows = np.random.default_rng(0), []
    for seeds in SEEDS:
        for ratio in RATIOS:
            of_examples = 1 / (1 + ratio)
            common = generator.normal(0, math.sqrt(of_examples), (EXPERIMENTS, 1))
            each = common + generator.normal(0, math.sqrt(seeds * (1 - of_examples)), (EXPERIMENTS, seeds))
            half, p = crossed(each, of_examples)
            row = {"seeds": seeds, "ratio": ratio, "covered": (np.abs(each.mean(1)) <= half).mean()}
            rows.append(row | {"small": SMALL, "found": (p < SMALL).mean()})
    return pd.DataFrame(rows)
