"""The tests' hub with the requests of an upload: a repository is created, files are sent, large ones apart."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.inputs.hubserver import SHA, Handler, Hub

TOKEN, READ_ONLY = "hf_writes", "hf_reads"
COMMIT = re.compile(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/([^/?]+)")
BATCH = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch$")


class UploadHub(Hub):
    """New repositories are folders in `place`. `branches`: repository -> branch -> files."""

    def __init__(self, place: Path) -> None:
        super().__init__({}, set())
        self.RequestHandlerClass = UploadHandler
        self.place = place
        self.created: dict[str, dict[str, Any]] = {}
        self.branches: dict[str, dict[str, dict[str, bytes]]] = {}
        self.objects: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.deleted: list[str] = []


class UploadHandler(Handler):
    server: UploadHub

    def do_GET(self) -> None:  # noqa: N802
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.path == "/api/whoami-v2":
            known = token in (TOKEN, READ_ONLY)
            return (
                self.answer({"name": "me", "orgs": []})
                if known
                else self.refuse(401, "Invalid username or password.")
            )
        if self.command in ("POST", "PUT"):
            return self.write(token)
        return super().do_GET()

    do_POST = do_PUT = do_GET  # noqa: N815

    def write(self, token: str) -> None:
        body = self.content()
        if self.path.startswith("/objects/"):
            self.server.objects[self.path.rpartition("/")[2]] = body
            return self.answer({})
        if token != TOKEN:
            return self.refuse(403, "You have read access but not the required permissions")
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if self.path == "/api/repos/create":
            return self.create(json.loads(body))
        if BATCH.match(self.path):
            return self.answer(
                {"transfer": "basic", "objects": [self.place_of(one) for one in json.loads(body)["objects"]]}
            )
        match = COMMIT.match(self.path)
        assert match, self.path
        if match[2] == "preupload":
            files = json.loads(body)["files"]
            modes = [
                {"path": one["path"], "uploadMode": self.mode(one["path"]), "shouldIgnore": False} for one in files
            ]
            return self.answer({"files": modes})
        branches = self.server.branches[match[1]]
        if match[2] == "branch":
            branches[match[3]] = dict(branches["main"])
            return self.answer({})
        return self.commit(match[1], match[3], [json.loads(line) for line in body.splitlines()])

    def content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.server.created:
            body = {"error": "You already created this model repo", "url": f"{self.server.address}/{name}"}
            return self.send(json.dumps(body).encode(), {"Content-Type": "application/json"}, 409)
        self.server.created[name] = asked
        self.server.branches[name] = {"main": {}}
        self.server.folders[name] = self.server.place
        return self.answer({"url": f"{self.server.address}/{name}"})

    def mode(self, path: str) -> str:
        return "lfs" if path.endswith(".safetensors") else "regular"

    def place_of(self, one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "actions": {"upload": {"href": f"{self.server.address}/objects/{one['oid']}"}}}

    def commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> None:
        files = self.server.branches[name][branch]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                self.server.deleted.append(value["path"])
            else:
                assert line["key"] == "lfsFile", line
                files[value["path"]] = self.server.objects[value["oid"]]
        self.answer({"commitUrl": f"{self.server.address}/{name}/commit/{SHA}", "commitOid": SHA})


@contextlib.contextmanager
def serve(place: Path) -> Iterator[UploadHub]:
    with UploadHub(place) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()
