"""What results/ holds: records that today's library reads, no folder of a machine, one name for one method."""

import csv
import json
import re
import subprocess
from functools import reduce
from pathlib import Path

from albert_lsh import attention
from albert_lsh.record import read_result
from albert_lsh.run import Run

ROOT = Path(__file__).resolve().parents[1]
KEPT = subprocess.run(
    ["git", "-C", str(ROOT), "ls-files", "-z", "results"], capture_output=True, text=True, check=True
).stdout.split("\0")[:-1]
RECORDS = [path for path in KEPT if path.endswith("/result.json")]
TABLES = [path for path in KEPT if path.endswith(".csv")]
FOLDER = re.compile(r"/(?:home|work|root|tmp|content|usr|opt|mnt|srv|private|Users)/")
NO_PATH = re.compile(r'"image/\w+": (?:"[^"]*"|\[[^\]]*\])|https?://[^\s"]+')  # pictures, encoded, and addresses
# Measured beside our attentions.
PEERS = {"reformer-pytorch", "product of 2048 x 2048", "fused kernel", "truncation"}
# What has left the code. Its rows stay as they were, with the commit that made them.
LEFT = {"far_field", "window", "block_size"}  # settings of `lsh`
DEAD = {"plain lsh": "four rounds, duplicates='each'; `plain-lsh` counts a key once"}


def rows():
    for path in TABLES:
        with (ROOT / path).open(newline="") as file:
            yield from ((path, row) for row in csv.DictReader(file))


def settings(row):
    """A row's settings of its attention; tables have them as JSON or as Python shows a dictionary."""
    text = row.get("settings") or row.get("attention_settings") or "{}"
    names = {"'": '"', "None": "null", "True": "true", "False": "false"}
    return json.loads(re.sub("|".join(names), lambda name: names[name[0]], text))


def test_records_are_read_have_one_schema_and_attentions_that_can_be_had_again():
    assert RECORDS
    for path in RECORDS:
        record = json.loads((ROOT / path).read_text())
        parameters, defaults = record["parameters"], Run.defaults()
        assert (record["status"], record["schema"]) == ("complete", 3), path
        for name in record.get("inferred", ()):  # of records that were converted
            reduce(dict.__getitem__, name.split("."), record)
        assert parameters["output_dir"] == str(Path(path).parent)
        kept = {name: value for name, value in parameters["attention_settings"].items() if name not in LEFT}
        today = attention.check(parameters["attention"], parameters["attention_settings"])
        assert kept.items() <= today.items(), path
        if path.startswith("results/runs/"):
            lacking = defaults.keys() - {*parameters, "results_root"}
            assert all(defaults[name] is None for name in lacking), path  # added later, to records that had none
            assert read_result(ROOT / path)["metrics"] == record["metrics"], path
            arm = Path(path).parts[-3]  # one named after an attention has it
            assert parameters["attention"] == arm or arm not in attention.names(), path


def test_no_file_names_a_folder_of_a_machine():
    assert KEPT
    assert not [path for path in KEPT if FOLDER.search(NO_PATH.sub("", (ROOT / path).read_text(errors="ignore")))]


def test_attentions_in_tables_are_known_or_said_to_be_dead_and_their_settings_can_be_asked_for_again():
    names, columns = set(), ("attention", "case", "what")
    for path, row in rows():
        names |= {(path, row[column].split(",")[0]) for column in columns if row.get(column)}
        name, chosen = row.get("attention"), settings(row)
        if name in attention.names() and not any(chosen.get(setting) for setting in LEFT):
            attention.check(name, chosen)
    assert names
    assert not {(path, name) for path, name in names if name not in {*attention.names(), *PEERS, *DEAD}}
