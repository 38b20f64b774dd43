"""Models that come with the package, each in a folder under its name.

"nano" (softmax) and "nano-key-clusters" are small ALBERTs, pretrained on the same tokens of English; their cards
(README.md) say how, and what they reach; CONTRIBUTING, how they came here. "mini" is a shape and a tokenizer alone, for
the embedded tasks: two passes through the shared layer suffice for binding and comparing, and a wide initialisation
shortens the plateau.

A model without a tokenizer has that of "nano".
"""

import os
from pathlib import Path

FOLDERS = {path.parent.name: path.parent for path in sorted(Path(__file__).parent.glob("*/config.json"))}
NAMES = tuple(name for name, folder in FOLDERS.items() if (folder / "model.safetensors").is_file())


def tokenizer_of(name: str) -> str:
    """The folder of the tokenizer of a model of the package; any other name or path as it is."""
    folder = folder_of(name)
    return folder_of("nano") if name in FOLDERS and not (Path(folder) / "tokenizer.json").exists() else folder


def folder_of(name: str) -> str:
    """The folder of a model of the package; any other name or path as it is, but for ~, the home folder."""
    return str(FOLDERS.get(name) or os.path.expanduser(name))
