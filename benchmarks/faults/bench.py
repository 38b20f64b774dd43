"""What the faults of a campaign share: the undisturbed runs, a full disk, a Hub, and a run's next start."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import DatasetDict

from albert_lsh import mini
from faults import runs
from faults.hub import Hub, glue_files
from faults.runs import ATTENTIONS, Broken, folder_of, require

ROWS = 200  # of the data set that the Hub has
FULL = r"[Nn]o space left|[Nn]ot enough disk space"


@dataclass
class Seen:
    """One fault: where it struck, what a user was told, how the run ended."""

    place: str
    message: str = ""
    outcome: str = ""
    difference: float = 0.0


@dataclass
class Bench:
    """A folder for a campaign. `disk` is a small file system that can be filled; None where none can be mounted."""

    folder: Path
    disk: Path | None
    hub: Hub
    data: DatasetDict
    operations: dict[str, list[str]]  # by attention: what the run does to files, in order
    struck: str = ""  # the last file that was damaged

    @classmethod
    def prepare(cls, folder: Path, disk: Path | None) -> "Bench":
        """Make the undisturbed runs. The Hub's address and cache must be in the environment before (`environment`)."""
        (folder / "hub").mkdir(parents=True, exist_ok=True)
        splits = {split: of.select(range(ROWS)) for split, of in mini.build("mini-sst2").items()}
        hub = Hub(glue_files(folder / "hub", "sst2", splits), int(os.environ["HF_ENDPOINT"].rpartition(":")[2]))
        bench = cls(folder, disk, hub, runs.encoded(), {})
        runs.fresh(bench.whole)
        runs.fresh(bench.whole_of("sst2"))
        for attention in ATTENTIONS:
            bench.operations[attention] = runs.operations(bench.whole, attention, bench.log)
        runs.finish(lambda: runs.make(bench.whole_of("sst2"), "softmax", "sst2"), bench.log)
        shutil.copytree(bench.cache, runs.fresh(folder / "cache-whole"), dirs_exist_ok=True, symlinks=True)
        return bench

    @property
    def whole(self) -> Path:
        return self.whole_of("mini-mrpc")

    def whole_of(self, task: str) -> Path:
        """A root with the undisturbed runs on a task."""
        return self.folder / f"whole-{task}"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def cache(self) -> Path:
        return Path(os.environ["HF_HOME"])

    def begin(self, attention: str, place: Path | None = None) -> Path:
        """A root in which another run is finished, and this one is not."""
        root = runs.fresh((place or self.folder) / "run")
        (other,) = {*ATTENTIONS} - {attention}
        shutil.copytree(folder_of(self.whole, other), folder_of(root, other))
        return root

    def killed(self, attention: str) -> Path:
        """A root in which this run was killed with a complete checkpoint at step 4."""
        kept = self.folder / f"killed-{attention}"
        if not kept.exists():
            root = self.begin(attention)
            work = self.disturbed(root, attention, "mkdir", "checkpoint-6", lambda: os.kill(os.getpid(), 9))
            runs.status_of(runs.start(work, self.log))
            require(runs.sealed(folder_of(root, attention)) == 4, "no checkpoint at step 4")
            root.rename(kept)
        root = runs.fresh(self.folder / "run")
        return Path(shutil.copytree(kept, root, dirs_exist_ok=True))

    def made(self, attention: str) -> Path:
        """A root in which this run is finished."""
        root = self.begin(attention)
        shutil.copytree(folder_of(self.whole, attention), folder_of(root, attention))
        return root

    def disturbed(
        self, root: Path, attention: str, kind: str, name: str, act: Callable[[], None]
    ) -> Callable[[], None]:
        """The run, in which `act` happens when an operation of that kind and name comes."""

        def hook(operation: str) -> None:
            if operation.startswith(kind) and name in operation:
                act()

        def work() -> None:
            runs.watch(folder_of(root, attention), hook)
            runs.make(root, attention, data=self.data)

        return work

    def at(self, root: Path, attention: str, number: int, act: Callable[[], None]) -> runs.Work:
        """The run, in which `act` happens before what it does to files for the `number`-th time."""
        counted = []

        def hook(operation: str) -> None:
            counted.append(operation)
            if len(counted) == number + 1:
                act()

        def work() -> None:
            runs.watch(folder_of(root, attention), hook)
            runs.make(root, attention, data=self.data)

        return work

    def take_up(self, root: Path, attention: str, place: str, message: str = "", task: str = "mini-mrpc") -> Seen:
        """Start the run again, which must go on where it was and end as the undisturbed one."""
        run, whole = folder_of(root, attention, task), folder_of(self.whole_of(task), attention, task)
        self.check_neighbour(root, attention)
        before = runs.contents(run) if (run / "result.json").exists() else None
        begun = runs.sealed(run)
        data = self.data if task == "mini-mrpc" else None
        said = runs.finish(lambda: runs.make(root, attention, task, data), self.log)
        if before:
            after = runs.contents(run)
            require(all(before[name] == after[name] for name in after), "a finished run was changed")
            outcome = "was finished"
        else:
            require(runs.went_on(said) == begun, f"went on after step {runs.went_on(said)}, not {begun}")
            outcome = f"went on after step {begun}" if begun else "began anew"
        self.check_neighbour(root, attention)
        return Seen(place, message, outcome, runs.difference(whole, run))

    def check_neighbour(self, root: Path, attention: str) -> None:
        (other,) = {*ATTENTIONS} - {attention}
        if folder_of(root, other).exists():
            same = runs.contents(folder_of(root, other)) == runs.contents(folder_of(self.whole, other))
            require(same, "another finished run was changed")

    def fill(self, left: int) -> None:
        """Fill the disk but for so many bytes."""
        if self.disk is None:
            raise Broken("no disk to fill")
        about = os.statvfs(self.disk)
        if (size := about.f_bavail * about.f_frsize - left) > 0:
            with (self.disk / "ballast").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        """Give the disk its room back."""
        if self.disk:
            (self.disk / "ballast").unlink(missing_ok=True)
