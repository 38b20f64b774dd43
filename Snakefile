# A study from its YAML file to the report: notebooks (papermill), tables and figures, report.
#
#     snakemake --cores all --config study=mini
#
# (`make study` calls it through albert_study.make, which shows a line for every step and the scores at the end.)
# What is missing is made, what is there is kept. A failed job stops no other (profiles/default) and is named at the end.
# `python -m albert_study.runner mini` lists all jobs: done, or why not.

import sys

import torch

from albert_study.make import failures
from albert_study.jobs import load_jobs
from albert_study.runner import mark, to_make

NAME = str(config.get("study", "mini"))
try:
    JOBS = load_jobs(NAME)
    MISSING = {mark(NAME, f"jobs/{job.name}", job.missing()): job for job in to_make(NAME, JOBS)}
except ValueError as error:
    sys.exit(f"error: {error}")

GPUS = torch.cuda.device_count()
if GPUS:
    workflow.global_resources["gpu"] = GPUS
EACH = int(config.get("gpu", bool(GPUS)))  # the machine from which a cluster is asked has none: --config gpu=1

# The rules see only the missing jobs, by their marks. Results are in the repository, so none is an output (see `mark`).
RUNS = [made for made, job in MISSING.items() if job.makes_run]
THERE = [result for job in JOBS.values() if job not in MISSING.values() for result in job.results]
TABLES = mark(NAME, "tables", [f"results/tables/{NAME}-scores.csv"])
BUILT = f"report/build/{NAME}.pdf"  # two pages of this study; `make report` writes what is committed
REPORT = mark(NAME, "report", [BUILT])
HAS_RUNS = any(job.makes_run for job in JOBS.values())  # only runs have tables and a place in the report


# Tables are named besides the report: a report that came with the repository is no proof of them.
rule all:
    input:
        list(MISSING),
        [TABLES, REPORT] if HAS_RUNS else [],


# The runs alone, without tables and report: snakemake --cores all --config study=mini -- runs
rule runs:
    input:
        RUNS,


# One job. An evaluation under other attentions needs the run's model, which only the machine that made it has.
rule job:
    input:
        lambda wildcards: [
            made
            for made in RUNS
            if not (job := JOBS[wildcards.job]).makes_run and MISSING[made].run == job.run
        ],
    output:
        touch(f"logs/{NAME}/jobs/{{job}}.made"),
    params:
        python=sys.executable,
        study=NAME,
    threads: 1
    resources:
        gpu=EACH,
    log:
        f"logs/{NAME}/jobs/{{job}}.log",
    conda:
        "environment.yml"
    # glibc hands tensors back to the system after every step and fetches them again, which on a CPU costs up to a
    # quarter of the time; it is told to keep those below 64 MB. (Larger ones too would fill the memory with holes.)
    shell:
        "OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        " MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_TRIM_THRESHOLD_=536870912"
        " {params.python:q} -m albert_study.runner {params.study:q} {wildcards.job:q} 2> {log:q}"


rule tables:
    input:
        list(MISSING),
        THERE,
        "notebooks/results.ipynb",
    output:
        touch(TABLES),
    params:
        python=sys.executable,
        study=NAME,
    log:
        f"logs/{NAME}/tables.log",
    conda:
        "environment.yml"
    shell:
        "{params.python:q} -m papermill notebooks/results.ipynb results/{params.study}.partial.ipynb"
        " -r study {params.study:q} --cwd . --no-progress-bar --log-level WARNING > {log:q} 2>&1"
        " && echo \"tables and figures: $SECONDS s\""


rule report:
    input:
        TABLES,
        "report/study.typ",
    output:
        touch(REPORT),
    params:
        python=sys.executable,
        built=BUILT,
    log:
        f"logs/{NAME}/report.log",
    conda:
        "environment.yml"
    shell:
        "{params.python:q} -m albert_study.report {params.built:q} > {log:q} 2>&1"
        " && echo \"report: $SECONDS s\""


onerror:
    print(failures(NAME, JOBS), file=sys.stderr)
