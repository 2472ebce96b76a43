"""Sequences whose images are read and that are not in the engine's batch yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol, TypeVar

from cluster.errors import EngineDeadError, EngineRequestError
from penstock.models import FinishReason

_LOG = logging.getLogger(__name__)


class _Ends(Protocol):
    @property
    def sequence_id(self) -> str: ...

    def end(
        self,
        reason: FinishReason,
        *,
        gpu_seconds: float = 0.0,
        error: str = "",
        invalid_request: bool = False,
        engine_died: bool = False,
    ) -> None: ...


Content = TypeVar("Content")


class Reading:
    """Reading of images beside the engine's work. No other sequence waits for it.

    These sequences have no slot and do no work on the accelerator, so the engine's meter does not know them: a long
    reading is no engine that hangs.
    """

    def __init__(self) -> None:
        self._work: dict[str, tuple[_Ends, asyncio.Task[None]]] = {}

    def begin(
        self, sequence: _Ends, read: Callable[[], Awaitable[Content]], enter: Callable[[Content], Awaitable[None]]
    ) -> None:
        """Read the images of a sequence, then let it enter the engine with them.

        Either may raise EngineRequestError or EngineDeadError, which end the sequence. `enter` must keep the sequence,
        or raise, before it first waits.
        """
        task = asyncio.create_task(self._run(sequence, read, enter), name=f"images.{sequence.sequence_id}")
        self._work[sequence.sequence_id] = (sequence, task)

    def ids(self) -> Collection[str]:
        """Return the ids of the sequences."""
        return tuple(self._work)

    def end(self, sequence_ids: Iterable[str], reason: FinishReason) -> None:
        """End sequences that are read; others are ignored."""
        for sequence_id in sequence_ids:
            if (found := self._work.pop(sequence_id, None)) is not None:
                found[1].cancel()
                found[0].end(reason)

    def fail_all(self, error: str, *, engine_died: bool) -> None:
        """End all sequences with an error."""
        failed, self._work = self._work, {}
        for sequence, task in failed.values():
            task.cancel()
            sequence.end(FinishReason.ERROR, error=error, engine_died=engine_died)

    async def _run(
        self, sequence: _Ends, read: Callable[[], Awaitable[Content]], enter: Callable[[Content], Awaitable[None]]
    ) -> None:
        try:
            content = await read()
        except Exception as error:  # noqa: BLE001 - the sequence ends with it
            del self._work[sequence.sequence_id]
            _fail(sequence, error)
            return
        del self._work[sequence.sequence_id]
        try:
            await enter(content)
        except Exception as error:  # noqa: BLE001 - as above
            _fail(sequence, error)


def _fail(sequence: _Ends, error: Exception) -> None:
    refused = isinstance(error, EngineRequestError)
    if not refused and not isinstance(error, EngineDeadError):
        _LOG.error("images.failed", extra={"sequence": sequence.sequence_id}, exc_info=error)
    sequence.end(
        FinishReason.ERROR,
        error=str(error),
        invalid_request=isinstance(error, EngineRequestError) and not error.elsewhere,
        engine_died=isinstance(error, EngineDeadError),
    )
