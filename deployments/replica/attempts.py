"""All attempts on this replica: start, attach, park, forget. The table also enforces the windows."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

from cluster.clock import Clock
from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import GenerationSpec, SequenceEnd, Windows
from deployments.engines.base import SequenceEngine
from deployments.replica.inputs import GroupingEngine
from deployments.replica.output_log import Outlet, OutputLog, Parsed, log_of
from penstock.models import FinishReason

_LOG = logging.getLogger(__name__)

REPORT_PREFILLED = 0.25
"""Part of the prefill window. When prompts of this size have got their first tokens, the replica tells the queue at
once. Until then the queue counts their room as used."""


class Refused(enum.Enum):
    """Reason why a command was refused. The numbers are those of replica.proto; ELSEWHERE is INVALID only here."""

    ELSEWHERE = 0
    WINDOW_FULL = 1
    DRAINING = 2
    INVALID = 3
    UNKNOWN = 4
    BAD_OFFSET = 5
    OTHER_TOKENIZER = 6


HERD_GRACES = 12.0
"""Most grace times that a parked attempt is kept while others are attached to, as clients come back one by one."""


@dataclass(slots=True)
class Attempt:
    """One execution of one choice on this replica."""

    log: OutputLog
    prompt_tokens: int
    keep_until: float = float("inf")
    """Monotonic seconds at which a parked attempt is dropped. With a router connected, the router drops it."""
    deadline: float = float("inf")
    """Monotonic seconds at which the attempt is stopped, whether or not a router takes its output."""
    prefilling: bool = True
    interactive: bool = False
    stays: bool = False
    """Whether no engine of this kind could continue its output."""

    @property
    def live(self) -> bool:
        """Whether it still holds a slot."""
        return self.log.end is None

    @property
    def owed(self) -> bool:
        """Whether a connected router still waits for a part of the output. A lost connection parks the attempt."""
        return self.log.outlet is not None and self.log.dirty


class AttemptTable:
    """All attempts of a replica. Its methods run on the engine's loop."""

    def __init__(
        self,
        engine: SequenceEngine,
        windows: Windows,
        clock: Clock,
        *,
        attach_grace_s: float,
        retained_bytes: int,
        on_end: Callable[[OutputLog], None],
        on_prefilled: Callable[[], None] | None = None,
        resumes_penalties: bool = True,
    ) -> None:
        """`on_prefilled` is called when `take_prefilled` should not wait for the next heartbeat."""
        self._engine = GroupingEngine(engine)
        self._clock = clock
        self._grace_s = attach_grace_s
        self._retained_bytes = retained_bytes
        self._on_end = on_end
        self._on_prefilled = on_prefilled
        self._resumes_penalties = resumes_penalties
        self._attempts: dict[tuple[str, str], Attempt] = {}
        self._retained = 0
        """Bytes of finished logs."""
        self.windows = windows
        self.draining = False
        self.idle = asyncio.Event()
        """Set while no attempt holds a slot."""
        self.idle.set()
        self.sequences = 0
        """Number of attempts that hold a slot."""
        self.prefill_tokens = 0
        """Prompt tokens of attempts that have no token yet."""
        self.prefilled: list[str] = []
        """Requests that got their first token since `take_prefilled`."""
        self._unreported_tokens = 0
        """Prompt tokens of `prefilled` that the queue was not told of."""
        self.interactive_started = 0
        """Number of attempts of class INTERACTIVE since the start."""
        self.orphans = 0
        """Number of attempts since the start that ended without a receiver for their output."""
        self.orphaned_gpu_s = 0.0
        """GPU seconds of those attempts."""
        self._attached_at = float("-inf")
        """Time of the last attach to a parked attempt."""
        self._unknown: set[str] = set()
        """Sequences that the engine had and this table did not know at the last sweep."""
        self._alone: tuple[str, str] | None = None
        """Attempt without output that keeps all others from starting."""

    # --- commands -----------------------------------------------------------------------------------------------------

    async def start(
        self,
        request_id: str,
        attempt: str,
        spec: GenerationSpec,
        outlet: Outlet,
        sink: int,
        *,
        alone: bool = False,
        interactive: bool = False,
        time_left_s: float | None = None,
    ) -> tuple[Refused, str] | None:
        """Start an attempt and send its output to `outlet`. Return the reason of a refusal, or None.

        If the attempt exists, only attach to it from the beginning, so a repeated command does no harm. With `alone`,
        it starts only while no other is without output, and no other starts until it has output. `interactive` is its
        class. After `time_left_s`, `sweep` stops it; None sets no limit.
        """
        key = (request_id, attempt)
        if key in self._attempts:
            prior = len(spec.resume.prior_token_ids) if spec.resume else 0
            return self.attach(request_id, attempt, outlet, sink, prior, time_left_s=time_left_s or float("inf"))
        if self.draining:
            return Refused.DRAINING, "the replica drains"
        prompt_tokens = len(spec.prompt_token_ids)
        if (full := self._window_full(prompt_tokens)) is not None:
            return Refused.WINDOW_FULL, full
        if self._alone is not None or (alone and self.prefill_tokens):
            return Refused.WINDOW_FULL, "an attempt that may kill the engine runs without others"
        sampling = spec.sampling
        log = log_of(request_id, attempt, spec, self._changed)
        log.outlet, log.sink = outlet, sink
        deadline = float("inf") if time_left_s is None else self._clock.monotonic() + time_left_s
        stays = not self._resumes_penalties and bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._attempts[key] = Attempt(log, prompt_tokens, deadline=deadline, interactive=interactive, stays=stays)
        self.interactive_started += interactive
        self._alone = key if alone else None
        self.sequences += 1
        self.idle.clear()
        self.prefill_tokens += prompt_tokens
        try:
            await self._engine.submit(f"{request_id}#{attempt}", spec, log)
        except EngineRequestError as error:
            self._forget_unstarted(key)
            return Refused.ELSEWHERE if error.elsewhere else Refused.INVALID, str(error)
        except EngineDeadError as error:
            self.draining = True
            # An engine that died during this start has ended the log.
            return (Refused.DRAINING, str(error)) if self._forget_unstarted(key) else None
        except BaseException:
            # Also when the link ended meanwhile: the engine may never tell of it.
            self._forget_unstarted(key)
            raise
        return None

    def attach(
        self,
        request_id: str,
        attempt: str,
        outlet: Outlet,
        sink: int,
        from_offset: int,
        *,
        time_left_s: float | None = None,
    ) -> tuple[Refused, str] | None:
        """Move an attempt's output to another receiver and tell the old one. Return the reason of a refusal, or None.

        `time_left_s` replaces the time after which `sweep` stops the attempt; None keeps it.
        """
        item = self._attempts.get((request_id, attempt))
        if item is None:
            return Refused.UNKNOWN, "no such attempt here"
        old_outlet, old_sink = item.log.outlet, item.log.sink
        if not item.log.attach(outlet, sink, from_offset):
            return Refused.BAD_OFFSET, f"offset {from_offset} is not the end of a delta (0 to {item.log.tokens})"
        if time_left_s is not None:
            item.deadline = self._clock.monotonic() + time_left_s
        item.keep_until = float("inf")
        if old_outlet is None:
            self._attached_at = self._clock.monotonic()
        if old_outlet is not None and (old_outlet is not outlet or old_sink != sink):
            old_outlet.detach(old_sink)
        return None

    def history(self, request_id: str, attempt: str, offset: int) -> Parsed:
        """Return the output of an attempt before the offset of an attach, and its parsed pieces if it is parsed."""
        return self._attempts[request_id, attempt].log.before(offset)

    def outlet(self, request_id: str, attempt: str) -> Outlet | None:
        """Return the receiver of an attempt's output; None if it is parked or not known."""
        return item.log.outlet if (item := self._attempts.get((request_id, attempt))) is not None else None

    async def abort(
        self, keys: list[tuple[str, str]], reason: FinishReason = FinishReason.CANCELLED, *, final: bool = False
    ) -> None:
        """Stop attempts. Their logs end when the slots are free.

        `final`: the output will not be continued, so the text held back is sent too. Otherwise that text may become a
        stop string on another replica.
        """
        live = [item.log for key in keys if (item := self._attempts.get(key)) is not None and item.live]
        final = final or reason is FinishReason.DEADLINE
        for log in live:
            log.final = log.final or final
        if live:
            await self._engine.abort([f"{log.request_id}#{log.attempt}" for log in live], reason, release_text=final)

    def acknowledge(self, request_id: str, attempt: str) -> None:
        """Forget a finished attempt whose output the client has."""
        if (item := self._attempts.get((request_id, attempt))) is not None and not item.live:
            self._drop((request_id, attempt), item)

    def park(self, outlet: Outlet) -> int:
        """Keep the output of all attempts of this outlet for the grace time. Return their number."""
        until = self._clock.monotonic() + self._grace_s
        parked = [item for item in self._attempts.values() if item.log.outlet is outlet]
        for item in parked:
            item.log.park()
            item.keep_until = min(item.keep_until, until)
        return len(parked)

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Abort attempts after their deadline and parked ones after their grace time. Drop finished ones after it."""
        now = self._clock.monotonic()
        if late := [key for key, item in self._attempts.items() if item.live and item.deadline <= now]:
            await self.abort(late, FinishReason.DEADLINE)
        # While other clients come back, this one may come back too, but only for a limited time.
        until = now - (HERD_GRACES - 1.0) * self._grace_s if now - self._attached_at < self._grace_s else now
        expired = [(key, item) for key, item in self._attempts.items() if item.keep_until <= until]
        for key, item in expired:
            if not item.live:
                self._give_up(key, item)
        stop = [key for key, item in expired if item.live]
        if stop:
            _LOG.info("attempts.grace_over", extra={"aborted": len(stop)})
            await self.abort(stop)
            for key in stop:
                # A router may have attached while the engine stopped the attempt.
                gone = self._attempts.get(key)
                if gone is not None and not gone.live and gone.log.outlet is None:
                    self._give_up(key, gone)
        await self._abort_unknown()

    async def _abort_unknown(self) -> None:
        """Stop engine sequences that this table does not know at two sweeps. At one sweep, a start may be under way."""
        known = {f"{request_id}#{attempt}" for request_id, attempt in self._attempts}
        unknown = {name for name in self._engine.live_ids() if "#" in name} - known
        stop, self._unknown = sorted(unknown & self._unknown), unknown
        if stop:
            self.orphans += len(stop)
            _LOG.error("attempts.unknown", extra={"aborted": len(stop)})
            await self._engine.abort(stop)

    def _give_up(self, key: tuple[str, str], item: Attempt) -> None:
        """Drop an attempt to which no router came back."""
        if item.log.outlet is None and item.log.end is not None:
            self.orphans += 1
            self.orphaned_gpu_s += item.log.end.gpu_seconds
        self._drop(key, item)

    def fail_all(self, error: str) -> int:
        """End all live attempts without asking the engine, which is dead, and refuse new ones. Return their number.

        Their routers run them elsewhere.
        """
        self.draining = True
        live = [item.log for item in self._attempts.values() if item.live]
        for log in live:
            log.on_end(SequenceEnd(FinishReason.ERROR, output_tokens=log.produced, error=error, engine_died=True))
        return len(live)

    async def move_all(self) -> None:
        """Stop all live attempts. Their routers continue them elsewhere."""
        live = [key for key, item in self._attempts.items() if item.live]
        for key in live:
            self._attempts[key].log.moved = True
        await self.abort(live)

    def progress(self) -> tuple[tuple[str, str, int], ...]:
        """List (request id, attempt, output tokens) of all live attempts; -1 tokens for one that must not be preempted.

        Safe to call from another thread.
        """
        # A copy is one call. A list of items allocates each one, which may collect garbage and let other threads in.
        items = self._attempts.copy().items()
        return tuple((*key, -1 if item.stays else item.log.tokens) for key, item in items if item.live)

    def take_prefilled(self) -> tuple[str, ...]:
        """Return and clear the requests that got their first token."""
        taken, self.prefilled = self.prefilled, []
        self._unreported_tokens = 0
        return tuple(taken)

    @property
    def interactive(self) -> int:
        """Number of attempts of class INTERACTIVE that hold a slot."""
        return sum(1 for item in self._attempts.copy().values() if item.live and item.interactive)

    @property
    def parked(self) -> int:
        """Number of live attempts without a receiver."""
        return sum(1 for item in self._attempts.copy().values() if item.live and item.log.outlet is None)

    @property
    def retained(self) -> int:
        """Number of finished attempts that are kept."""
        return sum(1 for item in self._attempts.copy().values() if not item.live)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _window_full(self, prompt_tokens: int) -> str | None:
        if self.sequences >= self.windows.sequences:
            return f"{self.sequences} of {self.windows.sequences} sequences run"
        # One prompt may be larger than the window. It then goes alone.
        if self.prefill_tokens and self.prefill_tokens + prompt_tokens > self.windows.prefill_tokens:
            return f"{self.prefill_tokens} of {self.windows.prefill_tokens} prefill tokens are outstanding"
        return None

    def _changed(self, log: OutputLog, ended: bool) -> None:
        key = (log.request_id, log.attempt)
        item = self._attempts.get(key)
        if item is None:
            return
        if item.prefilling:
            item.prefilling = False
            self._leave_alone(key)
            self.prefill_tokens -= item.prompt_tokens
            self.prefilled.append(log.request_id)
            self._unreported_tokens += item.prompt_tokens
            if self._on_prefilled and self._unreported_tokens >= REPORT_PREFILLED * self.windows.prefill_tokens:
                self._unreported_tokens = 0
                self._on_prefilled()
        if ended:
            self._free_slot()
            if log.outlet is None:
                item.keep_until = min(item.keep_until, self._clock.monotonic() + self._grace_s)
            # With an outlet, its router acknowledges the log with the whole request. Other choices may run for long,
            # and a router that takes over meanwhile has to find this log too.
            self._retained += log.size_bytes()
            if log.end is not None:
                self._on_end(log)
            self._bound_retained()

    def _leave_alone(self, key: tuple[str, str]) -> None:
        if self._alone == key:
            self._alone = None

    def _free_slot(self) -> None:
        self.sequences -= 1
        if self.sequences == 0:
            self.idle.set()

    def _bound_retained(self) -> None:
        if self._retained <= self._retained_bytes:
            return
        # Oldest first. A log that its receiver still reads stays.
        for key, item in list(self._attempts.items()):
            if self._retained <= self._retained_bytes:
                return
            if not item.live and not item.owed:
                self._drop(key, item)

    def _drop(self, key: tuple[str, str], item: Attempt) -> None:
        self._retained -= item.log.size_bytes()
        item.log.park()
        del self._attempts[key]

    def _forget_unstarted(self, key: tuple[str, str]) -> bool:
        """Free the slot of an attempt that did not start; returns False where its end did so."""
        if (item := self._attempts.get(key)) is None or not item.live:
            return False
        del self._attempts[key]
        self._leave_alone(key)
        self._free_slot()
        if item.prefilling:
            self.prefill_tokens -= item.prompt_tokens
        return True
