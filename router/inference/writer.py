"""Writes the events of one generation to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from penstock.v1 import inference_pb2 as api
from router.generation.generation import Generation
from router.grpc_server import Call
from router.inference.coalescing import AT_ONCE, StreamCoalescing
from router.inference.idempotency import IdempotentResult
from router.metrics import RouterMetrics


class EventWriter:
    """Is one streaming call's way out: `run` writes what changes; nearly all output passes it by in `write`."""

    __slots__ = ("_context", "_generation", "_kept", "_metrics", "_pace", "ready")

    def __init__(
        self,
        generation: Generation,
        kept: IdempotentResult | None,
        context: Any,
        pace: StreamCoalescing,
        metrics: RouterMetrics,
    ) -> None:
        """`kept` also gets every event; `context` is the call."""
        self._generation = generation
        self._kept = kept
        self._context = context
        self._pace = pace
        self._metrics = metrics
        # Straight to the call: this is asked per token.
        self.ready: Callable[[], bool] = context.can_write if isinstance(context, Call) else _never

    async def run(self) -> None:
        """Write everything, to the last event.

        Raises:
            PenstockError: the generation failed.
            asyncio.CancelledError: nobody is there any more.
        """
        generation = self._generation
        if isinstance(self._context, Call):
            # Most tokens: from the link to the client's connection, and this coroutine sleeps on.
            generation.write_through(self)
        try:
            # A link with a start to send waits for its turn, and that way is the longer one.
            await asyncio.sleep(0)
            while not generation.finished:
                await generation.wait()
                events = generation.take()
                # All of them first: who leaves during a write must not cut off what a key keeps, or what is counted.
                for event in events:
                    self._note(event)
                for event in events:
                    await self._write(event)
        finally:
            generation.write_through(None)
            self._pace.close()

    # --- past the coroutine (DirectWriter) ---

    def write(self, event: api.StreamGenerateResponse, tokens: int) -> None:
        """Send output while `ready`."""
        if (collecting := self._pace.wrote(tokens)) is not AT_ONCE:
            self._generation.collect(*collecting)
        if self._kept is not None:
            self._kept.add(event)
        try:
            self._context.write_now(event)
        except ValueError:
            # The core takes nothing more for this call. Its coroutine hears of that when it writes; the link that
            # brought the output has other streams to serve.
            self._context.gone = True

    # --- in the coroutine ---------------------------------------------------------------------------------------------

    def _note(self, event: api.StreamGenerateResponse) -> None:
        if event.HasField("delta"):
            collecting = self._pace.wrote(len(event.delta.token_ids))
            if collecting is not AT_ONCE or self._generation.collects:
                self._generation.collect(*collecting)
        elif event.HasField("finished"):
            self._metrics.finished(self._generation, event.finished)
        if self._kept is not None:
            self._kept.add(event)

    async def _write(self, event: api.StreamGenerateResponse) -> None:
        try:
            await self._context.write(event)
        except grpc.aio.InternalError:
            # Nobody is there any more, which gRPC says this way to a write that waited for the reader.
            raise asyncio.CancelledError from None


def _never() -> bool:
    return False
