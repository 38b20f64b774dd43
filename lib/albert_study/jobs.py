"""The jobs of a study: a YAML file read, checked, and turned into runs and other notebooks with their parameters.

Its file may have

    tasks        fine-tuning runs, by task and arm, which has the attention of its name unless it says otherwise;
                 `parameters` are those of all runs; a task's override them, and an arm's override both
    switched     by split of the data: under which other attentions a run's model is evaluated (if it is kept)
    notebooks    any other notebook, with its parameters
"""

import dataclasses
from importlib import import_module
from pathlib import Path
from typing import Any

from albert_lsh import attention as attentions
from albert_lsh.files import relative_to_root, repository_root, run_folder
from albert_lsh.record import differences, read_result
from albert_lsh.run import Run as Parameters
from albert_lsh.tasks import find_task
from albert_study.executed import was_cut_off
from albert_study.study_file import StudyError, load_file


@dataclasses.dataclass(frozen=True)
class Run:
    """One fine-tuning run of a study."""

    study: str
    task: str
    arm: str
    seed: int
    parameters: dict[str, Any]  # as the study's file gives them
    switched: dict[str, dict[str, Any]]  # by split: parameters of fidelity.ipynb, which evaluates its model again

    @property
    def folder(self) -> Path:
        return run_folder(self.study, self.task, self.parameters["model"], self.arm, self.seed)

    @property
    def notebook(self) -> str:
        return "squad.ipynb" if find_task(self.task).is_squad else "glue.ipynb"

    def is_done(self) -> bool:
        """True if its result is there and was made with the parameters of the study's file, False if there is none.

        Raises:
            ValueError: the result is damaged, or was made with other parameters (see `record.differences`).
            OSError: it may not be read.
        """
        path = self.folder / "result.json"
        if not path.exists():
            return False
        asked = Parameters.parse(self.parameters, self.notebook).identity()
        for name in ("device", "precision"):  # where the file leaves them open, every machine's choice is right
            if self.parameters.get(name, "auto") == "auto":
                del asked[name]
        if other := differences(read_result(path), asked, Parameters.defaults()):
            raise StudyError(f"{relative_to_root(path)} was made with {'; '.join(other)}")
        return True


@dataclasses.dataclass(frozen=True)
class Job:
    """A notebook to be executed: a run's, one that evaluates its model again, or any other."""

    name: str  # a path without folders of the machine
    notebook: str
    parameters: dict[str, Any]
    results: tuple[str, ...]  # files that it writes last, relative to the repository
    kept: str  # where the executed notebook is kept, likewise
    run: Run | None = None  # that it makes, or whose model it needs

    @property
    def makes_run(self) -> bool:
        return self.run is not None and self.notebook != "fidelity.ipynb"

    def unwritten(self) -> list[str]:
        return [path for path in self.results if not (repository_root() / path).exists()]

    def missing(self) -> list[str]:
        """Its results that are not there, and a notebook that was cut off after it had written them."""
        return self.unwritten() + ([self.kept] if was_cut_off(repository_root() / self.kept) else [])

    def is_done(self) -> bool:
        """Whether nothing is missing. A run was also made with today's parameters, or ValueError says not."""
        return (not self.makes_run or self.run is None or self.run.is_done()) and not self.missing()

    def status(self) -> str:
        """`done`, `to make` or `differs`, and why."""
        if missing := self.missing():
            return f"to make  {self.name}: no {', no '.join(missing)}"
        try:
            self.is_done()
        except (ValueError, OSError) as error:
            return f"differs  {self.name}: {error}"
        return f"done     {self.name}: {', '.join(self.results)}"


# Notebooks that an entry of `notebooks` may name: the class of their parameters, whose `results` they write last.
NOTEBOOKS: dict[str, str] = {
    "pretrain": "albert_study.experiments.pretrain:Pretraining",
    "long_range": "albert_study.experiments.long_range:LongRange",
    "efficiency": "albert_study.experiments.efficiency:Efficiency",
    "reading": "albert_study.reading:Reading",
    "masked_words": "albert_study.reading:MaskedWords",
    "bag_of_words": "albert_study.experiments.words:BagOfWords",
    "constant_answers": "albert_study.experiments.words:ConstantAnswers",
    "fidelity": "albert_study.probe:Fidelity",
}


