"""A run's parameters, checked.

`Parameters.check` turns what a notebook was given into a settings object, or says what is wrong with it.
"""

import contextlib
import dataclasses
import difflib
import json
import math
import reprlib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_args, get_origin

import torch

from albert_lsh import attention as attentions
from albert_lsh.tasks.table import find_task
from albert_lsh.training.files import run_folder

# Parameters that say where and how, not what: runs that differ in these alone are the same run.
WHERE = ("output_dir", "resume", "data_dir", "tensorboard", "save_model")
HIGHEST_WHOLE = 2**31 - 1  # of parameters that are numbers, where HIGHEST names no other
HIGHEST = {"seed": 2**32 - 1, "epochs": 10_000}  # a seed is what NumPy takes


class ParameterError(ValueError):
    """A parameter that a run cannot be made with; the message names it, its value, and what was expected."""


class Recorded(Protocol):
    """Parameters that a run can be recorded and taken up again by: `Parameters`, or another notebook's dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def output_dir(self) -> str | None: ...

    @property
    def resume(self) -> bool: ...

    def what(self) -> dict[str, Any]:
        """All that decides the result; `attention` and `attention_settings` are among it."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a run, as the notebooks have them."""

    task: str
    model: str = "mini"
    random_weights: bool = False  # the model's shape and tokenizer, with weights that know nothing
    attention: str = "softmax"
    attention_settings: dict[str, Any] = field(default_factory=dict)
    evaluation_settings: dict[str, Any] = field(default_factory=dict)  # laid over these, in evaluation alone
    passes: list[Any] | None = None  # numbers of the encoder's passes that have the attention; None: all
    seed: int = 0
    max_length: int = 128
    extend_positions: bool = False  # give the model positions for max_length tokens where it has fewer
    batch_size: int = 32
    accumulation: int = 1
    learning_rate: float = 2e-5
    epochs: float = 3
    eval_steps: int | None = None  # evaluate every so many steps, besides the end of every epoch
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    precision: str = "auto"
    device: str = "auto"
    recompute: bool = False
    feed_forward_chunk: int | None = None
    train_examples: int | None = None
    eval_examples: int | None = None
    data_dir: str | None = None
    resume: bool = True
    tensorboard: bool = False
    save_model: bool = False
    output_dir: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any], notebook: str = "glue.ipynb") -> "Parameters":
        """Parameters from a notebook's variables (pass `globals()`), or from any dictionary.

        Numbers that came as text ("1e-5", as YAML and papermill's command line hand them over) become numbers, JSON
        text becomes a dictionary. Names that start with "_", modules and functions are not taken for parameters.

        Raises:
            ParameterError: a name that is no parameter (a misspelling, with the nearest real one), a value of the
                wrong type or out of range, an unknown task, attention or setting, more landmarks than tokens, CUDA
                asked for where there is none.
        """
        with errors_named(notebook):
            made = from_given(cls, given, notebook)
            made._check_ranges()
            here = on_this_machine(made.device, made.precision)
            full = attentions.check(made.attention, made.attention_settings)
            in_evaluation = attentions.check_evaluation(made.attention, full, made.evaluation_settings)
            task = find_task(made.task)
            if task.is_squad != (notebook == "squad.ipynb"):
                raise ValueError(f"task={made.task!r} belongs to {'squad' if task.is_squad else 'glue'}.ipynb")
            for settings in (full, in_evaluation):
                if settings.get("num_landmarks", 0) > made.max_length:
                    raise ValueError(
                        f"num_landmarks={settings['num_landmarks']} is above max_length={made.max_length}; with no "
                        "more tokens than landmarks nystrom is softmax attention"
                    )
        made = dataclasses.replace(made, attention_settings=full, **here)
        return made if made.output_dir else dataclasses.replace(made, output_dir=str(made.default_folder()))

    def _check_ranges(self) -> None:
        lowest = {"max_length": 8, "batch_size": 1, "accumulation": 1, "train_examples": 1, "eval_examples": 1}
        lowest |= {"seed": 0, "eval_steps": 1, "feed_forward_chunk": 1}
        shares = ("warmup_share", "weight_decay")
        check_ranges(self, lowest, positive=("learning_rate", "epochs"), shares=shares)
        if self.passes is not None:
            if not self.passes or any(type(number) is not int or number < 0 for number in self.passes):
                raise ValueError(f"passes={self.passes!r} must be numbers of passes, from 0 on; None stands for all")
            if self.attention == "reformer":
                raise ValueError(f"passes={self.passes!r}: 'reformer' replaces the projections of all passes")

    def default_folder(self) -> Path:
        """Where a run goes that no study has placed."""
        return run_folder("notebook", self.task, self.model, self.attention, self.seed)

    def what(self) -> dict[str, Any]:
        """All that decides the result: the parameters without those in WHERE."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in WHERE}


@contextlib.contextmanager
def errors_named(notebook: str) -> Iterator[None]:
    """A ValueError about a parameter becomes a ParameterError that says which notebook's it is."""
    try:
        yield
    except ParameterError:
        raise
    except ValueError as error:
        raise ParameterError(f"{error} ({notebook})") from error


