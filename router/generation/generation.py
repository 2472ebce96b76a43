"""A request with all its choices, as its one writer sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from cluster.errors import GenerationFailedError, PenstockError, ShuttingDownError, TakenOverError
from cluster.telemetry.tracing.context import RequestTrace
from cluster.trust.resume_token import ResumeToken
from cluster.trust.secret import ClusterSecret
from penstock.internal.v1 import replica_pb2 as pb
from penstock.models import ModelTask, Unenforced
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from penstock.wire import duration_to_wire, set_duration, unenforced_to_wire
from router.call_origin import call_origin
from router.generation.attempt import nothing
from router.generation.choice import Choice
from router.generation.choice_state import ChoiceState
from router.generation.metering import Totals
from router.generation.output import DirectWriter
from router.generation.unread import parsed_event
from router.generation.wait import EarlierRefusals
from router.news import News
from router.validation.values import Prompt

UNHURRIED_S = 0.5
"""How long output collects for a client that does not stream it, seconds."""
_ANY_NUMBER = 1 << 30
_GOES_ON = TakenOverError | ShuttingDownError
"""Errors of a call whose choices others have, or will have, one after another."""


class Generation:
    """Events of one request. `wait` and `take` are for one reader only."""

    def __init__(
        self,
        ticket: ResumeToken,
        choices: Sequence[Choice],
        secret: ClusterSecret,
        router_id: str,
        wait_s: Callable[[Choice], float | None],
        *,
        arrived_at: float,
        admitted_at: float,
        unenforced: Sequence[Unenforced] = (),
        trace: RequestTrace | None = None,
    ) -> None:
        """`wait_s` estimates the rest of a choice's wait; `arrived_at` and `admitted_at` are monotonic seconds."""
        self.request_id, self.pool, self.tenant = ticket.request_id, ticket.pool, ticket.tenant
        self.choices, self.ticket, self._secret = tuple(choices), ticket, secret
        self.router_id, self.arrived_at, self.admitted_at = router_id, arrived_at, admitted_at
        self.origin = call_origin()
        self.task, self.labels = ModelTask.GENERATE, tuple[str, ...]()
        self.alias = self.adapter = ""
        """Alias by which its caller named the model, and LoRA adapter; empty for none."""
        self.trace = trace
        """Trace of the call; None where traces are off."""
        self.plain_prompt = False
        """Whether the prompt was a text or token ids, and not a conversation."""
        self.prompt: Prompt | None = None
        """What the client sent, where its span shows it."""
        self.since_ms = 0
        """Arrival of the request's first call as its resume token has it, milliseconds since the Unix epoch; else 0."""
        self.refused: EarlierRefusals | None = None
        """Refusals of the same call before it was let in."""
        self._wait_s, self._unenforced = wait_s, unenforced
        self._news = News()
        self._news.set()
        self._hurried = True
        """Somebody reads as it comes: positions are told, and no choice's first token waits."""
        self._finished, self._tell_over = False, nothing
        self._enough = 1
        """Tokens of a choice that are worth a message."""
        self._patience_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """Set while output collects."""
        self._way: DirectWriter | None = None
        self.on_close = nothing
        for choice in self.choices:
            choice.bind(self._wake, self._end_collecting)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until `take` has something: output, a change, or news of the position."""
        if not self._news.is_set():
            await self._news.wait()
        self._news.clear()

    def collect(self, tokens: int, seconds: float, from_now: bool = False) -> None:
        """Let output collect before `wait` returns: until a choice has this many tokens, or one ends, or the first
        token has waited this long (`from_now`: until then, whether there is output or not).
        """
        self._enough, self._patience_s = tokens, seconds
        self.choices[0].output.enough = 0
        if from_now and tokens > 1:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._collected)

    @property
    def collects(self) -> bool:
        """Whether output may collect now."""
        return self._enough != 1

    def write_through(self, way: DirectWriter | None) -> None:
        """Write output to `way`, when it is ready, before `wait` returns for it; None stops that. Only output in the
        middle of a stream with one choice goes there, and none that something else has to leave before.
        """
        self._way = way
        first = self.choices[0]
        if len(self.choices) == 1:
            first.output.through = self._pass if way is not None and first.error is None else None

    def _pass(self, offset: int, token_ids: Sequence[int], text: str, parsed: pb.DeltaParsed | None) -> bool:
        way = self._way
        if way is None or self._enough != 1 or self._news.is_set() or not way.ready():
            return False
        index = self.choices[0].index
        if parsed is None:
            way.write_text(index, offset, token_ids, text)
        else:
            way.write(parsed_event(index, offset, token_ids, parsed), len(token_ids))
        return True

    def _pass_collected(self) -> bool:
        way, first = self._way, self.choices[0]
        if way is None or not self._streams_one() or first.error is not None or self._news.is_set() or not way.ready():
            return False
        self._stop_timer()
        self._enough = 1
        if (found := first.output.take_text()) is not None:
            way.write_text(first.index, *found)
        else:
            tokens = first.output.pending_tokens
            way.write(first.output.take(), tokens)
        return True

    def _wake(self) -> None:
        if self._enough == 1 or self._news.is_set():
            self._news.set()
            return
        enough, firsts = False, self._hurried and len(self.choices) > 1
        for choice in self.choices:
            if not choice.announced or choice.state.waits or choice.error is not None:
                self._news.set()
                return
            unread = choice.output.pending_tokens
            enough = enough or unread >= self._enough
            if firsts and unread and unread == choice.tokens:
                self._news.set()
                return
        if enough:
            if not self._pass_collected():
                self._news.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._patience_s, self._collected)
            if len(self.choices) == 1:
                # The timer or the last of these tokens brings the rest, so no token between has to ask here.
                self.choices[0].output.enough = self._enough

    def _collected(self) -> None:
        self._enough = 1
        self._stop_timer()
        if any(choice.output.pending for choice in self.choices) and not self._pass_collected():
            self._news.set()

    def _end_collecting(self) -> None:
        self._enough = 1
        self._news.set()
        if self._over():
            self._tell_over()
        elif self._way is not None and not (self.left or isinstance(self.error, _GOES_ON | None)):
            # The others can't make the request whole, and its writer may have to wait for the client.
            self.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self.choices[0].output.enough = 0
            self._timer.cancel()
            self._timer = None

    def take(self) -> list[api.StreamGenerateResponse]:
        """Return the pending events in order; the last one ever is `finished`.

        Raises:
            PenstockError: a choice failed; what was delivered before stays valid.
        """
        self._stop_timer()
        if self._streams_one() and self.choices[0].output.pending:
            # Nearly every call: one choice in the middle of its output.
            return [self.choices[0].output.take()]
        events: list[api.StreamGenerateResponse] = []
        for choice in self.choices:
            if not choice.announced and not choice.resume_state.broken:
                choice.announced = True
                events.append(api.StreamGenerateResponse(started=self._started(choice)))
            elif not choice.announced and choice.begun:
                # With its first token only: a place that turns out to be dead or full has resumed nothing.
                choice.announced = True
                events.append(api.StreamGenerateResponse(resumed=self._resumed(choice)))
            if choice.output.pending:
                events.append(choice.output.take())
        if self._hurried and any(choice.state.waits and not choice.wait.told for choice in self.choices):
            events.append(api.StreamGenerateResponse(queued=self._queued()))
        if self._over():
            if not events and (error := self.error) is not None:
                raise self._with_usage(error)
            if self.error is None:
                self._finished = True
                events.append(api.StreamGenerateResponse())
                self._end(events[-1].finished)
            else:
                self._news.set()
        elif (error := self.error) is not None:
            # One choice failed: the others can't make the request whole.
            self.stop(error)
        return events

    def when_over(self, call: Callable[[], None] | None) -> None:
        """Call `call` once all choices are over, now where they are; None stops that."""
        self._tell_over = call or nothing
        if self._over():
            self._tell_over()

    def _over(self) -> bool:
        return all(choice.state.over for choice in self.choices)

    def rest(self) -> list[api.StreamGenerateResponse]:
        """Return what `take` would, up to `finished`, and keep it. Empty where that is taken, or never comes."""
        if self._finished or self.error is not None or not self._over():
            return []
        events = [choice.output.look() for choice in self.choices if choice.output.pending]
        events.append(api.StreamGenerateResponse())
        self._end(events[-1].finished)
        return events

    async def unhurried(self) -> AsyncIterator[api.StreamGenerateResponse]:
        """Yield what is left, up to `finished`, for a client that needs no stream: output collects for a while, and no
        positions are told.

        Raises:
            PenstockError: as `take`.
        """
        self._hurried = False
        for choice in self.choices:
            choice.wait.watched = False
        while not self._finished:
            await self.wait()
            events = self.take()
            self.collect(_ANY_NUMBER, UNHURRIED_S)
            for event in events:
                yield event

    @property
    def finished(self) -> bool:
        """Whether `finished` was taken."""
        return self._finished

    @property
    def error(self) -> PenstockError | None:
        """Why the request cannot be completed."""
        return next((choice.error for choice in self.choices if choice.error is not None), None)

    def stop(self, error: PenstockError) -> None:
        """End all choices because of one. Where that one was left to the client's next call, the others are as well.

        Where it went to another call, so do they, a moment later: a cancel here would end them under that call. Those
        that wait stay until then, as nobody else has their output.
        """
        if not (self.left or isinstance(error, TakenOverError)):
            self.cancel()
            return
        for choice in self.choices:
            if not (choice.state.waits and isinstance(error, TakenOverError)):
                choice.leave(error)

    @property
    def left(self) -> bool:
        """Whether its attempts were left to the client's next call."""
        return any(choice.state is ChoiceState.LEFT for choice in self.choices)

    def _with_usage(self, error: PenstockError) -> PenstockError:
        """Let a failure tell what the whole request has delivered."""
        if not isinstance(error, GenerationFailedError):
            return error
        tokens = sum(choice.tokens for choice in self.choices)
        prompt_tokens = self.ticket.prompt_tokens
        return GenerationFailedError(self.request_id, tokens, error.attempts, prompt_tokens, error.detail)

    def _streams_one(self) -> bool:
        first = self.choices[0]
        return first.state.runs and first.announced and len(self.choices) == 1

    # --- control ------------------------------------------------------------------------------------------------------

    def park(self, error: PenstockError) -> None:
        """Leave all choices to other routers; the call ends with `error` once what is pending was delivered."""
        for choice in self.choices:
            choice.park(error)

    def cancel(self) -> None:
        """Stop all choices; their ends still come."""
        for choice in self.choices:
            choice.cancel()

    def close(self) -> None:
        """Forget everything; cancels what still waits or runs. Every generation is closed exactly once, last."""
        self._stop_timer()
        for choice in self.choices:
            if isinstance(error := self.error, TakenOverError):
                choice.leave(error)
            choice.abandon()
        self.on_close()

    # --- events -------------------------------------------------------------------------------------------------------

    def token(self) -> bytes:
        """Return the resume token as things stand."""
        return replace(self.ticket, choices=tuple(choice.where() for choice in self.choices)).seal(self._secret)

    def _queued(self) -> api.Queued:
        position = max(choice.wait.position for choice in self.choices if choice.state.waits)
        queued = api.Queued(request_id=self.request_id, resume_token=self.token(), position=position)
        waiting = [choice for choice in self.choices if choice.state.waits]
        for choice in waiting:
            choice.wait.watched = choice.wait.told = True
        waits = [self._predict(choice) for choice in waiting]
        known = [wait for wait in waits if wait is not None]
        if known and len(known) == len(waits):
            queued.eta.CopyFrom(duration_to_wire(max(known)))
        return queued

    def _predict(self, choice: Choice) -> float | None:
        wait_s = self._wait_s(choice)
        if wait_s is not None and choice.wait.predicted_s is None:
            choice.wait.predicted_s = time.monotonic() - choice.wait.submitted_at + wait_s
        return wait_s

    def _started(self, choice: Choice) -> api.Started:
        return api.Started(
            request_id=self.request_id,
            resume_token=self.token(),
            choice_index=choice.index,
            replica_id=choice.link.replica_id if choice.link is not None else "",
            queue_time=duration_to_wire(attempt.queue_s if (attempt := choice.last_attempt) is not None else 0.0),
            prompt_tokens=self.ticket.prompt_tokens,
        )

    def _resumed(self, choice: Choice) -> api.Resumed:
        return api.Resumed(
            choice_index=choice.index,
            offset=choice.tokens - choice.output.pending_tokens,
            exact=choice.resume_state.exact,
            resume_token=self.token(),
            replica_id=choice.link.replica_id if choice.link is not None else "",
        )

    def _end(self, finished: api.Finished) -> None:
        # Filled in place: what is given to a constructor is copied.
        finished.request_id = self.request_id
        for index, choice in enumerate(self.choices):
            if (end := choice.end) is not None:
                finished.choices.add(
                    index=index,
                    finish_reason=end.finish_reason,
                    stop_match=end.stop_match,
                    output_tokens=choice.tokens,
                )
        finished.usage.CopyFrom(self.usage())
        self._explain(finished.receipt)
        finished.unenforced.extend(map(unenforced_to_wire, self._unenforced))

    def usage(self) -> types.Usage:
        """Count the tokens so far."""
        return types.Usage(
            prompt_tokens=self.ticket.prompt_tokens,
            output_tokens=sum(choice.tokens for choice in self.choices),
            cached_tokens=sum(choice.metering.cached_tokens for choice in self.choices),
            reasoning_tokens=sum(choice.metering.reasoning_tokens for choice in self.choices),
        )

    def _explain(self, receipt: types.Receipt) -> None:
        """Explain times and cost so far."""
        totals = Totals.of(self.choices)
        # A call that took it over is the last of several.
        first_arrived_at = min(self.arrived_at, *(choice.wait.first_arrived_at for choice in self.choices))
        for choice in self.choices:
            receipt.attempts.extend(choice.metering.receipts())
        set_duration(receipt.total_time, time.monotonic() - first_arrived_at)
        set_duration(receipt.admission_time, self.admitted_at - self.arrived_at)
        receipt.gpu_seconds, receipt.cost = totals.gpu_seconds, totals.cost
        receipt.exact = all(choice.resume_state.exact for choice in self.choices)
        receipt.router_id, receipt.model, receipt.lora_adapter = self.router_id, self.pool, self.adapter
        if totals.first_token_at is not None:
            set_duration(receipt.time_to_first_token, totals.first_token_at - self.arrived_at)
