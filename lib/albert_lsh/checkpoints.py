"""Checkpoints that are complete, whole, and of the same run; others do not count.

Trainer writes a checkpoint file by file. `Seal` adds the last file, complete.json: the run's parameters and a checksum
of every other file. Only then are older checkpoints deleted. `last_checkpoint` takes the newest one that agrees with
its seal, so that a run killed during a save, or on a full disk, goes on from the one before.
"""

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from albert_lsh.runs import ParameterError, Recorded, write_atomically

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
            newest = folder / f"checkpoint-{state.global_step}"
            seal(newest, self.parameters)
            for other in folder.glob("checkpoint-*"):
                if other != newest:
                    shutil.rmtree(other)


def checksums(checkpoint: Path) -> dict[str, str]:
    """The SHA-256 of every file of a checkpoint but the seal, by its name in it."""
    found = {}
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != SEAL):
        with path.open("rb") as file:
            found[path.relative_to(checkpoint).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def seal(checkpoint: Path, parameters: dict[str, Any]) -> None:
    """Write complete.json, in one step."""
    record = {"parameters": parameters, "files": checksums(checkpoint)}
    write_atomically(checkpoint / SEAL, json.dumps(record, indent=1))


def read_seal(checkpoint: Path) -> dict[str, Any]:
    """The run's parameters from a checkpoint's seal.

    Raises:
        ValueError: there is no seal, or a file is missing or is not what was sealed; the message says which.
    """
    try:
        record = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        parameters, files = dict(record["parameters"]), dict(record["files"])
    except FileNotFoundError:
        raise ValueError(f"it has no {SEAL}: it was not written to its end") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its {SEAL} is damaged ({error})") from error
    there = checksums(checkpoint)
    if missing := sorted(files.keys() - there.keys()):
        raise ValueError(f"{', '.join(missing)} is missing")
    if damaged := sorted(name for name, checksum in files.items() if there[name] != checksum):
        raise ValueError(f"{', '.join(damaged)} is damaged")
    return parameters


def last_checkpoint(parameters: Recorded, here: dict[str, Any]) -> str | None:
    """The newest complete checkpoint in output_dir; None if there is none, or if `resume` is off, which deletes all.

    Says on which step a run goes on. Warns of checkpoints that are passed over.

    Args:
        here: all that decides the result, as the checkpoints were sealed with.
    Raises:
        ParameterError: a complete checkpoint is there, and it is of a run with other parameters.
    """
    folder = Path(parameters.output_dir or ".") / "checkpoints"
    if not parameters.resume:
        shutil.rmtree(folder, ignore_errors=True)
    here = json.loads(json.dumps(here))  # as a seal says it
    steps = {int(path.name.split("-")[1]): path for path in folder.glob("checkpoint-[0-9]*")}
    for step in sorted(steps, reverse=True):
        try:
            there = read_seal(steps[step])
        except ValueError as error:
            warnings.warn(f"{steps[step]} does not count: {error}", stacklevel=2)
            continue
        if other := ", ".join(sorted(k for k in here.keys() | there.keys() if here.get(k) != there.get(k))):
            raise ParameterError(
                f"{folder} holds checkpoints of a run with another {other}; delete it, choose another output_dir, or "
                "set resume=False to start anew"
            )
        print(f"going on after step {step}, from {steps[step].name}")
        return str(steps[step])
    return None
