"""Makes Redis connections from a URL or an existing client, and translates the client's errors."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from cluster.errors import PenstockError, QueueUnavailableError, SettingsError
from cluster.redis.slot_owner import SlotOwner
from cluster.redis.url import ClusterUrl, SentinelUrl, is_cluster, is_sentinel

RedisTarget: TypeAlias = "str | Any"
"""A URL or a `redis.asyncio.Redis`."""

CONNECTION_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)


class ConnectionSource:
    """Opens connections for one owner. Accepts the URLs that `cluster.redis.url` describes, or a
    `redis.asyncio.Redis` client, whose pool then says how to connect; its pooled connections are not used.
    """

    def __init__(self, target: RedisTarget, timeout_s: float, key: str) -> None:
        """`key` stands for all that the owner touches: in a Redis Cluster, connections lead to its slot's server.

        Raises:
            SettingsError: the URL has an option that no connection takes.
        """
        self._sentinel: Sentinel | None = None
        self._pool: Any
        # No socket_timeout: redis-py would wrap every read in a timer of its own. Owners bound whole exchanges.
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": None,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        if not isinstance(target, str):
            self._pool = target.connection_pool
        elif is_sentinel(target):
            self._sentinel, self._pool = _by_sentinel(SentinelUrl.parse(target), timeout_s, options)
        elif is_cluster(target):
            self._pool = SlotOwner(ClusterUrl.parse(target), key, timeout_s, options)
        else:
            self._pool = _by_url(target, options)

    def make(self) -> Any:
        """Build a `redis.asyncio.connection.AbstractConnection` that is not connected yet."""
        return self._pool.make_connection()

    def moved(self, error: exceptions.MovedError) -> bool:
        """Take note of the server that has the keys now; returns whether the next connection will lead there."""
        if isinstance(self._pool, SlotOwner):
            self._pool.hint(error.host, error.port)
            return True
        return False

    async def close(self) -> None:
        """Close what was opened to find Redis; the connections are their owners'."""
        if self._sentinel is not None:
            for client in self._sentinel.sentinels:
                await client.aclose()


def _by_url(url: str, options: dict[str, Any]) -> Any:
    try:
        pool = ConnectionPool.from_url(url, **options)
        # Connections alone know their options.
        pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py
    except (TypeError, ValueError, exceptions.RedisError) as error:
        raise SettingsError(f"redis.url: has an option that is not taken: {error}") from error
    return pool


def _by_sentinel(url: SentinelUrl, timeout_s: float, options: dict[str, Any]) -> tuple[Sentinel, Any]:
    # One that does not answer must leave time to ask the next.
    patience_s = timeout_s / (len(url.sentinels) + 1)
    tls = {"ssl": True} if url.tls else {}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py
        list(url.sentinels),
        sentinel_kwargs={
            "socket_timeout": patience_s,
            "socket_connect_timeout": patience_s,
            "retry": Retry(NoBackoff(), 0),
            "username": url.sentinel_username,
            "password": url.sentinel_password,
            **tls,
        },
    )
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]  # redis-py
        url.service, sentinel, db=url.database, username=url.username, password=url.password, **tls, **options
    )
    return sentinel, pool


def unavailable(error: BaseException) -> QueueUnavailableError:
    """Wrap a failure to reach Redis."""
    detail = str(error) or type(error).__name__
    return QueueUnavailableError(f"the queue does not answer: {detail}")


_STATE = re.compile(r"\b(MISCONF|NOREPLICAS|MASTERDOWN|LOADING|CLUSTERDOWN|TRYAGAIN|READONLY|OOM)\b")
"""What a command inside a script is refused with. Some of these redis-py gives a class of their own, unless Redis 6.2
puts them into the text of a script's failure."""

_DEMOTED = re.compile(
    r"Error running script \(call to f_[0-9a-f]+\): @user_script:\d+: @user_script: ?\d+: "
    r"-(READONLY|MASTERDOWN|CLUSTERDOWN)\b"
)
"""How Redis 6.2 words a refused write inside a script. The code stands there and nowhere else: what follows it, and
scripts' own failures, may quote anything."""


def is_demoted(error: exceptions.ResponseError) -> bool:
    """Whether the server was made a replica, or cut off from its cluster: behind the same name there may be another."""
    if isinstance(error, (exceptions.ReadOnlyError, exceptions.ClusterDownError)):
        return True
    return _DEMOTED.match(str(error)) is not None


def translate(error: exceptions.ResponseError) -> PenstockError:
    """Wrap an error that Redis answered: QueueUnavailableError for its state (read-only, out of memory, no access, no
    room for its file), PenstockError where a script itself failed, which is a bug.
    """
    if type(error) is exceptions.ResponseError and "user_script" in str(error) and not _STATE.search(str(error)):
        return PenstockError(f"queue script failed: {error}")
    if isinstance(error, exceptions.MovedError):
        return QueueUnavailableError("the queue refused: redis.url is one server of a cluster; use redis+cluster://")
    if isinstance(error, (exceptions.AskError, exceptions.TryAgainError)):
        return QueueUnavailableError("the queue refused: its keys are on their way to another server of the cluster")
    return QueueUnavailableError(f"the queue refused: {error}")
