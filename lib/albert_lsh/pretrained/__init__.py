"""What comes with the package, each in a folder under its name: "nano", so far a tokenizer of 8,000 pieces of English.

`tools/ship.py` puts a pretrained model's weights beside it, and a card that says what it was trained on, and how well.
"""

from pathlib import Path

NAMES = tuple(path.name for path in sorted(Path(__file__).parent.iterdir()) if (path / "tokenizer.json").is_file())


def folder_of(name: str) -> str:
    """Where what has this name is; any other name or path as it is."""
    return str(Path(__file__).parent / name) if name in NAMES else name
