"""Does full attention stand in for the hashing of the block of 2020, in texts of 64 tokens?

    python benchmarks/hashed_block.py results/runs/ladder/sst2/.../seed-41    writes results/trials/hashed-block.csv

The ladder's rungs 0 to 2 compute full attention (full_attn_thres: 64). Here a run's trained model (save_model keeps it)
answers its task's texts again: as it was trained, and with the published hashing computed (32 tokens a bucket, 16
rounds), which at 64 tokens leaves no pair out but weighs pairs anew. Training with it is another question.
"""

import sys
from pathlib import Path

import pandas as pd

from albert_lsh import load_data, load_model, load_tokenizer
from albert_lsh.files import relative_to_root, repository_root, write_atomically
from albert_lsh.kinds import Task
from albert_lsh.record import provenance, read_result
from albert_lsh.run import Run


def answers(model: str, task: Task, **attention: object) -> pd.DataFrame:
    """What a saved model answers, and whether it is right; with another attention where one is named."""
    trained = load_model(model, head=task.head, complete=True, **attention, **task.model_options)
    rows = load_data(task)[task.evaluation[0]]
    texts = [{column: row[column] for column in task.columns} for row in rows]
    said = pd.DataFrame(task.answer(trained.eval(), load_tokenizer(model), texts, 32))
    return said.assign(right=said["label"] == [task.labels[row[task.label]] for row in rows])


def main(folder: str) -> None:
    record = read_result(Path(folder) / "result.json")
    task, model = Run.task_in(record["parameters"]), str(Path(folder) / "model")
    settings = record["parameters"]["attention_settings"]
    full = answers(model, task)
    hashed = answers(model, task, attention="reformer", settings=settings | {"full_attn_thres": 0})
    scores = {"full": full["right"].mean(), "hashed": hashed["right"].mean()}
    changed = {"changed": (hashed["label"] != full["label"]).mean()}
    run = {"run": relative_to_root(Path(folder)), "score": record["headline"]["value"], "texts": len(full)}
    row = run | scores | changed | provenance("cpu")
    print(row)
    write_atomically(
        repository_root() / "results" / "trials" / "hashed-block.csv", pd.DataFrame([row]).to_csv(index=False)
    )


if __name__ == "__main__":
    main(sys.argv[1])
