"""InferenceService."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeAlias

from cluster.errors import CancelledError, DeadlineError, PenstockError, RequestNotFoundError, ShuttingDownError
from cluster.lifecycle import TaskOwner
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.catalog import Catalog
from router.dispatch.pool import Pool
from router.generation.generation import Generation
from router.identity import Caller, may_use
from router.inference.admit import Admission
from router.inference.coalescing import Coalescing, StreamCoalescing
from router.inference.collect import Collector
from router.inference.idempotency import IdempotentResult, read_result, replay
from router.inference.writer import EventWriter
from router.metrics import RouterMetrics
from router.validation import (
    CheckedRequest,
    RequestLimits,
    check_cancel,
    check_count,
    check_get_model,
    check_request,
    check_stream,
)

REQUEST_ID_HEADER = "penstock-request-id"
RESUME_TOKEN_HEADER = "penstock-resume-token-bin"  # noqa: S105 - a header's name

Opened: TypeAlias = Generation | bytes
"""What runs, or the kept result of what has ended."""


class InferenceServicer:
    """Serves clients. Knows no transport beyond `context`."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        catalog: Catalog,
        opening: Admission,
        limits: RequestLimits,
        metrics: RouterMetrics,
        pace: Coalescing,
        grace_s: float,
    ) -> None:
        """`grace_s`: how long a request with a key outlives its client."""
        self._pools = pools
        self._catalog = catalog
        self._admission = opening
        self._limits = limits
        self._metrics = metrics
        self._pace = pace
        self._grace_s = grace_s
        self._owner = TaskOwner("inference")
        self.draining = False
        self._open: set[Generation] = set()
        self.open_calls = 0
        """Generations that are open."""
        self.idle = asyncio.Event()
        """Set while none is open."""
        self.idle.set()

    # --- generation ---------------------------------------------------------------------------------------------------

    async def StreamGenerate(  # noqa: N802
        self, request: api.StreamGenerateRequest, context: Any, caller: Caller
    ) -> None:
        """Stream a generation."""
        checked = check_stream(request, self._limits)
        self._enter()
        try:
            opened = await self._opened(
                self._admission.open(
                    checked.generate, caller=caller, time_left_s=context.time_remaining(), resume=checked.resume
                ),
                checked.generate,
                caller,
            )
            if isinstance(opened, bytes):
                received = checked.resume.received_tokens if checked.resume is not None else ()
                for event in replay(opened, received):
                    await context.write(event)
                return
            kept = self._kept(opened, checked.generate, caller)
            pace = StreamCoalescing(self._pace, checked.flush_interval_s)
            writer = EventWriter(opened, kept, context, pace, self._metrics)
            await self._guard(opened, kept, writer.run())
        finally:
            self._leave()

    async def Generate(  # noqa: N802
        self, request: api.GenerateRequest, context: Any, caller: Caller
    ) -> api.GenerateResponse:
        """Generate and return everything at the end."""
        checked = check_request(request, self._limits)
        self._enter()
        try:
            opening = self._admission.open(checked, caller=caller, time_left_s=context.time_remaining())
            opened = await self._opened(opening, checked, caller)
            if isinstance(opened, bytes):
                return read_result(opened)[0]
            kept = self._kept(opened, checked, caller)
            collector = Collector()
            await self._guard(opened, kept, self._answer(opened, kept, collector, context))
            raise_if_stopped({choice.finish_reason for choice in collector.finished.choices})
            return collector.response()
        finally:
            self._leave()

    async def _answer(
        self, generation: Generation, kept: IdempotentResult | None, collector: Collector, context: Any
    ) -> None:
        # As EventWriter.run: a start on its way to a replica goes first.
        await asyncio.sleep(0)
        await context.send_initial_metadata(
            ((REQUEST_ID_HEADER, generation.request_id), (RESUME_TOKEN_HEADER, generation.token()))
        )
        async for event in generation.unhurried():
            collector.add(event)
            if kept is not None:
                kept.add(event)
        self._metrics.finished(generation, collector.finished)

    async def _opened(self, opening: Coroutine[Any, Any, Opened], checked: CheckedRequest, caller: Caller) -> Opened:
        """Open a request. One with a key is opened also when its client leaves meanwhile, and goes on for a while."""
        if not checked.idempotency_key:
            return await opening
        task = asyncio.ensure_future(opening)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.draining:
                task.cancel()
            self._owner.spawn(self._linger_from(task, checked, caller), "linger")
            raise

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _kept(self, generation: Generation, checked: CheckedRequest, caller: Caller) -> IdempotentResult | None:
        if not checked.idempotency_key:
            return None
        return IdempotentResult(generation, self._pools[generation.pool], caller.tenant, checked.idempotency_key)

    async def _guard(
        self, generation: Generation, kept: IdempotentResult | None, work: Coroutine[Any, Any, None]
    ) -> None:
        """Do the work of a call, then end its generation. One with a key outlives its client for a while."""
        lingers = False
        self._open.add(generation)
        try:
            await work
        except asyncio.CancelledError:
            lingers = kept is not None and not self.draining
            raise
        finally:
            self._metrics.left(generation)
            if lingers and kept is not None:
                self._owner.spawn(self._linger(kept), "linger")
            else:
                self._open.discard(generation)
                generation.close()
                if kept is not None:
                    self._owner.spawn(kept.settle(), "settle")

    async def _linger_from(self, opening: asyncio.Task[Opened], checked: CheckedRequest, caller: Caller) -> None:
        """Go on with what is being opened for a client that has left."""
        try:
            async with asyncio.timeout(self._grace_s):
                opened = await opening
        except (TimeoutError, PenstockError):
            # Nothing has begun, or nobody came while it was looked for.
            return
        if isinstance(opened, Generation) and (kept := self._kept(opened, checked, caller)) is not None:
            self._open.add(opened)
            await self._linger(kept)

    async def _linger(self, kept: IdempotentResult) -> None:
        """Go on without a client, until the same key comes again or the grace is over."""
        generation = kept.generation
        try:
            async with asyncio.timeout(self._grace_s):
                async for event in generation.unhurried():
                    kept.add(event)
        except (TimeoutError, PenstockError):
            # Nobody came, it failed, or another call took over.
            pass
        finally:
            self._open.discard(generation)
            generation.close()
        await kept.settle()

    def park(self) -> int:
        """Leave every generation to the routers that their clients turn to now. Returns how many there were."""
        left = list(self._open)
        for generation in left:
            generation.park(ShuttingDownError("this router is shutting down; any other one goes on", 0.0))
        return len(left)

    async def close(self) -> None:
        """End what goes on without a client."""
        await self._owner.close()

    def _enter(self) -> None:
        if self.draining:
            raise ShuttingDownError("this router is shutting down", 0.1)
        self.open_calls += 1
        self.idle.clear()

    def _leave(self) -> None:
        self.open_calls -= 1
        if self.open_calls == 0:
            self.idle.set()

    # --- control ------------------------------------------------------------------------------------------------------

    async def Cancel(self, request: api.CancelRequest, context: Any, caller: Caller) -> api.CancelResponse:  # noqa: N802
        """Cancel one request, wherever it runs."""
        target = check_cancel(request)
        by_key = bool(target.idempotency_key)
        name = target.idempotency_key or target.request_id
        pools = self._pools.values()
        found = await asyncio.gather(
            *(pool.cancel(caller.tenant, name, by_key=by_key) for pool in pools), return_exceptions=True
        )
        request_id = next((one for one in found if isinstance(one, str)), None)
        failure = next((one for one in found if isinstance(one, BaseException)), None)
        # An id is in one pool only, whatever became of the others; a key may be in several.
        if failure is not None and (request_id is None or by_key):
            raise failure
        if request_id is not None:
            return api.CancelResponse(request_id=request_id)
        raise RequestNotFoundError(name)

    # --- models -------------------------------------------------------------------------------------------------------

    async def ListModels(self, request: api.ListModelsRequest, context: Any, caller: Caller) -> api.ListModelsResponse:  # noqa: N802
        """List the models."""
        names = [name for name in sorted(self._pools) if may_use(caller, name)]
        return api.ListModelsResponse(models=[await self._describe(self._pools[name]) for name in names])

    async def GetModel(self, request: api.GetModelRequest, context: Any, caller: Caller) -> api.GetModelResponse:  # noqa: N802
        """Describe one model."""
        pool = self._catalog.pool(check_get_model(request), caller)
        return api.GetModelResponse(model=await self._describe(pool))

    async def _describe(self, pool: Pool) -> api.Model:
        if self._catalog.known(pool) is not None:
            try:
                await self._catalog.model(pool)
            except PenstockError:
                # Only whether there is a chat template stays unknown.
                return self._catalog.describe(pool)
        return self._catalog.describe(pool)

    async def CountTokens(  # noqa: N802
        self, request: api.CountTokensRequest, context: Any, caller: Caller
    ) -> api.CountTokensResponse:
        """Count the tokens of a prompt."""
        checked = check_count(request, self._limits)
        _info, tokenizer = await self._catalog.model(self._catalog.pool(checked.model, caller))
        ids = await self._catalog.encode(tokenizer, checked.prompt, caller.tenant)
        return api.CountTokensResponse(tokens=len(ids), token_ids=ids)


def raise_if_stopped(reasons: set[types.FinishReason.ValueType]) -> None:
    """Turn a unary call that was stopped from outside into its error: a partial answer must not look complete."""
    if types.FINISH_REASON_DEADLINE in reasons:
        raise DeadlineError
    if types.FINISH_REASON_CANCELLED in reasons:
        raise CancelledError
