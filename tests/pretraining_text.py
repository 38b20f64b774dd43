"""A small text for tests of pretraining."""

from itertools import islice
from pathlib import Path

from datasets import Dataset

from albert_lsh import mini


def sentences() -> list[str]:
    return list(mini.build("mini-sst2")["train"]["sentence"])


def rows_of(lines: list[str]) -> Dataset:
    """Lines as `corpus.load_text` gives them."""
    return Dataset.from_dict({"text": lines})


def write_text(path: Path, documents: int = 60) -> Path:
    """Documents of two paragraphs of three sentences each."""
    source = iter(sentences())
    texts = [f"{' '.join(islice(source, 3))}\n{' '.join(islice(source, 3))}\n" for _ in range(documents)]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path
