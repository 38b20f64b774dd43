"""The Hugging Face Hub: what is cached, at once if there is no network (clients retry for half a minute); commits."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from urllib.parse import urlsplit
from urllib.request import getproxies

import datasets
import torch
from datasets.exceptions import DatasetsError
from huggingface_hub import constants, snapshot_download


def has_address(endpoint: str) -> bool:
    """Whether the Hub's name can be resolved; without a network it cannot. A proxy resolves it itself."""
    try:
        return bool(getproxies() or socket.getaddrinfo(urlsplit(endpoint).hostname, None))
    except OSError:
        return False


def commit_of(name: str, kind: str, revision: str | None = None) -> str | None:
    """The commit that a branch, tag or commit (None: the newest) of a repository is in the cache; None: not there.

    kind: "model" or "dataset".
    """
    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True)).name
    except (OSError, ValueError):  # it is not there; a path, which is no name of a repository
        return None


@contextmanager
def reading(source: str | os.PathLike[str], kind: type[ValueError], what: str, instead: str = "") -> Iterator[None]:
    """Within, whatever a file, datasets or the Hub's client raises becomes one error of a kind; out of memory stays.

    Where the Hub's name cannot be resolved its clients take what is cached, or fail, at once.

    Args:
        source: what is loaded; a folder needs no Hub. what, instead: what the message begins and ends with.
    """
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not os.path.isdir(source) and not has_address(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, DatasetsError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise kind(f"{what}: {shorten(f'{type(cause).__name__}: {cause}', 300)}{instead}") from error
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
