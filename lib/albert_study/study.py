"""A study: the notebooks that its file, studies/<name>.yaml, asks for, and which of their results are missing.

    python -m albert_study.study mini      every job of studies/mini.yaml: done, to make, or made with other parameters

A file may have

    tasks        fine-tuning runs, by task and arm, which has the attention of its name unless it says otherwise;
                 `parameters` are those of all runs; a task's override them, and an arm's override both
    switched     by split of the data: under which other attentions a run's model is evaluated (if it is kept)
    notebooks    any other notebook, with its parameters

and beside `seeds`, of the study, a task or an arm, `later`: those that were added after scores of the task had been
seen. Tables mark them. An error names file, line, place and the nearest name. PyYAML reads a file; no key may be given
twice. Types are strict: neither "2.5" nor true becomes a number. Names become parts of paths and commands, so they have
letters, digits, dots, underscores and hyphens alone. A run's values are checked when it becomes a `Run`.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from albert_lsh import attention as attentions
from albert_lsh.files import OneLineError, described, nearest, relative_to_root, repository_root, run_folder
from albert_lsh.record import differences, read_result
from albert_lsh.run import Count, Run, Seed, Settings

# Notebooks that an entry of `notebooks` may name, and the class of their parameters.
NOTEBOOKS = {
    "pretrain": "albert_study.experiments.pretrain_recipe:Pretraining",
    "long_range": "albert_study.experiments.long_recipe:LongRange",
    "efficiency": "albert_study.experiments.efficiency:Efficiency",
    "reading": "albert_study.probe.paragraphs:Reading",
    "masked_words": "albert_study.probe.paragraphs:MaskedWords",
    "bag_of_words": "albert_study.experiments.words:BagOfWords",
    "constant_answers": "albert_study.experiments.words:ConstantAnswers",
    "collapse": "albert_study.experiments.collapse:Collapse",
    "fidelity": "albert_study.probe.switched:Fidelity",
}

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
SET_BY_THE_STUDY = {"seed": "give seeds, a list", "task": "its key names it", "output_dir": "the study places its runs"}
SET_BY_THE_STUDY["results_root"] = SET_BY_THE_STUDY["output_dir"]
Place = tuple[int | str, ...]  # keys and list indices


class StudyError(OneLineError):
    """A study that cannot be made as its file says; the message names the file and the place in it."""


def find_file(path: str, root: Path | None = None) -> Path:
    """A file or folder of studies/, notebooks/ or report/, below `root`, in the repository, or in the package, which
    carries them (setup.py)."""
    below = [root or repository_root(), repository_root(), Path(__file__).parent]
    return next((folder / path for folder in below if (folder / path).exists()), below[0] / path)


# ---- the file -------------------------------------------------------------------------------------------------------
def distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values!r} has a value twice")
    return values


Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Model = Annotated[str, Field(pattern=f"(^|/){NAME}/?$")]  # its last part names folders
Label = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(distinct)]
Later = Annotated[list[Seed], AfterValidator(distinct)]  # seeds that came after scores of their task had been seen
Shares = Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1), AfterValidator(distinct)]


class Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    def values(self) -> dict[str, Any]:
        """The parameters that stand there."""
        return self.model_dump(exclude_unset=True, exclude={"arms", "seeds", "later", "switched"})


_parameters: dict[str, Any] = {name: (Any, None) for name in Run.model_fields if name not in SET_BY_THE_STUDY}
OfRuns: Any = create_model("OfRuns", __base__=Section, **_parameters | {"model": (Model, None)})


class Arm(OfRuns):
    seeds: Seeds = Field(default=[])
    later: Later | None = Field(default=None)


class Split(Section):
    """Under which attentions trained models are evaluated on a split, or what a task changes in that."""

    seeds: Seeds = []
    examples: Count | None = None
    looked_into: Count = 1
    seed: Seed = 0
    shares: Shares = []  # of every variant that has none of its own
    variants: dict[Label, dict[str, Any] | None] = {}  # None: what all tasks have, but not this one


class TaskEntry(Arm):
    arms: dict[Name, Arm | None] = Field(min_length=1)
    switched: dict[Name, Split] = Field(default={})


class Entry(BaseModel):
    """Another notebook to execute; all other keys are its parameters."""

    model_config = ConfigDict(strict=True, extra="allow")
    notebook: Name


class Study(Section):
    parameters: OfRuns = OfRuns()
    seeds: Seeds = [0]
    later: Later = []
    switched: dict[Name, Split] = {}
    tasks: dict[Name, TaskEntry] = {}
    notebooks: dict[Name, Entry] = {}

    @model_validator(mode="after")
    def whole(self) -> "Study":
        if not (self.tasks or self.notebooks):
            raise ValueError("tasks or notebooks must name at least one")
        for name, task in self.tasks.items():
            for split in task.switched.keys() - self.switched.keys():
                raise ValueError(f"tasks: {name}: switched: {split!r} is not one of: {', '.join(self.switched)}")
        return self

    def seeds_of(self, task: str, arm: str) -> dict[int, bool]:
        """The seeds of an arm, and which of them came later: the nearest list of each counts.

        Raises:
            ValueError: a seed that came later is none of the arm's.
        """
        entry, of_arm = self.tasks[task], self.tasks[task].arms[arm] or Arm()
        seeds = of_arm.seeds or entry.seeds or self.seeds
        later = next((nearest for nearest in (of_arm.later, entry.later) if nearest is not None), self.later)
        if strange := [seed for seed in later if seed not in seeds]:
            raise ValueError(f"later: {strange[0]} is not one of the seeds {', '.join(map(str, seeds))}")
        return {seed: seed in later for seed in seeds}


SECTIONS: dict[Any, type[BaseModel]] = {"parameters": OfRuns, "switched": Split, "tasks": TaskEntry, "arms": Arm}


class StudyFile:
    """A file that was read: its `study`, and on which line each place of it stands."""

    def __init__(self, name: str, root: Path | None = None):
        """studies/<name>.yaml below `root`, or in the repository, or carried by the package.

        Raises:
            StudyError: there is no such file, or it is no study.
        """
        self.shown, self.lines = f"studies/{name}.yaml", dict[Place, int]()
        if not re.fullmatch(NAME, name) or not (path := find_file(self.shown, root)).is_file():
            names = ", ".join(sorted(path.stem for path in find_file("studies", root).glob("*.yaml")))
            raise StudyError(f"study={name!r} is not one of: {names} (no {self.shown})")
        try:
            loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
            loader.name = self.shown
            if tree := loader.get_single_node():
                self.number(tree)
            self.study = Study.model_validate(loader.construct_document(tree) if tree else None)
        except ValidationError as failed:
            raise StudyError("\n".join(map(self.located, failed.errors()[:5]))) from failed
        except (yaml.YAMLError, ValueError, KeyError, RecursionError) as error:
            raise StudyError(f"{self.shown} is no study: {error}") from error

    def number(self, node: yaml.Node, place: Place = ()) -> None:
        """Note the line of every place below a node. Raises yaml.YAMLError where a key is given twice."""
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.number(value, (*place, str(index)))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                step = (*place, str(key.value))
                if step in self.lines:
                    problem = f"the key {key.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                self.lines[step] = key.start_mark.line + 1
                self.number(value, step)

    def at(self, place: Sequence[int | str]) -> str:
        """The file and the line of a place, or of the nearest one around it."""
        around = (tuple(map(str, place[:depth])) for depth in range(len(place), -1, -1))
        line = next((self.lines[steps] for steps in around if steps in self.lines), None)
        return self.shown if line is None else f"{self.shown}, line {line}"

    @contextmanager
    def naming(self, *place: str) -> Iterator[None]:
        """Turn a ValueError into a StudyError that names the file, the line and the place.

        If it begins with a parameter's name, the line is where that stands: in the arm, the task, or for all runs.
        """
        try:
            yield
        except ValueError as error:
            name = re.split(r"\W", str(error), maxsplit=1)[0]
            places = [(*place, name), (*place[:2], name), ("parameters", name)]
            line = self.at(next((nearest for nearest in places if nearest in self.lines), place))
            raise StudyError(f"{line}: {': '.join(place)}: {error}") from error

    def located(self, error: Any) -> str:
        """One line about an error of pydantic's: file, line, place, what is wrong there and what stands there."""
        steps = [step for step in error["loc"] if step != "[key]"]
        depth = max((number for number, step in enumerate(steps) if isinstance(step, str)), default=0)
        place, named = steps[:depth], tuple(steps[depth:]) or ("study",)
        here: Any = {**error, "loc": named}
        problem = described(here)
        if error["type"] == "extra_forbidden":
            problem = unknown(named[0], place)
        elif error["type"] == "value_error" and not problem.startswith(f"{named[0]}="):
            place = steps
        return f"{self.at(steps)}: " + ": ".join([*map(str, place), problem])


