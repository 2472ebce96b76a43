"""A Redis in this process: data, scripts and subscriptions."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from redis import exceptions

from cluster.clock import Clock, SystemClock
from cluster.errors import QueueUnavailableError
from cluster.redis.connections import translate
from cluster.redis.in_process.connection import InProcessConnection
from cluster.redis.in_process.runtime import make_runtime
from cluster.redis.pipeline import LocalServer, Pipeline
from cluster.redis.script import Script, ScriptStep

Listener: TypeAlias = Callable[[bytes], None]


class InProcessRedis(LocalServer):
    """Redis for routers, replicas and threads of one process. It has the commands that Penstock's scripts and stores
    use, with the semantics of Redis 7.0 on one database without TTLs. Give it to a store in place of a URL.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """`clock`: the server's time."""
        self.run_id = secrets.token_hex(20)
        self.down = False
        """Whether every call raises QueueUnavailableError."""
        self.clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._lua = make_runtime(self.run_id)
        self._run, self._command, self._prepare = (self._lua[name] for name in (b"run", b"command", b"prepare"))
        self._scripts: dict[str, Any] = {}
        self._listeners: dict[bytes, list[Listener]] = {}

    def restart(self, run_id: str = "", *, forget: bool = False) -> None:
        """Take a new run id, as a restarted server does; with `forget` lose all data."""
        with self._lock:
            self.run_id = run_id or secrets.token_hex(20)
            self._lua[b"run_id"] = self.run_id.encode()
            if forget:
                self.execute("FLUSHALL")

    def execute(self, *words: str | bytes | float) -> Any:
        """Run a command and return its reply, text as bytes.

        Raises:
            QueueUnavailableError: the server is down.
            ResponseError: Redis would refuse it.
        """
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        with self._lock:
            self._check()
            return self._read(self._command(self.clock.wall_ms(), *parts))

    def prepare(self, script: Script, keys: list[bytes], arguments: list[bytes]) -> Any:
        """Return a call of a script, to be run with other last arguments."""
        with self._lock:
            found = self._scripts.get(script.sha)
            if found is None:
                found = self._scripts[script.sha] = self._lua[b"compile"](script.source)
            return self._prepare(found, script.sha.encode(), len(keys), *keys, *arguments)

    def run(self, prepared: Any, last: bytes) -> Any:
        """Run a prepared call with its last argument; errors as in `execute`."""
        with self._lock:
            self._check()
            return self._read(self._run(prepared, self.clock.wall_ms(), last))

    def subscribe(self, channel: str, listener: Listener) -> None:
        """Call `listener` with each message that is published on a channel, in the thread that publishes."""
        with self._lock:
            self._listeners.setdefault(channel.encode(), []).append(listener)
            self._count_listeners(channel.encode())

    def unsubscribe(self, channel: str, listener: Listener) -> None:
        """Undo `subscribe`."""
        with self._lock:
            listeners = self._listeners.get(channel.encode(), [])
            if listener in listeners:
                listeners.remove(listener)
            self._count_listeners(channel.encode())

    def open_pipeline(self) -> Pipeline:
        return InProcessPipeline(self)

    @property
    def connection_pool(self) -> InProcessRedis:
        """Where a subscription gets its connection."""
        return self

    def make_connection(self) -> InProcessConnection:
        """Return a connection that is not connected yet."""
        return InProcessConnection(self)

    def _check(self) -> None:
        if self.down:
            raise QueueUnavailableError("the queue does not answer: it is down")

    def _count_listeners(self, channel: bytes) -> None:
        self._lua[b"listen"](channel, len(self._listeners[channel]) if channel in self._listeners else 0)

    def _read(self, answer: Any) -> Any:
        if answer[0] is None:
            raise _response_error(answer[1].decode())
        if answer[0]:
            self._deliver()
        return list(answer[2:]) if answer[1] else answer[2] if len(answer) > 2 else None

    def _deliver(self) -> None:
        sent = self._lua[b"take_published"]()
        for channel, message in zip(sent[::2], sent[1::2], strict=True):
            for listener in tuple(self._listeners.get(channel, ())):
                listener(message)


class InProcessPipeline:
    """Script calls of one store. Each is done when it is awaited, without a turn of the event loop."""

    def __init__(self, server: InProcessRedis) -> None:
        self._server = server
        self._closed = False
        self._prepared: dict[str, tuple[bytes, Any]] = {}
        """By script: the start of its last command, and the call that it was read into."""

    async def call(self, script: Script, command: bytes, step: ScriptStep | None = None) -> Any:
        if self._closed:
            raise QueueUnavailableError("the queue client is closed")
        try:
            if not script.sha:
                return self._server.execute(*_words(command))
            head, prepared = self._prepared.get(script.sha, (b" ", None))
            if command.startswith(head):
                rest = command[len(head) :]
                return self._server.run(prepared, rest[rest.index(b"\n") + 1 : -2])
            return self._run_new(script, command)
        except exceptions.ResponseError as error:
            raise translate(error) from error

    async def close(self) -> None:
        self._closed = True

    def _run_new(self, script: Script, command: bytes) -> Any:
        _, _, count, *rest = _words(command)
        keys, arguments = rest[: int(count)], rest[int(count) :]
        prepared = self._server.prepare(script, keys, arguments)
        last = arguments[-1]
        self._prepared[script.sha] = (command[: -len(b"$%d\r\n%b\r\n" % (len(last), last))], prepared)
        return self._server.run(prepared, last)


def _words(command: bytes) -> list[bytes]:
    """Read a command in Redis' protocol."""
    at = command.index(b"\n") + 1
    words = []
    while at < len(command):
        start = command.index(b"\n", at) + 1
        end = start + int(command[at + 1 : start - 2])
        words.append(command[start:end])
        at = end + 2
    return words


def _response_error(text: str) -> exceptions.ResponseError:
    # redis-py leaves this code out, too.
    return exceptions.ResponseError(text.removeprefix("ERR "))
