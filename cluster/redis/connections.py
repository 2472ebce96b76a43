"""Redis connections from a URL or an existing client, and translation of the client's errors."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from cluster.errors import PenstockError, QueueUnavailableError, SettingsError
from cluster.lifecycle import timeout_awake
from cluster.redis.slot_owner import LENIENT, SlotOwner
from cluster.redis.url import ClusterUrl, SentinelUrl, is_cluster, is_sentinel

RedisTarget: TypeAlias = "str | Any"
"""A URL, a `redis.asyncio.Redis`, or an `InProcessRedis`."""

CONNECTION_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)


class ConnectionSource:
    """Factory of connections for one owner. Accepts the URLs that `cluster.redis.url` describes, or a
    `redis.asyncio.Redis` client. Of a client it uses the options of the pool, not the pooled connections.
    """

    def __init__(self, target: RedisTarget, timeout_s: float, key: str, *, anywhere: bool = False) -> None:
        """Prepare connections. In a Redis Cluster they lead to the server of the slot of `key`, which all keys of the
        owner must share; with `anywhere` to any server that answers.

        Raises:
            SettingsError: the URL has an option that connections do not accept.
        """
        self._sentinel: Sentinel | None = None
        self._pool: Any
        # No timeouts: redis-py would start a timer for every read, and count time in which this process stood still.
        # Owners bound whole exchanges.
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        if not isinstance(target, str):
            self._pool = target.connection_pool
        elif is_sentinel(target):
            self._sentinel, self._pool = _by_sentinel(SentinelUrl.parse(target), timeout_s, options)
        elif is_cluster(target):
            self._pool = SlotOwner(ClusterUrl.parse(target), key, timeout_s, options, anywhere=anywhere)
        else:
            self._pool = _by_url(target, options)

    def make(self) -> Any:
        """Return a `redis.asyncio.connection.AbstractConnection` that is not connected yet."""
        return self._pool.make_connection()

    def moved(self, error: exceptions.MovedError) -> bool:
        """Note the server that has the keys now; return whether the next connection will lead there."""
        if isinstance(self._pool, SlotOwner):
            self._pool.hint(error.host, error.port)
            return True
        return False

    async def close(self) -> None:
        """Close the clients that were opened to find Redis. Owners close their own connections."""
        if self._sentinel is not None:
            for client in self._sentinel.sentinels:
                await client.aclose()


def _by_url(url: str, options: dict[str, Any]) -> Any:
    try:
        pool = ConnectionPool.from_url(url, **options, **(LENIENT if url.startswith("rediss:") else {}))
        # Only a connection checks its options, so one is made here.
        pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py
        # An address comes before `options`, and may ask for replies of other types than ours.
        pool.connection_kwargs["protocol"] = options["protocol"]
    except (TypeError, ValueError, exceptions.RedisError) as error:
        raise SettingsError(f"redis.url: has an option that is not taken: {error}") from error
    return pool


class _Watcher(Redis):
    """One sentinel."""

    patience_s: float
    """How long an answer may take, in seconds."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            async with timeout_awake(self.patience_s):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py
        except TimeoutError:
            # This kind lets the next sentinel be asked.
            raise exceptions.TimeoutError(f"no answer within {self.patience_s:g} s") from None


def _by_sentinel(url: SentinelUrl, timeout_s: float, options: dict[str, Any]) -> tuple[Sentinel, Any]:
    tls: dict[str, Any] = {"ssl": True, **LENIENT} if url.tls else {}
    sentinel = Sentinel([])  # type: ignore[no-untyped-call]  # redis-py
    for host, port in url.sentinels:
        watcher = _Watcher(
            host=host, port=port, username=url.sentinel_username, password=url.sentinel_password, **tls, **options
        )
        # A sentinel that does not answer must leave time to ask the next one.
        watcher.patience_s = timeout_s / (len(url.sentinels) + 1)
        sentinel.sentinels.append(watcher)
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]  # redis-py
        url.service, sentinel, db=url.database, username=url.username, password=url.password, **tls, **options
    )
    return sentinel, pool


