"""A run's parameters, checked, and its record.

`Parameters.check` turns what a notebook was given into a settings object, or says what is wrong with it.
`write_result` writes a run's result.json, last and in one step: where it stands, the run is complete.
"""

import contextlib
import dataclasses
import difflib
import json
import math
import os
import platform
import reprlib
import shutil
import subprocess
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, get_args, get_origin

import torch

from albert_lsh import attention as attentions
from albert_lsh import locks
from albert_lsh.tasks import find_task

if TYPE_CHECKING:
    from albert_lsh.training import Fit

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "reformer-pytorch", "papermill", "numpy", "scikit-learn")
# Parameters that say where and how, not what: runs that differ in these alone are the same run.
WHERE = ("output_dir", "resume", "data_dir", "tensorboard", "save_model")
HIGHEST_WHOLE = 2**31 - 1  # of parameters that are numbers, where HIGHEST names no other
HIGHEST = {"seed": 2**32 - 1, "epochs": 10_000}  # a seed is what NumPy takes
SCHEMA = 2  # of result.json; records without one are of schema 1, and have no `resolved`
# Parameters added later; a record without them has the defaults.
LATER = ("evaluation_settings", "passes", "recompute", "feed_forward_chunk", "extend_positions", "random_weights")
# Settings of an attention added later, with the values that compute what was computed before.
LATER_SETTINGS: dict[str, dict[str, Any]] = {
    "lsh": {
        "hashing": "plain", "choose": "collision", "block_size": 1, "global_tokens": 0, "window": 0, "far_field": False,
    },
    "window": {"global_tokens": 0},
    "random": {"global_tokens": 0},
}  # fmt: skip
# Of Trainer's arguments and a model's config, what decides a result.
RECIPE = (
    "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_type", "learning_rate",
    "warmup_steps", "weight_decay", "per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed",
    "train_sampling_strategy", "bf16", "fp16",
)  # fmt: skip
SHAPE = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "hidden_dropout_prob", "attention_probs_dropout_prob",
)  # fmt: skip


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
        shares: names of those from 0 to 1, and below 1.
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
        raise ValueError(f"{name}=None must be given")
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


def repository_root() -> Path:
    """The folder that holds `results/`: the checkout of this library, or the working directory without one."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()


def run_folder(study: str, task: str, model: str, arm: str, seed: int) -> Path:
    """results/runs/<study>/<task>/<model>/<arm>/seed-<n>; of the model's name the part behind the last slash."""
    return repository_root() / "results" / "runs" / study / task / Path(model).name / arm / f"seed-{seed}"


def relative_to_root(path: Path) -> str:
    """The path as seen from the checkout, so that records name no folder of somebody's machine."""
    path = path.resolve()
    return str(path.relative_to(repository_root()) if path.is_relative_to(repository_root()) else path)


def write_atomically(path: Path, text: str) -> None:
    """Write under a temporary name, then rename: a reader sees the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def delete(folder: Path) -> None:
    """Delete a folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def of_record(parameters: dict[str, Any]) -> dict[str, Any]:
    """A record's parameters, with those added later as they were before (LATER, LATER_SETTINGS).

    Settings whose default is None, and which a record lacks, are None. (Other new settings a study's file must name.)
    """
    defaults, known = dataclasses.asdict(Parameters(task="")), attentions.ATTENTIONS.get(parameters["attention"])
    before = {name: None for name, value in (known.settings.items() if known else ()) if value is None}
    before |= LATER_SETTINGS.get(parameters["attention"], {})
    settings = {**parameters["attention_settings"]}
    settings |= {name: value for name, value in before.items() if name not in settings}
    return {**{name: defaults[name] for name in LATER}, **parameters, "attention_settings": settings}


