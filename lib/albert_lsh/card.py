"""The card of a fine-tuned model: README.md and .eval_results/ in its folder, made from the run's record alone.

The Hub shows the scores that the card's first lines (`model-index`) name. What it shows of .eval_results are those of
data sets that are benchmarks there.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml

from albert_lsh.pretrained import FOLDERS
from albert_lsh.run import Run
from albert_lsh.tasks import Task, find_task

HUB_METRICS = {
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact": "exact_match",
}


def write_card(folder: Path, record: dict[str, Any]) -> None:
    """Write the card of a run's model into its folder.

    Args:
        record: what result.json says of the run, as `record.read_result` reads it.
    """
    asked, task = dict(record["parameters"]), find_task(record["parameters"]["task"])
    name = f"{Path(asked['model']).name}-{asked['attention']}-{task.name}"
    base = asked["model"] if is_hub_name(asked["model"]) and not asked["random_weights"] else None
    if Path(asked["model"]).is_absolute():  # a card names no folder of a machine
        asked["model"] = Path(asked["model"]).name
    record = {**record, "parameters": asked}
    data = ModelCardData(
        model_name=name,
        library_name="transformers",
        pipeline_tag="question-answering" if task.is_squad else "text-classification",
        base_model=base,
        datasets=None if task.dataset == "mini" else [task.dataset],
        metrics=[HUB_METRICS.get(name, name) for name in task.metrics],
        tags=["albert-lsh", asked["attention"]],
        eval_results=results(task, record),
    )
    ModelCard(f"---\n{data.to_yaml()}\n---\n{text(name, task, record)}").save(folder / "README.md")
    if entry := benchmark(task, record):
        path = folder / ".eval_results" / f"{task.name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False), encoding="utf-8")


def is_hub_name(model: str) -> bool:
    """Whether a run's model is one of the Hub: no folder, none of the package."""
    return model not in FOLDERS and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model) is not None


def evaluated(record: dict[str, Any]) -> dict[str, str]:
    """The splits that were evaluated, by the end of their metrics' names: none for the first, "_mismatched"."""
    first, *others = [split for split in record["examples"] if split != "train"]
    return {"": first} | {f"_{split.removeprefix('validation_')}": split for split in others}


def results(task: Task, record: dict[str, Any]) -> list[EvalResult]:
    """The task's scores as the Hub knows them."""
    kind = "question-answering" if task.is_squad else "text-classification"
    return [
        EvalResult(
            task_type=kind,
            dataset_type=task.name if task.dataset == "mini" else task.dataset,
            dataset_name=task.name,
            dataset_config=task.config,
            dataset_split=split,
            metric_type=HUB_METRICS.get(name, name),
            metric_name=name,
            metric_value=record["metrics"][name + suffix],
        )
        for suffix, split in evaluated(record).items()
        for name in task.metrics
        if name + suffix in record["metrics"]
    ]


def benchmark(task: Task, record: dict[str, Any]) -> EvalResultEntry | None:
    """The headline as .eval_results has it; None where other examples were evaluated than the Hub's own split."""
    asked = record["parameters"]
    parts = ("eval_examples", "held_out_examples", "folds", "data_dir")
    if task.dataset == "mini" or task.training_articles or any(asked.get(name) is not None for name in parts):
        return None
    name, environment = record["headline"]["name"], record["environment"]
    notes = (
        f"{name}, {evaluated(record)['']}, attention {asked['attention']}, one seed{interval(record, name, ', 95% ')}"
    )
    given = {"value": record["headline"]["value"], "date": environment["date"], "notes": notes}
    return EvalResultEntry(dataset_id=task.dataset, task_id=task.config or "default", **given)


def interval(record: dict[str, Any], name: str, before: str = "") -> str:
    """The 95% interval of a score; nothing where the record has none."""
    digits = 1 if find_task(record["parameters"]["task"]).is_squad else 3
    found = record.get("intervals", {}).get(name)
    return f"{before}{found[0]:.{digits}f} to {found[1]:.{digits}f}" if found else ""


