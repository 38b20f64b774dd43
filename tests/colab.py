"""Every notebook as Colab runs it, in what Colab preinstalls: `make colab` (CONTRIBUTING.md).

An environment has those packages of Colab's list, at its versions, that installing the project would bring, and no
others. Each notebook starts in the environment as it was, in an empty folder, and its own set-up
cell installs the project: from a bare clone of this checkout, which git takes for the repository's address.
Needs uv, and Pythons that it finds.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import papermill
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from albert_lsh.files import write_atomically
from albert_lsh.machine import environment
from test_notebooks import NOTEBOOKS, ROOT, ROWS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESS = PROJECT["urls"]["Repository"]
USUAL = ROOT / "results" / "reliability" / "colab.csv"
LISTS = {"2026-07-14": "3.12", "2026-08-19": "3.13"}  # Colab's Python at that date
LATEST = max(LISTS)  # "newest" has its packages, as new as they can be had
SHOWN = ("torch", "transformers", "datasets", "huggingface-hub", "numpy", "pandas", "ipykernel")
OF_TORCH = re.compile("(nvidia|cuda)-")  # PyPI's torch brings those of another CUDA than Colab's
GIVEN = {name: row.given for name, row in ROWS.items()} | {"results.ipynb": {"study": "notebook"}}
BEFORE = {"results.ipynb": "glue.ipynb"}  # it shows what another notebook left


def run(*command: Any, text: str | None = None) -> str:
    return subprocess.run(list(map(str, command)), input=text, check=True, stdout=subprocess.PIPE, text=True).stdout


def versions_of(name: str, lists: Path, folder: Path) -> Path:
    """A file with the packages of an environment and their versions."""
    text = (lists / f"{name if name in LISTS else LATEST}.gpu.txt").read_text()
    listed = {canonicalize_name(n): v for n, v in re.findall(r"^([\w.-]+)==([^+\s]+)", text, re.MULTILINE)}
    names, python = [Requirement(line).name for line in PROJECT["dependencies"]], folder / "bin" / "python"
    if name not in LISTS:  # what Colab lacks, and what only that needs, is missing there
        names, bounds = [n for n in names if n in listed], {}
    else:
        bounds = {n: v for n, v in listed.items() if not OF_TORCH.match(n)}
    (constraints := folder / "constraints.txt").write_text("".join(f"{n}=={v}\n" for n, v in bounds.items()))
    how = ["--quiet", "--no-header", "--no-annotate", "--constraint", constraints, "--python", python]
    versions = run("uv", "pip", "compile", *how, "-", text="\n".join([*names, "pip", "setuptools"])).split()
    if name in LISTS:
        versions = [line for line in versions if (n := line.split("==")[0]) in listed or OF_TORCH.match(n)]
    (wanted := folder / "wanted.txt").write_text("\n".join(versions) + "\n")
    return wanted


def freeze(python: Path) -> dict[str, str]:
    """Versions by name, or the address that a package came from."""
    lines = [re.split("==| @ ", line) for line in run(python, "-m", "pip", "freeze", "--all").splitlines()]
    return {canonicalize_name(name): version for name, version in lines}


def make_kernel(python: Path, folder: Path, clone: Path) -> None:
    """Make a Jupyter kernel `colab` of an environment; it has Colab's variable, and the clone at our address."""
    own = {"COLAB_RELEASE_TAG": "release-colab", "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    git = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{clone}.insteadOf", "GIT_CONFIG_VALUE_0": ADDRESS}
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "as in Colab", "language": "python", "env": own | git}
    (folder / "kernels" / "colab").mkdir(parents=True)
    (folder / "kernels" / "colab" / "kernel.json").write_text(json.dumps(spec))
    os.environ["JUPYTER_PATH"] = str(folder)


