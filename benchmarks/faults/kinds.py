"""Faults of one run. Each function draws where its fault strikes, lets it strike, and sees how the run ends."""

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from albert_lsh import load_model, load_tokenizer
from albert_lsh.training.record import read_result
from albert_study.compare import write_tables
from albert_study.figures import write_figures
from faults import runs
from faults.bench import FULL, Bench, Seen
from faults.hub import TROUBLES, Hub
from faults.runs import ATTENTIONS, STUDY, folder_of, last_line, require

PAGE = 4096  # bytes, in which a file system gives room
NO_MEMORY = r"out of memory|MemoryError|[Cc]annot allocate memory|can't allocate|memory allocation of"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_training(bench: Bench, rng: random.Random) -> Seen:
    """SIGKILL at any moment."""
    attention, seconds = rng.choice([*ATTENTIONS]), rng.uniform(0.1, 2.0)
    root = bench.begin(attention)
    process = runs.start(lambda: runs.make(root, attention, data=bench.data), bench.log)
    if runs.status_of(process, seconds) is None:
        runs.kill(process)
    return bench.take_up(root, attention, f"{attention}, after {seconds:.2f} s")


def killed_in_saving(bench: Bench, rng: random.Random) -> Seen:
    """SIGKILL when a file is opened, renamed or deleted, or some milliseconds later."""
    attention = rng.choice([*ATTENTIONS])
    number, later = rng.randrange(len(bench.operations[attention])), rng.choice([0.0, rng.uniform(0, 0.02)])
    root = bench.begin(attention)

    def after() -> None:
        time.sleep(later)
        die()

    act = threading.Thread(target=after, daemon=True).start if later else die
    runs.status_of(runs.start(bench.at(root, attention, number, act), bench.log))
    when = f"{1000 * later:.1f} ms after" if later else "before"
    return bench.take_up(root, attention, f"{attention}, {when} {bench.operations[attention][number]}")


def disk_full(bench: Bench, rng: random.Random) -> Seen:
    """No room on the disk from one of the run's files on."""
    attention = rng.choice([*ATTENTIONS])
    number, pages = rng.randrange(3, len(bench.operations[attention])), rng.choice([0, 0, 1, rng.randrange(250)])
    root = bench.begin(attention, bench.disk)
    work = bench.at(root, attention, number, lambda: bench.fill(pages * PAGE))
    message = failed(work, bench.log, FULL)
    bench.empty()
    place = f"{attention}, {pages * PAGE // 1024} kB left before {bench.operations[attention][number]}"
    return bench.take_up(root, attention, place, message)


def disk_full_for_tables(bench: Bench, rng: random.Random) -> Seen:
    """No room for the tables and figures of a study."""
    root = bench.begin("softmax", bench.disk)
    shutil.copytree(folder_of(bench.whole, "softmax"), folder_of(root, "softmax"))
    left, write = rng.randrange(12) * PAGE, rng.choice([write_tables, write_figures])

    def full() -> None:
        bench.fill(left)
        write(STUDY, root=root)

    message = failed(full, bench.log, FULL)
    bench.empty()
    runs.finish(lambda: write(STUDY, root=root), bench.log)
    made = {name: text for name, text in runs.contents(root).items() if name.startswith(("results/tables", "figures"))}
    runs.finish(lambda: write(STUDY, root=bench.whole), bench.log)
    require(made, "nothing was written")
    for name, text in made.items():
        require(name.endswith(".pdf") or text == (bench.whole / name).read_bytes(), f"{name} is another")
    place = f"{write.__name__.removeprefix('write_')}, {left // 1024} kB left"
    return bench.take_up(root, "softmax", place, message)


def disk_full_for_caches(bench: Bench, rng: random.Random) -> Seen:
    """No room for what comes from the Hub."""
    left = rng.randrange(24) * PAGE
    runs.fresh(bench.cache)
    root = bench.begin("softmax")

    def full() -> None:
        bench.fill(left)
        runs.make(root, "softmax", "sst2")

    message = failed(full, bench.log, FULL)
    bench.empty()
    return bench.take_up(root, "softmax", f"cache of the Hub, {left // 1024} kB left", message, "sst2")


