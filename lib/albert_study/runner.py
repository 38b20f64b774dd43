"""A study: a YAML file that says which runs to make, and how one of them is executed.

    python -m albert_study.runner mini                      list the runs of studies/mini.yaml, and which are done
    python -m albert_study.runner mini mini-mrpc lsh 0      make one: task, arm, seed
    python -m albert_study.runner fidelity mrpc softmax 0 validation   ask its model again under other attentions
    python -m albert_study.runner fidelity reading 256      have paragraphs read, in sequences of so many tokens

The Snakefile makes all of a study. Its file has `parameters` of every run and, under `tasks`, what differs by task
and, within it, by arm; the more particular wins. An arm has the attention of its name, unless it says otherwise. Under
`switched` it says, for each split of the data, under which other attentions a model is asked again, and under
`reading`, by length, under which the pretrained model reads paragraphs.
"""

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill

from albert_lsh.attention import names
from albert_lsh.tasks.table import TaskError, find_task
from albert_lsh.training.files import relative_to_root, repository_root, run_folder, write_atomically
from albert_lsh.training.locks import FolderInUseError, hold, release
from albert_lsh.training.parameters import Parameters
from albert_lsh.training.record import read_result
from albert_study.gpus import one_gpu
from albert_study.probe.fidelity import Asked
from albert_study.probe.reading import Reading
from albert_study.study_file import StudyError, load_file