def table(record: dict[str, Any]) -> str:
    """Every score beside its interval, the majority class's and chance's."""
    digits = 1 if find_task(record["parameters"]["task"]).is_squad else 3
    lines = ["| score | value | 95% interval | majority class | chance |", "|---|---|---|---|---|"]
    for name, value in record["metrics"].items():
        beside = [record[kind].get(name) for kind in ("majority", "chance")]
        shown = ["" if other is None else f"{other:.{digits}f}" for other in beside]
        lines.append(f"| {name} | {value:.{digits}f} | {interval(record, name)} | {' | '.join(shown)} |")
    return "\n".join(lines)


def command(record: dict[str, Any]) -> str:
    """What is typed to have the run again."""
    asked = record["parameters"]
    notebook = "squad" if find_task(asked["task"]).is_squad else "glue"
    given = {name: value for name, value in asked.items() if name not in Run.where}
    for name, value in asked.items():
        if value is None or value is False or value == {}:  # as the notebooks have it
            given.pop(name, None)
    return f"papermill notebooks/{notebook}.ipynb out.ipynb -y {shlex.quote(json.dumps(given))}"


def attention_of(record: dict[str, Any]) -> str:
    """The attention, where it stands, and what it sees and costs; an item of a list each."""
    asked, cost = record["parameters"], record.get("full_cost")
    settings = {k: v for k, v in asked["attention_settings"].items() if v is not None and v is not False}
    items = [f"`{asked['attention']}`, settings `{json.dumps(settings)}`"]
    if asked["evaluation_settings"]:
        items.append(f"over these in evaluation: `{json.dumps(asked['evaluation_settings'])}`")
    if asked["passes"] is not None:
        items.append(f"in passes {asked['passes']} alone, the others have softmax")
    if asked.get("projections"):
        items.append("new projections in the place of the pretrained ones")
    items.append(f"attends to {record['attended_share']:.0%} of the pairs of tokens")
    if cost is not None:
        items.append(f"full cost: {cost:.0%} of softmax attention's (multiply-adds, finding the keys included)")
    return "\n".join(f"- {item}" for item in items)


def text(name: str, task: Task, record: dict[str, Any]) -> str:
    """The card below its first lines."""
    asked, environment, sizes = record["parameters"], record["environment"], record["examples"]
    shape = " (its shape, with random weights)" if asked["random_weights"] else ""
    head = ', head="question-answering"' if task.is_squad else ""
    covers = "an interval covers the examples, by a bootstrap, and not seeds: another seed may score outside of it"
    if not record.get("intervals"):
        covers = "the record has no intervals, and nothing says what another seed would score"
    seen = ", ".join(f"{sizes[split]:,} examples of {split}" for split in evaluated(record).values())
    source = "texts that come with albert-lsh" if task.dataset == "mini" else f"`{task.dataset}`"
    commit = environment["commit"] or ""
    lines = [f"git checkout {commit.removesuffix('-dirty')}"] if commit else []
    lines.append(command(record))
    differed = " The code differed from that commit." if commit.endswith("-dirty") else ""
    versions = ", ".join(f"{package} {number}" for package, number in environment["packages"].items() if number)
    return f"""
# {name}

`{asked["model"]}`{shape} fine-tuned on task `{task.name}` with `{asked["attention"]}` attention by albert-lsh.
This card is made from the record of the run.

```python
import albert_lsh  # brings the attention

model = albert_lsh.load_model(path{head})  # path: this folder, or its name on the Hub
tokenizer = albert_lsh.load_tokenizer(path)
```

## Attention

{attention_of(record)}

## Scores

{table(record)}

One run, seed {asked["seed"]}: {covers}. Evaluated: {seen}.

## Data and licence

{sizes["train"]:,} training examples of {source}, texts of up to {asked["max_length"]} tokens. Data and base model keep
their own licences, which bind these weights too; none is given here.

## Again

```
{chr(10).join(lines)}
```

{environment["date"]}, {environment["device"]}, {record["train_seconds"]:,.0f} seconds; Python {environment["python"]},
{versions}.{differed}
"""
