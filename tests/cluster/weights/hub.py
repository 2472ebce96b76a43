"""A server that speaks the part of a hub's API that downloads use, with faults on order."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "org/model"
COMMIT = "1" * 40
OTHER = "2" * 40


def digest_of(name: str, content: bytes) -> str:
    """Return what a hub gives: SHA-256 for weights, git's SHA-1 for small files."""
    if name.endswith(".safetensors"):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """What the server has, what goes wrong, and what it was asked."""

    files: dict[str, bytes]
    refs: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, "v1": COMMIT})
    served: dict[str, bytes] = field(default_factory=dict)
    """Content of files that differs from what the list says."""
    refusals: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    """Beginnings of "METHOD path" that are refused once, with status and headers."""
    cuts: list[tuple[str, int]] = field(default_factory=list)
    """Files whose connection ends once after so many bytes."""
    holds: dict[str, int] = field(default_factory=dict)
    """Files of which no more than so many bytes are sent until `release`."""
    released: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Range of each request."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of files, or others instead."""
    url: str = ""

    def release(self) -> None:
        """End all holds."""
        self.holds.clear()
        self.released.set()

    def ranges(self, name: str) -> list[str]:
        """Return the Range of each download of a file."""
        return [where for method, path, where in self.asked if method == "GET" and path.endswith(f"/{name}")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, hub = self.path.partition("?")[0], self.hub
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        for each in hub.refusals:
            begin, status, headers = each
            if f"{self.command} {path}".startswith(begin):
                hub.refusals.remove(each)
                self._send(status, b'{"error": "not now"}', headers)
                return
        if path.startswith(f"/api/models/{NAME}"):
            self._list(path.partition("/revision/")[2] or "main")
        elif path.startswith(f"/{NAME}/resolve/"):
            revision, _, name = path.removeprefix(f"/{NAME}/resolve/").partition("/")
            self._file(hub.refs.get(revision, revision), name)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _list(self, revision: str) -> None:
        commit = self.hub.refs.get(revision, revision)
        if commit not in (COMMIT, OTHER):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for name, content in self.hub.files.items():
            digest = digest_of(name, content)
            each: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": digest}
            if name.endswith(".safetensors"):
                each["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(each)
        tree = {"id": NAME, "modelId": NAME, "sha": commit, "siblings": siblings, "private": False, "tags": []}
        self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})

    def _file(self, commit: str, name: str) -> None:
        if name not in self.hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        declared = self.hub.files[name]
        content = self.hub.served.get(name, declared)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest_of(name, declared)}"', "Accept-Ranges": "bytes"}
        headers |= self.hub.headers
        if self.command == "HEAD":
            self._send(200, content, headers)
            return
        status, begin = 200, 0
        if where := self.headers.get("Range"):
            status, begin = 206, int(where.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        if held := self.hub.holds.get(name):
            self._head(status, len(content) - begin, headers)
            self.wfile.write(content[begin:held])
            self.hub.released.wait()
            self.close_connection = True
            return
        cut = next((each for each in self.hub.cuts if each[0] == name), None)
        if cut is None:
            self._send(status, content[begin:], headers)
            return
        self.hub.cuts.remove(cut)
        self._head(status, len(content) - begin, headers)
        self.wfile.write(content[begin : begin + cut[1]])
        self.wfile.flush()
        self.close_connection = True

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(content), headers)
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve a repository on a free port."""
    hub = Hub(files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.release()
        server.shutdown()
        thread.join()
        server.server_close()
