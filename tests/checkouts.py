"""A copy of the repository's code, in which a study can be made without touching this one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import yaml

ROOT = Path(__file__).resolve().parents[1]


def committed(*patterns: str) -> list[str]:
    """The files of these patterns that are committed, not what `make study` has made."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *patterns]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


def copy_code(checkout: Path) -> Path:
    left_out = shutil.ignore_patterns("__pycache__", "*.pdf", "*.egg-info", "build")
    for name in ("lib", "notebooks", "profiles", "report"):
        shutil.copytree(ROOT / name, checkout / name, ignore=left_out)
    for name in ("pyproject.toml", "Snakefile", "studies/published.csv"):
        (checkout / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    return checkout


def write_study(checkout: Path, name: str, **content: object) -> None:
    (checkout / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(content))


def start_study(checkout: Path, study: str, output: int | IO = subprocess.PIPE) -> subprocess.Popen:
    """What `make study` does once everything is installed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(checkout / "lib"), "PATH": path, "OMP_NUM_THREADS": "1"}
    errors = subprocess.STDOUT if output != subprocess.PIPE else subprocess.PIPE
    options = {"cwd": checkout, "env": environment, "stdout": output, "stderr": errors, "text": True}
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--config", f"study={study}"]
    return subprocess.Popen(command, start_new_session=True, **options)


def make(checkout: Path, study: str) -> subprocess.CompletedProcess:
    """The same, to its end."""
    process = start_study(checkout, study)
    said, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)
