"""A model is pushed to a Hub, and comes back from there; the Hub is a small one, served from this process."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch
import yaml

from albert_lsh import load_model, load_tokenizer
from albert_lsh.predict import main
from kept import kept_run

TOKEN, READER = "hf_writer", "hf_reader"
COMMIT = "0" * 40


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks when it uploads by LFS, and when it downloads; `state` is of the server."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body, state = self.rfile.read(int(self.headers.get("Content-Length") or 0)), self.server.state
        path = unquote(self.path.split("?")[0])
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if path.startswith("/store/"):  # of large files; it asks for no token
            oid = path.removeprefix("/store/")
            if sha256(body) != oid:
                return self.reply({"error": "another hash"}, 400)
            state["stored"][oid] = body
            return self.reply({})
        if path.startswith("/verify"):
            wanted = json.loads(body)
            right = len(state["stored"].get(wanted["oid"], b"")) == wanted["size"]
            return self.reply({}, 200 if right else 404)
        if path == "/api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            return self.reply({"errors": [], "warnings": []})
        if token not in (TOKEN, READER):
            return self.reply({"error": "Invalid username or password."}, 401)
        if path == "/api/whoami-v2":
            return self.reply({"type": "user", "name": "owner", "auth": {"accessToken": {"role": "write"}}})
        if token == READER:
            return self.reply({"error": "You don't have the rights to write here."}, 403)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            new = state["repositories"].setdefault(name, {}) == {}
            return self.reply({"url": f"{self.server.address}/{name}", "id": name}, 200 if new else 409)
        return self.upload(path, body, state)

    def upload(self, path, body, state):
        if found := re.fullmatch("/api/models/(.+)/preupload/main", path):
            files = json.loads(body)["files"]
            return self.reply({"files": [self.mode(file, state["repositories"][found[1]]) for file in files]})
        if re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            asked = json.loads(body)
            assert (asked["operation"], asked["hash_algo"]) == ("upload", "sha256")
            place = self.server.address
            objects = [
                {**one, "actions": {k: {"href": f"{place}/{v}{one['oid']}"} for k, v in ACTIONS.items()}}
                for one in asked["objects"]
            ]
            return self.reply({"transfer": "basic", "objects": objects})
        if found := re.fullmatch("/api/models/(.+)/commit/main", path):
            _, *operations = map(json.loads, body.splitlines())
            for one in operations:
                value, files = one["value"], state["repositories"][found[1]]
                is_large = one["key"] == "lfsFile"
                content = state["stored"][value["oid"]] if is_large else base64.b64decode(value["content"])
                files[value["path"]] = content
                state["large"] |= {value["path"]} if is_large else set()
            state["commits"] += 1
            place = f"{self.server.address}/{found[1]}/commit/{COMMIT}"
            return self.reply({"commitUrl": place, "commitOid": COMMIT})
        return self.reply({"error": f"this Hub does not know {path}"}, 404)

    @staticmethod
    def mode(file, files):
        """How a file is to be sent, and the hash of what the repository has under its name: git's, or LFS's."""
        is_large, data = file["path"].endswith(".safetensors"), files.get(file["path"])
        oid = None if data is None else sha256(data)
        if data is not None and not is_large:
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        kind = "lfs" if is_large else "regular"
        return {"path": file["path"], "uploadMode": kind, "shouldIgnore": False, "oid": oid}

    def do_GET(self):
        path = unquote(self.path.split("?")[0])
        if path == "/api/whoami-v2":
            return self.do_POST()
        files = self.server.state["repositories"]
        if found := re.fullmatch("/api/models/([^/]+/[^/]+)(/revision/.+)?", path):
            siblings = [{"rfilename": name} for name in files.get(found[1], {})]
            return self.reply({"id": found[1], "sha": COMMIT, "siblings": siblings}, 200 if siblings else 404)
        found = re.fullmatch("/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        data = files.get(found[1], {}).get(found[2]) if found else None
        if data is None:
            return self.reply({"error": "no such file"}, 404, {"X-Error-Code": "EntryNotFound"})
        return self.reply(data, headers={"ETag": f'"{sha256(data)}"', "X-Repo-Commit": COMMIT})

    do_PUT, do_HEAD = do_POST, do_GET

    def reply(self, body, code=200, headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for key, value in {"Content-Length": str(len(data)), **dict(headers)}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


ACTIONS = {"upload": "store/", "verify": "verify/"}


@pytest.fixture
def hub():
    """A Hub without a repository: its server, with `state` and `address`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"repositories": {}, "stored": {}, "large": set(), "commits": 0}
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def here(hub, tmp_path, monkeypatch):
    """This process as a client of it, with an empty cache and the token of somebody who may write."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return monkeypatch


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return kept_run(tmp_path_factory.mktemp("run"))


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


COMMAND = "import sys; from albert_lsh.predict import main; main(sys.argv[1:])"
ASK = """
import sys, torch, albert_lsh
model, tokenizer = albert_lsh.load_model("owner/pushed"), albert_lsh.load_tokenizer("owner/pushed")
with torch.no_grad():
    print(model(**tokenizer("It rained.", "There was rain.", return_tensors="pt")).logits.tolist())
