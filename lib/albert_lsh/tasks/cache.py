"""What Hugging Face's clients keep of a data set on this machine, checked: they themselves read it as it lies there."""

import json
import os
from pathlib import Path

from datasets import DatasetDict
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from albert_lsh.checksums import NAME, check_files, checksums, file_checksum


def as_prepared(found: DatasetDict, source: str | None) -> DatasetDict:
    """The data, if their files are as they were when first read here.

    Args:
        source: the repository that they come from, whose downloaded files are checked when the data are first read;
            None: they are not.
    Raises:
        ValueError: naming the files that are damaged.
    """
    files = next(iter(found.values())).cache_files
    if not files:
        return found
    folder = Path(files[0]["filename"]).parent
    if (folder / NAME).exists():
        check_files(folder)
        return found
    if source and (damaged := damaged_downloads(source)):
        raise ValueError(f"{', '.join(damaged)}: not what was downloaded")
    own = folder / f"{NAME}.{os.getpid()}"
    own.write_text(json.dumps(checksums(folder)), encoding="utf-8")
    os.replace(own, folder / NAME)
    return found


def damaged_downloads(source: str) -> list[str]:
    """The downloaded files of a repository that are not as their names say: the Hub names large files by SHA-256."""
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=source, repo_type="dataset") / "blobs"
    files = (path for path in sorted(folder.glob("*")) if len(path.name) == 64)
    return [path.name for path in files if file_checksum(path) != path.name]