def execute(notebook: str, folder: Path) -> dict[str, Any]:
    """Execute a notebook in an empty folder; its outcome, and the seconds that it and its set-up cell took."""
    work, executed, outcome = folder / BEFORE.get(notebook, notebook), folder / f"executed-{notebook}", "ok"
    work.mkdir(exist_ok=True)
    try:
        options = {"kernel_name": "colab", "cwd": work, "progress_bar": False}
        papermill.execute_notebook(NOTEBOOKS / notebook, executed, GIVEN[notebook], **options)
    except papermill.PapermillExecutionError as error:
        outcome = f"{error.ename}: {error.evalue}"[:300]
    except Exception as error:  # such as a kernel that does not start
        outcome = f"{type(error).__name__}: {error}"[:300]
    done = json.loads(executed.read_text())
    (set_up,) = (cell for cell in done["cells"] if "".join(cell["source"]).startswith("# Set-up"))
    seconds = [round(part["metadata"]["papermill"]["duration"] or 0, 1) for part in (done, set_up)]
    outcome = " ".join(outcome.replace(str(folder), "").split())
    return {"outcome": outcome, "seconds": seconds[0], "of set-up": seconds[1]}


def rows_of(name: str, lists: Path, folder: Path, clone: Path, notebooks: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each notebook, in one environment, which is made as it was before each of them."""
    python = folder / "bin" / "python"
    run("uv", "venv", "--quiet", "--clear", "--python", LISTS.get(name, LISTS[LATEST]), folder)
    wanted = versions_of(name, lists, folder)
    make_kernel(python, folder, clone)
    started = environment("cpu")
    for notebook in notebooks:
        if (first := BEFORE.get(notebook)) and not (folder / first).exists():
            run("uv", "pip", "sync", "--quiet", "--python", python, wanted)
            execute(first, folder)
        run("uv", "pip", "sync", "--quiet", "--python", python, wanted)
        before = freeze(python)
        row = {"environment": name, "notebook": notebook, **execute(notebook, folder)}
        after = freeze(python)
        row["added"] = " ".join(sorted(after.keys() - before.keys()))
        changed = [n for n, v in before.items() if after.get(n) != v]
        row["replaced"] = " ".join(f"{n}:{before[n]}->{after.get(n, 'gone')}" for n in changed)
        row |= {"python": run(python, "-V").split()[1], **{n: before[n] for n in SHOWN}}
        yield row | {name: started[name] for name in ("commit", "date", "device")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", choices=[[], *LISTS, "newest"], help="none: all")
    parser.add_argument("--lists", type=Path, default=ROOT.parent / "shared" / "colab", help="folder of the lists")
    parser.add_argument("--notebooks", nargs="*", default=list(GIVEN), choices=list(GIVEN))
    parser.add_argument("--table", type=Path, default=USUAL, help="a row that is there stays, and is not made again")
    parser.add_argument("--folder", type=Path, help="of the environments, 6 GB each; none: deleted after use")
    arguments = parser.parse_args()
    table: Path = arguments.table
    rows = pd.read_csv(table, dtype=str, keep_default_na=False).to_dict("records") if table.exists() else []
    with tempfile.TemporaryDirectory() as made:
        folder = (arguments.folder or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(clone := folder / "repository.git", ignore_errors=True)
        run("git", "clone", "--quiet", "--bare", ROOT, clone)
        for name in arguments.environments or [*LISTS, "newest"]:
            there = {row["notebook"] for row in rows if row["environment"] == name}
            missing = [notebook for notebook in arguments.notebooks if notebook not in there]
            for row in rows_of(name, arguments.lists, folder / name, clone, missing) if missing else ():
                rows.append(row)
                ordered = pd.DataFrame(rows).sort_values(["environment", "notebook"])
                write_atomically(table, ordered.to_csv(index=False))
                print({name: value for name, value in row.items() if name not in SHOWN}, flush=True)
    sys.exit(any(row["outcome"] != "ok" or row["replaced"] for row in rows))


if __name__ == "__main__":
    main()
