"""Asks a hub of one model, served on a free local port, for several; prints one JSON line a question.

A program of its own, because the hub's client reads its environment when it is imported, at the first question.
"""

import hashlib
import http.server
import json
import os
import sys
import threading

from pipelines.config import ModelConfig
from pipelines.errors import EngineError
from pipelines.models.source import resolve_model

COMMIT = "a" * 40
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"x" * 3_000_000,
    "tokenizer.json": b"{}",
    "README.md": b"read me",
    "modeling.py": b"1",
    "original/consolidated.safetensors": b"other",
}
TOKEN = "Bearer hf_token"  # noqa: S105  of this hub alone


class Hub(http.server.BaseHTTPRequestHandler):
    """Knows org/model to those who have the token, and says of gated/model that it is gated."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/gated/"):
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif "org/model" not in path or self.headers.get("Authorization") != TOKEN:
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path == "/api/models/org/model/revision/main":
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(200, json.dumps({"id": "org/model", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/api/models/org/model/revision/"):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("/api/models/org/model/tree/"):
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": digest(data)} for name, data in FILES.items()
            ]
            self.answer(200, json.dumps(files).encode())
        else:
            data = FILES[path.split("/", 5)[5]]
            self.answer(200, data, {"ETag": f'"{digest(data)}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET  # noqa: N815  the base class calls it so

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


def digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def ask(path: str, revision: str | None) -> dict[str, object]:
    shares: list[float] = []
    try:
        folder = resolve_model(ModelConfig(path, revision=revision), lambda progress: shares.append(progress.done))
    except EngineError as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return {
        "files": sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()),
        "shares": shares,
    }


def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_TOKEN": "hf_token"}
    for path, revision in (("org/model", None), ("org/model", "v9"), ("gated/model", None), ("org/none", None)):
        sys.stdout.write(json.dumps(ask(path, revision)) + "\n")
    server.shutdown()


if __name__ == "__main__":
    main()