def failed(work: Callable[[], object], log: Path, cause: str) -> str:
    """Start `work`, and return what it said when it failed, which must name the cause; "" if it did not fail."""
    status = runs.status_of(process := runs.start(work, log))
    if status is None:
        runs.kill(process)
    require(status is not None, "the process hangs")
    message = "" if status == 0 else last_line(log)
    named = status == 0 or re.search(cause, message)
    require(named, f"the message of the end ({status}) does not name the cause: {message}")
    return message


def hurt(bench: Bench, path: Path, how: str, rng: random.Random) -> str:
    """Cut a file at a random place, or flip one bit of it; what was done."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if how == "truncated":
        path.write_bytes(content[:at])
        bench.struck = f"{path.name} cut to {at} of {len(content)} bytes"
        return bench.struck
    content[at] ^= 1 << (bit := rng.randrange(8))
    path.write_bytes(content)
    bench.struck = f"{path.name}, bit {bit} of byte {at} of {len(content)}"
    return bench.struck


def damaged(bench: Bench, rng: random.Random, how: str) -> Seen:
    """A file of a checkpoint, a model, a result or a cache."""
    kinds = [damaged_checkpoint, damaged_model, damaged_result, *[damaged_cache] * (how == "truncated")]
    return rng.choice(kinds)(bench, rng, how)


def damaged_checkpoint(bench: Bench, rng: random.Random, how: str) -> Seen:
    attention = rng.choice([*ATTENTIONS])
    root = bench.killed(attention)
    folder = folder_of(root, attention) / "checkpoints" / "checkpoint-4"
    what = hurt(bench, rng.choice(sorted(folder.iterdir())), how, rng)
    found = runs.sealed(folder_of(root, attention))
    seen = bench.take_up(root, attention, f"{attention}, checkpoint: {what}")
    ignored = next((x for x in bench.log.read_text().splitlines() if "is ignored: " in x), "")
    require(ignored or found, "nothing was said")
    seen.message = ignored.partition("UserWarning: ")[2]
    return seen


def damaged_model(bench: Bench, rng: random.Random, how: str) -> Seen:
    """The model is asked again, as by a switched evaluation; made again, it must answer as before."""
    attention = rng.choice([*ATTENTIONS])
    root = bench.made(attention)
    folder, answers = folder_of(root, attention) / "model", bench.folder / "answers.pt"
    runs.finish(lambda: ask(bench, folder, answers), bench.log)
    before = torch.load(answers)
    place = f"{attention}, model: {hurt(bench, rng.choice(sorted(folder.iterdir())), how, rng)}"
    message = failed(lambda: ask(bench, folder, answers), bench.log, "model=")
    if not message:
        require(torch.equal(torch.load(answers), before), "other answers, and nothing is said")
        return bench.take_up(root, attention, place)
    shutil.rmtree(folder.parent)  # as for results that are damaged
    return bench.take_up(root, attention, place, message)


def ask(bench: Bench, folder: Path, answers: Path) -> None:
    """Write the logits of a saved model on the evaluation split."""
    tokenizer, model = load_tokenizer(str(folder)), load_model(str(folder), complete=True).eval()
    rows = bench.data["validation"]
    batch = tokenizer.pad({name: rows[name][:] for name in tokenizer.model_input_names}, return_tensors="pt")
    with torch.no_grad():
        torch.save(model(**batch).logits, answers)


def damaged_result(bench: Bench, rng: random.Random, how: str) -> Seen:
    """A finished run's record: it is named, and made again once it is moved away."""
    attention = rng.choice([*ATTENTIONS])
    root = bench.made(attention)
    run = folder_of(root, attention)
    result = read_result(run / "result.json")
    path = run / "result.json"
    place = f"{attention}, result: {hurt(bench, path, how, rng)}"
    message = failed(lambda: runs.make(root, attention, data=bench.data), bench.log, "result.json.*is damaged")
    if not message:
        require(read_result(path) == result, "nothing is said")
        path.write_bytes((folder_of(bench.whole, attention) / path.name).read_bytes())
        return bench.take_up(root, attention, place)
    (run / "result.json").unlink()
    return bench.take_up(root, attention, place, message)


