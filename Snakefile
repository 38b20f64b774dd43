# A study from its YAML file to the report: runs (papermill), tables and figures, report.
#
#     snakemake --cores all --config study=mini
#
# What is missing is made, what is there is kept. A failed run stops no other (profiles/default) and is named at the end.

import os
import sys

from albert_lsh.study import failures, load_readings, load_study

NAME = config.get("study", "mini")
try:
    RUNS = load_study(NAME)
    READINGS = list(load_readings(NAME))
    DONE = [run for run in RUNS if run.is_done()]
except ValueError as error:
    sys.exit(f"error: {error}")

import torch

GPUS = torch.cuda.device_count()
if GPUS:
    workflow.global_resources["gpu"] = GPUS

wildcard_constraints:
    model="[^/]+", task="[^/]+", arm="[^/]+", seed="[0-9]+", length="[0-9]+"

# Runs and tables are named besides the report: a report that came with the repository is no proof of them.
rule all:
    input:
        [run.result for run in RUNS],
        f"results/tables/{NAME}-scores.csv",
        "report/report.pdf",

# The runs alone, without tables and report: snakemake --cores all --config study=mini -- runs
rule runs:
    input:
        [run.result for run in RUNS],

# One run. Nothing of it is an input: a finished run is made again only when its folder is deleted.
rule run:
    output:
        f"results/runs/{NAME}/{{task}}/{{model}}/{{arm}}/seed-{{seed}}/result.json",
    threads: 1
    resources:
        gpu=1 if GPUS else 0,
    log:
        f"logs/{NAME}/{{task}}-{{model}}-{{arm}}-{{seed}}.log",
    # glibc hands tensors back to the system after every step and fetches them again, which on a CPU costs up to a
    # quarter of the time; it is told to keep those below 64 MB. (Larger ones too would fill the memory with holes.)
    shell:
        "OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        " MALLOC_MMAP_THRESHOLD_=67108864 MALLOC_TRIM_THRESHOLD_=536870912"
        " {sys.executable} -m albert_lsh.study"
        f" {NAME} {{wildcards.task}} {{wildcards.arm}} {{wildcards.seed}} > {{log}} 2>&1"

# The model of a run, asked again under other attentions. It is kept on the machine that made it, not in the repository.
rule switch:
    input:
        f"results/runs/{NAME}/{{task}}/{{model}}/{{arm}}/seed-{{seed}}/result.json",
    output:
        f"results/runs/{NAME}/{{task}}/{{model}}/{{arm}}/seed-{{seed}}/fidelity-{{split}}.csv",
    threads: 1
    resources:
        gpu=1 if GPUS else 0,
    log:
        f"logs/{NAME}/{{task}}-{{model}}-{{arm}}-{{seed}}-{{split}}.log",
    shell:
        "OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        " {sys.executable} -m albert_lsh.study"
        f" {NAME} {{wildcards.task}} {{wildcards.arm}} {{wildcards.seed}} {{wildcards.split}} > {{log}} 2>&1"

# The pretrained model reads paragraphs under softmax and under other attentions.
rule reading:
    output:
        f"results/runs/{NAME}/reading/{{length}}.csv",
    threads: 1
    log:
        f"logs/{NAME}/reading-{{length}}.log",
    shell:
        "OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        f" {{sys.executable}} -m albert_lsh.study {NAME} reading {{wildcards.length}} > {{log}} 2>&1"

rule tables:
    input:
        rules.runs.input,
        [run.table(split) for run in RUNS for split in run.switched],
        READINGS,
        "notebooks/results.ipynb",
    output:
        f"results/tables/{NAME}-scores.csv",
    shell:
        f"{{sys.executable}} -m papermill notebooks/results.ipynb results/{NAME}.partial.ipynb -p study {NAME}"
        " --cwd . --no-progress-bar --log-level WARNING"

rule report:
    input:
        rules.tables.output,
        "report/report.typ",
    output:
        "report/report.pdf",
    shell:
        "{sys.executable} -m albert_lsh.report"

onerror:
    print(failures(NAME), file=sys.stderr)
