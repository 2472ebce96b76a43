"""Clients' idempotency keys of one pool."""

from __future__ import annotations

import logging

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import KnownRequest
from router.dispatch.pool_context import PoolContext

_LOG = logging.getLogger(__name__)


class ClientKeys:
    """What the queue knows under clients' keys."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    async def find(self, tenant: str, key: str, request_id: str, digest: str) -> KnownRequest | None:
        """Return the request that a key belongs to, as `Queue.find_key` does."""
        return await self._context.queue.find_key(tenant, key, request_id, digest)

    async def finish(self, tenant: str, key: str, request_id: str, result: bytes) -> None:
        """Keep a result for calls that repeat the key; an empty one frees the key."""
        try:
            await self._context.queue.finish_key(self._context.router_id, tenant, key, request_id, result)
        except QueueUnavailableError as error:
            # The key is forgotten with its window; until then a repeat finds neither request nor result.
            _LOG.warning("result.not_kept", extra={"request": request_id, "error": str(error)})

    async def wait(self, tenant: str, key: str, request_id: str) -> None:
        """Note that a call waits for the result of a key's request."""
        try:
            await self._context.queue.await_key(tenant, key, request_id, note=True)
        except QueueUnavailableError:
            # The call looks again, and notes it then.
            return

    async def awaited(self, tenant: str, key: str, request_id: str) -> bool:
        """Return whether a call waits for the result of a key's request."""
        try:
            return await self._context.queue.await_key(tenant, key, request_id, note=False)
        except QueueUnavailableError:
            # While nobody can say, the request goes on: its result may be wanted.
            return True
