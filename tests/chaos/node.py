"""One process of the cluster under test, and how to look at it."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.chaos.process import Process

HOST = "127.0.0.1"


@dataclass
class Node:
    """One process of the cluster; a restart gives it a new one."""

    name: str
    process: Process
    facts: dict[str, Any] = field(default_factory=dict)
    """What it wrote when it was ready."""
    died_at: float | None = None
    """Monotonic seconds, when it was killed or seen gone."""
    paused: list[tuple[float, float]] = field(default_factory=list)
    """Monotonic seconds from SIGSTOP to SIGCONT."""
    family: list[psutil.Process] = field(default_factory=list)
    """What it had started when it was last looked at: a dead parent no longer leads to its children."""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.running

    def look(self) -> list[psutil.Process]:
        """Return what it started, engine processes for one, and remember it."""
        with contextlib.suppress(psutil.Error):
            self.family = psutil.Process(self.pid).children(recursive=True)
        return self.family

    def orphans(self) -> list[psutil.Process]:
        """Return what is left of its family when it has ended itself."""
        return [] if self.running else [process for process in self.family if lives(process)]

    def note_end(self) -> None:
        """Note when it was first seen gone."""
        if self.died_at is None and not self.running:
            self.died_at = time.monotonic()


def redis_client(port: int, timeout_s: float) -> redis.asyncio.Redis:
    """Open a client that fails at once: one that tries again by itself takes seconds to say that a server is dead."""
    once = Retry(NoBackoff(), 0)
    return redis.asyncio.Redis(host=HOST, port=port, protocol=2, socket_timeout=timeout_s, retry=once)


def lives(process: psutil.Process) -> bool:
    """Say whether a process has not ended; its parent may not have noticed that it has."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def read_metrics(port: int) -> dict[str, float]:
    """Read a Prometheus endpoint; samples of one name are added up."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(_http_get(port)):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


def _http_get(port: int) -> str:
    with socket.create_connection((HOST, port), timeout=5.0) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).decode().partition("\r\n\r\n")[2]
