"""The card of a fine-tuned model, README.md in its folder: made from the run's record alone, with the text of card.md.

The Hub shows the scores that the card's first lines (`model-index`) name.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from albert_lsh.kinds import Task
from albert_lsh.pretrained import FOLDERS
from albert_lsh.run import Run
from albert_lsh.sources import task_of

HUB_METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
HUB_METRICS |= {"exact": "exact_match"}


def write_card(folder: Path, record: dict[str, Any]) -> None:
    """Write the card of a run's model into its folder.

    Args:
        record: what result.json says of the run, as `record.read_result` reads it.
    """
    run, task = dict(record["parameters"]), task_of(record["parameters"])
    is_named = run["model"] not in FOLDERS and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", run["model"]) is not None
    # A folder may be called like that too, but has no commit; older records have none of any model.
    is_on_hub = is_named and "model" in record.get("revisions", ["model"])
    if Path(run["model"]).is_absolute():  # a card names no folder of a machine
        run["model"] = Path(run["model"]).name
    name = f"{Path(run['model']).name}-{run['attention']}-{Path(task.name).stem}"
    data = ModelCardData(
        model_name=name,
        library_name="transformers",
        pipeline_tag=task.pipeline,
        base_model=run["model"] if is_on_hub and not run["random_weights"] else None,
        datasets=[task.repository] if task.repository else None,
        metrics=[HUB_METRICS.get(name, name) for name in task.metrics],
        tags=["albert-lsh", run["attention"]],
        eval_results=results(task, record),
    )
    text = ModelCard.from_template(
        data,
        template_path=str(Path(__file__).with_suffix(".md")),
        name=name,
        run=run,
        record=record,
        task=task,
        digits=task.digits,
        splits={split: n for split, n in record["examples"].items() if split != "train"},
        settings={k: v for k, v in run["attention_settings"].items() if v is not None and v is not False},
        command=command(run, task.notebook),
    )
    text.save(folder / "README.md")


def results(task: Task, record: dict[str, Any]) -> list[EvalResult]:
    """The task's scores as the Hub knows them; those of a second split are called f1_mismatched, for instance."""
    evaluated = [split for split in record["examples"] if split != "train"]
    names = [name.partition("_") for name in record["metrics"]]
    return [
        EvalResult(
            task_type=task.pipeline,
            dataset_type=task.repository or task.name,
            dataset_name=task.name,
            dataset_config=task.config,
            dataset_split=next(split for split in evaluated if not part or split.removeprefix("validation_") == part),
            metric_type=HUB_METRICS.get(name, name),
            metric_name=name,
            metric_value=record["metrics"][name + separator + part],
        )
        for name, separator, part in names
        if name in task.metrics
    ]


def command(run: dict[str, Any], notebook: str) -> str:
    """What is typed to have the run again; what is None, False or empty by default is so in the notebooks."""
    usual = Run.defaults()
    parameters = {
        name: value
        for name, value in run.items()
        if name not in Run.where and not (value in (None, False, {}) and value == usual.get(name, value))
    }
    return f"papermill notebooks/{notebook} out.ipynb -y {shlex.quote(json.dumps(parameters))}"
