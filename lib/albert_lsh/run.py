"""What a run is: the parameters of a notebook, typed, and checked once, when they become an object.

`Settings` is what the parameters of all notebooks have in common, `Run` are those of a fine-tuning run.

    before = set(globals())                          the notebook's first cell; its parameters follow
    run = Run.from_notebook(globals(), before)       or an error that says what is wrong with them
    run = Run.parse({"task": "mrpc", ...}, place)    from any dictionary, such as a study's
"""

import difflib
import hashlib
import json
import os
import reprlib
import textwrap
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from albert_lsh import attention as attentions
from albert_lsh import machine
from albert_lsh.attention import core
from albert_lsh.data import check_parts
from albert_lsh.encoders import max_positions
from albert_lsh.files import TABLES, OneLineError, described, home, nearest, root_of, run_folder
from albert_lsh.interface import check_residual
from albert_lsh.kinds import Task
from albert_lsh.model.load import load_config
from albert_lsh.model.projections import PROJECTIONS
from albert_lsh.pretrained import FOLDERS, folder_of
from albert_lsh.sources import fingerprint, is_local, task_of
from albert_lsh.tasks import TASKS

OPEN = (None, "", "None")
KNOWN = {*TASKS, *FOLDERS}
DATA = ("task", "tasks", "text")  # the fields that name data


def in_root(value: str, info: ValidationInfo) -> str:
    """An absolute path: below `results_root`, or the repository; ~ is the home folder."""
    return str(Path(info.data.get("results_root") or "") / home(value, str(info.field_name)))


def or_path(value: str, info: ValidationInfo) -> str:
    """What names a task or model: as it is, or as an absolute path, if it is no name of ours and a file or folder.

    A name that ends as a data file does is a path also where there is no such file: the error then says where.
    """
    if value in (*KNOWN, *OPEN):
        return value
    path = in_root(value, info)
    is_path = os.path.exists(path) or os.path.splitext(value)[1].lower() in TABLES
    return path if is_path else value


def listed(value: Any) -> Any:
    """The names in "one,other", as papermill's command line has a list."""
    return value.split(",") if isinstance(value, str) else value


def each_once(names: list[str], info: ValidationInfo) -> list[str]:
    if len({*names}) < len(names):
        raise ValueError(f"{info.field_name}={reprlib.repr(names)} has a name twice")
    return names


def new_projections(value: Any) -> Any:
    """ "new", all of them, or those in a list."""
    names = listed(value)
    if names == ["new"]:
        return "new"
    if not isinstance(names, list) or not names or any(name not in PROJECTIONS for name in names):
        raise ValueError(f"must be 'new' or a list of: {', '.join(PROJECTIONS)}")
    return [name for name in PROJECTIONS if name in names]


