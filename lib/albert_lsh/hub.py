"""The Hugging Face Hub: what is cached, at once if there is no network (clients retry for half a minute); commits."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

import datasets
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

REMEMBERED = 60  # seconds; without a network some machines take five to say so


def has_address(endpoint: str) -> bool:
    """Whether the Hub's name can be resolved; without a network it cannot. A proxy resolves it itself."""
    return bool(getproxies()) or resolves(urlsplit(endpoint).hostname, int(time.monotonic()) // REMEMBERED)


@lru_cache(maxsize=1)
def resolves(host: str | None, now: int) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def commit_of(name: str, kind: str, revision: str | None = None) -> str | None:
    """The commit that a branch, tag or commit (None: the newest) of a repository is in the cache; None: not there.

    kind: "model" or "dataset".
    """
    try:
        folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)
    except ValueError:  # a path
        return None
    if revision and re.fullmatch("[0-9a-f]{40}", revision):
        return revision if (folder / "snapshots" / revision).exists() else None
    ref = folder / "refs" / (revision or "main")
    return ref.read_text(encoding="utf-8").strip() if ref.is_file() else None


@contextmanager
def at_once(source: str | os.PathLike[str]) -> Iterator[None]:
    """Within, the Hub's clients take what is cached, or fail, at once where the Hub's name cannot be resolved.

    source: what is loaded; a folder needs no Hub.
    """
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not os.path.isdir(source) and not has_address(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
