"""Golden test: scores and differences from the committed records, beside results/tables/*.csv of an older checkout.

    python tests/golden_tables.py OLD_CHECKOUT

Prints every number that differs in its first six digits, and every line or table that only one of them has.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from albert_lsh.files import repository_root
from albert_study.compare import differences, gaps, predictors, scores, shuffled, switched
from albert_study.records import list_studies, load

ASKED = {"share": "pairs", "share_asked": "share"}  # how the older checkout called them


def lines_apart(old: pd.DataFrame, new: pd.DataFrame, keys: list[str], names: dict[str, str]) -> list[str]:
    """What differs between two tables. keys: of both; names: the new column of each old one."""
    old, new = (table.set_index(keys) for table in (old, new))
    told = [f"only old: {key}" for key in old.index.difference(new.index)]
    told += [f"only new: {key}" for key in new.index.difference(old.index)]
    both = old.index.intersection(new.index)
    for before, after in names.items():
        if before not in old:
            continue
        if after not in new:
            told.append(f"no column {after}")
            continue
        was, now = (table.loc[both, name] for table, name in ((old, before), (new, after)))
        if pd.api.types.is_numeric_dtype(was) and was.dtype != bool:
            same = np.isclose(was.astype(float), now.astype(float), rtol=1e-5, atol=1e-9, equal_nan=True)
        else:
            same = (was.astype(str) == now.astype(str)).to_numpy()
        told += [f"{before} of {key}: {was[key]} was, {now[key]} is" for key in both[~same]]
    return told


def headlines(table: pd.DataFrame) -> pd.DataFrame:
    """`scores` as the older checkout had them: a line an arm, its headline."""
    return table[table["is_headline"]].rename(columns={"measure": "headline"})


def metrics(table: pd.DataFrame) -> pd.DataFrame:
    """A line an arm and metric of the older checkout's scores."""
    names = [name.removeprefix("sd.") for name in table if name.startswith("sd.")]
    of_metric = [
        table.assign(measure=name, score=table[name], sd=table[f"sd.{name}"], majority=table[f"majority.{name}"],
                     chance=table[f"chance.{name}"]) for name in names if not name.endswith("_shuffled")
    ]  # fmt: skip
    return pd.concat(of_metric).dropna(subset="score")


def compared(old: Path, root: Path) -> dict[str, list[str]]:
    """By table what differs."""
    tables, found = old / "results/tables", {}
    same = {name: name for name in ("score", "sd", "seeds", "majority", "chance")}
    arm = ["task", "model", "arm"]
    for study in list_studies(root).index:
        rows = load(root, study)
        new = scores(rows, root)
        was = pd.read_csv(tables / f"{study}-scores.csv")
        names = same | {"headline": "headline", "attended_share": "pairs", "full_cost": "cost", "commit": "commit"}
        names |= {"bag_of_words": "bag_of_words", "variety": "variety", "constant": "constant", "processor": "device"}
        found[f"{study}-scores"] = lines_apart(was, headlines(new), arm, names)
        found[f"{study}-metrics"] = lines_apart(metrics(was), new, [*arm, "measure"], same)
        for name, make in {"differences": differences, "switched": switched, "shuffled": shuffled}.items():
            new, path = make(rows, root), tables / f"{study}-{name}.csv"
            was = pd.read_csv(path) if path.exists() else pd.DataFrame()
            keys = (
                ["task", "variant", "share"]
                if name == "switched"
                else [*arm]
                if name == "shuffled"
                else ["model", "task", "from", "to"]
            )
            if name == "switched" and len(was):
                was = was.rename(columns=ASKED).rename(columns={"score_name": "metric"}).drop(columns="settings")
                correlations = pd.read_csv(tables / f"{study}-predictors.csv").replace({"diagnostic": ASKED})
                found[f"{study}-predictors"] = lines_apart(
                    correlations, predictors(new), ["task", "diagnostic"], {"all": "all", "at_a_share": "at_a_share"}
                )
            if len(was) or len(new):
                found[f"{study}-{name}"] = (
                    lines_apart(was, new, keys, {name: name for name in was})
                    if len(was) and len(new)
                    else [f"{len(was)} lines were, {len(new)} are"]
                )
    was = pd.read_csv(tables / "pretraining-gaps.csv")
    found["pretraining-gaps"] = lines_apart(
        was, gaps(load(root), root), ["from", "to", "metric"], {name: name for name in was}
    )
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    for table, told in compared(Path(sys.argv[1]), repository_root()).items():
        print(f"{table}: {len(told) or 'no'} difference{'' if len(told) == 1 else 's'}", *told[:20], sep="\n    ")
