"""One choice of a request, from the queue to its end: a small state machine fed by the pool and a link."""

from __future__ import annotations

import enum
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from cluster.errors import (
    EngineRequestError,
    GenerationFailedError,
    InvalidRequestError,
    ModelChangedError,
    PenstockError,
    QueueTimeoutError,
    TakenOverError,
)
from cluster.plural import counted
from cluster.queue.entries import Grant, QueueEntry
from cluster.trust.resume_token import ResumeTokenChoice
from penstock.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.generation.attempt import Attempt
from router.generation.metering import AttemptMetering, Prices
from router.generation.output import NO_END, Output
from router.generation.recovery import Fit, Next, after_failure
from router.generation.resume_state import ResumeState
from router.links.failure import Failure, RecoveryLimits
from router.links.link import ReplicaLink
from router.links.placement import Group, Placement

_LOG = logging.getLogger(__name__)


NO_PRICES = Prices()


class Dispatch(Protocol):
    """Is what a choice asks of its pool."""

    @property
    def recovery(self) -> RecoveryLimits:
        """What its choices may lose."""

    def release(self, choice: Choice) -> None:
        """Give the slot back; the choice is over."""

    def requeue(self, choice: Choice) -> None:
        """Give the slot back, and wait for another one to go on."""

    def note_loss(self, failure: Failure, replica_id: str) -> None:
        """Count an attempt that was lost on a replica."""

    def note_output(self, replica_id: str) -> None:
        """Learn that an attempt on a replica had its first output."""

    def suspect(self, choice: Choice) -> None:
        """As `requeue`, but an engine died under it before its first output, so it may have to wait for its turn."""

    def cleared(self, choice: Choice) -> None:
        """Learn that a suspect had output, or is over."""

    def hand_over(self, choice: Choice) -> None:
        """Let go of a choice that is another router's, or another call's, now."""

    def park(self, choice: Choice) -> None:
        """Leave a choice as it is, for another router to adopt."""

    def leave(self, choice: Choice) -> None:
        """Leave a running attempt as it is, for whoever comes back for it."""

    def refuse(self, choice: Choice) -> None:
        """Give back a grant that could not be started, and wait again."""

    def withdraw(self, choice: Choice) -> None:
        """Leave the line."""


