"""What a run is: the parameters of a notebook, typed, and checked once, when they become an object.

`Settings` is what the parameters of all notebooks have in common, `Run` are those of a fine-tuning run.

    before = set(globals())                          the notebook's first cell; its parameters follow
    run = Run.from_notebook(globals(), before)       or an error that says what is wrong with them
    run = Run.parse({"task": "mrpc", ...}, place)    from any dictionary, such as a study's
"""

import contextlib
import difflib
import hashlib
import json
import os
import re
import reprlib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from albert_lsh import attention as attentions
from albert_lsh.errors import OneLineError
from albert_lsh.files import home, root_of, run_folder
from albert_lsh.model.config import load_config, max_positions
from albert_lsh.pretrained import FOLDERS, folder_of
from albert_lsh.sources import FORMATS, SPAN, SPAN_ANSWERS, fingerprint, is_local
from albert_lsh.tasks import TASKS, Task, task_of

HIGHEST = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=HIGHEST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # what NumPy takes
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]
UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # in no path; surrogates in no file of ours
OPEN = (None, "", "None")
DATA = ("task", "tasks")  # the fields that name data


class ParameterError(OneLineError):
    """A parameter that a run cannot be made with; the message names it, its value, and what was expected."""


class Settings(BaseModel):
    """The parameters of a notebook.

    Text becomes what it spells, where the field is not text: papermill's command line and YAML hand over "1e-5", "None"
    and '{"n_hashes": 4}' as text. Otherwise types are strict: neither 2.5 nor True becomes a whole number.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    notebook: ClassVar[str]
    paths: ClassVar[tuple[str, ...]] = ()  # fields that hold a path
    sources: ClassVar[tuple[str, ...]] = ()  # fields that hold a name, or a path where there is one
    where: ClassVar[tuple[str, ...]] = ("output_dir", "results_root", "resume")  # and how a result is made, not what
    results_root: str | None = None

    @classmethod
    def from_notebook(cls, variables: MutableMapping[str, Any], before: set[str], notebook: str = "") -> Self:
        """From a notebook's variables, `globals()`.

        Args:
            before: the names there were before the parameters' cell. Others that are no field are refused, unless a
                later cell made them: when the cells from the parameters on are executed again, only names that look
                like a parameter are.
            notebook: its name, where the class serves several.
        Raises:
            ParameterError: see `parse`.
        """
        fields, again = cls.model_fields.keys(), cls.model_fields.keys() <= before
        literals = {n for n, v in variables.items() if isinstance(v, bool | int | float | str | list | dict | None)}
        unknown = {n for n in literals - before - fields if not n.startswith("_")}
        if again:
            unknown = {name for name in unknown if difflib.get_close_matches(name, fields, 1)}
        values = {name: variables[name] for name in [*fields, *sorted(unknown)] if name in variables}
        for name in unknown:
            del variables[name]  # so that it is new the next time as well
        before |= set(variables)
        return cls.parse(values, notebook)

    @classmethod
    def parse(cls, values: dict[str, Any], place: str = "") -> Self:
        """From a dictionary.

        Args:
            place: what errors name, for instance the notebook.
        Raises:
            ParameterError: a name that is no field (the message has the nearest one), a value that does not fit, one
                that is missing, or parameters that do not go together.
        """
        name_of_place = place or cls.notebook
        for name in values.keys() - cls.model_fields.keys():
            near = difflib.get_close_matches(str(name), cls.model_fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(cls.model_fields)}"
            raise ParameterError(f"{name!r} is not a parameter of {name_of_place}{hint}")
        try:
            return cls.model_validate(values).completed(place)
        except ParameterError:
            raise
        except ValueError as error:
            message = message_of(error.errors()[0]) if isinstance(error, ValidationError) else error
            raise ParameterError(f"{message} ({name_of_place})") from error

    def completed(self, place: str) -> Self:
        """With what is left open decided; a class may have its own. ValueError says what does not go together."""
        return self

    @field_validator("*", mode="wrap")
    @classmethod
    def spelled(cls, value: Any, handler: Any, info: ValidationInfo) -> Any:
        """The value if its field admits it, else what it spells as a text; 3 for 3.0 in a field of whole numbers."""
        readings = [None, value] if value in ("", "None") else [value]
        if isinstance(value, str):
            if UNWRITABLE.search(value):
                raise ValueError(f"{info.field_name}={reprlib.repr(value)} has a character that no file can hold")
            with contextlib.suppress(ValueError, RecursionError):
                readings.append(json.loads(value.lower() if value.lower() in ("true", "false") else value))
        if isinstance(readings[-1], float) and readings[-1].is_integer() and abs(readings[-1]) < 2**53:
            readings.append(int(readings[-1]))
        for reading in readings[:-1]:
            with contextlib.suppress(ValidationError):
                return handler(reading)
        return handler(readings[-1])

    @model_validator(mode="before")
    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        return cls.prepared(values)

    @classmethod
    def prepared(cls, values: dict[str, Any]) -> dict[str, Any]:
        """With paths that are absolute: below `results_root`, or the repository; ~ is the home folder."""
        root = None if values.get("results_root") in OPEN else values["results_root"]
        if isinstance(root, str | None) and not UNWRITABLE.search(root or ""):
            folder = root_of(root)
            values = values | {"results_root": str(folder)}

            def place(name: str, value: Any) -> Any:
                if isinstance(value, list):
                    return [place(name, part) for part in value]
                known = () if name in cls.paths else TASKS if name in DATA else FOLDERS
                if not isinstance(value, str) or value in (*OPEN, *known) or UNWRITABLE.search(value):
                    return value
                path = folder / home(value, name)
                return str(path) if name in cls.paths or os.path.exists(path) else value  # no name is too long

            values |= {name: place(name, values[name]) for name in (*cls.paths, *cls.sources) if name in values}
        return values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.recorded().items())})"

    def recorded(self) -> dict[str, Any]:
        """All parameters but `results_root`: records name no folder of a machine.

        Paths are as seen from there; of a task's file elsewhere the name alone, `data_revision` says which it was.
        """
        values = self.model_dump(exclude={"results_root"})

        def seen(name: str, value: Any) -> Any:
            if isinstance(value, list):
                return [seen(name, part) for part in value]
            value = value.removeprefix(f"{self.results_root}{os.sep}") if isinstance(value, str) else value
            return Path(value).name if name in DATA and os.path.isabs(value) else value

        return {name: seen(name, value) for name, value in values.items()}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        return {name: field.default for name, field in cls.model_fields.items() if not field.is_required()}

    def identity(self) -> dict[str, Any]:
        """Everything that decides the result: runs that differ in `where` alone are the same run."""
        return {name: value for name, value in self.recorded().items() if name not in self.where}


def message_of(error: Any) -> str:
    """What pydantic says of one parameter, in our words."""
    if error["type"] == "value_error":  # one of ours
        return str(error["ctx"]["error"])
    name = error["loc"][0] + "".join(f"[{step}]" for step in error["loc"][1:])
    if error["type"] == "missing":
        return f"{name} must be given"
    expected = re.sub(r"^\w+ should", "must", error["msg"])
    return f"{name}={reprlib.repr(error['input'])} {expected}"


class OfTask(Settings):
    """Parameters of a notebook about one task, of the table or of one's own data; what describes these is completed."""

    paths: ClassVar[tuple[str, ...]] = ("data_dir",)
    sources: ClassVar[tuple[str, ...]] = ("model", "task")
    task: str
    text_columns: list[str] | None = None
    label_column: str | None = None
    labels: list[str] | None = None  # names of the classes; []: a number is predicted
    data_revision: str | None = None

    @classmethod
    def prepared(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Also with the columns, labels and revision of one's own data: all that says which task it is."""
        values = super().prepared(values)
        named = {name: values.get(name) for name in ("label_column", "data_revision")}
        named = {name: None if value in OPEN else value for name, value in named.items()}
        for name, value in named.items():
            if not isinstance(value, str | None):
                raise ValueError(f"{name}={reprlib.repr(value)} must be text")
        named |= {name: list_of_names(name, values.get(name)) for name in ("text_columns", "labels")}
        values, task = values | named, values.get("task")
        if not isinstance(task, str) or UNWRITABLE.search(task):
            return values
        if os.path.splitext(task)[1].lower() in FORMATS:
            task = str(root_of(values.get("results_root")) / home(task, "task"))
        about = task_of(values | {"task": task})
        if not about.is_own:
            return values
        if values["data_revision"] and is_local(about.dataset):
            fingerprint(about.dataset, f"task={task!r}", values["data_revision"])
        span = {"text_columns": [*SPAN], "label_column": SPAN_ANSWERS, "labels": []}
        columns = {"text_columns": [*about.columns], "label_column": about.label, "labels": [*about.labels]}
        return values | (span if about.is_squad else columns) | {"task": task, "data_revision": about.revision}

    @property
    def about(self) -> Task:
        """The task."""
        return task_of(self.model_dump())


def list_of_names(name: str, value: Any) -> list[str] | None:
    """Column or class names: a list, or "one,other" on papermill's command line; None where it is open."""
    if value in OPEN:
        return None
    names = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            names = json.loads(value)
        names = value.split(",") if not isinstance(names, list) else names
    names = [str(part) if type(part) is int else part for part in names] if isinstance(names, list) else [None]
    if not all(isinstance(part, str) and part and not UNWRITABLE.search(part) for part in names):
        raise ValueError(f"{name}={reprlib.repr(value)} must be a list of names")
    if len({*names}) < len(names):
        raise ValueError(f"{name}={reprlib.repr(value)} has a name twice")
    return names


class Run(OfTask):
    """The parameters of a fine-tuning run, as glue.ipynb and squad.ipynb have them."""

    notebook: ClassVar[str] = "glue.ipynb"
    paths: ClassVar[tuple[str, ...]] = ("output_dir", "data_dir")
    where: ClassVar[tuple[str, ...]] = (*Settings.where, "data_dir", "tensorboard", "save_model")

    model: str = "mini"
    revision: str | None = None  # of the model's repository on the Hub
    random_weights: bool = False  # the model's shape and tokenizer, with random weights
    attention: str = "softmax"
    attention_settings: dict[str, Any] = Field(default={}, validate_default=True)
    evaluation_settings: dict[str, Any] = {}  # laid over these in evaluation
    projections: Literal["new"] | None = None  # query, key, value and output, drawn anew; None: the model's own
    passes: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None  # None: all have it
    seed: Seed = 0
    max_length: Annotated[int, Field(ge=8, le=HIGHEST)] = 128
    extend_positions: bool = False  # give the model positions for max_length tokens if it has fewer
    batch_size: Count = 32
    accumulation: Count = 1
    learning_rate: Positive = 2e-5
    epochs: Annotated[float, Field(gt=0, le=10_000)] = 3
    eval_steps: Count | None = None  # evaluate every so many steps, besides the end of every epoch
    warmup_share: Share = 0.1
    weight_decay: Share = 0.01
    precision: Precision = "auto"
    device: Device = "auto"
    recompute: bool = False
    feed_forward_chunk: Count | None = None
    train_examples: Count | None = None
    eval_examples: Count | None = None
    held_out_examples: Count | None = None  # evaluate on so many training examples that are not trained on
    folds: Annotated[int, Field(ge=2, le=100)] | None = None  # cross-validation: evaluate on part `seed` of so many
    shuffle_words: Seed | None = None  # evaluate also with each text's words in an order drawn with this seed
    data_dir: str | None = None
    resume: bool = True
    tensorboard: bool = False
    save_model: bool = False
    output_dir: str | None = None

    @classmethod
    def prepared(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Also with a task's usual recipe, where the parameters leave it open."""
        values = super().prepared(values)
        task, model, revision = values.get("task"), values.get("model", "mini"), values.get("revision")
        if isinstance(task, str) and isinstance(model, str):
            usual = usual_recipe(task_of(values), model, None if revision in OPEN else revision)
            values = values | {name: value for name, value in usual.items() if values.get(name) in OPEN}
        return values

    @field_validator("attention_settings")
    @classmethod
    def complete(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """All settings of the attention."""
        return attentions.check(info.data["attention"], settings) if "attention" in info.data else settings

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """ValueError where parameters do not go together."""
        settings = attentions.check_evaluation(self.attention, self.attention_settings, self.evaluation_settings)
        if self.attention == "reformer" and self.passes is not None:
            raise ValueError(f"passes={self.passes!r}: 'reformer' replaces the projections of all passes")
        if self.attention == "reformer" and self.projections is not None:
            raise ValueError(f"projections={self.projections!r}: 'reformer' has new ones of its own")
        if self.about.is_squad and self.shuffle_words is not None:
            raise ValueError(f"shuffle_words={self.shuffle_words}: the answers of {self.task!r} are places in a text")
        if self.folds and self.held_out_examples:
            raise ValueError(f"folds={self.folds} and held_out_examples={self.held_out_examples}: take one of them")
        for landmarks in (self.attention_settings.get("num_landmarks"), settings.get("num_landmarks")):
            if (landmarks or 0) > self.max_length:
                raise ValueError(
                    f"num_landmarks={landmarks} is above max_length={self.max_length}; with no more tokens than "
                    "landmarks nystrom is softmax attention"
                )
        return self

    def completed(self, place: str) -> Self:
        """With the machine's device and precision in the place of "auto", and a folder of its own."""
        is_squad = self.about.is_squad
        if place.endswith(".ipynb") and is_squad != (place == "squad.ipynb"):
            raise ValueError(f"task={self.task!r} belongs to {'squad' if is_squad else 'glue'}.ipynb")
        folder = self.output_dir or str(self.usual_folder())
        return self.model_copy(update={"output_dir": folder, **on_this_machine(self.device, self.precision)})

    def usual_folder(self) -> Path:
        """Of a notebook's run: one more for every change of the parameters, named by a hash of what differs."""
        described = ("text_columns", "label_column", "labels", "data_revision")  # another file, another folder
        names = ("task", "model", "attention", "seed", "results_root", *described)
        usual = type(self).model_validate({name: getattr(self, name) for name in names}).identity()
        usual |= dict.fromkeys(described)
        changed = {name: value for name, value in self.identity().items() if value != usual[name]}
        digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
        arm = f"{self.attention}-{digest}" if changed else self.attention
        return run_folder("notebook", self.task, self.model, arm, self.seed, self.results_root)

    @property
    def folder(self) -> Path:
        return Path(self.output_dir or self.usual_folder())

    @property
    def examples(self) -> dict[str, Any]:
        """Which examples `load_data` is asked for."""
        names = ("train_examples", "eval_examples", "held_out_examples", "shuffle_words")
        fold = (self.seed % self.folds, self.folds) if self.folds else None
        return {name: getattr(self, name) for name in names} | {"fold": fold}


def usual_recipe(task: Task, model: str, revision: str | None = None) -> dict[str, Any]:
    """What a run has where it leaves max_length, batch_size, learning_rate or epochs open, or None.

    As in Transformers' examples, but with no more tokens than a model at hand can read. "mini" has the recipe of
    studies/mini.yaml: it starts from nothing.
    """
    length, batch, rate, epochs = (384, 12, 3e-5, 2) if task.is_squad else (128, 32, 2e-5, 3)
    if model == "mini":
        batch, rate, epochs = 32, 1e-3, 3
    if os.path.isdir(folder_of(model)):
        length = min(length, max_positions(load_config(model, revision=revision)))
    return {"max_length": length, "batch_size": batch, "learning_rate": rate, "epochs": epochs}


def on_this_machine(device: str, precision: str) -> dict[str, str]:
    """Device and precision in place of "auto".

    Precision "auto" is bf16 where the device computes in it; fp16 on a GPU that only emulates bf16, such as Colab's T4.

    Raises:
        ParameterError: a device or precision that this machine does not have.
    """
    has_cuda = torch.cuda.is_available()
    device = ("cuda" if has_cuda else "cpu") if device == "auto" else device
    if device == "cuda" and not has_cuda:
        raise ParameterError("device='cuda', but torch finds no CUDA device here; take device='cpu' or 'auto'")
    if precision == "fp16" and device == "cpu":
        raise ParameterError("precision='fp16' trains on CUDA only, and this run is on the CPU; take 'bf16'")
    return {"device": device, "precision": fastest_precision(device) if precision == "auto" else precision}


def fastest_precision(device: str) -> str:
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() else "fp32"
