"""The release of slots of sequences that end before the engine ended them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from deployments.engines.vllm.sequence import VllmSequence, ids_of

log = logging.getLogger(__name__)


class Slots(Protocol):
    """The part of the engine that holds slots."""

    async def stop(self, internal_ids: Sequence[str]) -> None:
        """Tell the engine to drop requests."""
        ...

    async def between_steps(self) -> None:
        """Return when the running step is over and earlier messages are handled."""
        ...


class SlotRelease:
    """Release of slots. It drops sequences from the engine and reports each one when its slot is really free.

    All sequences added during one round trip share the next one.
    """

    def __init__(self, slots: Slots, on_free: Callable[[VllmSequence], None]) -> None:
        self._slots = slots
        self._on_free = on_free
        self._waiting: list[VllmSequence] = []
        self._next_round: asyncio.Future[None] | None = None
        self._rounds: asyncio.Task[None] | None = None

    def add(self, sequences: Sequence[VllmSequence]) -> Awaitable[None]:
        """Free these slots. The result is done when they are free, or when the engine is dead."""
        self._waiting.extend(sequences)
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._run(), name="slot-release")
        return asyncio.shield(self._next_round)

    async def close(self) -> None:
        """Give up. All callers that wait are released."""
        self._let_go()
        if self._rounds is not None:
            self._rounds.cancel()
            # Not awaited itself: a cancel of this call would look like the task's own.
            await asyncio.wait([self._rounds])

    async def _run(self) -> None:
        while self._next_round is not None:
            batch, self._waiting = self._waiting, []
            done, self._next_round = self._next_round, None
            try:
                await self._slots.stop(ids_of(batch))
                await self._slots.between_steps()
                for sequence in batch:
                    self._on_free(sequence)
            except Exception as error:  # noqa: BLE001
                # The engine died. Its death ends all sequences, also these.
                log.warning("engine.release.failed", extra={"sequences": len(batch), "error": repr(error)})
                self._let_go()
                return
            finally:
                if not done.done():
                    done.set_result(None)

    def _let_go(self) -> None:
        self._waiting.clear()
        if self._next_round is not None and not self._next_round.done():
            self._next_round.set_result(None)
        self._next_round = None
