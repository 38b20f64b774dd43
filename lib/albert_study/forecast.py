"""How long training will take, by the recorded times of like runs; nothing is said of what has none."""

import json
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from albert_lsh.files import repository_root

LIKE = ("device", "model", "task", "attention", "max_length")
DEPTHS = (5, 3, 2)  # how many of these a run shares with others: all, or those of its task, or of its model


def recorded_seconds(root: Path) -> tuple[dict[tuple[Any, ...], float], dict[str, int]]:
    """Of the runs in results/runs: the median seconds of an example by what they share; examples of whole tasks."""
    paces, sizes = dict[tuple[Any, ...], list[float]](), dict[str, int]()
    for path in (root / "results" / "runs").rglob("result.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # `study` says what is wrong with a record
            record = json.loads(path.read_text(encoding="utf-8"))
            run, examples = record["parameters"], record["examples"]["train"]
            for depth in DEPTHS:
                like = tuple(run[name] for name in LIKE[:depth])
                paces.setdefault(like, []).append(record["train_seconds"] / examples / run["epochs"])
            if not run["train_examples"]:
                sizes[run["task"]] = max(examples, sizes.get(run["task"], 0))
    return {like: median(values) for like, values in paces.items()}, sizes


def say_how_long(runs: list[Any], at_once: int = 1) -> float:
    """Say how long training of what is not made yet will take, so many runs at a time; the seconds of like runs."""
    paces, sizes = recorded_seconds(repository_root())
    runs, known = [run for run in runs if not (run.folder / "result.json").exists()], []
    for run in runs:
        alike = [tuple(getattr(run, name) for name in LIKE[:depth]) for depth in DEPTHS]
        pace, examples = next(filter(None, map(paces.get, alike)), 0), run.train_examples or sizes.get(run.task, 0)
        known += [pace * examples * run.epochs] if pace and examples else []
    if not known:
        return 0.0
    seconds = sum(known) / (at_once := min(at_once, len(known)))
    unit, size = next(unit for unit in (("hours", 3600), ("minutes", 60), ("seconds", 0)) if seconds >= 1.5 * unit[1])
    others = f"; without {len(runs) - len(known)} of {len(runs)} runs" if len(known) < len(runs) else ""
    about = f"{float(f'{seconds / max(size, 1):.2g}'):,g} {unit} of training, {at_once} at a time"
    print(f"expected: about {about}, by the times of like runs{others}", flush=True)
    return seconds
