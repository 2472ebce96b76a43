"""Makes Redis connections from a URL or an existing client, and translates the client's errors."""

from __future__ import annotations

from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cluster.errors import PenstockError, QueueUnavailableError

RedisTarget: TypeAlias = "str | Any"
"""A URL or a `redis.asyncio.Redis`."""

CONNECTION_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)


class ConnectionSource:
    """Opens connections for one owner. Accepts redis://, rediss:// and unix:// URLs, or a `redis.asyncio.Redis` client,
    whose pool then says how to connect (Sentinel, TLS contexts); its pooled connections are not used.
    """

    def __init__(self, target: RedisTarget, timeout_s: float) -> None:
        self._pool: Any
        if isinstance(target, str):
            # No socket_timeout: redis-py would wrap every read in a timer of its own. Owners bound whole exchanges.
            self._pool = ConnectionPool.from_url(
                target,
                protocol=2,
                socket_timeout=None,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        else:
            self._pool = target.connection_pool

    def make(self) -> Any:
        """Build a `redis.asyncio.connection.AbstractConnection` that is not connected yet."""
        return self._pool.make_connection()


def unavailable(error: BaseException) -> QueueUnavailableError:
    """Wrap a failure to reach Redis."""
    detail = str(error) or type(error).__name__
    return QueueUnavailableError(f"the queue does not answer: {detail}")


def translate(error: exceptions.ResponseError) -> PenstockError:
    """Wrap an error that Redis answered: QueueUnavailableError for its state (read-only, out of memory, no access),
    PenstockError where a script itself failed, which is a bug.
    """
    if type(error) is exceptions.ResponseError and "user_script" in str(error):
        return PenstockError(f"queue script failed: {error}")
    return QueueUnavailableError(f"the queue refused: {error}")
