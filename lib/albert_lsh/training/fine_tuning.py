"""A whole fine-tuning run in one call, as glue.ipynb makes it step by step."""

from pathlib import Path

from datasets import DatasetDict
from transformers import PreTrainedTokenizerBase

from albert_lsh.tasks.metrics import for_trainer, score_splits
from albert_lsh.tasks.table import find_task
from albert_lsh.training.parameters import Parameters
from albert_lsh.training.recipe import attended, keep_model, prepare_model, train
from albert_lsh.training.record import close_run, environment, open_run, write_result


def fine_tune(run: Parameters, tokenizer: PreTrainedTokenizerBase, encoded: DatasetDict) -> Path:
    """One run, from its encoded data to the path of its record; one that is made is left as it is.

    encoded: as `encode` makes it of all splits of a GLUE-shaped task.
    """
    open_run(run)
    path = Path(run.output_dir or ".") / "result.json"
    if not path.exists():
        started, task = environment(run.device), find_task(run.task)
        model = prepare_model(run, head="classification", **task.model_options)
        first = encoded[task.evaluation[0]]
        fit = train(model, tokenizer, run, encoded["train"], first, for_trainer(task))
        baselines, predictions = score_splits(fit.trainer, task, encoded)
        coverage, examples = attended(model, tokenizer, first), {split: len(rows) for split, rows in encoded.items()}
        keep_model(run, model, tokenizer)
        write_result(run, task.headline, baselines, coverage, fit, examples, started, predictions)
    close_run(run)
    return path