class ChoiceState(enum.Enum):
    """Is where a choice is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    """It has a slot: its start was sent, output may come."""
    ENDED = "ended"


class Choice:
    """Is a `Receiver`: brings what comes over a link to its output, until the request's writer takes it."""

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
        self.link: ReplicaLink | None = None
        """Of the replica that it runs, or ran last, on; None while it waits."""
        self.output = Output(index, logprobs=start.sampling.HasField("logprobs"))
        self.predicted_wait_s: float | None = None
        """The first estimate of its whole wait; None when it did not have to wait, or nothing was known."""
        self.waited_s: float | None = None
        """How long it waited for its first slot."""
        self.metering = AttemptMetering(index, entry.prompt_tokens, prices)
        self.resume_state = ResumeState()
        self.submitted_at = time.monotonic()
        self.arrived_at = self.submitted_at if arrived_at is None else arrived_at
        """When its call came."""
        self.first_arrived_at = self.arrived_at
        """When the first of the calls for it came, as far as the queue knows."""
        self.first_token_at = 0.0
        self.inherited = False
        """Whether it has the output of a call that it took over from, and waits to go on from there."""
        self.left = False
        """Whether its attempt was left to whoever comes back for it."""
        self.announced = True
        """False while a `started` or `resumed` event is owed to the client."""
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
        self._deadline = deadline
        self._others = False
        """Whether other replicas took work when this attempt was granted."""
        self._queued_at = self.submitted_at
        self._attempt: Attempt | None = None
        """The attempt, or the last one; None before the first."""

    def bind(self, wake: Callable[[], None], tell_end: Callable[[], None]) -> None:
        """Call `wake()` whenever there is something for the client, and `tell_end()` when nothing more comes."""
        self._wake, self._tell_end = wake, tell_end

    def entry_now(self) -> QueueEntry:
        """Describe it to a store that does not know it, nor its request's other choices."""
        entry = replace(self.entry, choices=1)
        if self.waited_s is not None:
            # It goes on: charged already, and its wait is not bounded any more.
            entry = replace(entry, resume=True, start_within_ms=0, late_after_ms=0, client_key="")
            # A store that forgot it counts its attempts from one again, and no two may have one name.
            return replace(entry, attempt_base=secrets.token_hex(6))
        passed_ms = int((time.monotonic() - self.submitted_at) * 1000)
        bounds = (entry.start_within_ms, entry.late_after_ms)
        start_ms, late_ms = (max(1, bound - passed_ms) if bound else 0 for bound in bounds)
        return replace(entry, start_within_ms=start_ms, late_after_ms=late_ms)

    @property
    def taken_over(self) -> bool:
        """Whether it gets the output of an attempt that another router started."""
        run = self._attempt
        return self.state is ChoiceState.RUNNING and run is not None and not run.granted_at and run.place.link.up

    @property
    def tokens(self) -> int:
        """Output tokens handed on or pending."""
        return self.output.tokens

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
        others = tuple(elsewhere)
        self._others = bool(others)
        match self.resume_state.try_place(place.group, others):
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
        run = self._take_place(grant.attempt, place, granted=True)
        if self.waited_s is None:
            self.waited_s = run.queue_s
        start = pb.Start()
        start.CopyFrom(self._start)
        if self._deadline is not None:
            start.time_left_ms = max(1, int((self._deadline - run.granted_at) * 1000))
        if self.tokens:
            origin = self.resume_state.origin or place.group
            start.resume.CopyFrom(self.output.history.record(origin.model_digest))
        # An engine that dies under it then died of it, whatever other routers suspect meanwhile.
        start.alone = self._suspected
        run.start(self, self.entry.request_id, grant.attempt, start)
        if self._on_start is not None:
            self._on_start(place.link.replica_id)

    def attach_to(self, attempt: str, place: Placement, offset: int) -> None:
        """Take over a running attempt; the client already has `offset` tokens."""
        self.output.tokens = offset
        self._take_place(attempt, place, granted=False).attach(self, self.entry.request_id, attempt, self._deadline)

    def inherit(self, old: Choice) -> None:
        """Take over from another call of this router what an interrupted choice has produced, where it waits with it;
        `go_on_from` delivers it.
        """
        if old.state is ChoiceState.WAITING and self.output.inherits(old.output):
            self.inherited = True
            self.resume_state, self.metering = old.resume_state, old.metering
            self.attempt, self.waited_s, self._lost = old.attempt, old.waited_s, old._lost

    def go_on_from(self, offset: int) -> None:
        """Deliver what was inherited behind the first `offset` tokens, which the client has.

        Raises:
            InvalidRequestError: that is not the end of a delta.
        """
        self.output.skip(offset)
        if self.output.pending:
            self._wake()

    def _take_place(self, attempt: str, place: Placement, *, granted: bool) -> Attempt:
        self.state = ChoiceState.RUNNING
        self.attempt, self.link = attempt, place.link
        self._attempt = Attempt(place, self._queued_at, self.tokens, granted=granted)
        self.announced = False
        self._wake()
        return self._attempt

    def ordered(self, kind: str) -> None:
        """Obey an order of the queue; see `cluster.queue.Order`."""
        if kind == "expired" and self.state is ChoiceState.WAITING:
            bound_ms = self.entry.start_within_ms
            waited_s = time.monotonic() - self.submitted_at
            self._fail(QueueTimeoutError(waited_s, bound_ms / 1000 if bound_ms else None))
            # It may have been charged for a grant that was refused.
            self._pool.withdraw(self)
        elif kind == "cancel":
            self.cancel()
        elif kind == "moved":
            self.on_detached()
        elif kind == "preempt" and (run := self._running) is not None and not (self._stopping or run.yielding):
            run.yielding = True
            run.abort()

    def cancel(self) -> None:
        """Stop wherever it is; the end comes at once when it waits, else when the replica says its slot is free."""
        if self.state is ChoiceState.ENDED or self._cancelled is not None:
            return
        self._cancelled = types.FINISH_REASON_CANCELLED
        if self.state is ChoiceState.WAITING:
            self._finish(pb.AttemptEnd(finish_reason=self._cancelled))
            self._pool.withdraw(self)
        elif self._attempt is not None:
            self._attempt.abort(final=True)

    @property
    def _running(self) -> Attempt | None:
        return self._attempt if self.state is ChoiceState.RUNNING else None

    # --- from the link (Receiver) -------------------------------------------------------------------------------------

    def on_delta(self, offset: int, token_ids: Sequence[int], text: str, logprobs: Sequence[object]) -> None:
        """Take new output; what is already here (after a re-attach) is dropped."""
        output, run = self.output, self._attempt
        if offset != output.tokens:
            if offset + len(token_ids) > output.tokens and self.state is not ChoiceState.ENDED:
                self._miss(offset)
            return
        if run is not None and not run.began_at and token_ids:
            self._begin(run)
        if output.add(token_ids, text, logprobs, plain=self.announced):
            self._wake()

    def _begin(self, run: Attempt) -> None:
        run.began_at = time.monotonic()
        self._clear()
        self._pool.note_output(run.place.link.replica_id)
        self.first_token_at = self.first_token_at or run.began_at

    def _miss(self, offset: int) -> None:
        _LOG.error("choice.gap", extra={"request": self.entry.request_id, "have": self.tokens, "got": offset})
        if self._attempt is not None:
            self._attempt.abort()
        self._fail_with_usage("output is missing")
        self._pool.release(self)

    def on_history(self, history: pb.History) -> None:
        """Take the output that the client had before this choice attached."""
        self.output.remember(history)

    def on_end(self, end: pb.AttemptEnd) -> None:
        """Learn that the attempt ended and its slot is free."""
        if self.state is not ChoiceState.RUNNING:
            return
        if end.finish_reason == types.FINISH_REASON_ERROR:
            self._failed(end)
            return
        unasked = end.finish_reason == types.FINISH_REASON_CANCELLED and not self._stopping
        yielding = self._attempt is not None and self._attempt.yielding
        if unasked and not (yielding or end.draining):
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
            if self.tokens and self._others and self.resume_state.refused() and self.output.known:
                # Engines of one pool may be of several kinds, and another one may be able to.
                self._leave_place(acknowledge=False, queued_at=self._queued_at)
                self._pool.refuse(self)
                return
            if self.tokens:
                # What is wrong is how it should go on, not what the client asked for.
                self._fail_with_usage(refusal.detail)
            else:
                self._fail(refused_by_engine(refusal.detail))
            self._pool.release(self)
        elif refusal.reason == pb.REFUSAL_REASON_OTHER_TOKENIZER:
            self._misread()
        elif refusal.reason == pb.REFUSAL_REASON_BAD_OFFSET and self._at_clients_offset:
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
            self.state, self.output.through = ChoiceState.ENDED, None
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
        return not self.begun and self.output.known

    @property
    def _at_clients_offset(self) -> bool:
        """Whether this attempt is another router's, and its client alone says where it goes on."""
        return self._attempt is not None and not (self._attempt.granted_at or self.begun or self.output.known)

    @property
    def _stopping(self) -> bool:
        return self._cancelled is not None

    def _lose(self, failure: Failure, end: pb.AttemptEnd | None = None) -> None:
        """Do without this attempt; `end` is None where its replica does not say what it used."""
        self._lost += 1
        replica = self._attempt.place.link.replica_id if self._attempt is not None else ""
        self._pool.note_loss(failure, replica)
        self._note_attempt(end)
        following = after_failure(
            self._pool.recovery,
            lost=self._lost,
            cancelled=self._stopping,
            known=self.output.known,
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
            self._fail_with_usage(
                f"{counted(self._lost, 'attempt was', 'attempts were')} lost, the last one by: {failure.value}"
            )
        self._pool.release(self)

    def _go_on(self, *, acknowledge: bool, suspected: bool = False) -> None:
        # Its turn comes again; what was delivered goes along.
        if self.tokens:
            sampling = self._start.sampling
            greedy = sampling.HasField("temperature") and sampling.temperature == 0.0
            self.resume_state.interrupt(self._attempt.place.group if self._attempt is not None else None, greedy=greedy)
        self._leave_place(acknowledge=acknowledge)
        if suspected:
            self._suspected = True
            self._pool.suspect(self)
        else:
            self._pool.requeue(self)

    def _leave_place(self, *, acknowledge: bool, queued_at: float | None = None) -> None:
        """Wait again: from now on, or still, where nothing ran."""
        if self._attempt is not None:
            self._attempt.close(acknowledge=acknowledge)
        self.state, self.link = ChoiceState.WAITING, None
        self._queued_at = time.monotonic() if queued_at is None else queued_at
        # Its place in line is news, and is told again each second; nothing else may come for long.
        self._wake()

    def _note_attempt(self, end: pb.AttemptEnd | None) -> None:
        if self._attempt is not None:
            self.metering.add(self._attempt.lost(self.tokens) if end is None else self._attempt.over(end))

    @property
    def queue_s(self) -> float:
        """How long it waited for its slot; 0 where another router got it."""
        return self._attempt.queue_s if self._attempt is not None else 0.0

    def _fail_with_usage(self, detail: str) -> None:
        _LOG.error("choice.lost", extra={"request": self.entry.request_id, "detail": detail, "tokens": self.tokens})
        entry = self.entry
        self._fail(GenerationFailedError(entry.request_id, self.tokens, self._lost, entry.prompt_tokens, detail))

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
        self.state, self.output.through = ChoiceState.ENDED, None
        self.end = end
        self._clear()
        self._wake()
        self._tell_end()
        if self._abandoned:
            self.forget()

    # --- to the client ------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether this attempt had output."""
        return self._attempt is not None and bool(self._attempt.began_at)

    def stop_unread(self, error: PenstockError) -> None:
        """Drop the pending output and end: the client does not read it, and hears why once it has read what it was
        sent before.
        """
        self.output.drop()
        self.error = error
        self.cancel()
        self._wake()

    def abandon(self) -> None:
        """Cancel it and expect nobody to read on; what the replica keeps is forgotten at the end."""
        self._wake = self._tell_end = _nothing
        self._abandoned = True
        if self.state is ChoiceState.ENDED:
            self.forget()
        else:
            self.cancel()

    def leave(self, error: PenstockError) -> None:
        """End here; its attempt, or what the replica keeps of one that has ended, is left to whoever comes back for it
        within the grace.
        """
        self.left = True
        self._end_here(self._pool.leave, error)

    def park(self, error: PenstockError) -> None:
        """End here without ending the work: whoever adopts it, within the grace, goes on with it."""
        self._end_here(self._pool.park, error)

    def _end_here(self, let_go: Callable[[Choice], None], error: PenstockError) -> None:
        if self.state is not ChoiceState.ENDED:
            let_go(self)
            self.error = error
            self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, output_tokens=self.tokens))
        if self._attempt is not None:
            # Acknowledged, it would be forgotten; who goes on with the request needs the end of each choice.
            self._attempt.close(acknowledge=False)

    def forget(self) -> None:
        """Close the receiver; the client has everything, or nobody wants it."""
        if self._attempt is not None:
            self._attempt.close(acknowledge=self.end is not None)

    def ticket(self) -> ResumeTokenChoice:
        """Say where it runs."""
        if self.link is None or self._attempt is None:
            return ResumeTokenChoice()
        return ResumeTokenChoice(self.attempt, self.link.replica_id, self.link.address, self._attempt.place.group_id)


def refused_by_engine(detail: str) -> InvalidRequestError:
    """Turn an engine's objection into a client error: what it objects to passed our own checks."""
    return InvalidRequestError.of("sampling", f"refused by the engine: {EngineRequestError(detail)}")


def _nothing() -> None:
    """Do nothing until a request is bound."""