EXAMPLES = "examples"  # tag of a notebook's cells that show what stands in the data


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study: a notebook and the parameters it is given."""

    study: str
    task: str
    arm: str
    seed: int
    parameters: dict[str, Any]  # as the study's file gives them
    switched: dict[str, dict[str, Any]]  # by split: parameters of fidelity.ipynb, which asks its model again

    @property
    def folder(self) -> Path:
        return run_folder(self.study, self.task, self.parameters["model"], self.arm, self.seed)

    @property
    def notebook(self) -> str:
        return "squad.ipynb" if find_task(self.task).is_squad else "glue.ipynb"

    @property
    def result(self) -> str:
        """Path of its result.json, relative to the repository."""
        return relative_to_root(self.folder / "result.json")

    def table(self, split: str) -> str:
        """Path of what becomes of its model under other attentions, relative to the repository."""
        return relative_to_root(self.folder / f"fidelity-{split}.csv")

    def is_done(self) -> bool:
        """Whether its result stands; StudyError if that is damaged, or was made with other parameters."""
        path = self.folder / "result.json"
        if not path.exists():
            return False
        try:
            there = read_result(path)["parameters"]
        except ValueError as error:
            raise StudyError(str(error)) from error
        given = json.loads(json.dumps(Parameters.check(self.parameters, self.notebook).what()))  # as a record has it
        # A setting added after the record is not in it; the study's file must say what it was.
        known, said = there["attention_settings"], self.parameters.get("attention_settings", {})
        if unsaid := given["attention_settings"].keys() - known.keys() - said.keys():
            raise StudyError(
                f"{relative_to_root(path)} is older than the setting {', '.join(sorted(unsaid))}; say in "
                f"studies/{self.study}.yaml what it was, or delete its folder to make it again"
            )
        given["attention_settings"] = {k: v for k, v in given["attention_settings"].items() if k in known}
        for name in ("device", "precision"):  # where the file does not say which, any machine's own will do
            if self.parameters.get(name, "auto") == "auto":
                del given[name]
        other = [f"{k}={there.get(k)!r}, not {v!r}" for k, v in given.items() if there.get(k) != v]
        if other:
            raise StudyError(
                f"{relative_to_root(path)} was made with {'; '.join(other)} as studies/{self.study}.yaml now says; "
                "delete its folder to make it again"
            )
        return True


def load_study(name: str, root: Path | None = None) -> list[Run]:
    """The runs of studies/<name>.yaml, every one's parameters checked; StudyError says what is wrong, and where.

    root: of the repository whose study it is.
    """
    content = load_file(name, root)
    runs = []
    for task, of_task in content["tasks"].items():
        shared = {
            **content.get("parameters", {}),
            **{k: v for k, v in of_task.items() if k not in ("arms", "seeds", "switched")},
        }
        for arm, of_arm in of_task["arms"].items():
            own = {"attention": arm} if arm in names() or "attention" not in shared else {}
            given = {**shared, **own, **(of_arm or {}), "task": task}
            seeds = given.pop("seeds", of_task.get("seeds", content.get("seeds", [0])))
            # Only runs with save_model=True have a model to evaluate.
            switched = content.get("switched", {}) if given.get("save_model") else {}
            for seed in seeds:
                again = {
                    split: switches(split, of_split, of_task.get("switched", {}))
                    for split, of_split in switched.items()
                    if seed in {**of_split, **of_task.get("switched", {}).get(split, {})}.get("seeds", seeds)
                }
                runs.append(Run(name, task, arm, seed, {**given, "seed": seed}, again))
    for run in runs:
        try:
            check(run)
        except (ValueError, KeyError, TaskError) as error:
            raise StudyError(f"studies/{name}.yaml, tasks: {run.task}: arms: {run.arm}: {error}") from error
    return runs


def check(run: Run) -> None:
    """Raise ValueError, KeyError or TaskError if a run cannot be made, or would be written elsewhere."""
    Parameters.check(run.parameters, run.notebook)
    splits = ("held-out", *find_task(run.task).evaluation)
    if unknown := [split for split in run.switched if split not in splits]:
        raise ValueError(f"switched: {unknown[0]!r} is not one of: {', '.join(splits)}")
    if "model" not in run.parameters:
        raise ValueError("model must be given")
    for asked in run.switched.values():
        Asked.check({**asked, "trained": relative_to_root(run.folder)})
    if not run.folder.resolve().is_relative_to((repository_root() / "results" / "runs").resolve()):
        raise ValueError(f"its folder, {run.folder.resolve()}, is not in results/runs")


def switches(split: str, of_study: dict[str, Any], of_task: dict[str, Any]) -> dict[str, Any]:
    """Parameters of fidelity.ipynb for a task: every attention under every budget, and what the task says itself."""
    task = {"length": of_task.get("length", 256), **of_task.get(split, {})}
    length, _ = task.pop("length"), task.pop("seeds", None)
    variants = {
        label: {"shares": of_study["shares"], **settings, "length": length}
        for label, settings in {**of_study["variants"], **task.pop("variants", {})}.items()
        if settings is not None
    }
    rest = {k: v for k, v in of_study.items() if k not in ("seeds", "shares", "variants")}
    return {**rest, **task, "split": split, "variants": variants}


def load_readings(name: str, root: Path | None = None) -> dict[str, dict[str, Any]]:
    """Parameters of reading.ipynb, by the table that it writes, for every length that a study has read."""
    content = load_file(name, root)
    found = {}
    for length, given in content.get("reading", {}).items():
        output = relative_to_root(repository_root() / "results" / "runs" / name / "reading" / f"{length}.csv")
        variants = {k: {**v, "share": given["share"], "length": length} for k, v in given["variants"].items()}
        rest = {k: v for k, v in given.items() if k not in ("share", "variants")}
        model = content["parameters"]["model"]
        found[output] = {**rest, "model": model, "max_length": length, "variants": variants, "output": output}
        try:
            Reading.check(found[output])
        except ValueError as error:
            raise StudyError(f"studies/{name}.yaml, reading: {length}: {error}") from error
    return found


@contextmanager
def executing(partial: Path) -> Iterator[None]:
    """Within, a notebook is executed as `<name>.partial.ipynb`; whatever fails is named by its folder.

    The traceback then goes to <name>.error.partial.txt and the notebook to <name>.failed.partial.ipynb; both go when it
    succeeds. Nobody else executes the same notebook meanwhile. (Its kernel locks the run, see `parameters.open_run`.)

    Raises:
        SystemExit: naming the folder.
    """
    folder, name = partial.parent, partial.name.removesuffix(".partial.ipynb")
    try:
        hold(folder, name)
    except FolderInUseError as error:
        raise SystemExit(f"error: {error}") from error
    error_file, failed = folder / f"{name}.error.partial.txt", folder / f"{name}.failed.partial.ipynb"
    for left in (error_file, partial):  # by an attempt that was killed
        left.unlink(missing_ok=True)
    try:
        with one_gpu():
            yield
        if partial.exists():
            os.replace(partial, folder / f"{name}.ipynb")
        failed.unlink(missing_ok=True)
    except Exception as error:
        text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        write_atomically(error_file, text)
        if partial.exists():
            os.replace(partial, failed)
        raise SystemExit(f"{relative_to_root(folder)} failed:\n{text}") from error
    finally:
        release(folder, name)


def execute(run: Run) -> None:
    """Make one run: its notebook, executed under a temporary name, renamed when complete; SystemExit if it fails."""
    partial = run.folder / "notebook.partial.ipynb"
    with executing(partial):
        if run.is_done():  # by the process for which this one had to wait
            return
        execute_notebook(run.notebook, partial, {**run.parameters, "output_dir": str(run.folder)})
        if not (run.folder / "result.json").exists():
            raise StudyError("the notebook ended without writing result.json")
        keep_to_numbers(run, partial)


def switch(run: Run, split: str) -> None:
    """Ask the model of a finished run again under other attentions; the notebook is kept beside its table."""
    partial = run.folder / f"fidelity-{split}.partial.ipynb"
    with executing(partial):
        if split not in run.switched:
            raise StudyError(f"studies/{run.study}.yaml switches nothing on {split!r} for this run")
        if not (run.folder / "model").is_dir():
            raise StudyError(
                f"{relative_to_root(run.folder / 'model')} is not there (models are not kept in the repository), so "
                f"that {run.table(split)} cannot be made; delete the run's folder to make all of it again"
            )
        execute_notebook("fidelity.ipynb", partial, {**run.switched[split], "trained": relative_to_root(run.folder)})
        keep_to_numbers(run, partial)


def keep_to_numbers(run: Run, executed: Path) -> None:
    """Empty the cells of an executed notebook that show texts, unless they are ours: others have their own licences."""
    if find_task(run.task).dataset == "mini":
        return
    notebook = nbformat.read(executed, as_version=4)
    for cell in notebook.cells:
        if EXAMPLES in cell.metadata.get("tags", []):
            cell.outputs = []
    nbformat.write(notebook, executed)


def read(study: str, length: str) -> None:
    """Have the pretrained model read paragraphs; the notebook is kept beside its table."""
    folder = repository_root() / "results" / "runs" / study / "reading"
    partial = folder / f"{length}.partial.ipynb"
    readings = {str(given["max_length"]): given for given in load_readings(study).values()}
    if length not in readings:
        raise SystemExit(f"error: study {study!r} has no reading of {length} tokens; it has: {', '.join(readings)}")
    with executing(partial):
        execute_notebook("reading.ipynb", partial, readings[length])


def execute_notebook(name: str, output: Path, parameters: dict[str, Any], attempts: int = 3) -> None:
    """papermill, from the repository's root; kernels that lose a race for a port while starting are started again."""
    for attempt in range(attempts):
        try:
            papermill.execute_notebook(
                str(repository_root() / "notebooks" / name),
                str(output),
                parameters=parameters,
                cwd=str(repository_root()),
                progress_bar=False,
                kernel_name="python3",
            )
            return
        except RuntimeError as error:
            if "before replying to kernel_info" not in str(error) or attempt == attempts - 1:
                raise


def failures(study: str) -> str:
    """What failed in a study, by name, each with its notebook's own traceback."""
    found = sorted((repository_root() / "results" / "runs" / study).rglob("*.error.partial.txt"))
    return "\n\n".join(f"FAILED {relative_to_root(path.parent)}\n{path.read_text()}" for path in found)


def main(arguments: list[str]) -> None:
    reads = len(arguments) == 3 and arguments[1] == "reading"
    if not reads and len(arguments) not in (1, 4, 5):
        raise SystemExit(__doc__)
    try:
        if reads:
            read(arguments[0], arguments[2])
            return
        runs = load_study(arguments[0])
        if len(arguments) == 1:
            for run in runs:
                print("done   " if run.is_done() else "to make", relative_to_root(run.folder))
            return
        _, task, arm, seed = arguments[:4]
        chosen = [r for r in runs if (r.task, r.arm, str(r.seed)) == (task, arm, seed)]
        if not chosen:
            raise StudyError(f"study {arguments[0]!r} has no run of task {task!r}, arm {arm!r}, seed {seed}")
    except (StudyError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    if len(arguments) == 5:
        switch(chosen[0], arguments[4])
    else:
        execute(chosen[0])


if __name__ == "__main__":
    main(sys.argv[1:])
