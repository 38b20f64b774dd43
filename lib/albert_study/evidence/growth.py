"""How time and memory grow with the length, and from which length on an attention is faster than softmax."""

import numpy as np
import pandas as pd

LEAST = 2048  # tokens, from which a power of growth is fitted
NOT_DRAWN = ("random", "top-k", "shared-qk", "nystrom, transformers", "yoso-e")  # as fast as others that are drawn


def slopes(table: pd.DataFrame, value: str) -> pd.Series:
    """The power of the length with which each case grows, fitted on log axes from 2,048 tokens on."""
    grown = {}
    for case, rows in table[table["length"] >= LEAST].groupby("case", sort=False):
        if len(rows) > 1:
            grown[case] = np.polyfit(np.log(rows["length"]), np.log(rows[value]), 1)[0]
    return pd.Series(grown, dtype=float)


def crossing_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The length from which each case is faster than softmax: columns `above` and `up_to`, NaN if it never is.

    Both are the same number, interpolated on log axes, if the lengths around it were measured on one machine at one
    commit. Otherwise the length lies between the two. `above` is 0 if a case is faster at the smallest length.

    Args:
        table: one row per case and length, with seconds, device and commit.
    """
    table = table.assign(where=table["device"] + " " + table["commit"])
    seconds, where = (table.pivot(index="length", columns="case", values=value) for value in ("seconds", "where"))
    found = {}
    for case in table["case"][table["case"] != "softmax"].unique():
        ratio = (seconds[case] / seconds["softmax"])[where[case] == where["softmax"]]
        lengths, slower = ratio.index.to_numpy(float), np.flatnonzero(ratio >= 1)
        last = slower[-1] if len(slower) else -1
        if last == len(ratio) - 1:
            found[case] = (np.nan, np.nan)
        elif last < 0:
            found[case] = (0.0, lengths[0])
        elif where.loc[lengths[last], case] != where.loc[lengths[last + 1], case]:
            found[case] = (lengths[last], lengths[last + 1])
        else:
            near = slice(last, last + 2)
            crossing = np.exp(np.interp(0, -np.log(ratio.to_numpy()[near]), np.log(lengths[near])))
            found[case] = (crossing, crossing)
    return pd.DataFrame.from_dict(found, orient="index", columns=["above", "up_to"])