def check_ranges(parameters: Any, lowest: dict[str, int], positive: Iterable[str], shares: Iterable[str]) -> None:
    """Raise ValueError for the first number that is out of range; None, where a parameter may be None, is in it.

    Args:
        lowest: the least value of parameters, by name.
        positive: names of those above 0 and finite.
        shares: names of those that are at least 0 and below 1.
    """
    values = {name: value for name, value in dataclasses.asdict(parameters).items() if value is not None}
    for name, value in values.items():
        most = HIGHEST.get(name, HIGHEST_WHOLE)
        if isinstance(value, int | float) and most < value < math.inf:
            raise ValueError(f"{name}={reprlib.repr(value)} must be {most} or less")
        if name in lowest and value < lowest[name]:
            raise ValueError(f"{name}={value!r} must be {lowest[name]} or more")
        if name in positive and not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} must be greater than 0 and finite")
        if name in shares and not 0 <= value < 1:
            raise ValueError(f"{name}={value!r} must be at least 0 and below 1")


def on_this_machine(device: str, precision: str) -> dict[str, str]:
    """Device and precision in place of "auto".

    Raises:
        ValueError: a value that there is not; ParameterError: one that this machine does not have.
    """
    choices = {"precision": ("auto", "fp32", "bf16", "fp16"), "device": ("auto", "cpu", "cuda")}
    for name, value in {"precision": precision, "device": device}.items():
        if value not in choices[name]:
            raise ValueError(f"{name}={value!r} is not one of: {', '.join(choices[name])}")
    has_cuda = torch.cuda.is_available()
    device = ("cuda" if has_cuda else "cpu") if device == "auto" else device
    if device == "cuda" and not has_cuda:
        raise ParameterError("device='cuda', but torch finds no CUDA device here; take device='cpu' or 'auto'")
    if precision == "fp16" and device == "cpu":
        raise ParameterError("precision='fp16' trains on CUDA only, and this run is on the CPU; take 'bf16'")
    if precision == "auto":
        precision = fastest_precision(device)
    return {"device": device, "precision": precision}


def fastest_precision(device: str) -> str:
    """bf16 where the device computes in it; a GPU that only emulates it, such as Colab's T4, is fast in fp16."""
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() else "fp32"


def from_given(cls: Any, given: dict[str, Any], notebook: str) -> Any:
    """A dataclass from a notebook's variables, each converted to its field's type.

    Raises:
        ParameterError: a name that is no field, a value that is not of the field's type, or one that is missing.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {name: value for name, value in given.items() if _is_parameter(name, value)}
    for name in values:
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(fields)}"
            raise ParameterError(f"{name!r} is not a parameter of {notebook}{hint}")
    missing = dataclasses.MISSING
    for name, there in fields.items():
        if name not in values and there.default is missing and there.default_factory is missing:
            raise ParameterError(f"{name} must be given ({notebook})")
    with errors_named(notebook):
        return cls(**{name: _convert(name, value, fields[name].type) for name, value in values.items()})


def _is_parameter(name: str, value: Any) -> bool:
    if name.startswith("_") or name in ("In", "Out"):
        return False
    return value is None or isinstance(value, str | int | float | dict | list | tuple)


def _convert(name: str, value: Any, kind: Any) -> Any:
    """The value as its field's type; ValueError if it is none. None stands where the type admits it."""
    kinds = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None or (value in ("", "None") and type(None) in kinds):
        if type(None) in kinds:
            return None
        raise ValueError(f"{name} must not be None")
    wanted = kinds[0]
    try:
        if wanted in (dict[str, Any], list[Any]):
            value = json.loads(value or "{}") if isinstance(value, str) else value
            if isinstance(value, get_origin(wanted)):
                return value
        elif wanted is bool:
            if str(value).lower() in ("true", "false"):
                return str(value).lower() == "true"
        elif wanted is str:
            if isinstance(value, str):
                return value
        elif wanted is int and type(value) is int:
            return value  # a float would round it above 2**53
        elif not isinstance(value, bool) and float(value) == wanted(float(value)):
            return wanted(float(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the one message below serves all
    expected: dict[Any, str] = {
        dict[str, Any]: "a dictionary (or JSON text of one)",
        list[Any]: "a list (or JSON text of one)",
    }
    expected |= {bool: "true or false", int: "a whole number"}
    raise ValueError(
        f"{name}={reprlib.repr(value)} must be {expected.get(wanted, 'text' if wanted is str else 'a number')}"
    )
