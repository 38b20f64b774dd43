"""`make study`: a study from its file to its report, a line for every step, the scores at the end.

    python -m albert_study.make mini

Snakemake decides what is made and when (see the Snakefile); what it says goes to logs/<study>/snakemake.log.
"""

import json
import subprocess
import sys
from pathlib import Path

from albert_lsh.training.checkpoints import checkpoints_in
from albert_lsh.training.files import repository_root
from albert_lsh.training.locks import hold
from albert_study.expected import announcement
from albert_study.jobs import Job, load_jobs
from albert_study.runner import to_make
from albert_study.tables import read, score_table

OFTEN = 600  # seconds after which it is said again what is running


def running(jobs: dict[str, Job]) -> list[str]:
    """The jobs that are executed now; a training run with the step of its newest checkpoint."""
    found = []
    for name, job in jobs.items():
        kept = repository_root() / job.kept
        if kept.with_suffix(".partial.ipynb").exists():
            checkpoints = checkpoints_in(kept.parent / "checkpoints")
            state = checkpoints[max(checkpoints)] / "trainer_state.json" if checkpoints else None
            at = json.loads(state.read_text()) if state and state.exists() else None
            found.append(name + (f" (step {at['global_step']} of {at['max_steps']})" if at else ""))
    return found


def run_snakemake(study: str, jobs: dict[str, Job], log: Path) -> int:
    """Make everything that is missing; returns Snakemake's exit status."""
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--config", f"study={study}"]
    with log.open("w") as said, subprocess.Popen(command, cwd=repository_root(), stderr=said) as process:
        while True:
            try:
                return process.wait(OFTEN)
            except subprocess.TimeoutExpired:
                print(f"running: {', '.join(running(jobs))}", flush=True)


def failures(study: str, jobs: dict[str, Job]) -> str:
    """What the logs of jobs that Snakemake has started say of those that failed; of a killed one they say nothing."""
    found = []
    for name, job in jobs.items():
        log = repository_root() / "logs" / study / "jobs" / f"{name}.log"
        if job.missing() and log.exists():
            text = log.read_text()
            errors = [line for line in text.splitlines() if line.startswith("error: ")]
            ended = (errors or ["its process ended without a word (killed, or out of memory?)"])[-1]
            found.append(text[text.index("FAILED ") :] if "FAILED " in text else f"FAILED {name}\n{ended}")
    return "\n\n".join(found)


def summary(study: str, jobs: dict[str, Job]) -> str:
    """The scores of a study, and where its tables, figures, report and notebooks are."""
    root = repository_root()
    places = {
        "tables": sorted(root.glob(f"results/tables/{study}-*.csv")),
        "figures": sorted(root.glob(f"figures/{study}-*.svg")),
        "report": [root / "report" / "build" / f"{study}.pdf"] if any(job.makes_run for job in jobs.values()) else [],
        "notebooks": [path for job in jobs.values() if (path := root / job.kept).exists()],
    }
    scores = read(root, f"tables/{study}-scores")
    lines = [f"\n{score_table(scores).frame().to_string()}"] if len(scores) else []
    for what, paths in places.items():
        lines += [f"\n{what}:", *(f"  {path.relative_to(root)}" for path in paths)] if paths else []
    return "\n".join(lines)


def main(study: str) -> None:
    log = repository_root() / "logs" / study / "snakemake.log"
    try:
        jobs = load_jobs(study)
        hold(log.parent, "make", wait=0)  # two would write the same tables
        missing = to_make(study, jobs)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    are = "is" if len(missing) == 1 else "are"
    now = f", {len(missing)} {are} made now, each with a line; more in logs/{study}/" if missing else ""
    print(f"study {study}: {len(jobs) - len(missing)} of {len(jobs)} jobs are done{now}", flush=True)
    if expected := announcement(missing):
        print(expected, flush=True)
    try:
        failed = run_snakemake(study, jobs, log)
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted; `make study STUDY={study}` goes on where it was") from None
    if failed < 0:
        raise SystemExit(f"Snakemake was killed (signal {-failed}); `make study STUDY={study}` goes on where it was")
    if failed:
        raise SystemExit(failures(study, jobs) or log.read_text()[-3000:])
    print(summary(study, jobs))


if __name__ == "__main__":
    main(sys.argv[1])