def damaged_cache(bench: Bench, rng: random.Random, how: str) -> Seen:
    """What came from the Hub, or what was made of it; of flipped bits there nobody knows."""
    runs.fresh(bench.cache)
    shutil.copytree(bench.folder / "cache-whole", bench.cache, dirs_exist_ok=True, symlinks=True)
    kind = rng.choice(["blobs/*", "*.arrow", "dataset_info.json"])
    if kind == "blobs/*":  # they are read only where nothing was made of them
        shutil.rmtree(bench.cache / "datasets")
    files = [path for path in sorted(bench.cache.rglob(kind)) if path.is_file() and path.stat().st_size]
    place = f"cache: {hurt(bench, rng.choice(files), how, rng)}"
    root = bench.begin("softmax")
    message = failed(lambda: runs.make(root, "softmax", "sst2"), bench.log, "task='sst2'")
    if message:  # what is damaged beyond mending by the next start is removed by hand
        runs.fresh(bench.cache)
    return bench.take_up(root, "softmax", place, message, "sst2")


def hub_in_trouble(bench: Bench, rng: random.Random) -> Seen:
    """A Hub that stops, or answers late or wrongly, from one of the requests on, and is well at the next start."""
    trouble, after = rng.choice(TROUBLES), rng.randrange(12)
    runs.fresh(bench.cache)
    root = bench.begin("softmax")
    bench.hub.begin(trouble, after)

    def work() -> None:
        bench.hub.socket.close()  # the parent's alone
        runs.make(root, "softmax", "sst2")

    try:
        message = failed(work, bench.log, "task='sst2': the data could not be loaded")
    finally:
        if trouble == "stopped":
            bench.hub.shutdown()
            bench.hub.server_close()
            bench.hub = Hub(bench.hub.files, bench.hub.server_port)
        bench.hub.begin("")
    return bench.take_up(root, "softmax", f"{trouble} after {after} requests", message, "sst2")


def out_of_memory(bench: Bench, rng: random.Random) -> Seen:
    """No more memory for the process, but for some of it, from one of its files on."""
    attention = rng.choice([*ATTENTIONS])
    number, left = rng.randrange(len(bench.operations[attention]) // 2), rng.randrange(1_000_000)
    root, held = bench.begin(attention), []

    def limit() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
        resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
        spare = bytearray(left)
        for size in (1 << 20, 1 << 16, 1 << 12):  # what is free inside of the process
            with contextlib.suppress(MemoryError):
                while True:
                    held.append(bytes(size))
        del spare

    message = failed(bench.at(root, attention, number, limit), bench.log, NO_MEMORY)
    place = f"{attention}, {left // 1024} kB left before {bench.operations[attention][number]}"
    return bench.take_up(root, attention, place, message)


def started_twice(bench: Bench, rng: random.Random) -> Seen:
    """The same run, a moment later."""
    attention, seconds = rng.choice([*ATTENTIONS]), rng.uniform(0, 2)
    root = bench.begin(attention)
    logs = [bench.log, bench.log.with_suffix(".second")]
    first = runs.start(lambda: runs.make(root, attention, data=bench.data), logs[0])
    time.sleep(seconds)
    second = runs.start(lambda: runs.make(root, attention, data=bench.data), logs[1])
    for process, log in zip((first, second), logs, strict=True):
        status = runs.status_of(process)
        require(status == 0, f"a start failed ({status}): {last_line(log)}")
    made = sum("'eval_loss'" in log.read_text() for log in logs)
    require(made == 1, f"it was made {made} times")
    return bench.take_up(root, attention, f"{attention}, {seconds:.2f} s later")
