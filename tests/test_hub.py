"""Data from a Hub: a small one, of one data set, served from this process."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
from datasets import Dataset

LOAD = "from albert_lsh.tasks.table import load_data; print(*load_data('sst2')['train']['sentence'])"


@pytest.fixture
def hub(tmp_path):
    """The environment of a client of a Hub that has two splits of nyu-mll/glue, and an empty cache."""
    files = {}
    for split, text in (("train", "a good film"), ("validation", "a bad one")):
        path = tmp_path / f"{split}.parquet"
        Dataset.from_dict({"sentence": [text], "label": [1], "idx": [0]}).to_parquet(path)
        files[f"sst2/{split}-00000-of-00001.parquet"] = path.read_bytes()
    entries = [f"  - split: {split}\n    path: sst2/{split}-*\n" for split in ("train", "validation")]
    files["README.md"] = ("---\nconfigs:\n- config_name: sst2\n  data_files:\n" + "".join(entries) + "---\n").encode()

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            posted = unquote(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
            name = re.sub(r"^/datasets/nyu-mll/glue/resolve/\w+/", "", self.path)
            if name in files:
                self.reply(files[name])
            elif "/tree/" in self.path or "/paths-info/" in self.path:
                below = self.path.split("?")[0].partition("/tree/")[2].partition("/")[2]
                names = [n for n in files if n.startswith(below) and ("/tree/" in self.path or n in posted)]
                folder = [] if below else [{"type": "directory", "path": "sst2", "oid": "0" * 40, "size": 0}]
                self.reply(json.dumps([*folder, *map(entry, names)]).encode())
            elif self.path.split("?")[0].startswith("/api/datasets/nyu-mll/glue"):
                siblings = [{"rfilename": n} for n in files]
                self.reply(json.dumps({"id": "nyu-mll/glue", "sha": "0" * 40, "siblings": siblings}).encode())
            else:
                self.reply(b"{}", 404, {"X-Error-Code": "EntryNotFound"})

        do_HEAD = do_POST = do_GET

        def reply(self, body, code=200, headers=()):
            self.send_response(code)
            tag = hashlib.sha256(body).hexdigest()
            own = {"Content-Length": len(body), "ETag": f'"{tag}"', "X-Repo-Commit": "0" * 40}
            for key, value in {**own, **dict(headers)}.items():
                self.send_header(key, str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    def entry(name):
        return {"type": "file", "path": name, "size": len(files[name]), "oid": hashlib.sha1(files[name]).hexdigest()}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    yield {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    server.shutdown()


def load(environment, code=LOAD):
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_damaged_file_in_the_cache_is_fetched_again(hub, tmp_path):
    assert load(hub) == "a good film"
    damaged = [path for path in (tmp_path / "cache" / "hub").rglob("blobs/*") if path.read_bytes()[:4] == b"PAR1"]
    assert len(damaged) == 2
    for path in damaged:
        path.write_text("garbage")
    subprocess.run(["rm", "-r", tmp_path / "cache" / "datasets"], check=True)  # what was made of the whole files
    assert load(hub) == "a good film"


def test_a_record_names_the_commit_that_the_data_came_from(hub):
    code = "from albert_lsh.training.record import revisions; print(revisions('nano', 'sst2'))"
    assert load(hub, code) == "{}"  # nothing was loaded yet, and the embedded model comes from no Hub
    load(hub)
    assert load(hub, code) == str({"data": "0" * 40})
