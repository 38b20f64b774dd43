"""Data from a Hub: a small one, of one data set, served from this process."""

import os
import subprocess
import sys

import pytest
from datasets import Dataset

from albert_lsh.machine import revisions
from hub import Hub

LOAD = "from albert_lsh import load_data; print(*load_data('sst2')['train']['sentence'])\n"
REFUSED = """
def refused(call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        print(error)

"""


@pytest.fixture
def hub(tmp_path):
    """The environment of a client of a Hub that has two splits of nyu-mll/glue, and an empty cache."""
    texts = {"train": "a good film", "validation": "a bad one"}
    rows = {split: Dataset.from_dict({"sentence": [text], "label": [1], "idx": [0]}) for split, text in texts.items()}
    server = Hub(0, tmp_path, "sst2", rows)
    places = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "cache")}
    places["HF_HUB_OFFLINE"] = "0"
    yield {**os.environ, **places, "HF_HUB_DISABLE_XET": "1"}
    server.shutdown()


def load(environment, code=LOAD):
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_commit_of_model_and_data_is_asked_for_and_recorded(hub):
    """The small Hub has one; without a revision its newest is asked for."""
    run = {
        "task": "nyu-mll/glue/sst2",
        "text_columns": ["sentence"],
        "labels": ["bad", "good"],
        "data_revision": "0" * 40,
    }
    code = "from albert_lsh import Run, find_task, load_data; from albert_lsh.machine import revisions\n"
    code += f"print(revisions('nano', 'sst2'))\n{LOAD}print(revisions('nano', 'sst2'))\n"
    code += (
        f"run = Run.parse({run}); data = load_data(run.about); print(*data['train']['label'], run.about.repository, "
    )
    code += "revisions('nano', run.task, None, run.data_revision))"
    code += f"\n{REFUSED}refused(load_data, find_task('sst2', revision='1' * 40))"
    before, _, after, *_, loaded, refused = load(hub, code).splitlines()
    assert before == "{}"  # nothing was loaded yet, and the embedded model comes from no Hub
    assert after == str({"data": "0" * 40})
    assert loaded == f"1 nyu-mll/glue {{'data': '{'0' * 40}'}}"
    assert f"revision '{'1' * 40}' is neither on the Hub nor in the cache" in refused  # datasets took another
    assert revisions("/a/folder/of/this/machine", "한국어/own.csv") == {}
    assert revisions("owner/name", None, "2" * 40) == {}  # which never was here


def test_offline_the_cache_is_read_and_what_it_lacks_is_named_at_once(hub):
    assert load(hub) == "a good film"
    code = f"from albert_lsh import load_model\n{LOAD}{REFUSED}refused(load_data, 'mrpc')\n"
    code += "refused(load_model, 'albert/albert-base-v2')"
    nowhere = {"HF_ENDPOINT": "http://nowhere.invalid", "HF_HUB_OFFLINE": "1"}
    loaded, *errors = load(hub | nowhere, code).splitlines()
    assert loaded == "a good film"
    assert ["no network" in error for error in errors] == [True, True]
