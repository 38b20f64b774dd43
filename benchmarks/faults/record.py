"""The record beside the table (what ran, with which seed, where, at which commit), and the table by kind."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from albert_lsh.training.files import write_atomically
from albert_lsh.training.parameters import Parameters
from albert_lsh.training.record import environment
from faults.runs import ASKED, ATTENTIONS

BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"


def write_record(table: Path, seed: int, counts: dict[str, int]) -> None:
    """faults.json; a campaign that is taken up has an entry in `environments` for each start."""
    path = table.with_suffix(".json")
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() and table.exists() else {}
    asked = {
        name: Parameters.check({**ASKED, "attention": name, "attention_settings": settings}).what()
        for name, settings in ATTENTIONS.items()
    }
    environments = [*before.get("environments", []), environment("cpu")]
    record = {"seed": seed, "faults": counts, "parameters": asked, "environments": environments}
    write_atomically(path, json.dumps(record, indent=1) + "\n")


def write_page(rows: list[dict[str, Any]], page: Path) -> None:
    """The table by kind in docs/faults.md."""
    table = pd.DataFrame(rows)
    table["broken"] = table["outcome"].str.startswith("BROKEN")
    table["named"] = table["message"].fillna("").astype(str) != ""
    table["resumed"] = table["outcome"].str.startswith("went on after")
    lines = ["| kind | faults | failed or warned, and named | resumed at a checkpoint | scores differ | broken |"]
    lines += ["|---|---|---|---|---|---|"]
    for kind, of_kind in [*table.groupby("kind", sort=False), ("all", table)]:
        counts = [of_kind[name].sum() for name in ("named", "resumed")]
        counts += [of_kind["difference"].fillna(0).ne(0).sum(), of_kind["broken"].sum()]
        lines.append(f"| {kind} | {len(of_kind)} | {' | '.join(map(str, counts))} |")
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_atomically(page, f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")
