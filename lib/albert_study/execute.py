"""Execute a study's notebooks, keep them without folders of the machine or texts of others, and say how long it takes.

    python -m albert_study.execute mini mini-mrpc/mini/softmax/seed-0   one job; prints a line with its score and time

The Snakefile makes all jobs of a study with it, and shows the study's `summary`. papermill and nbformat take seconds to
import, so they are imported where they are used.
"""

import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from albert_lsh import machine
from albert_lsh.files import lock, repository_root
from albert_lsh.record import read_result
from albert_study.names import RUNGS
from albert_study.study import Arm, Job, StudyError, StudyFile, find_file, load_jobs

# An absolute path of two parts or more; it may follow a colour code, but is no part of a URL, a tag or a fraction.
PATH = re.compile(r"(?:(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm)|(?<![\w.:/<~)-]))(?:/[\w.+@~-]+){2,}/?")
# Folders of a checkout or an environment: a path is kept from the first of them on.
ANCHORS = re.compile(r"/((?:site-packages|notebooks|results|figures|studies|report|lib/albert_\w+)(?:/.*|$))")
WIDTH = 110  # of a terminal
VISIBLE = "CUDA_VISIBLE_DEVICES"
LIKE = ("device", "model", "task", "attention", "max_length")  # what runs share that take alike for an example
DEPTHS = (5, 3, 2)  # how many of these: all, or those of a task, or of a model


