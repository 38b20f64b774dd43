"""How time and memory grow with the length, and from which length on an attention is faster than softmax."""

import numpy as np
import pandas as pd


def slopes(table: pd.DataFrame, value: str) -> pd.Series:
    """The power of the length with which each case grows, fitted on log axes from 2,048 tokens on."""
    cases = table[table["length"] >= 2048].groupby("case", sort=False)
    fits = {case: np.polyfit(np.log(of["length"]), np.log(of[value]), 1)[0] for case, of in cases if len(of) > 1}
    return pd.Series(fits, dtype=float)


def crossing_bounds(table: pd.DataFrame) -> pd.DataFrame:
    """The length from which each case is faster than softmax: columns `above` and `up_to`, NaN if it never is.

    Both are the same number, interpolated on log axes, if case and softmax were measured on one machine at one commit
    around it. Otherwise the length lies between the two. Lengths where the machines differ are left out.
    `above` is 0 if a case is faster at the smallest length.

    Args:
        table: a row a case and length, with seconds, device and commit.
    """
    table = table.assign(where=table["device"] + " " + table["commit"])
    values = ("seconds", "device", "where")
    seconds, device, where = (table.pivot(index="length", columns="case", values=value) for value in values)
    bounds = {}
    for case in table["case"][table["case"] != "softmax"].unique():
        ratio = (seconds[case] / seconds["softmax"])[device[case] == device["softmax"]]
        lengths, slower = ratio.index.to_numpy(float), np.flatnonzero(ratio >= 1)
        last = slower[-1] if len(slower) else -1
        if last == len(ratio) - 1:
            bounds[case] = (np.nan, np.nan)
        elif last < 0:
            bounds[case] = (0.0, lengths[0])
        elif where.loc[lengths[last : last + 2], [case, "softmax"]].stack().nunique() > 1:
            bounds[case] = (lengths[last], lengths[last + 1])
        else:
            near = slice(last, last + 2)
            crossing = np.exp(np.interp(0, -np.log(ratio.to_numpy()[near]), np.log(lengths[near])))
            bounds[case] = (crossing, crossing)
    return pd.DataFrame.from_dict(bounds, orient="index", columns=["above", "up_to"])
