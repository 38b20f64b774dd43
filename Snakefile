# A study from its YAML file to the report: notebooks (papermill), tables and figures, report.
#
#     snakemake --cores all --config study=mini               ( ... -- runs: the runs alone, without tables and report)
#
# (`make study` does this, and keeps what Snakemake says in logs/.) What is missing is made, what is there is kept. A
# failed job stops no other (profiles/default) and is named at the end. `python -m albert_study.study mini` lists all jobs.

import re
import sys
from pathlib import Path

from filelock import FileLock

from albert_study.execute import failures, gpus, opening, summary
from albert_study.execute import say_how_long
from albert_study.study import load_jobs, to_make

NAME, PYTHON = str(config.get("study", "mini")), sys.executable
try:
    JOBS = load_jobs(NAME)
    MISSING = {job.output(): job for job in to_make(NAME, JOBS)}
    if workflow.is_main_process:  # on a cluster, every job reads this file again
        Path("logs").mkdir(exist_ok=True)
        LOCK = FileLock(f"logs/.{NAME}.lock")  # two would write the same tables; free when this process is gone
        LOCK.acquire(timeout=0)
except (ValueError, OSError) as error:
    problem = f"study {NAME} is being made by another process" if isinstance(error, TimeoutError) else error
    print(f"error: {problem}")  # where `make study` shows it
    sys.exit(1)

MODELS = {job.parameters["output_dir"]: path for path, job in MISSING.items() if job.run}


def runs_before(parameters):
    """The runs whose models a job reads: to evaluate one under other attentions, or to train it further."""
    folders = parameters.get("trained"), str(parameters.get("model", "")).removesuffix("/model")
    return [MODELS[folder] for folder in folders if folder in MODELS]


DONE = [path for job in JOBS.values() if job not in MISSING.values() for path in job.results]
TABLES = f"results/tables/{NAME}-scores.csv"
REPORT = f"report/build/{NAME}.pdf"  # two pages of this study; `make report` writes what is committed

# Every job has one GPU, in turn: Trainer would use all that it sees. A cluster gives its own (--config gpu=1).
GPUS = [] if "gpu" in config else gpus()
GPU_OF = {path: number % len(GPUS) for number, path in enumerate(MISSING)} if GPUS else {}
workflow.global_resources.update({f"gpu_{number}": 1 for number in range(len(GPUS))})


rule all:
    localrule: True
    input:
        list(MISSING),
        [TABLES, REPORT] if any(job.run for job in JOBS.values()) else [],  # other notebooks have neither
    shell:
        "true"  # so that there is a job, and then a summary, where all is made already


rule runs:
    input:
        [path for path, job in MISSING.items() if job.run],


# Its output is a file that is not there yet: as a rule the executed notebook, which comes after the results. No result that
# is there is an output, so that Snakemake has none to delete, nor to overwrite with an older one, as `update` alone does
# when a job fails. A job that reads the model which a run keeps comes after that run.
rule job:
    input:
        lambda wildcards: runs_before(MISSING[wildcards.path].parameters),
    output:
        update("{path}"),
    wildcard_constraints:
        path="|".join(map(re.escape, MISSING)) or "(?!)",
    params:
        job=lambda wildcards: MISSING[wildcards.path].name,
        gpu=lambda wildcards: f"CUDA_VISIBLE_DEVICES={GPUS[GPU_OF[wildcards.path]]}" if GPUS else "",
    resources:
        gpu=int(config.get("gpu", 0)),
        **{f"gpu_{n}": lambda wildcards, n=n: int(GPU_OF[wildcards.path] == n) for n in range(len(GPUS))},
    log:
        f"logs/{NAME}/{{path}}.log",
    # glibc hands tensors back to the system after every step and fetches them again, which on a CPU costs up to a
    # quarter of the time; it is told to keep those below 64 MB. (Larger ones too would fill the memory with holes.)
    shell:
        "{params.gpu} OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        " MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_TRIM_THRESHOLD_=536870912"
        " {PYTHON:q} -m albert_study.execute {NAME:q} {params.job:q} 2> {log:q}"


rule tables:
    input:
        list(MISSING) + DONE,
        "notebooks/results.ipynb",
    output:
        update(TABLES),
    log:
        f"logs/{NAME}/tables.log",
    shell:
        "{PYTHON:q} -m papermill notebooks/results.ipynb logs/{NAME}/results.ipynb -r study {NAME:q}"
        " --cwd . --no-progress-bar --log-level WARNING > {log:q} 2>&1 && echo \"tables and figures: $SECONDS s\""


rule report:
    input:
        TABLES,
        "report/study.typ",
    output:
        update(REPORT),
    log:
        f"logs/{NAME}/report.log",
    shell:
        "{PYTHON:q} -m albert_study.report {output:q} > {log:q} 2>&1 && echo \"report: $SECONDS s\""


onstart:
    runners = len(GPUS) or workflow.resource_settings.nodes or workflow.resource_settings.cores
    print(opening(NAME, len(JOBS), [*MISSING.values()]), flush=True)
    say_how_long([job.run for job in MISSING.values() if job.run], runners)


onsuccess:
    if not workflow.dag_settings.targets:  # with others the tables may be older than what was made
        print(summary(NAME), flush=True)


onerror:
    print(failures(NAME, MISSING), flush=True)