def no_truth(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic would take True for 1
        raise PydanticCustomError("no_truth", "Input should be a number")
    return value


NUMBER = BeforeValidator(no_truth)
Count = Annotated[core.Count, NUMBER]
CountOrZero = Annotated[core.CountOrZero, NUMBER]
Seed = Annotated[int, NUMBER, Field(ge=0, le=2**32 - 1)]  # what NumPy takes
Positive = Annotated[float, NUMBER, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, NUMBER, Field(ge=0, lt=1)]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Device = Literal["auto", "cpu", "cuda"]
Place = Annotated[str, AfterValidator(in_root)]
NameOrPath = Annotated[str, AfterValidator(or_path)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Strict(), BeforeValidator(listed), AfterValidator(each_once)]
USUAL: Any = None  # what follows from task and model: `usual_recipe`


class ParameterError(OneLineError):
    """A parameter that a run cannot be made with; the message names it, its value, and what was expected."""


class Settings(BaseModel):
    """The parameters of a notebook.

    What is left open (None, "" or "None") has its default. Texts are read as pydantic reads them, dictionaries and
    lists as JSON: papermill's command line and YAML hand over "1e-5" and '{"n_hashes": 4}' as text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)
    notebook: ClassVar[str]
    where: ClassVar[tuple[str, ...]] = ("output_dir", "results_root", "resume")  # and how a result is made, not what
    # where results, figures and relative paths are; "": the repository, or else the current folder
    results_root: Annotated[str, AfterValidator(lambda root: str(root_of(root)))] = Field("", validate_default=True)

    @classmethod
    def from_notebook(cls, variables: MutableMapping[str, Any], before: set[str], notebook: str = "") -> Self:
        """From a notebook's variables, `globals()`.

        A parameter that has no line in the notebook's cell stands in the dictionary `options`, or is a variable all the
        same: `papermill -p` makes one.

        Args:
            before: the names there were before the parameters' cell. Others that are no field are refused, unless a
                later cell made them: when the cells from the parameters on are executed again, only names that look
                like a parameter are.
            notebook: its name, where the class serves several.
        Raises:
            ParameterError: a parameter that is given twice; and see `parse`.
        """
        fields, place = cls.model_fields.keys(), notebook or cls.notebook
        literals = {n for n, v in variables.items() if isinstance(v, bool | int | float | str | list | dict | None)}
        unknown = {n for n in literals - before - fields - {"options"} if not n.startswith("_")}
        if fields & before:  # executed again
            unknown = {name for name in unknown if difflib.get_close_matches(name, fields, 1)}
        values = {name: variables[name] for name in [*fields, *sorted(unknown)] if name in variables}
        for name in unknown:
            del variables[name]  # so that it is new the next time as well
        before |= set(variables)
        options = read(variables.get("options", {}))
        if not isinstance(options, dict):
            raise ParameterError(f"options={reprlib.repr(options)} must be a dictionary of parameters ({place})")
        if twice := options.keys() & values.keys():
            raise ParameterError(f"{min(twice)!r} is given twice, by itself and in options ({place})")
        return cls.parse(values | options, notebook)

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
            hint = nearest(str(name), cls.model_fields)
            raise ParameterError(f"{name!r} is not a parameter of {name_of_place}; {hint}")
        try:
            return cls.model_validate(values, context=place)
        except ValueError as error:
            message = described(error.errors()[0]) if isinstance(error, ValidationError) else error
            raise ParameterError(f"{message} ({name_of_place})") from error

    @model_validator(mode="before")
    @classmethod
    def given(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Without what is left open; dictionaries and lists read from their text."""
        return {name: read(value) for name, value in values.items() if value not in OPEN}

    @model_validator(mode="after")
    def decide(self, info: ValidationInfo) -> Self:
        """What is left open is decided as soon as the object is made; copies (`model_copy`) stay as they are."""
        vars(self).update(vars(self.completed(info.context or "")))
        return self

    def completed(self, place: str) -> Self:
        """With what is left open decided; a class may have its own. ValueError says what does not go together."""
        return self

    def __repr__(self) -> str:
        text = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.recorded().items())})"
        return textwrap.fill(text, 116, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)

    def recorded(self) -> dict[str, Any]:
        """All parameters but `results_root`: records name no folder of a machine.

        Paths are as seen from there; of a file of data elsewhere the name alone, its revision says which it was.
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


def read(value: Any) -> Any:
    """The dictionary or list that a text is JSON of, as papermill's command line hands them over; else the value."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


class OfTask(Settings):
    """Parameters of a notebook about one task, of the table or of one's own data; what describes these is completed."""

    task: NameOrPath  # a name of the table, a file, a folder, or owner/name on the Hub
    text_columns: Names | None = None  # of your own data: what is read, one or two columns; None: the usual ones
    label_column: str | None = None  # of your own data: what is answered; None: label
    labels: Names | None = None  # names of the classes; []: a number is predicted; None: from the data
    data_revision: str | None = None  # a branch, tag or commit of the data on the Hub; None: the newest

    def completed(self, place: str) -> Self:
        """With the columns, labels and revision of one's own data: all that says which task it is."""
        task = self.about
        if not task.is_own:
            return self
        if self.data_revision and is_local(task.dataset):
            fingerprint(task.dataset, f"task={self.task!r}", self.data_revision)
        described = {"text_columns": [*task.columns], "label_column": task.label, "labels": [*task.labels]}
        return self.model_copy(update=described | {"data_revision": task.revision})

    @property
    def about(self) -> Task:
        """The task."""
        return task_of(self.model_dump())

    @classmethod
    def task_in(cls, values: Mapping[str, Any]) -> Task:
        """The task that parameters name, whatever the others are; errors as those of `parse`."""
        return OfTask.parse({name: values[name] for name in OfTask.model_fields if name in values}, cls.notebook).about


