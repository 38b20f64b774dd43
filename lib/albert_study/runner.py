"""Execute the notebooks of a study. A study is a YAML file that lists them, with their parameters; see `jobs`.

    python -m albert_study.runner mini                                  every job of studies/mini.yaml: done, or why not
    python -m albert_study.runner mini mini-mrpc/mini/lsh/seed-0        execute one of them
    python -m albert_study.runner no-training stsb/all-MiniLM-L6-v2/softmax/seed-0/fidelity-validation

The Snakefile makes all of a study.
"""

import sys
import time
from pathlib import Path

from albert_lsh.files import relative_to_root, repository_root
from albert_lsh.record import read_result
from albert_study.executed import clean, execute_notebook, executing
from albert_study.jobs import Job, load_jobs
from albert_study.study_file import StudyError


def mark(study: str, name: str, results: list[str]) -> str:
    """Path of the empty file that tells Snakemake that a job's results were made; deleted where one is missing.

    Snakemake deletes a rule's output before the rule runs and after it has failed. Results are in the repository, so
    none of them is an output.
    """
    path = Path("logs") / study / f"{name}.made"
    if not all(Path(result).exists() for result in results):
        path.unlink(missing_ok=True)
    return str(path)


def to_make(study: str, jobs: dict[str, Job]) -> list[Job]:
    """The jobs whose results are not there.

    Raises:
        StudyError: all runs whose results are not what the study's file asks for, and where they are.
        OSError: a result may not be read.
    """
    missing, reasons, folders = [], [], []
    for job in jobs.values():
        try:
            if not job.is_done():
                missing.append(job)
        except ValueError as error:
            (result,) = job.results  # only of runs are the parameters compared
            reasons += [f"  {job.name}: {str(error).removeprefix(f'{result} was ')}"]
            folders += [str(Path(result).parent)]
    if not reasons:
        return missing
    first = f"results not made as studies/{study}.yaml says, {len(reasons)} of {len(jobs)}:"
    then = "Where a parameter was changed, change it back. Runs that are moved away are made again:"
    raise StudyError("\n".join([first, *reasons, then, *(f"  {folder}" for folder in folders)]))


def execute(job: Job) -> None:
    """Execute a job's notebook; SystemExit if it fails. A run that is done is left alone."""
    missing, kept = job.missing(), repository_root() / job.kept
    with executing(kept) as partial:
        lost = job.kept in missing and not kept.exists()
        if (job.makes_run or missing) and job.is_done() and not lost:  # by the process for which this one had to wait
            return
        if job.run and not job.makes_run and not (model := job.run.folder / "model").is_dir():
            raise StudyError(
                f"{relative_to_root(model)} is not there (models are not kept in the repository), so that "
                f"{job.results[0]} cannot be made; delete the run's folder to make all of it again"
            )
        execute_notebook(job.notebook, partial, job.parameters)
        if unwritten := job.unwritten():
            raise StudyError(f"the notebook ended without writing {', '.join(unwritten)}")
        clean(partial, ours=(job.run.task if job.run else job.parameters.get("task", "")).startswith("mini-"))


def execute_with_a_line(job: Job, jobs: list[Job]) -> None:
    """Execute a job of a study, and print how many are done, its score if it is a run, and its time."""
    began, said, score = time.monotonic(), "failed ", ""
    try:
        execute(job)
        said = f"{sum(not one.missing() for one in jobs):2} of {len(jobs)}"
        if job.run and job.makes_run:
            headline = read_result(job.run.folder / "result.json")["headline"]
            score = f"  {headline['name']} {headline['value']:.3g}"
    finally:
        print(f"{said}  {job.name}{score}  {time.monotonic() - began:.0f} s", flush=True)


def main(arguments: list[str]) -> None:
    if len(arguments) not in (1, 2):
        raise SystemExit(__doc__)
    study, *chosen = arguments
    try:
        jobs = load_jobs(study)
        if unknown := [name for name in chosen if name not in jobs]:
            raise StudyError(f"study {study!r} has no job {unknown[0]!r}; it has: {', '.join(jobs)}")
        if not chosen:
            print("\n".join(job.status() for job in jobs.values()))
        to_make(study, {name: jobs[name] for name in chosen or jobs})
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    for name in chosen:
        execute_with_a_line(jobs[name], [*jobs.values()])


if __name__ == "__main__":
    main(sys.argv[1:])
