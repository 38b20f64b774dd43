"""Checkpoints that are complete, whole, and of the same run; others do not count.

Trainer writes a checkpoint file by file. `Seal` adds the last file, complete.json: the run's parameters and a checksum
of every other file. Only then are older checkpoints deleted. `last_checkpoint` takes the newest one that agrees with
its seal, so that a run killed during a save, or on a full disk, goes on from the one before.
"""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from albert_lsh.training.files import delete, write_atomically
from albert_lsh.training.parameters import ParameterError, Recorded

SEAL = "complete.json"


class Seal(TrainerCallback):
    """Seals each checkpoint after Trainer has written it, and deletes the older ones."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        """parameters: all that decides the run's result."""
        self.parameters = parameters

    def on_save(self, args, state, control, **kwargs):
        processes = PartialState()
        processes.wait_for_everyone()  # each has written its own random state
        if processes.is_main_process:
            folder = Path(args.output_dir)
            found = checkpoints_in(folder)
            newest = found.pop(state.global_step)
            seal(newest, self.parameters)
            for older in found.values():
                delete(older)


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The folders that Trainer writes, by step; nothing else that stands there, whatever its name."""
    named = {
        path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.glob("checkpoint-*") if path.is_dir()
    }
    return {int(name[1]): path for path, name in named.items() if name}


def checksums(checkpoint: Path) -> dict[str, str]:
    """The SHA-256 of every file of a checkpoint but the seal, by its name in it."""
    found = {}
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != SEAL):
        with path.open("rb") as file:
            found[path.relative_to(checkpoint).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def seal(checkpoint: Path, parameters: dict[str, Any]) -> None:
    """Write complete.json, in one step."""
    record = {"step": step_of(checkpoint), "parameters": parameters, "files": checksums(checkpoint)}
    write_atomically(checkpoint / SEAL, json.dumps(record, indent=1))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])


def read_seal(checkpoint: Path) -> dict[str, Any]:
    """The run's parameters from a checkpoint's seal.

    Raises:
        ValueError: there is no seal, it is of another step, or the files are not those that were sealed; the message
            says which.
    """
    try:
        record = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        step, parameters, files = (record[name] for name in ("step", "parameters", "files"))
        if not (isinstance(parameters, dict) and isinstance(files, dict)):
            raise TypeError("parameters and files must be objects")
    except FileNotFoundError:
        raise ValueError(f"it has no {SEAL}: it was not written to its end") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its {SEAL} is damaged ({error})") from error
    if step != step_of(checkpoint):
        raise ValueError(f"its {SEAL} is of step {step}")
    there = checksums(checkpoint)
    for what, names in (("missing", files.keys() - there.keys()), ("not sealed", there.keys() - files.keys())):
        if names:
            raise ValueError(f"{', '.join(sorted(names))} is {what}")
    if damaged := sorted(name for name, checksum in files.items() if there[name] != checksum):
        raise ValueError(f"{', '.join(damaged)} is damaged")
    return parameters


def last_checkpoint(parameters: Recorded, here: dict[str, Any]) -> str | None:
    """The newest complete checkpoint in output_dir; None if there is none. With resume=False all are deleted first.

    Prints the step after which a run goes on. Warns of checkpoints that are ignored.

    Args:
        here: all that decides the result, as the checkpoints were sealed with.
    Raises:
        ParameterError: a complete checkpoint is there, and it is of a run with other parameters.
    """
    folder = Path(parameters.output_dir or ".") / "checkpoints"
    if not parameters.resume:
        delete(folder)
    here = json.loads(json.dumps(here))  # as a seal says it
    for step, checkpoint in sorted(checkpoints_in(folder).items(), reverse=True):
        try:
            there = read_seal(checkpoint)
        except ValueError as error:
            warnings.warn(f"{checkpoint} is ignored: {error}", stacklevel=2)
            continue
        if other := ", ".join(sorted(k for k in here.keys() | there.keys() if here.get(k) != there.get(k))):
            raise ParameterError(
                f"{folder} holds checkpoints of a run with another {other}; delete that folder, choose another "
                "output_dir, or set resume=False to start anew"
            )
        print(f"going on after step {step}, from {checkpoint.name}")
        return str(checkpoint)
    return None