class Run(OfTask):
    """The parameters of a fine-tuning run, as glue.ipynb and squad.ipynb have them."""

    notebook: ClassVar[str] = "glue.ipynb"
    where: ClassVar[tuple[str, ...]] = (*Settings.where, "save_model")

    model: NameOrPath = "mini"  # a name on the Hub or a folder; "mini" starts from nothing
    revision: str | None = None  # a branch, tag or commit of the model on the Hub; None: the newest
    random_weights: bool = False  # the model's shape and tokenizer, with random weights
    attention: str = "softmax"  # by name
    attention_settings: dict[str, Any] = {}  # such as {"share": 0.5}, half of the pairs
    # drawn anew: "new", all four, or a list of some of query, key, value, output; None: the model's own
    projections: Annotated[Any, AfterValidator(new_projections)] = None
    residual: bool = True  # False: without the residual connection around attention
    attention_dropout: Share | None = None  # share of attention's weights that training drops; None: the model's own
    seed: Seed = 0  # of new weights, order of examples, dropout and hashes
    max_length: Annotated[Count, Field(ge=8)] = USUAL  # tokens; longer texts are cut; None: by task and model
    pad_to_max_length: bool = False  # every text, in training, evaluation and by the saved model
    extend_positions: bool = False  # give the model positions for max_length tokens if it has fewer
    batch_size: Count = USUAL  # None: by task
    accumulation: Count = 1  # batches a step
    learning_rate: Positive = USUAL  # None: by task and model
    epochs: Annotated[float, NUMBER, Field(gt=0, le=10_000)] = USUAL  # None: by task
    precision: Precision = "auto"  # auto, fp32, bf16 or fp16
    device: Device = "auto"  # auto, cpu or cuda
    recompute: bool = False  # activations in the backward pass again, instead of storing them: less memory, more time
    train_examples: Count | None = None  # None: all
    eval_examples: Count | None = None  # of each split that is scored; None: all
    held_out_examples: Count | None = None  # evaluate on so many training examples that are not trained on
    folds: Annotated[int, NUMBER, Field(ge=2, le=100)] | None = None  # cross-validation: evaluate on part `seed`
    shuffle_words: Seed | None = None  # evaluate also with each text's words in an order drawn with this seed
    resume: bool = True  # from the last checkpoint of the same run
    save_model: bool = False  # the trained model, in output_dir/model
    output_dir: Place | None = None  # None: a folder in results/runs/notebook, another for every change of the above

    def completed(self, place: str) -> Self:
        """With a task's usual recipe, all settings, the machine's device and precision, and a folder of its own.

        Raises:
            ValueError: parameters that do not go together.
        """
        run = super().completed(place)
        task, usual = run.about, usual_recipe(run.about, self.model, self.revision)
        if place.endswith(".ipynb") and (task.notebook == "squad.ipynb") != (place == "squad.ipynb"):
            raise ValueError(f"task={self.task!r} belongs to {task.notebook}")
        settings = attentions.check(self.attention, self.attention_settings)
        check_residual(self.attention, self.residual)
        if settings.get("mask_padding") is False and not self.pad_to_max_length:
            raise ValueError(
                "attention_settings mask_padding=False: answers would depend on the longest text of a batch; it needs "
                "pad_to_max_length=True"
            )
        check_parts(task, **self.examples)
        recipe = {name: value for name, value in usual.items() if getattr(self, name) is None}
        run = run.model_copy(update=recipe | {"attention_settings": settings})
        if (landmarks := settings.get("num_landmarks") or 0) > run.max_length:
            raise ValueError(
                f"num_landmarks={landmarks} is above max_length={run.max_length}; with no more tokens than landmarks "
                "nystrom is softmax attention"
            )
        usual |= {"attention_settings": attentions.check(self.attention)}
        folder = self.output_dir or str(run.folder_for_changes(self.defaults() | usual))
        return run.model_copy(update={"output_dir": folder, **on_this_machine(self.device, self.precision)})

    def folder_for_changes(self, usual: dict[str, Any]) -> Path:
        """Of a notebook's run: one more for every change of the parameters, named by a hash of what is not usual."""
        same = ("task", "model", "attention", "seed")
        changed = {k: value for k, value in self.identity().items() if k not in same and value != usual[k]}
        digest = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6]
        arm = f"{self.attention}-{digest}" if changed else self.attention
        return run_folder("notebook", self.task, self.model, arm, self.seed, self.results_root)

    @property
    def folder(self) -> Path:
        return Path(str(self.output_dir))

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
    recipe = dict(task.recipe)
    if model == "mini":
        recipe |= {"batch_size": 32, "learning_rate": 1e-3, "epochs": 3.0}
    if os.path.isdir(folder_of(model)):
        recipe["max_length"] = min(recipe["max_length"], max_positions(load_config(model, revision=revision)))
    return recipe


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
    return "bf16" if machine.computes_in_bf16() else "fp32"
