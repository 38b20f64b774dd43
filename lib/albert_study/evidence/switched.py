"""Scores of a study's models under other attentions: the rows, their means over seeds, and what predicts a score."""

from pathlib import Path

import pandas as pd

from albert_lsh.training.files import repository_root
from albert_study.probe.candidates import SHARE
from albert_study.runner import Run, load_study


def load_switched(study: str, root: str | Path | None = None, split: str = "validation") -> pd.DataFrame:
    """What became of a study's models under other attentions: one row a model and variant (see `fidelity.measure`).

    Columns besides: model; label and budget, of a variant. Empty if nothing was switched.

    Raises:
        ValueError: tables of some of the study's models are missing (the message names them).
    """
    root = Path(root) if root else repository_root()
    found = sorted((root / "results" / "runs" / study).glob(f"*/*/*/seed-*/fidelity-{split}.csv"))
    runs = [run for run in planned(study, root) if split in run.switched]
    if not found:
        return pd.DataFrame()
    check_complete(f"{study}, {split}", [root / run.table(split) for run in runs])
    shares = {share for run in runs for v in run.switched[split]["variants"].values() for share in v["shares"]}
    rows = pd.concat([pd.read_csv(path).assign(model=path.parents[2].name) for path in found], ignore_index=True)
    return with_budgets(rows, shares)


def with_budgets(rows: pd.DataFrame, shares: set[float]) -> pd.DataFrame:
    """Rows of variants with columns for the label and for the budget, the share that was asked for.

    In older rows the name of a variant is both, the share in two digits: it is the one of `shares` that reads so.
    """
    names, asked = list(rows["variant"].astype(str)), list(rows.get(SHARE, [float("nan")] * len(rows)))
    for number, (name, share) in enumerate(zip(names, asked, strict=True)):
        if pd.notna(share):
            continue
        names[number], _, text = name.rpartition(" ")
        these = [share for share in shares if f"{share:.2g}" == text] or [float(text)]
        if len(these) > 1:
            raise ValueError(f"variant {name!r} of an older table may have the share {' or '.join(map(str, these))}")
        asked[number] = these[0]
    return rows.drop(columns=SHARE, errors="ignore").assign(label=names, budget=asked)


def planned(study: str, root: Path) -> list[Run]:
    """The runs that the study's file asks for; none where it has no file, as the runs of notebooks have none."""
    return load_study(study, root) if (root / "studies" / f"{study}.yaml").is_file() else []


def check_complete(what: str, paths: list[Path]) -> None:
    """Raise ValueError, naming what is missing: a mean over some of the tables would mislead."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        there = len(paths) - len(missing)
        raise ValueError(f"{what}: {there} of {len(paths)} tables are there; missing: {', '.join(missing)}")


def switched_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Per task, variant and budget, the mean over models (seeds), and the standard deviation of what is kept."""
    keys, means = ["task", "label", "budget"], ["score", "softmax", "majority", "kept", "changed", "drift"]
    groups = rows.groupby(keys, sort=False)
    table = groups[[*means, "share", "compared", "mass", "recall", "error"]].mean()
    table.insert(4, "sd.kept", groups["kept"].std(ddof=1))
    table["seeds"] = groups["seed"].nunique()
    for name in ("score_name", "examples", "settings", "commit"):
        table[name] = groups[name].agg(lambda values: "; ".join(dict.fromkeys(map(str, values))))
    table = table.reset_index()
    table["order"] = table.groupby(["task", "label"])["kept"].transform("mean")  # the best on top
    return table.sort_values(["task", "order", "budget"], ascending=[True, False, False]).drop(columns="order")


DIAGNOSTICS = ["share", "mass", "recall", "error", "drift", "changed"]


def predictors(switched: pd.DataFrame) -> pd.DataFrame:
    """Which diagnostic predicts the score? Spearman's rank correlation of each with what is kept, by task.

    `all` is taken over the variants and budgets of a `switched_table` together, `at_a_budget` over the variants at each
    budget, mean over the budgets that have four variants or more; `variants` says how many rows there were.
    """
    rows = []
    for task, of_task in switched.groupby("task", sort=False):
        budgets = [of_budget for _, of_budget in of_task.groupby("budget") if len(of_budget) >= 4]
        for name in DIAGNOSTICS:
            each = [part["kept"].corr(part[name], method="spearman") for part in budgets]
            together = of_task["kept"].corr(of_task[name], method="spearman")
            row = {"task": task, "diagnostic": name, "all": together, "at_a_budget": pd.Series(each).mean()}
            rows.append(row | {"variants": len(of_task)})
    return pd.DataFrame(rows)
