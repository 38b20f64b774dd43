"""A study: the notebooks that its YAML file asks for, and which of their results are missing.

    python -m albert_study.study mini      every job of studies/mini.yaml: done, to make, or made with other parameters

A file (see `study_file`) may have

    tasks        fine-tuning runs, by task and arm, which has the attention of its name unless it says otherwise;
                 `parameters` are those of all runs; a task's override them, and an arm's override both
    switched     by split of the data: under which other attentions a run's model is evaluated (if it is kept)
    notebooks    any other notebook, with its parameters

and beside `seeds`, of the study, a task or an arm, `later`: those that were added after scores of the task had been
seen. Tables mark them.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from albert_lsh import attention as attentions
from albert_lsh.files import relative_to_root, repository_root, run_folder
from albert_lsh.record import differences, read_result
from albert_lsh.run import Run
from albert_study.study_file import Arm, Split, Study, StudyError, StudyFile

# Notebooks that an entry of `notebooks` may name, and the class of their parameters.
NOTEBOOKS = {
    "pretrain": "albert_study.experiments.pretrain:Pretraining",
    "long_range": "albert_study.experiments.long_range:LongRange",
    "efficiency": "albert_study.experiments.efficiency:Efficiency",
    "reading": "albert_study.reading:Reading",
    "masked_words": "albert_study.reading:MaskedWords",
    "bag_of_words": "albert_study.experiments.words:BagOfWords",
    "constant_answers": "albert_study.experiments.words:ConstantAnswers",
    "collapse": "albert_study.experiments.collapse:Collapse",
    "fidelity": "albert_study.probe:Fidelity",
}


@dataclass(frozen=True)
class Job:
    """A notebook to be executed: a run's, one that evaluates its model again, or any other."""

    name: str  # a path without folders of the machine
    notebook: str
    parameters: dict[str, Any]  # as the study's file gives them
    results: tuple[str, ...]  # files that it writes last, relative to the repository
    kept: str  # where the executed notebook is kept, likewise
    task: str = ""
    run: Run | None = None  # that it makes

    @property
    def partial(self) -> str:
        """Where the notebook is while it is executed, and when that has failed."""
        return str(Path(self.kept).with_suffix(".partial.ipynb"))

    def missing(self) -> list[str]:
        """Its results that are not there, and a notebook that was cut off after it had written them."""
        paths = [path for path in self.results if not exists(path)]
        return paths + ([self.kept] if exists(self.partial) and not exists(self.kept) else [])

    def output(self) -> str:
        """The file that is not there as long as anything is missing; the notebook, if it can be, which comes last."""
        return self.missing()[0] if exists(self.kept) else self.kept

    def check_result(self) -> None:
        """Compare a run's result, if it is there, with its parameters.

        Raises:
            StudyError: it was made with others. ValueError: it is damaged. OSError: it may not be read.
        """
        if self.run is None or not exists(self.results[0]):
            return
        # device and precision: where the file leaves them open, every machine's choice is right
        left_open = {name for name in ("device", "precision") if self.parameters.get(name, "auto") == "auto"}
        identity = {name: value for name, value in self.run.identity().items() if name not in left_open}
        if other := differences(read_result(repository_root() / self.results[0]), identity, Run.defaults()):
            raise StudyError(f"{self.results[0]} was made with {'; '.join(other)}")

    def status(self) -> str:
        """`done`, `to make` or `differs`, and why."""
        try:
            self.check_result()
        except (ValueError, OSError) as error:
            return f"differs  {self.name}: {error}"
        if missing := self.missing():
            return f"to make  {self.name}: no {', no '.join(missing)}"
        return f"done     {self.name}: {', '.join(self.results)}"


def exists(path: str) -> bool:
    return (repository_root() / path).exists()


def load_jobs(name: str, root: Path | None = None) -> dict[str, Job]:
    """Every notebook that a study executes, by the job's name.

    Args:
        root: of the repository whose study it is.
    Raises:
        StudyError: what is wrong with the file, and where.
    """
    file = StudyFile(name, root)
    jobs: list[Job] = []
    for task, entry in file.study.tasks.items():
        for arm in entry.arms:
            with file.naming("tasks", task, "arms", arm):
                jobs += jobs_of_arm(name, file.study, task, arm)
    for label, notebook in file.study.notebooks.items():
        with file.naming("notebooks", label):
            jobs.append(job_of_notebook(label, **notebook.model_dump()))
    return {job.name: job for job in jobs}


