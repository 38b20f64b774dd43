"""The statistics of the tables: means over seeds, paired differences, and how sure they are."""

import math
from typing import NamedTuple

import pandas as pd
from scipy import stats


class Difference(NamedTuple):
    """A mean difference and its standard error, NaN where one pair is all there is."""

    mean: float
    standard_error: float
    pairs: int

    @property
    def p(self) -> float:
        """Student's two-sided p-value of no difference; 1 where one pair, or none, is all there is."""
        if self.pairs < 2:
            return 1.0
        if not self.standard_error:  # all pairs differ by the same
            return float(self.mean == 0)
        return float(2 * stats.t.sf(abs(self.mean) / self.standard_error, self.pairs - 1))


def paired(before: pd.Series, after: pd.Series) -> Difference:
    """after - before, paired by their index; what only one of them has does not count."""
    difference = (after - before).dropna()
    pairs = len(difference)
    return Difference(difference.mean(), difference.std(ddof=1) / math.sqrt(max(pairs, 1)), pairs)


def paired_ratio(before: pd.Series, after: pd.Series, weights: pd.Series) -> Difference:
    """By how much sum(values) / sum(weights) differs, paired by row.

    The error is that of a ratio of sums (Cochran 1977, chapter 6).
    """
    difference = after - before
    mean = difference.sum() / weights.sum()
    residual = difference - mean * weights
    error = math.sqrt((residual**2).sum() * len(before) / (len(before) - 1)) / weights.sum()
    return Difference(float(mean), float(error), len(before))