"""


def test_what_is_pushed_arrives_and_is_loaded_in_another_process(hub, run, tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_TOKEN": TOKEN}
    command = [sys.executable, "-c", COMMAND, "push", str(run), "owner/pushed"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{hub.address}/owner/pushed\n"), done.stderr
    there = hub.state["repositories"]["owner/pushed"]
    assert there == files_of(run / "model")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= there.keys()
    assert hub.state["large"] == {"model.safetensors"}

    model, tokenizer = load_model(str(run / "model")), load_tokenizer(str(run / "model"))
    with torch.no_grad():
        logits = model(**tokenizer("It rained.", "There was rain.", return_tensors="pt")).logits.tolist()
    asked = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout.splitlines()[-1]) == logits


def test_the_folder_of_a_model_is_pushed_without_what_else_lies_there(hub, here, run, tmp_path, capsys):
    folder = Path(shutil.copytree(run / "model", tmp_path / "model"))
    (folder / "notes.pdf").write_text("mine")
    (folder / ".cache").mkdir()
    for _ in range(2):  # the second time all is there already
        main(["push", str(folder), "owner/pushed"])
        assert capsys.readouterr().out == f"{hub.address}/owner/pushed\n"
    assert hub.state["repositories"]["owner/pushed"] == files_of(run / "model")
    assert hub.state["commits"] == 1


def test_a_run_without_a_card_is_given_one(hub, here, run, tmp_path):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    written = (folder / "model" / "README.md").read_bytes()
    (folder / "model" / "README.md").unlink()
    main(["push", str(folder), "owner/pushed"])
    assert hub.state["repositories"]["owner/pushed"]["README.md"] == written


def test_a_card_that_somebody_changed_stays(hub, here, run, tmp_path):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    (folder / "model" / "README.md").write_text("---\nlicense: mit\n---\nmine")
    main(["push", str(folder), "owner/pushed"])
    assert hub.state["repositories"]["owner/pushed"]["README.md"] == b"---\nlicense: mit\n---\nmine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pushed", "'pushed' is no name on the Hub: it must be owner/name"),
        ("owner/two words", "'owner/two words' is no name on the Hub: .*"),
        ("a/b/c", "'a/b/c' is no name on the Hub: .*"),
    ],
)
def test_a_wrong_name_is_refused(hub, here, run, name, message):
    with pytest.raises(SystemExit, match=f"^error: {message}$"):
        main(["push", str(run), name])
    assert hub.state["repositories"] == {}


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "there is no token for the Hub: `hf auth login` keeps one, or set HF_TOKEN"),
        ("hf_unknown", "http://[^ ]* cannot be reached, or does not take the token: .*"),
        (READER, "'owner/pushed' could not be uploaded to http://[^ ]*: .*"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_named(hub, here, run, token, message):
    here.setenv("HF_TOKEN", token) if token else here.delenv("HF_TOKEN")
    with pytest.raises(SystemExit, match=f"^error: {message}$") as error:
        main(["push", str(run), "owner/pushed"])
    assert token is None or token not in str(error.value)
    assert hub.state["repositories"] == {}


def without(*names):
    def remove(folder):
        for name in names:
            (folder / name).unlink()

    return remove


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "[^ ]*/run has no model .*: no folder of a run or model"),
        (lambda folder: shutil.rmtree(folder / "model"), ".* its run kept no model: make it with save_model=True"),
        (without("model/model.safetensors"), ".* its run kept no model: make it with save_model=True"),
        (without("model/tokenizer.json", "model/tokenizer_config.json"), "model='.*': no tokenizer .*"),
    ],
    ids=["no folder", "no model", "no weights", "no tokenizer"],
)
def test_a_folder_without_a_model_is_refused(hub, here, run, tmp_path, damage, message):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    damage(folder)
    with pytest.raises(SystemExit, match=f"^error: {message}$"):
        main(["push", str(folder), "owner/pushed"])
    assert hub.state["repositories"] == {}
