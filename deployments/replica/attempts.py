"""Every attempt on this replica: starts, re-attaches, parks and forgets them, and enforces the windows."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

from cluster.clock import Clock
from cluster.errors import EngineDeadError, EngineRequestError
from cluster.models import GenerationSpec, SequenceEnd, Windows
from deployments.engines.base import Engine
from deployments.replica.output_log import Entry, Outlet, OutputLog
from penstock.models import FinishReason

_LOG = logging.getLogger(__name__)

REPORT_PREFILLED = 0.25
"""When prompts of this part of the prefill window got their first token, the queue is told at once: until then it takes
their room as used."""


class Refused(enum.Enum):
    """Says why a command was not carried out; numbers as in replica.proto."""

    WINDOW_FULL = 1
    DRAINING = 2
    INVALID = 3
    UNKNOWN = 4
    BAD_OFFSET = 5
    OTHER_TOKENIZER = 6


HERD_GRACES = 12.0
"""While parked attempts were attached to within a grace, the others are waited for, as clients come back one by one; so
many graces at most."""


@dataclass(slots=True)
class Attempt:
    """Is one execution of one choice here."""

    log: OutputLog
    prompt_tokens: int
    keep_until: float = float("inf")
    """Monotonic seconds; a parked attempt is dropped then. What goes to a connected router is that router's to drop."""
    deadline: float = float("inf")
    """Monotonic seconds; it is stopped then, whoever takes its output."""
    prefilling: bool = True
    interactive: bool = False
    stays: bool = False
    """Whether no engine of this kind could go on with its output."""

    @property
    def live(self) -> bool:
        """Whether it still holds a slot."""
        return self.log.end is None


