"""Generations and the idempotency keys of their requests: how long they run, and what a key gets at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from cluster.errors import PenstockError, ShuttingDownError, TakenOverError
from cluster.lifecycle import TaskOwner
from router.dispatch.pool import Pool
from router.generation.generation import Generation
from router.identity import Caller
from router.identity.revocations import outliving, revoked
from router.inference.idempotency import IdempotentResult
from router.inference.routed import RoutedAdmission
from router.metrics import RouterMetrics
from router.validation import CheckedRequest, ResumePoint

UNREAD_S = 1.0
"""How long after the end of a request its result waits for a client to read the rest, seconds. Who repeats the key then
gets it, though the client may never read on."""
LEAST_S = 0.05
"""Shortest time between two looks for calls that wait for a result, seconds."""


class KeyedGeneration:
    """A generation with the idempotency key of its request.

    Without a key it ends with its call. With a key it goes on for a grace after its client has left, and its key gets
    the result.
    """

    __slots__ = ("_generations", "_key", "_pool", "_timer", "generation", "result")

    def __init__(self, generation: Generation, key: str, pool: Pool, generations: OpenGenerations) -> None:
        """`key` is "" for a request without one."""
        self.generation = generation
        self.result = IdempotentResult(generation) if key else None
        """What the client got so far, collected for the key; None without a key."""
        self._key = key
        self._pool = pool
        self._generations = generations
        self._timer: asyncio.TimerHandle | None = None
        """Set while a client has the rest to read."""

    async def deliver(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a call, then end the generation. With a key it lingers instead when the client has left."""
        lingers = False
        self._generations.begin(self.generation)
        if self.result is not None:
            self.generation.when_over(self._over)
        try:
            await work
        except asyncio.CancelledError:
            lingers = self.result is not None and not self._generations.draining and not revoked()
            raise
        finally:
            self.generation.when_over(None)
            if self._timer is not None:
                self._timer.cancel()
            self._generations.metrics.left(self.generation)
            if lingers:
                self._generations.spawn(self.linger(), "linger")
            else:
                self._generations.end(self.generation)
                if self.result is not None:
                    self._generations.spawn(self.settle(), "settle")

    def _over(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(UNREAD_S, self._leave_unread)

    def _leave_unread(self) -> None:
        self._generations.spawn(self._settle_ahead(), "settle")

    async def _settle_ahead(self) -> None:
        """Store a complete result before its client has read it."""
        generation = self.generation
        if self.result is not None and (packed := self.result.ahead(generation.rest()).packed()):
            await self._pool.keys.finish(generation.tenant, self._key, generation.request_id, packed)

    async def linger(self) -> None:
        """Go on without a client until another call takes over or the generation ends. Beyond the grace, go on only
        while another call waits for the result.
        """
        try:
            with outliving(self.generation.cancel):
                while not await self._lingered():
                    pass
        except PenstockError:
            # The generation failed, or another call took over.
            pass
        finally:
            self._generations.end(self.generation)
        await self.settle()

    async def _lingered(self) -> bool:
        """Read on for one grace. Return whether that is enough: it has ended, or nobody waits for the result."""
        generation = self.generation
        try:
            async with asyncio.timeout(max(self._generations.grace_s, LEAST_S)):
                async for event in generation.unhurried():
                    if self.result is not None:
                        self.result.add(event)
        except TimeoutError:
            return not await self._pool.keys.awaited(generation.tenant, self._key, generation.request_id)
        return True

    async def settle(self) -> None:
        """Store a complete result under the key. After anything else the key can be used again.

        Do neither when another call has taken the request over, or may still do so: then that call decides.
        """
        generation = self.generation
        taken_over = isinstance(generation.error, TakenOverError | ShuttingDownError) or generation.left
        if self.result is None or taken_over:
            return
        result = self.result.packed()
        await self._pool.keys.finish(generation.tenant, self._key, generation.request_id, result)


class OpenGenerations:
    """Generations of a router process that clients read, and those that go on for a while without a client."""

    def __init__(
        self,
        admission: RoutedAdmission,
        pools: Mapping[str, Pool],
        metrics: RouterMetrics,
        grace_s: float,
        closed: Callable[[Generation], None],
    ) -> None:
        """`grace_s`: how long a request with a key outlives its client, in seconds; `closed` is told every generation
        at its end.
        """
        self.metrics = metrics
        self.grace_s = grace_s
        self.draining = False
        """Whether the router stops. Then nothing outlives its call any more."""
        self._admission = admission
        self._pools = pools
        self._closed = closed
        self._owner = TaskOwner("inference")
        self._open: set[Generation] = set()

    async def open(
        self, checked: CheckedRequest, caller: Caller, time_left_s: float | None, resume: ResumePoint | None = None
    ) -> KeyedGeneration | bytes:
        """Start or continue a generation, or return the stored result of its key.

        A request with a key is also opened when its client leaves meanwhile, and then lingers.

        Raises:
            PenstockError: as `RoutedAdmission.open`.
        """
        admitting = self._admission.open(checked, caller=caller, time_left_s=time_left_s, resume=resume)
        key = checked.idempotency_key
        if not key:
            return self._keyed(await admitting, key)
        task = asyncio.ensure_future(admitting)
        try:
            return self._keyed(await asyncio.shield(task), key)
        except asyncio.CancelledError:
            if self.draining or revoked():
                task.cancel()
            self.spawn(self._linger_from(task, key), "linger")
            raise

    def unkeyed(self, generation: Generation) -> KeyedGeneration:
        """Give a generation without a key the life of its call."""
        return KeyedGeneration(generation, "", self._pools[generation.pool], self)

    async def knows(self, checked: CheckedRequest, tenant: str) -> bool:
        """Return whether a request under this key waits or runs, or has a result that is kept.

        Raises:
            QueueUnavailableError: Redis does not answer.
        """
        return await self._admission.knows(checked, tenant)

    def begin(self, generation: Generation) -> None:
        """Note a generation that runs from now on."""
        self._open.add(generation)

    def end(self, generation: Generation) -> None:
        """Close a generation. Its last step."""
        self._open.discard(generation)
        generation.close()
        self._closed(generation)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do work that outlives the call, unless everything has ended that does."""
        self._owner.spawn_unless_closed(work, name)

    def park(self) -> int:
        """Leave every generation to the routers that their clients turn to now. Return how many there were."""
        left = list(self._open)
        for generation in left:
            generation.park(ShuttingDownError("this router is shutting down; any other one goes on", 0.0))
        return len(left)

    async def close(self) -> None:
        """End everything that goes on without a client."""
        await self._admission.close()
        await self._owner.close()

    def _keyed(self, opened: Generation | bytes, key: str) -> KeyedGeneration | bytes:
        if isinstance(opened, bytes):
            return opened
        return KeyedGeneration(opened, key, self._pools[opened.pool], self)

    async def _linger_from(self, admitting: asyncio.Task[Generation | bytes], key: str) -> None:
        """Go on with a request whose client left while it was opened."""
        try:
            with outliving(admitting.cancel):
                await asyncio.wait((admitting,), timeout=self.grace_s)
        finally:
            # What is let in at the last moment stays so: nobody else would end it.
            admitting.cancel()
        try:
            opened = self._keyed(await admitting, key)
        except (asyncio.CancelledError, PenstockError):
            # Nothing has begun, or the key did not come again while it was looked for.
            return
        if isinstance(opened, KeyedGeneration):
            self.begin(opened.generation)
            await opened.linger()
