"""A replica on a virtual clock: the simulated engine's own scheduler and KV cache, without text.

The replica simulates everything between two events at once. A plan is one step with prompts, or a run of steps in which
all sequences only decode, or one after the other, or a run of parts of one long prompt. An event in between cuts the
plan behind the step that is under way, because an engine schedules only between steps. The result is the same as step
by step; a test compares them.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from cluster.models import Windows
from cluster.queue.heartbeats import ReplicaBeat
from cluster.settings import SimSettings
from deployments.engines.sim import NO_PARTS, BatchCore, CoreLimits, Turn
from deployments.engines.sim.identity import sim_windows
from deployments.replica.attempts import REPORT_PREFILLED
from loadtest.simulate.engine.steps import StepLog, StepTimes
from loadtest.traces import TraceRequest
from penstock.models import ReplicaState

_LONGEST_RUN = 256
"""Steps planned at a time. Events cut most runs long before."""
_numbers = itertools.count()
"""Numbers of planned ends. A plan that no longer holds has a number that its request has no more."""


@dataclass(slots=True, eq=False)
class SimRequest:
    """A request through all of its attempts. Times are seconds of the virtual clock."""

    request_id: str
    request: TraceRequest
    router: str
    arrived_at: float
    """Time at which the client sent it."""
    attempt: str = ""
    started_at: float = 0.0
    """Time of the last attempt's grant."""
    prior_tokens: int = 0
    """Output of earlier attempts. It is computed again with the prompt."""
    cached_tokens: int = 0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    """Seconds between its tokens. Those of the attempt under way are added at its end."""
    preemptions: int = 0
    """Preemptions by a full KV cache."""
    decodes_from: int = -1
    """Number of the step that gave the first token since the last interruption; -1 while there is none."""
    ending: int = -1
    """Number of its place among those whose end is planned; -1 for none."""

    def add_gaps(self, gaps: array[float]) -> None:
        """Add the seconds between further tokens."""
        self.gaps = self.gaps + gaps if self.gaps else gaps


@dataclass(slots=True)
class StepEnd:
    """What came at the end of a step."""

    finished: Sequence[SimRequest] = ()
    aborted: Sequence[SimRequest] = ()
    report: bool = False
    """Whether the replica tells the queue at once which requests left its prefill window."""


def core_limits(settings: SimSettings, block_tokens: int | None) -> CoreLimits:
    """Return the limits of an engine's batch. The KV cache has the trace's block size, where it has one."""
    return CoreLimits(
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
        settings.kv_tokens,
        block_tokens or settings.block_size,
    )