class AttemptTable:
    """Owns the attempts. All methods run on the engine's loop."""

    def __init__(
        self,
        engine: Engine,
        windows: Windows,
        clock: Clock,
        *,
        attach_grace_s: float,
        retained_bytes: int,
        on_end: Callable[[SequenceEnd], None],
        on_prefilled: Callable[[], None] | None = None,
        resumes_penalties: bool = True,
    ) -> None:
        """`on_prefilled` is called when `take_prefilled` should not wait for the next heartbeat. `resumes_penalties`:
        see `EngineIdentity`.
        """
        self._engine = engine
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
        """Set while nothing holds a slot."""
        self.idle.set()
        self.sequences = 0
        """Attempts that hold a slot."""
        self.prefill_tokens = 0
        """Prompt tokens of attempts whose first token is still to come."""
        self.prefilled: list[str] = []
        """Requests whose first token came since `take_prefilled`."""
        self._unreported_tokens = 0
        """Their prompt tokens."""
        self.interactive_started = 0
        """Attempts of class INTERACTIVE, since start."""
        self.orphans = 0
        """Attempts that ended with nobody to take their output, since start."""
        self.orphaned_gpu_s = 0.0
        """What they used."""
        self._attached_at = float("-inf")
        """When a parked attempt was last attached to."""
        self._unknown: set[str] = set()
        """Sequences of the engine that were not known here at the last look."""
        self._alone: tuple[str, str] | None = None
        """The attempt beside which nothing else starts, until it has output."""

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
        """Start an attempt and send its output to `outlet`; returns why not, or None. The same attempt again only
        re-attaches from the beginning, so a repeated command does no harm. `alone`: not while another one is without
        output, and no other one until it has output. `interactive`: of that class. `time_left_s`: `sweep` stops it
        when that is over; None for never.
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
        log = OutputLog(request_id, attempt, self._changed, spec.resume, logprobs=spec.sampling.logprobs is not None)
        log.outlet, log.sink = outlet, sink
        deadline = float("inf") if time_left_s is None else self._clock.monotonic() + time_left_s
        sampling = spec.sampling
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
            return Refused.INVALID, str(error)
        except EngineDeadError as error:
            self.draining = True
            if log.end is not None:
                # It died under this one, and said so.
                return None
            self._forget_unstarted(key)
            return Refused.DRAINING, str(error)
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
        """Move the output of an attempt to another receiver; the old one is told. Returns why not, or None.
        `time_left_s`: `sweep` stops it when that is over, whatever was said before; None keeps what was said.
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

    def history(self, request_id: str, attempt: str, offset: int) -> list[Entry]:
        """Return the output of an attempt before an offset to which somebody attached."""
        return self._attempts[request_id, attempt].log.before(offset)

    def outlet(self, request_id: str, attempt: str) -> Outlet | None:
        """Return where the output of an attempt goes; None when it is parked or not known."""
        item = self._attempts.get((request_id, attempt))
        return item.log.outlet if item is not None else None

    async def abort(
        self, keys: list[tuple[str, str]], reason: FinishReason = FinishReason.CANCELLED, *, final: bool = False
    ) -> None:
        """Stop attempts; their logs end when the slots are free. `final`: nobody goes on with their output, so it gets
        the text that was held back. Otherwise that may become a stop string elsewhere.
        """
        ids = [f"{r}#{a}" for r, a in keys if (item := self._attempts.get((r, a))) is not None and item.live]
        if ids:
            await self._engine.abort(ids, reason.value, release_text=final or reason is FinishReason.DEADLINE)

    def acknowledge(self, request_id: str, attempt: str) -> None:
        """Forget a finished attempt whose output the client has."""
        item = self._attempts.get((request_id, attempt))
        if item is not None and not item.live:
            self._drop((request_id, attempt), item)

    def park(self, outlet: Outlet) -> int:
        """Keep the output of everything that this outlet carried, for the grace time; returns how many there are."""
        until = self._clock.monotonic() + self._grace_s
        parked = 0
        for item in self._attempts.values():
            if item.log.outlet is outlet:
                item.log.park()
                item.keep_until = min(item.keep_until, until)
                parked += 1
        return parked

    # --- housekeeping -------------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Abort attempts whose deadline is over and parked ones, and drop finished ones, whose grace is."""
        now = self._clock.monotonic()
        if late := [key for key, item in self._attempts.items() if item.live and item.deadline <= now]:
            await self.abort(late, FinishReason.DEADLINE)
        # Where others come back, so may these; not for ever.
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
                # Somebody may have come while the engine stopped it.
                if (gone := self._attempts.get(key)) is None or gone.live:
                    continue
                if gone.log.outlet is None:
                    self._give_up(key, gone)
        await self._abort_unknown()

    async def _abort_unknown(self) -> None:
        """Stop what the engine runs and this table does not know, when it is seen again: a start may be under way."""
        known = {f"{request_id}#{attempt}" for request_id, attempt in self._attempts}
        unknown = {name for name in self._engine.live_ids() if "#" in name} - known
        stop, self._unknown = sorted(unknown & self._unknown), unknown
        if stop:
            self.orphans += len(stop)
            _LOG.error("attempts.unknown", extra={"aborted": len(stop)})
            await self._engine.abort(stop)

    def _give_up(self, key: tuple[str, str], item: Attempt) -> None:
        """Drop an attempt that nobody came for."""
        if item.log.outlet is None and item.log.end is not None:
            self.orphans += 1
            self.orphaned_gpu_s += item.log.end.gpu_seconds
        self._drop(key, item)

    def fail_all(self, error: str) -> int:
        """End everything that runs without asking the engine, which is dead, and take nothing more; returns how many
        attempts ended. Their routers run them elsewhere.
        """
        self.draining = True
        live = [item.log for item in self._attempts.values() if item.live]
        for log in live:
            log.on_end(SequenceEnd(FinishReason.ERROR, output_tokens=log.produced, error=error, engine_died=True))
        return len(live)

    async def move_all(self) -> None:
        """Stop everything that runs; its routers let it go on elsewhere."""
        live = {key: item for key, item in self._attempts.items() if item.live}
        for item in live.values():
            item.log.moved = True
        await self.abort(list(live))

    def progress(self) -> tuple[tuple[str, str, int], ...]:
        """List (request id, attempt, output tokens) of everything that holds a slot, -1 tokens where it must not give
        way; safe from another thread.
        """
        # A copy is made in one go; a list of items allocates each, which may collect garbage and let other threads in.
        items = self._attempts.copy().items()
        return tuple((*key, -1 if item.stays else item.log.tokens) for key, item in items if item.live)

    def take_prefilled(self) -> tuple[str, ...]:
        """Return and clear the requests whose first token came."""
        taken, self.prefilled = self.prefilled, []
        self._unreported_tokens = 0
        return tuple(taken)

    @property
    def interactive(self) -> int:
        """Attempts of class INTERACTIVE that hold a slot."""
        return sum(1 for item in self._attempts.copy().values() if item.live and item.interactive)

    @property
    def parked(self) -> int:
        """Live attempts without a receiver."""
        return sum(1 for item in self._attempts.copy().values() if item.live and item.log.outlet is None)

    @property
    def retained(self) -> int:
        """Finished attempts that are kept."""
        return sum(1 for item in self._attempts.copy().values() if not item.live)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _window_full(self, prompt_tokens: int) -> str | None:
        if self.sequences >= self.windows.sequences:
            return f"{self.sequences} of {self.windows.sequences} sequences run"
        # One prompt may be larger than the window; it then goes alone.
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
            # Else its router acknowledges it with the whole request. Other choices may run for long, and a router that
            # takes over meanwhile has to find this one too.
            self._retained += log.size_bytes()
            if log.end is not None:
                self._on_end(log.end)
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
        # Oldest first; a log that its receiver is still reading stays.
        for key, item in list(self._attempts.items()):
            if self._retained <= self._retained_bytes:
                return
            if not item.live and not _owed(item):
                self._drop(key, item)

    def _drop(self, key: tuple[str, str], item: Attempt) -> None:
        self._retained -= item.log.size_bytes()
        item.log.park()
        del self._attempts[key]

    def _forget_unstarted(self, key: tuple[str, str]) -> None:
        item = self._attempts.pop(key)
        self._leave_alone(key)
        self._free_slot()
        if item.prefilling:
            self.prefill_tokens -= item.prompt_tokens


def _owed(item: Attempt) -> bool:
    """Whether a connected router waits for something of it; a connection that is none any more parks it."""
    return item.log.outlet is not None and item.log.dirty
