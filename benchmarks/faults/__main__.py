"""Draw the faults, one after the other, and keep a row for each; what is there is not made again."""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
USUAL = ROOT / "results" / "reliability" / "faults.csv"
SEED = 0
COLUMNS = ["kind", "number", "place", "message", "outcome", "difference"]
DISK = 32  # MB


@contextmanager
def small_disk(place: Path) -> Iterator[Path | None]:
    """A file system in memory, of DISK megabytes; None where none may be mounted (root may, and `unshare -rm`)."""
    place.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(place)]
    if not place.is_mount() and subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def environment(folder: Path) -> dict[str, str]:
    """Where the Hub and its cache are; to be set before Hugging Face's libraries are imported."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1"}
    return own | {"HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_ETAG_TIMEOUT": "2", "HF_HUB_DISABLE_TELEMETRY": "1"}


def plan() -> dict[str, tuple[Callable[..., Any], int, dict[str, Any]]]:
    """By kind: the function that makes such a fault, how many there are, and its arguments."""
    from faults import kinds, workflow

    return {
        "SIGKILL in training": (kinds.killed_in_training, 24, {}),
        "SIGKILL in saving": (kinds.killed_in_saving, 30, {}),
        "disk full: files of a run": (kinds.disk_full, 30, {}),
        "disk full: tables and figures": (kinds.disk_full_for_tables, 10, {}),
        "disk full: caches": (kinds.disk_full_for_caches, 10, {}),
        "truncated": (kinds.damaged, 24, {"how": "truncated"}),
        "bit flipped": (kinds.damaged, 32, {"how": "bit flipped"}),
        "Hub in trouble": (kinds.hub_in_trouble, 20, {}),
        "out of memory": (kinds.out_of_memory, 12, {}),
        "run started twice": (kinds.started_twice, 10, {}),
        "SIGKILL of a kernel": (workflow.kernel_killed, 10, {}),
        "SIGKILL of the workflow": (workflow.workflow_killed, 10, {}),
        "disk full: notebooks": (workflow.disk_full, 10, {}),
        "study started twice": (workflow.started_twice, 10, {}),
    }


def one(bench: Any, make: Callable[..., Any], rng: random.Random, folder: Path, arguments: dict[str, Any]) -> dict:
    """A fault's row, without the machine's folders."""
    from faults.runs import Broken

    bench.struck = ""
    try:
        seen = vars(make(bench, rng, **arguments))
    except Broken as error:
        seen = {"place": bench.struck, "message": "", "outcome": f"BROKEN: {error}", "difference": float("nan")}
    except Exception as error:
        seen = {"place": bench.struck, "message": "", "outcome": f"BROKEN: {error!r}", "difference": float("nan")}
    finally:
        bench.empty()
    short = {name: str(seen[name]).replace(f"{folder}/", "")[:300] for name in ("place", "message", "outcome")}
    return {**short, "difference": seen["difference"]}


def main(folder: Path, table: Path, chosen: list[str], rounds: int) -> None:
    """chosen: kinds; none takes all. rounds: at most so many faults of each."""
    disk_at = folder / "disk"
    with small_disk(disk_at) as disk:
        os.environ.update(environment(disk_at), OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
        from faults.bench import Bench  # what it imports reads the environment
        from faults.record import write_record

        bench = Bench.prepare(folder, disk)
        table.parent.mkdir(parents=True, exist_ok=True)
        rows = pd.read_csv(table).to_dict("records") if table.exists() else []
        there, kinds = {(row["kind"], row["number"]) for row in rows}, plan()
        counts = {kind: count for kind, (_, count, _) in kinds.items()}
        write_record(table, SEED, counts)
        for kind, number in order(counts):
            if (kind, number) in there or (chosen and kind not in chosen) or number >= rounds:
                continue
            if disk is None and kind.startswith("disk full"):
                continue
            began, (make, _, arguments) = time.monotonic(), kinds[kind]
            rng = random.Random(f"{SEED} {kind} {number}")
            row = {"kind": kind, "number": number, **one(bench, make, rng, folder, arguments)}
            pd.DataFrame([row])[COLUMNS].to_csv(table, mode="a", header=not table.exists(), index=False)
            rows.append(row)
            print(f"{time.monotonic() - began:5.1f} s  {row}", flush=True)
    broken = sum(row["outcome"].startswith("BROKEN") for row in rows)
    print(f"{len(rows)} faults, {broken} of them broke what must hold")
    sys.exit(int(broken > 0))


def order(counts: dict[str, int]) -> list[tuple[str, int]]:
    """All faults, kinds in turn, so that a campaign that is cut short has some of each."""
    return [(kind, n) for n in range(max(counts.values())) for kind, count in counts.items() if n < count]


if __name__ == "__main__":
    asked = argparse.ArgumentParser(prog="faults", description=__doc__)
    asked.add_argument("kinds", nargs="*", help="those of the table; none: all")
    asked.add_argument("--table", type=Path, default=USUAL, help="taken up where it is there")
    asked.add_argument("--rounds", type=int, default=1000, help="at most so many faults of each kind")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), given.table, given.kinds, given.rounds)
