"""Golden test: scores and differences from the committed records, beside results/tables/*.csv of an older checkout.

    python tests/golden_tables.py OLD_CHECKOUT

Prints every number that differs in its first six digits, and every line or table that only one of them has.
"""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from albert_lsh.files import repository_root
from albert_study.compare import differences, gaps, predictors, shuffled, switched
from albert_study.records import list_studies, load, read_table
from albert_study.scores import scores

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


def metrics(table: pd.DataFrame) -> pd.DataFrame:
    """A line an arm and metric of the older checkout's scores."""
    names = [name.removeprefix("sd.") for name in table if name.startswith("sd.") and "_shuffled" not in name]
    kinds = {"score": "", "sd": "sd.", "majority": "majority.", "chance": "chance."}
    of_metric = [table.assign(measure=name, **{kind: table[prefix + name] for kind, prefix in kinds.items()})
                 for name in names]  # fmt: skip
    return pd.concat(of_metric).dropna(subset="score")


def compared(old: Path, root: Path) -> Iterator[tuple[str, list[str]]]:
    """Each table, and what differs in it."""
    arm, same = ["task", "model", "arm"], ("score", "sd", "seeds", "majority", "chance")
    keys = {"switched": ["task", "variant", "share"], "shuffled": arm, "differences": ["model", "task", "from", "to"]}
    names = {name: name for name in (*same, "commit", "bag_of_words", "variety", "constant")}
    names |= {"headline": "measure", "attended_share": "pairs", "full_cost": "cost", "processor": "device"}

    def earlier(name: str) -> pd.DataFrame:
        return read_table(old / f"results/tables/{name}.csv")

    for study in list_studies(root).query("listed > 0").index:
        rows = load(root, study)
        new, was = scores(rows, root), earlier(f"{study}-scores")
        yield f"{study}-scores", lines_apart(was, new[new["is_headline"]], arm, names)
        yield f"{study}-metrics", lines_apart(metrics(was), new, [*arm, "measure"], {name: name for name in same})
        for name, make in {"differences": differences, "switched": switched, "shuffled": shuffled}.items():
            new, was = make(rows, root), earlier(f"{study}-{name}")
            if name == "switched" and len(was):
                was = was.rename(columns=ASKED).rename(columns={"score_name": "metric"}).drop(columns="settings")
                correlations = earlier(f"{study}-predictors").replace({"diagnostic": ASKED})
                columns = {name: name for name in ("all", "at_a_share")}
                told = lines_apart(correlations, predictors(new), ["task", "diagnostic"], columns)
                yield f"{study}-predictors", told
            if len(was) and len(new):
                yield f"{study}-{name}", lines_apart(was, new, keys[name], {name: name for name in was})
            elif len(was) or len(new):
                yield f"{study}-{name}", [f"{len(was)} lines were, {len(new)} are"]
    was = earlier("pretraining-gaps")
    told = lines_apart(was, gaps(load(root), root), ["from", "to", "metric"], {name: name for name in was})
    yield "pretraining-gaps", told


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    for table, told in compared(Path(sys.argv[1]), repository_root()):
        print(f"{table}: {len(told) or 'no'} difference{'' if len(told) == 1 else 's'}", *told[:20], sep="\n    ")
