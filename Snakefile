# A study from its YAML file to the report: runs (papermill), tables and figures, report.
#
#     snakemake --cores all --config study=mini
#
# What is missing is made, what is there is kept. A failed run stops no other (profiles/default) and is named at the end.

import sys
from pathlib import Path

from albert_study.runner import failures, load_readings, load_study

NAME = str(config.get("study", "mini"))
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


# Snakemake deletes a rule's output before the rule is run and after it has failed. Results are in the repository, so none
# is an output: an output is an empty file that says that a result was made. It is deleted when the result is missing.
def mark(name, *results):
    path = Path("logs") / NAME / f"{name}.made"
    if not all(Path(result).exists() for result in results):
        path.unlink(missing_ok=True)
    return str(path)


def mark_of(run, kind, result):
    return mark(f"{kind}/{run.task}/{Path(run.parameters['model']).name}/{run.arm}/{run.seed}", result)


# What is missing, by its mark; the rules know nothing of the rest.
MISSING_RUNS = {mark_of(run, "run", run.result): run for run in RUNS if run not in DONE}
SWITCHED = [(run, split, run.table(split)) for run in RUNS for split in run.switched]
MISSING = [mark_of(run, f"switched/{split}", table) for run, split, table in SWITCHED if not Path(table).exists()]
MISSING += [mark(f"reading/{Path(table).stem}", table) for table in READINGS if not Path(table).exists()]
THERE = [run.result for run in DONE]
THERE += [table for table in [*READINGS, *(table for _, _, table in SWITCHED)] if Path(table).exists()]
TABLES = mark("tables", f"results/tables/{NAME}-scores.csv")
REPORT = mark("report", "report/report.pdf")

wildcard_constraints:
    model="[^/]+", task="[^/]+", arm="[^/]+", seed="[0-9]+", length="[0-9]+", split="[^/]+"

# Tables are named besides the report: a report that came with the repository is no proof of them.
rule all:
    input:
        list(MISSING_RUNS),
        TABLES,
        REPORT,

# The runs alone, without tables and report: snakemake --cores all --config study=mini -- runs
rule runs:
    input:
        list(MISSING_RUNS),

# One run. Nothing of it is an input: a finished run is made again only when its folder is deleted.
rule run:
    output:
        touch(f"logs/{NAME}/run/{{task}}/{{model}}/{{arm}}/{{seed}}.made"),
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
        " {sys.executable:q} -m albert_study.runner"
        f" {NAME} {{wildcards.task:q}} {{wildcards.arm:q}} {{wildcards.seed:q}} > {{log:q}} 2>&1"

# The model of a run, asked again under other attentions. It is kept on the machine that made it, not in the repository.
rule switch:
    input:
        lambda wildcards: [
            made for made, run in MISSING_RUNS.items()
            if (run.task, run.arm, str(run.seed)) == (wildcards.task, wildcards.arm, wildcards.seed)
        ],
    output:
        touch(f"logs/{NAME}/switched/{{split}}/{{task}}/{{model}}/{{arm}}/{{seed}}.made"),
    threads: 1
    resources:
        gpu=1 if GPUS else 0,
    log:
        f"logs/{NAME}/{{task}}-{{model}}-{{arm}}-{{seed}}-{{split}}.log",
    shell:
        "OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        " {sys.executable:q} -m albert_study.runner"
        f" {NAME} {{wildcards.task:q}} {{wildcards.arm:q}} {{wildcards.seed:q}} {{wildcards.split:q}} > {{log:q}} 2>&1"

# The pretrained model reads paragraphs under softmax and under other attentions.
rule reading:
    output:
        touch(f"logs/{NAME}/reading/{{length}}.made"),
    threads: 1
    resources:
        gpu=1 if GPUS else 0,
    log:
        f"logs/{NAME}/reading-{{length}}.log",
    shell:
        "OMP_NUM_THREADS={threads} TOKENIZERS_PARALLELISM=false"
        f" {{sys.executable:q}} -m albert_study.runner {NAME} reading {{wildcards.length:q}} > {{log:q}} 2>&1"

rule tables:
    input:
        list(MISSING_RUNS),
        MISSING,
        THERE,
        "notebooks/results.ipynb",
    output:
        touch(TABLES),
    shell:
        f"{{sys.executable:q}} -m papermill notebooks/results.ipynb results/{NAME}.partial.ipynb -r study {NAME}"
        " --cwd . --no-progress-bar --log-level WARNING"

rule report:
    input:
        TABLES,
        "report/report.typ",
        "report/numbers.typ",
    output:
        touch(REPORT),
    shell:
        "{sys.executable:q} -m albert_study.evidence.report"

onerror:
    print(failures(NAME), file=sys.stderr)
