"""What was tried of faults, of Colab's environments, of a T4's memory and on an H100, as people read it."""

from collections.abc import Callable

import pandas as pd

from albert_study.evidence.formats import Named, Table, form

VERSIONS = ("python", "torch", "transformers", "datasets", "huggingface-hub", "numpy", "pandas", "ipykernel")


def reliability_tables(load: Callable) -> Named:
    """Faults by kind; how each notebook ended in each environment, and what that is; what fine-tuning keeps."""
    if not (rows := load("faults", "reliability")).empty:
        yield "faults", Table(faults_by_kind(rows))
    if not (rows := load("colab", "reliability")).empty:
        ended = rows.pivot(index="notebook", columns="environment", values="outcome").fillna("not run")
        yield "colab", Table(ended.rename_axis(index="notebook", columns=None))
        told = [*VERSIONS, "added", "replaced", "commit"]
        named = rows.assign(commit=rows["commit"].str[:10])[told].astype(object).fillna("")
        by_environment = named.groupby(rows["environment"]).agg(lambda some: ", ".join(dict.fromkeys(some)) or "none")
        yield "colab-versions", Table(by_environment.T.rename_axis(index=None, columns=None))
    if not (rows := load("t4", "reliability")).empty:
        keys = ["notebook", "batch_size", "max_length", "attention"]
        sums = rows.pivot(index=keys, columns="precision", values="sum_gb").map(lambda value: form(value, "1"))
        sums = sums.reindex(pd.MultiIndex.from_frame(rows[keys].drop_duplicates())).reset_index(keys[1:])
        titles = {"batch_size": "batch", "max_length": "tokens", "bf16": "bf16, GB", "fp32": "float32, GB"}
        yield "t4", Table(sums.rename(columns=titles).rename_axis(columns=None).astype(str))

    if not (rows := load("h100-time-bf16", "efficiency")).empty:
        yield "h100-time", Table(on_an_h100(rows))


def on_an_h100(rows: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds forward and backward, a row a length; `lsh` as it was, and with the sizes that a GPU takes now."""
    rows = rows.assign(of=rows["length"].map("{:,}".format) + " × " + rows["batch"].astype(str))
    is_new = rows["code"] == "all heads at once"
    cases = rows["case"].where(~(is_new & (rows["case"] == "lsh")), "lsh, all heads at once")
    by_case = rows.sort_values("length").assign(case=cases).groupby(["of", "case"], sort=False)
    table = by_case["both_ms"].last().unstack()
    columns = ["softmax", "lsh", "lsh, all heads at once", "plain-lsh", "plain-lsh, 1 round", "reformer-pytorch"]
    names = {"plain-lsh": "plain-lsh, 4 rounds"}
    shown = table.reindex(columns=columns).map(lambda value: form(value, "1" if value < 100 else "0"))
    return shown.rename(columns=names).rename_axis(index="tokens × batch", columns=None)


def faults_by_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """How many faults of each kind there were, and how they ended."""
    counted = pd.DataFrame(
        {
            "faults": 1,
            "failed or warned, and named": rows["message"].notna(),
            "resumed at a checkpoint": rows["outcome"].str.startswith("went on after"),
            "scores differ": rows["difference"].fillna(0).ne(0),
            "broken": rows["outcome"].str.startswith("BROKEN"),
        }
    ).astype(int)
    by_kind = counted.groupby(rows["kind"], sort=False).sum()
    return pd.concat([by_kind, by_kind.sum().to_frame("all").T]).rename_axis("kind").astype(str)