def unavailable(error: BaseException) -> QueueUnavailableError:
    """Wrap a failure to reach Redis."""
    detail = str(error) or type(error).__name__
    return QueueUnavailableError(f"the queue does not answer: {detail}")


_STATE = re.compile(r"\b(MISCONF|NOREPLICAS|MASTERDOWN|LOADING|CLUSTERDOWN|TRYAGAIN|READONLY|OOM)\b")
"""Codes with which Redis refuses a command inside a script. redis-py has a class for some of them, but Redis 6.2 puts
them into the text of a script's failure."""

_LINE = re.compile(r"^@user_script: ?\d+: -")
"""What Redis 6.2 puts in front of the error of a command inside a script."""

_PLACE = re.compile(
    r"^Error running script \(call to f_[0-9a-f]+\): @user_script:\d+: (@user_script: ?\d+: -)?"
    r"|\s*script: [0-9a-f]+, on @user_script:\d+\.?$"
)
"""What Redis writes around the error of a command inside a script."""

_WORDS = (
    ("Redis is out of memory", re.compile(r"\bOOM\b|used memory > 'maxmemory'")),
    ("Redis is a replica, which takes no writes", re.compile(r"\bREADONLY\b|against a read only replica")),
    ("Redis can't write its file", re.compile(r"\bMISCONF\b")),
    ("Redis wants a password, and redis.url has none or another one", re.compile(r"\bNOAUTH\b|unauthenticated")),
)
"""States of Redis in plain words, and how they are told from its text."""

_DENIED = re.compile(r"\b(NOPERM|ACL failure)\b|can't run this command|can't access at least one|can't publish to")
"""Text with which Redis refuses a command that its user may not use, inside a script or outside."""

_DEMOTED = re.compile(
    r"(Error running script \(call to f_[0-9a-f]+\): @user_script:\d+: @user_script: ?\d+: -)?"
    r"(READONLY|MASTERDOWN|CLUSTERDOWN)\b"
)
"""Text of Redis 6.2 for a refused write inside a script. The code is valid only at this position: the text after it,
and the text of scripts' own failures, may quote anything."""


def is_demoted(error: exceptions.ResponseError) -> bool:
    """Return whether the server was made a replica or cut off from its cluster. Its name may then lead to another
    server.
    """
    if isinstance(error, (exceptions.ReadOnlyError, exceptions.ClusterDownError)):
        return True
    return _DEMOTED.match(str(error)) is not None


def step_error(text: bytes) -> exceptions.ResponseError:
    """Return the error of one step of a script that makes several calls."""
    return exceptions.ResponseError(f"{_LINE.sub('', text.decode(errors='replace'))} (a step of several, @user_script)")


def translate(error: exceptions.ResponseError) -> PenstockError:
    """Wrap an error that Redis answered: QueueUnavailableError for a state of Redis (read-only, out of memory, no
    access, no room for its file), PenstockError for a failure of a script itself, which is a bug.
    """
    if isinstance(error, exceptions.NoPermissionError) or _DENIED.search(str(error)):
        return QueueUnavailableError(
            f"the queue refused: Redis' user lacks a right that Penstock needs; a router that starts names it: {error}"
        )
    if type(error) is exceptions.ResponseError and "user_script" in str(error) and not _STATE.search(str(error)):
        return PenstockError(f"queue script failed: {error}")
    if isinstance(error, exceptions.MovedError):
        return QueueUnavailableError("the queue refused: redis.url is one server of a cluster; use redis+cluster://")
    if isinstance(error, (exceptions.AskError, exceptions.TryAgainError)):
        return QueueUnavailableError("the queue refused: its keys are on their way to another server of the cluster")
    # Readers of a client's error have no use for the place in our script.
    text = _PLACE.sub("", str(error))
    state = next((state for state, words in _WORDS if words.search(text)), "")
    return QueueUnavailableError(f"the queue refused: {state}: {text}" if state else f"the queue refused: {text}")
