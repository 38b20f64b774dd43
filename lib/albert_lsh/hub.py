"""The Hugging Face Hub without a network: its clients retry for half a minute before they look into their cache."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

import datasets
from huggingface_hub import constants


def has_address(endpoint: str) -> bool:
    """Whether the Hub's name can be resolved; without a network it cannot, which is known at once. A proxy resolves it
    itself."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, None)
    except OSError:
        return False
    return True


@contextmanager
def at_once() -> Iterator[None]:
    """Within, the Hub's clients take what is cached, or fail, at once where the Hub's name cannot be resolved."""
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not has_address(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before
