# A study from its YAML file to the report: notebooks (papermill), tables and figures, report.
#
#     snakemake --cores all --config study=mini
#
# (`make study` does this, and keeps what Snakemake says in logs/.) What is missing is made, what is there is kept. A
# failed job stops no other (profiles/default) and is named at the end. `python -m albert_study.study mini` lists all jobs.

import os
import re
import sys

from filelock import FileLock, Timeout

from albert_study.execute import failures, gpus, opening
from albert_study.study import load_jobs, to_make

NAME, PYTHON = str(config.get("study", "mini")), sys.executable
try:
    JOBS = load_jobs(NAME)
    MISSING = {job.output(): job for job in to_make(NAME, JOBS)}
    if workflow.is_main_process:  # on a cluster, every job reads this file again
        os.makedirs("logs", exist_ok=True)
        LOCK = FileLock(f"logs/.{NAME}.lock")  # until this process ends, in whatever way: two would write the same tables
        LOCK.acquire(timeout=0)
except (ValueError, OSError) as error:
    print(f"error: logs/.{NAME}.lock is in use by another `make study`" if type(error) is Timeout else f"error: {error}")
    sys.exit(1)

DONE = [path for job in JOBS.values() if job not in MISSING.values() for path in job.results]
TABLES = f"results/tables/{NAME}-scores.csv"
REPORT = f"report/build/{NAME}.pdf"  # two pages of this study; `make report` writes what is committed
HAS_RUNS = any(job.run for job in JOBS.values())  # only runs have tables and a place in the report

# Every job has one GPU, in turn: Trainer would use all that it sees. A cluster gives its own (--config gpu=1).
GPUS = [] if "gpu" in config else gpus()
GPU_OF = {path: number % len(GPUS) for number, path in enumerate(MISSING)} if GPUS else {}
workflow.global_resources.update({f"gpu_{number}": 1 for number in range(len(GPUS))})


localrules: all  # fmt: skip


rule all:
    input:
        list(MISSING),
        [TABLES, REPORT] if HAS_RUNS else [],
    shell:
        "{PYTHON:q} -m albert_study.execute {NAME:q}"


# The runs alone, without tables and report: snakemake --cores all --config study=mini -- runs
rule runs:
    input:
        [path for path, job in MISSING.items() if job.run],


# One job. Its output is a file that is not there yet: as a rule the executed notebook, which comes after the results. No
# result that is there is an output, so that Snakemake has none to delete, nor to overwrite with an older one, as it does
# with `update` alone when a job fails. An evaluation under other attentions needs the model of its run.
rule job:
    input:
        lambda wildcards: [
            path
            for path, job in MISSING.items()
            if f"{MISSING[wildcards.path].parameters.get('trained')}/result.json" in job.results
        ],
    output:
        update("{path}"),
    wildcard_constraints:
        path="|".join(map(re.escape, MISSING)) or "(?!)",
    params:
        job=lambda wildcards: MISSING[wildcards.path].name,
        gpu=lambda wildcards: f"CUDA_VISIBLE_DEVICES={GPUS[GPU_OF[wildcards.path]]}" if GPUS else "",
    threads: 1
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
        "{PYTHON:q} -m papermill notebooks/results.ipynb results/{NAME}.partial.ipynb -r study {NAME:q}"
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
    print(opening(NAME, len(JOBS), [*MISSING.values()], len(GPUS) or workflow.cores or 1), flush=True)


onerror:
    print(failures(NAME, MISSING), flush=True)
