"""Models that come with the package, each in a folder under its name: "nano" (softmax) and "nano-lsh" (lsh).

Small ALBERTs, pretrained on the same tokens of English; their cards (README.md) say how, and what they reach.
`tools/ship.py` puts them here.
"""

from pathlib import Path

NAMES = tuple(path.name for path in sorted(Path(__file__).parent.iterdir()) if (path / "tokenizer.json").is_file())


def folder_of(name: str) -> str:
    """Where what has this name is; any other name or path as it is."""
    return str(Path(__file__).parent / name) if name in NAMES else name
