"""Clients' idempotency keys of one pool."""

from __future__ import annotations

import logging

from cluster.errors import QueueUnavailableError
from cluster.queue.entries import KnownRequest
from router.dispatch.pool_context import PoolContext

_LOG = logging.getLogger(__name__)
_OVERHEAD = 256
"""Bytes that a result counts besides its own."""


class ClientKeys:
    """What the queue knows under clients' keys. Results that it misses are told again with every heartbeat."""

    def __init__(self, context: PoolContext, max_result_mb: float) -> None:
        """`max_result_mb`: most MiB of results that wait for the queue."""
        self._context = context
        self._most = max_result_mb * 2**20
        self._untold: dict[tuple[str, str], tuple[str, bytes]] = {}
        """Request ids and results, by tenant and key, the oldest first."""
        self._size = 0
        """Bytes of all of them."""
        self._telling = False

    async def find(self, tenant: str, key: str, request_id: str, digest: str) -> KnownRequest | None:
        """Return the request that a key belongs to, as `Queue.find_key` does."""
        return await self._context.queue.find_key(tenant, key, request_id, digest)

    async def finish(self, tenant: str, key: str, request_id: str, result: bytes) -> None:
        """Keep a result for calls that repeat the key; an empty one frees the key."""
        try:
            await self._context.queue.finish_key(self._context.router_id, tenant, key, request_id, result)
        except QueueUnavailableError as error:
            _LOG.info("result.later", extra={"request": request_id, "error": str(error)})
            # Later another call may go on with the request, and a key must not be freed under it.
            if result:
                self._keep((tenant, key), request_id, result)

    def _keep(self, name: tuple[str, str], request_id: str, result: bytes) -> None:
        self._drop(name)
        self._untold[name] = request_id, result
        self._size += _OVERHEAD + len(result)
        while self._size > self._most:
            # The key is forgotten with its window; until then a repeat finds neither request nor result.
            _LOG.warning("result.not_kept", extra={"request": self._drop(next(iter(self._untold)))})

    def _drop(self, name: tuple[str, str]) -> str:
        request_id, result = self._untold.pop(name, ("", b""))
        if request_id:
            self._size -= _OVERHEAD + len(result)
        return request_id

    def tell_again(self) -> None:
        """Tell what the queue has missed."""
        if self._untold and not self._telling and not self._context.owner.closed:
            self._telling = True
            self._context.owner.spawn(self._tell_again(), "results")

    async def _tell_again(self) -> None:
        away = set[str]()
        try:
            for name, (request_id, result) in list(self._untold.items()):
                # All keys of a tenant are in one place; those of others may be in one that answers.
                if name[0] in away:
                    continue
                try:
                    await self._context.queue.finish_key(self._context.router_id, *name, request_id, result)
                except QueueUnavailableError:
                    away.add(name[0])
                    continue
                if self._untold.get(name) == (request_id, result):
                    self._drop(name)
        finally:
            self._telling = False

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
