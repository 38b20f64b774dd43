"""Parameters of notebooks as dataclasses; leaves when the last of them is a `run.Settings`."""

import ast
import contextlib
import dataclasses
import difflib
import hashlib
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, ValidationError, WrapValidator, create_model

from albert_lsh.files import repository_root, root_of
from albert_lsh.pretrained import FOLDERS
from albert_lsh.run import UNWRITABLE, ParameterError


def placed(asked: Any, paths: Iterable[str], sources: Iterable[str] = ()) -> Any:
    """Parameters with `results_root` and every path of theirs absolute; ~ is the home folder.

    Args:
        asked: a dataclass. paths: names of its fields that hold a path or None.
        sources: of its fields that hold a path or a name: it stays as it is where the root has no such path.
    """
    root = root_of(asked.results_root)
    given = {name: root / Path(value).expanduser() for name in paths if (value := getattr(asked, name))}
    names = {name: value for name in sources if (value := getattr(asked, name)) and value not in FOLDERS}
    found = {name: root / Path(value).expanduser() for name, value in names.items()}
    given |= {name: path for name, path in found.items() if os.path.exists(path)}  # False for a name that is too long
    return dataclasses.replace(asked, results_root=str(root), **{name: str(path) for name, path in given.items()})


def recorded(parameters: Any) -> dict[str, Any]:
    """All parameters but `results_root`, and paths as seen from there: records name no folder of a machine."""
    values = dataclasses.asdict(parameters)
    root = f"{values.pop('results_root') or repository_root()}{os.sep}"
    return {name: v.removeprefix(root) if isinstance(v, str) else v for name, v in values.items()}


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
