"""One choice of a request, from the queue to its end: a small state machine fed by the pool and a link."""

from __future__ import annotations

import enum
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.v1 import inference_pb2 as api
from penstock.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types

from cluster.errors import (
    EngineRequestError,
    GenerationFailedError,
    InvalidRequestError,
    ModelChangedError,
    PenstockError,
    QueueTimeoutError,
    TakenOverError,
)
from cluster.queue.entries import Grant, QueueEntry
from cluster.ticket import TicketChoice
from router.dispatch.account import Account, Prices, Ran
from router.dispatch.continuity import Continuity
from router.dispatch.contract import Dispatch, Placement
from router.dispatch.history import History
from router.dispatch.recovery import Failure, Fit, Group, Next, after_failure
from router.dispatch.unread import Dropped, Unread

if TYPE_CHECKING:
    from router.dispatch.link import ReplicaLink

_LOG = logging.getLogger(__name__)


NO_PRICES = Prices()

NO_END = "must be the end of a delta, got {}"
"""What is wrong with an offset that a client comes back with."""

WriteThrough = Callable[[int, Sequence[int], str], bool]
"""Sends a delta at once (its offset, token ids and text), or says that it did not."""


class ChoiceState(enum.Enum):
    """Is where a choice is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    """It has a slot: its start was sent, output may come."""
    ENDED = "ended"


class Choice:
    """Is a `Receiver`. Collects output until the request's writer takes it."""

    def __init__(
        self,
        index: int,
        entry: QueueEntry,
        start: pb.Start,
        pool: Dispatch,
        prices: Prices = NO_PRICES,
        deadline: float | None = None,
        on_start: Callable[[str], None] | None = None,
        arrived_at: float | None = None,
    ) -> None:
        """`deadline` is the moment on the monotonic clock by which it must have ended. `on_start` is told each replica
        that the choice is started on. `arrived_at`: when the call came, now by default.
        """
        self.index = index
        self.entry = entry
        self.state = ChoiceState.WAITING
        self.attempt = ""
        self.position = 0
        """Waiting entries ahead, as last heard."""
        self.watched = False
        """Whether its client is told its position."""
        self.end: pb.AttemptEnd | None = None
        self.error: PenstockError | None = None
        """Why the choice can't go on; the request then ends with it."""
        self.run_id = ""
        """Identity of the store that has its entry."""
        self.adopted = False
        """Whether its entry, with the bound on its wait, was made by another call."""
        self.tokens = 0
        """Output tokens handed on or pending."""
        self.link: ReplicaLink | None = None
        self.sink = 0
        self.history = History()
        """All output, where it is known."""
        self.prefix: api.Delta | None = None
        """The output before this choice attached."""
        self.predicted_wait_s: float | None = None
        """The first estimate of its whole wait; None when it did not have to wait, or nothing was known."""
        self.waited_s: float | None = None
        """How long it waited for its first slot."""
        self.account = Account(index, entry.prompt_tokens, prices)
        self.continuity = Continuity()
        self.submitted_at = time.monotonic()
        self.arrived_at = self.submitted_at if arrived_at is None else arrived_at
        """When its call came."""
        self.granted_at = 0.0
        self.first_token_at = 0.0
        self.inherited = False
        """Whether it has the output of a call that it took over from, and waits to go on from there."""
        self.left = False
        """Whether its attempt was left to whoever comes back for it."""
        self.announced = True
        """False while a `started` or `resumed` event is owed to the client."""
        self.through: WriteThrough | None = None
        """Is offered plain output that nothing is pending before."""
        self._start = start
        self._pool = pool
        self._on_start = on_start
        self._wake = self._tell_end = _nothing
        self._cancelled: types.FinishReason.ValueType | None = None
        """What it ends with once it stops, when it was told to stop."""
        self._abandoned = False
        self._lost = 0
        """Attempts that failed."""
        self._suspected = False
        """Whether an engine died under it, and it had no output yet."""
        self._tokens_before = 0
        """Output tokens before this attempt."""
        self._yielding = False
        """It was told to give way, and its attempt is being stopped."""
        self._deadline = deadline
        self._queued_at = self.submitted_at
        self._began_at = 0.0
        """First token of this attempt."""
        self._placement: Placement | None = None
        self._unread = Unread()

    def bind(self, wake: Callable[[], None], tell_end: Callable[[], None]) -> None:
        """Call `wake()` whenever there is something for the client, and `tell_end()` when nothing more comes."""
        self._wake, self._tell_end = wake, tell_end

    def entry_now(self) -> QueueEntry:
        """Describe it to a store that does not know it."""
        if self.waited_s is not None:
            # It goes on: charged already, and its wait is not bounded any more.
            entry = replace(self.entry, resume=True, start_within_ms=0, late_after_ms=0, client_key="")
            # A store that forgot it counts its attempts from one again, and no two may have one name.
            return replace(entry, attempt_base=secrets.token_hex(6))
        passed_ms = int((time.monotonic() - self.submitted_at) * 1000)
        bounds = (self.entry.start_within_ms, self.entry.late_after_ms)
        start_ms, late_ms = (max(1, bound - passed_ms) if bound else 0 for bound in bounds)
        return replace(self.entry, start_within_ms=start_ms, late_after_ms=late_ms)

    @property
    def taken_over(self) -> bool:
        """Whether it gets the output of an attempt that another router started."""
        return self.state is ChoiceState.RUNNING and not self.granted_at and self.link is not None and self.link.up

    @property
    def has_time(self) -> bool:
        """Whether the bound on its wait is not reached, whatever the pool's clock says, which may be stepped."""
        bound_ms = 0 if self.adopted or self.waited_s is not None else self.entry.start_within_ms
        return (time.monotonic() - self.submitted_at) * 1000 < bound_ms

    @property
    def late(self) -> bool:
        """Whether it waits for so long that it lets others pass."""
        after_ms = self.entry.late_after_ms
        return self.waited_s is None and 0 < after_ms <= (time.monotonic() - self.submitted_at) * 1000

    # --- from the pool ------------------------------------------------------------------------------------------------

    def may_run_on(self, place: Placement, elsewhere: Iterable[Group]) -> bool:
        """Decide about a granted place, given the groups of the other replicas that take work. Where output can't go
        on, the grant is given back, or the choice fails.
        """
        match self.continuity.try_place(place.group, elsewhere):
            case Fit.WAIT:
                self._pool.refuse(self)
                return False
            case Fit.NEVER:
                self._fail_with_usage("no replica is left with the weights of its output")
                self._pool.release(self)
                return False
            case _:
                pass
        if "" != self._start.tokenizer_digest != place.tokenizer_digest != "":
            self._misread()
            return False
        return True

    def _misread(self) -> None:
        """Fail: the engine that it got would read its ids as another text."""
        if self.tokens:
            self._fail_with_usage("the pool's model changed")
        else:
            self._fail(ModelChangedError(self.entry.request_id))
        self._pool.release(self)

    def run_on(self, grant: Grant, place: Placement) -> None:
        """Start, or go on, on the replica that the grant names."""
        self._take_place(grant.attempt, place)
        self.granted_at = time.monotonic()
        if self.waited_s is None:
            self.waited_s = self.queue_s
        start = pb.Start()
        start.CopyFrom(self._start)
        if self._deadline is not None:
            start.time_left_ms = max(1, int((self._deadline - self.granted_at) * 1000))
        if self.tokens:
            origin = self.continuity.origin or place.group
            start.resume.CopyFrom(self.history.record(origin.model_digest))
        # An engine that dies under it then died of it, whatever other routers suspect meanwhile.
        start.alone = self._suspected
        self._tokens_before = self.tokens
        self.sink = place.link.open_sink(self, self.entry.request_id, grant.attempt, self.tokens)
        place.link.send_start(self.sink, start)
        if self._on_start is not None:
            self._on_start(place.link.replica_id)

    def attach_to(self, attempt: str, place: Placement, offset: int) -> None:
        """Take over a running attempt; the client already has `offset` tokens."""
        self._take_place(attempt, place)
        self.tokens = self._tokens_before = offset
        deadline = math.inf if self._deadline is None else self._deadline
        self.sink = place.link.open_sink(self, self.entry.request_id, attempt, offset, deadline=deadline)
        place.link.send_attach(self.sink)

    def inherit(self, old: Choice) -> None:
        """Take over from another call of this router what an interrupted choice has produced, where it waits with it;
        `go_on_from` delivers it.
        """
        if old.state is not ChoiceState.WAITING or not old.tokens or not old._known:
            return
        if self._start.sampling.HasField("logprobs"):
            # Log probabilities are not remembered.
            return
        self.inherited = True
        self.history, self.continuity, self.account = old.history, old.continuity, old.account
        self.attempt, self.tokens, self.waited_s, self._lost = old.attempt, old.tokens, old.waited_s, old._lost

    def go_on_from(self, offset: int) -> None:
        """Deliver what was inherited behind the first `offset` tokens, which the client has.

        Raises:
            InvalidRequestError: that is not the end of a delta.
        """
        at = self.history.characters_at(offset)
        if at is None:
            raise InvalidRequestError.of("resume.received_tokens", NO_END.format(offset))
        ids, text = self.history.token_ids, self.history.text
        self.prefix = api.Delta(choice_index=self.index, token_ids=ids[:offset], text=text[:at])
        if offset < self.tokens:
            self._unread.add(ids[offset:], text[at:], ())
            self._wake()

    def _take_place(self, attempt: str, place: Placement) -> None:
        self.state = ChoiceState.RUNNING
        self.granted_at = self._began_at = 0.0
        self.attempt, self.link, self._placement = attempt, place.link, place
        self.announced = False
        self._wake()

    def ordered(self, kind: str) -> None:
        """Obey an order of the queue; see `cluster.queue.Order`."""
        if kind == "expired" and self.state is ChoiceState.WAITING:
            self._fail(QueueTimeoutError(time.monotonic() - self.submitted_at))
            # It may have been charged for a grant that was refused.
            self._pool.withdraw(self)
        elif kind == "cancel":
            self.cancel()
        elif kind == "moved":
            self.on_detached()
        elif kind == "preempt" and self.state is ChoiceState.RUNNING and not (self._stopping or self._yielding):
            self._yielding = True
            if self.link is not None:
                self.link.send_abort(self.sink)

    def cancel(self, *, deadline: bool = False) -> None:
        """Stop wherever it is; the end comes at once when it waits, else when the replica says its slot is free."""
        if self.state is ChoiceState.ENDED or self._cancelled is not None:
            return
        self._cancelled = types.FINISH_REASON_DEADLINE if deadline else types.FINISH_REASON_CANCELLED
        if self.state is ChoiceState.WAITING:
            self._finish(pb.AttemptEnd(finish_reason=self._cancelled))
            self._pool.withdraw(self)
        elif self.link is not None:
            self.link.send_abort(self.sink, deadline=deadline)

    # --- from the link (Receiver) -------------------------------------------------------------------------------------

    def on_delta(self, offset: int, token_ids: Sequence[int], text: str, logprobs: Sequence[object]) -> None:
        """Take new output; what is already here (after a re-attach) is dropped."""
        if offset != self.tokens:
            if offset + len(token_ids) <= self.tokens or self.state is ChoiceState.ENDED:
                return
            _LOG.error("choice.gap", extra={"request": self.entry.request_id, "have": self.tokens, "got": offset})
            if self.link is not None:
                self.link.send_abort(self.sink)
            self._fail_with_usage("output is missing")
            self._pool.release(self)
            return
        if not self._began_at:
            self._began_at = time.monotonic()
            self._clear()
            if self.link is not None:
                self._pool.note_output(self.link.replica_id)
            self.first_token_at = self.first_token_at or self._began_at
        self.history.add(token_ids, text)
        self.tokens = offset + len(token_ids)
        through = self.through
        if through and self.announced and not logprobs and not self._unread and through(offset, token_ids, text):
            # Nearly every token.
            return
        self._unread.add(token_ids, text, logprobs)
        self._wake()

    def on_history(self, history: pb.History) -> None:
        """Take the output that the client had before this choice attached."""
        self.history.add_all(history)
        if not self._start.sampling.HasField("logprobs"):
            # Log probabilities are not remembered, so a result with them could not be whole.
            self.prefix = api.Delta(choice_index=self.index, token_ids=history.token_ids, text=history.text)

    def on_end(self, end: pb.AttemptEnd) -> None:
        """Learn that the attempt ended and its slot is free."""
        if self.state is not ChoiceState.RUNNING:
            return
        if end.finish_reason == types.FINISH_REASON_ERROR:
            self._failed(end)
            return
        unasked = end.finish_reason == types.FINISH_REASON_CANCELLED and not self._stopping
        if unasked and not (self._yielding or end.draining):
            # Its replica had given it up when this router attached.
            self._lose(Failure.LINK, end)
            return
        self._note_attempt(end)
        if unasked:
            self._go_on(acknowledge=True)
            return
        self._finish(end)
        self._pool.release(self)

    def _failed(self, end: pb.AttemptEnd) -> None:
        request_id = self.entry.request_id
        if end.invalid_request and not self.tokens:
            self._note_attempt(end)
            self._fail(refused_by_engine(end.error))
            self._pool.release(self)
            return
        _LOG.error("choice.engine_failed", extra={"request": request_id, "error": end.error})
        self._lose(Failure.ENGINE_DIED if end.engine_died else Failure.ENGINE, end)

    def on_refused(self, refusal: pb.Refusal) -> None:
        """Learn that a start or attach was refused."""
        if self.state is not ChoiceState.RUNNING:
            return
        if self._cancelled is not None:
            # Cancelled before it was started: nothing runs, so the slot is free.
            self._finish(pb.AttemptEnd(finish_reason=self._cancelled))
            self._pool.release(self)
        elif refusal.reason == pb.REFUSAL_REASON_INVALID:
            if self.tokens:
                # What is wrong is how it should go on, not what the client asked for.
                self._fail_with_usage(refusal.detail)
            else:
                self._fail(refused_by_engine(refusal.detail))
            self._pool.release(self)
        elif refusal.reason == pb.REFUSAL_REASON_OTHER_TOKENIZER:
            self._misread()
        elif refusal.reason == pb.REFUSAL_REASON_BAD_OFFSET and not (self.granted_at or self._began_at or self._known):
            # It is the client that is wrong: what it asks for runs on, and it may come back for it.
            self.leave(InvalidRequestError.of("resume.received_tokens", NO_END.format(self.tokens)))
        elif self._unbegun:
            # Window full, draining, or a start that a broken link swallowed: nothing ran, so wait for another slot.
            self._leave_place(acknowledge=False, queued_at=self._queued_at)
            self._pool.refuse(self)
        elif refusal.reason == pb.REFUSAL_REASON_UNKNOWN:
            # The replica gave it up while the link was broken.
            self._lose(Failure.LINK)
        else:
            if self.link is not None:
                # It runs on there, and nobody takes its output.
                self.link.stop(self.entry.request_id, self.attempt)
            self._fail_with_usage(refusal.detail)
            self._pool.release(self)

    def on_detached(self) -> None:
        """Learn that another router or call took over: nothing more comes here, and the slot is not ours."""
        if self.state is not ChoiceState.ENDED:
            self.state, self.through = ChoiceState.ENDED, None
            self.error = TakenOverError(self.entry.request_id)
            self._clear()
            self._pool.hand_over(self)
            self._wake()
            self._tell_end()

    def on_lost(self, failure: Failure) -> None:
        """Learn that nothing more comes from this attempt."""
        if self.state is ChoiceState.RUNNING:
            self._lose(failure)

    @property
    def _unbegun(self) -> bool:
        """Whether this attempt had no output, and all output before it is known here."""
        return not self._began_at and self._known

    @property
    def _known(self) -> bool:
        """Whether all output is known here; not so where another router had the first part and did not hand it on."""
        return self.tokens == len(self.history)

    @property
    def _stopping(self) -> bool:
        return self._cancelled is not None

    def _lose(self, failure: Failure, end: pb.AttemptEnd | None = None) -> None:
        """Do without this attempt; `end` is None where its replica does not say what it used."""
        self._lost += 1
        replica = self._placement.link.replica_id if self._placement is not None else ""
        self._pool.note_loss(failure, replica)
        if end is None:
            self._note_attempt(self._unreported(), self._silent_s)
        else:
            self._note_attempt(end)
        following = after_failure(
            self._pool.recovery,
            lost=self._lost,
            cancelled=self._stopping,
            known=self._known,
            tokens=self.tokens,
            max_tokens=self.entry.max_tokens,
        )
        _LOG.warning(
            "choice.attempt_lost",
            extra={
                "request": self.entry.request_id, "replica": replica, "failure": failure.value, "lost": self._lost,
                "tokens": self.tokens, "next": following.value,
            },
        )  # fmt: skip
        if following is Next.AGAIN:
            suspected = failure is Failure.ENGINE_DIED and not self.tokens
            self._go_on(acknowledge=end is not None or failure is Failure.STALLED, suspected=suspected)
            return
        if self._cancelled is not None:
            self._finish(pb.AttemptEnd(finish_reason=self._cancelled))
        elif following is Next.COMPLETE:
            self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_LENGTH))
        else:
            self._fail_with_usage(f"{self._lost} attempts were lost, the last one by: {failure.value}")
        self._pool.release(self)

    def _go_on(self, *, acknowledge: bool, suspected: bool = False) -> None:
        # Its turn comes again; what was delivered goes along.
        if self.tokens:
            sampling = self._start.sampling
            greedy = sampling.HasField("temperature") and sampling.temperature == 0.0
            self.continuity.interrupt(self._placement.group if self._placement is not None else None, greedy=greedy)
        self._leave_place(acknowledge=acknowledge)
        if suspected:
            self._suspected = True
            self._pool.suspect(self)
        else:
            self._pool.requeue(self)

    def _unreported(self) -> pb.AttemptEnd:
        """Say what is known here of an attempt whose replica does not answer. Its accelerator time is not, and counts
        as none.
        """
        place = self._placement
        decode_s = place.link.output_at - self._began_at if self._began_at and place is not None else 0.0
        return pb.AttemptEnd(
            finish_reason=types.FINISH_REASON_ERROR,
            output_tokens=self.tokens - self._tokens_before,
            decode_s=max(0.0, decode_s),
        )

    def _leave_place(self, *, acknowledge: bool, queued_at: float | None = None) -> None:
        """Wait again: from now on, or still, where nothing ran."""
        if self.link is not None:
            self.link.close_sink(self.sink, acknowledge=acknowledge)
        self.state, self.link, self.sink = ChoiceState.WAITING, None, 0
        self._yielding = False
        self._queued_at = time.monotonic() if queued_at is None else queued_at
        # Its place in line is news, and is told again each second; nothing else may come for long.
        self._wake()

    @property
    def _silent_s(self) -> float:
        """How long nothing was heard of this attempt."""
        place = self._placement
        heard_at = place.link.output_at if self._began_at and place is not None else self.granted_at
        return max(0.0, time.monotonic() - heard_at) if heard_at else 0.0

    def _note_attempt(self, end: pb.AttemptEnd, lost_s: float = 0.0) -> None:
        place = self._placement
        if place is not None:
            timed = self.granted_at and self._began_at
            prefill_s = self._began_at - self.granted_at if timed else end.prefill_s
            self.account.add(
                Ran(place.link.replica_id, place.group_id, self.queue_s, prefill_s, end, place.price_per_s, lost_s)
            )

    @property
    def queue_s(self) -> float:
        """How long it waited for its slot; 0 where another router got it."""
        return self.granted_at - self._queued_at if self.granted_at else 0.0

    def _fail_with_usage(self, detail: str) -> None:
        _LOG.error("choice.lost", extra={"request": self.entry.request_id, "detail": detail, "tokens": self.tokens})
        self._fail(GenerationFailedError(self.entry.request_id, self.tokens, self._lost, self.entry.prompt_tokens))

    def convict(self, error: PenstockError) -> None:
        """End it, where it waits: it kills engines."""
        self._fail(error)
        self._pool.withdraw(self)

    def content(self) -> bytes:
        """Return a digest of what is generated, the same for all tenants."""
        start = pb.Start()
        start.CopyFrom(self._start)
        start.ClearField("cache_salt")
        # Routers of the last release leave it out, and have the same marks.
        start.ClearField("tokenizer_digest")
        return hashlib.blake2b(start.SerializeToString(deterministic=True), digest_size=16).digest()

    def _clear(self) -> None:
        if self._suspected:
            self._suspected = False
            self._pool.cleared(self)

    def _fail(self, error: PenstockError) -> None:
        self.error = error
        self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, output_tokens=self.tokens))

    def _finish(self, end: pb.AttemptEnd) -> None:
        self.state, self.through = ChoiceState.ENDED, None
        self.end = end
        self._clear()
        self._wake()
        self._tell_end()
        if self._abandoned:
            self.forget()

    # --- to the client ------------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether a delta is pending."""
        return bool(self._unread)

    @property
    def begun(self) -> bool:
        """Whether this attempt had output."""
        return bool(self._began_at)

    @property
    def tokens_unread(self) -> int:
        """Output tokens that are pending."""
        return self._unread.tokens

    @property
    def tokens_sent(self) -> int:
        """Output tokens that are not pending any more."""
        return self.tokens - self._unread.tokens

    @property
    def unread_bytes(self) -> int:
        """Estimated bytes of the pending output."""
        return self._unread.size

    def stop_unread(self, error: PenstockError) -> None:
        """Drop the pending output and end: the client does not read it, and hears why once it has read what it was
        sent before.
        """
        self._unread, self.through = Dropped(), None
        self.error = error
        self.cancel()
        self._wake()

    def take_output(self) -> api.StreamGenerateResponse:
        """Return all pending output as one event."""
        return self._unread.take(self.index, self.tokens)

    def abandon(self) -> None:
        """Cancel it and expect nobody to read on; what the replica keeps is forgotten at the end."""
        self._wake = self._tell_end = _nothing
        self._abandoned = True
        if self.state is ChoiceState.ENDED:
            self.forget()
        else:
            self.cancel()

    def leave(self, error: PenstockError) -> None:
        """End here; its attempt, where one runs, is left to whoever comes back for it within the grace."""
        if self.state is ChoiceState.ENDED:
            return
        self.left = True
        self._end_here(self._pool.leave, error)

    def park(self, error: PenstockError) -> None:
        """End here without ending the work: whoever adopts it, within the grace, goes on with it."""
        if self.state is not ChoiceState.ENDED:
            self._end_here(self._pool.park, error)

    def _end_here(self, let_go: Callable[[Choice], None], error: PenstockError) -> None:
        let_go(self)
        self.error = error
        self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, output_tokens=self.tokens))
        if self.link is not None and self.sink:
            self.link.close_sink(self.sink, acknowledge=False)
            self.sink = 0

    def forget(self) -> None:
        """Close the receiver; the client has everything, or nobody wants it."""
        if self.link is not None and self.sink:
            self.link.close_sink(self.sink, acknowledge=self.end is not None)
            self.sink = 0

    def ticket(self) -> TicketChoice:
        """Say where it runs."""
        if self.link is None:
            return TicketChoice()
        group = self._placement.group_id if self._placement is not None else ""
        return TicketChoice(self.attempt, self.link.replica_id, self.link.address, group)


def refused_by_engine(detail: str) -> InvalidRequestError:
    """Turn an engine's objection into a client error: what it objects to passed our own checks."""
    return InvalidRequestError.of("sampling", f"refused by the engine: {EngineRequestError(detail)}")


def _nothing() -> None:
    """Do nothing until a request is bound."""