def without_folders(value: Any) -> Any:
    """A copy of a part of a notebook, every absolute path shortened: from the checkout on, or else to its last part."""

    def shorten(path: re.Match[str]) -> str:
        anchored = ANCHORS.search(path[0])
        return anchored[1] if anchored else Path(path[0]).name

    if isinstance(value, dict):  # a picture is encoded as text
        return {key: part if key.startswith("image/p") else without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    return PATH.sub(shorten, value) if isinstance(value, str) else value


def clean(path: Path, texts_are_ours: bool) -> None:
    """Rewrite an executed notebook `without_folders`; the cells tagged `examples` show texts of our own data alone."""
    import nbformat

    notebook = nbformat.from_dict(without_folders(nbformat.read(path, as_version=4)))
    for cell in notebook.cells:
        if not texts_are_ours and "examples" in cell.metadata.get("tags", []):
            cell.outputs = []
    about = notebook.metadata.papermill
    about["output_path"] = about["output_path"].replace(".partial.ipynb", ".ipynb")
    nbformat.write(notebook, path)


def named_arms(arms: str | list[str] | dict[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """By arm, the parameters of its runs that are its own.

    arms: "ladder", names of its arms ("one,other" as well), or by name the parameters themselves. Of
    studies/ladder.yaml the arms of SST-2 are taken, without their learning rates, which are its model's.

    Raises:
        StudyError: a name that is no arm of the ladder; no arm at all.
    """
    if isinstance(arms, dict) and arms and all(isinstance(of_arm, dict | None) for of_arm in arms.values()):
        return {name: of_arm or {} for name, of_arm in arms.items()}
    names = list(RUNGS) if arms == "ladder" else arms.split(",") if isinstance(arms, str) else arms
    if not isinstance(names, list) or not names or not {*names} <= RUNGS.keys():
        known = f"a list of its arms ({', '.join(RUNGS)}), or by name what a run of each has of its own"
        raise StudyError(f'arms={arms!r} must be "ladder", {known}')
    entries = StudyFile("ladder").study.tasks["sst2"].arms
    return {
        name: {k: v for k, v in (entries[name] or Arm()).values().items() if k != "learning_rate"} for name in names
    }


def gpus() -> list[str]:
    """The GPUs that torch sees, as CUDA_VISIBLE_DEVICES names them: numbers or UUIDs."""
    import torch

    count = torch.cuda.device_count()
    return os.environ.get(VISIBLE, ",".join(map(str, range(count)))).split(",")[:count]


def execute(job: Job) -> None:
    """Execute a job's notebook under a temporary name, and rename it; it stays there if it fails.

    Raises:
        FolderInUseError: another process executes it.
        StudyError: the model that it reads is not there; a result was not written.
        papermill.PapermillExecutionError: a cell failed.
    """
    root, missing = repository_root(), job.missing()
    kept = root / job.kept
    with lock(kept.parent, kept.stem):
        job.check_result()
        if (job.run or missing) and not job.missing():
            return  # made by the process for which this one had to wait
        trained = job.parameters.get("trained")
        if trained and not (root / trained / "model").is_dir():
            problem = f"{trained}/model is not there (models are not kept in the repository), so that "
            problem += f"{job.results[0]} cannot be made; delete the run's folder to make all of it again"
            raise StudyError(problem)
        if len(visible := gpus()) > 1:  # Trainer would use all of them
            os.environ[VISIBLE] = visible[0]
        run_notebook(find_file(f"notebooks/{job.notebook}"), root / job.partial, job.parameters)
        if unwritten := [path for path in job.results if not (root / path).exists()]:
            raise StudyError(f"the notebook ended without writing {', '.join(unwritten)}")
        clean(root / job.partial, texts_are_ours=job.task.startswith("mini-"))
        os.replace(root / job.partial, kept)


def run_notebook(source: Path, target: Path, parameters: dict[str, Any], attempts: int = 3) -> None:
    """papermill, from the repository's root; a kernel that loses a race for a port while starting is started again.

    Parameters that have no line in the notebook's cell go into its `options`.
    """
    import papermill

    in_cell = papermill.inspect_notebook(str(source))
    if others := {name: value for name, value in parameters.items() if name not in in_cell}:
        parameters = {name: value for name, value in parameters.items() if name in in_cell} | {"options": others}
    options = {"progress_bar": False, "kernel_name": "python3", "cwd": str(repository_root())}
    try:
        papermill.execute_notebook(source, target, parameters, **options)
    except RuntimeError as error:
        if "before replying to kernel_info" not in str(error) or attempts == 1:
            raise
        run_notebook(source, target, parameters, attempts - 1)


def execute_with_a_line(name: str, study: str) -> None:
    """Execute a job; print that it started, then how many of its study are done, its score if it is a run, its time."""
    jobs = load_jobs(study)
    if name not in jobs:
        raise StudyError(f"study {study!r} has no job {name!r}; it has: {', '.join(jobs)}")
    job, began, said, score = jobs[name], time.monotonic(), "failed ", ""
    print(f"started  {name}", flush=True)
    try:
        execute(job)
        said = f"{sum(not other.missing() for other in jobs.values()):2} of {len(jobs)}"
        if job.run:
            headline = read_result(repository_root() / job.results[0])["headline"]
            score = f"  {headline['name']} {headline['value']:.3g}"
    finally:
        print(f"{said}  {name}{score}  {time.monotonic() - began:.0f} s", flush=True)


def of_float32(precision: str | None, device: str, where: str) -> float:
    """A training step's time as a multiple of one in float32; where: the processor. Those elsewhere compute in bf16."""
    if (precision, device) != ("bf16", "cpu"):
        return 1.0
    return machine.time_in_bf16() if where == machine.processor() else machine.WITH_UNITS


def recorded_seconds(root: Path) -> tuple[dict[tuple[Any, ...], float], dict[str, int]]:
    """Of the runs in results/runs: the median seconds of an example in float32 by what they share; examples of whole
    tasks."""
    paces, sizes = dict[tuple[Any, ...], list[float]](), dict[str, int]()
    for path in (root / "results" / "runs").rglob("result.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # `study` says what is wrong with a record
            record = read_result(path)
            run, examples = record["parameters"], record["examples"]["train"]
            in_float32 = record["train_seconds"] / of_float32(
                run.get("precision"), run["device"], record.get("environment", {}).get("device", "")
            )
            for depth in DEPTHS:
                like = tuple(run[name] for name in LIKE[:depth])
                paces.setdefault(like, []).append(in_float32 / examples / run["epochs"])
            if not run["train_examples"]:
                sizes[run["task"]] = max(examples, sizes.get(run["task"], 0))
    return {like: median(values) for like, values in paces.items()}, sizes


def say_how_long(runs: list[Any], at_once: int = 1) -> float:
    """Say how long training of what is not made yet will take, so many runs at a time; the seconds of like runs."""
    paces, sizes = recorded_seconds(repository_root())
    runs, known = [run for run in runs if not (run.folder / "result.json").exists()], []
    times = [of_float32(run.precision, run.device, machine.processor()) for run in runs]
    if (slowest := max(times, default=1)) > 1:
        slow = f"bf16, which this processor emulates, takes {slowest:.0f} times as long as float32"
        print(f"{slow}; precision: auto (in the study's file, or the notebook's cell) takes float32 here", flush=True)
    for run, times_float32 in zip(runs, times, strict=True):
        alike = [tuple(getattr(run, name) for name in LIKE[:depth]) for depth in DEPTHS]
        pace, examples = next(filter(None, map(paces.get, alike)), 0), run.train_examples or sizes.get(run.task, 0)
        known += [pace * times_float32 * examples * run.epochs] if pace and examples else []
    if not known:
        return 0.0
    seconds = sum(known) / (at_once := min(at_once, len(known)))
    unit, size = next(unit for unit in (("hours", 3600), ("minutes", 60), ("seconds", 0)) if seconds >= 1.5 * unit[1])
    others = f"; without {len(runs) - len(known)} of {len(runs)} runs" if len(known) < len(runs) else ""
    about = f"{float(f'{seconds / max(size, 1):.2g}'):,g} {unit} of training, {at_once} at a time"
    print(f"expected: about {about}, by the times of like runs{others}", flush=True)
    return seconds


def opening(study: str, count: int, missing: list[Job]) -> str:
    """What will be made of a study with so many jobs."""
    are = "is" if len(missing) == 1 else "are"
    more = f", {len(missing)} {are} made now, each with a line; more in logs/{study}/" if missing else ""
    return f"study {study}: {count - len(missing)} of {count} jobs are done{more}"


def failures(study: str, missing: dict[str, Job]) -> str:
    """What the logs of failed jobs say, of jobs by the file that was missing; or else what the newest log says."""
    logs, errors = repository_root() / "logs" / study, []
    for path, job in missing.items():
        if job.missing() and (log := logs / f"{path}.log").exists():
            _, _, error = log.read_text("utf-8", "backslashreplace").partition("FAILED ")
            silent = f"{job.name}\nits process ended without a word (killed, or out of memory?)"
            errors.append(f"FAILED {error or silent}")
    newest = max(logs.rglob("*.log"), key=lambda log: log.stat().st_mtime, default=None)
    return "\n\n".join(errors) or (newest.read_text("utf-8", "backslashreplace")[-3000:] if newest else "")


def summary(study: str) -> str:
    """The scores of a study, and where its tables, figures, report and notebooks are."""
    from albert_study.records import read
    from albert_study.tables.studies import score_table

    root, jobs = repository_root(), load_jobs(study).values()
    places = {
        "tables": sorted(root.glob(f"results/tables/{study}-*.csv")),
        "figures": sorted(root.glob(f"figures/{study}-*.svg")),
        "report": [root / "report" / "build" / f"{study}.pdf"],
        "notebooks": [root / job.kept for job in jobs],
    }
    scores = read(root, f"tables/{study}-scores")
    lines = [f"\n{score_table(scores).frame().to_string(line_width=WIDTH)}"] if len(scores) else []
    for kind, paths in places.items():
        made = [f"  {path.relative_to(root)}" for path in paths if path.exists()]
        lines += [f"\n{kind}:", *made] if made else []
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    study, job = arguments
    try:
        execute_with_a_line(job, study)
    except (Exception, KeyboardInterrupt) as error:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error) or "interrupted; the next start goes on where it was")
        raise SystemExit(f"FAILED {job}\n{text}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
