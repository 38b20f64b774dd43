"""A small Hub on this machine: one data set in the Hub's own protocol, and what goes wrong with servers."""

import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from datasets import Dataset

TROUBLES = ("stopped", "slow", "silent", "answers 500", "answers garbage", "cuts connections")
SLOW, SILENT = 0.3, 5.0  # seconds before each answer; the second is more than a client waits in the campaign


def glue_files(folder: Path, config: str, splits: dict[str, Dataset]) -> dict[str, bytes]:
    """The files of a repository nyu-mll/glue that has one configuration. folder: to write Parquet in."""
    files = {}
    for split, rows in splits.items():
        rows.to_parquet(path := folder / f"{split}.parquet")
        files[f"{config}/{split}-00000-of-00001.parquet"] = path.read_bytes()
    entries = [f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits]
    card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{''.join(entries)}---\n"
    return files | {"README.md": card.encode()}


class Hub(ThreadingHTTPServer):
    """Serves `files` of nyu-mll/glue; `trouble` begins after so many requests."""

    def __init__(self, files: dict[str, bytes], port: int = 0):
        super().__init__(("127.0.0.1", port), Answer)
        self.files, self.trouble, self.after, self.asked = files, "", 0, 0
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begin(self, trouble: str, after: int = 0) -> None:
        self.trouble, self.after, self.asked = trouble, after, 0

    def handle_error(self, request, client_address):
        """A client that went away is none of our errors."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self):
        hub, files = self.server, self.server.files
        hub.asked += 1
        self.trouble = hub.trouble if hub.asked > hub.after else ""
        if self.trouble == "stopped":
            hub.socket.close()  # nobody is answered any more
            self.close_connection = True
            return
        time.sleep({"slow": SLOW, "silent": SILENT}.get(self.trouble, 0))
        posted = unquote(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        name = re.sub(r"^/datasets/nyu-mll/glue/resolve/\w+/", "", self.path)
        if name in files:
            self.reply(files[name])
        elif "/tree/" in self.path or "/paths-info/" in self.path:
            below = self.path.split("?")[0].partition("/tree/")[2].partition("/")[2]
            names = [n for n in files if n.startswith(below) and ("/tree/" in self.path or n in posted)]
            folders = [] if below else sorted({n.split("/")[0] for n in files if "/" in n})
            entries = [{"type": "directory", "path": n, "oid": "0" * 40, "size": 0} for n in folders]
            self.reply(json.dumps([*entries, *map(self.entry, names)]).encode())
        elif self.path.split("?")[0].startswith("/api/datasets/nyu-mll/glue"):
            siblings = [{"rfilename": n} for n in files]
            self.reply(json.dumps({"id": "nyu-mll/glue", "sha": "0" * 40, "siblings": siblings}).encode())
        else:
            self.reply(b"{}", 404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_POST = do_GET

    def entry(self, name: str) -> dict:
        body = self.server.files[name]
        return {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}

    def reply(self, body: bytes, code: int = 200, headers: dict | None = None):
        tag, length = hashlib.sha256(body).hexdigest(), len(body)
        if self.trouble == "answers 500":
            body, code, length = b"", 500, 0
        elif self.trouble == "answers garbage":
            body = (b"<html>Please log in to this network.</html>" * (length // 40 + 1))[:length]
        elif self.trouble == "cuts connections":
            body, self.close_connection = body[: length // 2], True
        self.send_response(code)
        own = {"Content-Length": length, "ETag": f'"{tag}"', "X-Repo-Commit": "0" * 40}
        for key, value in {**own, **(headers or {})}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass
