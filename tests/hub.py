"""A small Hub on this machine, which has one data set."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from datasets import Dataset

COMMIT, ID = "0" * 40, "nyu-mll/glue"


class Hub(ThreadingHTTPServer):
    """Serves a data set of `ID` that has one configuration; folder: to write Parquet in."""

    def __init__(self, port: int, folder: Path, config: str, splits: dict[str, Dataset]):
        super().__init__(("127.0.0.1", port), Answer)
        files = {}
        for split, rows in splits.items():
            rows.to_parquet(path := folder / f"{split}.parquet")
            files[f"{config}/{split}-00000-of-00001.parquet"] = path.read_bytes()
        entries = "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in splits)
        files["README.md"] = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{entries}---\n".encode()
        about = [{"type": "file", "path": path, "oid": COMMIT, "size": len(body)} for path, body in files.items()]
        shown = {
            f"revision/{COMMIT}": {"id": ID, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]},
            f"tree/{COMMIT}": [{"type": "directory", "path": config, "oid": COMMIT, "size": 0}, about[-1]],
            f"tree/{COMMIT}/{config}": about[:-1],
        }
        self.bodies = {f"/api/datasets/{ID}/{path}": json.dumps(body).encode() for path, body in shown.items()}
        self.bodies |= {f"/datasets/{ID}/resolve/{COMMIT}/{path}": body for path, body in files.items()}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        body = self.server.bodies.get(self.path.split("?")[0].replace("/resolve/main/", f"/resolve/{COMMIT}/"))
        code, body = (404, b"{}") if body is None else (200, body)
        headers = {"Content-Length": len(body), "ETag": f'"{hashlib.sha256(body).hexdigest()}"'}
        headers |= {"X-Repo-Commit": COMMIT, **({"X-Error-Code": "EntryNotFound"} if code == 404 else {})}
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass
