"""A hub in a thread: serves folders as repositories over HTTP, as far as the client libraries need."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

SHA = "5" * 40
INFO = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/([^/]+))?$")
CHECK = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/auth-check$")
TREE = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)/(tree|paths-info)/([^/]+)(?:/(.*))?$")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


class Hub(ThreadingHTTPServer):
    """`folders`: repository id -> its files. Ids in `gated` get the hub's answer for users without access."""

    def __init__(self, folders: dict[str, Path], gated: set[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folders, self.gated = folders, gated

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if match := CHECK.match(path):
            gated = match[2] in self.server.gated
            return self.refuse(403, "GatedRepo") if gated else self.answer({})
        match = TREE.match(path) or INFO.match(path) or FILE.match(path)
        name = match[2] if match else ""
        if name not in self.server.folders:
            return self.refuse(401 if match else 404, "RepoNotFound" if match else "EntryNotFound")
        folder = self.server.folders[name]
        if match.re is FILE:
            return self.file(folder / match[4], match[3])
        if match.re is TREE:
            return self.answer(self.entries(folder, parse_qs(body.decode()).get("paths"), match[5] or ""))
        if match[3] not in (None, "main", SHA):
            return self.refuse(404, "RevisionNotFound")
        gate = "manual" if name in self.server.gated else False
        files = [{"rfilename": entry["path"]} for entry in self.entries(folder, None, "") if entry["type"] == "file"]
        return self.answer({"id": name, "sha": SHA, "private": False, "gated": gate, "tags": [], "siblings": files})

    do_HEAD = do_POST = do_GET  # noqa: N815

    def entries(self, folder: Path, paths: list[str] | None, under: str) -> list[dict[str, Any]]:
        found = []
        for file in sorted((folder / under).rglob("*")):
            name = str(file.relative_to(folder))
            if paths is None or name in paths:
                kind = "file" if file.is_file() else "directory"
                found.append({"type": kind, "path": name, "size": file.stat().st_size, "oid": digest(file)})
        return found

    def file(self, path: Path, revision: str) -> None:
        if not path.is_file() or revision not in ("main", SHA):
            return self.refuse(404, "EntryNotFound")
        return self.send(path.read_bytes(), {"ETag": f'"{digest(path)}"', "X-Repo-Commit": SHA})

    def answer(self, value: Any) -> None:
        self.send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str) -> None:
        self.send(b"", {"X-Error-Code": code, "X-Error-Message": code}, status)

    def send(self, body: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes() if path.is_file() else b"").hexdigest()


@contextlib.contextmanager
def serve(folders: dict[str, Path], gated: set[str]) -> Iterator[Hub]:
    with Hub(folders, gated) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
