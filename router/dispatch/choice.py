"""One choice of a request, from the queue to its end: a small state machine fed by the pool and a link."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.v1 import inference_pb2 as api
from penstock.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types

from cluster.errors import (
    EngineRequestError,
    GenerationFailedError,
    InvalidRequestError,
    PenstockError,
    QueueTimeoutError,
)
from cluster.queue.base import Grant, QueueEntry
from cluster.ticket import TicketChoice
from cluster.wire import duration_to_wire

if TYPE_CHECKING:
    from router.dispatch.link import ReplicaLink

_LOG = logging.getLogger(__name__)


MAX_ATTEMPTS = 3
"""Replicas on which a choice without output is tried."""


class ChoiceState(enum.Enum):
    """Is where a choice is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    """It has a slot: its start was sent, output may come."""
    ENDED = "ended"


class Dispatch(Protocol):
    """Is what a choice asks of its pool."""

    def release(self, choice: Choice, output_tokens: int) -> None:
        """Give the slot back; the attempt is over."""
        ...

    def refuse(self, choice: Choice) -> None:
        """Give back a grant that could not be started, and wait again."""
        ...

    def withdraw(self, choice: Choice) -> None:
        """Leave the line."""
        ...


class Choice:
    """Is a `Receiver`. Collects output until the request's writer takes it."""

    def __init__(
        self,
        index: int,
        entry: QueueEntry,
        start: pb.Start,
        pool: Dispatch,
        on_start: Callable[[str], None] | None = None,
    ) -> None:
        """`on_start` is told each replica that the choice is started on."""
        self.index = index
        self.entry = entry
        self.state = ChoiceState.WAITING
        self.attempt = ""
        self.position = 0
        """Waiting entries ahead, as last heard."""
        self.end: pb.AttemptEnd | None = None
        self.error: PenstockError | None = None
        """Why the choice can't go on; the request then ends with it."""
        self.tokens = 0
        """Output tokens handed on or pending."""
        self.link: ReplicaLink | None = None
        self.sink = 0
        self.group_id = ""
        self.price_per_s = 0.0
        self.submitted_at = time.monotonic()
        self.granted_at = 0.0
        self.first_token_at = 0.0
        self.announced = True
        """False while a `started` event is owed to the client."""
        self._start = start
        self._pool = pool
        self._on_start = on_start
        self._wake = _nothing
        self._cancelled = False
        self._abandoned = False
        self._attempts = 0
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[types.PositionLogprobs] = []

    def bind(self, wake: object) -> None:
        """Call `wake()` whenever there is something for the client."""
        self._wake = wake  # type: ignore[assignment]

    # --- from the pool ------------------------------------------------------------------------------------------------

    def run_on(self, grant: Grant, link: ReplicaLink, group_id: str, price_per_s: float) -> None:
        """Start on the replica that the grant names."""
        self.granted_at = time.monotonic()
        self._take_link(grant.attempt, link, group_id, price_per_s)
        start = pb.Start()
        start.CopyFrom(self._start)
        self.sink = link.open_sink(self, self.entry.request_id, grant.attempt)
        link.send_start(self.sink, start)
        if self._on_start is not None:
            self._on_start(link.replica_id)

    def attach_to(self, attempt: str, link: ReplicaLink, group_id: str, price_per_s: float, offset: int) -> None:
        """Take over a running attempt; the client already has `offset` tokens."""
        self._take_link(attempt, link, group_id, price_per_s)
        self.tokens = offset
        self.sink = link.open_sink(self, self.entry.request_id, attempt, offset)
        link.send_attach(self.sink)

    def _take_link(self, attempt: str, link: ReplicaLink, group_id: str, price_per_s: float) -> None:
        self.state = ChoiceState.RUNNING
        self._attempts += 1
        self.attempt, self.link = attempt, link
        self.group_id, self.price_per_s = group_id, price_per_s
        self.announced = False
        self._wake()

    def ordered(self, kind: str) -> None:
        """Obey an order of the queue: "cancel" or "expired"."""
        if kind == "expired" and self.state is ChoiceState.WAITING:
            self._fail(QueueTimeoutError(time.monotonic() - self.submitted_at))
            self._pool.release(self, 0)
        elif kind == "cancel":
            self.cancel()

    def cancel(self, *, deadline: bool = False) -> None:
        """Stop wherever it is; the end comes at once when it waits, else when the replica says its slot is free."""
        if self.state is ChoiceState.WAITING:
            self._cancelled = True
            reason = types.FINISH_REASON_DEADLINE if deadline else types.FINISH_REASON_CANCELLED
            self._finish(pb.AttemptEnd(finish_reason=reason))
            self._pool.withdraw(self)
        elif self.state is ChoiceState.RUNNING and not self._cancelled and self.link is not None:
            self._cancelled = True
            self.link.send_abort(self.sink, deadline=deadline)

    # --- from the link (Receiver) -------------------------------------------------------------------------------------

    def on_delta(self, offset: int, token_ids: Sequence[int], text: str, logprobs: Sequence[object]) -> None:
        """Take new output; what is already here (after a re-attach) is dropped."""
        if offset != self.tokens:
            if offset + len(token_ids) <= self.tokens:
                return
            _LOG.error("choice.gap", extra={"request": self.entry.request_id, "have": self.tokens, "got": offset})
            self._fail(GenerationFailedError(self.entry.request_id, self.tokens))
            return
        if not self.first_token_at:
            self.first_token_at = time.monotonic()
        self.tokens = offset + len(token_ids)
        self._ids.extend(token_ids)
        if text:
            self._texts.append(text)
        if logprobs:
            self._logprobs.extend(logprobs)  # type: ignore[arg-type]
        self._wake()

    def on_end(self, end: pb.AttemptEnd) -> None:
        """Learn that the attempt ended and its slot is free."""
        if self.state is ChoiceState.ENDED:
            return
        if end.finish_reason == types.FINISH_REASON_ERROR:
            if self.tokens == 0 and not self._cancelled and self._attempts < MAX_ATTEMPTS:
                self._wait_again()
                return
            _LOG.error("choice.engine_failed", extra={"request": self.entry.request_id, "error": end.error})
            self.error = GenerationFailedError(self.entry.request_id, self.tokens)
        self._finish(end)
        self._pool.release(self, end.output_tokens)

    def on_refused(self, refusal: pb.Refusal) -> None:
        """Learn that a start or attach was refused."""
        if self.state is not ChoiceState.RUNNING:
            return
        if self._cancelled:
            # Cancelled before it was started: nothing runs, so the slot is free.
            self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_CANCELLED))
            self._pool.release(self, 0)
        elif refusal.reason == pb.REFUSAL_REASON_INVALID:
            self._fail(refused_by_engine(refusal.detail))
            self._pool.release(self, 0)
        elif self.tokens == 0:
            # Window full, draining, or a start that a broken link swallowed: nothing ran, so wait for another slot.
            self._wait_again()
        else:
            self._lost(refusal.detail)

    def on_detached(self) -> None:
        """Learn that another router took over: nothing more comes here, and the slot is the other router's."""
        if self.state is ChoiceState.RUNNING:
            self.state = ChoiceState.ENDED
            self.error = GenerationFailedError(self.entry.request_id, self.tokens)
            self._wake()

    def on_link_lost(self) -> None:
        """Learn that the link did not come back in time."""
        if self.state is not ChoiceState.RUNNING:
            return
        if self.tokens == 0 and not self._cancelled and self._attempts < MAX_ATTEMPTS:
            self._wait_again()
        else:
            self._lost("the link did not come back")

    def _wait_again(self) -> None:
        # The client has no output yet, so another replica may do it from the start.
        if self.link is not None:
            self.link.close_sink(self.sink, acknowledge=False)
        self.state, self.link, self.sink = ChoiceState.WAITING, None, 0
        self._pool.refuse(self)

    def _lost(self, detail: str) -> None:
        _LOG.error("choice.lost", extra={"request": self.entry.request_id, "detail": detail, "tokens": self.tokens})
        self._fail(GenerationFailedError(self.entry.request_id, self.tokens))
        self._pool.release(self, self.tokens)

    def _fail(self, error: PenstockError) -> None:
        self.error = error
        self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, output_tokens=self.tokens))

    def _finish(self, end: pb.AttemptEnd) -> None:
        self.state = ChoiceState.ENDED
        self.end = end
        self._wake()
        if self._abandoned:
            self.forget()

    # --- to the client ------------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether a delta is pending."""
        return bool(self._ids or self._texts)

    def take_output(self) -> api.StreamGenerateResponse:
        """Return all pending output as one event."""
        ids, self._ids = self._ids, []
        texts, self._texts = self._texts, []
        event = api.StreamGenerateResponse()
        # Filled in place: a finished delta given to the constructor would be copied.
        delta = event.delta
        delta.choice_index = self.index
        delta.text = texts[0] if len(texts) == 1 else "".join(texts)
        delta.token_ids.extend(ids)
        delta.offset = self.tokens - len(ids)
        if self._logprobs:
            delta.logprobs.extend(self._logprobs)
            self._logprobs = []
        return event

    def abandon(self) -> None:
        """Cancel it and expect nobody to read on; what the replica keeps is forgotten at the end."""
        self._wake = _nothing
        self._abandoned = True
        if self.state is ChoiceState.ENDED:
            self.forget()
        else:
            self.cancel()

    def forget(self) -> None:
        """Close the receiver; the client has everything, or nobody wants it."""
        if self.link is not None and self.sink:
            self.link.close_sink(self.sink, acknowledge=self.end is not None)
            self.sink = 0

    def ticket(self) -> TicketChoice:
        """Say where it runs."""
        if self.link is None:
            return TicketChoice()
        return TicketChoice(self.attempt, self.link.replica_id, self.link.address, self.group_id)

    def receipt(self) -> types.AttemptReceipt | None:
        """Explain the attempt; None when it never ran."""
        end = self.end
        if end is None or self.link is None:
            return None
        prefill = self.first_token_at - self.granted_at if self.granted_at and self.first_token_at else end.prefill_s
        return types.AttemptReceipt(
            choice_index=self.index,
            replica_id=self.link.replica_id,
            group_id=self.group_id,
            queue_time=duration_to_wire(self.granted_at - self.submitted_at if self.granted_at else 0.0),
            prefill_time=duration_to_wire(prefill),
            decode_time=duration_to_wire(end.decode_s),
            engine_wait_time=duration_to_wire(end.engine_wait_s),
            output_tokens=end.output_tokens,
            cached_tokens=end.cached_tokens,
            gpu_seconds=end.gpu_seconds,
        )


def refused_by_engine(detail: str) -> InvalidRequestError:
    """Turn an engine's objection into a client error: what it objects to passed our own checks."""
    return InvalidRequestError.of("sampling", f"refused by the engine: {EngineRequestError(detail)}")


def _nothing() -> None:
    """Do nothing until a request is bound."""
