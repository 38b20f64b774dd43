"""What may stand in a study's file, studies/<name>.yaml; what does not is refused with its file, line and place.

A number is a number here: neither "2.5" nor true becomes one. Names become parts of paths and of commands, so that they
are letters, digits, dots, underscores and hyphens. What a run's parameters may be says `parameters.Parameters`.
"""

import dataclasses
import re
import reprlib
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from albert_lsh.training.files import repository_root
from albert_lsh.training.parameters import Parameters
from albert_study.study_yaml import line_of, read_yaml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NAMED = "a name of letters, digits, '.', '_' and '-', the first a letter or digit"


class StudyError(ValueError):
    """A study that cannot be made as its file says; the message names the file and the place in it."""


def check_name(name: str) -> str:
    """The name of a study, task, arm or split; ValueError if it cannot be a part of a path."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not {NAMED}")
    return name


def check_model(model: str) -> str:
    """A model of the Hub, or a folder; ValueError if its last part cannot be a part of another path."""
    if not NAME.fullmatch(Path(model).name):
        raise ValueError(f"model={model!r} must end in {NAMED}")
    return model


def check_once(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values!r} has a value twice")
    return values


Name = Annotated[str, AfterValidator(check_name)]
Label = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,100}$")]
Seed = Annotated[int, Field(ge=0)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(check_once)]
Shares = Annotated[list[Annotated[float, Field(gt=0, le=1)]], Field(min_length=1), AfterValidator(check_once)]
Whole = Annotated[int, Field(ge=1)]
STRICT = ConfigDict(strict=True, extra="forbid")
OPEN = ConfigDict(strict=True, extra="allow")  # the rest is checked as parameters, or an attention's settings


class Part(BaseModel):
    """Some of a run's parameters, and what must not be among them."""

    model_config = OPEN

    @model_validator(mode="before")
    @classmethod
    def nothing_of_the_study(cls, given: Any) -> Any:
        known = {"seed": "give seeds, a list", "task": "its key names it", "output_dir": "the study places its runs"}
        for name in known.keys() & (set(given) if isinstance(given, dict) else set()):
            raise ValueError(f"{name} cannot be a parameter here ({known[name]})")
        return given


_types: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(Parameters) if f.name not in ("task", "seed")}
_types |= {"model": Annotated[str, AfterValidator(check_model)]}
Given: Any = create_model(  # type: ignore[call-overload]
    "Given", __base__=Part, **{name: (kind, Field(default=None)) for name, kind in _types.items()}
)


class Arm(Given):
    seeds: Seeds = Field(default=[])


class Variant(BaseModel):
    """An attention to evaluate a trained model with, and its settings."""

    model_config = OPEN
    attention: str
    shares: Shares = Field(default=[])


class TaskSplit(BaseModel):
    """What a task changes in the evaluation of its models on a split."""

    model_config = STRICT
    seeds: Seeds = Field(default=[])
    examples: Whole | None = None
    looked_into: Whole = 1
    seed: Seed = 0
    length: Whole = 1
    variants: dict[Label, Variant | None] = {}  # None: what all tasks have, but not this one


class Switched(BaseModel):
    """The same for every split of a task, by the split's name."""

    model_config = OPEN
    __pydantic_extra__: dict[str, TaskSplit]
    length: Whole = 1


class Split(BaseModel):
    """How trained models are evaluated under other attentions on a split."""

    model_config = STRICT
    seeds: Seeds = Field(default=[])
    examples: Whole | None = None
    looked_into: Whole = 1
    seed: Seed = 0
    shares: Shares
    variants: dict[Label, Variant] = Field(min_length=1)


class Task(Given):
    arms: dict[Name, Arm | None] = Field(min_length=1)
    seeds: Seeds = Field(default=[])
    switched: Switched = Field(default_factory=Switched.model_construct)


class Read(BaseModel):
    """What reads paragraphs of one length."""

    model_config = STRICT
    share: Annotated[float, Field(gt=0, le=1)]
    variants: dict[Label, Variant] = Field(min_length=1)
    paragraphs: Whole = 1
    seed: Seed = 0
    task: Name = ""


class Study(BaseModel):
    """A whole file."""

    model_config = STRICT
    parameters: Given = Field(default=None)
    seeds: Seeds = Field(default=[])
    switched: dict[Name, Split] = {}
    reading: dict[Whole, Read] = {}
    tasks: dict[Name, Task] = Field(min_length=1)

    @model_validator(mode="after")
    def tasks_switch_what_the_study_does(self) -> "Study":
        for name, task in self.tasks.items():
            for split in (task.switched.model_extra or {}).keys() - self.switched.keys():
                raise ValueError(f"tasks: {name}: switched: {split!r} is not one of: {', '.join(self.switched)}")
        if self.reading and not getattr(self.parameters, "model", None):
            raise ValueError("parameters: model must be given, for reading")
        return self


def load_file(name: str, root: Path | None = None) -> dict[str, Any]:
    """What studies/<name>.yaml says; StudyError if there is none, or it is no study."""
    folder = (root or repository_root()) / "studies"
    path, shown = folder / f"{name}.yaml", f"studies/{name}.yaml"
    if not NAME.fullmatch(name) or not path.is_file():
        there = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
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
    where = "".join(f"{step}: " for step in place)
    given = (
        ""
        if error["type"] in ("value_error", "missing", "extra_forbidden")
        else f", not {reprlib.repr(error['input'])}"
    )
    return f"{path}, line {line}: {where}{what}{given}" if line else f"{path}: {where}{what}{given}"
