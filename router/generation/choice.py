"""One choice of a request, from the queue to its end. Its states are in `choice_state`; the pool and a link feed it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cluster.errors import (
    GenerationFailedError,
    InvalidRequestError,
    ModelChangedError,
    PenstockError,
    TakenOverError,
)
from cluster.queue.entries import Grant, QueueEntry
from cluster.trust.resume_token import ResumeTokenChoice
from penstock.internal.v1 import replica_pb2 as pb
from penstock.v1 import types_pb2 as types
from router.generation.attempt import Again, Attempt, cancelled, nothing, refused_by_engine, whole
from router.generation.choice_state import ChoiceEvent, ChoiceState, state_after
from router.generation.dispatch_contract import Dispatch
from router.generation.metering import AttemptMetering, AttemptOutcome, Prices
from router.generation.output import NO_END, Output, asks_logprobs
from router.generation.recovery import Fit, Next, after_failure, losses_in_words
from router.generation.resume_state import ResumeState
from router.generation.wait import Wait
from router.links.failure import Failure
from router.links.link import ReplicaLink
from router.links.placement import Group, Placement
from router.links.receiver import Parsed

_LOG = logging.getLogger(__name__)
NO_PRICES = Prices()


class Choice:
    """One choice: a `Receiver` of its attempts' output, and where its writer takes that output from."""

    # As a dictionary its attributes would take a kilobyte more: Python shares the names of 30 at most.
    __slots__ = (
        "__weakref__", "_abandoned", "_attempt", "_deadline", "_lost", "_others", "_pool", "_suspect", "_tell_end",
        "_wake", "again", "announced", "attempt", "end", "entry", "error", "first_token_at", "images", "index",
        "inherited", "link", "metering", "model_digest", "on_start", "output", "queued_at", "resume_state", "run_id",
        "start", "state", "together", "wait",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        entry: QueueEntry,
        start: pb.Start,
        pool: Dispatch[Choice],
        prices: Prices = NO_PRICES,
        *,
        deadline: float | None = None,
        on_start: Callable[[str], None] | None = None,
        arrived_at: float | None = None,
    ) -> None:
        """Make a choice that waits.

        Args:
            index: of the choice in its request, from 0.
            entry: what the queue is told of it.
            start: what a replica is told of it. `again` makes it anew for a replica with another tokenizer.
            pool: where it runs.
            prices: of its tokens.
            deadline: moment on the monotonic clock by which it must have ended.
            on_start: told each replica that the choice is started on.
            arrived_at: when the call came, on the same clock; now by default.
        """
        self.index, self.entry, self.start, self.on_start = index, entry, start, on_start
        self._pool, self._deadline = pool, deadline
        self.state, self.attempt = ChoiceState.WAITING, ""
        self.wait = Wait(entry, arrived_at)
        self.end: pb.AttemptEnd | None = None
        self.error: PenstockError | None = None
        """Why the choice can't go on; the request then ends with it."""
        self.run_id = ""
        """Identity of the store that has its entry."""
        self.link: ReplicaLink | None = None
        """Link to the replica that it runs, or ran last, on; None while it waits."""
        self.output = Output(index, logprobs=asks_logprobs(start.sampling), parsed=start.HasField("parsing"))
        self.metering = AttemptMetering(index, entry.prompt_tokens, prices)
        self.resume_state = ResumeState()
        self.first_token_at = 0.0
        self.inherited = False
        """Whether it has the output of a call that it took over from, and waits to go on from there."""
        self.announced = True
        """False while a `started` or `resumed` event is owed to the client."""
        self.again: Again | None = None
        self.images: Sequence[tuple[str, bytes]] = ()
        self.together: Sequence[Choice] = ()
        """Choices of its request whose results are compared, itself among them. All run in one model."""
        self.model_digest = ""
        """Model of its last place; empty where it had none, or the model is unknown."""
        self._wake = self._tell_end = nothing
        self._abandoned = False
        """Whether nothing of it is read any more."""
        self._lost, self._suspect = 0, False
        """Attempts that failed, and whether an engine died under it with no output since."""
        self._others: tuple[Group, ...] = ()
        """Groups of the other replicas that took work when its last place was granted."""
        self.queued_at = self.wait.submitted_at
        self._attempt: Attempt | None = None

    def _goes(self, event: ChoiceEvent) -> bool:
        """Change the state as the table says; returns whether the event applies."""
        if (following := state_after(self.state, event)) is None:
            return False
        self.state = following
        return True

    def bind(self, wake: Callable[[], None], tell_end: Callable[[], None]) -> None:
        """Call `wake()` whenever there is something for the client, and `tell_end()` when nothing more comes."""
        self._wake, self._tell_end = wake, tell_end

    @property
    def taken_over(self) -> bool:
        """Whether another router started the attempt whose output it gets."""
        attempt = self._attempt
        return self.state.runs and attempt is not None and not attempt.granted_at and attempt.place.link.up

    @property
    def tokens(self) -> int:
        """Output tokens handed on or pending."""
        return self.output.tokens

    # --- from the pool ------------------------------------------------------------------------------------------------

    def may_run_on(self, place: Placement, elsewhere: Iterable[Group]) -> bool:
        """Decide about a granted place, given the groups of the other replicas that take work.

        Where the output can't go on, the choice gives the grant back, or fails.
        """
        others = self._others = tuple(elsewhere)
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
        if not self.reads(place.group):
            self._pool.translate(self, place, others)
            return False
        return True

    def reads(self, group: Group) -> bool:
        """Return whether it can run there as it is: its ids mean the same, and no other model has begun its request."""
        if "" != self.start.tokenizer_digest != group.tokenizer_digest != "":
            return False
        begun = next((each.model_digest for each in self.together if not each.state.waits), "")
        return not begun or group.model_digest in ("", begun)

    def misread(self, error: PenstockError | None = None) -> None:
        """Fail: the engine that it got would read its ids as another text, and can't be given that engine's ids."""
        if self.tokens:
            self._fail_with_usage("the pool's model changed")
        else:
            self._fail(error or ModelChangedError(self.entry.of_request))
        self._pool.release(self)

    def _misread_there(self, attempt: Attempt | None) -> None:
        """Learn that a replica has another tokenizer than this router knew of."""
        if attempt is not None and not self.tokens and self.resume_state.refused():
            self._leave_place(acknowledge=False, queued_at=self.queued_at)
            self._pool.translate(self, attempt.place, self._others)
        else:
            self.misread()

    def run_on(self, grant: Grant, place: Placement) -> None:
        """Start, or go on, on the replica that the grant names."""
        attempt = self._take_place(grant.attempt, place, granted=True)
        if self.wait.waited_s is None:
            self.wait.waited_s = attempt.queue_s
        start = whole(self.start, self.images)
        if self._deadline is not None:
            start.time_left_ms = max(1, int((self._deadline - attempt.granted_at) * 1000))
        if self.tokens:
            origin = self.resume_state.origin or place.group
            record = self.output.history.record(origin.model_digest, self.resume_state.adapter_files)
            start.resume.CopyFrom(record)
        # An engine that dies under it then died of it, whatever other routers suspect meanwhile.
        start.alone = self._suspect
        attempt.start(self, self.entry.request_id, start)
        if self.on_start is not None:
            self.on_start(place.link.replica_id)

    def attach_to(self, attempt: str, place: Placement, offset: int) -> None:
        """Take over a running attempt; the client already has `offset` tokens."""
        self.output.tokens = offset
        self._take_place(attempt, place, granted=False).attach(self, self.entry.request_id, self._deadline)

    def inherit(self, old: Choice) -> None:
        """Take over the output of another call's choice that waits to go on; `go_on_from` delivers it."""
        if old.state.waits and self.output.inherits(old.output):
            self.inherited = True
            self.resume_state, self.metering = old.resume_state, old.metering
            self.attempt, self.wait.waited_s, self._lost = old.attempt, old.wait.waited_s, old._lost

    def go_on_from(self, offset: int) -> None:
        """Deliver what was inherited behind the first `offset` tokens, which the client has.

        Raises:
            InvalidRequestError: that is not the end of a delta.
        """
        self.output.skip(offset)
        if self.output.pending:
            self._wake()

    def _take_place(self, attempt: str, place: Placement, *, granted: bool) -> Attempt:
        self._goes(ChoiceEvent.PLACE)
        self.attempt, self.link, self.model_digest = attempt, place.link, place.model_digest
        self._attempt = Attempt(attempt, place, self.queued_at, self.tokens, granted=granted)
        self.announced = self.wait.told = False
        self._wake()
        return self._attempt

    def on_position(self, position: int) -> None:
        """Take how many are ahead in line, and tell the client."""
        if self.state.waits:
            self.wait.position, self.wait.told = position, False
            self._wake()

    def line_up(self) -> None:
        """Stand in line again, after it was held."""
        self._goes(ChoiceEvent.LINE_UP)

    def ordered(self, kind: str) -> None:
        """Obey an order of the queue (`cluster.queue.entries.Order`)."""
        if kind == "expired" and self.state.waits:
            self._fail(self.wait.overdue())
            # It may have been charged for a grant that was refused.
            self._pool.withdraw(self)
        elif kind == "cancel":
            self.cancel()
        elif kind == "moved":
            self.on_detached()
        elif kind == "preempt" and self._attempt is not None and self._goes(ChoiceEvent.YIELD):
            self._attempt.abort()

    def cancel(self) -> None:
        """Stop wherever it is; the end comes at once when it waits, else when the replica says its slot is free."""
        if not self._goes(ChoiceEvent.STOP):
            return
        if self.state is ChoiceState.ENDED:
            self._conclude(cancelled())
            self._pool.withdraw(self)
        elif self._attempt is not None:
            self._attempt.abort(final=True)

    # --- from the link (Receiver) -------------------------------------------------------------------------------------

    def on_prompt_logprobs(self, part: pb.PromptLogprobs) -> None:
        """Take log probabilities of the prompt, or a part of them."""
        self.output.add_prompt(part)

    def on_adapter(self, files: str) -> None:
        """Take the name of its adapter's files. One that goes on has those that the output came from."""
        self.resume_state.adapter_files = files

    def on_delta(
        self, offset: int, token_ids: Sequence[int], text: str, logprobs: Sequence[Any], parsed: Parsed = None
    ) -> None:
        """Take new output; what is already here (after a re-attach) is dropped."""
        output, attempt = self.output, self._attempt
        if offset != output.tokens:
            if offset + len(token_ids) > output.tokens and not self.state.over:
                self._miss(offset)
            return
        if attempt is not None and not attempt.began_at and token_ids:
            self._begin(attempt)
        if output.add(token_ids, text, logprobs, parsed, plain=self.announced):
            self._wake()

    def _begin(self, attempt: Attempt) -> None:
        attempt.began_at = time.monotonic()
        self._clear()
        self._pool.note_output(attempt.place.link.replica_id)
        self.first_token_at = self.first_token_at or attempt.began_at

    def _miss(self, offset: int) -> None:
        _LOG.error("choice.gap", extra={"request": self.entry.request_id, "have": self.tokens, "got": offset})
        if self._attempt is not None:
            self._attempt.abort()
        self._note_attempt(None, AttemptOutcome.LOST, Failure.LINK)
        self._fail_with_usage("output is missing")
        self._pool.release(self)

    def on_history(self, history: pb.History) -> None:
        """Take the output that the client had before this choice attached."""
        self.output.remember(history)

    def on_end(self, end: pb.AttemptEnd) -> None:
        """Learn that the attempt ended and its slot is free."""
        if not self.state.runs:
            return
        if end.finish_reason == types.FINISH_REASON_ERROR:
            self._failed(end)
            return
        unasked = end.finish_reason == types.FINISH_REASON_CANCELLED and self.state is not ChoiceState.STOPPING
        if unasked and not (self.state is ChoiceState.YIELDING or end.draining):
            # Its replica had given it up when this router attached.
            self._lose(Failure.LINK, end)
            return
        if unasked:
            self._note_attempt(end, AttemptOutcome.DRAINED if end.draining else AttemptOutcome.PREEMPTED)
            self._go_on(acknowledge=True)
            return
        stopped = end.finish_reason in (types.FINISH_REASON_CANCELLED, types.FINISH_REASON_DEADLINE)
        self._note_attempt(end, AttemptOutcome.CANCELLED if stopped else AttemptOutcome.COMPLETED)
        self._finish(end)
        self._pool.release(self)

    def _failed(self, end: pb.AttemptEnd) -> None:
        if end.invalid_request and not (self.tokens and self.state is ChoiceState.STOPPING):
            self._note_attempt(end, AttemptOutcome.REFUSED)
            self._refuse(end.error)
            return
        _LOG.error("choice.engine_failed", extra={"request": self.entry.request_id, "error": end.error})
        self._lose(Failure.ENGINE_DIED if end.engine_died else Failure.ENGINE, end)

    def _refuse(self, detail: str, *, elsewhere: bool = False) -> None:
        if self.tokens:
            # What is wrong is how it goes on, and the client has what came before.
            self._fail_with_usage(detail)
        else:
            self._fail(refused_by_engine(self.start, self.images, detail, elsewhere=elsewhere))
        self._pool.release(self)

    def on_refused(self, refusal: pb.Refusal) -> None:
        """Learn that a start or attach was refused."""
        if not self.state.runs:
            return
        if self.state is ChoiceState.STOPPING and self.begun:
            # Cancelled while the link was broken, and the replica gave it up.
            self._lose(Failure.LINK)
        elif self.state is ChoiceState.STOPPING:
            # Cancelled before it was started: nothing runs, so the slot is free.
            self._finish(cancelled())
            self._pool.release(self)
        elif refusal.reason == pb.REFUSAL_REASON_INVALID:
            another = (self.tokens or refusal.elsewhere) and self._others and self.output.known
            if another and self.resume_state.refused():
                # Replicas differ: one has another kind of engine, or could not load the adapter.
                self._leave_place(acknowledge=False, queued_at=self.queued_at)
                self._pool.refuse(self)
                return
            self._refuse(refusal.detail, elsewhere=refusal.elsewhere)
        elif refusal.reason == pb.REFUSAL_REASON_OTHER_TOKENIZER:
            self._misread_there(self._attempt)
        elif refusal.reason == pb.REFUSAL_REASON_BAD_OFFSET and self._at_clients_offset:
            # It is the client that is wrong: what it asks for runs on, and it may come back for it.
            self.leave(InvalidRequestError.of("resume.received_tokens", NO_END.format(self.tokens)))
        elif not self.begun and self.output.known:
            # Window full, draining, or a start that a broken link swallowed: nothing ran, so wait for another slot.
            self._leave_place(acknowledge=False, queued_at=self.queued_at)
            self._pool.refuse(self)
        elif refusal.reason == pb.REFUSAL_REASON_UNKNOWN:
            # The replica gave it up while the link was broken.
            self._lose(Failure.LINK)
        else:
            if self.link is not None:
                # It runs on there, and no call takes its output.
                self.link.stop(self.entry.request_id, self.attempt)
            self._fail_with_usage(refusal.detail)
            self._pool.release(self)

    def on_detached(self) -> None:
        """Learn that another router or call took over: nothing more comes here, and the slot is not ours."""
        if self._goes(ChoiceEvent.END):
            self.output.through = None
            self.error = TakenOverError(self.entry.of_request)
            self._clear()
            self._pool.hand_over(self)
            self._wake()
            self._tell_end()

    def on_lost(self, failure: Failure) -> None:
        """Learn that nothing more comes from this attempt."""
        if self.state.runs:
            self._lose(failure)

    @property
    def _at_clients_offset(self) -> bool:
        """Whether this attempt is another router's, and its client alone says where it goes on."""
        return self._attempt is not None and not (self._attempt.granted_at or self.begun or self.output.known)

    def _lose(self, failure: Failure, end: pb.AttemptEnd | None = None) -> None:
        """Do without this attempt; `end` is None where its replica does not say what it used."""
        self._lost += 1
        replica = self._attempt.place.link.replica_id if self._attempt is not None else ""
        self._pool.note_loss(failure, replica)
        self._note_attempt(end, AttemptOutcome.LOST, failure)
        following = after_failure(
            self._pool.recovery,
            lost=self._lost,
            cancelled=self.state is ChoiceState.STOPPING,
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
        if following is Next.CANCELLED:
            self._finish(cancelled())
        elif following is Next.COMPLETE:
            self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_LENGTH))
        elif failure is Failure.LINK and self._at_clients_offset:
            self._fail(GenerationFailedError.gone(self.entry.of_request, self.tokens, self._pool.recovery.kept_s))
        else:
            self._fail_with_usage(losses_in_words(self._lost, failure))
        self._pool.release(self)

    def _go_on(self, *, acknowledge: bool, suspected: bool = False) -> None:
        """Wait for another place; what was delivered goes along."""
        if self.tokens:
            sampling = self.start.sampling
            greedy = sampling.HasField("temperature") and sampling.temperature == 0.0
            self.resume_state.interrupt(self._attempt.place.group if self._attempt is not None else None, greedy=greedy)
        self._leave_place(ChoiceEvent.HOLD if suspected else ChoiceEvent.GO_ON, acknowledge=acknowledge)
        if suspected:
            self._suspect = True
            self._pool.suspect(self)
        else:
            self._pool.requeue(self)

    def _leave_place(
        self, event: ChoiceEvent = ChoiceEvent.GO_ON, *, acknowledge: bool, queued_at: float | None = None
    ) -> None:
        """Wait again: from now on, or since `queued_at` where nothing ran."""
        if self._attempt is not None:
            self._attempt.close(acknowledge=acknowledge)
        self._goes(event)
        self.link = None
        self.queued_at = time.monotonic() if queued_at is None else queued_at
        # Its place in line is news, and is told again each second; nothing else may come for long.
        self._wake()

    def _note_attempt(self, end: pb.AttemptEnd | None, outcome: AttemptOutcome, failure: str = "") -> None:
        if (attempt := self._attempt) is not None:
            if end is not None and end.vectors:
                self._begin(attempt)
            self.metering.add(attempt.over(end, self.tokens, outcome, failure))

    @property
    def last_attempt(self) -> Attempt | None:
        """The attempt, or the last one; None before the first."""
        return self._attempt

    def _fail_with_usage(self, detail: str) -> None:
        _LOG.error("choice.lost", extra={"request": self.entry.request_id, "detail": detail, "tokens": self.tokens})
        entry = self.entry
        self._fail(GenerationFailedError(entry.of_request, self.tokens, self._lost, entry.prompt_tokens, detail))

    def give_up(self, error: PenstockError) -> None:
        """End it with an error, where it waits."""
        self._fail(error)
        self._pool.withdraw(self)

    def _clear(self) -> None:
        if self._suspect:
            self._suspect = False
            self._pool.cleared(self)

    def _fail(self, error: PenstockError, event: ChoiceEvent = ChoiceEvent.END) -> None:
        self.error = error
        self._finish(pb.AttemptEnd(finish_reason=types.FINISH_REASON_ERROR, output_tokens=self.tokens), event)

    def _finish(self, end: pb.AttemptEnd, event: ChoiceEvent = ChoiceEvent.END) -> None:
        self._goes(event)
        self._conclude(end)

    def _conclude(self, end: pb.AttemptEnd) -> None:
        self.end, self.output.through = end, None
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
        """Drop the pending output and end. Once the client has read the rest it hears why its call ended first."""
        self.output.drop()
        self.error = self.error or error
        self.cancel()
        self._wake()

    def abandon(self) -> None:
        """Cancel it: nothing of it is read any more. What the replica keeps is forgotten at the end."""
        self._wake = self._tell_end = nothing
        self._abandoned = True
        if self.state.over:
            self.forget()
        else:
            self.cancel()

    def leave(self, error: PenstockError) -> None:
        """End here. Its attempt, or what the replica keeps of one that has ended, waits for the client's next call, as
        long as the grace.
        """
        if self.state.over:
            self._goes(ChoiceEvent.LEAVE)
        else:
            self._pool.leave(self)
            self._fail(error, ChoiceEvent.LEAVE)
        self._keep_on_replica()

    def park(self, error: PenstockError) -> None:
        """End here without ending the work: another router adopts it within the grace, and goes on with it."""
        if not self.state.over:
            self._pool.park(self)
            self._fail(error)
        self._keep_on_replica()

    def _keep_on_replica(self) -> None:
        if self._attempt is not None:
            # Acknowledged, it would be forgotten; the call that goes on with the request needs each choice's end.
            self._attempt.close(acknowledge=False)

    def forget(self) -> None:
        """Close the receiver: the client has everything, or wants nothing more."""
        if self._attempt is not None:
            self._attempt.close(acknowledge=self.end is not None)

    def where(self) -> ResumeTokenChoice:
        """Say where it runs."""
        return ResumeTokenChoice() if self.link is None or self._attempt is None else self._attempt.where()