def unknown(name: Any, place: list[Any]) -> str:
    """That a name is no key at a place, such as ["tasks", "mrpc", "arms", "random"], and what may have been meant."""
    hint = nearest(str(name), (SECTIONS[place[::2][-1]] if place else Study).model_fields)
    if name in attentions.setting_names():
        hint = "an attention's settings go into attention_settings"
    return f"{name!r} is no key here; {SET_BY_THE_STUDY.get(name, hint)}"


# ---- its jobs -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """A notebook to be executed: a run's, one that evaluates its model again, or any other."""

    name: str  # a path without folders of the machine
    notebook: str
    parameters: dict[str, Any]  # as the study's file gives them
    results: tuple[str, ...]  # files that it writes last, relative to the repository
    kept: str  # where the executed notebook is kept, likewise
    task: str = ""
    settings: Settings | None = None  # the parameters, checked

    @property
    def run(self) -> Run | None:
        """The fine-tuning run that it makes."""
        return self.settings if isinstance(self.settings, Run) else None

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
        """Compare the results that are there with the parameters. A table's rows are compared by its notebook.

        Raises:
            StudyError: a run, or a pretraining, was made with others. ValueError: a result is damaged. OSError: it may
            not be read.
        """
        for path in filter(exists, self.results):
            if Path(path).name != "result.json":
                continue
            result, made = read_result(repository_root() / path), self.settings
            if made and Path(str(getattr(made, "output_dir", None))) == Path(made.results_root, path).parent:
                # device and precision, where the file leaves them open: every machine's choice is right. Of a
                # pretraining what the file says is compared: older ones had fewer parameters.
                left_open = {"device", "precision"} if self.run else {*made.identity()} - {"attention"}
                named = {name for name, value in self.parameters.items() if value != "auto"}
                identity = {k: value for k, value in made.identity().items() if k not in left_open - named}
                if other := differences(result, identity, made.defaults()):
                    raise StudyError(f"{path} was made with {'; '.join(other)}")

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
            if same := [job.name for job in jobs[:-1] if {*job.results} & {*jobs[-1].results}]:
                raise ValueError(f"it writes the results of {same[0]!r}, {jobs[-1].results[0]}; name another output")
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
    return Job(label, f"{notebook}.ipynb", parameters, results, relative_to_root(repository_root() / kept), task, made)


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
