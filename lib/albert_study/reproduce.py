"""Make a run of results/ again on this machine, in a folder of its own, and show both scores side by side.

    python -m albert_study.reproduce ladder/sst2/all-MiniLM-L6-v2/2020-block/seed-40       make reproduce RUN=...

Parameters are the record's, but device and precision are those that are quick here. The new run goes to
results/runs/reproduced/, which git ignores; an interrupted one goes on at its last checkpoint.
"""

import difflib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from albert_lsh.files import OneLineError, repository_root
from albert_lsh.record import read_predictions, read_result
from albert_lsh.run import Run
from albert_lsh.train import fit
from albert_study.intervals import DRAWS, draws_of_examples, errors_of, in_parts, interval, score_of
from albert_study.names import scale_of
from albert_study.show import form
from albert_study.study import find_file, load_jobs

RUNS, AGAIN = "results/runs", "results/runs/reproduced"
ELSEWHERE = ("resume", "save_model")  # where and how a record's run was made
DEPTH = 5  # study/task/model/arm/seed


class NoRecordError(OneLineError):
    """A run that has no record here; the message says how it is made, or names the nearest ones."""


def record_of(name: str) -> Path:
    """The folder of a run, by its place in results/runs.

    Raises:
        NoRecordError: there is none.
    """
    root = repository_root()
    if (root / RUNS / name / "result.json").is_file() and name.count("/") == DEPTH - 1:
        return root / RUNS / name
    study, _, job = name.partition("/")
    if find_file(f"studies/{study}.yaml").is_file() and job in load_jobs(study):
        raise NoRecordError(
            f"RUN={name!r} is planned (studies/{study}.yaml) and has no record to compare with; "
            f"`make study STUDY={study}` makes the study's runs"
        )
    folders = (path.parent for path in (root / RUNS).glob(f"{'/'.join('*' * DEPTH)}/result.json"))
    names = sorted(str(folder.relative_to(root / RUNS)) for folder in folders)
    near = difflib.get_close_matches(name, names, 5, 0.3)
    raise NoRecordError(
        f"RUN={name!r} is none of the {len(names)} runs in {RUNS}; nearest: {', '.join(near) or 'none'}"
    )


def run_again(name: str, parameters: dict[str, Any]) -> Run:
    """The run with these recorded parameters, on this machine.

    Raises:
        ParameterError: today's library has no such run; see `Run.parse`.
    """
    same = {key: value for key, value in parameters.items() if key not in ELSEWHERE}
    here = {"device": "auto", "precision": "auto", "output_dir": f"{AGAIN}/{name}"}
    return Run.parse({**same, **here, "results_root": str(repository_root())}, f"{RUNS}/{name}/result.json")


def interval_over_examples(folder: Path, metric: str) -> tuple[float, float] | None:
    """The 95 % interval of a run's score over the examples that it answered; None if its answers were not kept."""
    path = folder / "predictions.parquet"
    if not path.exists():
        return None
    table = read_predictions(path)
    if "split" in table:
        table = table[table["split"] == table["split"].iloc[0]]
    score = score_of(metric, table)
    drawn = [score(weights.astype(float)) for weights in in_parts(draws_of_examples(len(table), DRAWS))]
    value = score(np.ones((1, len(table))))
    return interval(float(value[0]), errors_of(value, float(np.concatenate(drawn).var(ddof=1))))


def conditions(record: dict[str, Any]) -> dict[str, Any]:
    """What a run was made with that its other parameters do not say."""
    where = record["environment"]
    about = {"precision": record["parameters"]["precision"], "processor": where["device"]}
    about |= {"threads": where.get("threads"), "python": where["python"]}
    return about | where["packages"] | {"commit": (where["commit"] or "unknown")[:12]}


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def reproduce(name: str) -> dict[str, Any]:
    """Make a run again, and print both scores; the new record.

    Raises:
        NoRecordError: see `record_of`. ParameterError: see `run_again`. Whatever `fit` raises.
    """
    folder = record_of(name.strip("/").removeprefix(f"{RUNS}/"))
    name = str(folder.relative_to(repository_root() / RUNS))
    old = read_result(folder / "result.json")
    run, before = run_again(name, old["parameters"]), conditions(old)
    took = f"{minutes(old['train_seconds'])} of training in {before['precision']} on {before['processor']}"
    took += f", threads: {before['threads']}" if before["threads"] else ""
    print(f"the committed run took {took}\nhere: {run.precision} on {run.device}; the bar says how long", flush=True)
    new = fit(run).record
    print(comparison(old, new, interval_over_examples(folder, old["headline"]["name"])))
    print(f"the new run: {AGAIN}/{name}")
    return new


def comparison(old: dict[str, Any], new: dict[str, Any], ends: tuple[float, float] | None) -> str:
    """Two records' scores side by side, and what differs; ends: of the old one's interval over examples."""
    metric, (before, after) = old["headline"]["name"], (record["headline"]["value"] for record in (old, new))
    digits = str(scale_of(old["parameters"]["task"], metric)[1] + 1)
    rows = [("", "committed", "made again")]
    scores = old["metrics"].items()
    rows += [(label, form(value, digits), form(new["metrics"].get(label), digits)) for label, value in scores]
    rows += [("training", minutes(old["train_seconds"]), minutes(new["train_seconds"]))]
    lines = ["", *(f"{label:12}  {first:>12}  {second:>12}" for label, first, second in rows), ""]
    if ends:
        inside = "inside" if ends[0] <= after <= ends[1] else "outside"
        shown = " to ".join(form(end, digits) for end in ends)
        lines.append(f"{metric}, committed: {form(before, digits)}, 95 % interval over examples {shown}")
        lines.append(f"made again: {form(after, digits)}, {inside}; another seed would move it further")
    else:
        lines.append(f"no interval of {metric}: the committed run kept no answers")
    was, now = conditions(old), conditions(new)
    other = [f"  {key}: {was[key]}, now {now.get(key)}" for key in was if was[key] not in (None, now.get(key))]
    return "\n".join([*lines, "differs:" if other else "nothing differs", *other])


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or not arguments[0]:
        raise SystemExit(__doc__)
    try:
        reproduce(arguments[0])
    except (ValueError, OSError, KeyboardInterrupt) as error:
        raise SystemExit(f"error: {error or 'interrupted; the next start goes on where it was'}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
