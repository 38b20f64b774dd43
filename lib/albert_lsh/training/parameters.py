"""The parameters of a run, checked.

`Parameters.check` turns a notebook's variables into a settings object, or says what is wrong with them. `from_given`
does the same for any dataclass; the types below say which numbers a field admits.
"""

import ast
import contextlib
import dataclasses
import difflib
import hashlib
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, ValidationError, WrapValidator, create_model

from albert_lsh import attention as attentions
from albert_lsh.errors import OneLineError
from albert_lsh.model.config import load_config, max_positions
from albert_lsh.pretrained import folder_of
from albert_lsh.tasks.table import find_task
from albert_lsh.training.files import placed, recorded, run_folder

# Where and how a run is made, not what: runs that differ in these alone are the same run.
WHERE = ("output_dir", "results_root", "resume", "data_dir", "tensorboard", "save_model")
UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # in no path; surrogates in no file of ours
HIGHEST = 2**31 - 1
Count = Annotated[int, Field(ge=1, le=HIGHEST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # what NumPy takes
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Passes = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ParameterError(OneLineError):
    """A parameter that a run cannot be made with; the message names it, its value, and what was expected."""


@dataclass(frozen=True)
class Parameters:
    """The parameters of a fine-tuning run, as the notebooks have them."""

    task: str
    model: str = "mini"
    random_weights: bool = False  # the model's shape and tokenizer, with random weights
    attention: str = "softmax"
    attention_settings: dict[str, Any] = field(default_factory=dict)
    evaluation_settings: dict[str, Any] = field(default_factory=dict)  # laid over these in evaluation
    projections: Literal["new"] | None = None  # query, key, value and output, drawn anew; None: the model's own
    passes: Passes | None = None  # the encoder's passes that have the attention; None: all
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
    precision: str = "auto"
    device: str = "auto"
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
    results_root: str | None = None

    @classmethod
    def check(cls, given: dict[str, Any], notebook: str = "glue.ipynb") -> "Parameters":
        """Parameters from a notebook's variables (pass `globals()`), or from any dictionary; see `from_given`.

        Raises:
            ParameterError: an unknown name (the message has the nearest real one), a value of the wrong type or out of
                range, an unknown task, attention or setting, more landmarks than tokens, a device that is not there.
        """
        with errors_named(notebook):
            given = of_parameters_cell(cls, given)
            names = ("max_length", "batch_size", "learning_rate", "epochs")
            left_open = [name for name in names if given.get(name) in (None, "", "None")]
            made = from_given(cls, {k: v for k, v in given.items() if k not in left_open}, notebook)
            made = placed(made, ["output_dir", "data_dir"], ["model"])
            usual = usual_recipe(made.task, made.model)
            made = dataclasses.replace(made, **{name: usual[name] for name in left_open})
            here = on_this_machine(made.device, made.precision)
            full = attentions.check(made.attention, made.attention_settings)
            in_evaluation = attentions.check_evaluation(made.attention, full, made.evaluation_settings)
            if made.attention == "reformer" and made.passes is not None:
                raise ValueError(f"passes={made.passes!r}: 'reformer' replaces the projections of all passes")
            if made.attention == "reformer" and made.projections is not None:
                raise ValueError(f"projections={made.projections!r}: 'reformer' has new ones of its own")
            if (is_squad := find_task(made.task).is_squad) != (notebook == "squad.ipynb"):
                raise ValueError(f"task={made.task!r} belongs to {'squad' if is_squad else 'glue'}.ipynb")
            if is_squad and made.shuffle_words is not None:
                raise ValueError(
                    f"shuffle_words={made.shuffle_words}: the answers of {made.task!r} are places in a text"
                )
            if made.folds and made.held_out_examples:
                raise ValueError(f"folds={made.folds} and held_out_examples={made.held_out_examples}: take one of them")
            for settings in (full, in_evaluation):
                if (settings.get("num_landmarks") or 0) > made.max_length:
                    raise ValueError(
                        f"num_landmarks={settings['num_landmarks']} is above max_length={made.max_length}; with no "
                        "more tokens than landmarks nystrom is softmax attention"
                    )
        made = dataclasses.replace(made, attention_settings=full)
        named = {name: getattr(made, name) for name in ("task", "model", "attention", "seed", "results_root")}
        plain = cls(**named, **usual, attention_settings=attentions.check(made.attention))
        arm = made.attention + hash_of_changes(made.what(), plain.what())
        usual_folder = run_folder("notebook", made.task, made.model, arm, made.seed, made.results_root)
        return dataclasses.replace(made, output_dir=made.output_dir or str(usual_folder), **here)

    @property
    def examples(self) -> dict[str, Any]:
        """Which examples `load_data` is asked for."""
        names = ("train_examples", "eval_examples", "held_out_examples", "shuffle_words")
        fold = (self.seed % self.folds, self.folds) if self.folds else None
        return {name: getattr(self, name) for name in names} | {"fold": fold}

    def what(self) -> dict[str, Any]:
        """Everything that decides the result: the parameters without those in WHERE."""
        return {k: v for k, v in recorded(self).items() if k not in WHERE}


def usual_recipe(task: str, model: str) -> dict[str, Any]:
    """What a run has where it leaves max_length, batch_size, learning_rate or epochs open, or None.

    As in Transformers' examples, but with no more tokens than a model at hand can read. "mini" has the recipe of
    studies/mini.yaml: it starts from nothing.
    """
    length, batch, rate, epochs = (384, 12, 3e-5, 2) if find_task(task).is_squad else (128, 32, 2e-5, 3)
    if model == "mini":
        batch, rate, epochs = 32, 1e-3, 3
    if os.path.isdir(folder_of(model)):
        length = min(length, max_positions(load_config(model)))
    return {"max_length": length, "batch_size": batch, "learning_rate": rate, "epochs": epochs}


def hash_of_changes(asked: dict[str, Any], plain: dict[str, Any]) -> str:
    """A dash and six digits that stand for what is not plain in `asked`; nothing if all is."""
    changed = {name: value for name, value in asked.items() if value != plain[name]}
    return "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:6] if changed else ""


@contextlib.contextmanager
def errors_named(notebook: str) -> Iterator[None]:
    """Turn a ValueError into a ParameterError that names the notebook."""
    try:
        yield
    except ParameterError:
        raise
    except ValueError as error:
        raise ParameterError(f"{error} ({notebook})") from error


def on_this_machine(device: str, precision: str) -> dict[str, str]:
    """Device and precision in place of "auto".

    Precision "auto" is bf16 where the device computes in it; fp16 on a GPU that only emulates bf16, such as Colab's T4.

    Raises:
        ValueError: an unknown value. ParameterError: one that this machine does not have.
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
    return {"device": device, "precision": fastest_precision(device) if precision == "auto" else precision}


def fastest_precision(device: str) -> str:
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() else "fp32"


def from_given(cls: Any, given: dict[str, Any], notebook: str) -> Any:
    """A dataclass from a notebook's variables, strictly checked against the types of its fields.

    Text becomes what it spells, where the field is not text: papermill's command line and YAML hand over "1e-5", "None"
    and '{"n_hashes": 4}' as text. Otherwise types are strict: neither 2.5 nor True becomes a whole number. In a
    notebook the names of the parameters cell are taken, see `of_parameters_cell`.

    Raises:
        ParameterError: a name that is no field, a value that does not fit its field, or one that is missing.
    """
    fields = dataclasses.fields(cls)
    names = [f.name for f in fields]
    values = of_parameters_cell(cls, given)
    for name in values.keys() - set(names):
        near = difflib.get_close_matches(str(name), names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(names)}"
        raise ParameterError(f"{name!r} is not a parameter of {notebook}{hint}")
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    given_types = {
        f.name: (Annotated[f.type, WrapValidator(_read)], ... if f.name in required else None) for f in fields
    }
    checked: Any = create_model(cls.__name__, __config__=ConfigDict(strict=True), **given_types)  # type: ignore[call-overload]
    try:
        made = checked(**values)
    except ValidationError as failed:
        error = failed.errors()[0]
        place, *inside = map(str, error["loc"])
        if error["type"] == "missing":
            raise ParameterError(f"{place} must be given ({notebook})") from failed
        place += "".join(f"[{step}]" for step in inside)
        expected = re.sub(r"^\w+ should", "must", error["msg"])
        raise ParameterError(f"{place}={reprlib.repr(error['input'])} {expected} ({notebook})") from failed
    found = {name: getattr(made, name) for name in values}
    for name, value in found.items():
        if isinstance(value, str) and UNWRITABLE.search(value):
            raise ParameterError(f"{name}={reprlib.repr(value)} has a character that no file can hold ({notebook})")
    return cls(**found)


def of_parameters_cell(cls: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Of a notebook's variables those that its parameters cell sets, or papermill's of injected ones after it.

    IPython keeps in `In` what was executed. The parameters cell is the last cell that sets most fields of `cls`; other
    names, of other cells or of an earlier text of that cell, are not looked at. Any other dictionary stays as it is.
    """
    if "In" not in given:
        return given
    names = fields = {f.name for f in dataclasses.fields(cls)}
    for source in given["In"]:
        found = _names_set(source)
        if source.startswith("# Parameters\n"):  # papermill's
            names = names | found
        elif 2 * len(found & fields) > len(fields):
            names = found
    return {name: value for name, value in given.items() if name in names}


def _names_set(source: str) -> set[str]:
    """The names that a cell's assignments set."""
    with contextlib.suppress(SyntaxError):
        targets = [t for line in ast.parse(source).body if isinstance(line, ast.Assign) for t in line.targets]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def _read(value: Any, check: Callable[[Any], Any]) -> Any:
    """The value if its field admits it, else what it spells as a text; 3 for 3.0 in a field of whole numbers."""
    readings = [None, value] if value in ("", "None") else [value]
    if isinstance(value, str):
        spelled = value.lower() if value.lower() in ("true", "false") else value
        with contextlib.suppress(ValueError, RecursionError):
            readings.append(json.loads(spelled))
    *_, last = readings
    if isinstance(last, float) and last.is_integer():
        readings.append(int(last))
    for reading in readings:
        with contextlib.suppress(ValidationError):
            return check(reading)
    return check(last)  # for its error
