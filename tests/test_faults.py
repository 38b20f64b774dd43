"""The campaign of faults in its short form (`faults.py` is all of it)."""

import csv
import subprocess
import sys
from pathlib import Path

KINDS = ["SIGKILL in saving", "bit flipped"]


def test_after_a_fault_a_run_ends_as_if_undisturbed():
    """One fault of each kind that is cheap."""
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), "1", *KINDS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in csv.reader(done.stdout.splitlines()) if row[0] in KINDS]
    assert {row[0] for row in rows} == {*KINDS}