def load_study(name: str, root: Path | None = None) -> list[Run]:
    """The runs of studies/<name>.yaml, every one's parameters checked; StudyError says what is wrong, and where.

    root: of the repository whose study it is.
    """
    content = load_file(name, root)
    runs = []
    for task, of_task in content.get("tasks", {}).items():
        of_runs = {k: v for k, v in of_task.items() if k not in ("arms", "seeds", "switched")}
        shared = content.get("parameters", {}) | of_runs
        for arm, of_arm in of_task["arms"].items():
            own = {"attention": arm} if arm in attentions.names() or "attention" not in shared else {}
            given = {**shared, **own, **(of_arm or {}), "task": task}
            seeds = given.pop("seeds", of_task.get("seeds", content.get("seeds", [0])))
            # Only runs with save_model=True have a model to evaluate.
            splits = content.get("switched", {}) if given.get("save_model") else {}
            for seed in seeds:
                switched = {k: switches(k, v, of_task.get("switched", {}).get(k, {}), seed) for k, v in splits.items()}
                kept = {split: parameters for split, parameters in switched.items() if parameters}
                runs.append(Run(name, task, arm, seed, {**given, "seed": seed}, kept))
    for run in runs:
        try:
            check_run(run)
        except ValueError as error:
            raise StudyError(f"studies/{name}.yaml, tasks: {run.task}: arms: {run.arm}: {error}") from error
    return runs


def switches(split: str, of_study: dict[str, Any], of_task: dict[str, Any], seed: int) -> dict[str, Any]:
    """Parameters of fidelity.ipynb for a run with this seed; {} if its model is not evaluated again."""
    given = {**of_study, **of_task, "split": split}
    variants = {**of_study.get("variants", {}), **of_task.get("variants", {})}
    shares, seeds = given.pop("shares", None), given.pop("seeds", [seed])
    given["variants"] = {
        label: settings if "share" in settings or not shares else {"shares": shares, **settings}
        for label, settings in variants.items()
        if settings is not None
    }
    return given if seed in seeds else {}


def check_run(run: Run) -> None:
    """Raise ValueError if a run cannot be made, or would be written elsewhere."""
    from albert_study.probe import Fidelity

    Parameters.parse(run.parameters, run.notebook)
    if "model" not in run.parameters:
        raise ValueError("model must be given")
    splits = ("held-out", *find_task(run.task).evaluation)
    for split, given in run.switched.items():
        if split not in splits:
            raise ValueError(f"switched: {split!r} is not one of: {', '.join(splits)}")
        Fidelity.parse({**given, "trained": relative_to_root(run.folder)})
    if not run.folder.resolve().is_relative_to((repository_root() / "results" / "runs").resolve()):
        raise ValueError(f"its folder, {run.folder.resolve()}, is not in results/runs")


def load_jobs(name: str, root: Path | None = None) -> dict[str, Job]:
    """Every notebook that a study executes, by the job's name; StudyError says what is wrong, and where."""
    jobs = []
    for run in load_study(name, root):
        folder = relative_to_root(run.folder)
        of_run = folder.removeprefix(f"results/runs/{name}/")
        parameters = {**run.parameters, "output_dir": folder}
        result, kept = f"{folder}/result.json", f"{folder}/notebook.ipynb"
        jobs.append(Job(of_run, run.notebook, parameters, (result,), kept, run))
        for split, given in run.switched.items():
            table, kept = f"{folder}/fidelity-{split}.csv", f"{folder}/fidelity-{split}.ipynb"
            parameters = {**given, "trained": folder}
            jobs.append(Job(f"{of_run}/fidelity-{split}", "fidelity.ipynb", parameters, (table,), kept, run))
    for label, given in load_file(name, root).get("notebooks", {}).items():
        try:
            jobs.append(job_of_notebook(label, **given))
        except ValueError as error:
            raise StudyError(f"studies/{name}.yaml, notebooks: {label}: {error}") from error
    return {job.name: job for job in jobs}


def job_of_notebook(label: str, notebook: str, **parameters: Any) -> Job:
    """The job of an entry of `notebooks`; ValueError if its parameters are none of the notebook."""
    if notebook not in NOTEBOOKS:
        raise ValueError(f"notebook={notebook!r} is not one of: {', '.join(NOTEBOOKS)}")
    module, _, kind = NOTEBOOKS[notebook].partition(":")
    asked = getattr(import_module(module), kind).parse(parameters)
    results = tuple(relative_to_root(Path(path)) for path in asked.results)
    if outside := [path for path in results if not path.startswith("results/")]:
        raise ValueError(f"{outside[0]} is not in results/")
    own = getattr(asked, "output", None)
    kept = Path(own).with_suffix(".ipynb") if own else Path(asked.output_dir) / f"{label}.ipynb"
    return Job(label, f"{notebook}.ipynb", parameters, results, relative_to_root(repository_root() / kept))
