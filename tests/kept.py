"""A short run that keeps its model."""

from pathlib import Path

from albert_lsh import Run, fit


def kept_run(folder: Path, **changes) -> Path:
    """The folder of a run of nano-lsh, its model in it."""
    given = {"task": "mini-mrpc", "model": "nano-lsh", "attention": "lsh", "attention_settings": {"share": 0.5}}
    given |= {"train_examples": 64, "eval_examples": 40, "epochs": 1, "max_length": 24, "device": "cpu"}
    given |= {"precision": "fp32", "save_model": True, "output_dir": str(folder), **changes}
    return fit(Run.parse(given)).folder
