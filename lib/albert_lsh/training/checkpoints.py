"""Checkpoints that are complete and belong to the run that reads them.

    write files into folder/checkpoint-<step>        whatever the training loop saves
    seal(checkpoint, parameters)                     adds complete.json: the parameters, a checksum of every file
    prune(folder, keep=checkpoint)                   deletes the other checkpoints
    newest(folder, parameters)                       the checkpoint to resume from, or None

A checkpoint is written file by file; its seal comes last. A run killed during a save, or on a full disk, therefore
resumes from the checkpoint before. Nothing here depends on the training loop; `trainer.Seal` calls it for Trainer.
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any

from albert_lsh.checksums import checksum_of, checksums
from albert_lsh.training.files import delete, write_atomically
from albert_lsh.training.parameters import ParameterError

SEAL = "complete.json"


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The folders checkpoint-<step> in `folder`, by step; other files and folders are left out."""
    named = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in folder.glob("*") if path.is_dir()}
    return {int(name[1]): path for path, name in named.items() if name}


def seal(checkpoint: Path, parameters: dict[str, Any]) -> None:
    """Mark a checkpoint as complete, once all its files are written.

    Args:
        checkpoint: a folder named checkpoint-<step>.
        parameters: everything that decides the run's result, as JSON can hold it.
    """
    step = int(checkpoint.name.removeprefix("checkpoint-"))
    record = {"step": step, "parameters": parameters, "files": checksums(checkpoint, SEAL)}
    write_atomically(checkpoint / SEAL, json.dumps(record | {"checksum": checksum_of(record)}, indent=1))


def prune(folder: Path, keep: Path) -> None:
    """Delete all checkpoints in `folder` but one. A link is deleted, what it points to is not."""
    for checkpoint in checkpoints_in(folder).values():
        if checkpoint != keep:
            delete(checkpoint)


def read_seal(checkpoint: Path) -> dict[str, Any]:
    """The parameters that a checkpoint was sealed with.

    Raises:
        ValueError: no seal, the seal of another step, or files that differ from the sealed ones.
    """
    try:
        record = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        step, parameters, sealed = record["step"], dict(record["parameters"]), record["files"]
        own = record.get("checksum", checksum_of(record))  # older seals have none
        changed = {name for name, _ in sealed.items() ^ checksums(checkpoint, SEAL).items()}
    except FileNotFoundError:
        raise ValueError(f"it has no {SEAL}: it was not written to its end") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its {SEAL} is damaged ({error})") from error
    if own != checksum_of(record):
        raise ValueError(f"its {SEAL} is damaged (its checksum is another)")
    if checkpoint.name != f"checkpoint-{step}":
        raise ValueError(f"its {SEAL} is of step {step}")
    if changed:
        raise ValueError(f"{', '.join(sorted(changed))}: missing, damaged, or not sealed")
    return parameters


def newest(folder: Path, parameters: dict[str, Any], *, resume: bool = True) -> Path | None:
    """The newest complete checkpoint in a folder; None if there is none. Prints its step.

    Args:
        folder: of the checkpoints; need not exist.
        parameters: everything that decides the run's result, as given to `seal`.
        resume: False deletes the folder first, to start anew.
    Warns:
        UserWarning: a checkpoint is incomplete or damaged, and ignored.
    Raises:
        ParameterError: the newest complete checkpoint was sealed with other parameters.
    """
    if not resume:
        delete(folder)
    here = json.loads(json.dumps(parameters))  # as a seal holds them
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
        return checkpoint
    return None
