"""What results/ holds: records that today's library reads, no folder of a machine, one name for one method."""

import csv
import json
import re
import subprocess
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
NO_PATH = re.compile(
    r'"image/\w+": (?:"[^"]*"|\[[^\]]*\])|https?://[^\s"]+'
)  # pictures, which are encoded, and addresses
# Measured beside our attentions.
PEERS = {"reformer-pytorch", "product of 2048 x 2048", "fused kernel", "truncation"}
# What has left the code. Its rows stay as they were, with the commit that made them.
LEFT = {"far_field", "window", "block_size"}  # settings of `lsh`
DEAD = {"plain lsh": "four rounds, duplicates='each'; `plain-lsh` counts a key once"}


def rows():
    for path in TABLES:
        with (ROOT / path).open(newline="") as file:
            for row in csv.DictReader(file):
                yield path, row


def settings(row):
    """A row's settings of its attention; tables have them as JSON or as Python shows a dictionary."""
    text = row.get("settings") or row.get("attention_settings") or "{}"
    names = {"'": '"', "None": "null", "True": "true", "False": "false"}
    return json.loads(re.sub("|".join(names), lambda found: names[found[0]], text))


def value_at(record, name):
    for part in name.split("."):
        record = record[part]
    return record


def records():
    for path in RECORDS:
        record = json.loads((ROOT / path).read_text())
        yield path, record, record["parameters"]


def test_records_have_one_schema_and_say_what_was_inferred():
    assert RECORDS
    for path, record, asked in records():
        assert (record["status"], record["schema"]) == ("complete", 3), path
        for name in record.get("inferred", ()):  # of records that were converted
            value_at(record, name)
        assert asked["output_dir"] == str(Path(path).parent)
        if path.startswith("results/runs/"):
            lacking = Run.defaults().keys() - {*asked, "results_root"}
            assert all(Run.defaults()[name] is None for name in lacking), path  # added later, to records that had none


def test_attentions_of_records_can_be_had_again():
    for path, _, asked in records():
        there = asked["attention_settings"]
        today = attention.check(asked["attention"], there)
        assert {name: value for name, value in there.items() if name not in LEFT}.items() <= today.items(), path


def test_records_are_read():
    for path, record, asked in records():
        if path.startswith("results/runs/"):
            found = read_result(ROOT / path)
            assert found["parameters"].items() >= asked.items(), path
            assert found["metrics"] == record["metrics"], path


def test_no_file_names_a_folder_of_a_machine():
    found = [path for path in KEPT if FOLDER.search(NO_PATH.sub("", (ROOT / path).read_text(errors="ignore")))]
    assert KEPT
    assert not found


def test_attentions_in_tables_are_known_or_said_to_be_dead():
    known = {*attention.names(), "plain-lsh", *PEERS, *DEAD}
    columns = ("attention", "case", "what")
    named = {(path, row[column].split(",")[0]) for path, row in rows() for column in columns if row.get(column)}
    assert named
    assert not {(path, name) for path, name in named if name not in known}


def test_settings_in_tables_can_be_asked_for_again():
    seen = {(row.get("attention"), json.dumps(settings(row))) for _, row in rows()}
    for name, text in seen:
        asked = json.loads(text)
        if name in attention.names() and not any(asked.get(setting) for setting in LEFT):
            attention.check(name, asked)


def test_arms_named_after_an_attention_have_it():
    for path, _, asked in records():
        if path.startswith("results/runs/") and (arm := Path(path).parts[-3]) in {*attention.names(), "plain-lsh"}:
            assert asked["attention"] == arm, path
