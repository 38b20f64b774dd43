"""The models that come with the package: `load_model("nano")` and `load_model("nano-lsh")`, without a network.

What they were trained on, how, and how well, stands in the README.md beside the weights. `tools/ship.py` puts them
here.
"""

from pathlib import Path

NAMES = ("nano", "nano-lsh")


def folder_of(name: str) -> str:
    """Where the model of this name is; any other name or path as it is."""
    return str(Path(__file__).parent / name) if name in NAMES else name