def read_result(path: Path) -> dict[str, Any]:
    """A result.json, its parameters as `of_record` has them.

    Raises:
        ValueError: naming the file, which is damaged, not a complete run's, or of a later schema.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        complete = result["status"] == "complete" and {"parameters", "metrics", "headline"} <= set(result)
        schema = int(result.get("schema", 1))
        if complete and schema <= SCHEMA:
            result["parameters"] = of_record(result["parameters"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and the run will be made again") from error
    if not complete:
        raise ValueError(f"{path} is not of a complete run; delete it, and the run will be made again")
    if schema > SCHEMA:
        raise ValueError(f"{path} has schema {schema}; this version of albert-lsh reads up to {SCHEMA}: update it")
    return result


def open_run(parameters: Recorded) -> None:
    """Begin a run: lock its folder, and make sure that no other run's result is there.

    The lock lasts until `close_run`, or until this process ends.

    Raises:
        ParameterError: output_dir holds another run's result, which would be overwritten. FolderInUseError (a
            ValueError): another process works there.
    """
    folder = Path(parameters.output_dir or ".")
    locks.hold(folder)
    if not (path := folder / "result.json").exists():
        return
    there = read_result(path)["parameters"]
    here = json.loads(json.dumps(parameters.what()))
    other = [f"{k} is {there.get(k)!r} there, {v!r} here" for k, v in here.items() if there.get(k) != v]
    if other:
        raise ParameterError(
            f"output_dir={parameters.output_dir!r} holds the result of another run ({'; '.join(other)}); choose "
            "another output_dir, or delete that result"
        )


def close_run(parameters: Recorded) -> None:
    """End a run whose result is written: delete its checkpoints, unlock its folder."""
    folder = Path(parameters.output_dir or ".")
    delete(folder / "checkpoints")
    locks.release(folder)


def environment(device: str) -> dict[str, Any]:
    """What the run ran on: versions, device, commit (with "-dirty" if code differs from it), date.

    Raises:
        ParameterError: device is "cuda", and there is none.
    """
    device = on_this_machine(device, "auto")["device"]
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "python": platform.python_version(),
        "packages": packages,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu, {processor_name()}",
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def provenance(device: str) -> dict[str, str]:
    """`environment` for the rows of a table: every value a text."""
    found = environment(device)
    packages = " ".join(f"{name}=={number}" for name, number in found.pop("packages").items())
    return {**found, "commit": found["commit"] or "unknown", "packages": packages}  # no commit outside a checkout


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str | None:
    """The checkout's commit, with "-dirty" when code or studies were changed since; None without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository_root()), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "lib", "notebooks", "studies")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write_result(
    parameters: Recorded,
    headline: str,
    baselines: dict[str, dict[str, float]],
    coverage: attentions.Coverage,
    fit: "Fit",
    examples: dict[str, int],
    started: dict[str, Any],
) -> Path:
    """Write history.csv and then, last and in one step, result.json into output_dir; returns the latter's path.

    Args:
        headline: the metric that stands for the task.
        baselines: {"score": {metric: value}, "majority": {...}, "chance": {...}}.
        coverage: what the attention looked at in evaluation.
        fit: what training left.
        examples: how many there were of each split.
        started: the `environment` when the run began.
    """
    folder = Path(parameters.output_dir or ".")
    write_atomically(folder / "history.csv", fit.history.to_csv(index=False))
    record = {
        "status": "complete",
        "schema": SCHEMA,
        "parameters": {**dataclasses.asdict(parameters), "output_dir": relative_to_root(folder)},
        "resolved": resolved(parameters, fit.trainer),
        "metrics": baselines["score"],
        "headline": {"name": headline, "value": baselines["score"][headline]},
        "majority": baselines["majority"],
        "chance": baselines["chance"],
        "attended_share": coverage.pairs,
        "attention_mass": coverage.mass,
        **fit.cost,
        "examples": examples,
        "environment": started,
    }
    write_atomically(folder / "result.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
    return folder / "result.json"


def resolved(parameters: Recorded, trainer: Any) -> dict[str, Any]:
    """What the parameters came to: all settings in training and in evaluation, the recipe, the model's shape."""
    asked, config, arguments = parameters.what(), trainer.model.config, trainer.args.to_dict()
    settings = attentions.check(asked["attention"], asked["attention_settings"])
    passes = asked.get("passes")
    return {
        "attention_settings": settings,
        "evaluation_settings": attentions.check_evaluation(
            asked["attention"], settings, asked.get("evaluation_settings")
        ),
        "passes": list(range(config.num_hidden_layers)) if passes is None else passes,
        "steps": trainer.state.max_steps,
        "recipe": {name: arguments[name] for name in RECIPE},
        "model": {name: getattr(config, name, None) for name in SHAPE},
        "parameters_of_model": sum(p.numel() for p in trainer.model.parameters()),
    }
