"""The schema of a study's file, studies/<name>.yaml; an error names the file, the line and the place.

Types are strict: neither "2.5" nor true becomes a number. Names become parts of paths and commands, so they consist of
letters, digits, dots, underscores and hyphens. A run's parameters are those of `run.Run`.
"""

import difflib
import re
import reprlib
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from albert_lsh import attention as attentions
from albert_lsh.errors import OneLineError
from albert_lsh.run import Count, Run, Seed
from albert_study.carried import carried
from albert_study.study_yaml import line_of, read_yaml

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
NOT_HERE = {"seed": "give seeds, a list", "task": "its key names it", "output_dir": "the study places its runs"}
NOT_HERE["results_root"] = NOT_HERE["output_dir"]


class StudyError(OneLineError):
    """A study that cannot be made as its file says; the message names the file and the place in it."""


def check_once(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values!r} has a value twice")
    return values


Name = Annotated[str, Field(pattern=f"^{NAME}$")]
Model = Annotated[str, Field(pattern=f"(^|/){NAME}/?$")]  # its last part names folders
Label = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(check_once)]
Shares = Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1), AfterValidator(check_once)]
STRICT = ConfigDict(strict=True, extra="forbid")
OPEN = ConfigDict(strict=True, extra="allow")  # the rest is checked as a notebook's parameters


class Some(BaseModel):
    """Parameters of fine-tuning runs, without those that the study itself sets."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def nothing_of_the_study(cls, given: Any) -> Any:
        for name in NOT_HERE.keys() & (set(given) if isinstance(given, dict) else set()):
            raise ValueError(f"{name} cannot be a parameter here ({NOT_HERE[name]})")
        return given


def field_type(field: Any) -> Any:
    """The type of a parameter, with its bounds."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


_types: dict[str, Any] = {k: field_type(f) for k, f in Run.model_fields.items() if k not in NOT_HERE}
_types |= {"model": Model}
Given: Any = create_model(  # type: ignore[call-overload]
    "Given", __base__=Some, **{name: (kind, Field(default=None)) for name, kind in _types.items()}
)


class Arm(Given):
    seeds: Seeds = Field(default=[])


class Split(BaseModel):
    """Under which attentions trained models are evaluated on a split, or what a task changes in that."""

    model_config = STRICT
    seeds: Seeds = Field(default=[])
    examples: Count | None = None
    looked_into: Count = 1
    seed: Seed = 0
    shares: Shares = Field(default=[])
    variants: dict[Label, dict[str, Any] | None] = {}  # None: what all tasks have, but not this one


class TaskEntry(Given):
    arms: dict[Name, Arm | None] = Field(min_length=1)
    seeds: Seeds = Field(default=[])
    switched: dict[Name, Split] = Field(default={})


class Entry(BaseModel):
    """Another notebook to execute; all other keys are its parameters."""

    model_config = OPEN
    notebook: Name


class Study(BaseModel):
    """A whole file."""

    model_config = STRICT
    parameters: Given = Field(default=None)
    seeds: Seeds = Field(default=[])
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


def load_file(name: str, root: Path | None = None) -> dict[str, Any]:
    """The content of studies/<name>.yaml; StudyError if there is no such file, or it is no study."""
    shown = f"studies/{name}.yaml"
    if not re.fullmatch(NAME, name) or not (path := carried(shown, root)).is_file():
        there = ", ".join(sorted(p.stem for p in carried("studies", root).glob("*.yaml")))
        raise StudyError(f"study={name!r} is not one of: {there} (no {shown})")
    try:
        content, tree = read_yaml(path, shown)
    except (yaml.YAMLError, ValueError) as error:
        raise StudyError(f"{shown} is no study: {error}") from error
    try:
        Study.model_validate(content)
    except ValidationError as error:
        raise StudyError("\n".join(described(one, shown, tree) for one in error.errors()[:5])) from error
    return content


def described(error: Any, path: str, tree: yaml.Node | None) -> str:
    """One line about one error: file, line, place, what is wrong there and what stands there."""
    place = tuple(step for step in error["loc"] if step != "[key]")
    line, what = line_of(tree, place), error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        place, what = place[:-1], f"{place[-1]} must be given"
    elif error["type"] == "extra_forbidden":
        place, what = place[:-1], unknown(place)
    elif error["type"] != "value_error":
        what += f", not {reprlib.repr(error['input'])}"
    return f"{path}{f', line {line}' if line else ''}: " + ": ".join([*map(str, place), what])


def unknown(place: tuple[int | str, ...]) -> str:
    """That the last name of a place is no key there, and which one may have been meant."""
    name, kind = str(place[-1]), kind_at(place[:-1])
    near = difflib.get_close_matches(name, kind.model_fields, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(kind.model_fields)}"
    if name in attentions.setting_names():
        hint = "an attention's settings go into attention_settings"
    return f"{name!r} is no key here; {hint}"


def kind_at(place: tuple[int | str, ...]) -> type[BaseModel]:
    """What stands at a place of a study's file: ("tasks", "mrpc", "arms", "lsh") is an `Arm`."""
    match place:
        case ("parameters",):
            return Given
        case ("switched", _) | ("tasks", _, "switched", _):
            return Split
        case ("tasks", _, "arms", _):
            return Arm
        case ("tasks", _):
            return TaskEntry
        case _:
            return Study
