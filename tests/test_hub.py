"""Data from a Hub: a small one, of one data set, served from this process."""

import os
import shutil
import subprocess
import sys

import pytest
from datasets import Dataset

from albert_lsh import load_model
from albert_lsh.hub import has_address
from albert_lsh.record import revisions
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
    yield {**os.environ, **places, "HF_HUB_DISABLE_XET": "1"}
    server.shutdown()


def load(environment, code=LOAD):
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_damaged_file_in_the_cache_is_fetched_again(hub, tmp_path):
    assert load(hub) == "a good film"
    damaged = [*(tmp_path / "cache" / "hub").rglob("blobs/*")]
    assert len(damaged) == 3  # a file for each split, and the card, which says where they are
    for path in damaged:
        path.write_text("garbage")
    made = tmp_path / "cache" / "datasets"  # of the whole files
    shutil.rmtree(made)
    assert load(hub) == "a good film"
    (card,) = (path for path in damaged if b"configs" in path.read_bytes())
    card.write_text("---\nconfigs: [\n---\n")
    shutil.rmtree(made)
    assert load(hub) == "a good film"


def test_a_record_names_the_commit_that_the_data_came_from(hub):
    asked = "print(revisions('nano', 'sst2'))\n"
    before, _, after = load(hub, f"from albert_lsh.record import revisions\n{asked}{LOAD}{asked}").splitlines()
    assert before == "{}"  # nothing was loaded yet, and the embedded model comes from no Hub
    assert after == str({"data": "0" * 40})


def test_a_commit_of_model_and_data_is_asked_for_and_recorded(hub):
    """The small Hub has one; without a revision its newest is asked for."""
    run = {"task": "nyu-mll/glue/sst2", "labels": ["bad", "good"], "data_revision": "0" * 40}
    code = "from albert_lsh import Run, find_task, load_data; from albert_lsh.record import revisions; "
    code += f"run = Run.parse({run}); print(*load_data(run.about)['train']['label'], run.about.repository, "
    code += "revisions('nano', run.task, None, run.data_revision))"
    code += f"\n{REFUSED}refused(load_data, find_task('sst2', revision='1' * 40))"
    loaded, refused = load(hub, code).splitlines()
    assert loaded == f"1 nyu-mll/glue {{'data': '{'0' * 40}'}}"
    assert f"revision '{'1' * 40}' is neither on the Hub nor in the cache" in refused  # datasets took another
    assert revisions("/a/folder/of/this/machine", "한국어/own.csv") == {}
    assert revisions("owner/name", None, "2" * 40) == {}  # which never was here


def test_behind_a_proxy_the_hub_is_asked(monkeypatch):
    """Which resolves names itself."""
    for proxies in ({}, {"https": "http://127.0.0.1:1"}):
        monkeypatch.setattr("albert_lsh.hub.getproxies", lambda proxies=proxies: proxies)
        assert has_address("http://nowhere.invalid") == bool(proxies)


def test_a_folder_is_read_without_looking_a_name_up(monkeypatch):
    """Without a network that takes five seconds on some machines."""
    names = []
    monkeypatch.setattr("albert_lsh.hub.has_address", lambda endpoint: names.append(endpoint))
    load_model("nano")
    assert not names
    with pytest.raises(ValueError, match="nobody/nothing"):
        load_model("nobody/nothing")
    assert names


def test_without_a_network_the_cache_is_read_and_errors_come_without_retries(hub):
    """A name that cannot be resolved is what there is without one."""
    assert load(hub) == "a good film"
    nowhere = {name: value for name, value in hub.items() if not name.lower().endswith("_proxy")}
    nowhere |= {"HF_ENDPOINT": "http://nowhere.invalid"}
    code = f"from albert_lsh import load_model\n{LOAD}{REFUSED}refused(load_data, 'mrpc')\n"
    code += "refused(load_model, 'albert/albert-base-v2')"
    done = subprocess.run([sys.executable, "-c", code], env=nowhere, capture_output=True, text=True)
    loaded, *errors = done.stdout.splitlines()
    assert loaded == "a good film"
    assert ["no network" in error for error in errors] == [True, True]
    assert "Retrying" not in done.stderr