def jobs_of_arm(name: str, study: Study, task: str, arm: str) -> Iterator[Job]:
    """The runs of an arm, and evaluations of the models that are kept. Raises ValueError for what cannot be made."""
    entry = study.tasks[task]
    changes, shared = entry.arms[arm] or Arm(), study.parameters.values() | entry.values()
    attention = {"attention": arm} if arm in attentions.names() or "attention" not in shared else {}
    values = {**shared, **attention, **changes.values(), "task": task}
    for seed in study.seeds_of(task, arm):
        yield (run := job_of_run(name, arm, {**values, "seed": seed}))
        for split, of_study in study.switched.items() if values.get("save_model") else ():
            if switched := switched_values(of_study, entry.switched.get(split, Split()), seed):
                if split not in (splits := ("held-out", *Run.task_in(values).evaluation)):
                    raise ValueError(f"switched: {split!r} is not one of: {', '.join(splits)}")
                switched |= {"split": split, "trained": run.parameters["output_dir"]}
                yield replace(job_of_notebook(f"{run.name}/fidelity-{split}", "fidelity", **switched), task=run.task)


def job_of_run(study: str, arm: str, values: dict[str, Any]) -> Job:
    """A fine-tuning run. Raises ValueError if it cannot be made."""
    if "model" not in values:
        raise ValueError("model must be given")
    task = Run.task_in(values)
    folder = run_folder(study, values["task"], values["model"], arm, values["seed"])
    place = str(folder.relative_to(repository_root()))
    parameters, notebook = {**values, "output_dir": place}, task.notebook
    run, name = Run.parse(parameters, notebook), place.removeprefix(f"results/runs/{study}/")
    return Job(name, notebook, parameters, (f"{place}/result.json",), f"{place}/notebook.ipynb", values["task"], run)


def switched_values(study: Split, task: Split, seed: int) -> dict[str, Any]:
    """Parameters of fidelity.ipynb for a run with this seed; {} if its model is not evaluated."""
    values, variants = study.values() | task.values(), {**study.variants, **task.variants}
    shares = values.pop("shares", None)
    values["variants"] = {
        label: settings if "share" in settings or not shares else {"shares": shares, **settings}
        for label, settings in variants.items()
        if settings is not None
    }
    return values if seed in (task.seeds or study.seeds or [seed]) else {}


def job_of_notebook(label: str, notebook: str, **parameters: Any) -> Job:
    """The job of an entry of `notebooks`. Raises ValueError if its parameters are none of the notebook."""
    if notebook not in NOTEBOOKS:
        raise ValueError(f"notebook={notebook!r} is not one of: {', '.join(NOTEBOOKS)}")
    module, _, kind = NOTEBOOKS[notebook].partition(":")
    made = getattr(import_module(module), kind).parse(parameters)
    results = tuple(relative_to_root(Path(path)) for path in made.results)
    if outside := [path for path in results if not path.startswith("results/")]:
        raise ValueError(f"{outside[0]} is not in results/")
    table = getattr(made, "output", None)
    kept = Path(table).with_suffix(".ipynb") if table else Path(made.output_dir, f"{label}.ipynb")
    task = parameters.get("task", "")
    return Job(label, f"{notebook}.ipynb", parameters, results, relative_to_root(repository_root() / kept), task)


def to_make(name: str, jobs: dict[str, Job]) -> list[Job]:
    """The jobs of a study of which something is missing.

    Raises:
        StudyError: all runs whose results are not what the study's file asks for, and where they are.
        OSError: a result may not be read.
    """
    reasons, folders = [], []
    for job in jobs.values():
        try:
            job.check_result()
        except ValueError as error:
            reasons += [f"  {job.name}: {str(error).removeprefix(f'{job.results[0]} was ')}"]
            folders += [f"  {Path(job.results[0]).parent}"]
    if reasons:
        reasons.insert(0, f"results not made as studies/{name}.yaml says, {len(reasons)} of {len(jobs)}:")
        reasons += ["Where a parameter was changed, change it back. Runs that are moved away are made again:"]
        raise StudyError("\n".join(reasons + folders))
    return [job for job in jobs.values() if job.missing()]


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    try:
        jobs = load_jobs(arguments[0])
        print("\n".join(job.status() for job in jobs.values()))
        to_make(arguments[0], jobs)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
