"""A study's file, studies/<name>.yaml: its schema; an error names file, line, place and the nearest name.

PyYAML reads it; no key may be given twice. Types are strict: neither "2.5" nor true becomes a number. Names become
parts of paths and commands, so they have letters, digits, dots, underscores and hyphens alone. A run's values are
checked when it becomes a `Run`.
"""

import difflib
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from albert_lsh import attention as attentions
from albert_lsh.files import OneLineError
from albert_lsh.run import Count, Run, Seed
from albert_study.carried import carried

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
SET_BY_THE_STUDY = {"seed": "give seeds, a list", "task": "its key names it", "output_dir": "the study places its runs"}
SET_BY_THE_STUDY["results_root"] = SET_BY_THE_STUDY["output_dir"]
Place = tuple[int | str, ...]  # keys and list indices


class StudyError(OneLineError):
    """A study that cannot be made as its file says; the message names the file and the place in it."""


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
        if not re.fullmatch(NAME, name) or not (path := carried(self.shown, root)).is_file():
            names = ", ".join(sorted(path.stem for path in carried("studies", root).glob("*.yaml")))
            raise StudyError(f"study={name!r} is not one of: {names} (no {self.shown})")
        try:
            loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
            loader.name = self.shown
            if tree := loader.get_single_node():
                self.number(tree)
            self.study = Study.model_validate(loader.construct_document(tree) if tree else None)
        except ValidationError as failed:
            raise StudyError("\n".join(map(self.described, failed.errors()[:5]))) from failed
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

    def described(self, error: Any) -> str:
        """One line about an error of pydantic's: file, line, place, what is wrong there and what stands there."""
        place = [step for step in error["loc"] if step != "[key]"]
        line, problem = self.at(place), error["msg"].removeprefix("Value error, ")
        if error["type"] in ("missing", "extra_forbidden"):
            *place, name = place
            problem = f"{name} must be given" if error["type"] == "missing" else unknown(name, place)
        elif error["type"] != "value_error":
            problem += f", not {reprlib.repr(error['input'])}"
        return f"{line}: " + ": ".join([*map(str, place), problem])


def unknown(name: Any, place: list[Any]) -> str:
    """That a name is no key at a place, such as ["tasks", "mrpc", "arms", "random"], and what may have been meant."""
    fields = (SECTIONS[place[::2][-1]] if place else Study).model_fields
    near = difflib.get_close_matches(str(name), fields, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(fields)}"
    if name in attentions.setting_names():
        hint = "an attention's settings go into attention_settings"
    return f"{name!r} is no key here; {SET_BY_THE_STUDY.get(name, hint)}"


def added_later(name: str, root: Path | None = None) -> set[tuple[str, str, int]]:
    """Task, arm and seed of the runs of a study that came later; none where it has no file."""
    if not carried(f"studies/{name}.yaml", root).is_file():
        return set()
    study = StudyFile(name, root).study
    arms = [(task, arm) for task, entry in study.tasks.items() for arm in entry.arms]
    return {(*place, seed) for place in arms for seed, is_later in study.seeds_of(*place).items() if is_later}
