"""Studies as text, and how a test loads one."""

from albert_study.jobs import Run, load_jobs, load_study

MINI = "parameters: {model: mini}\n"
TASKS = "tasks: {mini-mrpc: {arms: {softmax: }}}\n"


def load(root, text) -> list[Run]:
    (root / "studies" / "x.yaml").write_text(text, errors="surrogateescape")
    load_jobs("x")
    return load_study("x")