class SimReplica:
    """Batch of one engine.

    Args:
        name: the replica id.
        settings: of the engine.
        block_tokens: the trace's block size, which the KV cache then has too. None or 0 shares no prefixes.
        step_times: the step model; None for that of the settings.
        whole_log: whether the log of its steps has all columns.
        core: its scheduler; None for the usual one.
    """

    def __init__(
        self,
        name: str,
        settings: SimSettings,
        block_tokens: int | None = None,
        step_times: StepTimes | None = None,
        *,
        whole_log: bool = True,
        core: BatchCore | None = None,
    ) -> None:
        self.name = name
        self.state = ReplicaState.READY
        self.windows: Windows = sim_windows(settings)
        self.running: dict[str, SimRequest] = {}
        self.log = StepLog(whole_log)
        self.pauses = array("d")
        """Gaps between tokens that contain an interruption."""
        self.preemptions = 0
        self.bunched = 0
        """Tokens that came together with the one before."""
        self.ends_at: float | None = None
        """End of the planned steps; None while there is nothing to do."""
        self._core = core or BatchCore(core_limits(settings, block_tokens))
        self._block_tokens = block_tokens
        self._times = step_times or StepTimes.of(settings)
        self._ending: list[tuple[int, int, SimRequest]] = []
        """Heap by the turn that brings the last token."""
        self._turn: Turn | None = None
        """The plan's first step, if it computes prompts and is not known to be over."""
        self._seconds: list[float] = []
        self._ends: list[float] = []
        self._begun = 0
        """Steps of the plan that have begun. The core has seen those."""
        self._parts = NO_PARTS
        """Parts of a long prompt that the plan computes; none where all sequences decode."""
        self._aborting: dict[str, None] = {}
        self._prefilled: list[str] = []
        self._unreported = 0

    # --- calls from outside -------------------------------------------------------------------------------------------

    def start(self, item: SimRequest, now: float) -> None:
        """Take a granted request."""
        self._cut(now)
        self.running[item.request_id] = item
        item.started_at = now
        item.decodes_from = item.ending = -1
        request = item.request
        self._core.add(item.request_id, request.prompt_tokens + item.prior_tokens, self.shared_blocks(request))

    def shared_blocks(self, request: TraceRequest) -> Sequence[int]:
        """Return the blocks of a prompt that others may have too."""
        return request.full_blocks if request.block_tokens == self._block_tokens else ()

    def abort(self, request_id: str, now: float) -> None:
        """Stop a request at the end of the step that is under way. Unknown ids are ignored."""
        if request_id in self.running:
            self._cut(now)
            self._aborting[request_id] = None

    def set_limit(self, sequences: int, now: float) -> None:
        self._cut(now)
        self._core.set_limits(sequences, None)
        self.windows = replace(self.windows, sequences=self._core.sequence_limit)

    def kill(self, now: float) -> list[SimRequest]:
        """End at once. Return the running requests, with the output that was delivered until now."""
        self._begin_until(now)
        lost, self.running = list(self.running.values()), {}
        under_way = self.ends_at is not None
        step_began = self._ends[self._begun - 1] - self._seconds[self._begun - 1] if under_way else now
        prefilled = self._turn.prefilled if self._turn is not None else ()
        for item in lost:
            decodes = item.decodes_from >= 0
            item.prior_tokens = self.output_tokens(item) - (under_way and (decodes or item.request_id in prefilled))
            if decodes:
                gaps = self.log.since(item.decodes_from + 1)
                item.add_gaps(gaps[: len(gaps) - under_way])
                item.last_token_at = step_began
            item.decodes_from = item.ending = -1
        self.ends_at = None
        return lost

    # --- steps --------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> float | None:
        """Plan the next steps unless some are planned. Return `ends_at`, their end."""
        core = self._core
        if self.ends_at is not None or core.idle:
            return self.ends_at
        changing, self._parts = core.changing, NO_PARTS
        if changing and (parts := core.parts(self._until_an_end())).turns:
            self._parts = parts
            self._seconds = self._times.fill(core.decoding, core.decode_kv_tokens, parts)
            self._ends = list(accumulate(self._seconds, initial=now))
            del self._ends[0]
            self._begun = 0
            self.ends_at = self._ends[-1]
            return self.ends_at
        steps = 0 if changing else core.steady_turns(self._until_an_end())
        if steps:
            self._seconds, self._ends, self._begun = [], [], 0
        elif self._begin_turn(now):
            now, steps = self._ends[0], core.steady_turns(self._until_an_end())
        if steps:
            # Who looks at the core or the log first has it hear of the steps that have begun.
            seconds = self._times.run(core.decoding, core.decode_kv_tokens, steps)
            ends = list(accumulate(seconds, initial=now))
            del ends[0]
            self._seconds += seconds
            self._ends += ends
        self.ends_at = self._ends[-1]
        return self.ends_at

    def end(self) -> StepEnd:
        """Finish the planned steps. The time is then `ends_at`."""
        now = self._ends[-1]
        if self._begun < len(self._ends):
            self._hand_over(len(self._ends))
        elif self._turn is not None:
            self._end_turn(self._turn)
        self.ends_at = None
        ending, turns = self._ending, self._core.turns
        finished = self._end_until(turns, now) if ending and ending[0][0] <= turns else ()
        aborted = self._abort_now(now) if self._aborting else ()
        return StepEnd(finished, aborted, self._unreported >= REPORT_PREFILLED * self.windows.prefill_tokens)

    def _end_until(self, turns: int, now: float) -> list[SimRequest]:
        """Let the requests go whose last token came by a turn."""
        finished, ending = [], self._ending
        while ending and ending[0][0] <= turns:
            _, number, item = heapq.heappop(ending)
            if item.ending == number:
                self._leave(item, now)
                finished.append(item)
        return finished

    def _abort_now(self, now: float) -> list[SimRequest]:
        aborted = []
        for request_id in self._aborting:
            if request_id in self.running:
                item = self.running[request_id]
                self._interrupt(item, now)
                item.prior_tokens = self.output_tokens(item)
                self._core.remove(request_id)
                del self.running[request_id]
                aborted.append(item)
        self._aborting.clear()
        return aborted

    # --- reports ------------------------------------------------------------------------------------------------------

    def beat(self, now: float, *, progress: bool = True) -> ReplicaBeat:
        """Return a heartbeat as a replica sends it.

        Args:
            now: the time.
            progress: whether to include the output of each request, which only a preemption of batch work needs.
        """
        self._begin_until(now)
        prefilled, self._prefilled, self._unreported = tuple(self._prefilled), [], 0
        items = self.running.items()
        return ReplicaBeat(
            self.name,
            b"",
            self.state,
            self.windows,
            tuple([(request_id, item.attempt) for request_id, item in items]),
            prefilled,
            int(self._core.kv_usage * self.windows.kv_tokens),
            produced=tuple([self.output_tokens(item) for item in self.running.values()]) if progress else (),
        )

    def report(self, now: float) -> tuple[list[str], int]:
        """Return what a plain heartbeat needs: the requests whose first token came since the last report, and the KV
        tokens in use.
        """
        self._begin_until(now)
        prefilled, self._prefilled, self._unreported = self._prefilled, [], 0
        return prefilled, int(self._core.kv_usage * self.windows.kv_tokens)

    @property
    def needed_from(self) -> int:
        """The first step whose time a running request still needs."""
        decoding = [item.decodes_from for item in self.running.values() if item.decodes_from >= 0]
        return min(decoding, default=len(self.log) - 1)

    def sync(self, now: float) -> BatchCore:
        """Return the scheduler as of a moment, with the step under way."""
        self._begin_until(now)
        return self._core

    def output_tokens(self, item: SimRequest) -> int:
        """Return the output tokens of a running request so far, with the step under way."""
        return item.prior_tokens + self._core.output_tokens(item.request_id)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _until_an_end(self) -> int:
        """Return the number of turns until a request has its last token."""
        ending = self._ending
        while ending:
            turn, number, item = ending[0]
            if item.ending == number:
                turns = turn - self._core.turns
                return turns if turns < _LONGEST_RUN else _LONGEST_RUN
            heapq.heappop(ending)
        return _LONGEST_RUN

    def _begin_turn(self, now: float) -> bool:
        """Begin a step that may compute prompts. Return whether the plan may go on behind it."""
        decode_kv_tokens = self._core.decode_kv_tokens
        turn = self._turn = self._core.turn()
        for request_id in turn.admitted:
            item = self.running[request_id]
            if item.scheduled_at is None:
                item.scheduled_at = now
                item.cached_tokens = self._core.cached_tokens(request_id)
        for request_id in turn.preempted:
            item = self.running[request_id]
            self._interrupt(item, now)
            item.preemptions += 1
            self.preemptions += 1
        seconds = self._times.with_prompts(
            turn.decoded, len(turn.filled), turn.tokens, turn.kv_tokens, decode_kv_tokens + turn.decoded
        )
        self.log.add(seconds, turn.decoded, turn.decoded + len(turn.filled), turn.tokens, turn.kv_tokens)
        self._seconds, self._ends, self._begun = [seconds], [now + seconds], 1
        fresh = 0
        for request_id in turn.prefilled:
            item = self.running[request_id]
            fresh += item.request.prompt_tokens
            item.ending = next(_numbers)
            last = self._core.turns + item.request.output_tokens - self.output_tokens(item)
            heapq.heappush(self._ending, (last, item.ending, item))
        return not self._aborting and self._unreported + fresh < REPORT_PREFILLED * self.windows.prefill_tokens

    def _end_turn(self, turn: Turn) -> None:
        """End the plan's first step, before those that follow begin."""
        self._turn = None
        for request_id in turn.prefilled:
            self._first_token(self.running[request_id], self._ends[0])

    def _begin_until(self, now: float) -> None:
        """Hand the steps of the plan that have begun by now to the core."""
        planned, before = len(self._ends), self._begun
        if before < planned:
            begun = bisect_right(self._ends, now) + 1
            if begun > before:
                self._hand_over(begun if begun < planned else planned)

    def _hand_over(self, begun: int) -> None:
        """Hand the first steps of the plan to the core."""
        if self._turn is not None:
            self._end_turn(self._turn)
        core, before = self._core, self._begun
        seconds = self._seconds[before:begun]
        if share := self._parts.share:
            kv_tokens = core.decode_kv_tokens + self._parts.computed + before * share
            self.log.add_run(seconds, core.decoding, kv_tokens, share)
            core.fill(begun - before, share)
        else:
            self.log.add_run(seconds, core.decoding, core.decode_kv_tokens)
            core.run(begun - before)
        self._begun = begun

    def _cut(self, now: float) -> None:
        """End the plan with the step that is under way."""
        if self.ends_at is None:
            return
        self._begin_until(now)
        if self._begun < len(self._ends):
            del self._ends[self._begun :]
            self.ends_at = self._ends[-1]

    def _first_token(self, item: SimRequest, now: float) -> None:
        if item.first_token_at is None:
            item.first_token_at = now
            self._prefilled.append(item.request_id)
            self._unreported += item.request.prompt_tokens
        else:
            item.add_gaps(array("d", (now - item.last_token_at,)))
            self.pauses.append(now - item.last_token_at)
        item.decodes_from = len(self.log) - 1

    def _interrupt(self, item: SimRequest, now: float) -> None:
        """Note the tokens of a request that gets none for a while."""
        if item.decodes_from >= 0:
            item.add_gaps(self.log.since(item.decodes_from + 1))
            item.last_token_at = now
        item.decodes_from = item.ending = -1

    def _leave(self, item: SimRequest, now: float) -> None:
        item.add_gaps(self.log.since(item.decodes_from + 1))
        item.last_token_at = now
        item.ending = -1
        self._core.remove(item.request_id)
        del self.running[item.request_id]
