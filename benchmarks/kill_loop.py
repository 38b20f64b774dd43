"""Does a killed run end as if nothing had happened? Runs on an embedded task, killed again and again.

    python benchmarks/kill_loop.py [folder]     writes results/trials/kill-loop.csv, a row for each kill

Every run (softmax and lsh, ten seeds each, three epochs, evaluated and saved every few steps) is made once undisturbed,
and once killed with SIGKILL: at a random moment, while a checkpoint is written, or just after an epoch's end. Each time
it is started again, and must go on from the newest sealed checkpoint. History, scores and answers must then be those of
the undisturbed run to the last digit.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch

from albert_lsh.model.load import load_tokenizer
from albert_lsh.tasks.metrics import for_trainer, score_splits
from albert_lsh.tasks.table import encode, find_task, load_data
from albert_lsh.training.checkpoints import SEAL
from albert_lsh.training.files import repository_root
from albert_lsh.training.parameters import Parameters
from albert_lsh.training.recipe import attended, prepare_model, train
from albert_lsh.training.record import close_run, environment, open_run, provenance, write_result

SEEDS, KILLS = 10, 4  # of each run; one that ends before the last has fewer
ASKED = {"task": "mini-mrpc", "model": "mini", "epochs": 3, "train_examples": 400, "eval_examples": 64, "batch_size": 8}
ASKED |= {"max_length": 48, "learning_rate": 1e-3, "eval_steps": 7, "precision": "fp32"}  # 50 steps an epoch
ATTENTIONS = {"softmax": {}, "lsh": {"n_hashes": 2, "cluster_size": 4}}
PLACES = ("any moment", "during a save", "an epoch's end")


def make(parameters: dict) -> None:
    """A run as glue.ipynb makes it, and the answers beside its record."""
    run = Parameters.check(parameters)
    open_run(run)
    started, task, tokenizer = environment(run.device), find_task(run.task), load_tokenizer(run.model)
    data = load_data(run.task, train_examples=run.train_examples, eval_examples=run.eval_examples)
    encoded = encode(data, task, tokenizer, run.max_length)
    model = prepare_model(run, head="classification", **task.model_options)
    fit = train(model, tokenizer, run, encoded["train"], encoded["validation"], for_trainer(task))
    baselines = score_splits(fit.trainer, task, encoded)[0]
    logits = fit.trainer.predict(encoded["validation"]).predictions
    pd.DataFrame(logits).to_csv(Path(run.output_dir or ".") / "logits.csv", index=False)
    coverage = attended(model, tokenizer, encoded["validation"])
    write_result(run, task.headline, baselines, coverage, fit, {k: len(rows) for k, rows in data.items()}, started)
    close_run(run)


def start(parameters: dict, log: Path) -> int:
    """Begin a run in a process of its own, which needs no second import of the library; returns its number."""
    log.write_text("")
    if process := os.fork():
        return process
    status = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        make(parameters)
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)


def ended(process: int) -> bool:
    return os.waitpid(process, os.WNOHANG)[0] != 0


def sealed(folder: Path) -> list[int]:
    """Steps of the complete checkpoints."""
    return sorted(int(path.parent.name.split("-")[1]) for path in folder.glob(f"checkpoints/*/{SEAL}"))


def wait_for(place: str, folder: Path, process: int, seconds: float, rng: random.Random) -> bool:
    """Wait for the moment to kill; False if the run ended before."""
    deadline = time.monotonic() + rng.uniform(0.0, seconds)
    begun = max(sealed(folder), default=0)
    while not ended(process):
        now = max(sealed(folder), default=0)
        writing = [p for p in folder.glob("checkpoints/checkpoint-*") if not (p / SEAL).exists()]
        late = time.monotonic() > deadline
        if place == "any moment" and late:
            return True
        if place == "during a save" and late and writing and any((writing[0]).iterdir()):
            return True
        if place == "an epoch's end" and now > begun and now % 50 == 0:
            return True
        time.sleep(0.0005)
    return False


def same(one: Path, other: Path) -> bool:
    """Whether two finished runs have the same history, scores and answers."""
    files = all((one / name).read_bytes() == (other / name).read_bytes() for name in ("history.csv", "logits.csv"))
    first, second = (json.loads((folder / "result.json").read_text()) for folder in (one, other))
    return files and all(first[name] == second[name] for name in ("metrics", "attended_share", "resolved"))


def finish(process: int, log: Path) -> None:
    if os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise SystemExit(f"a run failed:\n{log.read_text()}")


def kill_and_take_up(parameters: dict, seconds: float, log: Path, rng: random.Random) -> list[dict]:
    """Kill a run KILLS times and let it end; a row for each kill."""
    folder, rows = Path(parameters["output_dir"]), []
    process = start(parameters, log)
    while len(rows) < KILLS:
        place = rng.choice(PLACES)
        if not wait_for(place, folder, process, seconds / KILLS, rng):
            return rows
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        begun = max(sealed(folder), default=None)
        row = {"attention": parameters["attention"], "seed": parameters["seed"], "kill": len(rows) + 1, "place": place}
        rows.append(row | {"last_checkpoint": begun})
        process = start(parameters, log)
        rows[-1]["went_on_after"] = went_on(process, log)
    finish(process, log)
    return rows


def went_on(process: int, log: Path) -> int | None:
    """The step after which a run went on, as it says; None if it began anew."""
    deadline = time.monotonic() + 120
    while "/150 [" not in (said := log.read_text()):  # the bar of 150 steps
        if time.monotonic() > deadline:
            raise SystemExit(f"process {process} did not begin to train:\n{said}")
        time.sleep(0.01)
    line = next((x for x in said.splitlines() if x.startswith("going on after step")), None)
    return int(line.split()[4].rstrip(",")) if line else None


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for attention, settings in ATTENTIONS.items():
        for seed in range(SEEDS):
            given = {**ASKED, "attention": attention, "attention_settings": settings, "seed": seed}
            whole, killed = (folder / f"{attention}-{seed}-{name}" for name in ("whole", "killed"))
            began, log = time.monotonic(), folder / "log"
            finish(start({**given, "output_dir": str(whole)}, log), log)
            seconds = time.monotonic() - began
            of_run = kill_and_take_up({**given, "output_dir": str(killed)}, seconds, log, random.Random(seed))
            equal = same(whole, killed)
            rows += [row | {"ends_the_same": equal} for row in of_run]
            print(attention, seed, [(r["place"], r["last_checkpoint"], r["went_on_after"]) for r in of_run], equal)
    table = (
        pd.DataFrame(rows).astype({"last_checkpoint": "Int64", "went_on_after": "Int64"}).assign(**provenance("cpu"))
    )
    wrong = (~table["ends_the_same"]) | (table["last_checkpoint"].fillna(0) != table["went_on_after"].fillna(0))
    target = repository_root() / "results" / "trials" / "kill-loop.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(target, index=False)
    print(f"{len(table)} kills, {wrong.sum()} of them wrong")
    sys.exit(int(wrong.any()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
