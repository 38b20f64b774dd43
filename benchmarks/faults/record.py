"""The record beside the table (what ran, with which seed, where, at which commit)."""

import json
from pathlib import Path
from typing import Any

from albert_lsh.files import write_atomically
from albert_lsh.record import environment
from albert_lsh.run import Run
from faults.runs import ASKED, ATTENTIONS


def write_record(table: Path, seed: int, counts: dict[str, int]) -> None:
    """faults.json; a campaign that is taken up has an entry in `environments` for each start."""
    path = table.with_suffix(".json")
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() and table.exists() else {}
    asked = {
        name: Run.parse({**ASKED, "attention": name, "attention_settings": settings}).identity()
        for name, settings in ATTENTIONS.items()
    }
    environments = [*before.get("environments", []), environment("cpu")]
    record = {"seed": seed, "faults": counts, "parameters": asked, "environments": environments}
    write_atomically(path, json.dumps(record, indent=1) + "\n")
